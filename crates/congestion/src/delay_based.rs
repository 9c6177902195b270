//! [`DelayBased`]: delay-based congestion control that tolerates random loss.
//!
//! Once per round trip, it sets the window so that a queue of a few milliseconds remains at the bottleneck, as FAST TCP
//! does: window × (base RTT + target queue) / (base RTT + present queue). CUBIC treats every loss as congestion; here
//! only losses above the path's baseline loss rate count. BBR follows the delivery rate, which random loss makes
//! uneven; here the rate only limits the window. The modes:
//!
//! - `SlowStart` doubles the window per round trip until packets queue.
//! - `Delay` is as described above.
//! - `LossTrial` follows when loss exceeds the baseline but no queue is measured, perhaps because the buffer is shallow:
//!   it halves the window for some rounds. If loss falls, it was congestion; if not, the baseline is higher now.
//! - `ProbeRtt` shrinks the window for two rounds if the base RTT was not seen for 20 s, as in BBR.
//! - `Competitive` uses CUBIC's window: after a trial found a shallow buffer, or while reductions do not shorten the
//!   queue because another flow fills it, as in Copa's TCP-competitive mode.

use std::time::{Duration, Instant};

use crate::baseline_loss::BaselineLoss;
use crate::choice::INITIAL_WINDOW_BYTES;
use crate::cubic::{BETA, Cubic};
use crate::loss_trial::LossTrial;
use crate::path::{BaseRtt, Delivered, Round};

/// Up to this many initial windows, the window grows even while the application sends little.
const STARTUP_WINDOWS: f64 = 2.0;
/// Smallest window in datagrams: with fewer in flight, only a timer detects the loss of one.
const MIN_DATAGRAMS: f64 = 4.0;
/// Largest window, in rounds of delivered bytes and of random losses.
const MAX_ROUNDS_IN_FLIGHT: f64 = 2.0;
/// Acknowledgements in slow start from which a queue is detected before the round ends.
const RTT_SAMPLES: u32 = 8;
/// A delay above the base RTT that is longer than half of that, and than this, lets the window of slow start grow no more,
/// and a loss end it.
const MIN_LONG_QUEUE: Duration = Duration::from_millis(30);
/// Share of the way to the target window that is covered per round.
const STEP: f64 = 0.5;
/// Largest growth per round: normally, after `UNQUEUED_ROUNDS` rounds without a queue, and below a former window.
const GROWTH: f64 = 1.1;
const UNQUEUED_ROUNDS: u32 = 10;
const GROWTH_UNQUEUED: f64 = 1.25;
const GROWTH_REGAIN: f64 = 1.5;
/// The share of the ceiling (the window at which losses last showed that the link was full) above which growth is
/// slower, and how long the ceiling is remembered.
const NEAR_CEILING: f64 = 0.9;
const GROWTH_NEAR_CEILING: f64 = 1.02;
const CEILING_AGE: Duration = Duration::from_secs(60);
/// Factor of the window after a trial that found a queue, and after an ECN mark.
const BACKOFF: f64 = 0.85;
/// Loss above the baseline, as a share of packets, that is examined.
const EXCESS: f64 = 0.01;
const EXCESS_IN_COMPETITION: f64 = 0.02;
/// Packets from which loss is measured.
const SAMPLE_PACKETS: f64 = 50.0;
/// The first packets, whose losses all count towards the baseline.
const FIRST_PACKETS: f64 = 100.0;
/// Below this baseline, every loss counts as congestion while another flow competes.
const NEGLIGIBLE_LOSS: f64 = 0.003;
/// A loss trial: the factor of the window, the least time between trials, the rounds until losses are those of the
/// smaller window, and the packets or rounds that are enough for a result.
const TRIAL_WINDOW: f64 = 0.5;
const TRIAL_INTERVAL: Duration = Duration::from_secs(10);
const TRIAL_SETTLE_ROUNDS: u32 = 2;
const TRIAL_PACKETS: f64 = 80.0;
const TRIAL_ROUNDS: u32 = 8;
/// If half the window delivers at least this share of the former rate, the window was far too large.
const OVERLOADED: f64 = 0.75;
/// A baseline above this is checked by a trial at this interval.
const RECHECK_LOSS: f64 = 0.01;
const RECHECK_INTERVAL: Duration = Duration::from_secs(20);
/// The first check comes after this many round trips, if that is sooner: the first packets may have met a full queue.
const FIRST_RECHECK_ROUNDS: u32 = 100;
/// With fewer datagrams in flight there are no trials.
const MIN_TRIAL_DATAGRAMS: f64 = 8.0;
/// A window below this factor of the smallest one does not cause losses: they become the baseline.
const NEAR_MIN: f64 = 1.25;
/// More reductions in a row without a shorter queue show that another flow fills the queue; it is shorter below this
/// factor.
const MAX_REDUCTIONS: u32 = 2;
const SHRINKING: f64 = 0.8;
/// Competitive mode ends after this time, twice as long each time, or when there was no queue for `QUEUE_GONE`.
const RETRY_DELAY: Duration = Duration::from_secs(15);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);
const QUEUE_GONE: Duration = Duration::from_secs(1);
const QUEUE_GONE_ROUNDS: u32 = 4;
/// If the base RTT was not seen for this long, the window shrinks by this factor for these rounds.
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(20);
const PROBE_RTT_WINDOW: f64 = 0.6;
const PROBE_RTT_ROUNDS: u32 = 2;
/// After this time without an acknowledgement, the controller starts again.
const IDLE_RESET: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum Mode {
    SlowStart,
    Delay,
    /// Measures the base RTT without an own queue; has the former window, and the rounds left.
    ProbeRtt(f64, u32),
    LossTrial(LossTrial),
    /// Another flow fills the queue, or the buffer is too `shallow` to measure a queue. `full_at` is when there was last a
    /// queue.
    Competitive {
        cubic: Cubic,
        since: Instant,
        full_at: Instant,
        shallow: bool,
    },
}

