//! Copies stay within their bounds, whatever is sent and whatever becomes of it.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use fulmar_congestion::copies::{Copies, MAX_COPIES, Plan, SentDatagram};
use proptest::prelude::*;

/// UDP's header and IPv4's.
const HEADERS: u64 = 28;

#[derive(Clone, Copy, Debug)]
enum Event {
    Sent(SentDatagram),
    News { round_trip_us: u32, sent: u16, lost: u16 },
    Acknowledged,
    Moved,
}

fn event() -> impl Strategy<Value = Event> {
    let bytes = prop_oneof![3 => 20..300usize, 1 => 300..1500usize, 1 => any::<usize>()];
    let sent = (bytes, prop::bool::weighted(0.2), prop::bool::weighted(0.9)).prop_map(
        |(bytes, is_handshake, is_validated)| {
            Event::Sent(SentDatagram { bytes, is_handshake, is_validated })
        },
    );
    let round_trip = prop_oneof![4 => 70_000..75_000u32, 1 => any::<u32>()];
    let news = (round_trip, 0..30u16, 0..30u16)
        .prop_map(|(round_trip_us, sent, lost)| Event::News { round_trip_us, sent, lost });
    prop_oneof![6 => sent, 3 => news, 1 => Just(Event::Acknowledged), 1 => Just(Event::Moved)]
}

fn pause() -> impl Strategy<Value = Duration> {
    prop_oneof![8 => 0..30_000u64, 1 => 0..3_000_000u64].prop_map(Duration::from_micros)
}

/// A small datagram of a kept connection.
fn small(bytes: usize) -> SentDatagram {
    SentDatagram { bytes, is_handshake: false, is_validated: true }
}

/// Sends one small datagram each 20 ms over a path that loses some, until `news` says how it loses them.
fn thin(copies: &mut Copies, now: &mut Instant, datagrams: u32, one_in: u32) -> Vec<Plan> {
    let mut plans = Vec::new();
    for count in 1..=datagrams {
        *now += Duration::from_millis(20);
        plans.push(copies.sent(*now, small(100)));
        let lost = one_in > 0 && count % one_in == 0;
        copies.acknowledged();
        copies.observe(*now, Duration::from_millis(70), 1, u64::from(lost));
    }
    plans
}

fn count(plans: &[Plan]) -> u32 {
    plans.iter().map(|plan| u32::from(plan.copies)).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Never more than [`MAX_COPIES`], twice the connection's own bytes, 64 kbit/s besides a second's worth; none of what
    /// went to an address that is not validated.
    #[test]
    fn the_budget_is_never_exceeded(
        known in prop_oneof![Just(0.0), 0.0..1.0f64, any::<f64>()],
        events in prop::collection::vec((event(), pause(), 1..20u8), 0..200),
    ) {
        let begun = Instant::now();
        let mut now = begun;
        let mut copies = Copies::new(now, known);
        let (mut own, mut spent) = (0u128, 0u128);
        let (mut datagrams, mut bytes) = (0u64, 0u64);
        let mut is_unanswered = false;
        for (event, pause, times) in events {
            for _ in 0..times {
                now += pause;
                match event {
                    Event::Sent(sent) => {
                        own += sent.bytes as u128 + u128::from(HEADERS);
                        let plan = copies.sent(now, sent);
                        prop_assert!(plan.copies <= MAX_COPIES);
                        prop_assert!(plan.copies == 0 || sent.is_validated);
                        let is_small = sent.bytes <= 300 || sent.is_handshake;
                        prop_assert!(plan.copies == 0 || is_small || is_unanswered);
                        is_unanswered = true;
                        let most = Duration::from_millis(3);
                        prop_assert!(plan.gap <= most && (plan.copies == 0 || plan.gap > Duration::ZERO));
                        let times = u64::from(plan.copies);
                        spent += u128::from(times) * (sent.bytes as u128 + u128::from(HEADERS));
                        datagrams += times;
                        bytes = bytes.wrapping_add(times.wrapping_mul(sent.bytes as u64));
                    }
                    Event::News { round_trip_us, sent, lost } => {
                        let round_trip = Duration::from_micros(round_trip_us.into());
                        copies.observe(now, round_trip, sent.into(), lost.into());
                    }
                    Event::Acknowledged => {
                        is_unanswered = false;
                        copies.acknowledged();
                    }
                    Event::Moved => {
                        is_unanswered = false;
                        copies.forget(now);
                    }
                }
                prop_assert!((0.0..=1.0).contains(&copies.loss()));
                prop_assert!(spent <= 2 * own, "{spent} for {own} bytes");
                let most = 8000.0 * (1.0 + (now - begun).as_secs_f64());
                prop_assert!(spent as f64 <= most + 1.0, "{spent} of {most} bytes");
            }
        }
        prop_assert_eq!(copies.copied().datagrams, datagrams);
        prop_assert_eq!(copies.copied().bytes, bytes);
    }

    /// Whatever else happens, a path of which less than one packet in fifty was lost has none.
    #[test]
    fn there_are_none_where_little_is_lost(one_in in 51..5000u32, first in 0..51u32, bytes in 20..1500usize) {
        let mut now = Instant::now();
        let mut copies = Copies::new(now, 0.0);
        for number in 0..3000u32 {
            now += Duration::from_millis(20);
            let plan = copies.sent(now, SentDatagram { bytes, ..small(0) });
            prop_assert_eq!(plan.copies, 0);
            copies.acknowledged();
            let lost = number % one_in == first;
            copies.observe(now, Duration::from_millis(70), 1, lost.into());
        }
    }
}

