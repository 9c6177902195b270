//! Homes in the database, each with its sensors' last values and its raised alerts.

use super::Db;
use super::filter::{Bounds, Filter, given, set_given};
use super::sql::{OptionalExtension as _, Result, Row, params};
use crate::alerts::Severity;
use crate::homes::types::{LastValue, is_silent};
use crate::homes::{Home, NewHome};
use crate::number::Place;
use crate::text::{Line, Name, Note, Title};
use crate::time::Time;

/// Selects homes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    pub(crate) within: Option<Bounds>,
    /// A part of the identifier, name or street.
    pub(crate) words: Option<String>,
    /// Identifier of the last home of the previous page.
    pub(crate) after: Option<String>,
}

const COLUMNS: &str = "h.id, h.name, h.lat, h.lon, h.street, h.note, h.gateway, h.revision,
    (SELECT count(*) FROM sensor s WHERE s.twin = h.twin AND s.home = h.id)";

/// The home without its values and alerts.
fn bare(row: &Row<'_>) -> Result<Home> {
    let revision: i64 = row.get(7)?;
    Ok(Home {
        id: row.get(0)?,
        name: row.get(1)?,
        place: Place::from_columns(row.get(2)?, row.get(3)?),
        street: row.get(4)?,
        note: row.get(5)?,
        gateway: row.get(6)?,
        devices: row.get(8)?,
        values: Vec::new(),
        worst: None.into(),
        alerts: 0,
        etag: format!("\"h{revision}\""),
    })
}

