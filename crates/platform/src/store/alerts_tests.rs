//! What questions about alerts and silence cost: about as much as they answer, however many there are.
#![allow(clippy::unwrap_used)]

use rusqlite::StatementStatus;

use super::*;
use crate::store::sql::{Database, Purpose};
use crate::store::{Store, twins};
use crate::time::HOUR_MS;
use crate::twins::types::TwinKind;

fn store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), &Database::File, Purpose::Server).unwrap();
    let made = store.write_now(|db| {
        twins::add(db.within("t"), "T", TwinKind::Homes, None, Time(0))?;
        Ok(make_usual_rules(db)?)
    });
    made.unwrap();
    (folder, store)
}

/// The steps of SQLite's machine that the statement has taken.
fn steps(db: &Db, sql: &str) -> i32 {
    let Some(connection) = db.sqlite() else { unreachable!("it is a file") };
    connection.prepare_cached(sql).unwrap().get_status(StatementStatus::VmStep)
}

/// An alert of the rule about carbon dioxide that has come and gone.
fn past(number: i64, raised_at: i64, cleared_at: i64) -> Alert {
    Alert {
        id: Uuid::from_u128(number.try_into().unwrap()),
        rule: "co2".parse().unwrap(),
        rule_name: "Carbon dioxide".to_owned(),
        home: None,
        home_name: None,
        device: "attic".parse().unwrap(),
        quantity: Some("co2".parse::<Quantity>().unwrap()),
        severity: crate::alerts::Severity::Info,
        state: AlertState::Cleared,
        value: None,
        peak: None,
        unit: "ppm".to_owned(),
        threshold: 1000.0,
        raised_at: Time(raised_at),
        noticed_at: Time(raised_at),
        late: false,
        cleared_at: Some(Time(cleared_at)),
        acknowledged_at: None,
        acknowledged_by: None,
        note: None,
    }
}

#[test]
fn an_alert_that_overlaps_is_found_without_a_look_at_all_older_ones() {
    let (_folder, store) = store();
    let done = store.write_now(|db| {
        for number in 0..5000 {
            add(db.within("t"), &past(number, number * 100, number * 100 + 50))?;
        }
        let sql = overlapping_sql();
        let before = steps(db, &sql);
        for number in 0..5000 {
            // One that is there, the gap after it, and both gaps around the next one.
            let (from, end) = (number * 100, number * 100 + 50);
            for (from, until, wanted) in [
                (from + 10, from + 20, Some(number)),
                (end, end, Some(number)),
                (end + 1, end + 10, None),
                (from - 200, from, Some((number - 2).max(0))),
            ] {
                let like = past(9999, from, until);
                let found = overlapping(db.within("t"), &like, Time(until))?;
                let wanted = wanted.map(|wanted| Uuid::from_u128(wanted.try_into().unwrap()));
                assert_eq!(found.map(|alert| alert.id), wanted, "{from} to {until}");
            }
        }
        Ok((steps(db, &sql) - before) / 20_000)
    });
    let passed = done.unwrap();
    assert!(passed < 1500, "{passed} steps for each of 20,000 questions");
}

/// 20 sensors with 200 quantities each, all last measured at the same time.
const FILL: &str = "
    INSERT INTO sensor (twin, device, last_at, revision)
        WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20)
        SELECT 't', 's' || i, 36000000, 1 FROM n";
const FILL_SERIES: &str = "
    INSERT INTO series (twin, device, quantity, unit, last_at)
        WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
        SELECT 't', device, 'q' || i, '', 36000000 FROM sensor, n";

#[test]
fn what_is_silent_is_found_without_a_look_at_quantities_that_no_rule_is_about() {
    let (_folder, store) = store();
    let done = store.write_now(|db| {
        db.execute(FILL, ())?;
        db.execute(FILL_SERIES, ())?;
        let mut about_one = rule_of(db.within("t"), "silent")?.unwrap();
        about_one.id = "silent-q7".parse().unwrap();
        about_one.quantity = Some("q7".parse::<Quantity>().unwrap());
        put_rule(db.within("t"), &about_one)?;
        let asked = [
            silences_sql(WATCHED_SENSORS, "w.last_at"),
            silences_sql(WATCHED_SERIES, "x.last_at"),
            SILENCES_OVER.to_owned(),
        ];
        let all = |db: &Db| asked.iter().map(|sql| steps(db, sql)).sum::<i32>();

        // Nobody is silent, and all of it is looked at as often as that.
        let (before, now) = (all(db), Time(10 * HOUR_MS + 1));
        assert!(silences(db, now, 1000)?.is_empty() && silences_over(db, now, 1000)?.is_empty());
        let passed = all(db) - before;
        assert!(passed < 4000, "{passed} steps for 20 sensors and a quantity of each");

        // Everybody is, by both rules.
        let now = Time(12 * HOUR_MS);
        let silent = silences(db, now, 1000)?;
        assert_eq!(silent.len(), 40);
        assert_eq!(silences(db, now, 30)?.len(), 30);
        for (number, Silence { rule, device, .. }) in (1..).zip(silent) {
            let alert = past(number, 11 * HOUR_MS, 0);
            let (quantity, rule) = (rule.quantity, rule.id);
            add(db.within("t"), &Alert { rule, device, quantity, cleared_at: None, ..alert })?;
        }
        assert!(silences(db, now, 1000)?.is_empty() && silences_over(db, now, 1000)?.is_empty());

        // One measures again, but not the quantity that the other rule is about.
        db.execute("UPDATE sensor SET last_at = ?1 WHERE device = 's3'", [now])?;
        assert_eq!(silences_over(db, now, 1000)?.len(), 1);
        db.execute(
            "UPDATE series SET last_at = ?1 WHERE device = 's3' AND quantity = 'q7'",
            [now],
        )?;
        let over = silences_over(db, now, 1000)?;
        assert_eq!(over.len(), 2);
        Ok(over.iter().all(|(twin, _, at)| &**twin == "t" && *at == now))
    });
    assert!(done.unwrap());
}
