//! First flights sent again as a whole: what begins a connection waits for no timer that doubles.
//!
//! QUIC repeats a handshake by its probe timeout (RFC 9002 section 6.2), which is three round trips after the first was
//! measured, a second before, and doubles each time; one probe repeats one packet number space. On a slow path two lost
//! packets cost ten seconds. A handshake is one datagram or two in turn, so all that was sent since the last answer
//! can be sent again about a round trip later; receivers drop packet numbers that they have seen. Whatever quinn sends
//! meanwhile, its own probes too, begins the wait anew: where nothing is lost, nothing is sent twice.

use std::time::{Duration, Instant};

/// The wait while the path is unknown. quinn repeats the first flight after a second.
const UNKNOWN: Duration = Duration::from_secs(2);
/// The longest wait: a round trip that was measured while packets were lost may be much longer than the path.
const LONGEST: Duration = Duration::from_secs(2);
/// Wait beyond a quarter more than the round trip: timers and the peer's work.
const SLACK: Duration = Duration::from_millis(50);
/// Datagrams, or runs of them, that are kept: two of a flight, and what timers and acknowledgements add.
const MOST_DATAGRAMS: usize = 8;
/// Their bytes: the newest repeat what is still missing of older ones, and slow links have room for no more.
const MOST_BYTES: usize = 3000;
/// The largest acknowledgement alone, which postpones nothing.
const MOST_ACK_BYTES: usize = 60;
/// Repetitions of one connection; about half a minute of a silent path.
const MOST_ROUNDS: u8 = 12;

/// Datagrams that one end has sent since the last answer, while a connection is set up.
#[derive(Debug)]
pub struct FirstFlights<T> {
    unanswered: Vec<Datagram<T>>,
    due: Option<Instant>,
    last_sent: Instant,
    /// Repetitions since the last answer, and in all.
    rounds: u8,
    all_rounds: u8,
}

#[derive(Debug)]
struct Datagram<T> {
    sent: Instant,
    bytes: usize,
    datagram: T,
}

impl<T> FirstFlights<T> {
    /// Nothing was sent.
    pub fn new(now: Instant) -> FirstFlights<T> {
        let unanswered = Vec::new();
        FirstFlights { unanswered, due: None, last_sent: now, rounds: 0, all_rounds: 0 }
    }

    /// A datagram of this many bytes, or a run of them, was sent. `round_trip` is `None` until one was measured.
    pub fn sent(
        &mut self,
        now: Instant,
        round_trip: Option<Duration>,
        bytes: usize,
        datagram: impl FnOnce() -> T,
    ) {
        self.unanswered.push(Datagram { sent: now, bytes, datagram: datagram() });
        let all = |kept: &[Datagram<T>]| kept.iter().map(|datagram| datagram.bytes).sum::<usize>();
        while self.unanswered.len() > MOST_DATAGRAMS || all(&self.unanswered) > MOST_BYTES {
            self.unanswered.remove(0);
        }
        if bytes > MOST_ACK_BYTES || self.due.is_none() {
            self.last_sent = now;
            self.wait(now, round_trip);
        }
    }

    /// Something came that is no answer to all that was sent: the peer may have a part of it only. If nothing new is
    /// sent within a quarter of the usual wait, all is sent again. For one of the two ends: otherwise repetitions would
    /// answer each other.
    pub fn poked(&mut self, now: Instant, round_trip: Option<Duration>) {
        let wait = wait(round_trip);
        let soon = (now + wait / 4).max(self.last_sent + wait * (1 + u32::from(self.rounds)) / 2);
        self.due = self.due.map(|due| due.min(soon));
    }

    /// All that was sent has arrived.
    pub fn answered(&mut self) {
        self.unanswered.clear();
        (self.due, self.rounds) = (None, 0);
    }

    /// Something that was sent at this time is acknowledged. `is_implied` says of datagrams sent at that very time whether
    /// they are, too. What was sent before it has arrived, or acknowledgements find that it was lost.
    pub fn acknowledged(&mut self, sent: Instant, is_implied: impl Fn(&T) -> bool) {
        self.unanswered
            .retain(|kept| kept.sent > sent || (kept.sent == sent && !is_implied(&kept.datagram)));
        self.rounds = 0;
        if self.unanswered.is_empty() {
            self.answered();
        }
    }

