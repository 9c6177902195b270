//! Photos in the database: in the same one as their readings, and as durable.

use super::prelude::*;

/// Kind and bytes of a photo.
pub(crate) fn get(db: TwinDb<'_>, id: &str) -> Result<Option<(String, Vec<u8>)>> {
    db.find("SELECT kind, bytes FROM photo WHERE twin = ?1 AND id = ?2", [db.twin, id])
}

/// Kind and length in bytes of a photo, and when it was stored.
pub(crate) fn described(db: TwinDb<'_>, id: &str) -> Result<Option<(String, u64, Time)>> {
    let sql = "SELECT kind, length(bytes), received_at FROM photo WHERE twin = ?1 AND id = ?2";
    db.find(sql, [db.twin, id])
}

/// At most this many bytes of a photo that was stored then, from an offset.
pub(crate) fn part(
    db: &Db,
    twin: &str,
    id: &str,
    received_at: Time,
    offset: u64,
    most: usize,
) -> Result<Option<Vec<u8>>> {
    let values = params![twin, id, received_at, offset as i64 + 1, most as i64];
    let sql =
        "SELECT substr(bytes, ?4, ?5) FROM photo WHERE twin = ?1 AND id = ?2 AND received_at = ?3";
    db.find(sql, values)
}

/// Twin, account, and how many photos of how many bytes it has stored there.
pub(crate) fn totals(db: &Db) -> Result<Vec<(String, String, u64, u64)>> {
    let sql = "SELECT twin, account, count(*), CAST(sum(length(bytes)) AS BIGINT) FROM photo GROUP BY twin, account";
    db.list(sql, ())
}

pub(crate) fn add(
    db: &Db,
    twin: &str,
    id: &str,
    kind: &str,
    bytes: &[u8],
    account: &str,
    now: Time,
) -> Result<()> {
    let sql = "INSERT INTO photo (twin, id, kind, bytes, account, received_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    db.execute(sql, params![twin, id, kind, bytes, account, now]).map(drop)
}
