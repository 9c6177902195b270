//! How well clients are connected, and which are slow: a pass over all connected clients, a part with each request.
//!
//! A part looks at a bounded number of clients, so that its cost does not grow with their number; with very many, the
//! results are as old as the last pass. Nobody who looks costs nothing, and no message is counted for this.

use std::collections::BTreeMap;
use std::time::Instant;

use axum::body::Bytes;
use fulmar_broker::{Broker, ClientConnection, TransportStats};
use serde::Serialize;
use tokio::sync::Mutex;
use utoipa::ToSchema;

/// Clients that one part looks at.
const PART: usize = 2000;
/// Clients that are looked at at once.
const SLICE: usize = 128;
/// Slow clients, and clients with the worst paths, that are named.
const NAMED: usize = 10;
/// A client with a smaller share of lost packets, or fewer sent, has no bad path.
const BAD_LOSS: f64 = 0.01;
const FEW_PACKETS: u64 = 50;

/// Buckets per doubling of a round-trip time: a quantile is at most 9 % above the exact one.
const PER_DOUBLING: f64 = 8.0;
/// Up to 2^26 µs, which is a minute.
const BUCKETS: usize = 208;

/// Round-trip times, in buckets of equal ratio.
#[derive(Clone, Debug)]
struct RoundTrips {
    counts: [u32; BUCKETS],
    total: u32,
}

impl Default for RoundTrips {
    fn default() -> RoundTrips {
        RoundTrips { counts: [0; BUCKETS], total: 0 }
    }
}

impl RoundTrips {
    fn add(&mut self, us: u64) {
        let bucket = (us.max(1) as f64).log2() * PER_DOUBLING;
        self.counts[(bucket.ceil() as usize).min(BUCKETS - 1)] += 1;
        self.total += 1;
    }

    /// The upper bound of the bucket in which this share of the values ends.
    fn quantile(&self, share: f64) -> Option<u64> {
        let rank = ((f64::from(self.total) * share).ceil() as u32).max(1);
        let mut below = 0;
        let bucket = self.counts.iter().position(|count| {
            below += count;
            below >= rank
        })?;
        Some((bucket as f64 / PER_DOUBLING).exp2().round() as u64)
    }
}

/// The clients of one transport.
#[derive(Clone, Debug, Default)]
struct OfTransport {
    clients: u64,
    queued_messages: u64,
    queued_bytes: u64,
    rtt: RoundTrips,
    sent_packets: u64,
    lost_packets: u64,
    bad_paths: u64,
    moved: u64,
    early_data: u64,
}

impl OfTransport {
    fn add(&mut self, client: &ClientConnection) {
        self.clients += 1;
        self.queued_messages += client.queued_messages as u64;
        self.queued_bytes += client.queued_bytes as u64;
        let Some(path) = &client.stats else { return };
        self.rtt.add(path.rtt_us);
        self.sent_packets += path.sent_packets;
        self.lost_packets += path.lost_packets;
        self.bad_paths += u64::from(badness(client).is_some());
        self.moved += u64::from(path.migrations > 0);
        self.early_data += u64::from(path.early_data);
    }

    fn summary(&self, transport: &'static str) -> TransportSummary {
        let measured = u64::from(self.rtt.total);
        let path = (measured > 0).then(|| PathSummary {
            measured,
            rtt_median_us: self.rtt.quantile(0.5).unwrap_or(0),
            rtt_95_us: self.rtt.quantile(0.95).unwrap_or(0),
            loss: self.lost_packets as f64 / self.sent_packets.max(1) as f64,
            bad_paths: self.bad_paths,
            moved: self.moved,
            early_data: self.early_data,
        });
        TransportSummary {
            transport,
            clients: self.clients,
            queued_messages: self.queued_messages,
            queued_bytes: self.queued_bytes,
            path,
        }
    }
}

/// The share of packets lost to a client, in parts per million, if it is worth naming.
fn badness(client: &ClientConnection) -> Option<u64> {
    let path = client.stats.as_ref().filter(|path| path.sent_packets >= FEW_PACKETS)?;
    let loss = path.lost_packets as f64 / path.sent_packets as f64;
    (loss >= BAD_LOSS).then_some((loss * 1e6) as u64)
}

/// The clients of a transport.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct TransportSummary {
    /// The transport.
    transport: &'static str,
    /// Connected clients.
    clients: u64,
    /// Messages in their queues and in flight.
    queued_messages: u64,
    /// Bytes of those in their queues.
    queued_bytes: u64,
    /// Statistics of their paths; only over QUIC.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathSummary>,
}

/// Statistics of clients' paths.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
struct PathSummary {
    /// Clients whose paths have been measured.
    measured: u64,
    /// Median of their round-trip times in microseconds, at most 9 % too high.
    rtt_median_us: u64,
    /// The time that 95 % of them stay within.
    rtt_95_us: u64,
    /// Share of all packets sent to them that were lost, 0 to 1.
    loss: f64,
    /// Clients to which at least 1 % of at least 50 packets were lost.
    bad_paths: u64,
    /// Clients whose address has changed since they connected.
    moved: u64,
    /// Clients that resumed with 0-RTT data.
    early_data: u64,
}

/// The clients of a pass.
#[derive(Clone, Debug, Default)]
struct PassClients {
    transports: BTreeMap<&'static str, OfTransport>,
    slowest: Worst,
    worst_paths: Worst,
}

/// The clients with the highest numbers, highest first.
#[derive(Clone, Debug, Default)]
struct Worst(Vec<(u64, ClientConnection)>);

