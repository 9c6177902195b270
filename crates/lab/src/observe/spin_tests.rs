//! The spin-bit observer with simulated endpoints on a simulated path.

use super::*;
use crate::link::{Direction, Link, LinkConfig, Output};
use crate::testing::udp;
use crate::units::{MILLISECOND as MS, SECOND};

/// A client and a server that each send a packet every `gap` over a link; the observer is at the client. Returns its
/// report and the client's own measurements of the round trip.
fn watch(settings: &[(&str, &str)], gap: Nanos, plays: bool) -> SpinBit {
    let mut config = LinkConfig::default();
    for (key, value) in settings {
        config.set(key, value).unwrap_or_default();
    }
    let Ok(mut link) = Link::new(config, 9) else { return SpinBit::default() };
    let mut seen = SpinBit::default();
    // Each endpoint's view of the bit, and the highest packet number that it was taken from.
    let (mut client, mut server) = ((false, 0u64), (false, 0u64));
    let mut number = 0u64;
    let mut next_send = 0;
    while next_send < 60 * SECOND {
        let due = link.deadline().unwrap_or(Nanos::MAX);
        if next_send <= due {
            number += 1;
            let body = |spin: bool| [&number.to_be_bytes()[..], &[u8::from(spin)]].concat();
            if plays {
                seen.packet(next_send, PacketDirection::ToServer, client.0);
            }
            let (a, b) = ([198, 18, 0, 2], [198, 18, 1, 2]);
            link.receive(next_send, Direction::Up, udp(a, 1, b, 2, &body(client.0)), 0);
            link.receive(next_send, Direction::Down, udp(b, 2, a, 1, &body(server.0)), 0);
            next_send += gap;
            continue;
        }
        let Some(Output::Arrive { at, direction, packet, .. }) = link.poll_event(due) else {
            continue;
        };
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&packet[28..36]);
        let (number, spin) = (u64::from_be_bytes(bytes), packet[36] != 0);
        // Endpoints look at the highest packet number only (RFC 9000, 17.4).
        match direction {
            Direction::Up if number > server.1 => server = (spin, number),
            Direction::Down => {
                seen.packet(at, PacketDirection::ToClient, spin && plays);
                if number > client.1 {
                    client = (!spin, number);
                }
            }
            Direction::Up => {}
        }
    }
    seen
}

fn is_near(value: Nanos, expected: Nanos, tolerance: Nanos) -> bool {
    value.abs_diff(expected) <= tolerance
}

#[test]
fn dense_traffic_shows_the_round_trip_time_in_both_modes() {
    let seen = watch(&[("delay", "50ms")], MS, true);
    let report = seen.report();
    assert!(report.takes_part && report.disbelieved == 0);
    for quantiles in [report.one_way_to_server, report.one_way_to_client, report.two_way] {
        assert!(quantiles.count > 500 && quantiles.sure == quantiles.count, "{quantiles:?}");
        // An edge waits for the next packet at each end: up to 1 ms each.
        assert!(is_near(quantiles.p50, 101 * MS, MS) && is_near(quantiles.p95, 101 * MS, MS));
    }
}

#[test]
fn reordering_does_not_shorten_the_samples() {
    let settings = [("delay", "50ms"), ("reorder", "10%"), ("reorder-by", "5ms")];
    let report = watch(&settings, MS, true).report();
    assert!(report.disbelieved > 20, "{report:?}");
    assert!(report.takes_part);
    for quantiles in [report.one_way_to_client, report.two_way] {
        assert!(quantiles.sure * 10 > quantiles.count * 9);
        assert!(is_near(quantiles.sure_p50, 101 * MS, 3 * MS), "{quantiles:?}");
    }
}

#[test]
fn loss_moves_edges_and_the_gap_bounds_the_error() {
    let settings = [("delay", "50ms"), ("loss", "30%")];
    let seen = watch(&settings, 5 * MS, true);
    let report = seen.report();
    assert!(is_near(report.two_way.sure_p50, 110 * MS, 12 * MS), "{report:?}");
    // Each endpoint adds up to the gaps that losses leave; none of the sure ones is twice too long.
    let worst = seen.two_way().iter().filter(|sample| sample.is_sure()).map(|sample| sample.rtt);
    assert!(worst.max().is_some_and(|worst| worst < 180 * MS));
}

#[test]
fn slow_senders_have_samples_that_are_not_sure() {
    let report = watch(&[("delay", "50ms")], 80 * MS, true).report();
    assert!(report.two_way.count > 100);
    assert_eq!(report.two_way.sure, 0, "a gap of 80 ms bounds nothing of 100 ms");
    assert!(report.two_way.p50 >= 100 * MS);
}

#[test]
fn a_bit_that_stands_still_is_no_round_trip() {
    let report = watch(&[("delay", "50ms")], MS, false).report();
    assert!(!report.takes_part);
    assert_eq!((report.edges, report.two_way.count), (0, 0));
}

#[test]
fn a_bit_at_random_is_no_round_trip() {
    let mut seen = SpinBit::default();
    let mut state = 88_172_645_463_325_252u64;
    seen.packet(0, PacketDirection::ToServer, false);
    seen.handshake(100 * MS);
    for index in 0..10_000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        seen.packet(index * MS, PacketDirection::ToServer, state & 1 == 1);
    }
    assert!(!seen.report().takes_part, "{:?}", seen.report());
}

#[test]
fn a_path_that_gets_faster_is_believed_after_a_while() {
    let mut side = DirectionState::default();
    let mut value = false;
    for at in (0..10).map(|index| index * SECOND) {
        value = !value;
        side.packet(at, value);
    }
    for index in 0..200 {
        value = !value;
        side.packet(9 * SECOND + (index + 1) * 50 * MS, value);
    }
    assert!(side.samples.len() > 100, "{}", side.samples.len());
}
