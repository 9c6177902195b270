//! Twins: utilities' installations, side by side and out of each other's sight.

use super::prelude::*;
use crate::twins::types::{Twin, TwinKind};

pub(crate) fn names(db: &Db) -> Result<Vec<(Name, String, TwinKind)>> {
    db.list("SELECT id, name, kind FROM twin ORDER BY id", ())
}

/// Creates the twin; returns whether there was none of this name.
pub(crate) fn add(
    db: TwinDb<'_>,
    name: &str,
    kind: TwinKind,
    centre: Option<Place>,
    now: Time,
) -> Result<bool> {
    let (lat, lon) = Place::columns(centre);
    let sql =
        "INSERT INTO twin (id, name, lat, lon, created_at, kind) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT DO NOTHING";
    let made = db.execute(sql, params![db.twin, name, lat, lon, now, kind])?;
    super::alerts::make_usual_rules(&db)?;
    Ok(made == 1)
}

from_row!(Twin { id, name, kind, centre, meters, work_lists, homes });

pub(crate) fn get(db: TwinDb<'_>) -> Result<Option<Twin>> {
    let sql = "SELECT id, name, kind,
                coalesce(lat, (SELECT avg(lat) FROM (SELECT lat FROM meter WHERE twin = t.id
                                                     UNION ALL SELECT lat FROM home WHERE twin = t.id) places)),
                coalesce(lon, (SELECT avg(lon) FROM (SELECT lon FROM meter WHERE twin = t.id
                                                     UNION ALL SELECT lon FROM home WHERE twin = t.id) places)),
                (SELECT count(*) FROM meter WHERE twin = t.id),
                (SELECT count(*) FROM work_list WHERE twin = t.id),
                (SELECT count(*) FROM home WHERE twin = t.id)
         FROM twin t WHERE id = ?1";
    db.find(sql, [db.twin])
}
