//! Finds out what the link carries, on links that lose packets for other reasons than being full.
//!
//! TFMCC (RFC 4654), which NORM has for this, takes each loss for congestion, and so has next to nothing left
//! where a tenth or a half is lost anyway. What tells a full link is delay: the queue before it. So the rate
//! goes up while round-trip times are near the shortest seen, and down when they are longer. Losses count only
//! as far as they exceed what is lost while there is no queue: that is how a queue too short to be noticed
//! shows itself.
//!
//! A flow that fills the queue (TCP) would get everything that way. When delay stays although the rate was
//! lowered again and again, somebody else keeps the queue: then the rate follows losses as TCP's does, two
//! packets more each round trip and a part less for each loss beyond the usual, until the queue is empty once.

use std::time::Duration;

/// The rate begins here, in bytes a second, and does not go below.
const INITIAL: f64 = 125_000.0;
const LOWEST: f64 = 8_000.0;
/// Growth for each step of the start, and later for each round trip, of which at most so many count
/// at once.
const START_GROWTH: f64 = 2.0;
const GROWTH: f64 = 1.05;
const LONGEST: f64 = 4.0;
/// The most it grows at once, after the start.
const MOST: f64 = 1.5;
const GROWTH_NEAR: f64 = 1.02;
/// Growth when no queue was seen for so many round trips: what was learned of the link is not so any more,
/// or never was.
const GROWTH_FREE: f64 = 1.25;
const FREE: u32 = 10;
/// What of the link's rate is used until a queue is gone.
const DRAIN: f64 = 0.9;
/// What of the rate stays after a loss in competition.
const STRONG: f64 = 0.75;
/// A queue is one when it takes this long at least, or this part of the shortest round-trip time.
const LEAST_QUEUE: Duration = Duration::from_millis(8);
const QUEUE_SHARE: f64 = 0.15;
/// And nothing else when it takes so long.
const CERTAIN: Duration = Duration::from_millis(30);
/// Losses beyond the usual, as a part of what arrives, that count as a full link: while the usual is hardly
/// known, while delay tells more, and, besides chance, while it tells nothing.
const EXCESS_AT_START: f64 = 0.35;
const EXCESS: f64 = 0.15;
const EXCESS_IN_COMPETITION: f64 = 0.002;
/// Messages that a report's loss is an average of, about.
const MESSAGES: f64 = 1000.0;
/// How much of a new figure the usual loss takes on: when it is lower, and when higher.
const LOWER: f64 = 0.5;
const HIGHER: f64 = 0.1;
/// Reports before which losses are not known.
const FIRST_REPORTS: u32 = 5;
/// Reductions in a row, none of which emptied the queue, after which somebody else is there.
const PATIENCE: u32 = 4;
/// After this long it looks whether that is still so.
const RETRY: Duration = Duration::from_secs(10);
/// The shortest round-trip time is forgotten after that long, because paths change.
const FORGET: Duration = Duration::from_secs(60);
/// What the rate grows by each round trip in competition, in bytes a round trip: two packets, because TCP
/// CUBIC grows by more than one.
const STEP_BYTES: f64 = 3000.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Start,
    Delay,
    /// Against somebody who keeps the queue full.
    Competition,
}

/// What a receiver says, and how it came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    /// The round-trip time, and the probe by which it was measured.
    pub(super) rtt: Duration,
    pub(super) probe: u16,
    /// The share of messages that do not arrive.
    pub(super) loss: f64,
    /// Bytes a second that do.
    pub(super) rate: f64,
    /// The sender makes use of its rate.
    pub(super) busy: bool,
}

/// A rate that follows the link.
#[derive(Debug)]
pub(super) struct Adaptive {
    rate: f64,
    highest: f64,
    mode: Mode,
    base: Option<(Duration, Duration)>,
    usual_loss: f64,
    /// What the link carried when there was a queue, bytes a second.
    carries: f64,
    /// And before the first of several reductions.
    carried: f64,
    /// Since when it competes, and its rate when it last stopped to see whether it has to.
    competes_since: Duration,
    had: Option<f64>,
    reports: u32,
    /// The effect of the last change is not seen before this.
    settled: Duration,
    /// When the rate was changed.
    changed: Duration,
    /// When there was a queue the last time, and whether the start may have met one.
    full_at: Duration,
    suspected: bool,
    /// The latest probe that was answered.
    probe: u16,
    reductions: u32,
}

