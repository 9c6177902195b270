//! The memory of clients that have gone goes back to the system: the broker process, seen from outside.
#![allow(clippy::unwrap_used)]

use fulmar_client::{Client, Event, Options, Trust};
use fulmar_tests::{PATIENCE, TestBroker, eventually, http_get};
use tokio::time::timeout;

/// Enough that what they take stands out: some 30 KiB each.
const CLIENTS: usize = 200;

/// Memory of a process that is not backed by a file, in KiB: what its heap takes.
fn heap_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// How often the broker's thread for its memory has slept, and so looked.
fn looks(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let statuses =
        threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("status")));
    let own = statuses.flatten().find(|status| status.starts_with("Name:\tfulmar-memory\n"));
    let own = own.unwrap();
    let line = own.lines().find(|line| line.starts_with("voluntary_ctxt_switches:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Connects all, gives the broker's memory with them, and takes leave.
async fn visit(broker: &TestBroker) -> u64 {
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let url = format!("quic://localhost:{}", broker.address("quic").port());
        let mut options = Options::new(&url).unwrap();
        options.trust = Trust::CaFile(broker.ca_file());
        options.client_id = format!("visitor-{number}");
        clients.push(Client::connect(options).unwrap());
    }
    for (_, events) in &mut clients {
        let event = timeout(PATIENCE, events.next()).await.unwrap();
        assert!(matches!(event, Some(Event::Connected { .. })), "{event:?}");
    }
    let with = heap_kib(broker.pid());
    // A crowd that is gone before the next look is not noticed.
    let before = looks(broker.pid());
    eventually("the broker to look twice", || looks(broker.pid()) >= before + 2);
    let leaving: Vec<_> = clients
        .into_iter()
        .map(|(client, _)| tokio::spawn(async move { client.disconnect().await }))
        .collect();
    for gone in leaving {
        gone.await.unwrap();
    }
    with
}

#[tokio::test]
async fn what_clients_took_goes_back_when_they_are_gone() {
    let broker =
        TestBroker::builder().config("server.workers = 1\nstorage.enabled = false\n").start();
    // What is made once and kept is made by the first ones.
    visit(&broker).await;
    eventually("a calm broker", || {
        let (_, metrics) = http_get(broker.address("http"), "/metrics");
        metrics.contains("fulmar_connections{transport=\"quic\"} 0")
    });
    let with = visit(&broker).await;
    // Most of it, but for pages in which something else lives; nothing at all goes back by itself.
    let most = with - CLIENTS as u64 * 5;
    eventually("memory to go back", || heap_kib(broker.pid()) < most);
}
