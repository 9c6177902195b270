//! Adapts the rate to links that lose packets for other reasons than congestion.
//!
//! NORM's congestion control, TFMCC (RFC 4654), treats each loss as congestion, so it gets almost nothing on a link
//! that loses a tenth or half of all packets at random. Here delay, that is a queue, shows that the link is full: the
//! rate rises while round-trip times are near the base RTT, and falls when they are longer. Losses count only above
//! the baseline loss rate, which shows queues that are too short to measure or were full before the transfer began.
//! The baseline is the loss at a low rate; for it to rise, the loss must remain while the rate is halved (`trial`).
//!
//! A flow that fills the queue, such as TCP, would get the whole link that way. If several reductions of the rate do
//! not shorten the queue, another flow fills it: then the rate is CUBIC's until there is no queue for a while.

mod cubic;
mod path;
mod trial;

use std::time::Duration;

use cubic::{BETA, Cubic};
use path::{ANSWERS, Path};
use trial::{Trial, Verdict};

/// The initial and lowest rate, in bytes per second.
const INITIAL: f64 = 250_000.0;
const LOWEST: f64 = 8_000.0;
/// Growth per step in slow start.
const START_GROWTH: f64 = 2.0;
/// Answers to probes that are enough in slow start.
const ANSWERS_AT_START: usize = 2;
/// Growth per round trip after that, for at most this many round trips at once: below the rate that the link last
/// carried, near it, and after this many round trips without a queue, because then that rate is out of date.
const GROWTH: f64 = 1.1;
const GROWTH_NEAR: f64 = 1.02;
const GROWTH_FREE: f64 = 1.25;
const FREE: u32 = 10;
const FREE_ROUNDS: f64 = 20.0;
const LONGEST: f64 = 4.0;
/// The largest growth at once after slow start.
const MOST: f64 = 1.5;
/// The share of the link's rate that is used until the queue is empty, and afterwards.
const DRAIN: f64 = 0.9;
const RESUME: f64 = 0.97;
/// Losses above the baseline, as a share of delivered packets, that show a full link: while the baseline is hardly
/// known; while delay is measurable; and while it is not. In the last case, the excess that remained after the last
/// reduction is deducted, up to a limit, as other flows'. TCP BBR, which fills a queue of one round trip whatever it
/// loses, causes others to lose a tenth; a flow that always yielded to that would get nothing.
const EXCESS_AT_START: f64 = 0.35;
const EXCESS: f64 = 0.08;
const EXCESS_IN_COMPETITION: f64 = 0.08;
const MOST_THAT_STAYS: f64 = 0.06;
/// Up to this rate, losses count as random in slow start. In slow start, the rate is at most this many times the
/// latest delivery rate.
const LOW: f64 = 4.0 * INITIAL;
const AHEAD: f64 = 8.0;
/// Reports before the loss rate is known.
const FIRST_REPORTS: u32 = 5;
/// More reductions in a row that do not shorten the queue show that another flow fills it.
const PATIENCE: u32 = 2;
/// A queue below this share of the former one is being emptied.
const SHRINKS: f64 = 0.8;
/// Competition ends on trial after this time, longer each time, or after this time and these round trips without a
/// queue. A latecomer may never have seen the path without a queue, and takes a shorter queue for none.
const RETRY: Duration = Duration::from_secs(15);
const MOST_RETRY: Duration = Duration::from_secs(60);
const GONE: Duration = Duration::from_secs(1);
const LATE_GONE: Duration = Duration::from_secs(3);
const GONE_ROUNDS: u32 = 4;
/// Without a report for this time, or this many round trips, the rate is halved.
const SILENCE: Duration = Duration::from_secs(1);
const SILENT_ROUNDS: u32 = 4;

#[derive(Clone, Copy, Debug, Default)]
enum Mode {
    #[default]
    Start,
    Delay,
    /// Tests whether losses are random.
    Trial(Trial),
    /// CUBIC's rate, because another flow keeps the queue full; and since when.
    Competition(Cubic, Duration),
}

