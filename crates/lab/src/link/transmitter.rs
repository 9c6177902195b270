//! The bottleneck's transmitter: the exact serialization delay of each packet, at a constant or recorded rate.

use std::sync::Arc;

use super::trace::{Cursor, Trace};
use super::{Impairments, Rate};
use crate::units::{Nanos, SECOND};

/// Sends one packet after another.
#[derive(Debug)]
pub(crate) enum Transmitter {
    Unlimited,
    Constant {
        rate: u64,
        free_at: Nanos,
        /// The part of the last packet's time below a nanosecond, in bit·ns: without it, a rate that does
        /// not divide a second would drift.
        carry: u128,
    },
    Trace {
        trace: Arc<Trace>,
        cursor: Cursor,
        free_at: Nanos,
    },
}

impl Transmitter {
    pub(crate) fn new(impairments: &Impairments) -> Transmitter {
        match &impairments.rate {
            Rate::Unlimited => Transmitter::Unlimited,
            Rate::Constant(rate) => Transmitter::Constant { rate: *rate, free_at: 0, carry: 0 },
            Rate::Trace(trace) => Transmitter::Trace {
                trace: Arc::clone(trace),
                cursor: Cursor::default(),
                free_at: 0,
            },
        }
    }

    pub(crate) fn is_unlimited(&self) -> bool {
        matches!(self, Transmitter::Unlimited)
    }

    /// When transmission of a packet that is ready at `ready` begins.
    pub(crate) fn start(&self, ready: Nanos) -> Nanos {
        match self {
            Transmitter::Unlimited => ready,
            Transmitter::Constant { free_at, .. } => ready.max(*free_at),
            Transmitter::Trace { trace, cursor, free_at } => {
                cursor.start(trace, ready.max(*free_at))
            }
        }
    }

    /// Sends a packet; returns the time at which its last bit has left.
    pub(crate) fn send(&mut self, ready: Nanos, bytes: usize) -> Nanos {
        match self {
            Transmitter::Unlimited => ready,
            Transmitter::Constant { rate, free_at, carry } => {
                if ready > *free_at {
                    *carry = 0;
                }
                let work = bytes as u128 * 8 * u128::from(SECOND) + *carry;
                let time = (work / u128::from(*rate)) as u64;
                *carry = work % u128::from(*rate);
                *free_at = ready.max(*free_at).saturating_add(time);
                *free_at
            }
            Transmitter::Trace { trace, cursor, free_at } => {
                *free_at = cursor.send(trace, ready.max(*free_at), bytes as u64);
                *free_at
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constant(rate: u64) -> Transmitter {
        Transmitter::new(&Impairments { rate: Rate::Constant(rate), ..Impairments::default() })
    }

    #[test]
    fn a_rate_that_does_not_divide_a_second_does_not_drift() {
        let mut transmitter = constant(7_000_000);
        let mut last = 0;
        for _ in 0..700_000 {
            last = transmitter.send(0, 1250);
        }
        // 700,000 packets of 10,000 bits at 7 Mbit/s: 1,000 s.
        assert_eq!(last, 1000 * SECOND);
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let mut transmitter = constant(8_000);
        assert_eq!(transmitter.send(0, 1), SECOND / 1000);
        assert_eq!(transmitter.start(5 * SECOND), 5 * SECOND);
        assert_eq!(transmitter.send(5 * SECOND, 1000), 6 * SECOND);
        assert_eq!(transmitter.start(5 * SECOND), 6 * SECOND);
    }
}
