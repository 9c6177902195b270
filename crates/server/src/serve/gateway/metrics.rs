//! The gateway's metrics: counters and gauges for `/metrics`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(feature = "admin")]
use std::time::Duration;

use fulmar_broker::{LogLimiter, Timestamp};
use fulmar_client::{PathStats, Transport};
use fulmar_gateway::mapping::Priority;
#[cfg(feature = "admin")]
use fulmar_gateway::outbox::Dropped;
use fulmar_gateway::outbox::Totals;
use fulmar_gateway::uplink_scheduler::UplinkScheduler;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::current_refusals::CurrentRefusals;
use super::drop_log::shortened;
use super::wall_clock::wall_ms;

/// The gateway's counters and gauges.
#[derive(Debug, Default)]
pub(crate) struct GatewayMetrics {
    /// NAME of `[upstreams.NAME]`; `None` for `[upstream]`.
    label: Option<String>,
    /// The outbox's fill level.
    pub(super) totals: Mutex<Totals>,
    /// Why the outbox or the dead-letter file cannot be written, if it cannot.
    pub(super) failure: Mutex<Option<String>>,
    /// Messages that the upstream broker has acknowledged.
    pub(super) sent: AtomicU64,
    /// Publications with these messages.
    pub(super) publications: AtomicU64,
    /// Bytes of messages' payloads, and of publications' payloads as sent.
    pub(super) message_bytes: AtomicU64,
    pub(super) publication_bytes: AtomicU64,
    /// Messages that it refused.
    pub(super) refused: AtomicU64,
    /// Messages from upstream that the local broker refused.
    pub(super) refused_here: AtomicU64,
    /// Of these, kept in the dead-letter file.
    pub(super) dead_letters: AtomicU64,
    /// Present refusals.
    pub(super) refusals: Mutex<CurrentRefusals>,
    /// Messages from upstream.
    pub(super) received: AtomicU64,
    /// Messages that were in a loop.
    pub(super) circles: AtomicU64,
    /// Messages of subscriptions that no rule has any more, and when the log has last named one.
    pub(super) unmatched: AtomicU64,
    unmatched_log: Mutex<LogLimiter>,
    /// Messages that were stored already.
    pub(super) repeated: AtomicU64,
    /// Connections that were accepted.
    pub(super) connections: AtomicU64,
    /// Of these, with CONNECT in the first flight.
    pub(super) early: AtomicU64,
    /// Times the connection moved to another address.
    pub(super) migrations: AtomicU64,
    /// The connection's present transport.
    pub(super) transport: Mutex<Option<Transport>>,
    /// Wakes the connection up when messages have arrived in the outbox.
    pub(super) arrivals: Notify,
    /// Which lanes they arrived in.
    arrived: [AtomicBool; 2],
    /// Since when there is no connection, and why.
    pub(super) down: Mutex<Option<(u64, String)>>,
    /// QUIC's own metrics of the connection now.
    pub(super) path: Mutex<Option<PathStats>>,
}

/// One metric: name without `fulmar_gateway_`, kind, help, and values by labels.
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) help: &'static str,
    pub(crate) values: Vec<(String, f64)>,
}

pub(super) fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

impl GatewayMetrics {
    pub(super) fn new(label: Option<String>) -> GatewayMetrics {
        GatewayMetrics { label, ..GatewayMetrics::default() }
    }

    pub(super) fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// The span in which the upstream broker's threads log: its name, or none.
    pub(super) fn span(&self) -> tracing::Span {
        match &self.label {
            None => tracing::Span::none(),
            // Above every level that is logged: lines of any level have it.
            Some(name) => tracing::error_span!("upstream", name),
        }
    }

    /// A value's labels with that of the upstream broker.
    fn labelled(&self, labels: &str) -> String {
        let Some(label) = &self.label else { return labels.to_owned() };
        match labels.strip_prefix('{') {
            None => format!("{{upstream=\"{label}\"}}"),
            Some(rest) => format!("{{upstream=\"{label}\",{rest}"),
        }
    }

