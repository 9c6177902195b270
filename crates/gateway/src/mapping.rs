//! Which topics are forwarded, and with which names: a list of rules per direction, of which the first match decides.
//!
//! A rule applies to the topics that its filter matches. It replaces `from_prefix` in their names by `to_prefix`. Names
//! that begin with `$` are a broker's own: here they are never forwarded, upstream they may be an interface (`$aws/`,
//! `$iothub/`), which a rule has to name.

use fulmar_mqtt::QoS;
use fulmar_mqtt::topic::{TopicError, check_filter, check_name, matches, overlaps};
use serde::{Deserialize, Serialize};

/// A message's priority; urgent messages are sent first.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Before all normal messages.
    Urgent = 0,
    /// In order of arrival.
    #[default]
    Normal = 1,
}

/// The way of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From this broker to the upstream broker.
    Up,
    /// From there.
    Down,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The topics to which it applies: a filter over the names on this side.
    pub filter: String,
    /// Prefix that is removed from the name; may be empty.
    pub from_prefix: String,
    /// Prefix that is added instead.
    pub to_prefix: String,
    /// Quality of service on the other side, at most 1: because of its identifier, a message is stored once without QoS
    /// 2's second round trip.
    pub qos: QoS,
    /// Priority of the messages.
    pub priority: Priority,
}

/// Why a rule is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The filter is invalid.
    #[error("filter {filter:?}: {error}")]
    Filter {
        /// The filter as given.
        filter: String,
        /// Why.
        error: TopicError,
    },
    /// With a shared subscription, each of several gateways would get only a part of the messages.
    #[error(
        "filter {0:?}: shared subscriptions cannot be forwarded, nor names of this broker that begin with $"
    )]
    Dollar(String),
    /// The filter also matches names that do not begin with the prefix to be removed.
    #[error(
        "filter {filter:?} also matches names that do not begin with from_prefix {prefix:?}; begin the filter with it"
    )]
    Prefix {
        /// The filter as given.
        filter: String,
        /// The prefix as given.
        prefix: String,
    },
    /// A prefix with a wildcard or U+0000 in it.
    #[error("prefix {0:?} is not valid in a topic name; do not use +, # or U+0000")]
    NoName(String),
    /// A prefix of names of this broker begins with `$`.
    #[error(
        "prefix {0:?}: names of this broker that begin with $ are its own; only upstream they may be others'"
    )]
    DollarPrefix(String),
}

impl Rule {
    /// Checks the rule.
    ///
    /// # Errors
    /// The filter or a prefix is invalid.
    pub fn check(&self, direction: Direction) -> Result<(), RuleError> {
        let filter = &self.filter;
        let wrong = |error| RuleError::Filter { filter: filter.clone(), error };
        check_filter(filter).map_err(wrong)?;
        let is_down = direction == Direction::Down;
        if filter.starts_with("$share/") || filter.starts_with('$') && !is_down {
            return Err(RuleError::Dollar(filter.clone()));
        }
        for (prefix, is_here) in [(&self.from_prefix, !is_down), (&self.to_prefix, is_down)] {
            if !prefix.is_empty() && check_name(prefix).is_err() {
                return Err(RuleError::NoName(prefix.clone()));
            }
            if is_here && prefix.starts_with('$') {
                return Err(RuleError::DollarPrefix(prefix.clone()));
            }
        }
        if !filter.starts_with(&self.from_prefix) {
            let (filter, prefix) = (filter.clone(), self.from_prefix.clone());
            return Err(RuleError::Prefix { filter, prefix });
        }
        Ok(())
    }

    /// The name on the other side; `None` if the rule does not apply, or the name would be empty.
    #[must_use]
    pub fn map(&self, topic: &str) -> Option<String> {
        if !matches(&self.filter, topic) {
            return None;
        }
        let mapped = format!("{}{}", self.to_prefix, topic.strip_prefix(&*self.from_prefix)?);
        // What is left of a name behind its prefix may begin with `$`.
        let is_named = !mapped.starts_with('$') || self.to_prefix.starts_with('$');
        (is_named && check_name(&mapped).is_ok()).then_some(mapped)
    }

    /// A filter over the names on the other side that matches all names that the rule produces.
    #[must_use]
    pub fn image(&self) -> String {
        let rest = self.filter.strip_prefix(&*self.from_prefix).unwrap_or(&self.filter);
        format!("{}{rest}", self.to_prefix)
    }
}

/// Rules of one direction.
#[derive(Clone, Debug, Default)]
pub struct Mapping {
    rules: Vec<Rule>,
}

impl Mapping {
    /// Rules in order.
    ///
    /// # Errors
    /// The first invalid rule, with its number counted from 1.
    pub fn new(direction: Direction, rules: Vec<Rule>) -> Result<Mapping, (usize, RuleError)> {
        for (number, rule) in (1..).zip(&rules) {
            rule.check(direction).map_err(|error| (number, error))?;
        }
        Ok(Mapping { rules })
    }

