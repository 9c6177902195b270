//! A backup as the guide describes it: an atomic snapshot of the file system, taken while the broker writes.

use std::sync::Arc;
use std::sync::mpsc::channel;

use crate::folder::{Folder, PATIENCE, enqueue, options};
use fastrand::Rng;
use fulmar_broker::storage::Storage;
use fulmar_simulator::bad_disk::{Disk, Survival};
use fulmar_store::SqliteStorage;

const MESSAGES: u64 = 8;

/// Queues messages on a disk that stalls before each change from `first` on; `snapshot` is then called with the
/// number reported durable. False if there were fewer changes.
fn fill_and_stand_still(folder: &Folder, first: u64, snapshot: impl FnOnce(&Disk, u64)) -> bool {
    let disk = Arc::new(Disk::default());
    folder.mount.replace(Arc::clone(&disk));
    let (sender, woken) = channel();
    disk.notify(sender.clone());
    let wake = Box::new(move || {
        // Nobody listens any more when the test is over.
        let _ = sender.send(());
    });
    let (storage, _) = SqliteStorage::open(&folder.path, &options(), wake).unwrap();
    disk.stall_after(Some(first));
    let mut snapshot = Some(snapshot);
    for position in 1..=MESSAGES {
        let seq = storage.submit(&mut vec![enqueue(position)]);
        while storage.committed() < seq {
            if disk.is_stalled() {
                if let Some(snapshot) = snapshot.take() {
                    snapshot(&disk, storage.committed().0);
                }
                disk.stall_after(None);
            }
            woken.recv_timeout(PATIENCE).unwrap();
        }
    }
    disk.stall_after(None);
    storage.close().unwrap();
    drop(storage);
    let kept = folder.restored(disk.image(Survival::Nothing, &mut Rng::with_seed(1)));
    assert_eq!(kept.queued.len() as u64, MESSAGES, "the broker goes on");
    snapshot.is_none()
}

#[test]
fn a_snapshot_taken_during_writes_holds_what_was_acknowledged() {
    let folder = Folder::new();
    let mut rng = Rng::with_seed(1);
    let mut snapshots = 0;
    for change in 0.. {
        let mut copies = Vec::new();
        let more = fill_and_stand_still(&folder, change, |disk, durable| {
            // What the snapshot has of writes that are not synced is the file system's affair.
            for survival in [Survival::Everything, Survival::Nothing, Survival::Any] {
                copies.push((disk.image(survival, &mut rng), durable));
            }
        });
        for (copy, durable) in copies {
            let stored = folder.restored(copy).queued.len() as u64;
            assert!((durable..=durable + 1).contains(&stored), "{stored} of {durable}");
            snapshots += 1;
        }
        if !more {
            break;
        }
    }
    assert!(snapshots >= 100, "only {snapshots} snapshots");
}
