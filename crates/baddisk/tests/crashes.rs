//! The store alone on a disk that loses its power after each possible change.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use fastrand::Rng;
use fulmar_baddisk::{Disk, Mount, Survival, mount};
use fulmar_broker::message::{Message, MessageId, MessageParts};
use fulmar_broker::storage::{
    Delivery, FlowId, Op, Position, Progress, Restored, SessionKey, Storage,
};
use fulmar_mqtt::QoS;
use fulmar_store::{Options, SqliteStorage};

const PATIENCE: Duration = Duration::from_secs(60);

struct Folder {
    path: PathBuf,
    mount: Mount,
    _folder: tempfile::TempDir,
}

impl Folder {
    fn new() -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let mount = mount(folder.path(), Arc::default());
        Folder { path: folder.path().join("broker.db"), mount, _folder: folder }
    }

    /// Queues messages 1 to `most`, one a batch, until the power fails. Says how many were durable.
    fn fill(&self, disk: &Arc<Disk>, most: u64) -> u64 {
        self.mount.replace(Arc::clone(disk));
        let (sender, woken) = channel();
        disk.tell(sender.clone());
        let wake = Box::new(move || {
            // Nobody listens any more when the test is over.
            let _ = sender.send(());
        });
        let Ok((storage, _)) = SqliteStorage::open(&self.path, &options(), wake) else { return 0 };
        for position in 1..=most {
            let seq = storage.submit(&mut vec![enqueue(position)]);
            while storage.committed() < seq && !disk.is_dead() {
                woken.recv_timeout(PATIENCE).unwrap();
            }
            if storage.committed() < seq {
                return position - 1;
            }
        }
        most
    }

    fn restored(&self, disk: Disk) -> Restored {
        self.mount.replace(Arc::new(disk));
        let (storage, restored) =
            SqliteStorage::open(&self.path, &options(), Box::new(|| ())).unwrap();
        storage.close().unwrap();
        restored
    }
}

/// A log that is copied back after a few commits.
fn options() -> Options {
    let pause = Duration::from_millis(1);
    Options { log_pages: 12, retry_first: pause, retry_last: pause, ..Options::default() }
}

fn enqueue(position: u64) -> Op {
    let parts = MessageParts {
        topic: "a/b",
        properties: &[],
        payload: &vec![position as u8; 3000],
        qos: QoS::AtLeastOnce,
        retain: false,
        expires_at: None,
        publisher: 0,
    };
    Op::Enqueue {
        session: SessionKey(1),
        flow: FlowId::CONTROL,
        position: Position(position),
        message: Message::new(MessageId(position), &parts),
        delivery: Delivery { qos: QoS::AtLeastOnce, retain: false, identifiers: Box::default() },
        progress: Progress::Queued,
    }
}

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
