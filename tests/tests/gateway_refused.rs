//! What a gateway does with what the broker upstream refuses: it keeps what somebody can fix, reports it, and lets
//! everything else go on; it drops only what can never be accepted, where everybody can see it.
#![allow(clippy::unwrap_used)]

use std::process::Stdio;

use fulmar_tests::{Log, PATIENCE, TestBroker, eventually, fulmar, http_get, run};

fn gateway(upstream: &TestBroker, more: &str) -> TestBroker {
    let (quic, mqtts) = (upstream.address("quic").port(), upstream.address("mqtts").port());
    let ca = upstream.ca_file();
    let config = format!(
        r#"
[upstream]
url = "quic://localhost:{quic}"
fallback_port = {mqtts}
ca_file = {ca:?}
name = "gw"
{more}
[[upstream.up]]
filter = "sensor/#"
to_prefix = "site/"
[[upstream.up]]
filter = "alarm/#"
to_prefix = "site/"
[[upstream.down]]
filter = "site/command/#"
from_prefix = "site/"
"#
    );
    TestBroker::builder().config(&config).start()
}

/// Retained; an empty text removes what is retained.
fn retain(broker: &TestBroker, topic: &str, text: &str) {
    let url = format!("mqtt://{}", broker.address("mqtt"));
    let output = run(fulmar().args(["pub", &url, "-q", "1", "--retain", "-t", topic, "-m", text]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn publish(broker: &TestBroker, topic: &str, text: &str) {
    publish_at("1", broker, topic, text);
}

fn publish_at(qos: &str, broker: &TestBroker, topic: &str, text: &str) {
    let url = format!("mqtt://{}", broker.address("mqtt"));
    let output = run(fulmar().args(["pub", &url, "-q", qos, "-t", topic, "-m", text]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What a subscriber of everything is sent.
struct Subscriber(std::process::Child, Log);

impl Subscriber {
    fn new(broker: &TestBroker) -> Subscriber {
        Subscriber::to(broker, &["site/sensor/#", "site/alarm/#"])
    }

    fn to(broker: &TestBroker, filters: &[&str]) -> Subscriber {
        let url = format!("mqtt://{}", broker.address("mqtt"));
        let mut command = fulmar();
        command.args(["sub", &url, "-q", "1", "-v", "-i", "subscriber"]);
        for filter in filters {
            command.args(["-t", filter]);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let log = Log::follow(child.stdout.take().unwrap());
        let here = || http_get(broker.address("http"), "/connections/subscriber").1;
        let subscribed = format!("\"subscriptions\":{}", filters.len());
        eventually("the subscription", || here().contains(&subscribed));
        Subscriber(child, log)
    }

    fn wait_for(&self, line: &str) {
        let found = self.1.find(PATIENCE, |seen| seen == line);
        assert!(found.is_some(), "no {line:?} in\n{}", self.1.text());
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

const DENIED: &str = "[[acl.rules]]\nallow = false\naction = \"publish\"\ntopic = \"site/sensor/#\"\n\
                      [[acl.rules]]\nallow = false\naction = \"subscribe\"\ntopic = \"site/command/#\"\n";

#[test]
fn readings_that_are_not_authorised_are_kept_reported_and_sent_when_they_are() {
    let upstream = TestBroker::builder().config(DENIED).start();
    let mut gateway = gateway(&upstream, "");
    let subscriber = Subscriber::new(&upstream);
    // Whatever devices publish at, it goes up at QoS 1.
    for n in 1..=4 {
        publish_at(if n % 2 == 0 { "2" } else { "1" }, &gateway, "sensor/a", &n.to_string());
    }
    publish(&gateway, "alarm/b", "fire");
    // Another topic is not held up, and nothing that was acknowledged is lost.
    subscriber.wait_for("site/alarm/b fire");
    let refused = |gateway: &TestBroker| {
        let (status, text) = http_get(gateway.address("http"), "/health/upstream");
        status == 503
            && text.contains(
                "publishing to \"site/sensor/a\" is refused: Not authorized (0x87), since 2",
            )
            && text.contains(
                "subscribing to \"site/command/#\" is refused: Not authorized (0x87), since 2",
            )
    };
    eventually("the refusals to be reported", || refused(&gateway));
    let label = "{what=\"publish\",reason=\"not_authorized\"}";
    assert_eq!(gateway.metric(&format!("gateway_refused{label}")), 1.0);
    assert!(gateway.metric("gateway_refused_since_seconds") > 1e9);
    eventually("only these to wait", || gateway.metric("gateway_queued") == 4.0);
    gateway.wait_for_log("the upstream broker refuses the topic: its messages stay in the outbox");
    assert_eq!(gateway.metric("gateway_dropped_total{reason=\"refused\"}"), 0.0);
    gateway.kill();
    gateway.restart();
    eventually("the refusals to be reported again", || refused(&gateway));
    // The operator gives the right.
    std::fs::write(upstream.config_file(), "").unwrap();
    upstream.hang_up();
    for n in 1..=4 {
        subscriber.wait_for(&format!("site/sensor/a {n}"));
    }
    let text = subscriber.1.text();
    let order: Vec<&str> = text.lines().filter(|line| line.contains("sensor")).collect();
    assert_eq!(order, ["site/sensor/a 1", "site/sensor/a 2", "site/sensor/a 3", "site/sensor/a 4"]);
    eventually("an empty outbox", || gateway.metric("gateway_queued") == 0.0);
    let told = || http_get(gateway.address("http"), "/health/upstream").1;
    eventually("the refusal of publications to be over", || !told().contains("publishing"));
}

#[test]
fn what_can_never_be_accepted_is_dropped_visibly_and_kept_in_a_file() {
    let limits = "[limits]\nmax_packet_bytes = 2000\n";
    let upstream = TestBroker::builder().config(limits).start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dead.jsonl");
    let gateway = gateway(&upstream, &format!("[upstream.outbox]\ndead_letter_file = {file:?}\n"));
    let subscriber = Subscriber::new(&upstream);
    publish(&gateway, "sensor/a", "before");
    subscriber.wait_for("site/sensor/a before");
    let large = "x".repeat(5000);
    publish(&gateway, "sensor/a", &large);
    // As many levels as a topic may have, which are more with the prefix.
    let deep = format!("sensor{}", "/a".repeat(127));
    publish(&gateway, &deep, "deep");
    publish(&gateway, "sensor/a", "behind");
    subscriber.wait_for("site/sensor/a behind");
    gateway.wait_for_log("dropped: the mapping rules give no valid topic name");
    gateway.wait_for_log("dropped: the upstream broker can never accept it");
    eventually("it to be counted", || {
        gateway.metric("gateway_dropped_total{reason=\"refused\"}") == 2.0
            && gateway.metric("gateway_dead_letters_total") == 2.0
            && gateway.metric("gateway_queued") == 0.0
    });
    let lines: Vec<serde_json::Value> = std::fs::read_to_string(&file)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let nameless = lines.iter().find(|line| line["topic"] == *deep).unwrap();
    assert_eq!(nameless["reason"], "Topic Name invalid");
    let line = lines.iter().find(|line| line["topic"] == "site/sensor/a").unwrap();
    assert_eq!(line["reason"], "Packet too large");
    assert_eq!(line["payload"].as_str().unwrap().len(), 5000_usize.div_ceil(3) * 4);
    assert!(line["id"].as_str().unwrap().starts_with("gw-"), "{line}");
    assert_eq!(http_get(gateway.address("http"), "/health/upstream"), (200, "ok\n".to_owned()));
}

#[test]
fn what_the_broker_here_refuses_for_now_is_kept_upstream_reported_and_taken_later() {
    let upstream = TestBroker::start();
    // No room for what the broker says of itself either.
    let limits = "[limits]\nmax_retained_messages = 1\n[sys]\ninterval_s = 0\n";
    let mut gateway = gateway(&upstream, limits);
    retain(&gateway, "here", "full");
    let subscriber = Subscriber::to(&gateway, &["command/#"]);
    let told = |gateway: &TestBroker| http_get(gateway.address("http"), "/health/upstream");
    eventually("the connection upstream", || told(&gateway).0 == 200);
    retain(&upstream, "site/command/a", "1");
    retain(&upstream, "site/command/a", "2");
    publish(&upstream, "site/command/b", "go on");
    subscriber.wait_for("command/b go on");
    drop(subscriber);
    let refused = |gateway: &TestBroker| {
        let (status, text) = told(gateway);
        let line = "delivering to \"command/a\" is refused by the local broker: Quota exceeded (0x97), since 2";
        status == 503 && text.contains(line)
    };
    eventually("the refusal to be reported", || refused(&gateway));
    let label = "{what=\"deliver\",reason=\"quota_exceeded\"}";
    assert_eq!(gateway.metric(&format!("gateway_refused{label}")), 1.0);
    gateway.wait_for_log("the local broker refuses a message from upstream");
    gateway.kill();
    gateway.restart();
    eventually("the refusal to be reported again", || refused(&gateway));
    let subscriber = Subscriber::to(&gateway, &["command/#"]);
    // The operator makes room.
    retain(&gateway, "here", "");
    subscriber.wait_for("command/a 2");
    assert_eq!(subscriber.1.text(), "command/a 1\ncommand/a 2");
    eventually("the refusal to be over", || told(&gateway) == (200, "ok\n".to_owned()));
    assert_eq!(gateway.metric("gateway_dropped_total{reason=\"refused_here\"}"), 0.0);
}

#[test]
fn what_the_broker_here_can_never_accept_is_dropped_visibly_and_holds_nothing_up() {
    let upstream = TestBroker::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dead.jsonl");
    let more = format!(
        "[limits]\nmax_packet_bytes = 2000\n[upstream.outbox]\ndead_letter_file = {file:?}\n"
    );
    let gateway = gateway(&upstream, &more);
    let subscriber = Subscriber::to(&gateway, &["command/#"]);
    let connected = || http_get(gateway.address("http"), "/health/upstream").0 == 200;
    eventually("the connection upstream", connected);
    publish(&upstream, "site/command/a", "before");
    publish(&upstream, "site/command/a", &"x".repeat(5000));
    publish(&upstream, "site/command/b", "behind");
    subscriber.wait_for("command/a before");
    subscriber.wait_for("command/b behind");
    gateway.wait_for_log("dropped: the local broker can never accept this message from upstream");
    eventually("it to be counted", || {
        gateway.metric("gateway_dropped_total{reason=\"refused_here\"}") == 1.0
            && gateway.metric("gateway_dead_letters_total") == 1.0
    });
    let line: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((&line["way"], &line["topic"]), (&"down".into(), &"command/a".into()));
    assert_eq!(line["reason"], "Packet too large");
    // It does not come again.
    publish(&upstream, "site/command/b", "last");
    subscriber.wait_for("command/b last");
    assert_eq!(gateway.metric("gateway_dropped_total{reason=\"refused_here\"}"), 1.0);
}
