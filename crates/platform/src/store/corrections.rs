//! Corrected, withdrawn and decided readings, and their audit trail.

use super::prelude::*;
use crate::readings::Reading;
use crate::readings::types::{Change, Original, ReadingChange};

/// Adds to the audit trail that `reading` was changed to `after`.
pub(crate) fn note(
    db: TwinDb<'_>,
    reading: &Reading,
    change: &Change,
    after: &Original,
) -> Result<()> {
    let seq: i64 = db.get(
        "INSERT INTO reading_change (twin, reading, meter, action, changed_by, changed_at, reason, old_value,
                                     new_value, old_at, new_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) RETURNING seq",
        params![
            db.twin,
            reading.id,
            reading.meter,
            change.action,
            change.by,
            change.at,
            change.reason,
            reading.value,
            after.value,
            reading.at,
            after.at,
        ],
    )?;
    let sql = "UPDATE reading SET last_change = ?3 WHERE twin = ?1 AND id = ?2";
    db.execute(sql, params![db.twin, reading.id, seq]).map(drop)
}

/// Sets the reading's value and time; the original ones are kept.
pub(crate) fn set(db: TwinDb<'_>, id: Uuid, after: &Original) -> Result<()> {
    let sql = "UPDATE reading SET sent_value = coalesce(sent_value, value), sent_at = coalesce(sent_at, at),
             value = ?3, at = ?4
         WHERE twin = ?1 AND id = ?2";
    db.execute(sql, params![db.twin, id, after.value, after.at]).map(drop)
}

from_row! {
    Original { value, at }
    Change { action, by, at, reason }
    ReadingChange { reading, meter, change, before, after }
}

/// Up to `limit` entries of the audit trail, newest first, before that number; each with its number.
pub(crate) fn trail(
    db: TwinDb<'_>,
    meter: Option<&Name>,
    reading: Option<Uuid>,
    before: Option<i64>,
    limit: usize,
) -> Result<Vec<(ReadingChange, i64)>> {
    let mut filter = Filter::default();
    filter.and("twin = ?", [Box::new(db.twin)]);
    filter.and_if("meter = ?", meter.map(|meter| &**meter));
    filter.and_if("reading = ?", reading);
    filter.and_if("seq < ?", before);
    let select = "SELECT reading, meter, action, changed_by, changed_at, reason, old_value, old_at, new_value, new_at, seq
         FROM reading_change";
    filter.list(db, select, "seq DESC", limit)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::schema::MIGRATIONS;
    use super::super::sql::sqlite::APPLICATION_ID;
    use super::super::sql::{Database, Purpose};
    use super::super::{Store, webhooks};
    use super::*;
    use crate::alerts::delivery::Webhook;
    use crate::alerts::types::Severity;
    use crate::paging::Order;
    use crate::readings::types::ReadingQuery;
    use crate::store::readings;
    use crate::time::Time;

    /// The schema version before corrections.
    const BEFORE: usize = 3;

    #[test]
    fn a_database_of_an_earlier_version_keeps_what_counts_and_gives_no_number_twice() {
        let folder = tempfile::tempdir().unwrap();
        let old = rusqlite::Connection::open(folder.path().join("platform.db")).unwrap();
        for migration in &MIGRATIONS[..BEFORE] {
            old.execute_batch(migration).unwrap();
        }
        old.pragma_update(None, "user_version", BEFORE).unwrap();
        old.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
        old.execute_batch(
            "INSERT INTO twin (id, name, created_at) VALUES ('t', 'T', 0);
             INSERT INTO meter (twin, id, medium, unit, register_digits, changed_at, revision)
                 VALUES ('t', 'm', 'water', 'm3', 5, 0, 1);
             INSERT INTO reading (twin, id, meter, at, value, unit, method, implausible_confirmed, reader, received_at, flags)
                 VALUES ('t', '00000000-0000-0000-0000-000000000001', 'm', 1, 5.0, 'm3', 'manual', 0, 'ann', 1, 'superseded'),
                        ('t', '00000000-0000-0000-0000-000000000002', 'm', 2, 6.0, 'm3', 'manual', 0, 'ann', 2, 'conflict'),
                        ('t', '00000000-0000-0000-0000-000000000003', 'm', 3, 7.0, 'm3', 'manual', 0, 'ann', 3, 'conflict');
             INSERT INTO reading_conflict (twin, reading, other)
                 VALUES ('t', '00000000-0000-0000-0000-000000000002', '00000000-0000-0000-0000-000000000003'),
                        ('t', '00000000-0000-0000-0000-000000000003', '00000000-0000-0000-0000-000000000002');",
        )
        .unwrap();
        drop(old);
        let store = Store::open(folder.path(), &Database::File, Purpose::Server).unwrap();
        store
            .write_now(|db| {
                let order = Some(Order::Desc);
                let asked = ReadingQuery { conflict: Some(true), order, ..ReadingQuery::default() };
                let found = readings::list(db.within("t"), &asked, None, 10)?;
                let values: Vec<f64> = found.iter().map(|(reading, _)| reading.value).collect();
                assert_eq!(values, [7.0, 6.0]);
                let first = crate::store::reports::oldest_from(db.within("t"), "m", Time(0))?;
                assert_eq!(first.map(|shown| shown.last.value), Some(6.0), "superseded before");

                let url = "https://192.0.2.1/".to_owned();
                let hook = Webhook { id: Uuid::from_u128(1), url, least_severity: Severity::Info };
                webhooks::add(db.within("t"), &hook, "0123456789abcdef")?;

                Ok(())
            })
            .unwrap();
        let number = |store: &Store| {
            store
                .write_now(|db| {
                    let sql = "UPDATE counter SET last = last + 1 WHERE name = 'webhook_event' RETURNING last";
                    Ok(db.get::<i64>(sql, ())?)
                })
                .unwrap()
        };
        assert!(
            number(&store) > 1_000_000_000,
            "above all that the earlier version may have given"
        );
        store.close();
    }
}
