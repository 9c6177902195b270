//! Dates and times (EN 13757-3, annex A, types F, G, I and J), in the meter's own time.
//!
//! A date with a field "every" (day 0, month 15) or a value that no calendar has is no date. The
//! year 127, "every year", is kept as 2127, so that a yearly due date can still be read.

use std::fmt;

/// The minute's bit that marks types F and I invalid.
const INVALID: u8 = 0x80;

/// A date, with or without a time, or a time alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Year, month (1 to 12) and day (1 to 31).
    pub date: Option<(u16, u8, u8)>,
    /// Hour and minute.
    pub time: Option<(u8, u8)>,
    /// Second, where the meter tells it.
    pub second: Option<u8>,
    /// Whether the meter marks it invalid, as it does while its clock is not set.
    pub doubtful: bool,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((year, month, day)) = self.date {
            write!(f, "{year:04}-{month:02}-{day:02}")?;
        }
        let Some((hour, minute)) = self.time else { return Ok(()) };
        if self.date.is_some() {
            f.write_str(" ")?;
        }
        write!(f, "{hour:02}:{minute:02}")?;
        self.second.map_or(Ok(()), |second| write!(f, ":{second:02}"))
    }
}

impl Moment {
    /// From a record's data, whose length tells the type. `None` if it is none of them, or not a
    /// moment.
    #[must_use]
    pub fn parse(data: &[u8]) -> Option<Self> {
        match *data {
            [a, b] => Some(Self { date: Some(date(a, b, 0)?), ..Self::default() }),
            [second, minute, hour] => {
                let time = Some(clock(hour, minute)?);
                Some(Self { time, second: Some(sixty(second)?), ..Self::default() })
            }
            [minute, hour, a, b] => type_f(minute, hour, a, b),
            [second, minute, hour, a, b, _week] => {
                let time = Some(clock(hour & 0x1F, minute & 0x3F)?);
                let second = Some(sixty(second & 0x3F)?);
                Some(Self {
                    date: Some(date(a, b, 0)?),
                    time,
                    second,
                    doubtful: minute & INVALID != 0,
                })
            }
            _ => None,
        }
    }
}

impl Moment {
    /// The moment this many seconds after the begin of the year 2000, without leap seconds.
    #[must_use]
    pub fn since_2000(seconds: u64) -> Self {
        // Years are counted from March, so that leap days come last.
        const DAYS_IN_400_YEARS: u64 = 146_097;
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        // From 1 March 1600, the begin of a cycle of 400 years.
        let day = days + DAYS_IN_400_YEARS - 60;
        let (cycle, day) = (day / DAYS_IN_400_YEARS, day % DAYS_IN_400_YEARS);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let date = day - (153 * month + 2) / 5 + 1;
        let (month, late) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        let year = 1600 + 400 * cycle + year + late;
        Self {
            date: Some((year as u16, month as u8, date as u8)),
            time: Some(((second / 3600) as u8, (second / 60 % 60) as u8)),
            second: Some((second % 60) as u8),
            doubtful: false,
        }
    }

    /// The way back of [`Moment::since_2000`]; `None` without date and time, and before 2000.
    #[must_use]
    pub fn seconds_since_2000(self) -> Option<u64> {
        let ((year, month, day), (hour, minute)) = self.date.zip(self.time)?;
        let (year, month, day) = (u64::from(year), u64::from(month), u64::from(day));
        // Years are counted from March, so that leap days come last.
        let (year, month) =
            if month > 2 { (year, month - 3) } else { (year.saturating_sub(1), month + 9) };
        let leap_days = year / 4 - year / 100 + year / 400;
        let days = 365 * year + leap_days + (153 * month + 2) / 5 + day;
        // Of 1 January 2000.
        let days = days.checked_sub(730_426)?;
        let second = u64::from(self.second.unwrap_or(0));
        Some(days * 86_400 + u64::from(hour) * 3600 + u64::from(minute) * 60 + second)
    }

    /// The same day so many months later, or earlier; the last of a month that has no such day.
    pub(crate) fn plus_months(self, months: i32) -> Self {
        let Some((year, month, day)) = self.date else { return self };
        let count = i32::from(year) * 12 + i32::from(month) - 1 + months;
        let (year, month) = (count.div_euclid(12), count.rem_euclid(12) + 1);
        let (year, month) = (year as u16, month as u8);
        Self { date: Some((year, month, day.min(last_day(year, month)))), ..self }
    }

    /// The four bytes of type F, to the minute; of the years 2000 to 2099.
    pub(crate) fn to_type_f(self) -> [u8; 4] {
        let ((year, month, day), (hour, minute)) =
            (self.date.unwrap_or((2000, 1, 1)), self.time.unwrap_or_default());
        let year = (year % 100) as u8;
        [minute, hour, day | (year & 7) << 5, month | (year >> 3) << 4]
    }
}

/// Minute with "invalid" bit; hour with century; day and month with parts of the year.
fn type_f(minute: u8, hour: u8, a: u8, b: u8) -> Option<Moment> {
    let date = Some(date(a, b, hour >> 5 & 3)?);
    let time = Some(clock(hour & 0x1F, minute & 0x3F)?);
    Some(Moment { date, time, second: None, doubtful: minute & INVALID != 0 })
}

