//! Formats numbers and days for people: three significant digits, separated thousands, no false precision.

use crate::stats::Estimate;

/// Three significant digits, whole numbers in full.
pub(super) fn short(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let size = value.abs();
    let decimals = match size {
        s if s == 0.0 || s >= 100.0 || (s.fract() == 0.0 && s >= 1.0) => 0,
        s if s >= 10.0 => 1,
        s if s >= 1.0 => 2,
        s if s >= 0.1 => 3,
        _ => 4,
    };
    let text = format!("{size:.decimals$}");
    let sign = if value < 0.0 { "−" } else { "" };
    format!("{sign}{}", if size < 10_000.0 { text } else { grouped(&text) })
}

/// A number on an axis, where its neighbours show its precision.
pub(super) fn tick(value: f64) -> String {
    let text = short(value);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn grouped(digits: &str) -> String {
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// Value and interval: `3.11 (2.95–3.30)`; if there is a minus sign, without a dash.
pub(super) fn with_interval(estimate: &Estimate) -> String {
    if estimate.low == estimate.high {
        return short(estimate.value);
    }
    let dash = if estimate.low < 0.0 { " to " } else { "–" };
    format!("{} ({}{dash}{})", short(estimate.value), short(estimate.low), short(estimate.high))
}

/// A day of the calendar from seconds since 1970.
pub(super) fn day(seconds: f64) -> String {
    let at = time::OffsetDateTime::from_unix_timestamp(seconds as i64);
    at.map_or_else(|_| "–".to_owned(), |at| at.date().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, expected) in
            [(0.0, "1970-01-01"), (951_782_400.0, "2000-02-29"), (1_795_219_200.0, "2026-11-21")]
        {
            assert_eq!(day(seconds), expected);
        }
    }

    #[test]
    fn numbers_are_as_long_as_they_mean_something() {
        for (value, expected) in [
            (0.0, "0"),
            (7.0, "7"),
            (3.114, "3.11"),
            (0.038_71, "0.0387"),
            (56.25, "56.2"),
            (1425.698, "1426"),
            (20_000.4, "20\u{202f}000"),
            (-1_234_567.0, "−1\u{202f}234\u{202f}567"),
            (-27.84, "−27.8"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(short(value), expected);
        }
        assert_eq!([0.0, 0.5, 2.5, 20.0, 0.8].map(tick), ["0", "0.5", "2.5", "20", "0.8"]);
        let estimate = Estimate { value: 2.0, low: 1.5, high: 2.25, count: 5 };
        assert_eq!(with_interval(&estimate), "2 (1.50–2.25)");
        let estimate = Estimate { value: -2.0, low: -3.5, high: -1.0, count: 5 };
        assert_eq!(with_interval(&estimate), "−2 (−3.50 to −1)");
    }
}
