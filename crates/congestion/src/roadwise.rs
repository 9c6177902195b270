//! The window of a path: grown while nothing waits, lowered when something does, whatever is lost by chance.
//!
//! Once a round trip it is set to what would leave a queue of a few milliseconds (as FAST TCP does): by how long packets wait now,
//! and not by what arrives, which chance makes uneven. Losses count as far as they exceed the usual (`loss`). If more is
//! lost and nothing waits, the queue may be too short to be noticed: half the window for some rounds shows it.

use std::time::{Duration, Instant};

use crate::choice::INITIAL_WINDOW_BYTES;
use crate::cubic::{BETA, Cubic};
use crate::loss::Usual;
use crate::path::{Base, Delivered, Round};

/// Until so many of these the window grows also while there is little to send.
const BEGINNING_WINDOWS: f64 = 2.0;
/// Datagrams at least: with fewer in flight the loss of one is found by a timer alone.
const LEAST_DATAGRAMS: f64 = 4.0;
/// In flight at most, in what was delivered in a round or lost by chance.
const MOST_ROUNDS: f64 = 2.0;
/// Answers of a round after which a queue is believed before its end.
const ANSWERS: u32 = 8;
/// How much of the way to the window that is aimed at is gone in a round, and the most it grows by then: at first, when
/// nothing was seen to wait for so many rounds, and where it was before.
const STEP: f64 = 0.5;
const GROWTH: f64 = 1.1;
const FREE_ROUNDS: u32 = 10;
const GROWTH_FREE: f64 = 1.25;
const GROWTH_AGAIN: f64 = 1.5;
/// Where losses showed the link full the last time, in parts of that window, and for how long that is remembered.
const NEAR: f64 = 0.9;
const GROWTH_NEAR: f64 = 1.02;
const REMEMBERED: Duration = Duration::from_secs(60);
/// What is used of a link when losses show it full, or a mark of a router.
const DRAIN: f64 = 0.85;
/// Losses beyond the usual, as a part of all, that count as a full link; packets from which they are known, and those
/// that teach the usual whatever is lost.
const EXCESS: f64 = 0.01;
const EXCESS_IN_COMPETITION: f64 = 0.02;
const ENOUGH_PACKETS: f64 = 50.0;
const FIRST_PACKETS: f64 = 100.0;
/// Where so little is lost usually, any loss is somebody's queue once somebody is there.
const HARDLY_ANY: f64 = 0.003;
/// A trial: its window, how often, rounds before what is lost is that of the smaller window, and packets and rounds that decide.
const TRIAL: f64 = 0.5;
const TRIALS: Duration = Duration::from_secs(10);
const TRIAL_SETTLES: u32 = 2;
const TRIAL_PACKETS: f64 = 80.0;
const TRIAL_ROUNDS: u32 = 8;
/// Of half a window at least this part of what arrived before arrives only if the link was full.
const NO_LESS: f64 = 0.75;
/// Where more than this is lost usually, it is looked so often whether that is still so.
const DOUBTFUL: f64 = 0.01;
const CHECK: Duration = Duration::from_secs(20);
/// The first time after so many round trips, if that is sooner: the first packets may have met a full queue.
const CHECK_ROUNDS: u32 = 100;
/// With fewer in flight there are no trials, and with so many times the least losses are not ours.
const FEW_DATAGRAMS: f64 = 8.0;
const NEAR_LEAST: f64 = 1.25;
/// Reductions in a row, after none of which the queue was shorter, that mean that somebody else keeps it; and what of
/// a queue is about to be emptied.
const PATIENCE: u32 = 2;
const SHRINKS: f64 = 0.8;
/// Who competes looks whether that is needed after this long, longer each time, or when nothing waited for so long.
const RETRY: Duration = Duration::from_secs(15);
const MOST_RETRY: Duration = Duration::from_secs(60);
const GONE: Duration = Duration::from_secs(1);
const GONE_ROUNDS: u32 = 4;
/// The path without our own queue is looked at so often, with this part of the window.
const LOOK: Duration = Duration::from_secs(20);
const LOOK_WINDOW: f64 = 0.6;
const LOOK_ROUNDS: u32 = 2;
/// After so long without an acknowledgement everything is forgotten.
const FORGET: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum Mode {
    Start,
    Delay,
    /// Looks at the path without a queue; the window before, and rounds left.
    Look(f64, u32),
    Trial(Trial),
    /// Against somebody who keeps the queue full, or where the queue is too `shallow` for delay to tell; since when, and
    /// when something last waited.
    Competition {
        cubic: Cubic,
        since: Instant,
        full_at: Instant,
        shallow: bool,
    },
}