/// A receiver's report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    /// The receiver that sent it.
    pub(crate) receiver: u32,
    /// The round-trip time, and the probe by which it was measured.
    pub(crate) rtt: Duration,
    pub(crate) probe: u16,
    /// The share of messages that is lost.
    pub(crate) loss: f64,
    /// Bytes per second that arrive.
    pub(crate) rate: f64,
    /// Whether the sender makes full use of its rate.
    pub(crate) busy: bool,
}

/// A rate that adapts to the link.
#[derive(Debug, Default)]
pub(crate) struct Adaptive {
    rate: f64,
    highest: f64,
    mode: Mode,
    path: Path,
    /// The rate that the link carried when there was a queue, in bytes per second.
    carries: f64,
    /// The same before the first of several reductions.
    carried: f64,
    /// The rate when competition was last ended on trial.
    had: Option<f64>,
    /// The link was seen without a queue.
    alone: bool,
    /// In competition, the least excess of losses since the last reduction.
    stays: f64,
    /// The duration of the next competition.
    retry: Duration,
    /// The last change of the rate has no visible effect before this.
    settled: Duration,
    /// When the rate was last changed.
    changed: Duration,
    /// When there was last a queue.
    full_at: Duration,
    /// When a report was last received, or the rate was lowered for lack of one.
    heard_at: Duration,
    reductions: u32,
    /// The queue at the last reduction.
    waited: Duration,
}

impl Adaptive {
    /// Starts at the lowest rate; never exceeds `highest` bytes per second.
    pub(crate) fn new(highest: u64) -> Adaptive {
        let highest = highest as f64;
        Adaptive { rate: INITIAL.min(highest), highest, retry: RETRY, ..Adaptive::default() }
    }

    /// The rate in bytes per second.
    pub(crate) fn rate(&self) -> u64 {
        self.rate as u64
    }

    /// Handles a receiver's report.
    pub(crate) fn report(&mut self, now: Duration, report: Report) {
        self.heard_at = now;
        let settled = now >= self.settled;
        let starting = matches!(self.mode, Mode::Start);
        let low = starting && (self.rate <= LOW || self.path.reports < FIRST_REPORTS);
        let fresh = self.path.heard(now, &report, settled, low);
        if !settled {
            // The reduction is also the answer to earlier losses.
            self.path.take_jump();
            return;
        }
        let enough = if starting { ANSWERS_AT_START } else { ANSWERS };
        let full = self.path.queue() > self.path.allowed();
        if full && fresh {
            self.full_at = now;
        }
        let losing = !matches!(self.mode, Mode::Competition(..)) && self.is_losing();
        match self.mode {
            Mode::Competition(..) => self.compete(now, report.busy),
            Mode::Trial(trial) => self.judge(now, trial),
            // On a full link, answers to probes are rare.
            _ if !fresh && self.path.excess() <= EXCESS_AT_START => {}
            _ if full && fresh => {
                if self.path.is_known(enough) || starting && self.path.queue() > self.path.certain()
                {
                    self.drain(now, report.rate, starting);
                }
            }
            _ if losing => self.doubt(now, report.rate),
            _ if !fresh || !report.busy => self.changed = now,
            Mode::Start => {
                self.change(now, START_GROWTH);
                self.settle(now);
            }
            Mode::Delay => self.grow(now, self.path.rtt()),
        }
    }

    /// Loss is above the baseline: congestion, or the baseline has changed.
    fn doubt(&mut self, now: Duration, arrives: f64) {
        let carries = arrives / self.path.usual_share();
        self.carries = if carries > 0.0 { carries.min(self.rate) } else { self.rate / AHEAD };
        self.mode = Mode::Trial(Trial::new(now, self.carries, &self.path));
        self.set(self.carries / 2.0);
        self.changed = now;
        self.settle(now);
    }

