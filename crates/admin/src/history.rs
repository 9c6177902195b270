//! Messages and bytes of the last hour, so that a page that is opened has more to show than the present.
//!
//! Counters as they are, every five seconds: differences are rates.

use std::collections::VecDeque;
use std::time::Duration;

use fulmar_broker::Broker;
use serde::Serialize;
use utoipa::ToSchema;

/// The time between two entries, and the number of entries: an hour.
pub(crate) const EVERY: Duration = Duration::from_secs(5);
const MOST: usize = 720;

/// Counters at one time.
#[derive(Clone, Copy, Debug)]
struct Entry {
    at_ms: i64,
    connections: u64,
    messages_received: u64,
    messages_sent: u64,
    bytes_received: u64,
    bytes_sent: u64,
    messages_dropped: u64,
}

impl Entry {
    fn now(broker: &Broker, at_ms: i64) -> Entry {
        let metrics = broker.metrics();
        Entry {
            at_ms,
            connections: metrics.connections(),
            messages_received: metrics.sum(|shard| &shard.messages_received),
            messages_sent: metrics.sum(|shard| &shard.messages_sent),
            bytes_received: metrics.sum(|shard| &shard.bytes_received),
            bytes_sent: metrics.sum(|shard| &shard.bytes_sent),
            messages_dropped: metrics.sum(|shard| &shard.messages_dropped_qos0)
                + metrics.sum(|shard| &shard.messages_dropped_queue),
        }
    }
}

/// The last hour.
#[derive(Debug, Default)]
pub(crate) struct History(VecDeque<Entry>);

impl History {
    fn add(&mut self, entry: Entry) {
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        self.0.push_back(entry);
    }

    /// Adds the counters as they are.
    pub(crate) fn record(&mut self, broker: &Broker, now_ms: i64) {
        self.add(Entry::now(broker, now_ms));
    }

    pub(crate) fn columns(&self) -> Columns {
        let mut columns = Columns::default();
        for entry in &self.0 {
            columns.at_ms.push(entry.at_ms);
            columns.connections.push(entry.connections);
            columns.messages_received.push(entry.messages_received);
            columns.messages_sent.push(entry.messages_sent);
            columns.bytes_received.push(entry.bytes_received);
            columns.bytes_sent.push(entry.bytes_sent);
            columns.messages_dropped.push(entry.messages_dropped);
        }
        columns
    }
}

/// The last hour in columns, the oldest first. Counters are since the broker started.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct Columns {
    /// Milliseconds since the Unix epoch.
    at_ms: Vec<i64>,
    /// Connections open then.
    connections: Vec<u64>,
    /// Publications received.
    messages_received: Vec<u64>,
    /// Publications sent.
    messages_sent: Vec<u64>,
    /// MQTT bytes received.
    bytes_received: Vec<u64>,
    /// MQTT bytes sent.
    bytes_sent: Vec<u64>,
    /// Messages dropped for slow receivers, or by full queues.
    messages_dropped: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_kept() {
        let mut history = History::default();
        for at_ms in 0..2000 {
            let (connections, messages_received, messages_sent) = (0, 0, 0);
            let (bytes_received, bytes_sent, messages_dropped) = (0, 0, 0);
            history.add(Entry {
                at_ms,
                connections,
                messages_received,
                messages_sent,
                bytes_received,
                bytes_sent,
                messages_dropped,
            });
        }
        let at = |entry: Option<&Entry>| entry.map(|entry| entry.at_ms);
        assert_eq!(history.0.len(), MOST);
        assert_eq!((at(history.0.front()), at(history.0.back())), (Some(1280), Some(1999)));
    }
}
