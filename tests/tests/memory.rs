//! The memory of clients that have gone goes back to the system: the broker process, seen from outside.
#![allow(clippy::unwrap_used)]

use std::io::Write as _;

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
    // It starts when the listeners are ready.
    let Some(own) = own else { return 0 };
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
        options.connect_timeout = PATIENCE;
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

/// Connections that begin a TLS handshake, and what each sends of a record of 16 KiB.
const STRANGERS: usize = 700;
const PART_BYTES: usize = 16_000;

#[test]
fn what_handshakes_took_that_never_ended_goes_back_too() {
    let broker = TestBroker::builder()
        .config("server.workers = 1\nstorage.enabled = false\nlimits.handshake_timeout_s = 300\n")
        .start();
    let mut part = vec![0; PART_BYTES];
    // A ClientHello of 16 KiB in one record (RFC 8446 sections 4 and 5.1).
    part[..9].copy_from_slice(&[22, 3, 1, 0x40, 0, 1, 0, 0x3F, 0xFC]);
    // After it has returned memory for the last time on account of its start.
    eventually("a calm broker", || looks(broker.pid()) > 30);
    let mut strangers = Vec::new();
    let before = heap_kib(broker.pid());
    for _ in 0..STRANGERS {
        let mut stranger = std::net::TcpStream::connect(broker.address("mqtts")).unwrap();
        stranger.write_all(&part).unwrap();
        strangers.push(stranger);
    }
    let most = before + (STRANGERS * PART_BYTES / 1024 / 2) as u64;
    eventually("their bytes", || heap_kib(broker.pid()) > most);
    // Those that stay are spread over the heap, which cannot just become shorter.
    let mut number = 0;
    strangers.retain(|_| {
        number += 1;
        number % 30 == 0
    });
    eventually("memory to go back", || heap_kib(broker.pid()) < most);
}
