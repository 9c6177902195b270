//! What the operator sees of the gateway: the metrics of all upstream brokers, and whether they accept what they get.

use std::sync::Arc;

use fulmar_part::Upstreams;
use fulmar_text::metrics::Metrics;

use super::metrics::GatewayMetrics;

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

    /// Reports the metrics of all upstream brokers. Those of `[upstreams.NAME]` have the label `upstream`, those of
    /// `[upstream]` do not.
    pub(crate) fn report(&self, to: &mut Metrics, now_ms: u64) {
        self.0.iter().for_each(|one| one.report(to, now_ms));
    }
}

impl Upstreams for GatewayStatus {
    #[cfg(feature = "admin")]
    fn list(&self) -> Vec<fulmar_admin::Upstream> {
        self.0.iter().map(|one| one.upstream()).collect()
    }

    fn health(&self) -> (bool, String) {
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
        let mut metrics = Metrics::default();
        status.report(&mut metrics, 0);
        let page = metrics.prometheus();
        for line in [
            "fulmar_gateway_queued 0\n",
            "fulmar_gateway_queued{upstream=\"cloud\"} 0\n",
            "fulmar_gateway_dropped_total{reason=\"full\"} 0\n",
            "fulmar_gateway_dropped_total{upstream=\"cloud\",reason=\"full\"} 0\n",
        ] {
            assert_eq!(page.matches(line).count(), 1, "{line}{page}");
        }
        let (healthy, text) = status.health();
        assert!(healthy && text == format!("{DOWN}upstream cloud: {DOWN}"), "{text}");
        let alone = GatewayStatus::new(vec![first]);
        assert_eq!(alone.health(), (true, DOWN.to_owned()));
    }
}
