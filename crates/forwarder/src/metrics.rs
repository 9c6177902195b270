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
use fulmar_text::metrics::{Family, Kind, Metrics, Number};
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
    /// Part of them that is in the dead-letter file.
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
    /// Part of them with CONNECT in the first flight.
    pub(super) early: AtomicU64,
    /// Times the connection moved to another address.
    pub(super) migrations: AtomicU64,
    /// The connection's present transport.
    pub(super) transport: Mutex<Option<Transport>>,
    /// Wakes the connection up when messages have arrived in the outbox.
    pub(super) arrivals: Notify,
    /// Lanes in which they arrived.
    arrived: [AtomicBool; 2],
    /// Since when there is no connection, and why.
    pub(super) down: Mutex<Option<(u64, String)>>,
    /// QUIC's own metrics of the connection now.
    pub(super) path: Mutex<Option<PathStats>>,
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

    /// Adds a value, with a label for its upstream broker where this has a name.
    fn add(&self, family: &mut Family, labels: &[(&'static str, &str)], value: impl Number) {
        let upstream = self.label().map(|label| ("upstream", label));
        let labels: Vec<_> = upstream.into_iter().chain(labels.iter().copied()).collect();
        family.add(&labels, value);
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

    /// Returns the upstream broker's state for the administration API.
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

    /// Reports everything at a moment of the gateway's time.
    pub(super) fn report(&self, to: &mut Metrics, now_ms: u64) {
        self.report_outbox(to, now_ms);
        self.report_refusals(to);
        self.report_connection(to);
        for (name, help, counter) in [
            ("sent_total", "Messages acknowledged upstream", &self.sent),
            (
                "publications_total",
                "Publications that carried the acknowledged messages",
                &self.publications,
            ),
            (
                "message_bytes_total",
                "Bytes of topics and payloads of the acknowledged messages",
                &self.message_bytes,
            ),
            (
                "publication_bytes_total",
                "Bytes of topics and payloads of the publications",
                &self.publication_bytes,
            ),
            ("received_total", "Messages received from upstream", &self.received),
            (
                "dead_letters_total",
                "Refused messages kept in the dead-letter file",
                &self.dead_letters,
            ),
            ("repeated_total", "Duplicates discarded", &self.repeated),
            ("connections_total", "Connections made", &self.connections),
            ("early_data_total", "Connections made with 0-RTT", &self.early),
            ("migrations_total", "Changes of address", &self.migrations),
        ] {
            let family = to.family(Kind::Counter, &format!("gateway_{name}"), help);
            self.add(family, &[], counter.load(Ordering::Relaxed));
        }
    }

    fn report_outbox(&self, to: &mut Metrics, now_ms: u64) {
        let totals = *self.totals.lock();
        let age_ms = totals.oldest_ms.map_or(0, |oldest| now_ms.saturating_sub(oldest));
        for (name, help, value) in [
            ("queued", "Messages in the outbox", totals.messages as f64),
            ("queued_bytes", "Their size in the outbox limit", totals.bytes as f64),
            ("oldest_seconds", "Age of the oldest message in the outbox", age_ms as f64 / 1000.0),
            (
                "outbox_failing",
                "1 while the outbox or the dead-letter file cannot be written",
                self.failure.lock().is_some().to_f64(),
            ),
        ] {
            self.add(to.family(Kind::Gauge, &format!("gateway_{name}"), help), &[], value);
        }
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let help = "Messages dropped: outbox full, too old, past their expiry, refused upstream, refused \
                    here (from upstream), in a loop, or matched by no rule of this configuration";
        let family = to.family(Kind::Counter, "gateway_dropped_total", help);
        for (reason, count) in [
            ("full", totals.dropped.full),
            ("age", totals.dropped.age),
            ("expired", totals.dropped.expired),
            ("refused", of(&self.refused)),
            ("refused_here", of(&self.refused_here)),
            ("circle", of(&self.circles)),
            ("no_rule", of(&self.unmatched)),
        ] {
            self.add(family, &[("reason", reason)], count);
        }
    }

    fn report_refusals(&self, to: &mut Metrics) {
        let refusals = self.refusals.lock().clone();
        let help = "What is refused for now, kept and tried again: topics, filters or the connection \
                    upstream, messages from upstream here";
        let family = to.family(Kind::Gauge, "gateway_refused", help);
        for ((what, reason), count) in refusals.counts() {
            self.add(family, &[("what", what), ("reason", &reason)], count);
        }
        let help = "Unix time since which the oldest of these refusals has lasted; 0: none";
        let since_s = refusals.since_ms().map_or(0, wall_ms) as f64 / 1000.0;
        self.add(to.family(Kind::Gauge, "gateway_refused_since_seconds", help), &[], since_s);
    }

    fn report_connection(&self, to: &mut Metrics) {
        let transport = *self.transport.lock();
        let help = "1 for the transport of the connection";
        let family = to.family(Kind::Gauge, "gateway_connected", help);
        for kind in [Transport::Quic, Transport::Tls, Transport::Tcp] {
            self.add(family, &[("transport", kind.scheme())], transport == Some(kind));
        }
        let Some(path) = *self.path.lock() else { return };
        let help = "Bytes of UDP payload of the QUIC connection now";
        let family = to.family(Kind::Gauge, "gateway_quic_bytes", help);
        self.add(family, &[("direction", "sent")], path.sent_bytes);
        self.add(family, &[("direction", "received")], path.received_bytes);
        let help = "Smoothed round-trip time of the QUIC connection";
        let rtt_s = path.rtt.unwrap_or_default().as_secs_f64();
        self.add(to.family(Kind::Gauge, "gateway_quic_rtt_seconds", help), &[], rtt_s);
    }
}
