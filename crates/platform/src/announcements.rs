//! Announcements of changes, for subscribers: topics and JSON for the MQTT client that publishes them.
//!
//! An announcement is not a promise: one for which there is no room is dropped and counted, because clients can
//! request everything again. This module does not speak MQTT.

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
    /// JSON; empty to remove the retained message.
    pub payload: Vec<u8>,
    /// Whether the message is retained for later subscribers.
    pub retain: bool,
}

/// Queues announcements for their publisher.
#[derive(Debug)]
pub(crate) struct Announcements {
    to: mpsc::Sender<Announcement>,
    dropped: AtomicU64,
}

impl Announcements {
    pub(crate) fn new() -> (Announcements, mpsc::Receiver<Announcement>) {
        let (to, from) = mpsc::channel(MAX_WAITING);
        (Announcements { to, dropped: AtomicU64::new(0) }, from)
    }

    /// Queues an announcement, if there is room.
    pub(crate) fn publish<T: Serialize>(&self, topic: String, what: &T, retain: bool) {
        if let Ok(payload) = serde_json::to_vec(what) {
            self.send(Announcement { topic, payload, retain });
        }
    }

    /// Removes the retained message of this topic.
    pub(crate) fn clear_retained(&self, topic: String) {
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
