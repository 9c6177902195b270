//! Counters and gauges of the broker.
//!
//! Each worker writes counters of its own (plain loads and stores, no contended cache line); a
//! reader adds them up. Names and help texts live here, so that `/metrics`, `$SYS` and the
//! documentation say the same.

use std::sync::atomic::{AtomicU64, Ordering};

use fulmar_text::metrics::{Distribution, Kind, Metrics as Families};

use crate::peer::{TransportKind, TransportStats};

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

    /// Value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! cells {
    ($($name:ident, $help:literal;)*) => {
        /// The counters of one worker.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct ShardMetrics {
            $(#[doc = $help] pub $name: Cell,)*
            /// Connections open now, by transport.
            pub connections: [Cell; TransportKind::ALL.len()],
            /// Connections ever opened, by transport.
            pub connections_opened: [Cell; TransportKind::ALL.len()],
            /// Observations of QUIC connections' paths.
            pub paths: PathHistograms,
        }

        impl ShardMetrics {
            const ALL: &'static [(&'static str, &'static str)] =
                &[$((stringify!($name), $help),)*];

            fn values(&self) -> Vec<u64> {
                vec![$(self.$name.get(),)*]
            }
        }
    };
}

cells! {
    messages_received, "PUBLISH packets received";
    messages_sent, "PUBLISH packets handed to connections for sending";
    bytes_received, "MQTT bytes received";
    bytes_sent, "MQTT bytes handed to connections for sending";
    messages_dropped_qos0, "QoS 0 messages dropped because their receiver was slow";
    messages_dropped_queue, "Messages dropped by a full session queue";
    messages_dropped_size, "Messages not sent because they exceed the receiver's Maximum Packet Size";
    messages_expired, "Messages that expired before they were sent";
    messages_unroutable, "PUBLISH packets that matched no subscription, except the broker's own under $SYS";
    retained_refused, "Retained messages refused at the limit";
    connect_refused, "CONNECT packets answered with an error";
    connections_refused, "Connections closed at the connection limit";
    accept_failed, "Times a listener could not accept a connection because file descriptors or memory ran out";
    connections_too_fast, "Connections closed at the limit of connections per second from one address";
    logins_busy, "CONNECT packets refused because too many logins were waiting to be checked";
    sessions_refused, "CONNECT packets refused because another user's session has their client identifier";
    storage_refused, "Packets refused and connections closed because storage was stalled";
    subscriptions_refused, "Subscriptions refused at max_subscriptions_per_session or max_wildcard_subscriptions_per_user";
    memory_refused, "Messages not queued, and sessions, subscriptions, flows, QoS 2 messages and topic aliases refused, at a user's share of the budget for memory";
    publishers_throttled, "Times a client published faster than allowed";
    authentication_failed, "Failed authentications";
    access_denied, "Publications and subscriptions denied by access rules";
    protocol_errors, "Connections closed for malformed or illegal packets";
    partial_refused, "Connections closed because their incomplete packets exceeded the bound, or because memory was short";
    keep_alive_timeouts, "Connections closed because the keep alive ran out";
    takeovers, "Connections closed because their client connected again";
    wills_published, "Wills published";
    wills_refused, "Wills not published because their client may not publish them any more";
    quic_migrations, "Address changes of QUIC connections";
    quic_early_accepted, "QUIC connections whose early data was accepted";
    quic_sent_packets, "QUIC packets sent";
    quic_lost_packets, "QUIC packets declared lost";
    quic_sent_bytes, "Bytes of datagrams sent by QUIC connections, without those of copies";
    quic_received_bytes, "Bytes of datagrams received by QUIC connections";
    quic_streams_opened, "Streams opened by QUIC clients, control streams included";
    quic_other_node_packets, "QUIC packets of connections of another node of the cluster, which were dropped";
    quic_copies, "Copies of QUIC datagrams sent to clients whose paths lose packets";
    quic_copied_bytes, "Bytes of those copies";
}

/// Upper bounds of the histograms' buckets.
const RTT_US: &[u64] = &[
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000,
];
const CWND_BYTES: &[u64] =
    &[4_096, 8_192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576, 4_194_304];
const LOSS_PPM: &[u64] = &[0, 1_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000];

/// Number of values up to each bound.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One more than bounds, for what is above them all.
    counts: Box<[Cell]>,
    sum: Cell,
}

impl Histogram {
    fn new(bounds: &'static [u64]) -> Histogram {
        let counts = (0..=bounds.len()).map(|_| Cell::default()).collect();
        Histogram { bounds, counts, sum: Cell::default() }
    }

    fn observe(&self, value: u64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)].add(1);
        self.sum.add(value);
    }
}

fulmar_text::with_defaults! {
    /// Samples of QUIC connections' paths: one a connection in use every few seconds.
    #[derive(Debug)]
    pub struct PathHistograms {
        /// Smoothed round-trip times in microseconds.
        pub rtt_us: Histogram = Histogram::new(RTT_US),
        /// Congestion windows in bytes.
        pub cwnd_bytes: Histogram = Histogram::new(CWND_BYTES),
        /// Packets lost since the sample before, in millionths of those sent.
        pub loss_ppm: Histogram = Histogram::new(LOSS_PPM),
    }
}

