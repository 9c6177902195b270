//! `fulmar lab run` as a person uses it: an experiment with a real broker and real clients over an
//! emulated link, interrupted and gone on with, up to its report. Where namespaces cannot be made
//! the test says so and passes.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Output;

use fulmar_tests::{fulmar, run};
use serde_json::Value;

const EXPERIMENT: &str = r#"
title = "Over a link of 20 ms"
repetitions = 1
timeout_s = 25
cores = 0.5
alone = 0
hosts = ["client", "broker"]

[[links]]
between = ["client", "broker"]
set = { delay = "20ms" }

[matrix]
way = ["tcp", "quic"]

[define.way]
tcp = { url = "mqtt://{addr.broker}:{port.mqtt}" }
quic = { url = "quic://{addr.broker}:{port.quic}" }

[files]
"fulmar.toml" = """
[listeners]
mqtt = ["{addr.broker}:{port.mqtt}"]
quic = ["{addr.broker}:{port.quic}"]
mqtts = []
ws = []
wss = []
http = []
[auth]
allow_anonymous = "always"
[storage]
enabled = false
"""

[roles.broker]
host = "broker"
run = ["{fulmar}", "serve", "--config", "{dir}/fulmar.toml", "--data", "{dir}/data"]
service = true
ready = "ready "

[roles.probe]
host = "client"
run = ["{fulmar}", "lab", "probe", "{url}", "--insecure", "--subscribe=t", "--publish=t", "--count=5"]

[marks]
begin = { role = "probe", line = '"begin"' }
connack = { role = "probe", line = '"connack"' }

[measures.latency]
title = "Latency"
unit = "ms"
from = "lines"
role = "probe"
field = "latency_ms"
take = "min"

[measures.packets]
title = "Packets until CONNACK"
unit = "packets"
from = "packets"
what = "count"
host = "client"
since = "begin"
until = "connack"

[[figures]]
title = "Latency"
as = "bars"
measure = "latency"
x = "way"
"#;

fn lab(folder: &Path, args: &[&str]) -> Output {
    run(fulmar().arg("lab").args(args).current_dir(folder))
}

#[test]
fn an_experiment_goes_from_file_to_report() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("own.toml"), EXPERIMENT).unwrap();
    let output = lab(folder.path(), &["run", "own.toml", "--only", "way=quic", "--no-report"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("namespaces") {
        eprintln!("not tested: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
    let output = lab(folder.path(), &["run", "own.toml"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("1 are there"), "{said}");
    let results = folder.path().join("results/own");
    let samples = std::fs::read_to_string(results.join("samples.jsonl")).unwrap();
    let samples: Vec<Value> =
        samples.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(samples.len(), 2);
    for sample in &samples {
        // Up and down the link, which may be late but is never early.
        assert!(sample["values"]["latency"].as_f64().unwrap() >= 40.0, "{sample}");
        assert!(sample["values"]["packets"].as_f64().unwrap() >= 4.0, "{sample}");
        assert!(sample["lateness"]["max_us"].as_f64().unwrap() > 0.0, "{sample}");
    }
    let page = std::fs::read_to_string(results.join("report.html")).unwrap();
    assert!(page.contains("Over a link of 20 ms") && page.contains("<svg"));
}

#[test]
fn a_mistake_names_its_place_and_is_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let text = EXPERIMENT.replace("delay = \"20ms\"", "dely = \"20ms\"");
    std::fs::write(folder.path().join("own.toml"), text).unwrap();
    let output = lab(folder.path(), &["run", "own.toml"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("own.toml:11:9: dely: ") && said.contains("delay"), "{said}");
}