/// Delay-based congestion control that tolerates random loss. See the README.
#[derive(Clone, Debug)]
pub struct DelayBased {
    datagram: f64,
    window: f64,
    mode: Mode,
    base_rtt: BaseRtt,
    round: Round,
    delivered: Delivered,
    baseline: BaselineLoss,
    /// Packets sent and lost since losses were last checked.
    tally: (f64, f64),
    /// Rounds until the last change of the window has an effect.
    unsettled: u32,
    /// The round-trip time of the last round.
    rtt: Duration,
    /// Bytes per second delivered in the last round that the application did not limit.
    rate: f64,
    /// Acknowledgements in slow start, and the shortest RTT of them.
    recent: (u32, Duration),
    /// Whether the latest packet acknowledged in slow start had waited long. Of those that one acknowledgement names, the
    /// last shows the delay: others may have been acknowledged before, by one that was lost.
    is_delayed: bool,
    /// Successive rounds without a queue.
    unqueued_rounds: u32,
    /// Successive reductions of the window.
    reductions: u32,
    /// The queue at the last reduction, and the window before the first.
    last_queue: Duration,
    window_before_queue: f64,
    retry: Duration,
    /// The window before persistent congestion, to which it returns faster.
    regain: f64,
    /// The window at which losses showed that the link was full, and when.
    ceiling: Option<(f64, Instant)>,
    trial_at: Option<Instant>,
    /// When the last acknowledgement was received.
    last_ack: Instant,
    started: Instant,
    /// Losses of packets sent before this time count once (RFC 9002 section 7.3.2).
    recovery_start: Instant,
}

impl DelayBased {
    /// Starts with about 10 datagrams.
    pub fn new(now: Instant, datagram_bytes: u64) -> DelayBased {
        let window = INITIAL_WINDOW_BYTES as f64;
        DelayBased {
            datagram: (datagram_bytes as f64).max(1.0),
            window,
            mode: Mode::SlowStart,
            base_rtt: BaseRtt::new(now),
            round: Round::new(now, window),
            delivered: Delivered::default(),
            baseline: BaselineLoss::default(),
            tally: (0.0, 0.0),
            unsettled: 0,
            rtt: Duration::ZERO,
            rate: 0.0,
            recent: (0, Duration::MAX),
            is_delayed: false,
            unqueued_rounds: 0,
            reductions: 0,
            last_queue: Duration::ZERO,
            window_before_queue: 0.0,
            retry: RETRY_DELAY,
            regain: 0.0,
            ceiling: None,
            trial_at: None,
            last_ack: now,
            started: now,
            recovery_start: now,
        }
    }

