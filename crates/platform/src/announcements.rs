//! Announcements of changes, for subscribers: topics and JSON for the MQTT client that publishes them.
//!
//! An announcement is not a promise: one for which there is no room is dropped and counted, because clients can
//! request everything again. This module does not speak MQTT.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Announcements that wait for their publisher.
const MAX_WAITING: usize = 4096;
/// Bytes of them: a reading with its note can have 10 KB, and most announcements have less than 1 KB.
const MAX_WAITING_BYTES: usize = 8 << 20;

/// Something to publish.
#[derive(Debug)]
pub struct Announcement {
    /// The topic, such as `fulmar/hamburg/work_list/1`.
    pub topic: String,
    /// JSON; empty to remove the retained message.
    pub payload: Vec<u8>,
    /// Whether the message is retained for later subscribers.
    pub retain: bool,
    /// Permit for bytes that wait; given back with the announcement.
    _room: OwnedSemaphorePermit,
}

/// Queues announcements for their publisher.
#[derive(Debug)]
pub(crate) struct Announcements {
    to: mpsc::Sender<Announcement>,
    /// Bytes that may wait besides.
    room: Arc<Semaphore>,
    dropped: AtomicU64,
}

impl Announcements {
    pub(crate) fn new() -> (Announcements, mpsc::Receiver<Announcement>) {
        let (to, from) = mpsc::channel(MAX_WAITING);
        let room = Arc::new(Semaphore::new(MAX_WAITING_BYTES));
        (Announcements { to, room, dropped: AtomicU64::new(0) }, from)
    }

    /// Queues an announcement, if there is room.
    pub(crate) fn publish<T: Serialize>(&self, topic: String, what: &T, retain: bool) {
        if let Ok(payload) = serde_json::to_vec(what) {
            self.send(topic, payload, retain);
        }
    }

    /// Removes the retained message of this topic.
    pub(crate) fn clear_retained(&self, topic: String) {
        self.send(topic, Vec::new(), true);
    }

    fn send(&self, topic: String, payload: Vec<u8>, retain: bool) {
        if !self.has_sent(topic, payload, retain) {
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            if dropped.is_power_of_two() {
                tracing::debug!(dropped, "live updates dropped");
            }
        }
    }

    /// Whether there was room for it.
    fn has_sent(&self, topic: String, payload: Vec<u8>, retain: bool) -> bool {
        let bytes = u32::try_from(topic.len() + payload.len()).unwrap_or(u32::MAX);
        let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(bytes) else { return false };
        self.to.try_send(Announcement { topic, payload, retain, _room: room }).is_ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn announcements_wait_within_a_bound_of_bytes() {
        let (announcements, mut waiting) = Announcements::new();
        let note = "x".repeat(8000);
        for _ in 0..2 {
            (0..5000).for_each(|_| announcements.publish("a/b".into(), &note, false));
            let all = std::iter::from_fn(|| waiting.try_recv().ok());
            let bytes: usize = all.map(|one| one.topic.len() + one.payload.len()).sum();
            assert!((MAX_WAITING_BYTES - 10_000..=MAX_WAITING_BYTES).contains(&bytes), "{bytes}");
        }
        // Small ones are bounded by number.
        (0..5000).for_each(|_| announcements.clear_retained("a/b".into()));
        assert_eq!(std::iter::from_fn(|| waiting.try_recv().ok()).count(), MAX_WAITING);
    }
}
