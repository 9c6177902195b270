//! Homes in the database, each with its sensors' last values and its raised alerts.

use super::prelude::*;
use crate::alerts::Severity;
use crate::homes::types::{HomeChange, HomeQuery, LastValue, Worst, is_silent};
use crate::homes::{Home, NewHome};

const COLUMNS: &str = "h.id, h.name, h.lat, h.lon, h.street, h.note, h.gateway,
    (SELECT count(*) FROM sensor s WHERE s.twin = h.twin AND s.home = h.id), '\"h' || h.revision || '\"'";

from_row! {
    // Without its values and alerts.
    Home { id, name, place, street, note, gateway, devices, values = Vec::new(), worst = Worst::Ok, alerts = 0, etag }
}

fn furnish(db: TwinDb<'_>, home: &mut Home, now: Time) -> Result<()> {
    home.values = values(db, &home.id, now)?;
    let sql =
        "SELECT severity, count(*) FROM alert WHERE twin = ?1 AND home = ?2 AND cleared_at IS NULL
         GROUP BY severity";
    let raised: Vec<(Severity, u64)> = db.list(sql, [db.twin, &home.id])?;
    home.alerts = raised.iter().map(|(_, count)| count).sum();
    home.worst = raised.iter().map(|(severity, _)| *severity).max().into();
    Ok(())
}

fn values(db: TwinDb<'_>, home: &str, now: Time) -> Result<Vec<LastValue>> {
    let sql = "SELECT x.device, x.quantity, x.last_value, x.unit, x.last_at, s.expected_every_s
         FROM sensor s JOIN series x ON x.twin = s.twin AND x.device = s.device
         WHERE s.twin = ?1 AND s.home = ?2 AND x.last_at IS NOT NULL ORDER BY x.device, x.quantity";
    db.list_with(sql, [db.twin, home], |row| {
        let (device, quantity, value, unit) = row.read()?;
        let (at, every) = row.read()?;
        Ok(LastValue { device, quantity, value, unit, at, stale: is_silent(at, every, now) })
    })
}

pub(crate) fn get(db: TwinDb<'_>, id: &str, now: Time) -> Result<Option<Home>> {
    let sql = format!("SELECT {COLUMNS} FROM home h WHERE h.twin = ?1 AND h.id = ?2");
    let Some(mut home) = db.find(&sql, [db.twin, id])? else { return Ok(None) };
    furnish(db, &mut home, now)?;
    Ok(Some(home))
}

pub(crate) fn exists(db: TwinDb<'_>, id: &str) -> Result<bool> {
    db.exists("SELECT 1 FROM home WHERE twin = ?1 AND id = ?2", [db.twin, id])
}

/// Values of homes after which a page ends, for an answer of a few megabytes: 1000 homes have fewer.
const MAX_VALUES: usize = 50_000;

/// Up to `limit` homes in the order of their identifiers, fewer if they have many values, and how many these are: there
/// is another one behind them if there are more.
pub(crate) fn list(
    db: TwinDb<'_>,
    query: &HomeQuery,
    after: &str,
    limit: usize,
    now: Time,
) -> Result<(Vec<Home>, usize)> {
    let mut filter = Filter::default();
    filter.and("h.twin = ?", [Box::new(db.twin)]);
    filter.within(query.bbox);
    filter.contain(["h.id", "h.name", "h.street"], query.q.as_deref());
    filter.and("h.id > ?", [Box::new(after)]);
    let select = format!("SELECT {COLUMNS} FROM home h");
    let mut homes: Vec<Home> = filter.list(db, &select, "h.id", limit + 1)?;
    let (mut shown, mut values) = (0, 0);
    for home in homes.iter_mut().take(limit) {
        if values >= MAX_VALUES {
            break;
        }
        furnish(db, home, now)?;
        values += home.values.len();
        shown += 1;
    }
    homes.truncate(shown + 1);
    Ok((homes, shown))
}

/// Creates or replaces a home.
pub(crate) fn upsert(db: TwinDb<'_>, id: &Name, new: &NewHome) -> Result<()> {
    let (lat, lon) = Place::columns(new.place);
    let columns = columns!(new; id = id, name, lat = lat, lon = lon, street, note, gateway);
    filter::upsert(db, "home", columns, "")
}

/// Changes an existing home.
pub(crate) fn change(db: TwinDb<'_>, id: &str, change: &HomeChange) -> Result<()> {
    let (lat, lon) = change.place.map(Place::columns).unzip();
    let values = changes!(change; name, lat = lat, lon = lon, street, note, gateway);
    filter::change(db, "home", &id, values)
}

/// Removes a home; its sensors remain, without a home.
pub(crate) fn remove(db: TwinDb<'_>, id: &str) -> Result<()> {
    let sql =
        "UPDATE sensor SET home = NULL, revision = revision + 1 WHERE twin = ?1 AND home = ?2";
    db.execute(sql, [db.twin, id])?;
    db.execute("DELETE FROM home WHERE twin = ?1 AND id = ?2", [db.twin, id]).map(drop)
}

pub(crate) fn devices(db: TwinDb<'_>, home: &str) -> Result<Vec<Name>> {
    db.list("SELECT device FROM sensor WHERE twin = ?1 AND home = ?2", [db.twin, home])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::sql::{Database, Purpose};
    use crate::store::{Store, twins};
    use crate::twins::types::TwinKind;

    #[test]
    fn a_page_ends_early_when_its_homes_have_many_values() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), &Database::File, Purpose::Server).unwrap();
        let pages = store.write_now(|db| {
            twins::add(db.within("t"), "T", TwinKind::Homes, None, Time(0))?;
            for sql in [
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5)
                 INSERT INTO home (twin, id, name, revision) SELECT 't', 'h' || i, 'H', 1 FROM n",
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100)
                 INSERT INTO sensor (twin, device, home, revision)
                 SELECT 't', id || '-' || i, id, 1 FROM home, n",
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
                 INSERT INTO series (twin, device, quantity, unit, last_at, last_value)
                 SELECT 't', device, 'q' || i, '', 1, 1 FROM sensor, n",
            ] {
                db.execute(sql, ())?;
            }
            let (mut pages, mut after) = (Vec::new(), String::new());
            for _ in 0..2 {
                let query = HomeQuery::default();
                let (homes, shown) = list(db.within("t"), &query, &after, 4, Time(1))?;
                let page = &homes[..shown];
                after = page.last().map(|home| home.id.to_string()).unwrap_or_default();
                let values: usize = page.iter().map(|home| home.values.len()).sum();
                pages.push((shown, values, homes.len() > shown));
            }
            Ok(pages)
        });
        assert_eq!(pages.unwrap(), [(3, 60_000, true), (2, 40_000, false)]);
    }
}
