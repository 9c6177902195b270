//! Whose users the platform's database has, and accounts of earlier versions in it, which move to the store of identities
//! once. The process that serves does both: beside the server of an earlier version, or in another data folder, a command
//! would take everybody's login away.
//!
//! A copy as SQL is written first, then all of them are stored in one transaction, then the tables are emptied and the
//! store is recorded. A start that is interrupted leaves the accounts here, or there, or in both, and the next one goes on:
//! what is there already is not imported again.

use std::path::Path;
use std::sync::Arc;

use fulmar_certs::files;
use fulmar_identity::{Account, Command, Identities};
use uuid::Uuid;

use super::refusal::refused;
use crate::error::Error;
use crate::store::user_store::{self, UserStore};
use crate::store::{Store, earlier_accounts};

/// The copy in the data folder.
pub(crate) const COPY: &str = "platform-accounts.sql";

/// Compares these identities with those that the database has recorded.
pub(crate) fn user_store(store: &Store, identities: &Arc<Identities>) -> Result<UserStore, Error> {
    let identities = Arc::clone(identities);
    Ok(store.write_now(move |db| Ok(UserStore::compare(db, &identities)?))?)
}

/// Records whose users the database has, unless another store has them, and moves the accounts, if there are any. Returns
/// whether another store has them.
pub(crate) fn import(
    data: &Path,
    store: &Store,
    identities: &Arc<Identities>,
) -> Result<bool, Error> {
    let known = user_store(store, identities)?;
    if known == UserStore::Foreign {
        tracing::warn!(
            folder = %data.display(),
            "the users of the platform's database are in another data folder's identities.db: stop the server and use that \
             folder, or restore the file; until then those users cannot log in, and keep their devices"
        );
        return Ok(true);
    }
    let found = store.write_now(|db| Ok(earlier_accounts::read(db)?))?;
    if known == UserStore::Own && found.is_none() {
        return Ok(false);
    }
    let new = Command::SetIdentifier(Uuid::new_v4().to_string().into());
    identities.apply(vec![new]).map_err(refused)?;
    let moved = found.is_some();
    if let Some((accounts, copy)) = found {
        move_accounts(data, identities, accounts, &copy)?;
    }
    let identifier = identities.read(|state| state.identifier().map(str::to_owned));
    store.write_now(move |db| {
        if moved {
            earlier_accounts::clear(db)?;
        }
        if let Some(identifier) = &identifier {
            user_store::record(db, identifier)?;
        }
        Ok(())
    })?;
    Ok(false)
}

/// Logs each name that a client and an account have, since only earlier versions allowed that.
pub(crate) fn log_shared_names(identities: &Identities) {
    let names =
        identities.read(|state| state.shared_names().map(str::to_owned).collect::<Vec<_>>());
    for user in names {
        tracing::warn!(
            user,
            "a client of the broker and a user of the platform have this name: each has its own password and rights, and MQTT \
             accepts the client's password only; to end that, remove one of them: `fulmar ctl users remove` or `fulmar user \
             remove`"
        );
    }
}

fn move_accounts(
    data: &Path,
    identities: &Identities,
    accounts: Vec<Account>,
    copy: &str,
) -> Result<(), Error> {
    let (path, count) = (data.join(COPY), accounts.len());
    files::write(&path, copy.as_bytes(), true)
        .map_err(|error| Error::Refused(error.to_string()))?;
    identities.apply(vec![Command::ImportAccounts(accounts)]).map_err(refused)?;
    tracing::info!(
        accounts = count,
        copy = %path.display(),
        "the platform's accounts are in the store of identities now; remove the copy, which has hashes of passwords, \
         when you do not need the version before"
    );
    Ok(())
}
