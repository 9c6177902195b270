//! When a server counts as silent, and where a connection looks for it then. Sans-IO: `driver::moving` resolves names,
//! moves the socket and dials.
//!
//! A server whose address has changed keeps its connections, because QUIC knows them by their identifiers and keys. RFC
//! 9000 (section 9) lets a server announce one address at most. The other addresses of its name and the further ones of
//! a list are as good: the user has named them, and only a server with the connection's keys can acknowledge a packet.
//! Each is tried for some round trips. A new connection is dialled meanwhile, because another server may be there.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::options::Backoff;

/// Datagrams and time without an answer that make a server silent: two probe timeouts (RFC 9002 section 6.2) of paths of
/// up to 200 ms.
const UNANSWERED: u32 = 3;
const LEAST_SILENCE: Duration = Duration::from_millis(300);
/// The silence also lasts this many round trips.
const SILENT_ROUND_TRIPS: u32 = 2;

/// The least time for the answer from one address; two round trips if they are longer. The same again if something came
/// from there: a server may validate the client's new address before it acknowledges anything.
const LEAST_TRIAL: Duration = Duration::from_millis(200);
/// Rounds of a search; each gives every address twice the time of the one before.
const ROUNDS: u32 = 3;
/// Time in which quinn decrypts what the socket has received.
const DECRYPTED: Duration = Duration::from_millis(10);
/// Waits between two searches, the first and the longest; half of each is random.
const PAUSES: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];

/// Messages that arrive this often are expected to go on doing so.
const STEADY: Duration = Duration::from_millis(500);
/// The least pause in which a sign of life is asked for.
const LEAST_PAUSE: Duration = Duration::from_millis(250);
/// Arrivals that pay for one such question, how many are saved up at most, and how many there are at first: questions cost
/// less than 1 % of a flow's bytes.
const ARRIVALS: u32 = 64;
const MAX_SAVED: u32 = 4 * ARRIVALS;
const FIRST_SAVED: u32 = ARRIVALS / 2;

/// Datagrams that a connection has sent since the server's last one. All its sockets share it.
#[derive(Debug)]
pub(crate) struct Unanswered {
    begun: Instant,
    datagrams: AtomicU32,
    /// When the first was sent, in ms from the beginning.
    since_ms: AtomicU64,
    /// Another address is tried, or was lately: a datagram says nothing before it is decrypted, because it may be another
    /// server's stateless reset.
    is_in_doubt: AtomicBool,
    /// Frames that had been received when the doubt began.
    frames: AtomicU64,
    /// The address in use.
    remote: Mutex<SocketAddr>,
    /// Something came from another one since, on the socket before.
    is_late: AtomicBool,
}

impl Unanswered {
    pub(crate) fn new(now: Instant, remote: SocketAddr) -> Unanswered {
        Unanswered {
            begun: now,
            datagrams: AtomicU32::new(0),
            since_ms: AtomicU64::new(0),
            is_in_doubt: AtomicBool::new(false),
            frames: AtomicU64::new(0),
            remote: Mutex::new(remote),
            is_late: AtomicBool::new(false),
        }
    }

    /// Begins with a new socket.
    pub(crate) fn moved_to(&self, remote: SocketAddr) {
        *self.remote.lock().unwrap_or_else(PoisonError::into_inner) = remote;
        self.datagrams.store(0, Relaxed);
        self.is_late.store(false, Relaxed);
    }

    pub(crate) fn is_at(&self, remote: SocketAddr) -> bool {
        *self.remote.lock().unwrap_or_else(PoisonError::into_inner) == remote
    }

    /// Counts a datagram; whether the server is silent. The clock is read only if that matters.
    pub(crate) fn sent(&self, now: impl FnOnce() -> Instant) -> bool {
        let before = self.datagrams.fetch_add(1, Relaxed);
        if before == 0 {
            let since = now().saturating_duration_since(self.begun);
            self.since_ms.store(since.as_millis() as u64, Relaxed);
            return false;
        }
        before + 1 >= UNANSWERED && self.waited(now()) >= LEAST_SILENCE
    }

    /// A datagram came from this address.
    pub(crate) fn heard(&self, remote: SocketAddr) {
        if !self.is_at(remote) {
            self.is_late.store(true, Relaxed);
        }
        if !self.is_in_doubt.load(Relaxed) {
            self.datagrams.store(0, Relaxed);
        }
    }

