//! How exact is the emulator on this machine, now? One-way delay of paced UDP datagrams over a link
//! of 10 ms, measured end to end (sending and receiving program included), at several rates.
//!
//!     cargo run --release -p fulmar-lab --example accuracy
//!
//! Prints a line a rate: the error of the delay, what the router knew of its own lateness, and what
//! was lost by accident. It judges nothing; the experiment `link-accuracy` does.

use std::net::UdpSocket;
use std::time::Duration;

use fulmar_lab::clock::Clock;
use fulmar_lab::emulator::Emulator;
use fulmar_lab::link::{Ends, HostId, LinkConfig, Topology};
use fulmar_lab::net;

const DELAY_NS: u64 = 10_000_000;
const SECONDS: u64 = 5;
const PORT: u16 = 7000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    net::acquire()?;
    println!("packets/s  error p50 ms   p99 ms   max ms  late p50 ms   p99 ms  router CPU  lost");
    for rate in [100, 1000, 5000, 10_000, 20_000] {
        measure(rate)?;
    }
    Ok(())
}

fn measure(rate: u64) -> Result<(), Box<dyn std::error::Error>> {
    let mut link = LinkConfig::default();
    link.up.delay = DELAY_NS;
    let mut topology = Topology::new(2, 1)?;
    topology.add_link(Ends::Access(HostId(0)), link)?;
    let emulator = Emulator::start(topology, Vec::new())?;
    let to = HostId(1).ipv4(0);
    let near = emulator.host(HostId(0))?.run(|| UdpSocket::bind(("0.0.0.0", 0)))??;
    let far = emulator.host(HostId(1))?.run(|| UdpSocket::bind((to, PORT)))??;
    far.set_read_timeout(Some(Duration::from_millis(500)))?;
    let (clock, count) = (emulator.clock(), rate * SECONDS);
    let sender = std::thread::spawn(move || send(&near, clock, rate, count, to));
    let mut errors = receive(&far, clock);
    let _ = sender.join();
    errors.sort_unstable();
    let overflowed = emulator.overflowed();
    let outcome = emulator.finish()?;
    let at = |share: usize| {
        errors.get(errors.len().saturating_sub(1) * share / 1000).copied().unwrap_or(0) as f64 / 1e6
    };
    let late = outcome.lateness;
    println!(
        "{rate:>9}  {:>12.3} {:>8.3} {:>8.3} {:>12.3} {:>8.3} {:>9.1} %  {} ({overflowed})",
        at(500),
        at(990),
        at(1000),
        late.p50_ns as f64 / 1e6,
        late.p99_ns as f64 / 1e6,
        outcome.cpu_ns as f64 / 1e7 / (SECONDS as f64 + 0.5),
        count - errors.len() as u64,
    );
    Ok(())
}

/// Sends stamped datagrams at a rate, catching up if it was held up.
fn send(socket: &UdpSocket, clock: Clock, rate: u64, count: u64, to: std::net::Ipv4Addr) {
    let begin = clock.now();
    for number in 0..count {
        let due = begin + number * 1_000_000_000 / rate;
        let wait = due.saturating_sub(clock.now());
        if wait > 0 {
            std::thread::sleep(Duration::from_nanos(wait));
        }
        let _ = socket.send_to(&clock.now().to_be_bytes(), (to, PORT));
    }
}

/// Receives until nothing comes; gives by how much each datagram was later than the link's delay.
fn receive(socket: &UdpSocket, clock: Clock) -> Vec<u64> {
    let mut errors = Vec::new();
    let mut stamp = [0; 8];
    while let Ok((8, _)) = socket.recv_from(&mut stamp) {
        let took = clock.now().saturating_sub(u64::from_be_bytes(stamp));
        errors.push(took.saturating_sub(DELAY_NS));
    }
    errors
}
