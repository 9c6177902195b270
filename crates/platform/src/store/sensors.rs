//! Sensors in the database.

use super::prelude::*;
use crate::homes::types::is_silent;
use crate::sensors::types::SensorState;
use crate::sensors::{NewSensor, Sensor};

const COLUMNS: &str = "s.device, s.home, s.room, s.model,
    (SELECT string_agg(x.quantity, ' ' ORDER BY x.quantity) FROM series x
     WHERE x.twin = s.twin AND x.device = s.device),
    s.last_at, s.expected_every_s, '\"s' || s.revision || '\"'";

from_row! {
    Sensor { device, home, room, model, quantities, last_at, state = SensorState::Silent, expected_every_s, etag }
    Unit { home, expected_every_s }
}

fn sensor(row: &mut Row<'_>, now: Time) -> Result<Sensor> {
    let mut sensor: Sensor = row.read()?;
    if sensor.last_at.is_some_and(|last_at| !is_silent(last_at, sensor.expected_every_s, now)) {
        sensor.state = SensorState::Ok;
    }
    Ok(sensor)
}

pub(crate) fn get(db: TwinDb<'_>, device: &str, now: Time) -> Result<Option<Sensor>> {
    let sql = format!("SELECT {COLUMNS} FROM sensor s WHERE s.twin = ?1 AND s.device = ?2");
    db.find_with(&sql, [db.twin, device], |row| sensor(row, now))
}

/// Up to `limit` sensors by name, after one; of one home or of all.
pub(crate) fn list(
    db: TwinDb<'_>,
    home: Option<&str>,
    after: &str,
    limit: usize,
    now: Time,
) -> Result<Vec<Sensor>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM sensor s WHERE s.twin = ?1 AND (CAST(?2 AS TEXT) IS NULL OR s.home = ?2)
         AND s.device > ?3 ORDER BY s.device LIMIT ?4"
    );
    db.list_with(&sql, params![db.twin, home, after, limit], |row| sensor(row, now))
}

/// Registers a sensor, or updates it.
pub(crate) fn upsert(db: TwinDb<'_>, device: &Name, new: &NewSensor) -> Result<()> {
    let columns = columns!(new; device = device, home, room, model, expected_every_s);
    filter::upsert(db, "sensor", columns, "")
}

/// Data about a device that measured, besides its values.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub(crate) home: Option<Name>,
    pub(crate) expected_every_s: Option<u32>,
}

/// The device, if it is registered.
pub(crate) fn unit(db: TwinDb<'_>, device: &Name) -> Result<Option<Unit>> {
    let sql = "SELECT home, expected_every_s FROM sensor WHERE twin = ?1 AND device = ?2";
    db.find(sql, [db.twin, device])
}

/// Registers a device that measured and is not registered.
pub(crate) fn register(db: TwinDb<'_>, device: &Name) -> Result<Unit> {
    let sql = "INSERT INTO sensor (twin, device, revision) VALUES (?1, ?2, 1)";
    db.execute(sql, params![db.twin, device])?;
    Ok(Unit { home: None, expected_every_s: None })
}

/// Number of sensors that the twin has.
pub(crate) fn count(db: TwinDb<'_>) -> Result<usize> {
    db.get("SELECT count(*) FROM sensor WHERE twin = ?1", [db.twin])
}

/// Notes that the device measured then.
pub(crate) fn heard(db: TwinDb<'_>, device: &str, at: Time) -> Result<()> {
    let sql = "UPDATE sensor SET last_at = ?3 WHERE twin = ?1 AND device = ?2
         AND (last_at IS NULL OR last_at < ?3)";
    db.execute(sql, params![db.twin, device, at]).map(drop)
}
