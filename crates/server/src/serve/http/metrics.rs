//! The metrics of the core: broker, storage, listeners, machine. Parts report theirs themselves (`part::Part::metrics`).
//!
//! Every name contains its unit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fulmar_broker::{Account, Broker, WaitCause};
use fulmar_store::{COMMIT_BUCKETS_US, Stats};
use fulmar_text::metrics::{Distribution, Kind, Metrics, Number};
use fulmar_transport::proxy_protocol::Proxies;
use fulmar_transport::tickets::TicketCounts;

#[cfg(feature = "cluster")]
use fulmar_part::cluster_status::ClusterStatus;
use fulmar_part::disk::{AccountUse, DiskUse};
use fulmar_part::{Core, Source};

/// Reports the core's metrics.
pub(in crate::serve) fn core(
    core: &Core,
    web: &Arc<fulmar_http::Metrics>,
    proxies: &Arc<Proxies>,
) -> Source {
    let (web, proxies) = (Arc::clone(web), Arc::clone(proxies));
    // Weak, because what reports is kept by what the server's end waits for.
    let (broker, store) = (Arc::downgrade(&core.broker), core.store.as_ref().map(Arc::downgrade));
    let tickets = Arc::clone(&core.certificates.tickets);
    let crl_next_update = Arc::clone(&core.crl_next_update);
    let (answers, disk, cluster) = (core.answers.clone(), core.disk.clone(), core.cluster.clone());
    let machine = core.certificates.machine(&core.data);
    Arc::new(move |to| {
        report_build(to);
        if let Some(broker) = broker.upgrade() {
            report_broker(&broker, to);
        }
        let totals = answers.totals();
        report_memory(to, "answers", totals.used, totals.limit);
        let help = "Answers refused because earlier ones to the account have not been taken";
        to.counter("answers_refused_total", help, totals.refused);
        report_disk(&disk, to);
        report_tickets(&tickets.counts(), to);
        to.gauge(
            "crl_next_update_seconds",
            "When the first of [tls] crl_files expires, in seconds since the Unix epoch; 0 without any",
            crl_next_update.load(Ordering::Relaxed),
        );
        web.report(to);
        to.counter(
            "proxy_headers_refused_total",
            "Connections refused at listeners behind proxies: no valid header, or not from [proxy_protocol] from",
            proxies.refused_total(),
        );
        if let Some(store) = store.as_ref().and_then(std::sync::Weak::upgrade) {
            report_store(&store.stats(), to);
        }
        if let Some(cluster) = &cluster {
            cluster.report(to);
        }
        machine.report(to);
        report_log(to);
    })
}

/// The metrics of a node that stands by.
#[cfg(feature = "cluster")]
pub(super) fn standby(cluster: &ClusterStatus) -> Metrics {
    let mut metrics = Metrics::default();
    report_build(&mut metrics);
    cluster.report(&mut metrics);
    report_log(&mut metrics);
    metrics
}

fn report_build(to: &mut Metrics) {
    let help = "Version of the running program; always 1";
    let version = env!("CARGO_PKG_VERSION");
    to.family(Kind::Gauge, "build_info", help).add(&[("version", version)], 1_u8);
}

fn report_log(to: &mut Metrics) {
    let help = "Log lines dropped because standard error did not accept them";
    to.counter("log_lines_dropped_total", help, crate::logging::dropped_lines());
}

fn report_broker(broker: &Broker, to: &mut Metrics) {
    let (retained, retained_bytes) = broker.retained_totals();
    to.gauge("sessions", "Sessions, connected or not", broker.sessions());
    to.gauge("subscriptions", "Subscriptions of all sessions", broker.subscriptions());
    to.gauge("retained_messages", "Retained messages", retained);
    to.gauge("retained_bytes", "Bytes of retained messages", retained_bytes);
    for account in Account::ALL {
        let (used, limit) = broker.memory_totals(account);
        report_memory(to, account.name(), used, limit);
    }
    to.gauge("storage_backlog", "Operations not yet durable", broker.storage().backlog());
    let help = "Connections of which nothing is read now, by cause";
    for cause in WaitCause::ALL {
        let family = to.family(Kind::Gauge, "connections_waiting", help);
        family.add(&[("cause", cause.name())], broker.connections_waiting(cause));
    }
    let failing = broker.storage_problem().is_some();
    to.gauge("storage_failing", "1 while the disk cannot be written", failing);
    broker.metrics().report(to);
}

fn report_memory(to: &mut Metrics, account: &str, used: impl Number, limit: impl Number) {
    let help = "Bytes that clients make the broker keep";
    to.family(Kind::Gauge, "memory_used_bytes", help).add(&[("account", account)], used);
    let help = "Their part of [limits] memory";
    to.family(Kind::Gauge, "memory_limit_bytes", help).add(&[("account", account)], limit);
}

fn report_disk(disk: &DiskUse, to: &mut Metrics) {
    for AccountUse { account, used, limit } in disk.accounts() {
        let help = "Bytes in the data folder; photos are part of the platform's";
        to.family(Kind::Gauge, "disk_used_bytes", help).add(&[("account", account)], used);
        let help = "Their part of [limits] disk, where they have one";
        let limits = to.family(Kind::Gauge, "disk_limit_bytes", help);
        if let Some(limit) = limit {
            limits.add(&[("account", account)], limit);
        }
    }
}

fn report_store(stats: &Stats, to: &mut Metrics) {
    for (name, help, value) in [
        ("batches", "Batches made durable", stats.batches),
        ("ops", "Operations made durable", stats.ops),
        ("ops_cancelled", "Operations that cost no disk work", stats.cancelled_ops),
        ("commits_failed", "Commits that failed", stats.failed_commits),
        (
            "checkpoints",
            "Checkpoints: copies of the write-ahead log into the database",
            stats.checkpoints,
        ),
    ] {
        to.counter(&format!("storage_{name}_total"), help, value);
    }
    to.gauge("storage_wal_pages", "Pages in the write-ahead log", stats.wal_pages);
    let mut below = 0;
    let buckets = COMMIT_BUCKETS_US.iter().zip(&stats.commit_histogram).map(|(bound, count)| {
        below += count;
        (seconds(*bound), below)
    });
    let buckets = buckets.collect();
    let commits = Distribution { buckets, count: stats.commits, sum: seconds(stats.commit_us_sum) };
    to.histogram("storage_commit_seconds", "Duration of commits", commits);
}

fn report_tickets(counts: &TicketCounts, to: &mut Metrics) {
    for (name, help, value) in [
        ("issued", "TLS tickets given to QUIC clients", counts.issued),
        ("taken", "QUIC sessions resumed with a ticket", counts.taken),
        ("missed", "Tickets used before or unknown", counts.missed),
        ("expired", "Tickets removed for their age", counts.expired),
        ("evicted", "Tickets removed to make room", counts.evicted),
        ("failed", "Tickets lost to a failing disk", counts.failed),
    ] {
        to.counter(&format!("tls_tickets_{name}_total"), help, value);
    }
    to.gauge("tls_tickets", "Valid TLS tickets", counts.held);
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
        let mut metrics = Metrics::default();
        report_store(&stats, &mut metrics);
        let page = metrics.prometheus();
        for line in [
            "fulmar_storage_commit_seconds_bucket{le=\"0.00025\"} 2",
            "fulmar_storage_commit_seconds_bucket{le=\"0.001\"} 3",
            "fulmar_storage_commit_seconds_bucket{le=\"+Inf\"} 3",
            "fulmar_storage_commit_seconds_sum 0.003",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
        }
    }
}
