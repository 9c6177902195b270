//! Topic names and filters (section 4.7) and shared subscriptions (section 4.8.2).

use crate::search::has;

/// Maximum number of levels of a name or filter. The specification knows no limit; a bound keeps every
/// walk along the levels bounded too.
pub const MAX_LEVELS: usize = 128;

/// Why a topic name or filter is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// Nothing at all ([MQTT-4.7.3-1]).
    #[error("topic is empty")]
    Empty,
    /// More than 65,535 bytes ([MQTT-4.7.3-3]).
    #[error("topic is longer than 65,535 bytes")]
    TooLong,
    /// More levels than [`MAX_LEVELS`].
    #[error("topic has more than {MAX_LEVELS} levels")]
    TooDeep,
    /// U+0000 ([MQTT-4.7.3-2]).
    #[error("topic contains U+0000")]
    Null,
    /// A wildcard in a name ([MQTT-3.3.2-2]).
    #[error("topic name contains a wildcard (+ or #); only filters may")]
    WildcardInName,
    /// `#` not last, or a wildcard that shares its level ([MQTT-4.7.1-1], [MQTT-4.7.1-2]).
    #[error("wildcard in the wrong place: + and # stand alone in a level, # only at the end")]
    WildcardPlace,
    /// `$share/…` without a group or a filter ([MQTT-4.8.2-1], [MQTT-4.8.2-2]).
    #[error("shared subscription must be $share/GROUP/FILTER, without wildcards in GROUP")]
    Share,
}

fn check_common(text: &str) -> Result<(), TopicError> {
    if text.is_empty() {
        return Err(TopicError::Empty);
    }
    if text.len() > usize::from(u16::MAX) {
        return Err(TopicError::TooLong);
    }
    if has(text.as_bytes(), [0]) {
        return Err(TopicError::Null);
    }
    // Shorter than this it cannot have too many.
    if text.len() >= MAX_LEVELS && text.bytes().filter(|byte| *byte == b'/').count() >= MAX_LEVELS {
        return Err(TopicError::TooDeep);
    }
    Ok(())
}

/// Checks a topic name.
///
/// # Errors
/// Says which rule it breaks.
pub fn check_name(name: &str) -> Result<(), TopicError> {
    // All at once where nothing is wrong, which is a third of the work; what is wrong is then looked for.
    let usual = !name.is_empty() && name.len() < MAX_LEVELS;
    if usual && !has(name.as_bytes(), [0, b'+', b'#']) {
        return Ok(());
    }
    check_common(name)?;
    if has(name.as_bytes(), [b'+', b'#']) {
        return Err(TopicError::WildcardInName);
    }
    Ok(())
}

/// Checks a topic filter, without any `$share` prefix.
///
/// # Errors
/// Says which rule it breaks.
pub fn check_filter(filter: &str) -> Result<(), TopicError> {
    check_common(filter)?;
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        let alone = level.len() == 1;
        let hash = level.contains('#');
        if (hash && !(alone && levels.peek().is_none())) || (level.contains('+') && !alone) {
            return Err(TopicError::WildcardPlace);
        }
    }
    Ok(())
}

/// Subscription that a SUBSCRIBE requests: a filter, and the group if it is a shared subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscription<'a> {
    /// Share name of `$share/NAME/FILTER`.
    pub share: Option<&'a str>,
    /// The filter proper.
    pub filter: &'a str,
}

