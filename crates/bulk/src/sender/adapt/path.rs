//! What answers to probes say of the path: how long packets wait on it, and what it loses when nothing waits.
//!
//! A queue stays for a while, whereas a program or a link that is late once is in time again a moment later. So the
//! least of several answers counts.
//!
//! What is lost by chance does not depend on our rate. So it is learned while the rate is low, or by a trial; and no window of
//! the receiver's loses much less, whether or not something waits.

use std::time::Duration;

use super::Report;

/// Answers of which the least counts.
pub(super) const ANSWERS: usize = 3;
/// A queue is one when it takes this long at least, or this part of the shortest round-trip time.
const LEAST_QUEUE: Duration = Duration::from_millis(8);
const QUEUE_SHARE: f64 = 0.15;
/// And nothing else when it takes so long.
const CERTAIN: Duration = Duration::from_millis(30);
/// The shortest round-trip time is forgotten after that long, because paths change.
const FORGET: Duration = Duration::from_secs(60);
/// A receiver is not waited for when it has said nothing for so long.
const GONE: Duration = Duration::from_secs(5);
/// How much of a new figure the usual loss takes on: when it is lower, when higher by no more than chance, and among the
/// first reports, which are of few messages.
const LOWER: f64 = 0.2;
const HIGHER: f64 = 0.1;
const EARLY: f64 = 0.3;
const MANY: u32 = 20;
/// The very first teach it whatever they say, those after them while the rate is low only what may be chance among so many messages.
const FIRST: u32 = 5;
const FIRST_MESSAGES: f64 = 64.0;
/// Messages of a receiver's window, at least and at most, how long it is at most, and how much of it a report's loss takes on.
const FEW_MESSAGES: f64 = 24.0;
const MESSAGES: f64 = 256.0;
const WINDOW_S: f64 = 0.5;
const OF_A_WINDOW: f64 = 0.25;
/// A message, about.
const MESSAGE_BYTES: f64 = 1500.0;
/// Standard deviations that chance makes of a difference.
const CHANCE: f64 = 3.0;
/// A jump of the loss is one from here on, besides chance: less than one message of a window.
const LEAST_JUMP: f64 = 0.0005;

/// A path as its answers show it.
#[derive(Debug, Default)]
pub(super) struct Path {
    /// The shortest round-trip time, and when it was seen.
    base: Option<(Duration, Duration)>,
    /// The latest round-trip times, of so many answers.
    latest: [Duration; ANSWERS],
    answers: usize,
    usual_loss: f64,
    /// The receiver that loses most, and when it was heard.
    worst: Option<(u32, Duration)>,
    loss: f64,
    /// Of the latest window alone, its messages, and how many windows there were.
    latest_loss: f64,
    messages: f64,
    windows: u32,
    /// There was a whole window before.
    metered: bool,
    jumped: bool,
    rising: bool,
    /// The latest probe that was answered.
    probe: u16,
    pub(super) reports: u32,
}

impl Path {
    /// Takes note of a report. Tells whether it answers a probe that no earlier one answered: what an old probe met says
    /// nothing of now. Nor does any before the latest change of the rate has `settled`. At a `low` rate losses are not ours.
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

    /// Whether this is the receiver whose losses count. Each has an average of its own.
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

    /// Takes the loss of the latest window out of the average. Before there is one, what is reported is no average.
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

    /// Nothing waits now, so that what is lost may be lost by chance.
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

    /// So much is lost by chance.
    pub(super) fn learn(&mut self, loss: f64) {
        self.usual_loss = loss;
    }

    /// The rate is another now: what answers said before counts no more.
    pub(super) fn forget_answers(&mut self) {
        self.answers = 0;
    }

    /// Whether enough has been heard since then.
    pub(super) fn is_known(&self, enough: usize) -> bool {
        self.answers >= enough
    }

    fn base(&self) -> Duration {
        self.base.map_or(Duration::ZERO, |(base, _)| base)
    }

    /// How long packets wait.
    pub(super) fn queue(&self) -> Duration {
        self.rtt().saturating_sub(self.base())
    }

    /// How long they may, before that is called a queue.
    pub(super) fn allowed(&self) -> Duration {
        LEAST_QUEUE.max(self.base().mul_f64(QUEUE_SHARE))
    }

    /// And so long that it can be nothing else.
    pub(super) fn certain(&self) -> Duration {
        CERTAIN.max(2 * self.allowed())
    }

    /// The least round-trip time of the last answers.
    pub(super) fn rtt(&self) -> Duration {
        self.latest.iter().take(self.answers).min().copied().unwrap_or(self.base())
    }

    /// The longest of them.
    pub(super) fn slowest(&self) -> Duration {
        self.latest.iter().take(self.answers).max().copied().unwrap_or(self.base())
    }

    /// What arrives of all that does not meet a full queue.
    pub(super) fn usual_share(&self) -> f64 {
        (1.0 - self.usual_loss).max(0.1)
    }

    /// What is lost beyond the usual, as a part of what would arrive.
    pub(super) fn excess(&self) -> f64 {
        (self.loss - self.usual_loss) / self.usual_share()
    }

    /// How much of that is no more than chance in the average.
    pub(super) fn chance(&self) -> f64 {
        let windows = (2.0 - OF_A_WINDOW) / OF_A_WINDOW;
        CHANCE * deviation(self.usual_loss, windows * MESSAGES) / self.usual_share()
    }

    /// What is lost, on average, by chance, and in the latest window; and how many windows there were.
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

    /// The standard deviation of the loss of so many windows like the latest.
    pub(super) fn deviation(&self, windows: f64) -> f64 {
        deviation(self.latest_loss, windows * self.messages.max(FEW_MESSAGES))
    }

    /// Whether the latest report had more losses than the one before: an average is slow to fall.
    pub(super) fn is_rising(&self) -> bool {
        self.rising
    }

    /// Whether losses have become more, by more than chance, since this was asked last.
    pub(super) fn take_jump(&mut self) -> bool {
        std::mem::take(&mut self.jumped)
    }
}

/// The standard deviation of the share that is lost of so many messages.
fn deviation(loss: f64, messages: f64) -> f64 {
    (loss * (1.0 - loss) / messages).sqrt()
}
