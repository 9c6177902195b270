//! Accounts, members of twins, and valid tokens.

use super::sql::{Result, from_row, params};
use super::{Db, TwinDb, device_names};
use crate::role::Role;
use crate::text::Name;
use crate::time::Time;

/// An account without its memberships.
#[derive(Clone, Debug)]
pub(crate) struct AccountRow {
    pub(crate) name: Name,
    pub(crate) display_name: String,
    pub(crate) server_admin: bool,
}

/// A login's token.
#[derive(Clone, Debug)]
pub(crate) struct SessionRow {
    pub(crate) id: String,
    pub(crate) account: Name,
    pub(crate) issued_at: Time,
    pub(crate) expires_at: Time,
}

/// A credential: the stored part of a token without expiry.
#[derive(Clone, Debug)]
pub(crate) struct CredentialRow {
    pub(crate) id: String,
    pub(crate) account: Name,
    pub(crate) digest: String,
    pub(crate) created_at: Time,
    /// `None` for one that does not expire.
    pub(crate) expires_at: Option<Time>,
}

from_row! {
    AccountRow { name, display_name, server_admin }
    SessionRow { id, account, issued_at, expires_at }
    CredentialRow { id, account, digest, created_at, expires_at }
}

pub(crate) fn read_all(db: &Db) -> Result<Vec<AccountRow>> {
    db.list("SELECT name, display_name, server_admin FROM account", ())
}

/// Whether this is the only account that is an admin of the server.
pub(crate) fn is_only_server_admin(db: &Db, name: &str) -> Result<bool> {
    db.exists(
        "SELECT 1 FROM account a WHERE a.name = ?1 AND a.server_admin = ?2
         AND NOT EXISTS (SELECT 1 FROM account b WHERE b.name <> a.name AND b.server_admin = ?2)",
        params![name, true],
    )
}

/// Whether a member of the twin has the role `admin`.
pub(crate) fn has_admin(db: TwinDb<'_>) -> Result<bool> {
    db.exists(
        "SELECT 1 FROM member WHERE twin = ?1 AND role = ?2 LIMIT 1",
        params![db.twin, Role::Admin],
    )
}

/// Twin, account, role.
pub(crate) fn members(db: &Db) -> Result<Vec<(Name, Name, Role)>> {
    db.list("SELECT twin, account, role FROM member", ())
}

pub(crate) fn sessions(db: &Db) -> Result<Vec<SessionRow>> {
    db.list("SELECT id, account, issued_at, expires_at FROM session", ())
}

/// All accounts and their passwords' hashes.
pub(crate) fn passwords(db: &Db) -> Result<Vec<(Name, String)>> {
    db.list("SELECT name, password FROM account", ())
}

pub(crate) fn credentials(db: &Db) -> Result<Vec<CredentialRow>> {
    let sql = "SELECT id, account, digest, created_at, expires_at FROM credential ORDER BY created_at, id";
    db.list(sql, ())
}

/// Stores a new credential.
pub(crate) fn add_credential(db: &Db, credential: &CredentialRow) -> Result<()> {
    let CredentialRow { id, account, digest, created_at, expires_at } = credential;
    db.execute(
        "INSERT INTO credential (id, account, digest, created_at, expires_at)
         VALUES (?1, ?2, ?3, ?4, ?5)",
        params![id, account, digest, created_at, expires_at],
    )
    .map(drop)
}

/// Sets the expiry of the account's credentials to this time, except those that expire before and the one named.
pub(crate) fn end_credentials(db: &Db, account: &str, but: &str, at: Time) -> Result<()> {
    db.execute(
        "UPDATE credential SET expires_at = ?3
         WHERE account = ?1 AND id <> ?2 AND (expires_at IS NULL OR expires_at > ?3)",
        params![account, but, at],
    )
    .map(drop)
}

/// Removes a credential; returns whether the account had it.
pub(crate) fn remove_credential(db: &Db, account: &str, id: &str) -> Result<bool> {
    let sql = "DELETE FROM credential WHERE account = ?1 AND id = ?2";
    Ok(db.execute(sql, [account, id])? == 1)
}