    /// Whether something came from the address before since the one in use is there.
    pub(crate) fn is_late(&self) -> bool {
        self.is_late.load(Relaxed)
    }

    /// From now on, only frames end the silence; the first ones above this number end the doubt.
    pub(crate) fn doubt(&self, frames: u64) {
        self.datagrams.store(0, Relaxed);
        self.frames.store(frames, Relaxed);
        self.is_in_doubt.store(true, Relaxed);
    }

    /// Time since the first of several datagrams without an answer; zero if there are few. `frames` have been received.
    pub(crate) fn silence(&self, now: Instant, frames: u64) -> Duration {
        if frames > self.frames.load(Relaxed) && self.is_in_doubt.swap(false, Relaxed) {
            self.datagrams.store(0, Relaxed);
        }
        self.waited(now)
    }

    fn waited(&self, now: Instant) -> Duration {
        if self.datagrams.load(Relaxed) < UNANSWERED {
            return Duration::ZERO;
        }
        let since = Duration::from_millis(self.since_ms.load(Relaxed));
        now.saturating_duration_since(self.begun).saturating_sub(since)
    }
}

/// The pauses between arrivals. Clients that only receive would not notice a silent server before the next keep-alive.
#[derive(Debug)]
pub(crate) struct Arrivals {
    last: Instant,
    /// The longest pause lately.
    longest: Duration,
    is_steady: bool,
    saved: u32,
}

impl Arrivals {
    pub(crate) fn new(now: Instant) -> Arrivals {
        Arrivals { last: now, longest: Duration::ZERO, is_steady: false, saved: FIRST_SAVED }
    }

    pub(crate) fn arrived(&mut self, now: Instant) {
        let gap = now.saturating_duration_since(self.last);
        self.last = now;
        self.is_steady = gap <= STEADY;
        if self.is_steady {
            self.longest = gap.max(self.longest * 63 / 64);
            self.saved = (self.saved + 1).min(MAX_SAVED);
        }
    }

    /// When to ask the server for a sign of life.
    pub(crate) fn ask_at(&self) -> Option<Instant> {
        let asks = self.is_steady && self.saved >= ARRIVALS;
        asks.then(|| self.last + (self.longest * 2).max(LEAST_PAUSE))
    }

    pub(crate) fn asked(&mut self) {
        self.is_steady = false;
        self.saved -= ARRIVALS.min(self.saved);
    }
}

/// The state of a connection at one time, as far as a search depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observed {
    pub(crate) now: Instant,
    /// Time for which the server has been silent.
    pub(crate) silence: Duration,
    pub(crate) round_trip: Duration,
    /// Number of acknowledgements received so far.
    pub(crate) acks: u64,
    /// Something came from the address before, whose socket is still read.
    pub(crate) is_late: bool,
}

impl Observed {
    fn is_silent(&self) -> bool {
        self.silence >= (self.round_trip * SILENT_ROUND_TRIPS).max(LEAST_SILENCE)
    }
}

/// The next step of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// Moves the connection to this address.
    Try(SocketAddr),
    /// The server has answered from this address, to which the connection has moved.
    Found(SocketAddr),
    /// No address has answered; the connection is back at the first one.
    Ended,
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Idle,
    /// The addresses are being resolved.
    Resolving,
    Trying(Trial),
}

#[derive(Debug)]
struct Trial {
    /// The addresses to try, the last of them the one that has become silent.
    addresses: Vec<SocketAddr>,
    at: usize,
    /// Time for each.
    each: Duration,
    rounds_left: u32,
    until: Instant,
    look_at: Instant,
    /// Something came from the address.
    heard: bool,
    /// It is tried again, because the acknowledgement may have come from the address before.
    is_doubtful: bool,
    /// Acknowledgements received when it was tried.
    acks: u64,
}

impl Trial {
    fn begin(&mut self, observed: &Observed) -> Step {
        let until = observed.now + self.each;
        (self.until, self.look_at) = (until, until);
        (self.heard, self.acks) = (false, observed.acks);
        Step::Try(self.addresses[self.at])
    }
}

