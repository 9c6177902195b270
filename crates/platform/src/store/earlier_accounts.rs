//! Accounts as earlier versions stored them: four tables, which are empty since the accounts are in the store of identities.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fulmar_identity::{Account, DeviceToken, Membership, PasswordHash, Session};

use super::Db;
use super::sql::Result;

/// Whether there are any.
pub(crate) fn exist(db: &Db) -> Result<bool> {
    db.exists("SELECT 1 FROM account", ())
}

/// All accounts, and the statements that put them back; `None` if there are none.
pub(crate) fn read(db: &Db) -> Result<Option<(Vec<Account>, String)>> {
    let (mut accounts, mut copy) = (BTreeMap::<Box<str>, Account>::new(), String::new());
    let sql =
        "SELECT name, display_name, password, server_admin, created_at FROM account ORDER BY name";
    let rows: Vec<(String, String, String, bool, i64)> = db.list(sql, ())?;
    if rows.is_empty() {
        return Ok(None);
    }
    for (name, display_name, password, server_admin, created_ms) in rows {
        add(
            &mut copy,
            "account (name, display_name, password, server_admin, created_at)",
            &[
                &quoted(&name),
                &quoted(&display_name),
                &quoted(&password),
                &i64::from(server_admin),
                &created_ms,
            ],
        );
        let account = Account {
            name: name.as_str().into(),
            display_name: display_name.into(),
            // One that no version has made: nobody could log in with it before either.
            password: PasswordHash::parse(&password).ok(),
            server_admin,
            created_ms,
            ..Account::default()
        };
        accounts.insert(name.into(), account);
    }
    let sql = "SELECT twin, account, role FROM member ORDER BY account, twin";
    for (twin, account, role) in db.list::<(String, String, String)>(sql, ())? {
        let values = [&quoted(&twin) as &dyn std::fmt::Display, &quoted(&account), &quoted(&role)];
        add(&mut copy, "member (twin, account, role)", &values);
        if let Some(account) = accounts.get_mut(&*account) {
            account.memberships.push(Membership { twin: twin.into(), role: role.into() });
        }
    }
    let sql = "SELECT id, account, issued_at, expires_at FROM session ORDER BY issued_at, id";
    for (id, account, issued_ms, expires_ms) in db.list::<(String, String, i64, i64)>(sql, ())? {
        let values =
            [&quoted(&id) as &dyn std::fmt::Display, &quoted(&account), &issued_ms, &expires_ms];
        add(&mut copy, "session (id, account, issued_at, expires_at)", &values);
        if let Some(account) = accounts.get_mut(&*account) {
            account.sessions.push(Session { id: id.into(), issued_ms, expires_ms });
        }
    }
    read_tokens(db, &mut accounts, &mut copy)?;
    Ok(Some((accounts.into_values().collect(), copy)))
}

fn read_tokens(
    db: &Db,
    accounts: &mut BTreeMap<Box<str>, Account>,
    copy: &mut String,
) -> Result<()> {
    let sql = "SELECT id, account, digest, created_at, expires_at FROM credential ORDER BY created_at, id";
    let rows: Vec<(String, String, String, i64, Option<i64>)> = db.list(sql, ())?;
    for (id, account, digest, created_ms, expires_ms) in rows {
        let end = expires_ms.map_or_else(|| "NULL".to_owned(), |at| at.to_string());
        let columns = "credential (id, account, digest, created_at, expires_at)";
        add(copy, columns, &[&quoted(&id), &quoted(&account), &quoted(&digest), &created_ms, &end]);
        if let Some(account) = accounts.get_mut(&*account) {
            let (id, digest) = (id.into(), digest.into());
            account.tokens.push(DeviceToken { id, digest, created_ms, expires_ms });
        }
    }
    Ok(())
}

/// Removes all of them.
pub(crate) fn clear(db: &Db) -> Result<()> {
    for table in ["session", "credential", "member", "account"] {
        db.execute(&format!("DELETE FROM {table}"), ())?;
    }
    Ok(())
}

fn add(copy: &mut String, columns: &str, values: &[&dyn std::fmt::Display]) {
    let values = values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    // To a String, which takes everything.
    let _ = writeln!(copy, "INSERT INTO {columns} VALUES ({values});");
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
