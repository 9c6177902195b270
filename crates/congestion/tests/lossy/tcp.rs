//! What TCP makes of a path, as a model: selective acknowledgements, losses found by time (RACK-TLP, RFC 8985), a
//! timeout of at least 200 ms that doubles, delivery in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Least retransmission timeout of Linux, in microseconds.
const LEAST_TIMEOUT: u64 = 200_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A segment, sent at this time, reaches the other end.
    Arrives(usize, u64),
    /// So does the acknowledgement of all that had come by then.
    Acknowledged(u64, u64),
    Written(usize),
    /// No acknowledgement of the data last sent at this time was received.
    Silent(usize, u64),
}

/// When segments written at these times (in microseconds, increasing) are delivered at the other end.
pub(crate) fn deliver(
    written: &[u64],
    one_way: u64,
    loss: f64,
    random: &mut fastrand::Rng,
) -> Vec<u64> {
    let round_trip = 2 * one_way;
    let count = written.len();
    let mut arrived: Vec<Option<u64>> = vec![None; count];
    let mut known = vec![false; count];
    let mut last_sent: Vec<Option<u64>> = vec![None; count];
    let mut timeouts = vec![0u32; count];
    let mut events = BinaryHeap::new();
    for (index, at) in written.iter().enumerate() {
        events.push(Reverse((*at, Event::Written(index))));
    }
    while arrived.iter().any(Option::is_none) {
        let Some(Reverse((now, event))) = events.pop() else { break };
        let mut again = Vec::new();
        match event {
            Event::Written(index) => again.push((index, 2 * round_trip)),
            Event::Arrives(index, sent) => {
                arrived[index].get_or_insert(now);
                if random.f64() >= loss {
                    events.push(Reverse((now + one_way, Event::Acknowledged(sent, now))));
                }
            }
            Event::Acknowledged(newest, by) => {
                for index in 0..count {
                    known[index] |= arrived[index].is_some_and(|at| at <= by);
                    let late = last_sent[index].is_some_and(|sent| {
                        sent < newest && now - sent >= round_trip + round_trip / 16
                    });
                    if !known[index] && late {
                        again.push((index, (LEAST_TIMEOUT + round_trip).max(2 * round_trip)));
                    }
                }
            }
            Event::Silent(index, sent) => {
                if !known[index] && last_sent[index] == Some(sent) {
                    let timeout = LEAST_TIMEOUT.max(round_trip) << timeouts[index].min(10);
                    timeouts[index] += 1;
                    again.push((index, timeout + round_trip));
                }
            }
        }
        for (index, patience) in again {
            last_sent[index] = Some(now);
            if random.f64() >= loss {
                events.push(Reverse((now + one_way, Event::Arrives(index, now))));
            }
            events.push(Reverse((now + patience, Event::Silent(index, now))));
        }
    }
    let mut latest = 0;
    arrived
        .into_iter()
        .map(|at| {
            latest = latest.max(at.unwrap_or(u64::MAX));
            latest
        })
        .collect()
}

/// How long a request takes over a new connection, in microseconds: HTTP/1.1 without TLS.
pub(crate) fn exchange(one_way: u64, loss: f64, random: &mut fastrand::Rng) -> u64 {
    let round_trip = 2 * one_way;
    let (mut took, mut timeout) = (0, 1_000_000);
    // SYN and its answer.
    while random.f64() < loss || random.f64() < loss {
        took += timeout;
        timeout *= 2;
    }
    took += round_trip;
    for _direction in 0..2 {
        let mut timeout = LEAST_TIMEOUT.max(2 * round_trip);
        while random.f64() < loss {
            took += timeout;
            timeout = (2 * timeout).max(300_000);
        }
        took += one_way;
    }
    took
}

/// How long MQTT over TLS 1.3 takes from SYN to CONNACK, in seconds, as Linux does it: a second for a lost SYN, then a
/// probe after two round trips and 200 ms (RFC 8985 section 7.2) or a timeout (RFC 6298), whichever comes first. Each
/// flight is one segment, and acknowledgements are never lost: TCP fares no worse here than in the world.
pub(crate) fn connect(path: super::Path, random: &mut fastrand::Rng) -> f64 {
    // Both ways in turn: SYN, its answer, ClientHello, the server's flight, Finished and CONNECT, CONNACK.
    let flights = [60, 60, 350, 1150, 190, 60];
    let seconds = |end: usize, bytes: usize| path.takes(end, bytes).as_secs_f64();
    let lost = |end: usize, random: &mut fastrand::Rng| random.f64() < path.loss[end];
    let (mut took, mut timeout) = (0.0, 1.0);
    while lost(0, random) || lost(1, random) {
        took += timeout;
        timeout *= 2.0;
    }
    let mut way = |end, bytes| path.lasts(random).as_secs_f64() + seconds(end, bytes);
    let round_trip = way(0, flights[0]) + way(1, flights[1]);
    took += round_trip;
    for (number, bytes) in flights.into_iter().enumerate().skip(2) {
        let end = number % 2;
        // The variance of the first measurement is half of it, and shrinks by a quarter with each further one.
        let variance = round_trip / 2.0 * f64::powi(0.75, (number as i32 - 2) / 2);
        let timeout = round_trip + f64::max(4.0 * variance, 0.2);
        let mut patience = timeout.min(2.0 * round_trip + 0.2);
        let mut timeout = timeout;
        while lost(end, random) {
            took += patience;
            patience = timeout;
            timeout *= 2.0;
        }
        took += path.lasts(random).as_secs_f64() + seconds(end, bytes);
    }
    took
}
