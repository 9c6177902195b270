//! The store alone on a disk that loses its power after each possible change.

use std::sync::Arc;

use crate::folder::Folder;
use fastrand::Rng;
use fulmar_broker::storage::Restored;
use fulmar_simulator::bad_disk::{Disk, Survival};

fn assert_holds(restored: &Restored, durable: u64, most: u64) {
    let positions: Vec<u64> = restored.queued.iter().map(|queued| queued.position.0).collect();
    let stored = positions.len() as u64;
    assert_eq!(positions, (1..=stored).collect::<Vec<u64>>());
    // What was being committed may have been, or not.
    assert!((durable..=durable + 1).contains(&stored) && stored <= most, "{stored} of {durable}");
    for queued in &restored.queued {
        assert!(queued.message.payload().iter().all(|byte| *byte == queued.position.0 as u8));
    }
}

#[test]
fn whenever_the_power_fails_what_was_reported_durable_is_there() {
    const MESSAGES: u64 = 12;
    let folder = Folder::new();
    let whole = Arc::new(Disk::default());
    assert_eq!(folder.fill(&whole, MESSAGES), MESSAGES);
    let mut rng = Rng::with_seed(1);
    for changes in 0..whole.changes() {
        for survival in [Survival::Nothing, Survival::Everything, Survival::Any, Survival::Any] {
            let disk = Arc::new(Disk::default());
            disk.fail_power_after(Some(changes));
            let durable = folder.fill(&disk, MESSAGES);
            let left = disk.power_failure(survival, &mut rng);
            assert_holds(&folder.restored(left), durable, MESSAGES);
        }
    }
}

/// Were this not so, the test above could not fail.
#[test]
fn what_is_not_synced_is_lost_and_what_was_closed_is_not() {
    let folder = Folder::new();
    let disk = Arc::new(Disk::default());
    assert_eq!(folder.fill(&disk, 3), 3);
    let mut rng = Rng::with_seed(1);
    let closed = disk.image(Survival::Nothing, &mut rng);
    assert_eq!(folder.restored(closed).queued.len(), 3);

    let disk = Arc::new(Disk::default());
    folder.mount.replace(Arc::clone(&disk));
    let connection = rusqlite::Connection::open(&folder.path).unwrap();
    let sql = "PRAGMA synchronous = OFF; CREATE TABLE t (x); INSERT INTO t VALUES (1)";
    connection.execute_batch(sql).unwrap();
    let lost = disk.image(Survival::Nothing, &mut rng);
    assert_eq!(lost.file("broker.db").unwrap_or_default().len(), 0);
    let kept = disk.image(Survival::Everything, &mut rng);
    assert!(kept.file("broker.db").unwrap().len() >= 8192);
}
