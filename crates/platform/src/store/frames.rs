//! The history of meters' frames, and meters' keys, for decoding frames.

use super::Db;
use super::sql::{OptionalExtension as _, Result, Row, params};
use crate::frames::proof::History;
use crate::meters::{Medium, RadioAddress};
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
    /// What is known of its messages.
    pub(crate) history: History,
}

/// The meter with this manufacturer and number.
pub(crate) fn meter(db: &Db, twin: &str, short_address: &str) -> Result<Option<RadioMeter>> {
    let mut rows = db.prepare_cached(
        "SELECT id, medium, aes_key, address, radio_security, radio_model, radio_formats FROM meter
         WHERE twin = ?1 AND radio_key = ?2",
    )?;
    let text = |row: &Row<'_>, at| row.get::<Option<String>>(at);
    let meter = rows.query_row([twin, short_address], |row| {
        let registered = text(row, 3)?.and_then(|address| address.parse::<RadioAddress>().ok());
        let history = History::from_columns(
            registered.and_then(|address| address.model()),
            [text(row, 4)?, text(row, 5)?, text(row, 6)?],
        );
        Ok(RadioMeter { id: row.get(0)?, medium: row.get(1)?, key: row.get(2)?, history })
    });
    meter.optional()
}

/// Stores what is known of the meter's messages.
pub(crate) fn note(db: &Db, twin: &str, meter: &str, history: &History) -> Result<()> {
    let mut update = db.prepare_cached(
        "UPDATE meter SET radio_security = ?3, radio_model = ?4, radio_formats = ?5
         WHERE twin = ?1 AND id = ?2",
    )?;
    let [security, model, formats] = history.columns();
    update.execute(params![twin, meter, security, model, formats]).map(drop)
}

/// When a message with one of these digests was received before, if one was.
pub(crate) fn seen(
    db: &Db,
    twin: &str,
    short_address: &str,
    [one, other]: [&[u8]; 2],
) -> Result<Option<Time>> {
    let mut rows = db.prepare_cached(
        "SELECT at FROM frame_seen WHERE twin = ?1 AND radio_key = ?2 AND digest IN (?3, ?4) LIMIT 1",
    )?;
    rows.query_row(params![twin, short_address, one, other], |row| row.get(0)).optional()
}

/// What a message says of its place among the meter's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sequence {
    /// A counter that never decreases.
    pub(crate) counter: Option<u32>,
    /// The meter's clock, in seconds since 2000.
    pub(crate) clock: Option<u64>,
}

/// Whether another message had this counter.
pub(crate) fn has_counter(db: &Db, twin: &str, short_address: &str, counter: u32) -> Result<bool> {
    let sql = "SELECT 1 FROM frame_seen WHERE twin = ?1 AND radio_key = ?2 AND counter = ?3";
    db.prepare_cached(sql)?.exists(params![twin, short_address, counter])
}

/// When the first message was received whose counter is higher, or whose clock is more than `slack_s` ahead.
pub(crate) fn first_beyond(
    db: &Db,
    twin: &str,
    short_address: &str,
    sequence: Sequence,
    slack_s: u64,
) -> Result<Option<Time>> {
    let mut rows = db.prepare_cached(
        "SELECT min(at) FROM frame_seen WHERE twin = ?1 AND radio_key = ?2
         AND (counter > CAST(?3 AS BIGINT) OR clock > CAST(?4 AS BIGINT))",
    )?;
    let clock = sequence.clock.map(|clock| clock + slack_s);
    rows.query_row(params![twin, short_address, sequence.counter, clock], |row| row.get(0))
}

/// Stores a frame.
pub(crate) fn remember(
    db: &Db,
    twin: &str,
    short_address: &str,
    digest: &[u8],
    sequence: Sequence,
    at: Time,
) -> Result<()> {
    let mut insert = db.prepare_cached(
        "INSERT INTO frame_seen (twin, radio_key, digest, counter, clock, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT DO NOTHING",
    )?;
    insert.execute(params![twin, short_address, digest, sequence.counter, sequence.clock, at])?;
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
