//! Sensors in the database.

use super::Db;
use super::sql::{OptionalExtension as _, Result, Row, params};
use crate::homes::types::is_silent;
use crate::measurements::Quantity;
use crate::sensors::types::SensorState;
use crate::sensors::{NewSensor, Sensor};
use crate::text::Name;
use crate::time::Time;

const COLUMNS: &str =
    "s.device, s.home, s.room, s.model, s.last_at, s.expected_every_s, s.revision,
    (SELECT string_agg(x.quantity, ' ' ORDER BY x.quantity) FROM series x
     WHERE x.twin = s.twin AND x.device = s.device)";

fn sensor(row: &Row<'_>, now: Time) -> Result<Sensor> {
    let (last_at, expected_every_s): (Option<Time>, Option<u32>) = (row.get(4)?, row.get(5)?);
    let silent = last_at.is_none_or(|last_at| is_silent(last_at, expected_every_s, now));
    let (revision, quantities): (i64, Option<String>) = (row.get(6)?, row.get(7)?);
    let quantities = quantities.unwrap_or_default();
    Ok(Sensor {
        device: row.get(0)?,
        home: row.get(1)?,
        room: row.get(2)?,
        model: row.get(3)?,
        quantities: quantities
            .split(' ')
            .filter_map(|word| word.parse::<Quantity>().ok())
            .collect(),
        last_at,
        state: if silent { SensorState::Silent } else { SensorState::Ok },
        expected_every_s,
        etag: format!("\"s{revision}\""),
    })
}

pub(crate) fn get(db: &Db, twin: &str, device: &str, now: Time) -> Result<Option<Sensor>> {
    let sql = format!("SELECT {COLUMNS} FROM sensor s WHERE s.twin = ?1 AND s.device = ?2");
    db.prepare_cached(&sql)?.query_row([twin, device], |row| sensor(row, now)).optional()
}

/// Up to `limit` sensors by name, after one; of one home or of all.
pub(crate) fn list(
    db: &Db,
    twin: &str,
    home: Option<&str>,
    after: &str,
    limit: usize,
    now: Time,
) -> Result<Vec<Sensor>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM sensor s WHERE s.twin = ?1 AND (CAST(?2 AS TEXT) IS NULL OR s.home = ?2)
         AND s.device > ?3 ORDER BY s.device LIMIT ?4"
    );
    let mut rows = db.prepare_cached(&sql)?;
    rows.query_map(params![twin, home, after, limit], |row| sensor(row, now))?.collect()
}

/// Registers a sensor, or updates it.
pub(crate) fn put(db: &Db, twin: &str, device: &Name, new: &NewSensor) -> Result<()> {
    let mut insert = db.prepare_cached(
        "INSERT INTO sensor (twin, device, home, room, model, expected_every_s, revision)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1)
         ON CONFLICT (twin, device) DO UPDATE SET home = excluded.home, room = excluded.room,
             model = excluded.model, expected_every_s = excluded.expected_every_s,
             revision = sensor.revision + 1",
    )?;
    let values = params![twin, device, new.home, new.room, new.model, new.expected_every_s];
    insert.execute(values).map(drop)
}

/// What else is known of a device that measured.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub(crate) home: Option<Name>,
    pub(crate) expected_every_s: Option<u32>,
}

/// The device, if it is registered.
pub(crate) fn unit(db: &Db, twin: &str, device: &Name) -> Result<Option<Unit>> {
    let mut rows = db.prepare_cached(
        "SELECT home, expected_every_s FROM sensor WHERE twin = ?1 AND device = ?2",
    )?;
    let known = rows.query_row([twin, device], |row| {
        Ok(Unit { home: row.get(0)?, expected_every_s: row.get(1)? })
    });
    known.optional()
}

/// Registers a device that measured and is not registered.
pub(crate) fn register(db: &Db, twin: &str, device: &Name) -> Result<Unit> {
    let mut insert =
        db.prepare_cached("INSERT INTO sensor (twin, device, revision) VALUES (?1, ?2, 1)")?;
    insert.execute(params![twin, device])?;
    Ok(Unit { home: None, expected_every_s: None })
}

/// How many sensors the twin has.
pub(crate) fn count(db: &Db, twin: &str) -> Result<usize> {
    let mut count = db.prepare_cached("SELECT count(*) FROM sensor WHERE twin = ?1")?;
    count.query_row([twin], |row| row.get(0))
}

/// Notes that the device measured then.
pub(crate) fn heard(db: &Db, twin: &str, device: &str, at: Time) -> Result<()> {
    let mut update = db.prepare_cached(
        "UPDATE sensor SET last_at = ?3 WHERE twin = ?1 AND device = ?2
         AND (last_at IS NULL OR last_at < ?3)",
    )?;
    update.execute(params![twin, device, at]).map(drop)
}
