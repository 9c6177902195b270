//! What the accounts of memory ([`crate::MemoryLimits`]) do not count, such as what a QUIC library keeps for each piece of a
//! stream: the process as a whole is looked at, and while it has nearly its budget, the transports close connections that
//! may be the reason. The broker only passes on what was seen.

use std::sync::atomic::{AtomicU32, Ordering};

/// The process' memory, compared with its budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryPressure {
    /// There is enough.
    #[default]
    None,
    /// It is short.
    High,
    /// It is short, and more is taken.
    Rising,
}

const LEVEL: u32 = 3;

/// The last look at it, for those who give way.
#[derive(Debug, Default)]
pub struct MemoryGauge(AtomicU32);

impl MemoryGauge {
    /// The process was looked at. One thread does.
    pub fn set(&self, pressure: MemoryPressure) {
        let before = self.0.load(Ordering::Relaxed);
        if pressure == MemoryPressure::None && before & LEVEL == 0 {
            return;
        }
        let level = match pressure {
            MemoryPressure::None => 0,
            MemoryPressure::High => 1,
            MemoryPressure::Rising => 2,
        };
        self.0.store((before & !LEVEL).wrapping_add(LEVEL + 1) | level, Ordering::Relaxed);
    }

    /// Pressure that was seen, if that was since the last call with this `seen`, which is 0 at first; otherwise none.
    pub fn pressure_since(&self, seen: &mut u32) -> MemoryPressure {
        let now = self.0.load(Ordering::Relaxed);
        if std::mem::replace(seen, now) == now {
            return MemoryPressure::None;
        }
        match now & LEVEL {
            1 => MemoryPressure::High,
            2 => MemoryPressure::Rising,
            _ => MemoryPressure::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_look_is_seen_once_by_each() {
        let (gauge, mut a, mut b) = (MemoryGauge::default(), 0, 0);
        assert_eq!(gauge.pressure_since(&mut a), MemoryPressure::None);
        gauge.set(MemoryPressure::High);
        assert_eq!(gauge.pressure_since(&mut a), MemoryPressure::High);
        assert_eq!(gauge.pressure_since(&mut a), MemoryPressure::None, "the same look");
        gauge.set(MemoryPressure::High);
        assert_eq!(gauge.pressure_since(&mut a), MemoryPressure::High, "another one");
        gauge.set(MemoryPressure::Rising);
        assert_eq!(gauge.pressure_since(&mut a), MemoryPressure::Rising);
        assert_eq!(gauge.pressure_since(&mut b), MemoryPressure::Rising);
        gauge.set(MemoryPressure::None);
        assert_eq!(gauge.pressure_since(&mut a), MemoryPressure::None);
    }
}
