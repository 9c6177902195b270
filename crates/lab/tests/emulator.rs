//! The emulator with real namespaces and sockets. Where namespaces cannot be created, the tests report that and pass:
//! the model's own tests need none.
//!
//! Time limits are one-sided: packets may be late on a busy machine, but never early.

#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fulmar_lab::emulator::Emulator;
use fulmar_lab::link::{Direction, DropReason, Ends, HostId, LinkConfig, Topology};
use fulmar_lab::net;
use fulmar_lab::observe::Flows;
use fulmar_lab::router::Outcome;

const NEAR: HostId = HostId(0);
const FAR: HostId = HostId(1);
const PORT: u16 = 7000;

fn possible() -> bool {
    match net::acquire() {
        Ok(_) => true,
        Err(error) => {
            eprintln!("not tested: {error}");
            false
        }
    }
}

fn link(settings: &[(&str, &str)]) -> LinkConfig {
    let mut link = LinkConfig::default();
    for (key, value) in settings {
        link.set(key, value).unwrap();
    }
    link
}

fn emulator(hosts: u16, settings: &[(&str, &str)]) -> Emulator {
    let mut topology = Topology::new(hosts, 7).unwrap();
    topology.add_link(Ends::Access(NEAR), link(settings)).unwrap();
    Emulator::start(topology, Vec::new()).unwrap()
}

fn address(emulator: &Emulator, host: HostId) -> IpAddr {
    emulator.host(host).unwrap().addresses()[0]
}

/// A socket on a host, with a time limit for receiving.
fn socket(emulator: &Emulator, host: HostId, port: u16) -> UdpSocket {
    let at: SocketAddr = (address(emulator, host), port).into();
    let socket = emulator.host(host).unwrap().run(|| UdpSocket::bind(at)).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

/// Sends numbered datagrams up; returns the numbers that arrived.
fn transfer(emulator: &Emulator, count: u32) -> Vec<u32> {
    let (near, far) = (socket(emulator, NEAR, 6000), socket(emulator, FAR, PORT));
    let to: SocketAddr = (address(emulator, FAR), PORT).into();
    far.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut arrived = Vec::new();
    let mut buffer = [0; 64];
    // Few enough at once that the receiver's buffer (about 250 datagrams) does not overflow.
    for batch in 0..count / 100 {
        for number in batch * 100..(batch + 1) * 100 {
            near.send_to(&number.to_be_bytes(), to).unwrap();
        }
        while let Ok((4, _)) = far.recv_from(&mut buffer) {
            arrived.push(u32::from_be_bytes(buffer[..4].try_into().unwrap()));
        }
    }
    arrived
}

#[test]
fn delay_holds_both_ways_and_lateness_is_measured() {
    if !possible() {
        return;
    }
    let emulator = emulator(2, &[("delay", "20ms")]);
    let (near, far) = (socket(&emulator, NEAR, 6000), socket(&emulator, FAR, PORT));
    let to: SocketAddr = (address(&emulator, FAR), PORT).into();
    let mut buffer = [0; 64];
    for _ in 0..10 {
        let begin = Instant::now();
        near.send_to(b"ping", to).unwrap();
        let (_, from) = far.recv_from(&mut buffer).unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(20));
        assert_eq!(from.ip(), address(&emulator, NEAR));
        far.send_to(b"pong", from).unwrap();
        near.recv_from(&mut buffer).unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(40));
    }
    assert_eq!(emulator.overflowed(), 0);
    let outcome = emulator.finish().unwrap();
    assert!(outcome.lateness.packets >= 20 && outcome.refused == 0, "{:?}", outcome.lateness);
}

fn lossy_run() -> (Vec<u32>, Outcome) {
    let emulator = emulator(2, &[("up.loss", "10%"), ("up.duplicate", "2%"), ("up.delay", "3ms")]);
    let arrived = transfer(&emulator, 1000);
    (arrived, emulator.finish().unwrap())
}

#[test]
fn one_seed_loses_the_same_packets_twice() {
    if !possible() {
        return;
    }
    let ((first, one), (second, two)) = (lossy_run(), lossy_run());
    assert_eq!(first, second);
    assert!((850..980).contains(&first.len()), "{}", first.len());
    let logs = [&one, &two].map(|outcome| outcome.topology.link(0).unwrap().log());
    assert_eq!(logs[0].first_difference(logs[1]), None);
    assert!(logs[0].common(logs[1]) >= 1000);
}

