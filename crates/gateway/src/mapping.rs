//! Which topics are forwarded, and with which names: a list of rules per direction, of which the first match decides.
//!
//! A rule applies to the topics that its filter matches. It replaces `from_prefix` in their names by `to_prefix`. Names
//! that begin with `$` are never forwarded: they are a broker's own.

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
    /// Its messages' priority.
    pub priority: Priority,
}

/// Why a rule is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The filter is invalid.
    #[error("filter {filter:?}: {error}")]
    Filter {
        /// As given.
        filter: String,
        /// Why.
        error: TopicError,
    },
    /// With a shared subscription, each of several gateways would get only a part of the messages.
    #[error("filter {0:?}: shared subscriptions and names that begin with $ cannot be forwarded")]
    Dollar(String),
    /// The filter also matches names that do not begin with the prefix to be removed.
    #[error(
        "filter {filter:?} also matches names that do not begin with from_prefix {prefix:?}; begin the filter with it"
    )]
    Prefix {
        /// As given.
        filter: String,
        /// As given.
        prefix: String,
    },
    /// A prefix with a wildcard or U+0000 in it.
    #[error("prefix {0:?} is not valid in a topic name; do not use +, # or U+0000")]
    NoName(String),
}

impl Rule {
    /// Checks the rule.
    ///
    /// # Errors
    /// The filter or a prefix is invalid.
    pub fn check(&self) -> Result<(), RuleError> {
        let filter = &self.filter;
        let wrong = |error| RuleError::Filter { filter: filter.clone(), error };
        check_filter(filter).map_err(wrong)?;
        if filter.starts_with('$') {
            return Err(RuleError::Dollar(filter.clone()));
        }
        for prefix in [&self.from_prefix, &self.to_prefix] {
            if !prefix.is_empty() && (check_name(prefix).is_err() || prefix.starts_with('$')) {
                return Err(RuleError::NoName(prefix.clone()));
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
        check_name(&mapped).is_ok().then_some(mapped)
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
    pub fn new(rules: Vec<Rule>) -> Result<Mapping, (usize, RuleError)> {
        for (number, rule) in (1..).zip(&rules) {
            rule.check().map_err(|error| (number, error))?;
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
            rule.check().unwrap();
            assert_eq!(rule.map(name).as_deref(), mapped, "{filter} {name}");
        }
    }

    #[test]
    fn wrong_rules_are_told_apart() {
        let wrong = |filter, from, to| rule(filter, from, to).check().unwrap_err().to_string();
        assert!(wrong("a/#/b", "", "").contains("wildcard in the wrong place"));
        assert!(wrong("$share/g/a", "", "").contains("shared"));
        assert!(wrong("+/b", "a/", "").contains("begin the filter with it"));
        assert!(wrong("a/b", "", "x/+/").contains("not valid in a topic name"));
        let rules = vec![rule("a", "", ""), rule("", "", "")];
        assert_eq!(Mapping::new(rules).unwrap_err().0, 2);
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let mapping = Mapping::new(vec![rule("a/b", "", "x/"), rule("a/#", "", "y/")]).unwrap();
        assert_eq!(mapping.map("a/b").unwrap().1, "x/a/b");
        assert_eq!(mapping.map("a/c").unwrap().1, "y/a/c");
        assert!(mapping.map("b").is_none());
    }

    #[test]
    fn circles_are_found_by_what_the_rules_make() {
        let one = |rule| Mapping::new(vec![rule]).unwrap();
        let up = one(rule("both/#", "", ""));
        assert_eq!(circle(&up, &one(rule("both/a", "", ""))), Some((1, 1)));
        assert_eq!(circle(&up, &one(rule("down/#", "", ""))), None);
        let prefixed = one(rule("both/#", "", "site/"));
        assert_eq!(circle(&prefixed, &one(rule("both/#", "", ""))), None);
        assert_eq!(circle(&prefixed, &one(rule("site/+/a", "", ""))), Some((1, 1)));
    }
}
