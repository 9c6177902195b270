//! Whose a device's name is: an account's own name is that account's, and a name is freed without what was sent under it.
//!
//! Accounts belong to the server and devices to twins. An account takes its name back in the twins of which it is a member:
//! in others, an administrator who makes an account could otherwise silence a device of another utility.

use super::sql::{Result, params};
use super::{Db, TwinDb};
use crate::text::Name;

/// Names tried for what gives way, before one that nobody can have taken.
const MAX_TRIED: usize = 100;

/// The account of this name or, if there is none, one whose name differs only in case.
pub(crate) fn namesake(db: &Db, device: &Name) -> Result<Option<Name>> {
    let sql = "SELECT name FROM account WHERE lower(name) = ?1
         ORDER BY CASE WHEN name = ?2 THEN 0 ELSE 1 END, name LIMIT 1";
    db.find(sql, params![device.folded(), device])
}

/// The devices of an account that is removed are nobody's: an account that gets its name later does not have them.
pub(crate) fn disown(db: &Db, account: &str) -> Result<()> {
    db.execute("UPDATE instance SET account = '' WHERE account = ?1", [account]).map(drop)
}

/// The same of accounts that an earlier version removed.
pub(crate) fn disown_removed(db: &Db) -> Result<()> {
    let sql = "UPDATE instance SET account = ''
               WHERE account <> '' AND account NOT IN (SELECT name FROM account)";
    let disowned = db.execute(sql, ())?;
    if disowned > 0 {
        tracing::warn!(disowned, "devices of accounts that were removed belong to nobody now");
    }
    Ok(())
}

/// Gives every member of a twin its own name back: what another account registered under it gets another name. Returns
/// which names: twin and device.
pub(crate) fn give_back(db: &Db) -> Result<Vec<(Name, Name)>> {
    let sql = "SELECT i.twin, i.device, i.account FROM member m
             JOIN instance i ON i.twin = m.twin AND i.device = m.account
             WHERE i.account <> i.device
         UNION
         SELECT i.twin, i.device, i.account FROM account a CROSS JOIN twin t
             JOIN instance i ON i.twin = t.id AND i.device = a.name
             WHERE a.server_admin = 1 AND i.account <> i.device";
    let rows: Vec<(Name, Name, String)> = db.list(sql, ())?;
    let mut given_back = Vec::new();
    for (twin, device, owner) in rows {
        let to = move_away(db.within(&twin), &device)?;
        tracing::warn!(
            %twin, %device, owner, name = %to,
            "a device was registered under the name of an account; it has another name now"
        );
        given_back.push((twin, device));
    }
    Ok(given_back)
}

/// Frees the name of a device: what was registered, sent and given under it is kept under another name, which is returned.
pub(crate) fn move_away(db: TwinDb<'_>, device: &Name) -> Result<Name> {
    let to = free_name(db, device)?;
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

fn free_name(db: TwinDb<'_>, device: &Name) -> Result<Name> {
    for number in 2..MAX_TRIED {
        // One that is too long is none.
        let Ok(name) = format!("{device}.{number}").parse::<Name>() else { break };
        if !db.exists(
            "SELECT 1 FROM instance WHERE twin = ?1 AND device = ?2",
            params![db.twin, name],
        )? && namesake(&db, &name)?.is_none()
        {
            return Ok(name);
        }
    }
    Ok(Name::random())
}