#[test]
fn corrupted_packets_are_rejected_by_the_receivers_kernel() {
    if !possible() {
        return;
    }
    let emulator = emulator(2, &[("up.corrupt", "50%")]);
    let arrived = transfer(&emulator, 1000);
    let outcome = emulator.finish().unwrap();
    let corrupted = outcome.topology.link(0).unwrap().stats(Direction::Up).corrupted as usize;
    assert!((400..600).contains(&corrupted));
    assert_eq!(arrived.len(), 1000 - corrupted);
    assert!(arrived.is_sorted() && arrived.iter().all(|number| *number < 1000));
}

#[test]
fn multicast_reaches_every_other_host() {
    if !possible() {
        return;
    }
    let emulator = emulator(4, &[("delay", "1ms")]);
    let group = "239.7.7.7".parse().unwrap();
    let receivers: Vec<_> = [1, 2, 3]
        .map(|number| {
            let bind = || {
                let socket = UdpSocket::bind(("0.0.0.0", PORT))?;
                socket.join_multicast_v4(&group, &"0.0.0.0".parse().unwrap())?;
                socket.set_read_timeout(Some(Duration::from_secs(20)))?;
                std::io::Result::Ok(socket)
            };
            emulator.host(HostId(number)).unwrap().run(bind).unwrap().unwrap()
        })
        .into();
    socket(&emulator, NEAR, 6000).send_to(b"to all", (group, PORT)).unwrap();
    for receiver in receivers {
        let mut buffer = [0; 64];
        let (length, _) = receiver.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"to all");
    }
}

#[test]
fn a_sender_learns_of_a_small_mtu() {
    if !possible() {
        return;
    }
    let emulator = emulator(2, &[("mtu", "1280")]);
    let near = socket(&emulator, NEAR, 6000);
    near.connect((address(&emulator, FAR), PORT)).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    // The kernel fragments or refuses packets once it knows the MTU; until then they vanish.
    let _ = near.send(&[0; 1400]);
    let learned = loop {
        let route = emulator.host(NEAR).unwrap().spawn(
            Command::new("ip")
                .args(["route", "get", "198.18.1.2"])
                .stdout(std::process::Stdio::piped()),
        );
        let Ok(route) = route else {
            eprintln!("not tested: no `ip` program");
            return;
        };
        let said = String::from_utf8(route.wait_with_output().unwrap().stdout).unwrap();
        if said.contains("mtu 1280") || Instant::now() > until {
            break said;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(learned.contains("mtu 1280"), "{learned}");
    let stats = emulator.finish().unwrap().topology.link(0).unwrap().stats(Direction::Up).clone();
    assert!(stats.dropped(DropReason::TooBig) >= 1);
}

#[test]
fn a_host_changes_its_address_and_is_reached_there() {
    if !possible() {
        return;
    }
    let emulator = emulator(2, &[("address-change-at", "50ms")]);
    let until = Instant::now() + Duration::from_secs(20);
    while emulator.host(NEAR).unwrap().addresses()[0] == IpAddr::V4(NEAR.ipv4(0)) {
        assert!(Instant::now() < until, "the address never changed");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (near, far) = (socket(&emulator, NEAR, 6000), socket(&emulator, FAR, PORT));
    assert_eq!(near.local_addr().unwrap().ip(), IpAddr::V4(NEAR.ipv4(1)));
    far.send_to(b"found", near.local_addr().unwrap()).unwrap();
    let mut buffer = [0; 64];
    assert_eq!(near.recv_from(&mut buffer).unwrap().0, 5);
}

#[test]
fn programs_run_in_their_host_and_are_observed() {
    if !possible() {
        return;
    }
    let mut topology = Topology::new(2, 7).unwrap();
    topology.add_link(Ends::Between(NEAR, FAR), link(&[("profile", "lte")])).unwrap();
    let flows = Arc::new(Mutex::new(Flows::at(NEAR)));
    let emulator = Emulator::start(topology, vec![Box::new(Arc::clone(&flows))]).unwrap();
    let far = socket(&emulator, FAR, PORT);
    let script = format!("echo hello > /dev/udp/{}/{PORT}", address(&emulator, FAR));
    let program = emulator.host(NEAR).unwrap().spawn(Command::new("bash").args(["-c", &script]));
    assert!(program.unwrap().wait().unwrap().success());
    let mut buffer = [0; 64];
    let (length, from) = far.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..length], from.ip()), (&b"hello\n"[..], address(&emulator, NEAR)));
    drop(emulator);
    let seen = flows.lock().unwrap();
    let flow = seen.flows().iter().find(|flow| flow.far.port() == PORT).unwrap();
    assert_eq!((flow.sent.total().packets, flow.sent.total().bytes), (1, 34));
}