/// Half the window, for a while.
#[derive(Clone, Copy, Debug)]
struct Trial {
    before: f64,
    /// What arrived then, bytes a second.
    rate: f64,
    /// Between the usual loss and the one that was too much.
    middle: f64,
    rounds: u32,
    acked: f64,
    lost: f64,
    time: Duration,
}

impl Trial {
    fn new(before: f64, rate: f64, middle: f64) -> Trial {
        let (acked, lost, time) = (0.0, 0.0, Duration::ZERO);
        Trial { before, rate, middle, rounds: 0, acked, lost, time }
    }
}

/// A window that tells loss from a full queue.
#[derive(Clone, Debug)]
pub struct Roadwise {
    datagram: f64,
    window: f64,
    mode: Mode,
    base: Base,
    round: Round,
    delivered: Delivered,
    usual: Usual,
    /// Packets and losses since they were last judged.
    tally: (f64, f64),
    /// Rounds until the last change shows.
    unsettled: u32,
    /// The round-trip time of the last round.
    rtt: Duration,
    /// Bytes a second that arrived in the last round that sent all it might.
    rate: f64,
    /// Answers at the start, and the shortest round trip of them.
    latest: (u32, Duration),
    /// Rounds without a queue.
    free: u32,
    reductions: u32,
    /// How long packets waited at the last one, and the window before the first.
    waited: Duration,
    had: f64,
    retry: Duration,
    /// It was here before something made it retreat, and goes back faster.
    regain: f64,
    /// The window with which losses showed the link full, and when.
    ceiling: Option<(f64, Instant)>,
    trial_at: Option<Instant>,
    /// When the last acknowledgement came.
    heard: Instant,
    begun: Instant,
    /// Losses of what was sent before count once.
    recovery: Instant,
}

impl Roadwise {
    /// Begins with 10 datagrams or so.
    #[must_use]
    pub fn new(now: Instant, datagram_bytes: u64) -> Roadwise {
        let window = INITIAL_WINDOW_BYTES as f64;
        Roadwise {
            datagram: (datagram_bytes as f64).max(1.0),
            window,
            mode: Mode::Start,
            base: Base::new(now),
            round: Round::new(now, window),
            delivered: Delivered::default(),
            usual: Usual::default(),
            tally: (0.0, 0.0),
            unsettled: 0,
            rtt: Duration::ZERO,
            rate: 0.0,
            latest: (0, Duration::MAX),
            free: 0,
            reductions: 0,
            waited: Duration::ZERO,
            had: 0.0,
            retry: RETRY,
            regain: 0.0,
            ceiling: None,
            trial_at: None,
            heard: now,
            begun: now,
            recovery: now,
        }
    }

