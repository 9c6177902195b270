//! Topic matching by the words of section 4.7, level by level, without regard for speed.

use fulmar_mqtt::topic::{MAX_LEVELS, Subscription, check_filter, check_name, matches};

/// Whether `filter` matches `name`; both are right.
pub fn naive_matches(filter: &str, name: &str) -> bool {
    let filter: Vec<&str> = filter.split('/').collect();
    let name_levels: Vec<&str> = name.split('/').collect();
    let hidden = name.starts_with('$') && matches!(filter[0], "+" | "#");
    !hidden && levels_match(&filter, &name_levels)
}

fn levels_match(filter: &[&str], name: &[&str]) -> bool {
    match (filter, name) {
        (["#"], _) => true,
        ([], []) => true,
        (["+", filter @ ..], [_, name @ ..]) => levels_match(filter, name),
        ([f, filter @ ..], [n, name @ ..]) => f == n && levels_match(filter, name),
        _ => false,
    }
}

fn naive_is_filter(text: &str) -> bool {
    let levels: Vec<&str> = text.split('/').collect();
    let level_is_right = |(at, level): (usize, &&str)| match *level {
        "+" => true,
        "#" => at + 1 == levels.len(),
        level => !level.contains(['+', '#']),
    };
    (1..=65_535).contains(&text.len())
        && !text.contains('\0')
        && levels.len() <= MAX_LEVELS
        && levels.iter().enumerate().all(level_is_right)
}

/// A text as it stands in SUBSCRIBE, and one as it stands in PUBLISH.
pub fn agree(filter: &str, name: &str) {
    assert_eq!(check_filter(filter).is_ok(), naive_is_filter(filter));
    let is_name = naive_is_filter(name) && !name.contains(['+', '#']);
    assert_eq!(check_name(name).is_ok(), is_name);
    if let Ok(subscription) = Subscription::parse(filter) {
        assert!(naive_is_filter(subscription.filter));
        match subscription.share {
            Some(group) => {
                assert!(!group.is_empty() && !group.contains(['/', '+', '#']));
                assert_eq!(filter, format!("$share/{group}/{}", subscription.filter));
            }
            None => assert_eq!(filter, subscription.filter),
        }
    }
    if is_name {
        assert!(matches(name, name), "a name is a filter that matches itself");
        if naive_is_filter(filter) {
            assert_eq!(matches(filter, name), naive_matches(filter, name));
        }
    }
}
