//! What removed sensors measured goes in bounded parts, and nothing else does.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::store::measurements::{self, Sample};
use crate::store::sql::{Database, Purpose};
use crate::store::{Store, sensors, twins};
use crate::time::HOUR_MS;
use crate::twins::types::TwinKind;

fn open(folder: &tempfile::TempDir) -> Store {
    let store = Store::open(folder.path(), &Database::File, Purpose::Server).unwrap();
    let add = |db: &Db| Ok(twins::add(db.within(&name("t")), "T", TwinKind::Homes, None, Time(0))?);
    store.write_now(add).unwrap();
    store
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// Registers a sensor with these quantities; the numbers of its series.
fn register(db: &Db, device: &str, quantities: &[&str]) -> Result<Vec<i64>> {
    sensors::register(db.within(&name("t")), &name(device))?;
    let add =
        |quantity: &&str| Ok(measurements::add_series(db.within("t"), device, quantity, "")?.seq);
    quantities.iter().map(add).collect()
}

/// Stores three measurements per hour: two in it, and another one of the same moment as all its like.
fn measure(db: &Db, series: i64, hours: i64) -> Result<()> {
    let sample = |at, value| Sample { series, at: Time(at), value, id: None };
    let samples: Vec<Sample> = (0..hours)
        .flat_map(|hour| {
            [
                sample(hour * HOUR_MS, 1.0),
                sample(hour * HOUR_MS + 1, 2.0),
                sample(7, 10.0 + hour as f64),
            ]
        })
        .collect();
    measurements::insert(db.within(&name("t")), &samples, Time(0)).map(drop)
}

fn count(db: &Db, table: &str) -> Result<usize> {
    db.get(&format!("SELECT count(*) FROM {table}"), ())
}

fn rows(db: &Db) -> Result<usize> {
    Ok(count(db, "measurement")? + count(db, "series_hour")? + count(db, "series_day")?)
}

#[test]
fn what_a_removed_sensor_measured_is_deleted_in_parts_and_the_rest_stays() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let kept = store.write_now(|db| {
        let series = register(db, "attic", &["co2", "radon"])?;
        let other = register(db, "cellar", &["radon"])?;
        for series in series.iter().chain(&other) {
            measure(db, *series, 100)?;
        }
        let all = rows(db)?;
        assert!(remove_sensor(db.within("t"), "attic", 10)?.1);
        assert_eq!((rows(db)?, is_left(db)?), (all, true), "nothing of it at once");
        Ok(all / 3)
    });
    let kept = kept.unwrap();
    let (mut passes, mut gone) = (0, Vec::new());
    loop {
        let (left, done, more) = store
            .write_now(|db| {
                let before = rows(db)?;
                let done = forget(db, 50)?;
                let after = rows(db)?;
                assert!(before - after <= 50, "{before} to {after}");
                Ok((after, done, is_left(db)?))
            })
            .unwrap();
        passes += 1;
        gone.extend(done.into_iter().map(|series| series.quantity.to_string()));
        if !more {
            assert_eq!(left, kept);
            break;
        }
    }
    assert!((16..30).contains(&passes), "{passes}");
    assert_eq!(gone, ["co2", "radon"]);
}

#[test]
fn a_number_is_never_given_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let done = store.write_now(|db| {
        let first = register(db, "attic", &["co2", "radon"])?;
        measure(db, first[1], 3)?;
        remove_sensor(db.within("t"), "attic", 10)?;
        // While there are rows of it, and when they are gone.
        let second = register(db, "attic", &["radon", "voc"])?;
        assert!(second.iter().all(|series| !first.contains(series)), "{first:?} {second:?}");
        assert!(forget(db, 1000)?.iter().all(|series| &*series.quantity == "co2"), "radon is back");
        remove_sensor(db.within("t"), "attic", 10)?;
        while is_left(db)? {
            forget(db, 1000)?;
        }
        let third = register(db, "cellar", &["co2"])?;
        assert!(third[0] > second[1], "{second:?} {third:?}");
        assert_eq!(rows(db)?, 0);
        Ok(())
    });
    done.unwrap();
}

#[test]
fn a_sensor_with_very_many_series_goes_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let quantities = store.write_now(|db| {
        register(db, "attic", &["a", "b", "c", "d", "e"])?;
        let mut parts = Vec::new();
        loop {
            let (quantities, is_gone) = remove_sensor(db.within("t"), "attic", 2)?;
            parts.push(quantities.len());
            assert_eq!(sensors::count(db.within("t"))?, usize::from(!is_gone));
            if is_gone {
                break;
            }
        }
        assert_eq!((count(db, "series")?, count(db, "removed_series")?), (0, 5));
        // None at all.
        register(db, "cellar", &[])?;
        assert_eq!(remove_sensor(db.within("t"), "cellar", 2)?, (Vec::new(), true));
        Ok(parts)
    });
    assert_eq!(quantities.unwrap(), [2, 2, 1]);
}

#[test]
fn states_of_rules_go_with_the_series() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let left = store.write_now(|db| {
        use crate::store::alerts;
        alerts::make_usual_rules(db)?;
        let attic = register(db, "attic", &["co2", "radon"])?;
        let cellar = register(db, "cellar", &["radon"])?;
        let machine = crate::alerts::machine::Machine::default();
        for (rule, series) in [("co2", attic[0]), ("radon", attic[1]), ("radon", cellar[0])] {
            alerts::set_machine(db.within("t"), rule, series, &machine)?;
        }
        remove_sensor(db.within("t"), "attic", 10)?;
        let sql = "SELECT series FROM alert_state";
        Ok((db.list::<i64>(sql, ())?, cellar))
    });
    let (left, cellar) = left.unwrap();
    assert_eq!(left, cellar);
}
