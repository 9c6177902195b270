//! Measures a path by the answers to probes: the queueing delay, and the baseline loss rate.
//!
//! A queue lasts for a while, whereas a program or a link that is late once is on time a moment later. So the minimum
//! of several answers counts.
//!
//! Random loss does not depend on the own rate. So the baseline is measured while the rate is low, or by a trial; and
//! no measurement window of the receiver has much less loss, with or without a queue.

use std::time::Duration;

use super::Report;

/// The number of answers whose minimum counts.
pub(super) const ANSWERS: usize = 3;
/// A delay above the base RTT counts as a queue from this long on, or from this share of the base RTT.
const LEAST_QUEUE: Duration = Duration::from_millis(8);
const QUEUE_SHARE: f64 = 0.15;
/// A delay that is certainly a queue.
const CERTAIN: Duration = Duration::from_millis(30);
/// The base RTT is forgotten after this time, because paths change.
const FORGET: Duration = Duration::from_secs(60);
/// A receiver that was silent for this long is ignored.
const GONE: Duration = Duration::from_secs(5);
/// The weight of a new sample in the baseline: when it is lower, when it is higher by no more than chance, and in the
/// first reports, which are about few messages.
const LOWER: f64 = 0.2;
const HIGHER: f64 = 0.1;
const EARLY: f64 = 0.3;
const MANY: u32 = 20;
/// The first reports count whatever they are; later ones, while the rate is low, only up to what is random for their
/// number of messages.
const FIRST: u32 = 5;
const FIRST_MESSAGES: f64 = 64.0;
/// The least and most messages of a receiver's measurement window, its longest duration, and its weight in the
/// average that a report has.
const FEW_MESSAGES: f64 = 24.0;
const MESSAGES: f64 = 256.0;
const WINDOW_S: f64 = 0.5;
const OF_A_WINDOW: f64 = 0.25;
/// The approximate size of a message.
const MESSAGE_BYTES: f64 = 1500.0;
/// Differences of at most this many standard deviations are not significant.
const CHANCE: f64 = 3.0;
/// The least significant rise of the loss rate: less than one message of a window.
const LEAST_JUMP: f64 = 0.0005;

/// Measurements of a path.
#[derive(Debug, Default)]
pub(super) struct Path {
    /// The base RTT, and when it was measured.
    base: Option<(Duration, Duration)>,
    /// The latest round-trip times.
    latest: [Duration; ANSWERS],
    answers: usize,
    usual_loss: f64,
    /// The receiver with the most loss, and when it last reported.
    worst: Option<(u32, Duration)>,
    loss: f64,
    /// The loss and messages of the latest window alone, and the number of windows.
    latest_loss: f64,
    messages: f64,
    windows: u32,
    /// A whole window was received before.
    metered: bool,
    jumped: bool,
    rising: bool,
    /// The latest probe that was answered.
    probe: u16,
    pub(super) reports: u32,
}

impl Path {
    /// Records a report. Returns whether it answers a new probe, sent after the latest change of the rate had
    /// `settled`: answers to older ones are out of date. At a `low` rate, losses are random.
    pub(super) fn heard(
        &mut self,
        now: Duration,
        report: &Report,
        settled: bool,
        low: bool,
    ) -> bool {
        let Report { rtt, probe, .. } = *report;
        let loss = if self.is_worst(now, report) { report.loss } else { self.loss };
        let chance = CHANCE * OF_A_WINDOW * deviation(self.loss, MESSAGES);
        self.jumped |= loss > self.loss + LEAST_JUMP + chance;
        let another = loss != self.loss || self.reports == 0;
        if another {
            self.window(report.rate, loss);
        }
        self.loss = loss;
        if self.reports > 0 && !(1..0x8000).contains(&probe.wrapping_sub(self.probe)) {
            return false;
        }
        self.probe = probe;
        self.base = match self.base {
            Some((base, at)) if base <= rtt && now.saturating_sub(at) < FORGET => Some((base, at)),
            _ => Some((rtt, now)),
        };
        self.reports = self.reports.saturating_add(1);
        if settled {
            self.latest.rotate_right(1);
            self.latest[0] = rtt;
            self.answers = (self.answers + 1).min(ANSWERS);
        }
        if another && rtt <= self.base() + self.allowed() / 2 {
            self.learn_slowly(low);
        }
        true
    }

    /// Whether this receiver's losses count. Each receiver reports its own average.
    fn is_worst(&mut self, now: Duration, report: &Report) -> bool {
        match self.worst {
            Some((worst, at)) if worst != report.receiver => {
                if report.loss <= self.loss && now.saturating_sub(at) < GONE {
                    return false;
                }
                self.metered = false;
            }
            _ => {}
        }
        self.worst = Some((report.receiver, now));
        true
    }