    /// Bytes that may be in flight.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.window as u64
    }

    /// Datagrams have so many bytes from now on.
    pub fn datagrams_are(&mut self, bytes: u64) {
        self.datagram = (bytes as f64).max(1.0);
        self.set(self.window);
    }

    /// Something was sent. This may be an acknowledgement, to which nobody answers: that nothing is heard since then
    /// means nothing.
    pub fn sent(&mut self, now: Instant) {
        if now.saturating_duration_since(self.heard) > FORGET {
            *self = Roadwise::new(now, self.datagram as u64);
        }
    }

    /// A packet of so many bytes that was `sent` at some time has arrived. `limited`: there was nothing more to send.
    pub fn acked(&mut self, now: Instant, sent: Instant, bytes: u64, limited: bool) {
        self.heard = now;
        let took = now.saturating_duration_since(sent);
        self.base.see(now, took);
        self.round.least = self.round.least.min(took);
        self.round.acked += bytes as f64;
        self.round.packets += 1;
        self.round.limited += u32::from(limited);
        if let Mode::Start = self.mode {
            self.start(now, took, bytes as f64, limited);
        }
        if sent >= self.round.began {
            self.end_round(now);
        }
    }

    /// So many bytes are lost, of which the latest was `sent` then.
    pub fn lost(&mut self, now: Instant, sent: Instant, bytes: u64, persistent: bool) {
        self.round.lost += bytes as f64;
        if persistent {
            self.retreat();
        }
        if self.usual.share() < HARDLY_ANY {
            self.lost_in_competition(now, sent);
        }
    }

    /// A router says that its queue is full, of a packet `sent` then.
    pub fn marked(&mut self, now: Instant, sent: Instant) {
        if let Mode::Competition { .. } = self.mode {
            self.lost_in_competition(now, sent);
        } else if sent > self.recovery {
            self.recovery = now;
            self.mode = Mode::Delay;
            self.change(self.window * DRAIN);
        }
    }

    fn lost_in_competition(&mut self, now: Instant, sent: Instant) {
        let Mode::Competition { cubic, .. } = &mut self.mode else { return };
        if sent > self.recovery {
            self.recovery = now;
            cubic.lost(now, self.window / self.datagram);
            let window = cubic.window(now, self.rtt) * self.datagram;
            self.set(window);
        }
    }

    /// Doubles the window a round, until something waits.
    fn start(&mut self, now: Instant, took: Duration, bytes: f64, limited: bool) {
        self.latest = (self.latest.0 + 1, self.latest.1.min(took));
        let waits = self.latest.1.saturating_sub(self.base.get()) > self.base.allowed();
        let known = self.latest.0 >= ANSWERS;
        if known {
            self.latest = (0, Duration::MAX);
        }
        if known && waits {
            let time = now.saturating_duration_since(self.round.began).as_secs_f64();
            let rate = self.rate.max(self.round.acked / time.max(1e-3));
            self.leave_start(rate);
        } else if !limited || self.window < BEGINNING_WINDOWS * INITIAL_WINDOW_BYTES as f64 {
            // The packets of the handshake and of small answers count as well at first, whole, as they do in Linux' TCP.
            let bytes = if self.window < BEGINNING_WINDOWS * INITIAL_WINDOW_BYTES as f64 {
                bytes.max(self.datagram)
            } else {
                bytes
            };
            let most = 2.0 * self.round.window;
            self.set((self.window + bytes / self.usual.arrives()).min(most.max(self.window)));
        }
    }

    fn leave_start(&mut self, rate: f64) {
        self.mode = Mode::Delay;
        let carries = rate / self.usual.arrives();
        let fits = carries * (self.base.get() + self.base.aim()).as_secs_f64();
        self.change(fits.min(self.window));
        self.unsettled = 2;
    }

    fn end_round(&mut self, now: Instant) {
        let round = std::mem::replace(&mut self.round, Round::new(now, self.window));
        let time = now.saturating_duration_since(round.began);
        self.rtt = round.least;
        if round.is_limited() {
            // What a few packets meet says nothing of what many would.
            self.tally = (0.0, 0.0);
            if let Mode::Trial(Trial { before, .. }) | Mode::Look(before, _) = self.mode {
                self.mode = Mode::Delay;
                self.change(before);
            }
            return;
        }
        self.delivered.note(round.acked);
        self.rate = round.acked / time.as_secs_f64().max(1e-3);
        self.base.packet_takes(self.datagram * self.usual.arrives() / self.rate.max(1.0));
        let (packets, lost) =
            ((round.acked + round.lost) / self.datagram, round.lost / self.datagram);
        let queue = round.least.saturating_sub(self.base.get());
        let full = queue > self.base.allowed();
        if full {
            self.free = 0;
        } else {
            self.free = self.free.saturating_add(1);
        }
        match self.mode {
            Mode::Competition { .. } => self.compete(now, full, packets, lost),
            Mode::Trial(trial) => self.judge(now, trial, &round, time, full),
            Mode::Look(before, 0) => {
                self.mode = Mode::Delay;
                self.change(before);
            }
            Mode::Look(before, rounds) => self.mode = Mode::Look(before, rounds - 1),
            _ if self.unsettled > 0 => self.unsettled -= 1,
            Mode::Start => {
                self.judge_losses(now, queue, packets, lost);
            }
            Mode::Delay if full => self.drain(now, queue),
            Mode::Delay => {
                self.reductions = 0;
                if self.judge_losses(now, queue, packets, lost) {
                    self.grow(now, queue);
                }
            }
        }
        self.round.window = self.window;
    }

    /// Takes note of what was lost. Gives whether there is nothing against growing.
    fn judge_losses(&mut self, now: Instant, queue: Duration, packets: f64, lost: f64) -> bool {
        let nothing_waits = queue <= self.base.allowed() / 2;
        if self.usual.packets() < FIRST_PACKETS {
            if nothing_waits {
                self.usual.learn(packets, lost);
            }
            return true;
        }
        self.tally = (self.tally.0 + packets, self.tally.1 + lost);
        let (packets, lost) = self.tally;
        if packets < ENOUGH_PACKETS {
            return true;
        }
        self.tally = (0.0, 0.0);
        if self.usual.is_exceeded(packets, lost, EXCESS) {
            self.doubt(now, lost / packets);
            return false;
        }
        let chance = !self.usual.is_exceeded(packets, lost, 0.0);
        if nothing_waits && chance {
            self.usual.learn(packets, lost);
        }
        chance
    }

    /// More is lost than by chance, or chance is another now.
    fn doubt(&mut self, now: Instant, lost: f64) {
        if self.window < FEW_DATAGRAMS * self.datagram {
            // Too few packets to learn more from half of them, and hardly worth more.
            if self.window < NEAR_LEAST * LEAST_DATAGRAMS * self.datagram {
                self.usual.relearn(ENOUGH_PACKETS, lost * ENOUGH_PACKETS);
            }
            self.change(self.window * DRAIN);
            return;
        }
        if self.is_near_ceiling(now) {
            self.ceiling = Some((self.window, now));
            self.begin_competition(now, self.window * BETA, true);
            return;
        }
        let lately = |at: Instant| now.saturating_duration_since(at) < TRIALS;
        if !self.trial_at.is_some_and(lately) {
            self.try_half(now, lost);
        }
    }

    fn is_near_ceiling(&self, now: Instant) -> bool {
        self.ceiling.is_some_and(|(window, at)| {
            self.window >= NEAR * window && now.saturating_duration_since(at) < REMEMBERED
        })
    }

    /// Begins a trial.
    fn try_half(&mut self, now: Instant, lost: f64) {
        self.trial_at = Some(now);
        // At the start the window may be far more than what is carried.
        let fits = self.rate / self.usual.arrives() * self.base.get().as_secs_f64();
        let before = if let Mode::Start = self.mode { self.window.min(fits) } else { self.window };
        let middle = f64::midpoint(self.usual.share(), lost);
        self.mode = Mode::Trial(Trial::new(before, self.rate, middle));
        self.change(before * TRIAL);
    }

    /// Ends a trial when it has shown something.
    fn judge(&mut self, now: Instant, mut trial: Trial, round: &Round, time: Duration, full: bool) {
        trial.rounds += 1;
        if trial.rounds > TRIAL_SETTLES {
            trial.acked += round.acked;
            trial.lost += round.lost;
            trial.time += time;
        }
        let packets = (trial.acked + trial.lost) / self.datagram;
        if packets < TRIAL_PACKETS && trial.rounds < TRIAL_ROUNDS {
            self.mode = Mode::Trial(trial);
            return;
        }
        let rate = trial.acked / trial.time.as_secs_f64().max(1e-3);
        if !full && rate > NO_LESS * trial.rate && self.window > FEW_DATAGRAMS * self.datagram {
            // Half is sent, and as much arrives: it was far more than the link carries, and perhaps still is.
            self.mode = Mode::Trial(Trial::new(self.window, rate, trial.middle));
            self.change(self.window * TRIAL);
            return;
        }
        self.mode = Mode::Delay;
        let deviation = (trial.middle * (1.0 - trial.middle) / packets.max(1.0)).sqrt();
        let share = trial.lost / (trial.acked + trial.lost).max(1.0);
        let fewer = share < trial.middle - deviation;
        if !full {
            self.usual.relearn(packets, trial.lost / self.datagram);
        }
        if full || fewer {
            let fits = trial.rate / self.usual.arrives() * self.base.get().as_secs_f64();
            let most = trial.before.min(fits);
            self.ceiling = Some((most, now));
            if full {
                self.change(most * DRAIN);
            } else {
                // Whoever shares it has nothing but losses to go by.
                self.begin_competition(now, most * NEAR, true);
            }
        } else {
            self.change(trial.before);
        }
    }

    /// Something waits: lowers the window to what leaves the queue that is aimed at.
    fn drain(&mut self, now: Instant, queue: Duration) {
        let shrinks = self.reductions > 0 && queue < self.waited.mul_f64(SHRINKS);
        if self.reductions == 0 {
            self.had = self.had.max(self.window);
        }
        self.reductions = if shrinks { 1 } else { self.reductions + 1 };
        self.waited = queue;
        if self.reductions > PATIENCE {
            self.begin_competition(now, self.had.max(self.window) * BETA, false);
            return;
        }
        let base = self.base.get();
        let aim = (base + self.base.aim()).as_secs_f64() / (base + queue).as_secs_f64();
        self.change(self.window * aim);
    }

    fn begin_competition(&mut self, now: Instant, window: f64, shallow: bool) {
        let cubic = Cubic::new(now, window / self.datagram);
        self.mode = Mode::Competition { cubic, since: now, full_at: now, shallow };
        self.reductions = 0;
        self.recovery = now;
        self.set(window);
    }

    /// Nothing waits, or no longer than it should: there is room.
    fn grow(&mut self, now: Instant, queue: Duration) {
        let look = now.saturating_duration_since(self.base.near()) > LOOK;
        let first = self.begun + (CHECK_ROUNDS * self.rtt).min(CHECK);
        let due = self.trial_at.map_or(first, |at| at + CHECK);
        let doubtful = self.usual.share() > DOUBTFUL && self.window > FEW_DATAGRAMS * self.datagram;
        if doubtful && now > due {
            // Perhaps it was our own queue that taught it.
            self.try_half(now, self.usual.share() / 2.0);
            return;
        }
        if look {
            self.mode = Mode::Look(self.window, LOOK_ROUNDS);
            self.change(self.window * LOOK_WINDOW);
            return;
        }
        if self.free > FREE_ROUNDS {
            (self.had, self.retry) = (0.0, RETRY);
        }
        let base = self.base.get();
        let aim = (base + self.base.aim()).as_secs_f64() / (base + queue).as_secs_f64();
        let near = self.is_near_ceiling(now);
        let again = self.window < NEAR * self.regain;
        let most = match self.free {
            _ if near => GROWTH_NEAR,
            _ if again => GROWTH_AGAIN,
            FREE_ROUNDS.. => GROWTH_FREE,
            _ => GROWTH,
        };
        if !again {
            self.regain = 0.0;
        }
        // With hardly a queue the aim is near, however far the window is from what the link carries.
        let step =
            if aim > 1.0 && queue < self.base.aim() / 2 { most } else { 1.0 + STEP * (aim - 1.0) };
        self.set(self.window * step.min(most));
    }

    /// Has what TCP would have.
    fn compete(&mut self, now: Instant, full: bool, packets: f64, lost: f64) {
        let Mode::Competition { mut cubic, since, mut full_at, shallow } = self.mode else {
            return;
        };
        if full {
            full_at = now;
        }
        let empty =
            !shallow && now.saturating_duration_since(full_at) > GONE.max(GONE_ROUNDS * self.rtt);
        if empty || now.saturating_duration_since(since) > self.retry {
            // Perhaps it is our own queue by now.
            self.had = if empty { 0.0 } else { self.window / BETA };
            self.retry = if empty { RETRY } else { (2 * self.retry).min(MOST_RETRY) };
            self.mode = Mode::Delay;
            return;
        }
        let lossy = self.usual.share() >= HARDLY_ANY;
        if lossy && self.usual.is_exceeded(packets, lost, EXCESS_IN_COMPETITION) {
            cubic.lost(now, self.window / self.datagram);
        }
        self.mode = Mode::Competition { cubic, since, full_at, shallow };
        self.set(cubic.window(now, self.rtt) * self.datagram);
    }

    /// Nothing got through for some time (RFC 9002 section 7.6).
    fn retreat(&mut self) {
        self.regain = self.regain.max(self.window);
        self.mode = Mode::Delay;
        self.change(self.window / 2.0);
    }

    /// Another window, whose effect is to be waited for.
    fn change(&mut self, window: f64) {
        self.unsettled = 1;
        self.tally = (0.0, 0.0);
        self.set(window);
    }

    fn set(&mut self, window: f64) {
        // At the start what was delivered is what was sent a round trip ago, with half the window.
        let rounds = if let Mode::Start = self.mode { 2.0 } else { 1.0 } * MOST_ROUNDS;
        let delivered = self.delivered.most().max(self.round.acked);
        let most = (rounds * delivered / self.usual.arrives())
            .max(BEGINNING_WINDOWS * INITIAL_WINDOW_BYTES as f64);
        self.window = window.min(most).max(LEAST_DATAGRAMS * self.datagram);
    }
}
