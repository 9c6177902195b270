//! The server's metrics as OTLP metrics in JSON: the same names, values and labels as at `/metrics`, so that both show the
//! same.

use fulmar_text::metrics::{Distribution, Family, Kind, Labels, Metrics, Value as Sample};
use serde_json::{Value, json};

use super::span::{Attribute, pair, scope};

/// Sums since the start of the program.
const CUMULATIVE: u8 = 2;

/// The body of a request to `/v1/metrics`, with metrics as of `now_ns` of a program that started at `started_ns`.
pub(super) fn request(resource: &Value, metrics: &Metrics, started_ns: u64, now_ns: u64) -> Value {
    let times = Times { started_ns, now_ns };
    let metrics: Vec<Value> =
        metrics.families().iter().map(|family| times.family(family)).collect();
    json!({ "resourceMetrics": [{
        "resource": resource,
        "scopeMetrics": [{ "scope": scope(), "metrics": metrics }],
    }] })
}

struct Times {
    started_ns: u64,
    now_ns: u64,
}

impl Times {
    fn family(&self, family: &Family) -> Value {
        let points = family.samples.iter().map(|(labels, value)| self.point(labels, value));
        let points: Vec<Value> = points.collect();
        let (kind, data) = match family.kind {
            Kind::Counter => (
                "sum",
                json!({
                    "aggregationTemporality": CUMULATIVE,
                    "isMonotonic": true,
                    "dataPoints": points,
                }),
            ),
            Kind::Histogram => {
                ("histogram", json!({ "aggregationTemporality": CUMULATIVE, "dataPoints": points }))
            }
            Kind::Gauge => ("gauge", json!({ "dataPoints": points })),
        };
        json!({
            "name": family.name, "description": family.help, "unit": unit(&family.name), kind: data,
        })
    }

    fn point(&self, labels: &Labels, value: &Sample) -> Value {
        let attributes =
            labels.iter().map(|(name, value)| pair(name, &Attribute::Text(value.clone())));
        let mut point = json!({
            "attributes": attributes.collect::<Vec<_>>(),
            "startTimeUnixNano": self.started_ns.to_string(),
            "timeUnixNano": self.now_ns.to_string(),
        });
        match value {
            Sample::Number(value) => point["asDouble"] = json!(value),
            Sample::Histogram(values) => add_histogram(&mut point, values),
        }
        point
    }
}

/// In the notation of UCUM.
fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    match name.rsplit('_').next() {
        Some("bytes") => "By",
        Some("seconds") => "s",
        _ => "",
    }
}

/// Buckets here are cumulative, OTLP's are not. Counts are text in OTLP's JSON.
fn add_histogram(point: &mut Value, values: &Distribution) {
    let (mut bounds, mut counts, mut below) = (Vec::new(), Vec::new(), 0);
    for (bound, up_to) in values.buckets.iter().copied().chain([(f64::INFINITY, values.count)]) {
        if bound.is_finite() {
            bounds.push(bound);
        }
        counts.push(up_to.saturating_sub(below).to_string());
        below = up_to;
    }
    (point["explicitBounds"], point["bucketCounts"]) = (json!(bounds), json!(counts));
    (point["sum"], point["count"]) = (json!(values.sum), json!(values.count.to_string()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_those_of_the_page() {
        let mut metrics = Metrics::default();
        metrics
            .family(Kind::Gauge, "connections", "Connections open now")
            .add(&[("transport", "quic")], 2_u8);
        let labels = [("what", "a,\"b\"=c"), ("reason", "denied")];
        metrics.family(Kind::Gauge, "refused", "Refusals").add(&labels, 1_u8);
        metrics.counter("quic_sent_bytes_total", "Bytes", 17_u8);
        let values = Distribution { buckets: vec![(0.25, 2), (1.0, 3)], count: 5, sum: 4.5 };
        metrics.histogram("storage_commit_seconds", "Duration", values);
        let body = request(&json!({}), &metrics, 1, 2);
        let metrics = &body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
        assert_eq!(metrics.as_array().map(Vec::len), Some(4));
        let gauge = &metrics[0]["gauge"]["dataPoints"][0];
        assert_eq!(
            (&metrics[0]["name"], &gauge["asDouble"]),
            (&json!("fulmar_connections"), &json!(2.0))
        );
        assert_eq!(gauge["attributes"][0]["value"]["stringValue"], "quic");
        let refused = &metrics[1]["gauge"]["dataPoints"][0]["attributes"];
        assert_eq!(refused[0]["value"]["stringValue"], "a,\"b\"=c");
        assert_eq!(refused[1]["key"], "reason");
        let sum = &metrics[2]["sum"];
        assert_eq!((&sum["isMonotonic"], &metrics[2]["unit"]), (&json!(true), &json!("By")));
        assert_eq!(sum["dataPoints"][0]["startTimeUnixNano"], "1");
        let histogram = &metrics[3]["histogram"]["dataPoints"][0];
        assert_eq!(histogram["bucketCounts"], json!(["2", "1", "2"]));
        assert_eq!(histogram["explicitBounds"], json!([0.25, 1.0]));
        assert_eq!((&histogram["count"], &histogram["sum"]), (&json!("5"), &json!(4.5)));
    }
}
