//! Photos in the database: in the same one as their readings, and as durable.

use super::Db;
use super::sql::{OptionalExtension as _, Result, params};
use crate::time::Time;

/// Kind and bytes of a photo.
pub(crate) fn get(db: &Db, twin: &str, id: &str) -> Result<Option<(String, Vec<u8>)>> {
    let mut rows =
        db.prepare_cached("SELECT kind, bytes FROM photo WHERE twin = ?1 AND id = ?2")?;
    rows.query_row([twin, id], |row| Ok((row.get(0)?, row.get(1)?))).optional()
}

/// When a photo was stored.
pub(crate) fn received_at(db: &Db, twin: &str, id: &str) -> Result<Option<Time>> {
    let mut rows =
        db.prepare_cached("SELECT received_at FROM photo WHERE twin = ?1 AND id = ?2")?;
    rows.query_row([twin, id], |row| row.get(0)).optional()
}

/// Twin, account, and how many photos of how many bytes it has stored there.
pub(crate) fn totals(db: &Db) -> Result<Vec<(String, String, u64, u64)>> {
    let mut rows = db.prepare_cached(
        "SELECT twin, account, count(*), CAST(sum(length(bytes)) AS BIGINT) FROM photo GROUP BY twin, account",
    )?;
    rows.query_map((), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?.collect()
}

pub(crate) fn add(
    db: &Db,
    (twin, id): (&str, &str),
    (kind, bytes): (&str, &[u8]),
    account: &str,
    now: Time,
) -> Result<()> {
    let mut insert = db.prepare_cached(
        "INSERT INTO photo (twin, id, kind, bytes, account, received_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    insert.execute(params![twin, id, kind, bytes, account, now]).map(drop)
}
