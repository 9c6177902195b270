//! What the broker writes to other programs, which may not read it: it goes on serving its clients.
#![allow(clippy::unwrap_used)]

use std::fs::OpenOptions;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use fulmar_tests::{PATIENCE, TestBroker, Wire, eventually, fulmar, http_get, shrink_pipe};

/// Connects one client after the other, each of which the broker serves, and logs some 300 bytes about it at the
/// level `debug`.
fn serve(broker: &TestBroker, clients: usize) {
    for number in 0..clients {
        let mut client = Wire::connect(broker.address("mqtt"), &format!("{number:250}"));
        client.ping();
        // A packet that MQTT does not have.
        client.send(&[0, 0]);
        while client.read().is_some() {}
    }
}

#[test]
fn a_log_that_nobody_reads_stops_no_client() {
    let mut broker = TestBroker::builder().log_level("debug").unread_log().start();
    // What fills the pipe and the queue behind it.
    serve(&broker, 1000);
    assert_eq!(http_get(broker.address("http"), "/health/live").0, 200);
    let dropped = broker.metric("log_lines_dropped_total");
    assert!(dropped > 0.0, "as many lines have room");
    broker.read_log();
    let line = broker.wait_for_log("log lines were dropped");
    assert!(line.contains("lines="), "{line}");
    assert_eq!(broker.terminate().code(), Some(0));
}

#[test]
fn a_log_whose_reader_is_gone_stops_no_client() {
    let mut broker = TestBroker::builder().log_level("debug").unread_log().start();
    broker.close_log();
    serve(&broker, 10);
    eventually("lines to be counted", || broker.metric("log_lines_dropped_total") > 0.0);
    assert_eq!(broker.terminate().code(), Some(0));
}

#[test]
fn a_broker_whose_log_nobody_reads_ends() {
    let mut broker = TestBroker::builder().log_level("debug").unread_log().start();
    serve(&broker, 100);
    assert_eq!(broker.terminate().code(), Some(0));
}

/// A worker that waits: for the file of `--keylog`, which here is a pipe that nobody reads.
#[test]
fn a_worker_that_waits_is_not_alive() {
    let folder = tempfile::tempdir().unwrap();
    let (keys, notify) = (folder.path().join("keys"), folder.path().join("notify"));
    assert!(Command::new("mkfifo").arg(&keys).status().unwrap().success());
    let pipe = OpenOptions::new().read(true).write(true).open(&keys).unwrap();
    shrink_pipe(&pipe);
    let socket = UnixDatagram::bind(&notify).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let broker = TestBroker::builder()
        .arg("--keylog")
        .arg(keys.to_str().unwrap())
        .env("FULMAR_SERVER__WORKERS", "1")
        .env("NOTIFY_SOCKET", notify.to_str().unwrap())
        .env("WATCHDOG_USEC", "1000000")
        .start();
    let next = || {
        let mut buffer = [0; 64];
        let len = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    };
    assert_eq!(next(), "READY=1");
    assert_eq!((next(), next()), ("WATCHDOG=1".to_owned(), "WATCHDOG=1".to_owned()));
    assert_eq!(http_get(broker.address("http"), "/health/live").0, 200);
    // Each handshake writes about a kilobyte of secrets.
    let client = |number: usize| {
        let url = format!("mqtts://localhost:{}", broker.address("mqtts").port());
        let mut client = fulmar();
        client.args(["sub", "--cafile", broker.ca_file().to_str().unwrap(), &url]);
        client.args(["-t", "a", "-i", &format!("client-{number}")]);
        client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut clients: Vec<_> = (0..12).map(client).collect();
    let mut body = String::new();
    eventually("the worker to wait", || {
        let (status, text) = http_get(broker.address("http"), "/health/live");
        body = text;
        status == 503
    });
    assert_eq!(body, "worker 0 does not answer\n");
    broker.wait_for_log("the service manager is not notified");
    for client in &mut clients {
        client.kill().unwrap();
        client.wait().unwrap();
    }
}