impl<'a> Subscription<'a> {
    /// Parses and checks a filter as it stands in SUBSCRIBE.
    ///
    /// # Errors
    /// Says which rule it breaks.
    pub fn parse(text: &'a str) -> Result<Subscription<'a>, TopicError> {
        let (share, filter) = match text.strip_prefix("$share/") {
            None if text == "$share" => return Err(TopicError::Share),
            None => (None, text),
            Some(rest) => {
                let (group, filter) = rest.split_once('/').ok_or(TopicError::Share)?;
                if group.is_empty() || filter.is_empty() || group.contains(['+', '#']) {
                    return Err(TopicError::Share);
                }
                (Some(group), filter)
            }
        };
        check_filter(filter)?;
        Ok(Subscription { share, filter })
    }
}

/// Whether a checked filter matches a checked name. Filters that begin with a wildcard do not match
/// names that begin with `$` ([MQTT-4.7.2-1]).
#[must_use]
pub fn matches(filter: &str, name: &str) -> bool {
    if name.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut levels = name.split('/');
    for part in filter.split('/') {
        match (part, levels.next()) {
            ("#", _) => return true,
            ("+", Some(_)) => {}
            (part, Some(level)) if part == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

/// Whether some name may be matched by both checked filters; what is said of names that begin with `$`
/// is left aside.
#[must_use]
pub fn overlaps(a: &str, b: &str) -> bool {
    let (mut a, mut b) = (a.split('/'), b.split('/'));
    loop {
        match (a.next(), b.next()) {
            (Some("#"), _) | (_, Some("#")) | (None, None) => return true,
            (Some("+"), Some(_)) | (Some(_), Some("+")) => {}
            (Some(x), Some(y)) if x == y => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_overlap_where_a_name_matches_both() {
        for (a, b) in [("a/#", "a"), ("a/+/c", "+/b/#"), ("#", "x/y"), ("+", "x")] {
            assert!(overlaps(a, b) && overlaps(b, a), "{a} {b}");
        }
        for (a, b) in [("a/+", "a"), ("a/b", "a/c"), ("+/b", "a/b/c"), ("b/#", "a/#")] {
            assert!(!overlaps(a, b) && !overlaps(b, a), "{a} {b}");
        }
    }

    /// Names are read in blocks: whatever their length, no byte is left out.
    #[test]
    fn what_is_wrong_is_found_at_each_place() {
        for length in [1, 2, 7, 8, 9, 15, 16, 17, 127, 128, 129, 300] {
            let right = "a".repeat(length);
            assert_eq!(check_name(&right), Ok(()), "{length}");
            for place in 0..length {
                let with = |wrong: &str| {
                    let mut name = right.clone();
                    name.replace_range(place..=place, wrong);
                    name
                };
                assert_eq!(check_name(&with("\0")), Err(TopicError::Null), "{place} of {length}");
                assert_eq!(
                    check_name(&with("+")),
                    Err(TopicError::WildcardInName),
                    "{place} of {length}"
                );
                assert_eq!(
                    check_name(&with("#")),
                    Err(TopicError::WildcardInName),
                    "{place} of {length}"
                );
                assert_eq!(check_filter(&with("\0")), Err(TopicError::Null), "{place} of {length}");
            }
        }
        for (levels, result) in [(MAX_LEVELS, Ok(())), (MAX_LEVELS + 1, Err(TopicError::TooDeep))] {
            assert_eq!(check_name(&"/".repeat(levels - 1)), result);
            assert_eq!(check_name(&vec!["level"; levels].join("/")), result);
        }
    }

    #[test]
    fn mqtt_4_7_1_hash_matches_parent_and_below() {
        for name in ["sport", "sport/", "sport/tennis", "sport/tennis/player1"] {
            assert!(matches("sport/#", name), "{name}");
        }
        assert!(!matches("sport/#", "sports"));
        assert!(matches("#", "/finance"));
    }

    #[test]
    fn mqtt_4_7_1_plus_matches_one_level() {
        assert!(matches("sport/+", "sport/"));
        assert!(!matches("sport/+", "sport"));
        assert!(!matches("sport/+", "sport/a/b"));
        assert!(matches("+/+", "/finance"));
        assert!(!matches("+", "/finance"));
    }

    #[test]
    fn mqtt_4_7_2_1_wildcard_first_does_not_match_dollar() {
        assert!(!matches("#", "$SYS/uptime"));
        assert!(!matches("+/uptime", "$SYS/uptime"));
        assert!(matches("$SYS/#", "$SYS/uptime"));
    }

    #[test]
    fn mqtt_4_7_1_wildcards_stand_alone() {
        for bad in ["sport/tennis#", "sport/#/x", "sport+", "a/b+/c", "##", ""] {
            assert!(check_filter(bad).is_err(), "{bad}");
        }
        for good in ["#", "+", "+/tennis/#", "/", "sport/+/player1"] {
            assert_eq!(check_filter(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn mqtt_4_8_2_share_needs_group_and_filter() {
        let shared = Subscription { share: Some("g"), filter: "a/#" };
        assert_eq!(Subscription::parse("$share/g/a/#"), Ok(shared));
        for bad in ["$share", "$share/", "$share/g", "$share/g/", "$share//a", "$share/+/a"] {
            assert_eq!(Subscription::parse(bad), Err(TopicError::Share), "{bad}");
        }
    }

    #[test]
    fn names_have_no_wildcards_and_bounded_depth() {
        assert_eq!(check_name("a/+"), Err(TopicError::WildcardInName));
        assert_eq!(check_name(&"/".repeat(MAX_LEVELS)), Err(TopicError::TooDeep));
        assert_eq!(check_name(&"/".repeat(MAX_LEVELS - 1)), Ok(()));
    }
}
