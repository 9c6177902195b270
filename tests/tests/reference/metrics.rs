//! Metrics: what a broker shows that has everything which counts: a platform, MQTT-SN, and a gateway's link by QUIC.

use std::collections::{BTreeMap, BTreeSet};

use fulmar_tests::{TestBroker, eventually, http_get};

use crate::{check, table};

/// A family, from its `HELP`, `TYPE` and samples.
#[derive(Default)]
struct Family {
    kind: String,
    help: String,
    labels: BTreeMap<String, BTreeSet<String>>,
}

fn families(page: &str) -> Vec<(String, Family)> {
    let mut found: Vec<(String, Family)> = Vec::new();
    for line in page.lines() {
        if let Some((name, help)) =
            line.strip_prefix("# HELP ").and_then(|line| line.split_once(' '))
        {
            found.push((name.to_owned(), Family { help: help.to_owned(), ..Family::default() }));
            continue;
        }
        let (name, family) = found.last_mut().unwrap();
        if let Some(kind) = line.strip_prefix(&format!("# TYPE {name} ")) {
            kind.clone_into(&mut family.kind);
            continue;
        }
        assert!(line.starts_with(&**name), "{line} is not below the words of its own family");
        let Some((_, labels)) = line.split_once('{') else { continue };
        for label in labels.split_once('}').unwrap().0.split("\",") {
            let (label, value) = label.split_once("=\"").unwrap();
            let values = family.labels.entry(label.to_owned()).or_default();
            values.insert(value.trim_end_matches('"').to_owned());
        }
    }
    found
}

fn labels(family: &Family) -> String {
    let labels = family.labels.iter().filter(|(label, _)| *label != "le");
    let shown = labels.map(|(label, values)| match label.as_str() {
        "version" if values.len() == 1 => "`version`".to_owned(),
        _ => {
            let values: Vec<_> = values.iter().map(|value| format!("`{value}`")).collect();
            format!("`{label}`: {}", values.join(", "))
        }
    });
    shown.collect::<Vec<_>>().join("; ")
}

#[test]
fn the_page_of_metrics_is_what_a_broker_shows() {
    let upstream = TestBroker::start();
    let settings = format!(
        "[upstream]\nurl = \"quic://localhost:{}\"\nca_file = \"{}\"\n[[upstream.up]]\nfilter = \"a/#\"\n[platform]\nenabled = true\n\
         [otlp]\nendpoint = \"http://127.0.0.1:9\"\n[sinks.web]\nkind = \"http\"\nurl = \"http://127.0.0.1:9/\"\nfilters = \"a/#\"\n",
        upstream.address("quic").port(),
        upstream.ca_file().display(),
    );
    let broker =
        TestBroker::builder().config(&settings).listen("mqtt_sn", &["127.0.0.1:0"]).start();
    let page = || http_get(broker.address("http"), "/metrics").1;
    eventually("the gateway to measure its link", || page().contains("gateway_quic_rtt_seconds"));
    let families = families(&page());
    assert!(families.len() > 80, "{} families", families.len());
    let mut text = "At `/metrics` of the `http` listener, in Prometheus' text format. Those that begin with \
                    `process_` are those of every program with Prometheus' libraries; those with \
                    `fulmar_gateway_` exist with [`[upstream]`](../gateway.md) and have the label `upstream` with `[upstreams.NAME]`, those with `fulmar_mqtt_sn_` with an \
                    [`mqtt_sn`](../mqtt-sn.md) listener, those with `fulmar_coap_` with a [`coap`](../coap.md) or `coaps` \
                    listener, those with `fulmar_otlp_` with [`[otlp]`](../telemetry.md), those with `fulmar_cluster_`, \
                    which [their own table](../cluster.md#metrics-and-alerts) lists, with `[cluster]`, and `fulmar_gateway_quic_…` only while the link uses QUIC. \
                    `fulmar_gateway_refused` has samples, with the labels `what` and `reason`, only while \
                    [something is refused](../gateway.md#what-the-upstream-broker-refuses). A \
                    histogram `NAME` consists of `NAME_bucket{le=…}`, `NAME_sum` and `NAME_count`. The counters of the \
                    broker are also [topics](topics.md) below `$SYS/broker/counters/`.\n\n"
        .to_owned();
    let rows = families.iter().map(|(name, family)| {
        [format!("`{name}`"), family.kind.clone(), labels(family), family.help.clone()]
    });
    text.push_str(&table(["metric", "type", "labels", "meaning"], rows));
    check("metrics.md", "Metrics", &text);
}