    /// Counts the messages that have arrived in each lane, and wakes the connection.
    pub(super) fn wake(&self, taken: [usize; 2]) {
        for (arrived, count) in self.arrived.iter().zip(taken) {
            if count > 0 {
                arrived.store(true, Ordering::Relaxed);
                self.arrivals.notify_one();
            }
        }
    }

    /// Reports to the scheduler in which lanes messages have arrived since.
    pub(super) fn arrived(&self, scheduler: &mut UplinkScheduler) {
        for priority in [Priority::Urgent, Priority::Normal] {
            if self.arrived[priority as usize].swap(false, Ordering::Relaxed) {
                scheduler.arrived(priority);
            }
        }
    }

    /// Present refusals as text, one per line; empty if there are none.
    pub(super) fn refusals(&self) -> String {
        self.refusals.lock().text(self.label())
    }

    /// A message is dropped because no rule matches its topic: a subscription of an earlier configuration has brought it.
    pub(super) fn no_rule(&self, topic: &str, now_ms: u64) {
        count(&self.unmatched, 1);
        if let Some(times) = self.unmatched_log.lock().occurred(Timestamp(now_ms)) {
            let topic = shortened(topic);
            tracing::warn!(topic, times, "dropped: no rule of [upstream] matches the topic");
        }
    }

    /// Whether there is a connection.
    pub(super) fn is_connected(&self) -> bool {
        self.transport.lock().is_some()
    }

    /// The connection has ended, or was not made.
    pub(super) fn disconnected(&self, why: String, now_ms: u64) {
        let mut down = self.down.lock();
        let since_ms = down.as_ref().map_or(now_ms, |before| before.0);
        *down = Some((since_ms, why));
        *self.transport.lock() = None;
        *self.path.lock() = None;
    }

