//! Silent sensors, however many there are.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::store::sql::{Database, Purpose};
use crate::store::{Store, alerts, twins};
use crate::twins::types::TwinKind;

/// A twin with the usual rules and this many sensors that measured at time 0.
fn store_with_sensors(folder: &tempfile::TempDir, count: usize) -> Store {
    let store = Store::open(folder.path(), &Database::File, Purpose::Server).unwrap();
    let made = store.write_now(move |db| {
        twins::add(db.within("t"), "T", TwinKind::Homes, None, Time(0))?;
        alerts::make_usual_rules(db)?;
        for n in 0..count {
            db.execute(
                "INSERT INTO sensor (twin, device, last_at, revision) VALUES ('t', ?1, 0, 1)",
                [format!("s{n:04}")],
            )?;
        }
        Ok(())
    });
    made.unwrap();
    store
}

fn pass(store: &Store, now: Time) -> Vec<(Name, AlertNotification)> {
    store.write_now(move |db| silence(db, now)).unwrap()
}

#[test]
fn each_pass_handles_a_bounded_number_of_silent_sensors_and_the_next_one_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with_sensors(&folder, 3000);
    let now = Time(10 * crate::time::HOUR_MS);
    let mut devices = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let notifications = pass(&store, now);
        assert_eq!(notifications.len(), 1000);
        devices.extend(notifications.into_iter().map(|(_, raised)| raised.alert.device));
    }
    assert_eq!(devices.len(), 3000, "no sensor twice");
    assert!(pass(&store, now).is_empty());

    // All of them measure again.
    let later = now.plus_ms(SECOND_MS);
    store.write_now(move |db| Ok(db.execute("UPDATE sensor SET last_at = ?1", [later])?)).unwrap();
    for _ in 0..3 {
        let cleared = pass(&store, later);
        assert_eq!(cleared.len(), 1000);
        assert!(cleared.iter().all(|(_, over)| over.event == AlertEvent::Cleared));
    }
    assert!(pass(&store, later).is_empty());
}