    /// Ends a trial if it has a result.
    fn judge(&mut self, now: Duration, mut trial: Trial) {
        let Some(verdict) = trial.record_losses(now, &self.path) else {
            self.mode = Mode::Trial(trial);
            return;
        };
        self.mode = Mode::Delay;
        match verdict {
            Verdict::Chance(loss) => {
                self.path.learn(loss);
                self.set(trial.before);
            }
            Verdict::Full { at_once } => {
                self.full_at = now;
                if at_once {
                    self.set(trial.before * DRAIN);
                }
            }
        }
        self.changed = now;
        self.settle(now);
    }

    /// Waits until the change has an effect.
    fn settle(&mut self, now: Duration) {
        self.settled = now + self.path.slowest();
        self.path.forget_answers();
    }

    /// Halves the rate if no report arrives, because the link may be overloaded.
    pub(crate) fn look_for_silence(&mut self, now: Duration) {
        let long = SILENCE.max(SILENT_ROUNDS * self.path.rtt());
        if self.path.reports > 0 && now.saturating_sub(self.heard_at) > long {
            self.mode = Mode::Delay;
            self.heard_at = now;
            self.change(now, 0.5);
        }
    }

    /// Whether losses are above the baseline and rising: the reported average falls slowly.
    fn is_losing(&mut self) -> bool {
        let most = match self.mode {
            Mode::Start => EXCESS_AT_START,
            _ => EXCESS + self.path.chance(),
        };
        let rises = self.path.take_jump();
        rises && self.path.excess() > most && self.path.reports > FIRST_REPORTS
    }

    /// There is a queue, so the delivery rate is the link's rate.
    fn drain(&mut self, now: Duration, arrives: f64, starting: bool) {
        let (queue, rtt) = (self.path.queue(), self.path.rtt());
        let carries = arrives / self.path.usual_share();
        let sure = starting || queue > self.path.certain();
        self.carries += if sure { 1.0 } else { 0.3 } * (carries - self.carries);
        let shrinks = self.reductions > 0 && queue < self.waited.mul_f64(SHRINKS);
        self.waited = queue;
        if shrinks {
            self.reductions = 1;
            return self.settle(now);
        }
        // The report may be about the time before the last step.
        let least = self.rate / if starting { START_GROWTH } else { 3.0 };
        self.carries = self.carries.max(least);
        self.mode = Mode::Delay;
        self.set(self.carries.min(self.rate) * DRAIN);
        self.changed = now;
        self.settle(now);
        if self.reductions == 0 {
            self.carried = self.carries;
        }
        self.reductions += 1;
        if self.reductions > PATIENCE {
            // The former competitive rate, or CUBIC's share of the former rate: the reductions had no effect because
            // another flow fills the queue.
            let before = self.had.unwrap_or(self.carried * BETA);
            self.set(self.rate.max(before));
            self.retry = if self.had.is_some() { (self.retry * 2).min(MOST_RETRY) } else { RETRY };
            self.path.take_jump();
            self.stays = 0.0;
            // A latecomer grows fast first, as TCP does.
            let late = !self.alone && self.had.is_none();
            self.mode = Mode::Competition(Cubic::new(now, self.rate, rtt, late), now);
        }
    }

    /// There is no queue: raises the rate.
    fn grow(&mut self, now: Duration, rtt: Duration) {
        // Round trips since the last change of the rate, because reports get lost.
        let rounds = now.saturating_sub(self.changed).as_secs_f64() / rtt.as_secs_f64().max(0.02);
        let empty = now.saturating_sub(self.full_at);
        if self.reductions > 0 && self.rate < self.carries * RESUME {
            self.set(self.carries * RESUME);
        }
        self.reductions = 0;
        if empty > FREE * rtt {
            (self.had, self.alone) = (None, true);
        }
        // Slowly near the former limit, and then faster and faster.
        let growth = match self.rate / self.carries.max(1.0) {
            ..0.95 => GROWTH,
            _ => {
                let late =
                    (empty.as_secs_f64() / rtt.as_secs_f64().max(0.02) / FREE_ROUNDS).min(1.0);
                GROWTH_NEAR + late.powi(2) * (GROWTH_FREE - GROWTH_NEAR)
            }
        };
        self.change(now, growth.powf(rounds.min(LONGEST)).min(MOST));
    }

