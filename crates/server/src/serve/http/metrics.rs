//! The broker's metrics in Prometheus' text format, version 0.0.4.
//!
//! `fulmar_broker::metrics` has the counters' names and help texts; those of gauges and of the store's counters are
//! here. Every name contains its unit, and begins with `fulmar_`, except those that every program shares
//! (`machine.rs`).

use std::fmt::{Display, Write as _};
use std::sync::atomic::Ordering;

use fulmar_broker::metrics::HistogramTotals;
use fulmar_broker::{Account, TransportKind};
use fulmar_http::Counts;
use fulmar_store::{COMMIT_BUCKETS_US, Stats};
use fulmar_transport::tickets::TicketCounts;

use super::Operated;
use super::disk::AccountUse;
use super::machine::{Machine, Metric};
use crate::serve::auth_http;
use crate::serve::cluster_status::{ClusterStatus, Family};
use crate::serve::coap;
use crate::serve::gateway::GatewayStatus;
use crate::serve::mqttsn;
use crate::serve::otlp;
use crate::serve::platform::{Platform, PlatformCounts};

pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) fn render(state: &Operated) -> String {
    let broker = &*state.broker;
    let mut page = Page::default();
    page.build_info();
    let (retained, retained_bytes) = broker.retained_totals();
    page.one("sessions", "gauge", "Sessions, connected or not", broker.sessions());
    page.one("subscriptions", "gauge", "Subscriptions of all sessions", broker.subscriptions());
    page.one("retained_messages", "gauge", "Retained messages", retained);
    page.one("retained_bytes", "gauge", "Bytes of retained messages", retained_bytes);
    page.head("memory_used_bytes", "gauge", "Bytes that clients make the broker keep");
    for account in Account::ALL {
        let label = format!("{{account=\"{}\"}}", account.name());
        page.sample("memory_used_bytes", &label, broker.memory_totals(account).0);
    }
    let answers = state.answers.totals();
    page.sample("memory_used_bytes", "{account=\"answers\"}", answers.used);
    page.head("memory_limit_bytes", "gauge", "Their part of [limits] memory");
    for account in Account::ALL {
        let label = format!("{{account=\"{}\"}}", account.name());
        page.sample("memory_limit_bytes", &label, broker.memory_totals(account).1);
    }
    page.sample("memory_limit_bytes", "{account=\"answers\"}", answers.limit);
    let help = "Answers refused because earlier ones to the account have not been taken";
    page.one("answers_refused_total", "counter", help, answers.refused);
    page.disk(state);
    page.one("storage_backlog", "gauge", "Operations not yet durable", broker.storage().backlog());
    let failing = u8::from(broker.storage_problem().is_some());
    page.one("storage_failing", "gauge", "1 while the disk cannot be written", failing);
    page.head("connections", "gauge", "Connections open now");
    for kind in TransportKind::ALL {
        let open = broker.metrics().sum(|shard| &shard.connections[kind.index()]);
        page.sample("connections", &format!("{{transport=\"{kind}\"}}"), open);
    }
    page.head("connections_opened_total", "counter", "Connections opened since start");
    for kind in TransportKind::ALL {
        let opened = broker.metrics().sum(|shard| &shard.connections_opened[kind.index()]);
        page.sample("connections_opened_total", &format!("{{transport=\"{kind}\"}}"), opened);
    }
    for (name, kind, help, value) in broker.metrics().totals() {
        let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
        page.one(&name, kind, help, value);
    }
    page.tickets(&state.tickets.counts());
    page.one(
        "crl_next_update_seconds",
        "gauge",
        "When the first of [tls] crl_files expires, in seconds since the Unix epoch; 0 without any",
        state.crl_next_update.load(Ordering::Relaxed),
    );
    page.auth_http(&state.auth_http);
    page.web(&state.web.counts());
    page.one(
        "proxy_headers_refused_total",
        "counter",
        "Connections refused at listeners behind proxies: no valid header, or not from [proxy_protocol] from",
        state.proxies.refused_total(),
    );
    if let Some(gateway) = &state.gateway {
        page.gateway(gateway);
    }
    if let Some(statistics) = &state.coap {
        page.coap(statistics);
    }
    if let Some(statistics) = &state.mqtt_sn {
        page.mqtt_sn(&statistics.lock());
    }
    if let Some(counts) = state.platform.as_ref().map(Platform::counts) {
        page.platform(&counts);
    }
    for histogram in broker.metrics().histograms() {
        let HistogramTotals { name, help, buckets, count, sum } = histogram;
        page.histogram(name, help, buckets, count, sum);
    }
    if let Some(store) = &state.store {
        page.store(&store.stats());
    }
    if let Some(counts) = &state.otlp {
        page.otlp(counts.totals());
    }
    if let Some(cluster) = &state.cluster {
        page.cluster(cluster);
    }
    page.machine(&state.machine);
    page.log();
    page.text
}