    /// The rule that applies to a name, and the name on the other side.
    #[must_use]
    pub fn map(&self, topic: &str) -> Option<(&Rule, String)> {
        self.rules.iter().find_map(|rule| Some((rule, rule.map(topic)?)))
    }

    /// Whether a rule applies to the name.
    #[must_use]
    pub fn takes(&self, topic: &str) -> bool {
        self.rules.iter().any(|rule| matches(&rule.filter, topic))
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }
}

/// Two rules, one per direction, by which a message that went up could come down again; their numbers, counted from 1.
/// If the protocol cannot exclude a client's own messages (3.1.1 without the bridge bit), such rules would forward it
/// in a loop.
#[must_use]
pub fn circle(up: &Mapping, down: &Mapping) -> Option<(usize, usize)> {
    for (u, above) in (1..).zip(&up.rules) {
        for (d, below) in (1..).zip(&down.rules) {
            if overlaps(&above.image(), &below.filter) {
                return Some((u, d));
            }
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn rule(filter: &str, from: &str, to: &str) -> Rule {
        Rule {
            filter: filter.into(),
            from_prefix: from.into(),
            to_prefix: to.into(),
            qos: QoS::AtLeastOnce,
            priority: Priority::Normal,
        }
    }

    #[test]
    fn prefixes_are_taken_off_and_put_on() {
        for (filter, from, to, name, mapped) in [
            ("sensor/#", "", "fulmar/rural/", "sensor/a/co2", Some("fulmar/rural/sensor/a/co2")),
            ("home/1/+", "home/", "town/", "home/1/co", Some("town/1/co")),
            ("home/#", "home/", "", "home/1", Some("1")),
            // The name would be empty.
            ("home/#", "home", "", "home", None),
            ("#", "", "", "$SYS/uptime", None),
            ("home/+", "", "", "home/1/co", None),
        ] {
            let rule = rule(filter, from, to);
            rule.check(Direction::Up).unwrap();
            assert_eq!(rule.map(name).as_deref(), mapped, "{filter} {name}");
        }
    }

    #[test]
    fn wrong_rules_are_told_apart() {
        let wrong =
            |filter, from, to| rule(filter, from, to).check(Direction::Up).unwrap_err().to_string();
        assert!(wrong("a/#/b", "", "").contains("wildcard in the wrong place"));
        assert!(wrong("$share/g/a", "", "").contains("shared"));
        assert!(wrong("+/b", "a/", "").contains("begin the filter with it"));
        assert!(wrong("a/b", "", "x/+/").contains("not valid in a topic name"));
        let rules = vec![rule("a", "", ""), rule("", "", "")];
        assert_eq!(Mapping::new(Direction::Up, rules).unwrap_err().0, 2);
    }

    /// AWS IoT and Azure have interfaces there; reports of people who bridged mosquitto to them.
    #[test]
    fn names_with_a_dollar_are_forwarded_to_and_from_upstream_only() {
        let up = rule("shadow/#", "shadow/", "$aws/things/thing/shadow/");
        up.check(Direction::Up).unwrap();
        assert_eq!(up.map("shadow/update").as_deref(), Some("$aws/things/thing/shadow/update"));
        assert!(up.check(Direction::Down).unwrap_err().to_string().contains("begin with $"));
        let down = rule("$iothub/twin/res/#", "$iothub/", "azure/");
        down.check(Direction::Down).unwrap();
        assert_eq!(down.map("$iothub/twin/res/200").as_deref(), Some("azure/twin/res/200"));
        assert!(down.check(Direction::Up).unwrap_err().to_string().contains("$iothub"));
        assert!(rule("$share/g/a", "", "").check(Direction::Down).is_err());
        // No message becomes one of this broker's own topics.
        let odd = rule("x/#", "x/", "");
        odd.check(Direction::Down).unwrap();
        assert_eq!(odd.map("x/$SYS/a"), None);
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let mapping =
            Mapping::new(Direction::Up, vec![rule("a/b", "", "x/"), rule("a/#", "", "y/")])
                .unwrap();
        assert_eq!(mapping.map("a/b").unwrap().1, "x/a/b");
        assert_eq!(mapping.map("a/c").unwrap().1, "y/a/c");
        assert!(mapping.map("b").is_none());
    }

    #[test]
    fn circles_are_found_by_what_the_rules_make() {
        let one = |rule| Mapping::new(Direction::Up, vec![rule]).unwrap();
        let up = one(rule("both/#", "", ""));
        assert_eq!(circle(&up, &one(rule("both/a", "", ""))), Some((1, 1)));
        assert_eq!(circle(&up, &one(rule("down/#", "", ""))), None);
        let prefixed = one(rule("both/#", "", "site/"));
        assert_eq!(circle(&prefixed, &one(rule("both/#", "", ""))), None);
        assert_eq!(circle(&prefixed, &one(rule("site/+/a", "", ""))), Some((1, 1)));
    }
}