    /// What the administration API shows.
    #[cfg(feature = "admin")]
    pub(super) fn upstream(&self) -> fulmar_admin::Upstream {
        let (totals, path) = (*self.totals.lock(), *self.path.lock());
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Dropped { full, age, expired } = totals.dropped;
        let refused = of(&self.refused) + of(&self.refused_here);
        let failure = self.failure.lock().clone();
        let (down_since_ms, down_reason) = self.down.lock().clone().unzip();
        let failure = failure.map(|why| format!("the outbox cannot be written: {why}"));
        let micros = |rtt: Duration| u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX);
        fulmar_admin::Upstream {
            name: self.label.clone(),
            transport: self.transport.lock().map(Transport::scheme),
            down_since_ms: down_since_ms.map(wall_ms),
            down_reason,
            queued_messages: totals.messages,
            queued_bytes: totals.bytes,
            oldest_ms: totals.oldest_ms.map(wall_ms),
            sent: of(&self.sent),
            received: of(&self.received),
            dropped: full + age + expired + refused + of(&self.unmatched),
            migrations: of(&self.migrations),
            early_data: of(&self.early),
            rtt_us: path.and_then(|path| path.rtt).map(micros),
            problem: failure.unwrap_or_else(|| self.refusals().trim_end().to_owned()),
        }
    }

    /// All metrics at a moment of the gateway's time.
    pub(super) fn all(&self, now_ms: u64) -> Vec<Metric> {
        let totals = *self.totals.lock();
        let refusals = self.refusals.lock().clone();
        let dropped = totals.dropped;
        let refused = self.refused.load(Ordering::Relaxed);
        let age = totals.oldest_ms.map_or(0, |oldest| now_ms.saturating_sub(oldest));
        let one = |value: f64| vec![(String::new(), value)];
        let counter = |counter: &AtomicU64| one(counter.load(Ordering::Relaxed) as f64);
        let metric = |name, kind, help, values| Metric { name, kind, help, values };
        let failing = f64::from(u8::from(self.failure.lock().is_some()));
        let why = |why: &str, count: u64| (format!("{{reason=\"{why}\"}}"), count as f64);
        let transport = *self.transport.lock();
        let carried = [Transport::Quic, Transport::Tls, Transport::Tcp].map(|kind| {
            let labels = format!("{{transport=\"{}\"}}", kind.scheme());
            (labels, f64::from(u8::from(transport == Some(kind))))
        });
        let mut all = vec![
            metric("queued", "gauge", "Messages in the outbox", one(totals.messages as f64)),
            metric(
                "queued_bytes",
                "gauge",
                "Their size in the outbox limit",
                one(totals.bytes as f64),
            ),
            metric(
                "oldest_seconds",
                "gauge",
                "Age of the oldest message in the outbox",
                one(age as f64 / 1000.0),
            ),
            metric(
                "outbox_failing",
                "gauge",
                "1 while the outbox or the dead-letter file cannot be written",
                one(failing),
            ),
            metric("sent_total", "counter", "Messages acknowledged upstream", counter(&self.sent)),
            metric(
                "publications_total",
                "counter",
                "Publications that carried the acknowledged messages",
                counter(&self.publications),
            ),
            metric(
                "message_bytes_total",
                "counter",
                "Bytes of topics and payloads of the acknowledged messages",
                counter(&self.message_bytes),
            ),
            metric(
                "publication_bytes_total",
                "counter",
                "Bytes of topics and payloads of the publications",
                counter(&self.publication_bytes),
            ),
            metric(
                "received_total",
                "counter",
                "Messages received from upstream",
                counter(&self.received),
            ),
            metric(
                "dropped_total",
                "counter",
                "Messages dropped: outbox full, too old, past their expiry, refused upstream, refused \
                 here (from upstream), in a loop, or matched by no rule of this configuration",
                vec![
                    why("full", dropped.full),
                    why("age", dropped.age),
                    why("expired", dropped.expired),
                    why("refused", refused),
                    why("refused_here", self.refused_here.load(Ordering::Relaxed)),
                    why("circle", self.circles.load(Ordering::Relaxed)),
                    why("no_rule", self.unmatched.load(Ordering::Relaxed)),
                ],
            ),
            metric(
                "dead_letters_total",
                "counter",
                "Refused messages kept in the dead-letter file",
                counter(&self.dead_letters),
            ),
            metric(
                "refused",
                "gauge",
                "What is refused for now, kept and tried again: topics, filters or the connection \
                 upstream, messages from upstream here",
                refusals.counts(),
            ),
            metric(
                "refused_since_seconds",
                "gauge",
                "Unix time since which the oldest of these refusals has lasted; 0: none",
                one(refusals.since_ms().map_or(0, wall_ms) as f64 / 1000.0),
            ),
            metric("repeated_total", "counter", "Duplicates discarded", counter(&self.repeated)),
            metric("connections_total", "counter", "Connections made", counter(&self.connections)),
            metric(
                "early_data_total",
                "counter",
                "Connections made with 0-RTT",
                counter(&self.early),
            ),
            metric("migrations_total", "counter", "Changes of address", counter(&self.migrations)),
            metric("connected", "gauge", "1 for the transport of the connection", carried.to_vec()),
        ];
        if let Some(path) = *self.path.lock() {
            let wire = [("sent", path.sent_bytes), ("received", path.received_bytes)];
            let wire = wire.map(|(way, bytes)| (format!("{{direction=\"{way}\"}}"), bytes as f64));
            all.push(metric(
                "quic_bytes",
                "gauge",
                "Bytes of UDP payload of the QUIC connection now",
                wire.to_vec(),
            ));
            let rtt = path.rtt.unwrap_or_default().as_secs_f64();
            all.push(metric(
                "quic_rtt_seconds",
                "gauge",
                "Smoothed round-trip time of the QUIC connection",
                one(rtt),
            ));
        }
        for (labels, _) in all.iter_mut().flat_map(|metric| &mut metric.values) {
            *labels = self.labelled(labels);
        }
        all
    }
}
