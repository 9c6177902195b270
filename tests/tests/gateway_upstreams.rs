//! A gateway with several upstream brokers: each has rules and an outbox of its own, so that none waits for another.
#![allow(clippy::unwrap_used)]

use std::process::Stdio;

use fulmar_tests::{Log, PATIENCE, TestBroker, eventually, fulmar, http_get, run};

fn gateway(first: &TestBroker, cloud: &TestBroker) -> TestBroker {
    let url = |broker: &TestBroker| format!("mqtt://{}", broker.address("mqtt"));
    let (first, cloud) = (url(first), url(cloud));
    let config = format!(
        r#"
[upstream]
url = {first:?}
name = "gw"
[[upstream.up]]
filter = "sensor/#"
to_prefix = "site/"
[[upstream.down]]
filter = "command/#"

[upstreams.cloud]
url = {cloud:?}
name = "gw-cloud"
[[upstreams.cloud.up]]
filter = "sensor/#"
[[upstreams.cloud.up]]
filter = "command/#"
to_prefix = "seen/"
"#
    );
    TestBroker::builder().config(&config).start()
}

fn publish(broker: &TestBroker, topic: &str, text: &str) {
    let url = format!("mqtt://{}", broker.address("mqtt"));
    let output = run(fulmar().args(["pub", &url, "-q", "1", "-t", topic, "-m", text]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What a durable subscriber of everything is sent, as JSON.
struct Subscriber(std::process::Child, Log);

impl Subscriber {
    fn new(broker: &TestBroker) -> Subscriber {
        let url = format!("mqtt://{}", broker.address("mqtt"));
        let mut command = fulmar();
        command.args(["sub", &url, "-q", "1", "--json", "-i", "subscriber", "-t", "#"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let log = Log::follow(child.stdout.take().unwrap());
        let here = || http_get(broker.address("http"), "/connections/subscriber").1;
        eventually("the subscription", || here().contains("\"subscriptions\":1"));
        Subscriber(child, log)
    }

    /// Waits for a message, and returns its user properties as text.
    fn wait_for(&self, topic: &str, payload: &str) -> String {
        let topic = format!("\"topic\":{topic:?}");
        let payload = format!("\"payload\":{payload:?}");
        let found = self.1.find(PATIENCE, |line| line.contains(&topic) && line.contains(&payload));
        let line = found.unwrap_or_else(|| panic!("no {topic} {payload} in\n{}", self.1.text()));
        let message: serde_json::Value = serde_json::from_str(&line).unwrap();
        message["properties"]["user-properties"].to_string()
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The `id` in user properties.
fn id(properties: &str) -> &str {
    let start = properties.find("gw-").unwrap_or_else(|| panic!("no id in {properties}"));
    properties[start..].split('"').next().unwrap()
}

#[test]
fn each_upstream_broker_gets_its_messages_though_another_is_down() {
    let (first, mut cloud) = (TestBroker::start(), TestBroker::start());
    let mut gateway = gateway(&first, &cloud);
    let (at_first, at_cloud) = (Subscriber::new(&first), Subscriber::new(&cloud));
    publish(&gateway, "sensor/a", "1");
    let upper = at_first.wait_for("site/sensor/a", "1");
    let lower = at_cloud.wait_for("sensor/a", "1");
    assert_eq!(id(&upper), id(&lower), "one message has one identifier");
    let health = |gateway: &TestBroker| http_get(gateway.address("http"), "/health/upstream");
    assert_eq!(health(&gateway), (200, "ok\n".into()));

    drop(at_cloud);
    cloud.kill();
    publish(&gateway, "sensor/a", "2");
    at_first.wait_for("site/sensor/a", "2");
    let queued = |gateway: &TestBroker| {
        ["gateway_queued", "gateway_queued{upstream=\"cloud\"}"].map(|name| gateway.metric(name))
    };
    eventually("one message to wait", || queued(&gateway) == [0.0, 1.0]);
    eventually("the link that is down to be named", || {
        let (status, text) = health(&gateway);
        status == 200 && text.starts_with("upstream cloud: not connected")
    });
    gateway.wait_for_log("upstream{name=\"cloud\"}");
    gateway.kill();
    gateway.restart();
    cloud.restart();
    let at_cloud = Subscriber::new(&cloud);
    publish(&gateway, "sensor/a", "3");
    at_cloud.wait_for("sensor/a", "3");
    at_first.wait_for("site/sensor/a", "3");
    eventually("empty outboxes", || queued(&gateway) == [0.0, 0.0]);
    let files = ["outbox.db", "outbox-cloud.db"];
    assert!(files.iter().all(|file| gateway.data().join(file).exists()));

    // What one upstream broker sends may go on to another.
    publish(&first, "command/valve", "open");
    let properties = at_cloud.wait_for("seen/command/valve", "open");
    assert!(properties.contains("gw,gw-cloud"), "{properties}");
}

#[test]
fn an_outbox_without_its_section_is_reported() {
    let (first, cloud) = (TestBroker::start(), TestBroker::start());
    let mut gateway = gateway(&first, &cloud);
    gateway.terminate();
    let config = std::fs::read_to_string(gateway.config_file()).unwrap();
    let (kept, _) = config.split_once("[upstreams.cloud]").unwrap();
    std::fs::write(gateway.config_file(), kept).unwrap();
    gateway.restart();
    let line = gateway.wait_for_log("no section for this outbox");
    assert!(line.contains("file=\"outbox-cloud.db\""), "{line}");
    assert!(!gateway.log().contains("file=\"outbox.db\""));
}
