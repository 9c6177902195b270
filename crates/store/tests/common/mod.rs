//! A store in a temporary folder, and short ways to make operations.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use fulmar_broker::message::{Message, MessageId, MessageParts};
use fulmar_broker::storage::{
    Delivery, FlowId, Op, Position, Progress, Restored, Seq, SessionKey, Storage,
};
use fulmar_mqtt::QoS;
use fulmar_store::{Options, SqliteStorage};

/// A wait longer than this is a hang.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Opened {
    pub(crate) storage: SqliteStorage,
    woken: Receiver<()>,
}

impl Opened {
    pub(crate) fn new(path: &Path, options: &Options) -> (Opened, Restored) {
        let (wake, woken) = channel();
        let wake = Box::new(move || {
            // Nobody listens any more once the test is over.
            let _ = wake.send(());
        });
        let (storage, restored) = SqliteStorage::open(path, options, wake).unwrap();
        (Opened { storage, woken }, restored)
    }

    pub(crate) fn from_parts(storage: SqliteStorage, woken: Receiver<()>) -> Opened {
        Opened { storage, woken }
    }

    pub(crate) fn submit(&self, ops: impl IntoIterator<Item = Op>) -> Seq {
        let mut batch: Vec<Op> = ops.into_iter().collect();
        let seq = self.storage.submit(&mut batch);
        assert!(batch.is_empty());
        seq
    }

    pub(crate) fn wait(&self, seq: Seq) {
        self.wait_until(|storage| storage.committed() >= seq);
    }

    pub(crate) fn wait_until(&self, done: impl Fn(&SqliteStorage) -> bool) {
        while !done(&self.storage) {
            self.woken.recv_timeout(PATIENCE).unwrap();
        }
    }
}

pub(crate) fn reopen(path: &Path) -> Restored {
    let (opened, restored) = Opened::new(path, &Options::default());
    opened.storage.close().unwrap();
    restored
}

pub(crate) fn database(folder: &Path) -> PathBuf {
    folder.join("fulmar.db")
}

pub(crate) fn message(id: u64, payload: &[u8]) -> Arc<Message> {
    let parts = MessageParts {
        topic: "a/b",
        properties: &[1, 1],
        payload,
        qos: QoS::AtLeastOnce,
        retain: false,
        expires_at: None,
        publisher: 9,
    };
    Message::new(MessageId(id), &parts)
}

pub(crate) fn enqueue(session: u64, position: u64, message: Arc<Message>) -> Op {
    Op::Enqueue {
        session: SessionKey(session),
        flow: FlowId::CONTROL,
        position: Position(position),
        message,
        delivery: Delivery {
            qos: QoS::AtLeastOnce,
            retain: false,
            identifiers: Box::default(),
            share: 0,
        },
        progress: Progress::Queued,
    }
}

pub(crate) fn dequeue(session: u64, position: u64) -> Op {
    Op::Dequeue {
        session: SessionKey(session),
        flow: FlowId::CONTROL,
        position: Position(position),
    }
}

/// Positions of a session's queue, in the order restored.
pub(crate) fn positions(restored: &Restored, session: u64) -> Vec<u64> {
    let rows = restored.queued.iter().filter(|q| q.session.0 == session);
    rows.map(|q| q.position.0).collect()
}
