//! Which store of identities has the users of this database: with another one, all devices would seem to be nobody's.

use fulmar_identity::Identities;

use super::Db;
use super::sql::Result;

/// A store of identities, as a database knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserStore {
    /// No server has recorded one yet.
    Unrecorded,
    /// It has the users.
    Own,
    /// Another one has them.
    Foreign,
}

impl UserStore {
    /// Compares these identities with those that were recorded.
    pub(crate) fn compare(db: &Db, identities: &Identities) -> Result<UserStore> {
        let recorded: Option<String> = db.find("SELECT id FROM user_store", ())?;
        Ok(match recorded {
            None => UserStore::Unrecorded,
            Some(id) if identities.read(|state| state.identifier() == Some(&*id)) => UserStore::Own,
            Some(_) => UserStore::Foreign,
        })
    }
}

/// Records the store that has the users.
pub(crate) fn record(db: &Db, identifier: &str) -> Result<()> {
    db.execute("DELETE FROM user_store", ())?;
    db.execute("INSERT INTO user_store (id) VALUES (?1)", [identifier]).map(drop)
}
