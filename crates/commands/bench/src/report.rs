//! What a run found, for people and for scripts.
//!
//! Field names carry their units; what could not be measured (no `--pid`) is left out, not zero.

use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::plan::{Plan, Scenario};

/// Results of the connecting phase.
pub(super) struct Connections {
    pub(super) count: usize,
    pub(super) seconds: f64,
    pub(super) cpu_s: f64,
    pub(super) rss_before_kib: Option<u64>,
    pub(super) rss_after_kib: Option<u64>,
}

/// From the intended send time to arrival, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Latency {
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    max_ms: f64,
}

impl Latency {
    pub(super) fn from_histogram(histogram: &Histogram<u64>) -> Latency {
        let ms = |quantile| histogram.value_at_quantile(quantile) as f64 / 1_000.0;
        Latency { p50_ms: ms(0.5), p99_ms: ms(0.99), p999_ms: ms(0.999), max_ms: ms(1.0) }
    }
}

/// The JSON object of `--json`.
#[derive(Serialize)]
pub(super) struct Report {
    scenario: &'static str,
    qos: u8,
    payload_bytes: usize,
    connections: usize,
    streams: usize,
    connect_seconds: f64,
    connects_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    connect_broker_cpu_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kib_per_connection: Option<f64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    traffic: Option<Traffic>,
    /// Ended by a signal before its time.
    interrupted: bool,
}

/// Results of the measured phase.
#[derive(Serialize)]
pub(super) struct Traffic {
    pub(super) seconds: f64,
    pub(super) published: u64,
    pub(super) delivered: u64,
    pub(super) lost: u64,
    pub(super) delivered_per_s: f64,
    #[serde(flatten)]
    pub(super) latency: Latency,
    pub(super) generator_cpu_s: f64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) broker: Option<BrokerUse>,
}

/// Resources that the broker used in that phase.
#[derive(Serialize)]
pub(super) struct BrokerUse {
    broker_cpu_s: f64,
    delivered_per_broker_cpu_s: f64,
    broker_rss_kib: u64,
    /// The generator used more CPU than the broker: the broker may not have been the limit.
    generator_heavier: bool,
}

impl Report {
    pub(super) fn new(
        plan: &Plan,
        connections: Connections,
        traffic: Option<Traffic>,
        interrupted: bool,
    ) -> Report {
        let grown = match (connections.rss_before_kib, connections.rss_after_kib) {
            (Some(before), Some(after)) => Some(after as f64 - before as f64),
            _ => None,
        };
        Report {
            scenario: match plan.scenario {
                Scenario::Conns { .. } => "conns",
                Scenario::Pairs { .. } => "pairs",
                Scenario::FanIn { .. } => "fan-in",
                Scenario::FanOut { .. } => "fan-out",
            },
            qos: plan.qos as u8,
            payload_bytes: plan.payload_bytes,
            connections: connections.count,
            streams: plan.streams,
            connect_seconds: connections.seconds,
            connects_per_s: connections.count as f64 / connections.seconds,
            connect_broker_cpu_s: connections.rss_before_kib.map(|_| connections.cpu_s),
            kib_per_connection: grown.map(|kib| kib / connections.count as f64),
            traffic,
            interrupted,
        }
    }
}

impl BrokerUse {
    pub(super) fn new(cpu_s: f64, rss_kib: u64, delivered: u64, generator_cpu_s: f64) -> BrokerUse {
        BrokerUse {
            broker_cpu_s: cpu_s,
            // A tick is the least that can be seen; no division by zero.
            delivered_per_broker_cpu_s: delivered as f64 / cpu_s.max(0.01),
            broker_rss_kib: rss_kib,
            generator_heavier: generator_cpu_s > cpu_s,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scenario = self.scenario;
        let mut row = |name: &str, value: String| writeln!(f, "{name:<28} {value}");
        row("scenario", format!("{scenario}, QoS {}, {} B", self.qos, self.payload_bytes))?;
        let connected = format!(
            "{} in {:.2} s ({:.0}/s)",
            self.connections, self.connect_seconds, self.connects_per_s
        );
        row("connections", connected)?;
        if let Some(kib) = self.kib_per_connection {
            row("memory per connection", format!("{kib:.1} KiB"))?;
        }
        if let Some(traffic) = &self.traffic {
            let latency = &traffic.latency;
            row("delivered", format!("{} in {:.1} s", traffic.delivered, traffic.seconds))?;
            row("delivered per second", format!("{:.0}", traffic.delivered_per_s))?;
            row(
                "latency p50 / p99 / p99.9",
                format!(
                    "{:.2} / {:.2} / {:.2} ms",
                    latency.p50_ms, latency.p99_ms, latency.p999_ms
                ),
            )?;
            if traffic.lost > 0 {
                row("never delivered", traffic.lost.to_string())?;
            }
            row("generator CPU", format!("{:.2} s", traffic.generator_cpu_s))?;
            if let Some(broker) = &traffic.broker {
                row("broker CPU", format!("{:.2} s", broker.broker_cpu_s))?;
                let value = format!("{:.0}", broker.delivered_per_broker_cpu_s);
                row("delivered per broker CPU-s", value)?;
                row("broker memory", format!("{:.1} MiB", broker.broker_rss_kib as f64 / 1_024.0))?;
                if broker.generator_heavier {
                    row("note", "the generator used more CPU than the broker".to_owned())?;
                }
            }
        }
        if self.interrupted {
            row("note", "interrupted early".to_owned())?;
        }
        Ok(())
    }
}
