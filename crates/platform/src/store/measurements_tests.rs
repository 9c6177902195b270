//! Each measurement is stored once, and sums are those of the stored measurements, in any order of arrival.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::problem::Problem;
use crate::store::sql::{Database, Purpose};
use crate::store::{Store, twins};
use crate::twins::types::TwinKind;

const HORIZON: i64 = 3 * DAY_MS;

/// Time, value, and identifier if any.
type Sent = (i64, i32, Option<u8>);

fn sent() -> impl Strategy<Value = Vec<Vec<Sent>>> {
    let time = prop_oneof![0..5_i64, 0..HORIZON];
    let one = (time, -3..3_i32, proptest::option::weighted(0.7, any::<u8>()));
    proptest::collection::vec(proptest::collection::vec(one, 1..20), 1..8)
}

/// Sums by the beginning of their steps.
type Steps = Vec<(Time, Sums)>;

/// Whether each was new; the stored measurements; their sums per hour and per day.
fn store(batches: &[Vec<Sent>]) -> (Vec<bool>, Vec<(Time, f64)>, Steps, Steps) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), &Database::File, Purpose::Server).unwrap();
    let batches = batches.to_vec();
    let done = store.write_now(move |db| {
        let twin: Name = "t".parse().map_err(|_| Problem::missing("twin"))?;
        twins::add(db.within(&twin), "T", TwinKind::Homes, None, Time(0))?;
        crate::store::sensors::register(db.within(&twin), &twin)?;
        let series = add_series(db.within("t"), "t", "radon", "Bq/m³")?.seq;
        let mut fresh = Vec::new();
        for batch in batches {
            let samples: Vec<Sample> = batch
                .into_iter()
                .map(|(at, value, id)| {
                    let id = id.map(|id| id.to_string());
                    Sample { series, at: Time(at), value: value.into(), id }
                })
                .collect();
            fresh.extend(insert(db.within(&twin), &samples, Time(HORIZON))?);
        }
        let until = Time(HORIZON);
        let raw = raw(db, series, Time(0), until, 10_000)?;
        let hours = stepped(db, series, Time(0), until, HOUR_MS)?;
        Ok((fresh, raw, hours, stepped(db, series, Time(0), until, DAY_MS)?))
    });
    done.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn each_is_stored_once_and_sums_are_right(batches in sent()) {
        let (fresh, raw, hours, days) = store(&batches);
        let (mut ids, mut contents, mut expected) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        for ((at, value, id), fresh) in batches.iter().flatten().zip(fresh) {
            let new = match id {
                Some(id) => ids.insert(*id),
                None => !contents.contains(&(*at, *value)),
            };
            prop_assert_eq!(new, fresh);
            if new {
                contents.insert((*at, *value));
                expected.push((*at, *value));
            }
        }
        expected.sort_unstable();
        let stored: Vec<(i64, i32)> = raw.iter().map(|(at, value)| (at.0, *value as i32)).collect();
        prop_assert_eq!(&stored, &expected);
        for (step, found) in [(HOUR_MS, hours), (DAY_MS, days)] {
            let mut sums: BTreeMap<i64, Sums> = BTreeMap::new();
            for (at, value) in &expected {
                let value = Sums::from_value(f64::from(*value));
                sums.entry(at / step * step).and_modify(|sums| sums.add(value)).or_insert(value);
            }
            let expected: Vec<(Time, Sums)> =
                sums.into_iter().map(|(at, sums)| (Time(at), sums)).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
