//! Times on the command line.

/// Seconds of a number with s, m, h or d.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || "expected a number with s, m, h or d, such as 90s or 24h".to_owned();
    let unit = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3600,
        Some('d') => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    number.checked_mul(unit).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_time_has_a_unit() {
        assert_eq!([parse("90s"), parse("2h"), parse("1d")], [Ok(90), Ok(7200), Ok(86_400)]);
        for wrong in ["", "s", "5", "-1s", "1w", "99999999999999999999d", "1é"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