impl ShardMetrics {
    /// Counts what has happened on a connection's path since the last call.
    pub(crate) fn count_path(&self, old: &TransportStats, new: &TransportStats) {
        let sent = new.sent_packets.saturating_sub(old.sent_packets);
        let lost = new.lost_packets.saturating_sub(old.lost_packets);
        self.quic_sent_packets.add(sent);
        self.quic_lost_packets.add(lost);
        self.quic_sent_bytes.add(new.sent_bytes.saturating_sub(old.sent_bytes));
        self.quic_copies.add(new.copies.saturating_sub(old.copies));
        self.quic_copied_bytes.add(new.copied_bytes.saturating_sub(old.copied_bytes));
        self.quic_received_bytes.add(new.received_bytes.saturating_sub(old.received_bytes));
        let streams = new.streams_opened.saturating_sub(old.streams_opened);
        self.quic_streams_opened.add(u64::from(streams));
        self.quic_migrations.add(u64::from(new.migrations.saturating_sub(old.migrations)));
        self.quic_early_accepted.add(u64::from(new.early_data && !old.early_data));
        // Packets may be declared lost that were sent before the sample.
        if let Some(lost_ppm) = lost.saturating_mul(1_000_000).checked_div(sent) {
            self.paths.rtt_us.observe(new.rtt_us);
            self.paths.cwnd_bytes.observe(new.cwnd_bytes);
            self.paths.loss_ppm.observe(lost_ppm.min(1_000_000));
        }
    }
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

    /// Every plain counter: name, help, value.
    #[must_use]
    pub fn totals(&self) -> Vec<(&'static str, &'static str, u64)> {
        let mut sums = vec![0u64; ShardMetrics::ALL.len()];
        for shard in &self.shards {
            for (sum, value) in sums.iter_mut().zip(shard.values()) {
                *sum += value;
            }
        }
        let named = ShardMetrics::ALL.iter().zip(sums);
        named.map(|(&(name, help), value)| (name, help, value)).collect()
    }

    /// Reports everything.
    pub fn report(&self, to: &mut Families) {
        let name = "connections";
        let family = to.family(Kind::Gauge, name, "Connections open now");
        for kind in TransportKind::ALL {
            family.add(&[("transport", kind)], self.sum(|shard| &shard.connections[kind.index()]));
        }
        let name = "connections_opened_total";
        let family = to.family(Kind::Counter, name, "Connections opened since start");
        for kind in TransportKind::ALL {
            let opened = self.sum(|shard| &shard.connections_opened[kind.index()]);
            family.add(&[("transport", kind)], opened);
        }
        for (name, help, value) in self.totals() {
            to.counter(&format!("{name}_total"), help, value);
        }
        let help = "Round-trip times of QUIC connections, sampled every few seconds of use";
        let rtt = self.distribution(1e6, |shard| &shard.paths.rtt_us);
        to.histogram("quic_rtt_seconds", help, rtt);
        let help = "Congestion windows of QUIC connections, sampled every few seconds of use";
        let windows = self.distribution(1.0, |shard| &shard.paths.cwnd_bytes);
        to.histogram("quic_congestion_window_bytes", help, windows);
        let help = "Share of packets lost by a QUIC connection between two samples";
        let loss = self.distribution(1e6, |shard| &shard.paths.loss_ppm);
        to.histogram("quic_loss_ratio", help, loss);
    }

    fn distribution(&self, scale: f64, of: impl Fn(&ShardMetrics) -> &Histogram) -> Distribution {
        let bounds = self.shards.first().map_or(&[][..], |shard| of(shard).bounds);
        let count_at = |at: usize| self.sum(|shard| &of(shard).counts[at]);
        let mut below = 0;
        let cumulative = bounds.iter().enumerate().map(|(at, bound)| {
            below += count_at(at);
            (*bound as f64 / scale, below)
        });
        let buckets = cumulative.collect();
        let count = below + count_at(bounds.len());
        let sum = self.sum(|shard| &of(shard).sum) as f64 / scale;
        Distribution { buckets, count, sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_all_workers_make_one_cumulative_histogram() {
        let metrics = Metrics::new(2);
        let before = TransportStats::default();
        let at = |rtt_us, sent_packets, lost_packets| TransportStats {
            rtt_us,
            sent_packets,
            lost_packets,
            ..before
        };
        metrics.shard(0).count_path(&before, &at(900, 100, 0));
        metrics.shard(1).count_path(&before, &at(40_000, 100, 3));
        metrics.shard(1).count_path(&at(40_000, 100, 3), &at(9_000_000, 104, 3));
        // Nothing was sent, so there is no new sample.
        metrics.shard(1).count_path(&before, &before);
        let rtt = &metrics.distribution(1e6, |shard| &shard.paths.rtt_us);
        let loss = &metrics.distribution(1e6, |shard| &shard.paths.loss_ppm);
        let below = |histogram: &Distribution, bound: f64| {
            histogram.buckets.iter().find(|(b, _)| (b - bound).abs() < 1e-9).map(|(_, n)| *n)
        };
        assert_eq!(below(rtt, 0.0005), Some(0));
        assert_eq!(below(rtt, 0.001), Some(1));
        assert_eq!(below(rtt, 0.05), Some(2));
        assert_eq!((below(rtt, 5.0), rtt.count), (Some(2), 3));
        assert!((rtt.sum - 9.0409).abs() < 1e-9, "{}", rtt.sum);
        assert_eq!(
            (below(loss, 0.0), below(loss, 0.02), below(loss, 0.05)),
            (Some(2), Some(2), Some(3))
        );
        assert_eq!(metrics.sum(|shard| &shard.quic_lost_packets), 3);
        assert_eq!(metrics.sum(|shard| &shard.quic_sent_packets), 204);
    }
}
