//! `fulmar lab transfer` against `fulmar serve`: every version of HTTP, each kind of connection, and the
//! objects they ask for, which are not there unless the configuration says so.
#![allow(clippy::unwrap_used)]

use fulmar_tests::{TestBroker, fulmar, run};
use serde_json::Value;

const OBJECTS: &str = "[lab]\nobjects = true\n";

/// The events of a run that went well.
fn transfer(broker: &TestBroker, path: &str, args: &[&str]) -> Vec<Value> {
    let url = format!("https://{}{path}", broker.address("https"));
    let mut command = fulmar();
    command.args(["lab", "transfer", &url, "--rest-ms=0", "--cafile"]).arg(broker.ca_file());
    let output = run(command.args(args));
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn transfers(events: &[Value]) -> Vec<&Value> {
    events.iter().filter(|event| event["event"] == "transfer").collect()
}

#[test]
fn objects_are_asked_for_over_every_version_and_kind_of_connection() {
    let broker = TestBroker::builder().config(OBJECTS).start();
    for (version, protocol) in [("1.1", "http/1.1"), ("2", "h2"), ("3", "h3")] {
        for connection in ["new", "returning", "kept"] {
            let args = ["--http", version, "--connection", connection, "--count=2"];
            let events = transfer(&broker, "/lab/objects/70000", &args);
            let found = transfers(&events);
            assert_eq!(found.len(), 2, "{events:?}");
            for event in found {
                assert_eq!(event["bytes"], 70_000);
                assert_eq!(event["protocol"], protocol);
                assert!(event["ms"].as_f64().unwrap() >= event["answer_ms"].as_f64().unwrap());
                assert_eq!(event["connect_ms"].is_null(), connection == "kept");
                let returned = connection == "returning";
                assert_eq!(event["early_data"], version == "3" && returned, "{event}");
                if version != "3" {
                    assert_eq!(event["resumed"], returned, "{event}");
                }
            }
        }
    }
}

#[test]
fn bodies_are_sent_and_early_where_nothing_changes_when_they_are_repeated() {
    let broker = TestBroker::builder().config(OBJECTS).start();
    for version in ["1.1", "2", "3"] {
        let args = ["--http", version, "--connection=returning", "--post=100000"];
        let events = transfer(&broker, "/lab/objects", &args);
        let event = transfers(&events)[0];
        let early = Value::from(version == "3");
        assert_eq!((&event["sent"], &event["early_data"]), (&100_000.into(), &early));
        assert_eq!(event["bytes"], r#"{"bytes":100000}"#.len());
    }
}

#[test]
fn a_response_waits_as_long_as_the_query_says() {
    let broker = TestBroker::builder().config(OBJECTS).start();
    for (path, args) in [
        ("/lab/objects/1000?delay_ms=300", &["--http=2"][..]),
        ("/lab/objects?delay_ms=300", &["--http=3", "--post=1000"]),
    ] {
        let events = transfer(&broker, path, args);
        let took = transfers(&events)[0]["answer_ms"].as_f64().unwrap();
        assert!(took >= 300.0, "{path}: {took} ms");
    }
}

#[test]
fn there_are_no_objects_by_default() {
    let broker = TestBroker::start();
    let url = format!("https://{}/lab/objects/1", broker.address("https"));
    let output = run(fulmar().args(["lab", "transfer", &url, "--insecure"]));
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("404"), "{said}");
}

/// The events of messages over a listener of the broker's.
fn messages(broker: &TestBroker, scheme: &str, listener: &str, args: &[&str]) -> Vec<Value> {
    let url = format!("{scheme}://{}", broker.address(listener));
    let mut command = fulmar();
    command.args(["lab", "message", &url, "--rest-ms=100", "--cafile"]).arg(broker.ca_file());
    let output = run(command.args(args));
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn messages_are_timed_over_each_transport_and_kind_of_connection() {
    let broker = TestBroker::builder().start();
    for (scheme, listener) in [("mqtt", "mqtt"), ("mqtts", "mqtts"), ("quic", "quic")] {
        for connection in ["new", "returning", "kept"] {
            let args = ["--connection", connection, "--count=3"];
            let events = messages(&broker, scheme, listener, &args);
            let found = transfers(&events);
            assert_eq!(found.len(), 3, "{scheme} {connection}: {events:?}");
            for event in found {
                assert!(event["ms"].as_f64().unwrap() > 0.0);
                let early = scheme == "quic" && connection == "returning";
                assert_eq!(event["early_data"], early, "{scheme} {connection}: {event}");
            }
            assert_eq!(events.last().unwrap()["failed"], 0);
        }
    }
}

#[test]
fn messages_are_timed_over_coap_and_dtls() {
    let broker = TestBroker::builder().start();
    for scheme in ["coap", "coaps"] {
        let events = messages(&broker, scheme, scheme, &["--count=3"]);
        assert_eq!(transfers(&events).len(), 3, "{scheme}: {events:?}");
    }
}

#[test]
fn a_message_that_nobody_takes_has_failed_and_is_counted() {
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let url = format!("quic://{}", nobody.local_addr().unwrap());
    let mut command = fulmar();
    command.args(["lab", "message", &url, "--connection=new", "--patience=1", "--insecure"]);
    let output = run(&mut command);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains(r#""event":"failed""#) && text.contains(r#""failed_pct":100.0"#),
        "{text}"
    );
}