    /// Bytes that may be in flight.
    pub fn window(&self) -> u64 {
        self.window as u64
    }

    /// Sets the size of datagrams.
    pub fn set_datagram_bytes(&mut self, bytes: u64) {
        self.datagram = (bytes as f64).max(1.0);
        self.set_window(self.window);
    }

    /// A packet was sent. It may contain only acknowledgements, which are not acknowledged in turn, so no conclusion is
    /// drawn from packets without a response.
    pub fn on_sent(&mut self, now: Instant) {
        if now.saturating_duration_since(self.last_ack) > IDLE_RESET {
            *self = DelayBased::new(now, self.datagram as u64);
        }
    }

    /// A packet of `bytes` that was sent at `sent` is acknowledged. `limited`: the application had no more to send.
    pub fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, limited: bool) {
        self.last_ack = now;
        let took = now.saturating_duration_since(sent);
        self.base_rtt.sample(now, took);
        self.round.min_rtt = self.round.min_rtt.min(took);
        self.round.acked += bytes as f64;
        self.round.packets += 1;
        self.round.app_limited += u32::from(limited);
        if let Mode::SlowStart = self.mode {
            self.slow_start(now, took, bytes as f64, limited);
        }
        if sent >= self.round.began {
            self.end_round(now);
        }
    }

    /// `bytes` are lost; the latest packet of them was sent at `sent`.
    pub fn on_loss(&mut self, now: Instant, sent: Instant, bytes: u64, persistent: bool) {
        self.round.lost += bytes as f64;
        if persistent {
            self.on_persistent_congestion();
        } else if let (Mode::SlowStart, true) = (self.mode, self.is_delayed) {
            self.leave_slow_start(now);
        }
        if self.baseline.share() < NEGLIGIBLE_LOSS {
            self.on_loss_in_competition(now, sent);
        }
    }

    /// A router has marked a packet that was sent at `sent` (ECN).
    pub fn on_ecn_mark(&mut self, now: Instant, sent: Instant) {
        if let Mode::Competitive { .. } = self.mode {
            self.on_loss_in_competition(now, sent);
        } else if sent > self.recovery_start {
            self.recovery_start = now;
            self.mode = Mode::Delay;
            self.change_window(self.window * BACKOFF);
        }
    }

    fn on_loss_in_competition(&mut self, now: Instant, sent: Instant) {
        let Mode::Competitive { cubic, .. } = &mut self.mode else { return };
        if sent > self.recovery_start {
            self.recovery_start = now;
            cubic.lost(now, self.window / self.datagram);
            let window = cubic.window(now, self.rtt) * self.datagram;
            self.set_window(window);
        }
    }

    /// Doubles the window per round until packets queue.
    fn slow_start(&mut self, now: Instant, took: Duration, bytes: f64, limited: bool) {
        self.recent = (self.recent.0 + 1, self.recent.1.min(took));
        let waits =
            self.recent.1.saturating_sub(self.base_rtt.get()) > self.base_rtt.queue_threshold();
        let known = self.recent.0 >= RTT_SAMPLES;
        if known {
            self.recent = (0, Duration::MAX);
        }
        // A thin link queues the first packets themselves: those that waited long are no reason to send more.
        let base = self.base_rtt.get();
        self.is_delayed = took > base + (base / 2).max(MIN_LONG_QUEUE);
        if known && waits {
            self.leave_slow_start(now);
        } else if self.is_delayed {
            // It does not grow, but its bounds may have shrunk.
            self.set_window(self.window);
        } else if !limited || self.window < STARTUP_WINDOWS * INITIAL_WINDOW_BYTES as f64 {
            // At first, packets of the handshake and of small responses count as full ones, as in Linux' TCP.
            let bytes = if self.window < STARTUP_WINDOWS * INITIAL_WINDOW_BYTES as f64 {
                bytes.max(self.datagram)
            } else {
                bytes
            };
            let most = 2.0 * self.round.window;
            self.set_window(
                (self.window + bytes / self.baseline.delivered_share()).min(most.max(self.window)),
            );
        }
    }

    fn leave_slow_start(&mut self, now: Instant) {
        let time = now.saturating_duration_since(self.round.began).as_secs_f64();
        let rate = self.rate.max(self.round.acked / time.max(1e-3));
        self.mode = Mode::Delay;
        let carries = rate / self.baseline.delivered_share();
        let fits = carries * (self.base_rtt.get() + self.base_rtt.target_queue()).as_secs_f64();
        self.change_window(fits.max(BETA * self.window).min(self.window));
        self.unsettled = 2;
    }

    fn end_round(&mut self, now: Instant) {
        let round = std::mem::replace(&mut self.round, Round::new(now, self.window));
        let time = now.saturating_duration_since(round.began);
        self.rtt = round.min_rtt;
        if round.is_app_limited() {
            // The delay of a few packets does not show that of many.
            self.tally = (0.0, 0.0);
            if let Mode::LossTrial(LossTrial { before, .. }) | Mode::ProbeRtt(before, _) = self.mode
            {
                self.mode = Mode::Delay;
                self.change_window(before);
            }
            return;
        }
        self.delivered.record(round.acked);
        self.rate = round.acked / time.as_secs_f64().max(1e-3);
        self.base_rtt
            .set_packet_time(self.datagram * self.baseline.delivered_share() / self.rate.max(1.0));
        let (packets, lost) =
            ((round.acked + round.lost) / self.datagram, round.lost / self.datagram);
        let queue = round.min_rtt.saturating_sub(self.base_rtt.get());
        let full = queue > self.base_rtt.queue_threshold();
        if full {
            self.unqueued_rounds = 0;
        } else {
            self.unqueued_rounds = self.unqueued_rounds.saturating_add(1);
        }
        match self.mode {
            Mode::Competitive { .. } => self.compete(now, full, packets, lost),
            Mode::LossTrial(trial) => self.continue_trial(now, trial, &round, time, full),
            Mode::ProbeRtt(before, 0) => {
                self.mode = Mode::Delay;
                self.change_window(before);
            }
            Mode::ProbeRtt(before, rounds) => self.mode = Mode::ProbeRtt(before, rounds - 1),
            _ if self.unsettled > 0 => self.unsettled -= 1,
            Mode::SlowStart => {
                self.check_losses(now, queue, packets, lost);
            }
            Mode::Delay if full => self.reduce(now, queue),
            Mode::Delay => {
                self.reductions = 0;
                if self.check_losses(now, queue, packets, lost) {
                    self.grow(now, queue);
                }
            }
        }
        self.round.window = self.window;
    }

    /// Compares losses with the baseline. Returns whether the window may grow.
    fn check_losses(&mut self, now: Instant, queue: Duration, packets: f64, lost: f64) -> bool {
        let unqueued = queue <= self.base_rtt.queue_threshold() / 2;
        if self.baseline.packets() < FIRST_PACKETS {
            if unqueued {
                self.baseline.update(packets, lost);
            }
            return true;
        }
        self.tally = (self.tally.0 + packets, self.tally.1 + lost);
        let (packets, lost) = self.tally;
        if packets < SAMPLE_PACKETS {
            return true;
        }
        self.tally = (0.0, 0.0);
        if self.baseline.is_exceeded(packets, lost, EXCESS) {
            self.on_excess_loss(now, lost / packets);
            return false;
        }
        let is_random = !self.baseline.is_exceeded(packets, lost, 0.0);
        if unqueued && is_random {
            self.baseline.update(packets, lost);
        }
        is_random
    }

    /// Loss is above the baseline: congestion, or the baseline has changed.
    fn on_excess_loss(&mut self, now: Instant, lost: f64) {
        if self.window < MIN_TRIAL_DATAGRAMS * self.datagram {
            // Half of the window would be too few packets to measure loss.
            if self.window < NEAR_MIN * MIN_DATAGRAMS * self.datagram {
                self.baseline.reset(SAMPLE_PACKETS, lost * SAMPLE_PACKETS);
            }
            self.change_window(self.window * BACKOFF);
            return;
        }
        if self.is_near_ceiling(now) {
            self.ceiling = Some((self.window, now));
            self.begin_competition(now, self.window * BETA, true);
            return;
        }
        let lately = |at: Instant| now.saturating_duration_since(at) < TRIAL_INTERVAL;
        if !self.trial_at.is_some_and(lately) {
            self.start_trial(now, lost);
        }
    }

    fn is_near_ceiling(&self, now: Instant) -> bool {
        self.ceiling.is_some_and(|(window, at)| {
            self.window >= NEAR_CEILING * window && now.saturating_duration_since(at) < CEILING_AGE
        })
    }

    /// Begins a trial.
    fn start_trial(&mut self, now: Instant, lost: f64) {
        self.trial_at = Some(now);
        // In slow start, the window may be far above what the link carries.
        let fits = self.rate / self.baseline.delivered_share() * self.base_rtt.get().as_secs_f64();
        let before =
            if let Mode::SlowStart = self.mode { self.window.min(fits) } else { self.window };
        let middle = f64::midpoint(self.baseline.share(), lost);
        self.mode = Mode::LossTrial(LossTrial::new(before, self.rate, middle));
        self.change_window(before * TRIAL_WINDOW);
    }

    /// Counts a round of a trial, and ends the trial if it has a result.
    fn continue_trial(
        &mut self,
        now: Instant,
        mut trial: LossTrial,
        round: &Round,
        time: Duration,
        full: bool,
    ) {
        trial.rounds += 1;
        if trial.rounds > TRIAL_SETTLE_ROUNDS {
            trial.acked += round.acked;
            trial.lost += round.lost;
            trial.time += time;
        }
        let packets = (trial.acked + trial.lost) / self.datagram;
        if packets < TRIAL_PACKETS && trial.rounds < TRIAL_ROUNDS {
            self.mode = Mode::LossTrial(trial);
            return;
        }
        let rate = trial.acked / trial.time.as_secs_f64().max(1e-3);
        if !full
            && rate > OVERLOADED * trial.rate
            && self.window > MIN_TRIAL_DATAGRAMS * self.datagram
        {
            // Half the window delivers as much: the window was far above what the link carries, and may still be.
            self.mode = Mode::LossTrial(LossTrial::new(self.window, rate, trial.middle));
            self.change_window(self.window * TRIAL_WINDOW);
            return;
        }
        self.mode = Mode::Delay;
        let deviation = (trial.middle * (1.0 - trial.middle) / packets.max(1.0)).sqrt();
        let share = trial.lost / (trial.acked + trial.lost).max(1.0);
        let fewer = share < trial.middle - deviation;
        if !full {
            self.baseline.reset(packets, trial.lost / self.datagram);
        }
        if full || fewer {
            let fits =
                trial.rate / self.baseline.delivered_share() * self.base_rtt.get().as_secs_f64();
            let most = trial.before.min(fits);
            self.ceiling = Some((most, now));
            if full {
                self.change_window(most * BACKOFF);
            } else {
                // Other flows on this link can only follow losses.
                self.begin_competition(now, most * NEAR_CEILING, true);
            }
        } else {
            self.change_window(trial.before);
        }
    }

    /// There is a queue: lowers the window to the one that leaves the target queue.
    fn reduce(&mut self, now: Instant, queue: Duration) {
        let is_shrinking = self.reductions > 0 && queue < self.last_queue.mul_f64(SHRINKING);
        if self.reductions == 0 {
            self.window_before_queue = self.window_before_queue.max(self.window);
        }
        self.reductions = if is_shrinking { 1 } else { self.reductions + 1 };
        self.last_queue = queue;
        if self.reductions > MAX_REDUCTIONS {
            self.begin_competition(now, self.window_before_queue.max(self.window) * BETA, false);
            return;
        }
        let base = self.base_rtt.get();
        let aim =
            (base + self.base_rtt.target_queue()).as_secs_f64() / (base + queue).as_secs_f64();
        self.change_window(self.window * aim);
    }

    fn begin_competition(&mut self, now: Instant, window: f64, shallow: bool) {
        let cubic = Cubic::new(now, window / self.datagram);
        self.mode = Mode::Competitive { cubic, since: now, full_at: now, shallow };
        self.reductions = 0;
        self.recovery_start = now;
        self.set_window(window);
    }

    /// The queue is at most the target: raises the window.
    fn grow(&mut self, now: Instant, queue: Duration) {
        let probe = now.saturating_duration_since(self.base_rtt.last_near()) > PROBE_RTT_INTERVAL;
        let first = self.started + (FIRST_RECHECK_ROUNDS * self.rtt).min(RECHECK_INTERVAL);
        let due = self.trial_at.map_or(first, |at| at + RECHECK_INTERVAL);
        let doubtful = self.baseline.share() > RECHECK_LOSS
            && self.window > MIN_TRIAL_DATAGRAMS * self.datagram;
        if doubtful && now > due {
            // The own queue may have caused the baseline.
            self.start_trial(now, self.baseline.share() / 2.0);
            return;
        }
        if probe {
            self.mode = Mode::ProbeRtt(self.window, PROBE_RTT_ROUNDS);
            self.change_window(self.window * PROBE_RTT_WINDOW);
            return;
        }
        if self.unqueued_rounds > UNQUEUED_ROUNDS {
            (self.window_before_queue, self.retry) = (0.0, RETRY_DELAY);
        }
        let base = self.base_rtt.get();
        let aim =
            (base + self.base_rtt.target_queue()).as_secs_f64() / (base + queue).as_secs_f64();
        let near = self.is_near_ceiling(now);
        let again = self.window < NEAR_CEILING * self.regain;
        let most = match self.unqueued_rounds {
            _ if near => GROWTH_NEAR_CEILING,
            _ if again => GROWTH_REGAIN,
            UNQUEUED_ROUNDS.. => GROWTH_UNQUEUED,
            _ => GROWTH,
        };
        if !again {
            self.regain = 0.0;
        }
        // With nearly no queue the target window is near, however much more the link carries.
        let step = if aim > 1.0 && queue < self.base_rtt.target_queue() / 2 {
            most
        } else {
            1.0 + STEP * (aim - 1.0)
        };
        self.set_window(self.window * step.min(most));
    }

    /// Sets the window to CUBIC's, or ends competition.
    fn compete(&mut self, now: Instant, full: bool, packets: f64, lost: f64) {
        let Mode::Competitive { mut cubic, since, mut full_at, shallow } = self.mode else {
            return;
        };
        if full {
            full_at = now;
        }
        let is_gone = !shallow
            && now.saturating_duration_since(full_at)
                > QUEUE_GONE.max(QUEUE_GONE_ROUNDS * self.rtt);
        if is_gone || now.saturating_duration_since(since) > self.retry {
            // The queue may be the own one by now.
            self.window_before_queue = if is_gone { 0.0 } else { self.window / BETA };
            self.retry = if is_gone { RETRY_DELAY } else { (2 * self.retry).min(MAX_RETRY_DELAY) };
            self.mode = Mode::Delay;
            return;
        }
        let is_lossy = self.baseline.share() >= NEGLIGIBLE_LOSS;
        if is_lossy && self.baseline.is_exceeded(packets, lost, EXCESS_IN_COMPETITION) {
            cubic.lost(now, self.window / self.datagram);
        }
        self.mode = Mode::Competitive { cubic, since, full_at, shallow };
        self.set_window(cubic.window(now, self.rtt) * self.datagram);
    }

    /// Persistent congestion (RFC 9002 section 7.6): halves the window.
    fn on_persistent_congestion(&mut self) {
        self.regain = self.regain.max(self.window);
        self.mode = Mode::Delay;
        self.change_window(self.window / 2.0);
    }

    /// Sets a window whose effect shows after a round.
    fn change_window(&mut self, window: f64) {
        self.unsettled = 1;
        self.tally = (0.0, 0.0);
        self.set_window(window);
    }

    fn set_window(&mut self, window: f64) {
        // In slow start, the bytes delivered now were sent a round trip ago, with half the window.
        let rounds = if let Mode::SlowStart = self.mode { 2.0 } else { 1.0 } * MAX_ROUNDS_IN_FLIGHT;
        let delivered = self.delivered.max().max(self.round.acked);
        let most = (rounds * delivered / self.baseline.delivered_share())
            .max(STARTUP_WINDOWS * INITIAL_WINDOW_BYTES as f64);
        self.window = window.min(most).max(MIN_DATAGRAMS * self.datagram);
    }
}
