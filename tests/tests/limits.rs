//! Floods and shortages over real sockets: who is too fast waits or is told, others notice nothing.
#![allow(clippy::unwrap_used)]

use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use fulmar_tests::{PATIENCE, TestBroker, Wire, connect, eventually, field, packet};

/// `count` PUBLISH packets at QoS 1 with payloads of `bytes`.
fn publishes(count: u16, bytes: usize) -> Vec<u8> {
    let one = |id: u16| {
        let body = [field("t"), id.to_be_bytes().to_vec(), vec![0], vec![b'x'; bytes]].concat();
        packet(0x32, &body)
    };
    (1..=count).flat_map(one).collect()
}

/// How long it takes until `count` publications of `bytes` are acknowledged.
fn time_of(wire: &mut Wire, count: u16, bytes: usize) -> Duration {
    let start = Instant::now();
    wire.send(&publishes(count, bytes));
    for _ in 0..count {
        assert_eq!(wire.read().unwrap().0, 0x40, "PUBACK");
    }
    start.elapsed()
}

/// A broker that lets clients publish this fast.
fn with_rate(key: &str, per_s: u32, policy: &str) -> TestBroker {
    let config = format!("[limits]\n{key} = {per_s}\nrate_policy = \"{policy}\"\n");
    TestBroker::builder().config(&config).start()
}

/// A second's worth goes at once, the other three take their time; a neighbour does not wait for it.
fn the_fast_one_waits(key: &str, per_s: u32, count: u16, bytes: usize) {
    let broker = with_rate(key, per_s, "wait");
    let mut fast = Wire::connect(broker.address("mqtt"), "fast");
    let mut calm = Wire::connect(broker.address("mqtt"), "calm");
    let taken = std::thread::scope(|scope| {
        let taken = scope.spawn(|| time_of(&mut fast, count, bytes));
        eventually("the throttle", || broker.metric("publishers_throttled_total") > 0.0);
        calm.ping();
        assert!(!taken.is_finished(), "the neighbour waited");
        taken.join().unwrap()
    });
    // Never sooner than the rate allows, whatever the machine does.
    assert!(taken > Duration::from_millis(2900), "{taken:?}");
    fast.ping();
}

#[test]
fn messages_above_the_rate_wait() {
    the_fast_one_waits("max_publishes_per_s", 20, 80, 1);
}

#[test]
fn bytes_above_the_rate_wait() {
    the_fast_one_waits("max_publish_bytes_per_s", 20_000, 80, 1_000);
}

#[test]
fn who_is_too_fast_is_told_with_0x96_where_the_operator_wants_it() {
    let broker = with_rate("max_publishes_per_s", 20, "disconnect");
    let mut calm = Wire::connect(broker.address("mqtt"), "calm");
    let mut fast = Wire::connect(broker.address("mqtt"), "fast");
    fast.send(&publishes(60, 1));
    let mut acknowledged = 0;
    let told = loop {
        match fast.read().expect("the end without a word") {
            (0x40, _) => acknowledged += 1,
            told => break told,
        }
    };
    assert_eq!((told.0, told.1[0]), (0xe0, 0x96), "DISCONNECT, Message rate too high");
    assert!((20..60).contains(&acknowledged), "{acknowledged}");
    assert_eq!(fast.read(), None);
    broker.wait_for_log("publishes faster than allowed");
    calm.ping();
}

#[test]
fn one_address_connects_only_so_often_and_those_who_are_in_stay() {
    let config = "[limits]\nmax_connects_per_s_per_address = 1\n";
    let broker = TestBroker::builder().config(config).start();
    let mut early = Wire::connect(broker.address("mqtt"), "early");
    let mut refused = 0;
    eventually("five refusals", || {
        let mut wire = Wire::dial(broker.address("mqtt"));
        wire.send(&connect("another"));
        refused += i32::from(wire.read().is_none());
        refused == 5
    });
    assert_eq!(broker.metric("connections_too_fast_total"), 5.0);
    broker.wait_for_log("max_connects_per_s_per_address exceeded");
    early.ping();
    eventually("the next second", || {
        let mut wire = Wire::dial(broker.address("mqtt"));
        wire.send(&connect("another"));
        wire.read().is_some()
    });
}

/// Sets the broker's limit of open files.
fn limit_files(broker: &TestBroker, most: usize) {
    let pid = broker.pid().to_string();
    let mut command = Command::new("prlimit");
    let status = command.args(["--pid", &pid, &format!("--nofile={most}:")]).status().unwrap();
    assert!(status.success());
}

#[test]
fn without_file_descriptors_it_waits_says_so_once_and_goes_on() {
    let config = "[server]\nworkers = 1\n[sys]\ninterval_s = 1\n";
    let broker = TestBroker::builder().config(config).start();
    let address = broker.address("mqtt");
    let mut witness = Wire::connect(address, "witness");
    let topic = "$SYS/broker/counters/accept_failed";
    let filter = [vec![0, 1, 0], field(topic), vec![0]].concat();
    witness.send(&packet(0x82, &filter));
    limit_files(&broker, 40);
    // More than there is room for; the kernel keeps the rest for the broker to take.
    let waiting: Vec<Wire> = (0..60).map(|_| Wire::dial(address)).collect();
    broker.wait_for_log("cannot accept connections");
    let end = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < end, "it does not try again");
        let (first, body) = witness.read().unwrap();
        if first & 0xf0 != 0x30 {
            continue;
        }
        let failed: u32 = str::from_utf8(&body[topic.len() + 3..]).unwrap().parse().unwrap();
        assert!(failed < 100, "it spins");
        if failed >= 5 {
            break;
        }
    }
    limit_files(&broker, 1000);
    Wire::connect(address, "late").ping();
    drop(waiting);
    assert_eq!(broker.log().matches("cannot accept connections").count(), 1, "{}", broker.log());
}

#[test]
fn connections_from_one_address_have_half_of_their_part_of_the_memory() {
    let broker = TestBroker::builder()
        .config("[limits]\nmemory = \"64MB\"\nhandshake_timeout_s = 300\n")
        .start();
    let address = broker.address("mqtts");
    // 12 % of the budget, of which a connection with TLS counts 8 KiB.
    let half = 64_000_000 / 100 * 12 / 2 / 8192;
    let open: Vec<_> = (0..half + 40).map(|_| TcpStream::connect(address).unwrap()).collect();
    eventually("refusals", || broker.metric("connections_refused_total") >= 30.0);
    let refused = broker.metric("connections_refused_total");
    assert!((30.0..=50.0).contains(&refused), "{refused}");
    broker.wait_for_log("have their share of [limits] memory");
    drop(open);
    eventually("room", || {
        let before = broker.metric("connections_refused_total");
        drop(TcpStream::connect(address).unwrap());
        broker.metric("connections_refused_total") == before
    });
}