/// The searches of one connection.
#[derive(Debug, Default)]
pub(crate) struct Search {
    phase: Phase,
    failures: u32,
    /// End of the last search without a result, the pause after it, and the acknowledgements received by then.
    ended: Option<Instant>,
    pause: Duration,
    acks: u64,
}

impl Search {
    /// Whether a search begins, for which addresses are to be resolved.
    pub(crate) fn begins(&mut self, observed: &Observed) -> bool {
        if !matches!(self.phase, Phase::Idle) || !observed.is_silent() {
            return false;
        }
        if observed.acks > self.acks {
            // The server has answered since: this is another silence.
            self.failures = 0;
            self.pause = self.pause.min(PAUSES[0]);
        }
        let begins = self.ended.is_none_or(|at| at + self.pause <= observed.now);
        if begins {
            self.phase = Phase::Resolving;
        }
        begins
    }

    /// Tries `addresses`, the last of which is the silent one, unless the server has answered by now.
    pub(crate) fn resolved(&mut self, addresses: Vec<SocketAddr>, observed: &Observed) -> Step {
        if !observed.is_silent() {
            self.phase = Phase::Idle;
            return Step::Nothing;
        }
        if addresses.len() < 2 {
            return self.end(observed);
        }
        let (now, acks) = (observed.now, observed.acks);
        let mut trial = Trial {
            addresses,
            at: 0,
            each: (observed.round_trip * 2).max(LEAST_TRIAL),
            rounds_left: ROUNDS - 1,
            until: now,
            look_at: now,
            heard: false,
            is_doubtful: false,
            acks,
        };
        let step = trial.begin(observed);
        self.phase = Phase::Trying(trial);
        step
    }

    /// A datagram came from the address that is tried.
    pub(crate) fn heard(&mut self, now: Instant) {
        if let Phase::Trying(trial) = &mut self.phase {
            trial.until += if trial.heard { Duration::ZERO } else { trial.each };
            trial.heard = true;
            trial.look_at = trial.look_at.min(now + DECRYPTED);
        }
    }

    /// When [`Search::on_deadline`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let Phase::Trying(trial) = &self.phase else { return None };
        Some(trial.look_at)
    }

    pub(crate) fn on_deadline(&mut self, observed: &Observed) -> Step {
        let (now, acks) = (observed.now, observed.acks);
        let Phase::Trying(trial) = &mut self.phase else { return Step::Nothing };
        if now < trial.look_at {
            return Step::Nothing;
        }
        let is_answered = acks > trial.acks;
        if is_answered && trial.heard {
            if observed.is_late {
                // One of the two may be another server, which has sent a reset.
                trial.is_doubtful = true;
                return trial.begin(observed);
            }
            let found = trial.addresses[trial.at];
            *self = Search::default();
            return Step::Found(found);
        }
        if now < trial.until {
            trial.look_at = trial.until.min(now + DECRYPTED);
            return Step::Nothing;
        }
        self.next(observed)
    }

    /// Goes on at once if an address is being tried: it cannot be used, or nobody is there.
    pub(crate) fn refused(&mut self, observed: &Observed) -> Option<Step> {
        matches!(self.phase, Phase::Trying(_)).then(|| self.next(observed))
    }

    fn next(&mut self, observed: &Observed) -> Step {
        let Phase::Trying(trial) = &mut self.phase else { return Step::Nothing };
        let is_answered = observed.acks > trial.acks;
        let count = trial.addresses.len();
        let next = if std::mem::take(&mut trial.is_doubtful) || is_answered {
            // A late answer from the address before, whose socket was still read.
            trial.at + count - 1
        } else {
            if trial.at == count - 1 {
                if trial.rounds_left == 0 {
                    return self.end(observed);
                }
                trial.rounds_left -= 1;
                trial.each *= 2;
            }
            trial.at + 1
        };
        trial.at = next % count;
        trial.begin(observed)
    }

    /// Gives up for a while, which grows: 10,000 clients of a server that is off must not call for it at once.
    fn end(&mut self, observed: &Observed) -> Step {
        self.failures += 1;
        let [first, longest] = PAUSES;
        self.pause = Backoff { first, longest }.wait(self.failures);
        (self.ended, self.acks) = (Some(observed.now), observed.acks);
        self.phase = Phase::Idle;
        Step::Ended
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "search_tests.rs"]
mod tests;
