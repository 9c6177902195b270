//! The page of `/metrics` as OTLP metrics in JSON: the same names, values and labels, so that both ways show the same.
//!
//! The page is this program's own (`http/metrics.rs`): in each family, `# HELP` and `# TYPE` are before the samples.

use serde_json::{Value, json};

use super::span::{Attribute, pair, scope};

/// Sums since the start of the program.
const CUMULATIVE: u8 = 2;

/// A family of the page.
#[derive(Default)]
struct Family<'a> {
    name: &'a str,
    help: &'a str,
    kind: &'a str,
    samples: Vec<Sample<'a>>,
}

struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, &'a str)>,
    value: f64,
}

/// The body of a request to `/v1/metrics`, with the page as of `now_ns` of a program that started at `started_ns`.
pub(super) fn request(resource: &Value, page: &str, started_ns: u64, now_ns: u64) -> Value {
    let metrics: Vec<Value> =
        families(page).iter().map(|family| family.json(started_ns, now_ns)).collect();
    json!({ "resourceMetrics": [{
        "resource": resource,
        "scopeMetrics": [{ "scope": scope(), "metrics": metrics }],
    }] })
}

fn families(page: &str) -> Vec<Family<'_>> {
    let mut families: Vec<Family<'_>> = Vec::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            families.push(Family { name, help, ..Family::default() });
        } else if let (Some(rest), Some(family)) =
            (line.strip_prefix("# TYPE "), families.last_mut())
        {
            family.kind = rest.rsplit(' ').next().unwrap_or_default();
        } else if let (Some(sample), Some(family)) = (sample(line), families.last_mut()) {
            family.samples.push(sample);
        }
    }
    families
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let (series, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let Some((name, labels)) = series.split_once('{') else {
        return Some(Sample { name: series, labels: Vec::new(), value });
    };
    Some(Sample { name, labels: labels_of(labels.strip_suffix('}')?), value })
}

/// Labels such as `a="b",c="d"`; their values contain no quotes that are not escaped.
fn labels_of(mut text: &str) -> Vec<(&str, &str)> {
    let mut labels = Vec::new();
    while let Some((name, rest)) = text.split_once("=\"") {
        let mut escaped = false;
        let end = rest.bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        });
        let Some((value, rest)) = end.and_then(|end| rest.split_at_checked(end)) else { break };
        labels.push((name, value));
        text = rest.trim_start_matches(['"', ',']);
    }
    labels
}

impl Family<'_> {
    fn json(&self, started_ns: u64, now_ns: u64) -> Value {
        let mut metric =
            json!({ "name": self.name, "description": self.help, "unit": self.unit() });
        let points = || {
            let points = self.samples.iter().map(|sample| {
                let mut point = point(&sample.labels, started_ns, now_ns);
                point["asDouble"] = json!(sample.value);
                point
            });
            points.collect::<Vec<_>>()
        };
        let (kind, data) = match self.kind {
            "counter" => (
                "sum",
                json!({
                    "aggregationTemporality": CUMULATIVE,
                    "isMonotonic": true,
                    "dataPoints": points(),
                }),
            ),
            "histogram" => (
                "histogram",
                json!({
                    "aggregationTemporality": CUMULATIVE,
                    "dataPoints": [self.histogram(started_ns, now_ns)],
                }),
            ),
            _ => ("gauge", json!({ "dataPoints": points() })),
        };
        metric[kind] = data;
        metric
    }

    /// In the notation of UCUM.
    fn unit(&self) -> &'static str {
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        match name.rsplit('_').next() {
            Some("bytes") => "By",
            Some("seconds") => "s",
            _ => "",
        }
    }

    /// Prometheus' buckets are cumulative, OTLP's are not.
    fn histogram(&self, started_ns: u64, now_ns: u64) -> Value {
        let mut point = point(&[], started_ns, now_ns);
        let (mut bounds, mut counts, mut below) = (Vec::new(), Vec::new(), 0.0);
        for sample in &self.samples {
            if let [("le", bound)] = sample.labels[..] {
                if let Some(bound) = bound.parse::<f64>().ok().filter(|bound| bound.is_finite()) {
                    bounds.push(bound);
                }
                counts.push(whole(sample.value - below));
                below = sample.value;
            } else if sample.name.ends_with("_sum") {
                point["sum"] = json!(sample.value);
            } else {
                point["count"] = json!(whole(sample.value));
            }
        }
        (point["explicitBounds"], point["bucketCounts"]) = (json!(bounds), json!(counts));
        point
    }
}

fn point(labels: &[(&str, &str)], started_ns: u64, now_ns: u64) -> Value {
    let attributes = labels.iter().map(|(name, value)| {
        let value = value.replace("\\\"", "\"").replace("\\n", "\n").replace("\\\\", "\\");
        pair(name, &Attribute::Text(value))
    });
    json!({
        "attributes": attributes.collect::<Vec<_>>(),
        "startTimeUnixNano": started_ns.to_string(),
        "timeUnixNano": now_ns.to_string(),
    })
}

/// A count, which is text in OTLP's JSON.
fn whole(count: f64) -> String {
    format!("{:.0}", count.max(0.0))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# HELP fulmar_connections Connections open now
# TYPE fulmar_connections gauge
fulmar_connections{transport=\"quic\"} 2
# HELP fulmar_refused What is \"refused\"
# TYPE fulmar_refused gauge
fulmar_refused{what=\"a,\\\"b\\\"=c\",reason=\"denied\"} 1
# HELP fulmar_quic_sent_bytes_total Bytes
# TYPE fulmar_quic_sent_bytes_total counter
fulmar_quic_sent_bytes_total 17
# HELP fulmar_storage_commit_seconds Duration
# TYPE fulmar_storage_commit_seconds histogram
fulmar_storage_commit_seconds_bucket{le=\"0.25\"} 2
fulmar_storage_commit_seconds_bucket{le=\"1\"} 3
fulmar_storage_commit_seconds_bucket{le=\"+Inf\"} 5
fulmar_storage_commit_seconds_sum 4.5
fulmar_storage_commit_seconds_count 5
";

    #[test]
    fn metrics_are_those_of_the_page() {
        let body = request(&json!({}), PAGE, 1, 2);
        let metrics = &body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
        assert_eq!(metrics.as_array().unwrap().len(), 4);
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
