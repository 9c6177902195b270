//! [`LossTrial`]: whether fewer packets are lost with half the window.

use std::time::Duration;

/// Half the window for some rounds, to see whether fewer packets are lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LossTrial {
    /// The former window.
    pub(crate) before: f64,
    /// The former delivery rate in bytes per second.
    pub(crate) rate: f64,
    /// Halfway between the baseline loss and the loss that caused the trial.
    pub(crate) middle: f64,
    pub(crate) rounds: u32,
    pub(crate) acked: f64,
    pub(crate) lost: f64,
    pub(crate) time: Duration,
}

impl LossTrial {
    pub(crate) fn new(before: f64, rate: f64, middle: f64) -> LossTrial {
        let (acked, lost, time) = (0.0, 0.0, Duration::ZERO);
        LossTrial { before, rate, middle, rounds: 0, acked, lost, time }
    }
}
