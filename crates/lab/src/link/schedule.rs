//! Points and periods of virtual time: when an address changes, when a link is down.

use serde::Serialize;

use super::ConfigError;
use crate::units::{MAX_TIME, MILLISECOND, Nanos};

/// Points in time: given times, or a period. Empty by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Schedule {
    /// Single points, in ns since the start, ascending.
    pub at: Vec<Nanos>,
    /// Period in ns, first after that time; 0: none.
    pub every: Nanos,
}

impl Schedule {
    /// The first point later than `after`.
    pub fn next(&self, after: Nanos) -> Option<Nanos> {
        let single = self.at.iter().copied().find(|at| *at > after);
        let periodic = (self.every > 0).then(|| (after / self.every + 1) * self.every);
        single.into_iter().chain(periodic).min()
    }

    pub(crate) fn check(&self, key: &str) -> Result<(), ConfigError> {
        if self.every != 0 && !(MILLISECOND..=MAX_TIME).contains(&self.every) {
            return Err(ConfigError::new(key, "must be 1ms to a day"));
        }
        if !self.at.is_sorted() || self.at.last().is_some_and(|last| *last > MAX_TIME) {
            return Err(ConfigError::new(key, "times must ascend and be within a day"));
        }
        Ok(())
    }
}

/// Periods in which nothing passes. None by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outage {
    /// Single outages: from (inclusive) and to (exclusive), in ns since the start.
    pub windows: Vec<(Nanos, Nanos)>,
    /// Period of outages in ns, first after that time; 0: none.
    pub every: Nanos,
    /// Length of these outages in ns.
    pub lasting: Nanos,
}

impl Outage {
    /// Whether the link is down.
    pub fn is_down(&self, at: Nanos) -> bool {
        self.windows.iter().any(|(from, to)| (*from..*to).contains(&at))
            || (self.every > 0 && at >= self.every && at % self.every < self.lasting)
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.windows.iter().any(|(from, to)| from >= to || *to > MAX_TIME) {
            return Err(ConfigError::new(
                "down",
                "an outage must end after it begins, within a day",
            ));
        }
        if self.every > MAX_TIME || (self.every > 0 && self.lasting >= self.every) {
            return Err(ConfigError::new("down-for", "must be shorter than `down-every`"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SECOND;

    #[test]
    fn the_next_point_is_strictly_later() {
        let schedule = Schedule { at: vec![3, 5], every: 4 };
        let points: Vec<_> =
            std::iter::successors(schedule.next(0), |at| schedule.next(*at)).take(5).collect();
        assert_eq!(points, [3, 4, 5, 8, 12]);
        assert_eq!(Schedule::default().next(0), None);
    }

    #[test]
    fn outages_begin_and_end_on_time() {
        let outage =
            Outage { windows: vec![(SECOND, 2 * SECOND)], every: 10 * SECOND, lasting: SECOND };
        let down = |at: f64| outage.is_down((at * 1e9) as Nanos);
        assert!(!down(0.0) && !down(0.999) && down(1.0) && down(1.999) && !down(2.0));
        assert!(!down(9.999) && down(10.0) && down(10.999) && !down(11.0) && down(20.5));
    }

    #[test]
    fn impossible_times_are_refused() {
        let backwards = Outage { windows: vec![(2, 1)], ..Outage::default() };
        assert!(backwards.check().is_err());
        assert!(Outage { every: 5, lasting: 5, ..Outage::default() }.check().is_err());
        assert!(Schedule { at: vec![2, 1], every: 0 }.check("x").is_err());
    }
}