    /// Sets CUBIC's rate, or ends competition.
    fn compete(&mut self, now: Duration, busy: bool) {
        let Mode::Competition(mut cubic, since) = self.mode else { return };
        let rtt = self.path.rtt();
        self.changed = now;
        let gone = if self.alone { GONE } else { LATE_GONE };
        let empty = now.saturating_sub(self.full_at) > gone.max(GONE_ROUNDS * rtt);
        if empty || now.saturating_sub(since) > self.retry {
            // The queue may be the own one by now.
            (self.mode, self.reductions) = (Mode::Delay, 0);
            self.had = (!empty).then_some(self.rate);
            return;
        }
        let excess = self.path.excess();
        self.stays = self.stays.min(excess.max(0.0));
        let most = self.stays.min(MOST_THAT_STAYS) + EXCESS_IN_COMPETITION;
        if self.path.take_jump() || self.path.is_rising() && excess > most {
            cubic.lost(now, self.rate, rtt);
            self.stays = f64::INFINITY;
            self.settled = now + 2 * rtt;
        }
        let rate = cubic.rate(now, rtt);
        self.set(if busy { rate } else { rate.min(self.rate) });
        self.mode = Mode::Competition(cubic, since);
    }

    fn change(&mut self, now: Duration, factor: f64) {
        self.changed = now;
        self.set(self.rate * factor);
    }