fn furnish(db: &Db, twin: &str, home: &mut Home, now: Time) -> Result<()> {
    home.values = values(db, twin, &home.id, now)?;
    let mut rows = db.prepare_cached(
        "SELECT severity, count(*) FROM alert WHERE twin = ?1 AND home = ?2 AND cleared_at IS NULL
         GROUP BY severity",
    )?;
    let rows = rows.query_map([twin, &home.id], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let raised: Vec<(Severity, u64)> = rows.collect::<Result<_>>()?;
    home.alerts = raised.iter().map(|(_, count)| count).sum();
    home.worst = raised.iter().map(|(severity, _)| *severity).max().into();
    Ok(())
}

fn values(db: &Db, twin: &str, home: &str, now: Time) -> Result<Vec<LastValue>> {
    let mut rows = db.prepare_cached(
        "SELECT x.device, x.quantity, x.last_value, x.unit, x.last_at, s.expected_every_s
         FROM sensor s JOIN series x ON x.twin = s.twin AND x.device = s.device
         WHERE s.twin = ?1 AND s.home = ?2 AND x.last_at IS NOT NULL ORDER BY x.device, x.quantity",
    )?;
    let rows = rows.query_map([twin, home], |row| {
        let (at, every) = (row.get(4)?, row.get(5)?);
        Ok(LastValue {
            device: row.get(0)?,
            quantity: row.get(1)?,
            value: row.get(2)?,
            unit: row.get(3)?,
            at,
            stale: is_silent(at, every, now),
        })
    })?;
    rows.collect()
}

pub(crate) fn get(db: &Db, twin: &str, id: &str, now: Time) -> Result<Option<Home>> {
    let sql = format!("SELECT {COLUMNS} FROM home h WHERE h.twin = ?1 AND h.id = ?2");
    let home = db.prepare_cached(&sql)?.query_row([twin, id], bare).optional()?;
    let Some(mut home) = home else { return Ok(None) };
    furnish(db, twin, &mut home, now)?;
    Ok(Some(home))
}

pub(crate) fn exists(db: &Db, twin: &str, id: &str) -> Result<bool> {
    db.prepare_cached("SELECT 1 FROM home WHERE twin = ?1 AND id = ?2")?.exists([twin, id])
}

/// Values of homes after which a page ends, for an answer of a few megabytes: 1000 homes have fewer.
const MAX_VALUES: usize = 50_000;

/// Up to `limit` homes in the order of their identifiers, fewer if they have many values, and how many these are: there
/// is another one behind them if there are more.
pub(crate) fn list(
    db: &Db,
    twin: &str,
    query: &Query,
    limit: usize,
    now: Time,
) -> Result<(Vec<Home>, usize)> {
    let mut filter = Filter::default();
    filter.and("h.twin = ?", [Box::new(twin)]);
    filter.within(query.within);
    filter.contain(["h.id", "h.name", "h.street"], query.words.as_deref());
    filter.and_if("h.id > ?", query.after.as_deref());
    let select = format!("SELECT {COLUMNS} FROM home h");
    let mut homes: Vec<Home> = filter.list(db, &select, "h.id", limit + 1, bare)?;
    let (mut shown, mut values) = (0, 0);
    for home in homes.iter_mut().take(limit) {
        if values >= MAX_VALUES {
            break;
        }
        furnish(db, twin, home, now)?;
        values += home.values.len();
        shown += 1;
    }
    homes.truncate(shown + 1);
    Ok((homes, shown))
}

/// Creates or replaces a home.
pub(crate) fn put(db: &Db, twin: &str, id: &Name, new: &NewHome) -> Result<()> {
    let (lat, lon) = Place::columns(new.place);
    let mut insert = db.prepare_cached(
        "INSERT INTO home (twin, id, name, lat, lon, street, note, gateway, revision)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 1)
         ON CONFLICT (twin, id) DO UPDATE SET name = excluded.name, lat = excluded.lat,
             lon = excluded.lon, street = excluded.street, note = excluded.note,
             gateway = excluded.gateway, revision = home.revision + 1",
    )?;
    let values = params![twin, id, new.name, lat, lon, new.street, new.note, new.gateway];
    insert.execute(values).map(drop)
}

/// A change of a home.
#[derive(Debug)]
#[allow(clippy::option_option, reason = "null clears")]
pub(crate) struct Change {
    pub(crate) name: Option<Title>,
    pub(crate) place: Option<Option<Place>>,
    pub(crate) street: Option<Option<Line>>,
    pub(crate) note: Option<Option<Note>>,
    pub(crate) gateway: Option<Option<Name>>,
}

pub(crate) fn change(db: &Db, twin: &str, id: &str, change: &Change) -> Result<()> {
    let Change { name, place, street, note, gateway } = change;
    let (lat, lon) = place.map(Place::columns).unzip();
    let values = [
        ("name", given(name)),
        ("lat", given(&lat)),
        ("lon", given(&lon)),
        ("street", given(street)),
        ("note", given(note)),
        ("gateway", given(gateway)),
    ];
    set_given(db, "home", (twin, id), &values)?;
    let sql = "UPDATE home SET revision = revision + 1 WHERE twin = ?1 AND id = ?2";
    db.execute(sql, [twin, id]).map(drop)
}

/// Removes a home; its sensors remain, without a home.
pub(crate) fn remove(db: &Db, twin: &str, id: &str) -> Result<()> {
    let sql =
        "UPDATE sensor SET home = NULL, revision = revision + 1 WHERE twin = ?1 AND home = ?2";
    db.execute(sql, [twin, id])?;
    db.execute("DELETE FROM home WHERE twin = ?1 AND id = ?2", [twin, id]).map(drop)
}

/// The devices of a home.
pub(crate) fn devices(db: &Db, twin: &str, home: &str) -> Result<Vec<Name>> {
    let mut rows = db.prepare_cached("SELECT device FROM sensor WHERE twin = ?1 AND home = ?2")?;
    rows.query_map([twin, home], |row| row.get(0))?.collect()
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
            twins::add(db, &"t".parse().unwrap(), "T", TwinKind::Homes, None, Time(0))?;
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
            let (mut pages, mut query) = (Vec::new(), Query::default());
            for _ in 0..2 {
                let (homes, shown) = list(db, "t", &query, 4, Time(1))?;
                let page = &homes[..shown];
                query.after = page.last().map(|home| home.id.to_string());
                let values: usize = page.iter().map(|home| home.values.len()).sum();
                pages.push((shown, values, homes.len() > shown));
            }
            Ok(pages)
        });
        assert_eq!(pages.unwrap(), [(3, 60_000, true), (2, 40_000, false)]);
    }
}