impl Worst {
    fn add(&mut self, number: u64, client: &ClientConnection) {
        let at = self.0.partition_point(|(other, _)| *other >= number);
        if number > 0 && at < NAMED {
            self.0.insert(at, (number, client.clone()));
            self.0.truncate(NAMED);
        }
    }

    fn clients(&self) -> Vec<NamedClient> {
        self.0.iter().map(|(_, client)| NamedClient::from(client)).collect()
    }
}

/// Share of sent packets that were lost, 0 to 1.
pub(crate) fn loss(stats: &TransportStats) -> f64 {
    stats.lost_packets as f64 / stats.sent_packets.max(1) as f64
}

fulmar_text::mirrors! {
    /// A client that is worth looking at.
    #[derive(Serialize, ToSchema)]
    pub(crate) struct NamedClient (client: &ClientConnection) {
        /// The client identifier.
        client: String = client.client.to_string(),
        /// The transport.
        transport: &'static str = client.transport,
        /// Messages in its queue and in flight.
        queued_messages: usize = client.queued_messages,
        /// Bytes of those in its queue.
        queued_bytes: usize = client.queued_bytes,
        /// Smoothed round-trip time in microseconds; only over QUIC.
        #[serde(skip_serializing_if = "Option::is_none")]
        rtt_us: Option<u64> = client.stats.as_ref().map(|path| path.rtt_us),
        /// Share of packets sent to it that were lost, 0 to 1; only over QUIC.
        #[serde(skip_serializing_if = "Option::is_none")]
        loss: Option<f64> = client.stats.as_ref().map(loss),
    }
}

/// Results of a pass.
#[derive(Serialize, ToSchema)]
pub(crate) struct Quality {
    /// When the pass ended, in milliseconds since the Unix epoch; absent while the first one is under way, which has
    /// looked at some of the clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_ms: Option<i64>,
    /// By transport.
    transports: Vec<TransportSummary>,
    /// Clients with the most queued messages, at most 10.
    slowest: Vec<NamedClient>,
    /// Clients that lose the largest share of packets, if that is at least 1 %; at most 10.
    worst_paths: Vec<NamedClient>,
}

/// The pass under way, and the last one.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    place: u64,
    seen: PassClients,
    last: Option<(PassClients, i64)>,
}

impl Pass {
    /// Looks at the next clients.
    pub(crate) async fn continue_with(&mut self, broker: &Broker, now_ms: i64) {
        let mut examined = 0;
        while examined < PART {
            let slice = broker.connections(self.place, SLICE);
            examined += slice.len();
            for client in &slice {
                self.place = client.place;
                self.seen.transports.entry(client.transport).or_default().add(client);
                self.seen.slowest.add(client.queued_messages as u64, client);
                self.seen.worst_paths.add(badness(client).unwrap_or(0), client);
            }
            if slice.len() < SLICE {
                self.place = 0;
                self.last = Some((std::mem::take(&mut self.seen), now_ms));
                return;
            }
            // Other requests and MQTT inside HTTP have the same thread.
            tokio::task::yield_now().await;
        }
    }

    /// Results of the last pass; if there is none, those of this one so far.
    pub(crate) fn quality(&self) -> Quality {
        let (seen, ended_ms) = match &self.last {
            Some((seen, at)) => (seen, Some(*at)),
            None => (&self.seen, None),
        };
        let transports = seen.transports.iter().map(|(name, of)| of.summary(name)).collect();
        let (slowest, worst_paths) = (seen.slowest.clients(), seen.worst_paths.clients());
        Quality { ended_ms, transports, slowest, worst_paths }
    }
}

/// The last overview, as it is sent, and the pass over the clients.
#[derive(Debug, Default)]
pub(crate) struct Computed(pub(crate) Mutex<Shared>);

#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) last: Option<(Instant, Bytes)>,
    pub(crate) pass: Pass,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use fulmar_broker::TransportStats;

    fn client(place: u64, queued_messages: usize, lost_packets: u64) -> ClientConnection {
        let stats = TransportStats {
            rtt_us: place * 1000,
            sent_packets: 100,
            lost_packets,
            ..TransportStats::default()
        };
        ClientConnection {
            place,
            client: format!("c{place}").into(),
            user: None,
            address: ([127, 0, 0, 1], 1).into(),
            transport: "quic",
            since_ms: 0,
            subscriptions: 0,
            queued_messages,
            queued_bytes: 0,
            waiting: None,
            stats: Some(stats),
        }
    }

    #[test]
    fn quantiles_are_at_most_nine_percent_too_high() {
        let mut all = OfTransport::default();
        for place in 1..=1000 {
            all.add(&client(place, 0, 0));
        }
        let path = all.summary("quic").path.unwrap();
        for (found, exact) in [(path.rtt_median_us, 500_000), (path.rtt_95_us, 950_000)] {
            assert!((exact..=exact * 109 / 100 + 1).contains(&found), "{found} for {exact}");
        }
        assert_eq!(OfTransport::default().summary("tcp").path, None);
        let mut longest = RoundTrips::default();
        longest.add(u64::MAX);
        assert!(longest.quantile(1.0) >= Some(1 << 25), "what no bucket has is in the last one");
    }

    #[test]
    fn the_worst_are_named_and_those_without_a_queue_are_not() {
        let mut worst = Worst::default();
        for place in 0..30 {
            worst.add(place % 20, &client(place, 0, 0));
        }
        let numbers: Vec<u64> = worst.0.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [19, 18, 17, 16, 15, 14, 13, 12, 11, 10]);
        let mut none = Worst::default();
        none.add(0, &client(1, 0, 0));
        assert!(none.0.is_empty());
        assert_eq!(badness(&client(1, 0, 1)), Some(10_000));
        assert_eq!(badness(&client(1, 0, 0)), None);
    }
}
