//! What changed, for those who listen: topics and JSON, on their way to whatever publishes them.
//!
//! Telling is not a promise: what cannot be taken at once is dropped and counted, since everything can
//! be asked for again. MQTT itself is not spoken here.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use tokio::sync::mpsc;

/// Announcements that wait for their publisher.
const MAX_WAITING: usize = 4096;

/// Something to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The topic, such as `fulmar/hamburg/work_list/1`.
    pub topic: String,
    /// JSON; empty to end what was retained.
    pub payload: Vec<u8>,
    /// Whether who comes later is told too.
    pub retain: bool,
}

/// Where announcements go.
#[derive(Debug)]
pub(crate) struct Live {
    to: mpsc::Sender<Announcement>,
    dropped: AtomicU64,
}

impl Live {
    pub(crate) fn new() -> (Live, mpsc::Receiver<Announcement>) {
        let (to, from) = mpsc::channel(MAX_WAITING);
        (Live { to, dropped: AtomicU64::new(0) }, from)
    }

    /// Tells it, if there is room.
    pub(crate) fn tell<T: Serialize>(&self, topic: String, what: &T, retain: bool) {
        if let Ok(payload) = serde_json::to_vec(what) {
            self.send(Announcement { topic, payload, retain });
        }
    }

    /// Lets who comes later no longer be told what was retained under this topic.
    pub(crate) fn forget(&self, topic: String) {
        self.send(Announcement { topic, payload: Vec::new(), retain: true });
    }

    fn send(&self, what: Announcement) {
        if self.to.try_send(what).is_err() {
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            if dropped.is_power_of_two() {
                tracing::debug!(dropped, "live updates dropped");
            }
        }
    }
}