/// What a node that stands by has to show.
#[cfg(feature = "cluster")]
pub(super) fn render_standby(cluster: &ClusterStatus) -> String {
    let mut page = Page::default();
    page.build_info();
    page.cluster(cluster);
    page.log();
    page.text
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP fulmar_{name} {help}"));
        self.line(format_args!("# TYPE fulmar_{name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        self.line(format_args!("fulmar_{name}{labels} {value}"));
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.sample(name, "", value);
    }

    /// Counters by name and help.
    fn counters<const N: usize>(&mut self, all: [(&str, &str, u64); N]) {
        for (name, help, value) in all {
            self.one(name, "counter", help, value);
        }
    }

    fn build_info(&mut self) {
        self.head("build_info", "gauge", "Version of the running program; always 1");
        self.sample("build_info", &format!("{{version=\"{}\"}}", env!("CARGO_PKG_VERSION")), 1);
    }

    fn log(&mut self) {
        let help = "Log lines dropped because standard error did not accept them";
        self.one("log_lines_dropped_total", "counter", help, crate::logging::dropped_lines());
    }

    fn cluster(&mut self, cluster: &ClusterStatus) {
        for Family { name, kind, help, labels, value } in cluster.families() {
            let name = format!("cluster_{name}");
            self.head(&name, kind, help);
            self.sample(&name, &labels, value);
        }
    }

    fn otlp(&mut self, totals: otlp::Totals) {
        let help = "Spans that the collector accepted, or that were dropped";
        self.head("otlp_spans_total", "counter", help);
        self.sample("otlp_spans_total", "{outcome=\"sent\"}", totals.spans_sent);
        self.sample("otlp_spans_total", "{outcome=\"dropped\"}", totals.spans_dropped);
        let help = "Requests that the collector did not accept";
        self.one("otlp_requests_failed_total", "counter", help, totals.requests_failed);
    }

    fn machine(&mut self, machine: &Machine) {
        for Metric { name, kind, help, labels, value } in machine.metrics() {
            let Some(value) = value else { continue };
            self.line(format_args!("# HELP {name} {help}"));
            self.line(format_args!("# TYPE {name} {kind}"));
            self.line(format_args!("{name}{labels} {value}"));
        }
    }

    fn disk(&mut self, state: &Operated) {
        let accounts: Vec<AccountUse> = state.disk.accounts().collect();
        self.head(
            "disk_used_bytes",
            "gauge",
            "Bytes in the data folder; photos are part of the platform's",
        );
        for AccountUse { account, used, .. } in &accounts {
            self.sample("disk_used_bytes", &format!("{{account=\"{account}\"}}"), used);
        }
        self.head("disk_limit_bytes", "gauge", "Their part of [limits] disk, where they have one");
        for AccountUse { account, limit, .. } in &accounts {
            let Some(limit) = limit else { continue };
            self.sample("disk_limit_bytes", &format!("{{account=\"{account}\"}}"), limit);
        }
        let help = "Photos refused because the space for them is used up";
        let refused =
            state.platform.as_ref().map_or(0, |platform| platform.counts().photos_refused);
        self.head("disk_refused_total", "counter", help);
        self.sample("disk_refused_total", "{account=\"photos\"}", refused);
    }

    fn platform(&mut self, counts: &PlatformCounts) {
        self.head("measurements_total", "counter", "Measurements of sensors, by outcome");
        for (outcome, value) in [
            ("stored", counts.measurements_stored),
            ("duplicate", counts.measurements_duplicate),
            ("rejected", counts.measurements_rejected),
        ] {
            self.sample("measurements_total", &format!("{{outcome=\"{outcome}\"}}"), value);
        }
        let help = "Messages on sensors' topics that contained no measurement";
        self.one("sensor_messages_malformed_total", "counter", help, counts.messages_malformed);
        let help = "Meters' frames that were none, or could not be decoded or counted";
        self.one("frames_refused_total", "counter", help, counts.frames_refused);
    }

    fn store(&mut self, stats: &Stats) {
        self.counters([
            ("storage_batches_total", "Batches made durable", stats.batches),
            ("storage_ops_total", "Operations made durable", stats.ops),
            (
                "storage_ops_cancelled_total",
                "Operations that cost no disk work",
                stats.cancelled_ops,
            ),
            ("storage_commits_failed_total", "Commits that failed", stats.failed_commits),
            (
                "storage_checkpoints_total",
                "Checkpoints: copies of the write-ahead log into the database",
                stats.checkpoints,
            ),
        ]);
        self.one("storage_wal_pages", "gauge", "Pages in the write-ahead log", stats.wal_pages);
        let mut below = 0;
        let bounds = COMMIT_BUCKETS_US.iter().zip(&stats.commit_histogram).map(|(bound, count)| {
            below += count;
            (seconds(*bound), below)
        });
        let (name, help) = ("storage_commit_seconds", "Duration of commits");
        self.histogram(name, help, bounds, stats.commits, seconds(stats.commit_us_sum));
    }

    /// `buckets` are upper bounds and how many values were at most that.
    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        buckets: impl IntoIterator<Item = (f64, u64)>,
        count: u64,
        sum: f64,
    ) {
        self.head(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for (bound, below) in buckets {
            self.sample(&bucket, &format!("{{le=\"{bound}\"}}"), below);
        }
        self.sample(&bucket, "{le=\"+Inf\"}", count);
        self.sample(&format!("{name}_sum"), "", sum);
        self.sample(&format!("{name}_count"), "", count);
    }

    fn tickets(&mut self, counts: &TicketCounts) {
        self.counters([
            ("tls_tickets_issued_total", "TLS tickets given to QUIC clients", counts.issued),
            ("tls_tickets_taken_total", "QUIC sessions resumed with a ticket", counts.taken),
            ("tls_tickets_missed_total", "Tickets used before or unknown", counts.missed),
            ("tls_tickets_expired_total", "Tickets removed for their age", counts.expired),
            ("tls_tickets_evicted_total", "Tickets removed to make room", counts.evicted),
            ("tls_tickets_failed_total", "Tickets lost to a failing disk", counts.failed),
        ]);
        self.one("tls_tickets", "gauge", "Valid TLS tickets", counts.held);
    }

    fn auth_http(&mut self, counts: &auth_http::Counts) {
        let name = "auth_http_logins_total";
        self.head(name, "counter", "Logins decided by the service of [auth.http], by result");
        for (result, count) in [
            ("allowed", &counts.allowed),
            ("refused", &counts.refused),
            ("failed", &counts.failed),
            ("remembered", &counts.remembered),
        ] {
            self.sample(name, &format!("{{result=\"{result}\"}}"), count.load(Ordering::Relaxed));
        }
    }

    fn web(&mut self, counts: &Counts) {
        self.head("http_requests_total", "counter", "Responses of the HTTP endpoint");
        for (version, classes) in Counts::VERSIONS.iter().zip(&counts.requests) {
            for (class, count) in (1..).zip(classes) {
                let labels = format!("{{version=\"{version}\",status=\"{class}xx\"}}");
                self.sample("http_requests_total", &labels, count);
            }
        }
        self.head("http_connections", "gauge", "Connections to the HTTP endpoint open now");
        self.sample("http_connections", "{transport=\"tcp\"}", counts.connections_tcp);
        self.sample("http_connections", "{transport=\"quic\"}", counts.connections_quic);
        self.counters([
            ("http_early_refused_total", "Requests answered 425 Too Early", counts.early_refused),
            ("http_connections_refused_total", "Connections above the limit", counts.refused),
            (
                "http_connections_shed_total",
                "Connections closed to make room for others",
                counts.shed,
            ),
            (
                "http_bodies_refused_total",
                "Requests refused because too much was being sent at once",
                counts.bodies_refused,
            ),
            (
                "http_origins_refused_total",
                "MQTT connections refused to pages of other origins",
                counts.origins_refused,
            ),
            ("http_handshakes_failed_total", "Handshakes that failed", counts.failed_handshakes),
        ]);
    }

    fn gateway(&mut self, gateway: &GatewayStatus) {
        for metric in gateway.metrics() {
            let name = format!("gateway_{}", metric.name);
            self.head(&name, metric.kind, metric.help);
            for (labels, value) in metric.values {
                self.sample(&name, &labels, value);
            }
        }
    }

    fn coap(&mut self, statistics: &coap::Statistics) {
        self.counters([
            ("coap_malformed_total", "Datagrams that were not CoAP", statistics.malformed()),
            (
                "coap_peers_refused_total",
                "Datagrams of new CoAP peers, ignored because max_peers was reached",
                statistics.peers_refused(),
            ),
        ]);
    }

    fn mqtt_sn(&mut self, statistics: &mqttsn::Statistics) {
        self.one("mqtt_sn_clients", "gauge", "MQTT-SN clients with a session", statistics.clients);
        let server = &statistics.server;
        self.counters([
            ("mqtt_sn_received_total", "Messages MQTT-SN clients published", server.received),
            ("mqtt_sn_sent_total", "Messages sent to MQTT-SN clients", server.sent),
            ("mqtt_sn_repeated_total", "Times a client had not answered in time", server.repeated),
            (
                "mqtt_sn_dropped_total",
                "Messages for MQTT-SN clients dropped for lack of room, or rejected by them",
                server.dropped,
            ),
            (
                "mqtt_sn_overrun_total",
                "QoS 0 messages for which the broker had no room",
                statistics.overrun,
            ),
            ("mqtt_sn_refused_total", "MQTT-SN clients refused a session", server.refused),
            ("mqtt_sn_malformed_total", "Datagrams that were not MQTT-SN", server.malformed),
            (
                "mqtt_sn_ignored_total",
                "Messages received in a state that does not allow them",
                server.ignored,
            ),
        ]);
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_histogram_is_cumulative_and_in_seconds() {
        let mut stats = Stats::default();
        stats.commit_histogram[0] = 2;
        stats.commit_histogram[2] = 1;
        stats.commits = 3;
        stats.commit_us_sum = Duration::from_millis(3).as_micros() as u64;
        let mut page = Page::default();
        page.store(&stats);
        for line in [
            "fulmar_storage_commit_seconds_bucket{le=\"0.00025\"} 2",
            "fulmar_storage_commit_seconds_bucket{le=\"0.001\"} 3",
            "fulmar_storage_commit_seconds_bucket{le=\"+Inf\"} 3",
            "fulmar_storage_commit_seconds_sum 0.003",
        ] {
            assert!(page.text.lines().any(|l| l == line), "{line} is not in\n{}", page.text);
        }
    }
}