    /// When the last datagram was sent that nothing answers yet.
    pub fn waiting_since(&self) -> Option<Instant> {
        (!self.unanswered.is_empty()).then_some(self.last_sent)
    }

    /// When to call [`FirstFlights::send_due`].
    pub fn next(&self) -> Option<Instant> {
        self.due
    }

    /// Sends again what is due; nothing if it is early.
    pub fn send_due(&mut self, now: Instant, round_trip: Option<Duration>, send: impl FnMut(&T)) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        // In the other order each time, so that a path that drops every second packet drops another one.
        let datagrams = self.unanswered.iter().map(|kept| &kept.datagram);
        if self.rounds.is_multiple_of(2) {
            datagrams.rev().for_each(send);
        } else {
            datagrams.for_each(send);
        }
        self.rounds += 1;
        self.all_rounds += 1;
        self.wait(now, round_trip);
    }

    fn wait(&mut self, now: Instant, round_trip: Option<Duration>) {
        let may = self.all_rounds < MOST_ROUNDS && !self.unanswered.is_empty();
        // Half a wait more each time: a path that is down or slower than thought gets less.
        self.due = may.then(|| now + wait(round_trip) * (2 + u32::from(self.rounds)) / 2);
    }
}

fn wait(round_trip: Option<Duration>) -> Duration {
    round_trip.map_or(UNKNOWN, |known| (known * 5 / 4 + SLACK).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(600);

    /// When each repetition is sent over a path that is down, in milliseconds.
    fn repetitions(round_trip: Option<Duration>) -> Vec<u128> {
        let begun = Instant::now();
        let mut flights = FirstFlights::new(begun);
        flights.sent(begun, round_trip, 1200, || 'a');
        let mut times = Vec::new();
        while let Some(at) = flights.next() {
            flights.send_due(at, round_trip, |_| times.push((at - begun).as_millis()));
        }
        times
    }

    #[test]
    fn a_silent_path_gets_less_and_less_and_at_last_nothing() {
        let unknown = repetitions(None);
        assert_eq!(unknown[..4], [2000, 5000, 9000, 14_000]);
        assert_eq!(unknown.len(), usize::from(MOST_ROUNDS));
        assert_eq!(repetitions(Some(RTT))[..2], [800, 2000]);
        assert_eq!(repetitions(Some(Duration::from_secs(9))), unknown);
    }

    #[test]
    fn what_is_answered_is_not_repeated_and_what_is_sent_begins_the_wait_anew() {
        let begun = Instant::now();
        let mut flights = FirstFlights::new(begun);
        flights.sent(begun, None, 1200, || 'a');
        flights.sent(begun + RTT, None, 1200, || 'b');
        assert_eq!(flights.next(), Some(begun + RTT + UNKNOWN));
        flights.poked(begun + RTT, None);
        let soon = begun + RTT + UNKNOWN / 2;
        let mut sent = Vec::new();
        flights.send_due(soon - SLACK, None, |datagram| sent.push(*datagram));
        assert!(sent.is_empty());
        flights.send_due(soon, None, |datagram| sent.push(*datagram));
        assert_eq!(sent, ['b', 'a']);
        flights.answered();
        assert_eq!((flights.next(), flights.waiting_since()), (None, None));
    }

    #[test]
    fn a_path_that_drops_every_second_packet_gets_each_datagram() {
        let begun = Instant::now();
        let mut flights = FirstFlights::new(begun);
        let mut path = vec!['a', 'b'];
        path.iter().for_each(|name| flights.sent(begun, Some(RTT), 1200, || *name));
        let at = begun + RTT * 2;
        flights.send_due(at, Some(RTT), |datagram| path.push(*datagram));
        for first in 0..2 {
            let mut arrived: Vec<_> = path.iter().skip(first).step_by(2).collect();
            arrived.sort();
            assert_eq!(arrived, [&'a', &'b'], "{path:?}");
        }
    }

    #[test]
    fn more_datagrams_than_a_handshake_has_are_not_kept() {
        let begun = Instant::now();
        let mut flights = FirstFlights::new(begun);
        (0..100).for_each(|number| flights.sent(begun, None, 100, || number));
        let mut sent = Vec::new();
        flights.send_due(begun + UNKNOWN, None, |datagram| sent.push(*datagram));
        assert_eq!(sent, [99, 98, 97, 96, 95, 94, 93, 92]);
    }
}
