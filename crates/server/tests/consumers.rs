//! Consumers inside a server: every message, in order, also over errors of theirs and restarts.
#![allow(clippy::unwrap_used)]

use std::error::Error;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use fulmar_client::{Client, Options};
use fulmar_server::{Config, Consumer, Message, Server};

#[path = "../examples/consumer.rs"]
#[allow(dead_code)]
mod example;

const MQTT_ONLY: &str = "[listeners]\nmqtt = [\"127.0.0.1:0\"]\nmqtts = []\nws = []\nquic = []\n\
                         https = []\nhttp = []\ncoap = []\ncoaps = []\n";

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Passes messages on, after it has failed so often.
struct Recorder {
    filters: Vec<String>,
    failures: usize,
    to: mpsc::Sender<String>,
}

impl Consumer for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    fn filters(&self) -> Vec<String> {
        self.filters.clone()
    }

    fn consume(&mut self, batch: &[Message]) -> Result<(), Box<dyn Error + Send + Sync>> {
        if let Some(left) = self.failures.checked_sub(1) {
            self.failures = left;
            self.to.send("failed".to_owned())?;
            return Err("the table is locked".into());
        }
        for Message { topic, payload, .. } in batch {
            self.to.send(format!("{topic} {}", String::from_utf8_lossy(payload)))?;
        }
        Ok(())
    }
}

fn start(data: &Path, filters: &[&str], failures: usize) -> (Server, mpsc::Receiver<String>) {
    let (to, received) = mpsc::channel();
    let filters = filters.iter().map(|filter| (*filter).to_owned()).collect();
    let config = Config::from_toml(MQTT_ONLY).unwrap().with_data_dir(data);
    let consumer = Recorder { filters, failures, to };
    (Server::start_with(config, vec![Box::new(consumer)]).unwrap(), received)
}

/// Publishes at QoS 1, and returns when all is acknowledged.
fn publish(server: &Server, messages: &[(&str, u32)]) {
    let url = format!("mqtt://{}", server.address("mqtt").unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, _events) = Client::connect(Options::new(&url).unwrap()).unwrap();
        for (topic, number) in messages {
            let message = fulmar_client::Message::new(*topic, number.to_string()).qos1();
            client.publish(message).await.unwrap().await.unwrap();
        }
        client.disconnect().await;
    });
}

fn next(received: &mpsc::Receiver<String>) -> String {
    received.recv_timeout(PATIENCE).unwrap()
}

#[test]
fn a_consumer_that_fails_gets_the_same_messages_again_in_order() {
    let data = tempfile::tempdir().unwrap();
    let (server, received) = start(data.path(), &["plant/#"], 2);
    publish(&server, &[("plant/a", 1), ("else", 0), ("plant/b", 2)]);
    publish(&server, &[("plant/a", 3)]);
    assert_eq!((next(&received), next(&received)), ("failed".to_owned(), "failed".to_owned()));
    for expected in ["plant/a 1", "plant/b 2", "plant/a 3"] {
        assert_eq!(next(&received), expected);
    }
    server.stop().unwrap();
    assert!(received.try_recv().is_err(), "nothing twice");
}

#[test]
fn what_it_never_acknowledged_comes_after_a_restart() {
    let data = tempfile::tempdir().unwrap();
    let (server, received) = start(data.path(), &["plant/#"], usize::MAX);
    publish(&server, &[("plant/a", 1), ("plant/a", 2)]);
    assert_eq!(next(&received), "failed");
    drop(server);
    let (server, received) = start(data.path(), &["plant/#"], 0);
    assert_eq!(
        (next(&received), next(&received)),
        ("plant/a 1".to_owned(), "plant/a 2".to_owned())
    );
    server.stop().unwrap();
    // With other filters, it gets what matches these, and nothing else.
    let (server, received) = start(data.path(), &["house/+"], 0);
    publish(&server, &[("plant/a", 3), ("house/a", 4)]);
    assert_eq!(next(&received), "house/a 4");
    server.stop().unwrap();
    assert!(received.try_recv().is_err(), "the earlier filter is gone");
}

#[test]
fn the_example_appends_to_its_file() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("measurements.txt");
    let file = std::fs::File::create(&path).unwrap();
    let config = Config::from_toml(MQTT_ONLY).unwrap().with_data_dir(data.path());
    let server = Server::start_with(config, vec![Box::new(example::FileConsumer(file))]).unwrap();
    publish(&server, &[("plant/boiler", 72), ("plant/pump", 3)]);
    let until = std::time::Instant::now() + PATIENCE;
    while std::fs::read_to_string(&path).unwrap() != "plant/boiler 72\nplant/pump 3\n" {
        assert!(std::time::Instant::now() < until, "{:?}", std::fs::read_to_string(&path));
        std::thread::sleep(Duration::from_millis(20));
    }
    server.stop().unwrap();
}
