//! What the operator sees of the gateway: the metrics of all upstream brokers, and whether they accept what they get.

use std::sync::Arc;

use super::metrics::{GatewayMetrics, Metric};
use super::wall_clock::now_ms;

/// The text of `/health/upstream` while a link is down. A gateway is made for that, so it is healthy.
const DOWN: &str =
    "not connected: messages wait in the outbox; the log says why each attempt failed\n";

/// The state of all upstream brokers.
#[derive(Clone, Debug)]
pub(crate) struct GatewayStatus(Vec<Arc<GatewayMetrics>>);

impl GatewayStatus {
    pub(super) fn new(metrics: Vec<Arc<GatewayMetrics>>) -> GatewayStatus {
        GatewayStatus(metrics)
    }

    /// All metrics, each name once. Values of `[upstreams.NAME]` have the
    /// label `upstream`, those of `[upstream]` do not.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let mut all: Vec<Metric> = Vec::new();
        for one in &self.0 {
            for metric in one.all(now_ms()) {
                match all.iter_mut().find(|known| known.name == metric.name) {
                    Some(known) => known.values.extend(metric.values),
                    None => all.push(metric),
                }
            }
        }
        all
    }

    /// What the administration API shows.
    #[cfg(feature = "admin")]
    pub(crate) fn upstreams(&self) -> Vec<fulmar_admin::Upstream> {
        self.0.iter().map(|one| one.upstream()).collect()
    }

    /// Whether the upstream brokers accept all messages, and text for the operator. A refusal requires the operator; a
    /// link that is down does not.
    pub(crate) fn health(&self) -> (bool, String) {
        let refusals: String = self.0.iter().map(|one| one.refusals()).collect();
        if !refusals.is_empty() {
            return (false, refusals);
        }
        let down = self.0.iter().filter(|one| !one.is_connected());
        let down: String = down
            .map(|one| match one.label() {
                None => DOWN.to_owned(),
                Some(label) => format!("upstream {label}: {DOWN}"),
            })
            .collect();
        (true, if down.is_empty() { "ok\n".to_owned() } else { down })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_several_upstreams_are_told_apart_by_a_label() {
        let [first, cloud] =
            [None, Some("cloud".to_owned())].map(GatewayMetrics::new).map(Arc::new);
        let status = GatewayStatus::new(vec![Arc::clone(&first), cloud]);
        let metrics = status.metrics();
        let values = |name: &str| {
            let found: Vec<&Metric> = metrics.iter().filter(|metric| metric.name == name).collect();
            assert_eq!(found.len(), 1, "{name}");
            found[0].values.iter().map(|(labels, _)| labels.as_str()).collect::<Vec<&str>>()
        };
        assert_eq!(values("queued"), ["", "{upstream=\"cloud\"}"]);
        let dropped = values("dropped_total");
        assert_eq!(dropped[0], "{reason=\"full\"}");
        assert!(dropped.contains(&"{upstream=\"cloud\",reason=\"full\"}"), "{dropped:?}");
        let (healthy, text) = status.health();
        assert!(healthy && text == format!("{DOWN}upstream cloud: {DOWN}"), "{text}");
        let alone = GatewayStatus::new(vec![first]);
        assert_eq!(alone.health(), (true, DOWN.to_owned()));
    }
}
