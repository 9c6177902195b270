//! The stages of a roll-out: one device, then a part of them, then all; and the limit of failures.

use std::fmt;
use std::str::FromStr;

/// A number of devices, or a part of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Share {
    Devices(usize),
    Percent(f64),
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let wrong = || format!("{text:?}: use a number such as 3 or a percentage such as 10%");
        if text == "all" {
            return Ok(Share::Percent(100.0));
        }
        match text.strip_suffix('%') {
            None => text.parse().map(Share::Devices).map_err(|_| wrong()),
            Some(number) => {
                let percent: f64 = number.parse().map_err(|_| wrong())?;
                let right = (0.0..=100.0).contains(&percent);
                right.then_some(Share::Percent(percent)).ok_or_else(wrong)
            }
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Share::Devices(number) => write!(f, "{number}"),
            Share::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl Share {
    /// The number of devices among `all`; a part is rounded up.
    pub(super) fn count_among(self, all: usize) -> usize {
        match self {
            Share::Devices(number) => number.min(all),
            // Subtracts a thousandth so that rounding errors do not raise a whole number.
            Share::Percent(percent) => (all as f64 * percent / 100.0 - 0.001).ceil() as usize,
        }
    }

    /// Whether this number of failures exceeds the limit.
    pub(super) fn is_exceeded(self, failures: usize, devices: usize) -> bool {
        match self {
            Share::Devices(number) => failures > number,
            Share::Percent(percent) => failures as f64 > devices as f64 * percent / 100.0,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_numbers_or_parts() {
        for (text, of_30) in [("1", 1), ("50", 30), ("10%", 3), ("11%", 4), ("all", 30), ("0", 0)] {
            assert_eq!(text.parse::<Share>().unwrap().count_among(30), of_30, "{text}");
        }
        assert_eq!("10%".parse::<Share>().unwrap().count_among(1), 1);
        for wrong in ["", "%", "x", "-1", "101%", "NaN%", "1.5"] {
            assert!(wrong.parse::<Share>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn failures_are_too_many_above_the_limit() {
        let [none, tenth] = ["0", "10%"].map(|text| text.parse::<Share>().unwrap());
        assert!(!none.is_exceeded(0, 5) && none.is_exceeded(1, 5));
        assert!(!tenth.is_exceeded(1, 10) && tenth.is_exceeded(2, 10));
    }
}