    fn set(&mut self, rate: f64) {
        self.rate = rate.clamp(LOWEST.min(self.highest), self.highest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(50);

    /// Sends reports every 25 ms from a link that carries `carries` bytes per second, loses `loss` at random, and
    /// queues up to 200 ms; `others` is a queue that another flow fills. Returns the mean rate.
    fn run(
        adaptive: &mut Adaptive,
        carries: f64,
        loss: f64,
        others: Duration,
        seconds: u64,
    ) -> f64 {
        let start = adaptive.changed + START;
        let (mut queue, mut sum, mut average) = (0.0, 0.0, loss);
        for step in 1..=seconds * 40 {
            let offered = adaptive.rate();
            queue = (queue + (offered as f64 - carries) * 0.025).max(0.0);
            let dropped = (queue - 0.2 * carries).max(0.0);
            queue -= dropped;
            let arrives = 1.0 - dropped / (offered as f64 * 0.025);
            let loss = 1.0 - (1.0 - loss) * arrives;
            average += 0.25 * (loss - average);
            let waits = Duration::from_secs_f64(queue / carries) + others;
            let rate = carries.min(offered as f64) * (1.0 - loss);
            let probe = step as u16;
            let report =
                Report { receiver: 1, rtt: RTT + waits, probe, loss: average, rate, busy: true };
            adaptive.report(start + Duration::from_millis(25 * step), report);
            sum += offered as f64;
        }
        sum / (seconds * 40) as f64
    }

    const START: Duration = Duration::from_secs(1);

    #[test]
    fn it_settles_near_what_the_link_carries() {
        for loss in [0.0, 0.2, 0.5, 0.65] {
            let mut adaptive = Adaptive::new(1 << 40);
            run(&mut adaptive, 2_500_000.0, loss, Duration::ZERO, 5);
            let rate = run(&mut adaptive, 2_500_000.0, loss, Duration::ZERO, 20);
            assert!((2_200_000.0..2_650_000.0).contains(&rate), "{loss}: {rate}");
        }
    }

    #[test]
    fn a_queue_that_others_keep_does_not_starve_it() {
        let mut adaptive = Adaptive::new(1 << 40);
        run(&mut adaptive, 2_500_000.0, 0.0, Duration::ZERO, 5);
        let rate = run(&mut adaptive, 2_500_000.0, 0.0, Duration::from_millis(60), 10);
        assert!(matches!(adaptive.mode, Mode::Competition(..)), "{adaptive:?}");
        assert!(rate > 500_000.0, "{rate}");
        run(&mut adaptive, 2_500_000.0, 0.0, Duration::ZERO, 20);
        assert!(matches!(adaptive.mode, Mode::Delay), "they are gone: {adaptive:?}");
    }

    #[test]
    fn without_fresh_answers_it_does_not_grow() {
        let mut adaptive = Adaptive::new(1 << 40);
        let report =
            |probe| Report { receiver: 1, rtt: RTT, probe, loss: 0.0, rate: 1e5, busy: true };
        adaptive.report(START, report(1));
        let rate = adaptive.rate();
        for step in 1..100 {
            adaptive.report(START + step * RTT, report(1));
        }
        assert_eq!(adaptive.rate(), rate);
        adaptive.report(START + 200 * RTT, report(2));
        assert!(adaptive.rate() > rate);
    }

    /// Sends reports from a path without measurable queue that loses `loss(rate)`, with the rate in bytes per second.
    /// Returns the final rate.
    fn run_without_delay(adaptive: &mut Adaptive, seconds: u32, loss: impl Fn(f64) -> f64) -> u64 {
        let start = adaptive.changed + START;
        let mut average = None;
        for step in 1..=seconds * 20 {
            let now = start + step * RTT;
            let offered = adaptive.rate() as f64;
            let lost = loss(offered);
            let before: f64 = *average.get_or_insert(lost);
            let loss = 0.75 * before + 0.25 * lost;
            average = Some(loss);
            let rate = offered * (1.0 - lost);
            let probe = (now.as_millis() / RTT.as_millis()) as u16;
            adaptive.report(now, Report { receiver: 1, rtt: RTT, probe, loss, rate, busy: true });
        }
        adaptive.rate()
    }

    #[test]
    fn losses_that_go_with_the_rate_are_not_chance() {
        // Like a short queue that another flow keeps full.
        let mut adaptive = Adaptive::new(1 << 40);
        let full = |rate: f64| 1.0 - (2_500_000.0 / (rate + 1_000_000.0)).min(1.0);
        let rate = run_without_delay(&mut adaptive, 20, full);
        assert!((700_000..2_500_000).contains(&rate), "{rate}: {adaptive:?}");
    }

    #[test]
    fn losses_that_become_more_by_chance_are_known_after_a_trial() {
        let mut adaptive = Adaptive::new(2_000_000);
        run_without_delay(&mut adaptive, 10, |_| 0.02);
        assert_eq!(adaptive.rate(), 2_000_000);
        run_without_delay(&mut adaptive, 10, |_| 0.5);
        assert_eq!(adaptive.rate(), 2_000_000, "{adaptive:?}");
        assert!((0.45..0.55).contains(&adaptive.path.usual_loss()), "{adaptive:?}");
    }

    #[test]
    fn receivers_that_lose_differently_are_not_taken_for_one_whose_losses_change() {
        let mut adaptive = Adaptive::new(2_000_000);
        for step in 1..=400 {
            let (receiver, loss) = if step % 2 == 0 { (1, 0.0) } else { (2, 0.2) };
            let (rate, probe) = (adaptive.rate() as f64 * (1.0 - loss), step as u16);
            let report = Report { receiver, rtt: RTT, probe, loss, rate, busy: true };
            adaptive.report(START + step * RTT, report);
        }
        assert_eq!(adaptive.rate(), 2_000_000, "{adaptive:?}");
    }
}
