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

/// Kind and length in bytes of a photo, and when it was stored.
pub(crate) fn described(db: &Db, twin: &str, id: &str) -> Result<Option<(String, u64, Time)>> {
    let mut rows = db.prepare_cached(
        "SELECT kind, length(bytes), received_at FROM photo WHERE twin = ?1 AND id = ?2",
    )?;
    let described = rows.query_row([twin, id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    described.optional()
}

/// At most this many bytes of a photo that was stored then, from an offset.
pub(crate) fn part(
    db: &Db,
    (twin, id, received_at): (&str, &str, Time),
    (offset, most): (u64, usize),
) -> Result<Option<Vec<u8>>> {
    let mut rows = db.prepare_cached(
        "SELECT substr(bytes, ?4, ?5) FROM photo WHERE twin = ?1 AND id = ?2 AND received_at = ?3",
    )?;
    let values = params![twin, id, received_at, offset as i64 + 1, most as i64];
    rows.query_row(values, |row| row.get(0)).optional()
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
