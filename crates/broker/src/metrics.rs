//! Counters and gauges of the broker.
//!
//! Each worker writes counters of its own (plain loads and stores, no contended cache line); a
//! reader adds them up. Names and help texts live here, so that `/metrics`, `$SYS` and the
//! documentation say the same.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::peer::TransportKind;

/// A number only one thread changes and any thread reads.
#[derive(Debug, Default)]
pub struct Cell(AtomicU64);

impl Cell {
    /// Adds to it. Only its owner calls this.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Takes from it. Only its owner calls this.
    pub fn sub(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).saturating_sub(n), Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! cells {
    ($($name:ident, $kind:literal, $help:literal;)*) => {
        /// The counters of one worker.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct ShardMetrics {
            $(#[doc = $help] pub $name: Cell,)*
            /// Connections open now, by transport.
            pub connections: [Cell; 5],
            /// Connections ever opened, by transport.
            pub connections_opened: [Cell; 5],
        }

        impl ShardMetrics {
            const ALL: &'static [(&'static str, &'static str, &'static str)] =
                &[$((stringify!($name), $kind, $help),)*];

            fn values(&self) -> Vec<u64> {
                vec![$(self.$name.get(),)*]
            }
        }
    };
}

cells! {
    messages_received, "counter", "PUBLISH packets received";
    messages_sent, "counter", "PUBLISH packets handed to connections for sending";
    bytes_received, "counter", "MQTT bytes received";
    bytes_sent, "counter", "MQTT bytes handed to connections for sending";
    messages_dropped_qos0, "counter", "QoS 0 messages dropped because their receiver was slow";
    messages_dropped_queue, "counter", "Messages dropped by a full session queue";
    messages_dropped_size, "counter", "Messages not sent because the receiver takes no packets of their size";
    messages_expired, "counter", "Messages that expired before they were sent";
    messages_unroutable, "counter", "PUBLISH packets that reached no subscription";
    retained_refused, "counter", "Retained messages refused at the limit";
    connect_refused, "counter", "CONNECT packets answered with an error";
    connections_refused, "counter", "Connections closed at the connection limit";
    authentication_failed, "counter", "Failed authentications";
    access_denied, "counter", "Publications and subscriptions denied by access rules";
    protocol_errors, "counter", "Connections closed for malformed or illegal packets";
    partial_refused, "counter", "Connections closed because their incomplete packets exceeded the bound";
    keep_alive_timeouts, "counter", "Connections closed because the keep alive ran out";
    takeovers, "counter", "Connections closed because their client connected again";
    wills_published, "counter", "Wills published";
    quic_migrations, "counter", "Address changes of QUIC connections";
    quic_early_accepted, "counter", "QUIC connections whose early data was accepted";
    quic_lost_packets, "counter", "QUIC packets declared lost";
}

/// All workers' counters.
#[derive(Debug)]
pub struct Metrics {
    shards: Box<[ShardMetrics]>,
}

impl Metrics {
    /// Metrics of `shards` workers.
    #[must_use]
    pub fn new(shards: usize) -> Metrics {
        Metrics { shards: (0..shards).map(|_| ShardMetrics::default()).collect() }
    }

    /// The counters of one worker.
    #[must_use]
    pub fn shard(&self, index: usize) -> &ShardMetrics {
        &self.shards[index]
    }

    /// Sum of one number over all workers.
    #[must_use]
    pub fn sum(&self, cell: impl Fn(&ShardMetrics) -> &Cell) -> u64 {
        self.shards.iter().map(|shard| cell(shard).get()).sum()
    }

    /// Connections open now over all transports.
    #[must_use]
    pub fn connections(&self) -> u64 {
        TransportKind::ALL.iter().map(|kind| self.sum(|s| &s.connections[kind.index()])).sum()
    }

    /// Every plain counter: name, Prometheus type, help, value.
    #[must_use]
    pub fn totals(&self) -> Vec<(&'static str, &'static str, &'static str, u64)> {
        let mut sums = vec![0u64; ShardMetrics::ALL.len()];
        for shard in &self.shards {
            for (sum, value) in sums.iter_mut().zip(shard.values()) {
                *sum += value;
            }
        }
        let named = ShardMetrics::ALL.iter().zip(sums);
        named.map(|(&(name, kind, help), value)| (name, kind, help, value)).collect()
    }
}
