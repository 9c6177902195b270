//! Twins: utilities' installations, side by side and out of each other's sight.

use super::Db;
use super::sql::{OptionalExtension as _, Result, params};
use crate::number::Place;
use crate::text::Name;
use crate::time::Time;
use crate::twins::types::{Twin, TwinKind};

pub(crate) fn names(db: &Db) -> Result<Vec<(Name, String, TwinKind)>> {
    let mut rows = db.prepare_cached("SELECT id, name, kind FROM twin ORDER BY id")?;
    let rows = rows.query_map((), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    rows.collect()
}

/// Whether there was none of this name.
pub(crate) fn add(
    db: &Db,
    id: &Name,
    name: &str,
    kind: TwinKind,
    centre: Option<Place>,
    now: Time,
) -> Result<bool> {
    let (lat, lon) = Place::columns(centre);
    let made = db.execute(
        "INSERT INTO twin (id, name, lat, lon, created_at, kind) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT DO NOTHING",
        params![id, name, lat, lon, now, kind],
    )?;
    super::alerts::make_usual_rules(db)?;
    Ok(made == 1)
}

pub(crate) fn get(db: &Db, id: &str) -> Result<Option<Twin>> {
    let mut rows = db.prepare_cached(
        "SELECT id, name, lat, lon,
                (SELECT count(*) FROM meter WHERE twin = t.id),
                (SELECT count(*) FROM work_list WHERE twin = t.id),
                (SELECT avg(lat) FROM (SELECT lat FROM meter WHERE twin = t.id
                                       UNION ALL SELECT lat FROM home WHERE twin = t.id) places),
                (SELECT avg(lon) FROM (SELECT lon FROM meter WHERE twin = t.id
                                       UNION ALL SELECT lon FROM home WHERE twin = t.id) places),
                kind, (SELECT count(*) FROM home WHERE twin = t.id)
         FROM twin t WHERE id = ?1",
    )?;
    let twin = rows.query_row([id], |row| {
        let set = Place::from_columns(row.get(2)?, row.get(3)?);
        let middle = Place::from_columns(row.get(6)?, row.get(7)?);
        Ok(Twin {
            id: row.get(0)?,
            name: row.get(1)?,
            kind: row.get(8)?,
            centre: set.or(middle),
            meters: row.get(4)?,
            work_lists: row.get(5)?,
            homes: row.get(9)?,
        })
    });
    twin.optional()
}
