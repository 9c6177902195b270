//! What answers to probes say of the path: how long packets wait on it, and what it loses when nothing waits.
//!
//! A queue stays for a while, whereas a program or a link that is late once is in time again a moment later. So the
//! least of several answers counts.

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
/// How much of a new figure the usual loss takes on: when it is lower, when higher, and among the first reports, which
/// are of few messages.
const LOWER: f64 = 0.5;
const HIGHER: f64 = 0.2;
const EARLY: f64 = 0.3;
const MANY: u32 = 20;
/// Messages of a receiver's window, and how much of a window a report's loss takes on.
const MESSAGES: f64 = 256.0;
const OF_A_WINDOW: f64 = 0.25;
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
    loss: f64,
    jumped: bool,
    rising: bool,
    /// The latest probe that was answered.
    probe: u16,
    pub(super) reports: u32,
}

impl Path {
    /// Takes note of a report. Tells whether it answers a probe that no earlier one answered: what an old probe met says
    /// nothing of now. Nor does any before the latest change of the rate has `settled`.
    pub(super) fn heard(&mut self, now: Duration, report: &Report, settled: bool) -> bool {
        let Report { rtt, probe, loss, .. } = *report;
        let chance = 3.0 * OF_A_WINDOW * (self.loss * (1.0 - self.loss) / MESSAGES).sqrt();
        self.jumped |= loss > self.loss + LEAST_JUMP + chance;
        let another = loss != self.loss || self.reports == 0;
        if another {
            self.rising = loss > self.loss;
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
            let weight = match self.reports {
                ..MANY => EARLY.max(1.0 / f64::from(self.reports)),
                _ if loss < self.usual_loss => LOWER,
                _ => HIGHER,
            };
            self.usual_loss += weight * (loss - self.usual_loss);
        }
        true
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

    /// Whether the latest report had more losses than the one before: an average is slow to fall.
    pub(super) fn is_rising(&self) -> bool {
        self.rising
    }

    /// Whether losses have become more, by more than chance, since this was asked last.
    pub(super) fn take_jump(&mut self) -> bool {
        std::mem::take(&mut self.jumped)
    }
}
