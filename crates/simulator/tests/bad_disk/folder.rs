//! A folder whose files are on a [`Disk`], and the store in it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use fulmar_broker::message::{Message, MessageId, MessageParts};
use fulmar_broker::storage::{
    Delivery, FlowId, Op, Position, Progress, Restored, SessionKey, Storage,
};
use fulmar_mqtt::QoS;
use fulmar_simulator::bad_disk::{Disk, Mount, mount};
use fulmar_store::{Error, Options, SqliteStorage};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    pub(crate) mount: Mount,
    _folder: tempfile::TempDir,
}

impl Folder {
    pub(crate) fn new() -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let mount = mount(folder.path(), Arc::default());
        Folder { path: folder.path().join("broker.db"), mount, _folder: folder }
    }

    /// Queues messages 1 to `most`, one a batch, until the power fails. Returns how many were durable.
    pub(crate) fn fill(&self, disk: &Arc<Disk>, most: u64) -> u64 {
        self.mount.replace(Arc::clone(disk));
        let (sender, woken) = channel();
        disk.notify(sender.clone());
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

    /// Opens what is on `disk`, and closes it again.
    pub(crate) fn open(&self, disk: Arc<Disk>) -> Result<Restored, Error> {
        self.mount.replace(disk);
        let (storage, restored) = SqliteStorage::open(&self.path, &options(), Box::new(|| ()))?;
        storage.close()?;
        Ok(restored)
    }

    pub(crate) fn restored(&self, disk: Disk) -> Restored {
        self.open(Arc::new(disk)).unwrap()
    }

    /// Changes the database by hand.
    pub(crate) fn sql(&self, sql: &str) {
        let connection = rusqlite::Connection::open(&self.path).unwrap();
        connection.pragma_update(None, "locking_mode", "EXCLUSIVE").unwrap();
        connection.execute_batch(sql).unwrap();
    }
}

/// A log that is copied back after a few commits.
pub(crate) fn options() -> Options {
    let pause = Duration::from_millis(1);
    Options { log_pages: 12, retry_first: pause, retry_last: pause, ..Options::default() }
}

pub(crate) fn enqueue(position: u64) -> Op {
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
        delivery: Delivery {
            qos: QoS::AtLeastOnce,
            retain: false,
            identifiers: Box::default(),
            share: 0,
        },
        progress: Progress::Queued,
    }
}
