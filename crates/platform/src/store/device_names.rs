//! Whose a device's name is: an account's own name is that account's, and a name is freed without what was sent under it.
//!
//! Accounts belong to the server and devices to twins. An account takes its name back in the twins of which it is a member:
//! in others, an administrator who makes an account could otherwise silence a device of another utility.

use std::collections::BTreeSet;

use fulmar_identity::Identities;

use super::prelude::*;
use super::user_store::UserStore;

/// Names tried for what gives way, before one that nobody can have taken.
const MAX_TRIED: usize = 100;

/// A device, and the account that registered it; empty if that was removed.
type Instance = (Name, Name, String);

/// Brings devices to where the accounts are now: devices of accounts that were removed are nobody's, so that an account
/// that gets the name later does not have them; and every member of a twin has its own name there, so that what another
/// account registered under it gets another name. Returns which names were given back: twin and device.
///
/// With a store that is not known to have the users of this database, only accounts that `was_removed` knows count as
/// removed; with another database's, no name is given back either.
pub(crate) fn settle(
    db: &Db,
    identities: &Identities,
    was_removed: impl Fn(&str) -> bool,
) -> Result<Vec<(Name, Name)>> {
    let users = UserStore::compare(db, identities)?;
    let all: Vec<Instance> = db.list("SELECT twin, device, account FROM instance", ())?;
    let (mut removed, mut taken) = (BTreeSet::new(), Vec::new());
    identities.read(|state| {
        for (twin, device, owner) in all {
            let is_gone = !owner.is_empty() && !state.accounts().contains_key(&*owner);
            if is_gone && (users == UserStore::Own || was_removed(&owner)) {
                removed.insert(owner.clone());
            }
            if users == UserStore::Foreign {
                continue;
            }
            let namesake = state.accounts().get(&*device).filter(|_| *device != *owner);
            if namesake.is_some_and(|it| it.server_admin || it.role_in(&twin).is_some()) {
                taken.push((twin, device, owner));
            }
        }
    });
    for account in removed {
        let sql = "UPDATE instance SET account = '' WHERE account = ?1";
        db.execute(sql, [&*account])?;
    }
    let mut given_back = Vec::new();
    for (twin, device, owner) in taken {
        let to = move_away(db.within(&twin), &device, identities)?;
        tracing::warn!(
            %twin, %device, owner, name = %to,
            "a device was registered under the name of an account; it has another name now"
        );
        given_back.push((twin, device));
    }
    Ok(given_back)
}

/// Frees the name of a device: what was registered, sent and given under it is kept under another name, which is returned.
pub(crate) fn move_away(db: TwinDb<'_>, device: &Name, identities: &Identities) -> Result<Name> {
    let to = free_name(db, device, identities)?;
    let values = params![db.twin, device, to];
    let sql = "INSERT INTO instance (twin, device, kind, name, app_version, account, seen_at)
         SELECT twin, CAST(?3 AS TEXT), kind, name, app_version, account, seen_at FROM instance
         WHERE twin = ?1 AND device = ?2";
    db.execute(sql, values)?;
    db.execute("UPDATE command SET device = ?3 WHERE twin = ?1 AND device = ?2", values)?;
    db.execute("UPDATE telemetry SET device = ?3 WHERE twin = ?1 AND device = ?2", values)?;
    db.execute("DELETE FROM instance WHERE twin = ?1 AND device = ?2", params![db.twin, device])?;
    Ok(to)
}

fn free_name(db: TwinDb<'_>, device: &Name, identities: &Identities) -> Result<Name> {
    for number in 2..MAX_TRIED {
        // One that is too long is none.
        let Ok(name) = format!("{device}.{number}").parse::<Name>() else { break };
        if !db.exists(
            "SELECT 1 FROM instance WHERE twin = ?1 AND device = ?2",
            params![db.twin, name],
        )? && identities.read(|state| state.namesake(&name).is_none())
        {
            return Ok(name);
        }
    }
    Ok(Name::random())
}