    /// Computes the loss of the latest window from the reported averages. The first report is not an average.
    fn window(&mut self, arrives: f64, loss: f64) {
        self.rising = loss > self.loss;
        let latest = (loss - (1.0 - OF_A_WINDOW) * self.loss) / OF_A_WINDOW;
        self.latest_loss = latest.clamp(0.0, 1.0);
        self.windows = self.windows.wrapping_add(1);
        let sent = arrives / (1.0 - loss).max(0.01);
        self.messages = (sent * WINDOW_S / MESSAGE_BYTES).clamp(FEW_MESSAGES, MESSAGES);
        if self.metered {
            let most = self.latest_loss + CHANCE * deviation(self.usual_loss, self.messages);
            self.usual_loss = self.usual_loss.min(most);
        }
        self.metered = arrives > 0.0;
    }

    /// There is no queue now, so losses may be random.
    fn learn_slowly(&mut self, low: bool) {
        let higher = self.loss > self.usual_loss;
        let few = self.usual_loss + CHANCE * deviation(self.usual_loss, FIRST_MESSAGES);
        let early = match self.reports {
            ..MANY => EARLY.max(1.0 / f64::from(self.reports.max(1))),
            _ => LOWER,
        };
        let weight = match (higher, low) {
            (false, _) => early,
            (true, true) if self.reports <= FIRST || self.loss < few => early,
            (true, false) if self.excess() < self.chance() => HIGHER,
            (true, _) => 0.0,
        };
        self.usual_loss += weight * (self.loss - self.usual_loss);
    }

    /// Sets the baseline loss rate.
    pub(super) fn learn(&mut self, loss: f64) {
        self.usual_loss = loss;
    }

    /// The rate has changed: earlier answers no longer count.
    pub(super) fn forget_answers(&mut self) {
        self.answers = 0;
    }

    /// Whether there were enough answers since the last change.
    pub(super) fn is_known(&self, enough: usize) -> bool {
        self.answers >= enough
    }

    fn base(&self) -> Duration {
        self.base.map_or(Duration::ZERO, |(base, _)| base)
    }

    /// The queueing delay.
    pub(super) fn queue(&self) -> Duration {
        self.rtt().saturating_sub(self.base())
    }

    /// The delay from which on there is a queue.
    pub(super) fn allowed(&self) -> Duration {
        LEAST_QUEUE.max(self.base().mul_f64(QUEUE_SHARE))
    }

    /// The delay that is certainly a queue.
    pub(super) fn certain(&self) -> Duration {
        CERTAIN.max(2 * self.allowed())
    }

    /// The shortest RTT of the latest answers.
    pub(super) fn rtt(&self) -> Duration {
        self.latest.iter().take(self.answers).min().copied().unwrap_or(self.base())
    }

    /// The longest RTT of the latest answers.
    pub(super) fn slowest(&self) -> Duration {
        self.latest.iter().take(self.answers).max().copied().unwrap_or(self.base())
    }

    /// The share of messages that arrives when the queue is not full.
    pub(super) fn usual_share(&self) -> f64 {
        (1.0 - self.usual_loss).max(0.1)
    }

    /// Loss above the baseline, as a share of the messages that would arrive without it.
    pub(super) fn excess(&self) -> f64 {
        (self.loss - self.usual_loss) / self.usual_share()
    }

    /// The part of `excess` that is not significant in the average.
    pub(super) fn chance(&self) -> f64 {
        let windows = (2.0 - OF_A_WINDOW) / OF_A_WINDOW;
        CHANCE * deviation(self.usual_loss, windows * MESSAGES) / self.usual_share()
    }

    /// The loss rate: the average, the baseline, and that of the latest window; and the number of windows.
    pub(super) fn loss(&self) -> f64 {
        self.loss
    }

    pub(super) fn usual_loss(&self) -> f64 {
        self.usual_loss
    }

    pub(super) fn latest_loss(&self) -> f64 {
        self.latest_loss
    }

    pub(super) fn windows(&self) -> u32 {
        self.windows
    }

    /// The standard deviation of the loss of this many windows like the latest.
    pub(super) fn deviation(&self, windows: f64) -> f64 {
        deviation(self.latest_loss, windows * self.messages.max(FEW_MESSAGES))
    }

    /// Whether the latest report has more loss than the one before: an average falls slowly.
    pub(super) fn is_rising(&self) -> bool {
        self.rising
    }

    /// Whether the loss has risen significantly since the last call.
    pub(super) fn take_jump(&mut self) -> bool {
        std::mem::take(&mut self.jumped)
    }
}

/// The standard deviation of the loss rate of this many messages.
fn deviation(loss: f64, messages: f64) -> f64 {
    (loss * (1.0 - loss) / messages).sqrt()
}