pub(crate) fn remove_credentials(db: &Db, account: &str) -> Result<usize> {
    db.execute("DELETE FROM credential WHERE account = ?1", [account])
}

/// Deletes expired credentials; returns whether there were any.
pub(crate) fn forget_credentials(db: &Db, now: Time) -> Result<bool> {
    let sql = "DELETE FROM credential WHERE expires_at IS NOT NULL AND expires_at <= ?1";
    Ok(db.execute(sql, [now])? > 0)
}

pub(crate) fn password(db: &Db, name: &str) -> Result<Option<String>> {
    db.find("SELECT password FROM account WHERE name = ?1", [name])
}

/// Adds an account; returns whether the name was free: no account has it, nor one that differs only in case.
pub(crate) fn add(db: &Db, account: &AccountRow, password: &str, now: Time) -> Result<bool> {
    if device_names::namesake(db, &account.name)?.is_some() {
        return Ok(false);
    }
    let AccountRow { name, display_name, server_admin } = account;
    if db.execute(
        "INSERT INTO account (name, display_name, password, server_admin, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING",
        params![name, display_name, password, server_admin, now],
    )? == 0
    {
        return Ok(false);
    }
    // One that an earlier version removed may have had devices.
    device_names::disown(db, name)?;
    device_names::give_back(db)?;
    Ok(true)
}

/// Sets a password and ends all the account's sessions. Credentials must be revoked separately.
pub(crate) fn set_password(db: &Db, name: &str, password: &str) -> Result<bool> {
    let changed =
        db.execute("UPDATE account SET password = ?2 WHERE name = ?1", params![name, password])?;
    db.execute("DELETE FROM session WHERE account = ?1", [name])?;
    Ok(changed == 1)
}

pub(crate) fn remove(db: &Db, name: &str) -> Result<bool> {
    device_names::disown(db, name)?;
    Ok(db.execute("DELETE FROM account WHERE name = ?1", [name])? == 1)
}

pub(crate) fn set_role(db: TwinDb<'_>, account: &str, role: Role) -> Result<()> {
    db.execute(
        "INSERT INTO member (twin, account, role) VALUES (?1, ?2, ?3)
         ON CONFLICT (twin, account) DO UPDATE SET role = excluded.role",
        params![db.twin, account, role],
    )?;
    device_names::give_back(&db).map(drop)
}

pub(crate) fn remove_member(db: TwinDb<'_>, account: &str) -> Result<bool> {
    let sql = "DELETE FROM member WHERE twin = ?1 AND account = ?2";
    Ok(db.execute(sql, [db.twin, account])? == 1)
}

/// Stores a new session, and deletes expired ones and, beyond `most` of the account, its oldest. Returns the identifiers
/// of those deleted.
pub(crate) fn add_session(db: &Db, session: &SessionRow, most: usize) -> Result<Vec<String>> {
    let sql = "DELETE FROM session WHERE expires_at < ?1 RETURNING id";
    let mut ended: Vec<String> = db.list(sql, [session.issued_at])?;
    let SessionRow { id, account, issued_at, expires_at } = session;
    db.execute(
        "INSERT INTO session (id, account, issued_at, expires_at) VALUES (?1, ?2, ?3, ?4)",
        params![id, account, issued_at, expires_at],
    )?;
    let sql = "DELETE FROM session WHERE account = ?1 AND id NOT IN
         (SELECT id FROM session WHERE account = ?1 ORDER BY issued_at DESC, id LIMIT ?2)
         RETURNING id";
    ended.extend(db.list::<String>(sql, params![account, most])?);
    Ok(ended)
}

pub(crate) fn end_session(db: &Db, id: &str) -> Result<()> {
    db.execute("DELETE FROM session WHERE id = ?1", [id])?;
    db.execute("DELETE FROM credential WHERE id = ?1", [id]).map(drop)
}