/// Day with three bits of the year, month with four; `century` from 1900 on, 0 where it is not told.
fn date(a: u8, b: u8, century: u8) -> Option<(u16, u8, u8)> {
    let year = u16::from(a >> 5 | (b & 0xF0) >> 1);
    let (month, day) = (b & 0x0F, a & 0x1F);
    // The standard's advice for meters that tell no century.
    let base = match (century, year) {
        (0, 81..=99) => 1900,
        (0, _) => 2000,
        (century, _) => 1900 + 100 * u16::from(century),
    };
    calendar(base + year, month, day)
}

/// The date, if the calendar has it.
pub(crate) fn calendar(year: u16, month: u8, day: u8) -> Option<(u16, u8, u8)> {
    let has = (1..=12).contains(&month) && (1..=last_day(year, month)).contains(&day);
    has.then_some((year, month, day))
}

const fn last_day(year: u16, month: u8) -> u8 {
    match month {
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => {
            29
        }
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn clock(hour: u8, minute: u8) -> Option<(u8, u8)> {
    (hour < 24).then_some((hour, sixty(minute)?))
}

const fn sixty(value: u8) -> Option<u8> {
    if value < 60 { Some(value) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn shown(data: &[u8]) -> String {
        Moment::parse(data).map_or_else(|| "none".into(), |moment| moment.to_string())
    }

    #[test]
    fn seconds_are_counted_back() {
        for seconds in [0, 59, 86_399, 5_184_000, 820_915_200, 3_187_295_999, 4_007_750_400] {
            assert_eq!(Moment::since_2000(seconds).seconds_since_2000(), Some(seconds));
        }
        assert_eq!(Moment::default().seconds_since_2000(), None);
    }

    #[test]
    fn each_type_is_read() {
        assert_eq!(shown(&[0x9F, 0x2C]), "2020-12-31", "G");
        assert_eq!(shown(&[0x14, 0x16, 0xB9, 0x21]), "2021-01-25 22:20", "F");
        assert_eq!(shown(&[59, 48, 11]), "11:48:59", "J");
        assert_eq!(shown(&[24, 38, 10, 0xEB, 0x25, 0]), "2023-05-11 10:38:24", "I");
    }

    #[test]
    fn what_is_no_moment_is_none() {
        for data in [
            &[0xFF, 0xFF][..],
            &[0, 0],
            &[0x9F, 0x2D],
            // 31 February, and 29 February of a year that has none.
            &[0x5F, 0x32],
            &[0x0F, 0x0A, 0x5F, 0x32],
            &[0x3D, 0x32],
            &[63, 31, 0, 0],
            &[60, 0, 0],
            &[],
            &[1, 2, 3, 4, 5],
        ] {
            assert_eq!(shown(data), "none", "{data:?}");
        }
    }

    #[test]
    fn a_clock_that_is_not_set_is_doubted() {
        let doubtful = |data: &[u8]| Moment::parse(data).map(|moment| moment.doubtful);
        assert_eq!(doubtful(&[0x94, 0x16, 0xB9, 0x21]), Some(true));
        assert_eq!(doubtful(&[0x14, 0x16, 0xB9, 0x21]), Some(false));
        assert_eq!(doubtful(&[24, 0x80 | 38, 10, 0xEB, 0x25, 0]), Some(true));
    }

    #[test]
    fn the_calendar_is_right() {
        let shown = |seconds| Moment::since_2000(seconds).to_string();
        assert_eq!(shown(0), "2000-01-01 00:00:00");
        assert_eq!(shown(59 * 86_400), "2000-02-29 00:00:00");
        assert_eq!(shown(60 * 86_400 - 1), "2000-02-29 23:59:59");
        assert_eq!(shown(366 * 86_400), "2001-01-01 00:00:00");
        assert_eq!(shown(782_749_201), "2024-10-20 14:20:01");
        assert_eq!(shown(u64::from(u32::MAX)), "2136-02-07 06:28:15");
    }

    #[test]
    fn months_are_counted() {
        let day = Moment { date: Some((2026, 1, 31)), ..Moment::default() };
        for (months, wanted) in
            [(1, "2026-02-28"), (-1, "2025-12-31"), (-11, "2025-02-28"), (25, "2028-02-29")]
        {
            assert_eq!(day.plus_months(months).to_string(), wanted);
        }
    }

    #[test]
    fn type_f_is_read_back() {
        for seconds in (0..80).map(|year| year * 31_600_000) {
            let moment = Moment { second: None, ..Moment::since_2000(seconds) };
            assert_eq!(Moment::parse(&moment.to_type_f()), Some(moment));
        }
    }

    #[test]
    fn centuries() {
        assert_eq!(shown(&[0x00, 0x00, 0x21 | 0x40, 0xC1]), "1999-01-01 00:00");
        assert_eq!(shown(&[0x00, 0x20, 0x21, 0x31]), "2025-01-01 00:00", "century told");
        assert_eq!(shown(&[0xE1, 0xF1]), "2127-01-01", "every year");
    }
}
