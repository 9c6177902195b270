//! The history of meters' frames, and meters' keys, for decoding frames.

use super::prelude::*;
use crate::frames::proof::History;
use crate::meters::{Medium, RadioAddress};

/// The most frames remembered per meter: beyond, those received first are deleted.
const REMEMBERED: u32 = 256;

/// The data of a meter for decoding its frames.
#[derive(Clone, Debug)]
pub(crate) struct RadioMeter {
    pub(crate) id: Name,
    pub(crate) medium: Medium,
    pub(crate) key: Option<Vec<u8>>,
    /// State of its messages.
    pub(crate) history: History,
}

/// The meter with this manufacturer and number.
pub(crate) fn meter(db: TwinDb<'_>, short_address: &str) -> Result<Option<RadioMeter>> {
    let sql =
        "SELECT id, medium, aes_key, address, radio_security, radio_model, radio_formats FROM meter
         WHERE twin = ?1 AND radio_key = ?2";
    db.find_with(sql, [db.twin, short_address], |row| {
        let (id, medium, key, address) = row.read()?;
        let registered =
            Option::<String>::and_then(address, |text| text.parse::<RadioAddress>().ok());
        let (security, model, formats) = row.read()?;
        let model_of = registered.and_then(|address| address.model());
        let history = History::from_columns(model_of, [security, model, formats]);
        Ok(RadioMeter { id, medium, key, history })
    })
}

/// Stores what is known of the meter's messages.
pub(crate) fn note(db: TwinDb<'_>, meter: &str, history: &History) -> Result<()> {
    let [security, model, formats] = history.columns();
    let sql = "UPDATE meter SET radio_security = ?3, radio_model = ?4, radio_formats = ?5
         WHERE twin = ?1 AND id = ?2";
    db.execute(sql, params![db.twin, meter, security, model, formats]).map(drop)
}

/// When a message with one of these digests was received before, if one was.
pub(crate) fn seen(
    db: TwinDb<'_>,
    short_address: &str,
    [one, other]: [&[u8]; 2],
) -> Result<Option<Time>> {
    let sql = "SELECT at FROM frame_seen WHERE twin = ?1 AND radio_key = ?2 AND digest IN (?3, ?4) LIMIT 1";
    db.find(sql, params![db.twin, short_address, one, other])
}

/// Position that a message claims among the meter's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sequence {
    /// A counter that never decreases.
    pub(crate) counter: Option<u32>,
    /// The meter's clock, in seconds since 2000.
    pub(crate) clock: Option<u64>,
}

/// Whether another message had this counter.
pub(crate) fn has_counter(db: TwinDb<'_>, short_address: &str, counter: u32) -> Result<bool> {
    let sql = "SELECT 1 FROM frame_seen WHERE twin = ?1 AND radio_key = ?2 AND counter = ?3";
    db.exists(sql, params![db.twin, short_address, counter])
}

/// When the first message was received whose counter is higher, or whose clock is more than `slack_s` ahead.
pub(crate) fn first_beyond(
    db: TwinDb<'_>,
    short_address: &str,
    sequence: Sequence,
    slack_s: u64,
) -> Result<Option<Time>> {
    let clock = sequence.clock.map(|clock| clock + slack_s);
    let sql = "SELECT min(at) FROM frame_seen WHERE twin = ?1 AND radio_key = ?2
         AND (counter > CAST(?3 AS BIGINT) OR clock > CAST(?4 AS BIGINT))";
    db.get(sql, params![db.twin, short_address, sequence.counter, clock])
}

/// Stores a frame.
pub(crate) fn remember(
    db: TwinDb<'_>,
    short_address: &str,
    digest: &[u8],
    sequence: Sequence,
    at: Time,
) -> Result<()> {
    let sql = "INSERT INTO frame_seen (twin, radio_key, digest, counter, clock, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT DO NOTHING";
    db.execute(sql, params![db.twin, short_address, digest, sequence.counter, sequence.clock, at])?;
    let sql = "SELECT count(*) FROM frame_seen WHERE twin = ?1 AND radio_key = ?2";
    let known: u32 = db.get(sql, [db.twin, short_address])?;
    // Now and then instead of every time: a quarter more is no harm.
    if known > REMEMBERED + REMEMBERED / 4 {
        let sql = "DELETE FROM frame_seen WHERE twin = ?1 AND radio_key = ?2 AND digest IN
             (SELECT digest FROM frame_seen WHERE twin = ?1 AND radio_key = ?2 ORDER BY at LIMIT ?3)";
        db.execute(sql, params![db.twin, short_address, known - REMEMBERED])?;
    }
    Ok(())
}