#[test]
fn a_thin_stream_on_a_lossy_path_is_copied_and_no_longer_once_nothing_is_lost() {
    let mut now = Instant::now();
    let mut copies = Copies::new(now, 0.0);
    assert_eq!(count(&thin(&mut copies, &mut now, 1000, 0)), 0);
    // Copies hide most losses: of 100 packets one is still seen to be lost.
    thin(&mut copies, &mut now, 100, 10);
    assert!(copies.loss() > 0.05, "{}", copies.loss());
    assert!(count(&thin(&mut copies, &mut now, 400, 100)) >= 400);
    let after = thin(&mut copies, &mut now, 3000, 0);
    assert_eq!(count(&after[2000..]), 0);
}

#[test]
fn a_queue_or_much_to_send_ends_it() {
    let mut now = Instant::now();
    let mut copies = Copies::new(now, 0.0);
    thin(&mut copies, &mut now, 100, 8);
    assert!(count(&thin(&mut copies, &mut now, 10, 0)) > 0);
    // Acknowledgements come later than the path alone explains.
    copies.observe(now, Duration::from_millis(90), 1, 0);
    assert_eq!(copies.sent(now, small(100)).copies, 0);
    copies.observe(now, Duration::from_millis(70), 1, 0);
    assert!(copies.sent(now, small(100)).copies > 0);
    // The end of something large is small.
    now += Duration::from_millis(20);
    for _ in 0..10 {
        assert_eq!(copies.sent(now, small(1200)).copies, 0);
    }
    assert_eq!(copies.sent(now, small(100)).copies, 0);
    // And what is lost of it may be a full queue's.
    let before = copies.loss();
    copies.observe(now, Duration::from_millis(70), 10, 10);
    assert!((copies.loss() - before).abs() < 1e-9);
}

#[test]
fn a_first_flight_is_copied_where_the_last_connection_saw_losses() {
    let now = Instant::now();
    let first = SentDatagram { bytes: 1200, is_handshake: true, is_validated: true };
    for (known, copied) in [(0.0, 0), (0.04, 0), (0.1, 1), (0.2, 2)] {
        assert_eq!(Copies::new(now, known).sent(now, first).copies, copied, "{known}");
    }
    let stranger = SentDatagram { is_validated: false, ..first };
    assert_eq!(Copies::new(now, 0.3).sent(now, stranger).copies, 0);
}

#[test]
fn another_path_begins_anew() {
    let mut now = Instant::now();
    let mut copies = Copies::new(now, 0.2);
    assert!(copies.sent(now, small(100)).copies > 0);
    copies.forget(now);
    assert_eq!(copies.sent(now, small(100)).copies, 0);
    let mut copies = Copies::new(now, 0.2);
    copies.observe(now, Duration::from_millis(70), 1, 0);
    // So does one on which nothing was received for long.
    now += Duration::from_secs(3600);
    copies.observe(now, Duration::from_millis(70), 1, 0);
    assert_eq!(copies.sent(now, small(100)).copies, 0);
}