impl Adaptive {
    /// Begins low; never goes above `highest` bytes a second.
    pub(super) fn new(highest: u64) -> Adaptive {
        let highest = highest as f64;
        Adaptive {
            rate: INITIAL.min(highest),
            highest,
            mode: Mode::Start,
            base: None,
            usual_loss: 0.0,
            carries: 0.0,
            carried: 0.0,
            competes_since: Duration::ZERO,
            had: None,
            reports: 0,
            settled: Duration::ZERO,
            changed: Duration::ZERO,
            full_at: Duration::ZERO,
            suspected: false,
            probe: 0,
            reductions: 0,
        }
    }

    /// Bytes a second.
    pub(super) fn rate(&self) -> u64 {
        self.rate as u64
    }

    /// Takes a receiver's report.
    pub(super) fn report(&mut self, now: Duration, report: Report) {
        let Report { rtt, probe, loss, rate, busy } = report;
        // What an old probe met says nothing of now; and if the link is full, no new ones arrive.
        let fresh = (1..0x8000).contains(&probe.wrapping_sub(self.probe)) || self.reports == 0;
        let excess = (loss - self.usual_loss) / (1.0 - self.usual_loss).max(0.1);
        if !fresh {
            if now >= self.settled && self.mode != Mode::Competition && excess > EXCESS_AT_START {
                self.shrink_to(self.rate * (1.0 - excess).max(0.5));
                self.settled = now + 3 * rtt;
            }
            return;
        }
        self.probe = probe;
        let base = match self.base {
            Some((base, at)) if base <= rtt && now.saturating_sub(at) < FORGET => base,
            _ => rtt,
        };
        if base == rtt {
            self.base = Some((rtt, now));
        }
        let queue = rtt - base;
        let allowed = LEAST_QUEUE.max(base.mul_f64(QUEUE_SHARE));
        self.learn_loss(queue, allowed, loss);
        if now < self.settled {
            return;
        }
        // Time in round trips since the rate was last changed: reports get lost, too.
        let rounds = now.saturating_sub(self.changed).as_secs_f64() / rtt.as_secs_f64().max(0.02);
        let full = queue > allowed;
        let most = if self.mode == Mode::Start { EXCESS_AT_START } else { EXCESS };
        match self.mode {
            Mode::Competition if queue < allowed => (self.mode, self.reductions) = (Mode::Delay, 0),
            // Perhaps it is our own queue by now.
            Mode::Competition if now.saturating_sub(self.competes_since) > RETRY => {
                (self.mode, self.reductions, self.had) = (Mode::Delay, 0, Some(self.rate));
            }
            Mode::Competition if loss - self.usual_loss > self.in_competition() => {
                self.change(now, STRONG);
                self.settled = now + 4 * rtt;
            }
            Mode::Competition if busy => {
                let packets = STEP_BYTES / rtt.as_secs_f64() * rounds.min(LONGEST);
                self.change(now, 1.0 + packets / self.rate);
            }
            // One answer that is a little late may be so for another reason.
            Mode::Start if full && !self.suspected && queue < CERTAIN.max(2 * allowed) => {
                self.suspected = true;
            }
            Mode::Start | Mode::Delay if full => {
                self.full_at = now;
                // There is a queue, so what arrives is what the link carries.
                let carries = rate / (1.0 - self.usual_loss).max(0.1);
                let weight = if self.mode == Mode::Start { 1.0 } else { 0.3 };
                self.carries += weight * (carries - self.carries);
                self.shrink_to(self.carries.min(self.rate) * DRAIN);
                self.changed = now;
                self.settled = now + rtt + queue;
                if self.reductions == 0 {
                    self.carried = self.carries;
                }
                self.reductions += 1;
                if self.reductions > PATIENCE {
                    self.mode = Mode::Competition;
                    self.competes_since = now;
                    // What it had the last time, or half of what the link carried before: the rest was
                    // given up for nothing.
                    let before = self.had.take().unwrap_or(self.carried / 2.0);
                    self.set(self.rate.max(before));
                }
            }
            Mode::Start | Mode::Delay if excess > most && self.reports > FIRST_REPORTS => {
                self.shrink_to(self.rate * (1.0 - excess).max(0.5));
                self.changed = now;
                self.settled = now + 3 * rtt;
            }
            Mode::Start if busy => {
                self.suspected = false;
                self.change(now, START_GROWTH);
                self.settled = now + rtt.mul_f64(1.2);
            }
            Mode::Delay if busy => {
                (self.reductions, self.had) = (0, None);
                // Slowly where the limit was the last time.
                let near = (0.95..1.1).contains(&(self.rate / self.carries.max(1.0)));
                let free = now.saturating_sub(self.full_at) > FREE * rtt;
                let growth: f64 = match (near, free) {
                    (true, _) => GROWTH_NEAR,
                    (false, false) => GROWTH,
                    (false, true) => GROWTH_FREE,
                };
                self.change(now, growth.powf(rounds.min(LONGEST)).min(MOST));
            }
            _ => self.changed = now,
        }
    }

