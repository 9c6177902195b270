//! The people of a home and their activities: sleep, work, cooking, showers, opening windows. A pure function of
//! time.

use crate::dice::Dice;

const DAY_S: u64 = 86_400;

/// A household's habits.
#[derive(Debug)]
pub(super) struct People {
    dice: Dice,
    count: f64,
    /// In about one household of five, somebody is at home all day.
    stays: bool,
}

/// Their activities at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doing {
    /// Number of people at home.
    pub(super) present: f64,
    pub(super) asleep: bool,
    pub(super) cooking: bool,
    pub(super) showering: bool,
    pub(super) window_open: bool,
}

impl People {
    pub(super) fn new(dice: Dice) -> People {
        let count = [1.0, 2.0, 2.0, 3.0, 4.0, 5.0][(dice.share(0) * 6.0) as usize];
        People { dice, count, stays: dice.share(1) < 0.2 }
    }

    /// The activities at a time, with this indoor temperature in °C.
    pub(super) fn at(&self, time_s: u64, temperature: f64) -> Doing {
        let day = time_s / DAY_S;
        let hour = (time_s % DAY_S) as f64 / 3600.0;
        // Random values of this day; 1970-01-01 was a Thursday.
        let dice = self.dice.derive(100 + day);
        let weekend = matches!((day + 4) % 7, 0 | 6);
        let rises = if weekend { 8.5 } else { 6.7 } + dice.bell(0) * 0.4;
        let sleeps = 22.8 + dice.bell(1) * 0.5;
        let asleep = hour < rises || hour > sleeps;
        let within = |begin: f64, length: f64| (begin..begin + length).contains(&hour);
        let out = match (weekend, self.stays) {
            (true, _) if dice.share(2) < 0.6 => within(11.0 + 2.0 * dice.share(3), 4.0),
            (false, false) => within(8.2 + 0.5 * dice.bell(4), 8.6 + dice.bell(5)),
            (false, true) => within(10.5, 1.5),
            (true, _) => false,
        };
        let present = if out { 0.0 } else { self.count };
        let home = present > 0.0 && !asleep;
        let aired = dice.share(6) < 0.7 && within(rises + 0.3, 0.25 + 0.2 * dice.share(7));
        let evening = dice.share(8) < 0.4 && within(20.0 + dice.share(9), 0.3);
        let too_warm = temperature > 24.5 && !out;
        Doing {
            present,
            asleep,
            cooking: home && (within(18.2 + 0.5 * dice.bell(10), 0.8) || within(rises + 0.2, 0.2)),
            showering: home && within(rises, 0.25),
            window_open: (home && (aired || evening)) || too_warm,
        }
    }
}
