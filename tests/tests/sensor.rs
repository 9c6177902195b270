//! `fulmar sensor` as a user types it: lines, the kernel's sensors and simulated homes into a broker.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use fulmar_tests::{TestBroker, fulmar, run};
use serde_json::{Value, json};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn url(broker: &TestBroker) -> String {
    format!("mqtt://localhost:{}", broker.address("mqtt").port())
}

/// Makes a session that keeps what is published below `sensor`.
fn listen(broker: &TestBroker) {
    let output = run(fulmar().args([
        "sub",
        &url(broker),
        "-E",
        "-c",
        "-i",
        "s",
        "-q",
        "2",
        "-t",
        "sensor/#",
    ]));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// What that session was kept, as topic and payload.
fn heard(broker: &TestBroker, count: usize) -> Vec<(String, Value)> {
    let mut command = fulmar();
    command.args([
        "sub",
        &url(broker),
        "-c",
        "-i",
        "s",
        "-q",
        "2",
        "-t",
        "sensor/#",
        "-F",
        "%t %p",
    ]);
    let output = run(command.args(["-C", &count.to_string()]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let split = |line: &str| {
        let (topic, payload) = line.split_once(' ').unwrap();
        (topic.to_owned(), serde_json::from_str(payload).unwrap())
    };
    text(&output.stdout).lines().map(split).collect()
}

fn with_input(command: &mut Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn lines_become_messages_and_wrong_ones_are_told() {
    let broker = TestBroker::start();
    listen(&broker);
    let lines = "# from the attic\n\nattic radon 85 2026-11-21T17:30:00Z\nattic radon\n\
                 {\"device\":\"attic\",\"temperature\":21.5,\"at\":\"2026-11-21T17:30:00.5Z\"}\nattic co2 640";
    let output = with_input(fulmar().args(["sensor", "read", &url(&broker)]), lines);
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(told.contains("line 4: expected DEVICE QUANTITY VALUE [TIME]"), "{told}");
    assert!(told.contains("1 of 6 lines were not readings"), "{told}");
    let heard = heard(&broker, 3);
    let radon = json!({ "value": 85.0, "unit": "Bq/m³", "at": "2026-11-21T17:30:00.000Z" });
    assert_eq!(heard[0], ("sensor/attic/radon".to_owned(), radon));
    let warm = json!({ "value": 21.5, "unit": "°C", "at": "2026-11-21T17:30:00.500Z" });
    assert_eq!(heard[1], ("sensor/attic/temperature".to_owned(), warm));
    assert_eq!(heard[2].0, "sensor/attic/co2");
    assert!(heard[2].1["at"].as_str().unwrap().starts_with("20"), "the time of its arrival");
}

/// What a DHT11 and a faulty sensor look like to programs.
fn kernel(folder: &Path) {
    for (number, files) in [
        (
            0,
            &[
                ("name", "dht11@0\n"),
                ("in_temp_input", "21000\n"),
                ("in_humidityrelative_input", "45000\n"),
            ][..],
        ),
        (
            1,
            &[("name", "bmp280\n"), ("in_pressure_input", "101.325\n"), ("in_temp_input", "\n")][..],
        ),
    ] {
        let device = folder.join(format!("iio:device{number}"));
        fs::create_dir(&device).unwrap();
        for (name, text) in files {
            fs::write(device.join(name), text).unwrap();
        }
    }
}

#[test]
fn sensors_of_the_kernel_are_published() {
    let broker = TestBroker::start();
    listen(&broker);
    let folder = tempfile::tempdir().unwrap();
    kernel(folder.path());
    let iio = format!("--iio={}", folder.path().display());
    let read =
        ["sensor", "read", &url(&broker), &iio, "--name", "attic", "--count", "2", "--every", "1"];
    let output = run(fulmar().args(read));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("in_temp_input contains no number"),
        "{}",
        text(&output.stderr)
    );
    let values: Vec<(String, f64)> = heard(&broker, 6)
        .into_iter()
        .map(|(topic, payload)| (topic, payload["value"].as_f64().unwrap()))
        .collect();
    let once = [
        ("sensor/attic-dht11-0/temperature".to_owned(), 21.0),
        ("sensor/attic-dht11-0/humidity".to_owned(), 45.0),
        ("sensor/attic-bmp280/pressure".to_owned(), 1013.25),
    ];
    assert_eq!(values, [once.clone(), once].concat());
}

#[test]
fn a_machine_without_sensors_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let iio = format!("--iio={}", folder.path().display());
    let output = run(fulmar().args(["sensor", "read", "mqtt://localhost:1", &iio]));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("shows no sensor"), "{}", text(&output.stderr));
}

const HOUR: [&str; 8] =
    ["--from", "2026-01-05T18:00:00Z", "--days", "0.05", "--pace", "0", "--every", "600"];

#[test]
fn simulated_homes_are_the_same_printed_piped_and_published() {
    let printed = run(fulmar().args(["sensor", "simulate", "--homes", "4"]).args(HOUR));
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    let printed = text(&printed.stdout);
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines.len() > 100, "{}", lines.len());

    let broker = TestBroker::start();
    listen(&broker);
    let record = broker.data().join("record.jsonl");
    let mut simulate = fulmar();
    simulate.args(["sensor", "simulate", &url(&broker), "--homes", "4", "--record"]).arg(&record);
    let output = run(simulate.args(HOUR));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let published = heard(&broker, lines.len());
    let piped = with_input(fulmar().args(["sensor", "read", &url(&broker)]), &printed);
    assert!(piped.status.success(), "{}", text(&piped.stderr));
    assert_eq!(heard(&broker, lines.len()), published);

    let records = fs::read_to_string(record).unwrap();
    let records: Vec<Value> =
        records.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), lines.len());
    for ((line, (topic, payload)), record) in lines.iter().zip(&published).zip(&records) {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(topic, &format!("sensor/{}/{}", words[0], words[1]));
        assert_eq!(payload["value"], words[2].parse::<f64>().unwrap());
        assert_eq!(payload["at"], words[3]);
        assert_eq!(record["device"], words[0]);
        assert_eq!(record["at"], words[3]);
    }
    let mut devices = BTreeMap::new();
    for (topic, _) in &published {
        *devices.entry(topic.clone()).or_insert(0) += 1;
    }
    assert_eq!(devices.len(), 4 * 6);
}

#[test]
fn what_would_never_end_is_refused() {
    let output = run(fulmar().args(["sensor", "simulate", "--pace", "0"]));
    assert_eq!(output.status.code(), Some(2));
}
