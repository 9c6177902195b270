//! The history of meters' frames, and meters' keys, for decoding frames.

use super::Db;
use super::sql::{OptionalExtension as _, Result, params};
use crate::meters::Medium;
use crate::text::Name;
use crate::time::Time;

/// The most frames remembered per meter: beyond, those received first are deleted.
const REMEMBERED: u32 = 256;

/// The data of a meter for decoding its frames.
#[derive(Clone, Debug)]
pub(crate) struct RadioMeter {
    pub(crate) id: Name,
    pub(crate) medium: Medium,
    pub(crate) key: Option<Vec<u8>>,
}

/// The meter with this manufacturer and number.
pub(crate) fn meter(db: &Db, twin: &str, short_address: &str) -> Result<Option<RadioMeter>> {
    let mut rows = db.prepare_cached(
        "SELECT id, medium, aes_key FROM meter WHERE twin = ?1 AND radio_key = ?2",
    )?;
    let meter = rows.query_row([twin, short_address], |row| {
        Ok(RadioMeter { id: row.get(0)?, medium: row.get(1)?, key: row.get(2)? })
    });
    meter.optional()
}

/// When this very frame was received before, if it was.
pub(crate) fn seen(
    db: &Db,
    twin: &str,
    short_address: &str,
    digest: &[u8],
) -> Result<Option<Time>> {
    let mut rows = db.prepare_cached(
        "SELECT at FROM frame_seen WHERE twin = ?1 AND radio_key = ?2 AND digest = ?3",
    )?;
    rows.query_row(params![twin, short_address, digest], |row| row.get(0)).optional()
}

/// Whether the meter had a higher counter before `at` already, which excludes a genuine frame.
pub(crate) fn counted_further(
    db: &Db,
    twin: &str,
    short_address: &str,
    counter: u32,
    at: Time,
) -> Result<bool> {
    let mut rows = db.prepare_cached(
        "SELECT 1 FROM frame_seen WHERE twin = ?1 AND radio_key = ?2 AND counter > ?3 AND at < ?4",
    )?;
    rows.exists(params![twin, short_address, counter, at])
}

/// Stores a frame.
pub(crate) fn remember(
    db: &Db,
    twin: &str,
    short_address: &str,
    digest: &[u8],
    counter: Option<u32>,
    at: Time,
) -> Result<()> {
    let mut insert = db.prepare_cached(
        "INSERT INTO frame_seen (twin, radio_key, digest, counter, at) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT DO NOTHING",
    )?;
    insert.execute(params![twin, short_address, digest, counter, at])?;
    let mut count =
        db.prepare_cached("SELECT count(*) FROM frame_seen WHERE twin = ?1 AND radio_key = ?2")?;
    let known: u32 = count.query_row([twin, short_address], |row| row.get(0))?;
    // Now and then instead of every time: a quarter more is no harm.
    if known > REMEMBERED + REMEMBERED / 4 {
        db.execute(
            "DELETE FROM frame_seen WHERE twin = ?1 AND radio_key = ?2 AND digest IN
             (SELECT digest FROM frame_seen WHERE twin = ?1 AND radio_key = ?2 ORDER BY at LIMIT ?3)",
            params![twin, short_address, known - REMEMBERED],
        )?;
    }
    Ok(())
}
