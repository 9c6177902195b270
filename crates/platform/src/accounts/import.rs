//! Accounts of earlier versions, which are in the platform's database: they move to the store of identities once.
//!
//! A copy as SQL is written first, then all of them are stored in one transaction, then the tables are emptied. A start
//! that is interrupted leaves the accounts here, or there, or in both, and the next one goes on: what is there already is
//! not imported again.

use std::path::Path;

use fulmar_certs::files;
use fulmar_identity::{Command, Identities};

use super::refusal::refused;
use crate::error::Error;
use crate::store::{Store, earlier_accounts};

/// The copy in the data folder.
pub(crate) const COPY: &str = "platform-accounts.sql";

/// Moves the accounts, if there are any.
pub(crate) fn import(data: &Path, store: &Store, identities: &Identities) -> Result<(), Error> {
    let found = store.write_now(|db| Ok(earlier_accounts::read(db)?))?;
    let Some((accounts, copy)) = found else { return Ok(()) };
    let (path, count) = (data.join(COPY), accounts.len());
    files::write(&path, copy.as_bytes(), true)
        .map_err(|error| Error::Refused(error.to_string()))?;
    identities.apply(vec![Command::ImportAccounts(accounts)]).map_err(refused)?;
    store.write_now(|db| Ok(earlier_accounts::clear(db)?))?;
    tracing::info!(
        accounts = count,
        copy = %path.display(),
        "the platform's accounts are in the store of identities now; remove the copy, which has hashes of passwords, \
         when you do not need the version before"
    );
    let clashes = identities.read(|state| {
        let both = state.accounts().keys().filter(|name| state.clients().contains_key(*name));
        both.map(ToString::to_string).collect::<Vec<_>>()
    });
    for name in clashes {
        tracing::warn!(
            user = name,
            "a client of the store and an account of the platform have this name: as before, each has its own password \
             and rights, and MQTT accepts the client's password"
        );
    }
    Ok(())
}
