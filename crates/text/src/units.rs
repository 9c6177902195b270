//! Quantities as people write them: `300ms`, `64kbit`, `5%`, `32kB`.
//!
//! Times are nanoseconds in a `u64`, rates bits per second, sizes bytes, shares 0 to 1. Decimal
//! prefixes are decimal (1 kB = 1,000 B); `KiB` and `MiB` are binary. A bare number is refused where
//! its unit would be a guess (time), and taken as bits per second, bytes or a share elsewhere.

/// Nanoseconds: of duration, or since the start of a run (virtual time).
pub type Nanos = u64;

/// One second.
pub const SECOND: Nanos = 1_000_000_000;
/// One millisecond.
pub const MILLISECOND: Nanos = 1_000_000;

/// The longest time that is taken: a day. It keeps every sum of times far from overflow.
pub const MAX_TIME: Nanos = 86_400 * SECOND;
/// The highest rate that is taken, in bits per second.
pub const MAX_RATE: u64 = 100_000_000_000;
/// The most memory that is taken, in bytes.
const MAX_MEMORY: f64 = 1_125_899_906_842_624.0;
/// The largest size that is taken, in bytes.
pub const MAX_SIZE: u64 = 1 << 32;

/// A quantity that cannot be read; the text says what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}")]
pub struct UnitError {
    text: String,
    wanted: &'static str,
}

fn quantity(
    text: &str,
    units: &[(&str, f64)],
    max: f64,
    wanted: &'static str,
) -> Result<f64, UnitError> {
    let error = || UnitError { text: text.to_owned(), wanted };
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim()).ok_or_else(error)?;
    let value = number.parse::<f64>().map_err(|_| error())? * factor;
    if value.is_finite() && value <= max { Ok(value) } else { Err(error()) }
}

/// Reads a time such as `250us`, `300ms`, `2s` or `5min`, up to a day.
///
/// # Errors
/// No number, no unit, an unknown unit, or too long.
pub fn parse_time(text: &str) -> Result<Nanos, UnitError> {
    let units = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9), ("min", 60e9)];
    let wanted = "a time up to a day, such as 250us, 300ms, 2s or 5min";
    if text.trim() == "0" {
        return Ok(0);
    }
    quantity(text, &units, MAX_TIME as f64, wanted).map(|value| value.round() as Nanos)
}

/// Reads a rate such as `64k`, `64kbit`, `64kbit/s`, `10M` or `1.5Mbit`, in bits per second.
///
/// # Errors
/// No number, an unknown unit, zero, or more than 100 Gbit/s.
pub fn parse_rate(text: &str) -> Result<u64, UnitError> {
    let wanted = "a rate of 1 bit/s to 100 Gbit/s, such as 64k, 1.5M or 10Mbit";
    let plain = text.trim().trim_end_matches("/s").trim_end_matches("ps");
    let plain = plain.strip_suffix("bit").or_else(|| plain.strip_suffix('b')).unwrap_or(plain);
    let units = [("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9)];
    let error = || UnitError { text: text.to_owned(), wanted };
    let rate = quantity(plain, &units, MAX_RATE as f64, wanted).map_err(|_| error())?;
    if rate >= 1.0 { Ok(rate.round() as u64) } else { Err(error()) }
}

/// Reads a size such as `1500`, `32kB` or `1MiB`, in bytes.
///
/// # Errors
/// No number, an unknown unit, or more than 4 GiB.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let units =
        [("", 1.0), ("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("KiB", 1024.0), ("MiB", 1_048_576.0)];
    let wanted = "a size up to 4GiB, such as 1500, 32kB or 1MiB";
    quantity(text, &units, MAX_SIZE as f64, wanted).map(|value| value.round() as u64)
}

/// Reads an amount of memory such as `512MB` or `2GiB`, in bytes.
///
/// # Errors
/// No number, no unit, an unknown unit, or more than 1 PiB.
pub fn parse_memory(text: &str) -> Result<u64, UnitError> {
    let units = [
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
        ("TiB", 1_099_511_627_776.0),
    ];
    let wanted = "an amount of memory up to 1PiB, such as 512MB or 2GiB";
    quantity(text, &units, MAX_MEMORY, wanted).map(|value| value.round() as u64)
}

/// Reads a share such as `5%` or `0.05`.
///
/// # Errors
/// No number, or not within 0 to 1.
pub fn parse_share(text: &str) -> Result<f64, UnitError> {
    quantity(text, &[("", 1.0), ("%", 0.01)], 1.0, "a share, such as 5% or 0.05")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_people_write_them() {
        assert_eq!(parse_time("300ms"), Ok(300 * MILLISECOND));
        assert_eq!(parse_time("0.25 ms"), Ok(250_000));
        assert_eq!(parse_time("5min"), Ok(300 * SECOND));
        assert_eq!(parse_rate("64k"), Ok(64_000));
        assert_eq!(parse_rate("1.5Mbit/s"), Ok(1_500_000));
        assert_eq!(parse_rate("64kbps"), Ok(64_000));
        assert_eq!(parse_size("32kB"), Ok(32_000));
        assert_eq!(parse_size("1KiB"), Ok(1024));
        assert_eq!(parse_share("5%"), Ok(0.05));
        assert_eq!(parse_share("0.5"), Ok(0.5));
    }

    #[test]
    fn guesses_are_refused_with_what_is_allowed() {
        for text in ["300", "ms", "-3ms", "1e9s", "2 days", "9999999s", ""] {
            let error = parse_time(text).unwrap_err().to_string();
            assert!(error.contains("300ms"), "{error}");
        }
        assert!(
            parse_rate("0").is_err() && parse_rate("fast").is_err() && parse_rate("1T").is_err()
        );
        assert!(parse_share("101%").is_err() && parse_share("-1%").is_err());
        assert!(parse_size("9999MiB").is_err());
    }
}