    /// Losses beyond the usual that are no chance.
    fn in_competition(&self) -> f64 {
        let deviation = (self.usual_loss * (1.0 - self.usual_loss) / MESSAGES).sqrt();
        EXCESS_IN_COMPETITION + 3.0 * deviation
    }

    fn shrink_to(&mut self, rate: f64) {
        self.mode = Mode::Delay;
        self.set(rate.max(INITIAL.min(self.rate)).max(self.rate * 0.3));
    }

    fn change(&mut self, now: Duration, factor: f64) {
        self.changed = now;
        self.set(self.rate * factor);
    }

    fn learn_loss(&mut self, queue: Duration, allowed: Duration, loss: f64) {
        self.reports += 1;
        if queue > allowed / 2 {
            return;
        }
        let weight = match self.mode {
            // The first figures are from few messages.
            Mode::Start => 0.3f64.max(1.0 / f64::from(self.reports)),
            _ if loss < self.usual_loss => LOWER,
            _ => HIGHER,
        };
        self.usual_loss += weight * (loss - self.usual_loss);
    }

    fn set(&mut self, rate: f64) {
        self.rate = rate.clamp(LOWEST.min(self.highest), self.highest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(50);

    /// Reports each 25 ms from a link that carries `carries` bytes a second, of which `loss` is lost by chance,
    /// and holds 200 ms of that; `others` is a queue that somebody else keeps. Gives the mean rate.
    fn run(
        adaptive: &mut Adaptive,
        carries: f64,
        loss: f64,
        others: Duration,
        seconds: u64,
    ) -> f64 {
        let start = adaptive.changed + START;
        let (mut queue, mut sum) = (0.0, 0.0);
        for step in 1..=seconds * 40 {
            let offered = adaptive.rate();
            queue = (queue + (offered as f64 - carries) * 0.025).max(0.0);
            let dropped = (queue - 0.2 * carries).max(0.0);
            queue -= dropped;
            let arrives = 1.0 - dropped / (offered as f64 * 0.025);
            let loss = 1.0 - (1.0 - loss) * arrives;
            let waits = Duration::from_secs_f64(queue / carries) + others;
            let rate = carries.min(offered as f64) * (1.0 - loss);
            let probe = adaptive.probe.wrapping_add(1);
            let report = Report { rtt: RTT + waits, probe, loss, rate, busy: true };
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
        assert_eq!(adaptive.mode, Mode::Competition);
        assert!(rate > 500_000.0, "{rate}");
        run(&mut adaptive, 2_500_000.0, 0.0, Duration::ZERO, 20);
        assert_eq!(adaptive.mode, Mode::Delay, "they are gone");
    }

    #[test]
    fn without_fresh_answers_it_does_not_grow() {
        let mut adaptive = Adaptive::new(1 << 40);
        let report = |probe| Report { rtt: RTT, probe, loss: 0.0, rate: 1e5, busy: true };
        adaptive.report(START, report(1));
        let rate = adaptive.rate();
        for step in 1..100 {
            adaptive.report(START + step * RTT, report(1));
        }
        assert_eq!(adaptive.rate(), rate);
        adaptive.report(START + 200 * RTT, report(2));
        assert!(adaptive.rate() > rate);
    }
}
