//! Access rules: to which topics a client may publish and subscribe.
//!
//! A list of rules, first match decides, with a default for what none matches. In a rule's topic
//! `%u` stands for the user's name and `%c` for the client identifier. A name with a wildcard or a
//! slash in it never fills a placeholder: a client that calls itself `#` would match everything.
//!
//! A subscription is decided by the first rule that is about all of it. A denial of only a part does
//! not refuse it: what is denied is kept back when it would be delivered (`crate::route`,
//! `crate::deliver`), and so is what later rules deny.

use std::borrow::Cow;

use fulmar_mqtt::topic::{TopicError, check_filter, matches, overlaps};

use crate::user::{User, Vouched};

/// Prefix of topics that are for external users, and for clients that an access rule names. Like topics with `$`,
/// filters that begin with a wildcard do not match them.
pub const EXTERNAL_TOPICS: &str = "fulmar/";

/// What a client wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Publish to a topic name.
    Publish,
    /// Subscribe to a topic filter. A rule about this is also about receiving.
    Subscribe,
    /// Receive what is published to a topic name, with a subscription.
    Receive,
}

/// Whom a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// Everybody.
    Anyone,
    /// Clients without a user name.
    Anonymous,
    /// One user.
    User(Box<str>),
    /// One client identifier.
    Client(Box<str>),
}

/// One rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Whether it allows or denies.
    pub allow: bool,
    /// Whom it is about.
    pub who: Who,
    /// What it is about; `None` for everything.
    pub action: Option<Action>,
    /// Topic filter, perhaps with placeholders.
    pub filter: Box<str>,
    /// Whether it is only about the topic or filter that is the same text.
    pub exact: bool,
}

/// All rules of a broker.
#[derive(Clone, Debug)]
pub struct AccessRules {
    rules: Vec<Rule>,
    default_allow: bool,
    /// Filters of what is denied to some subscriber, with wildcards for placeholders.
    denials: Vec<Box<str>>,
}

impl AccessRules {
    /// What they take in memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let rules: usize =
            self.rules.iter().map(|rule| size_of::<Rule>() + rule.filter.len()).sum();
        let denials: usize =
            self.denials.iter().map(|filter| size_of::<Box<str>>() + filter.len()).sum();
        size_of::<AccessRules>() + rules + denials
    }
}

impl Default for AccessRules {
    /// Everything is allowed but what `AccessRules::may_publish` keeps from everybody.
    fn default() -> Self {
        AccessRules { rules: Vec::new(), default_allow: true, denials: Vec::new() }
    }
}

/// The client a decision is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) user: Option<&'a User>,
    pub(crate) client_id: &'a str,
}

impl<'a> Subject<'a> {
    /// The one that vouches for its user; `None` without one.
    pub(crate) fn vouched(self) -> Option<Vouched<'a>> {
        self.user.map(User::vouched)
    }

    /// Whether its user is the program or an external user, whom the operator's rules are not about.
    pub(crate) fn is_exempt(self) -> bool {
        self.user.is_some_and(|user| user.operators().is_none())
    }

    /// Its user's name, if the operator vouches for it.
    pub(crate) fn name(self) -> Option<&'a str> {
        self.user.and_then(User::operators)
    }
}

impl AccessRules {
    /// Rules in order, and what holds where none matches.
    ///
    /// # Errors
    /// The first filter that is not one.
    pub fn new(
        rules: Vec<Rule>,
        default_allow: bool,
    ) -> Result<AccessRules, (Box<str>, TopicError)> {
        for rule in &rules {
            check_filter(&rule.filter).map_err(|error| (rule.filter.clone(), error))?;
        }
        let denials = rules.iter().filter(|rule| rule.denies_subscribers());
        let denials = denials.map(|rule| anybodys(&rule.filter)).collect();
        Ok(AccessRules { rules, default_allow, denials })
    }

    /// Whether a client with a subscription that matches `topic` might not be allowed to get its messages: a rule
    /// denies it, or the default is to deny and the rules may have changed.
    pub(crate) fn guards(&self, topic: &str) -> bool {
        !self.default_allow || self.denials.iter().any(|filter| overlaps(filter, topic))
    }

    /// Whether every client may do everything, so that nothing need be looked up.
    pub(crate) fn is_open(&self) -> bool {
        self.rules.is_empty() && self.default_allow
    }

    /// Whether the client may publish to `topic`. Topics that begin with `$` are the broker's own,
    /// whatever the rules say, except the one on which a bridge publishes that it is connected.
    pub(crate) fn may_publish(&self, subject: Subject<'_>, topic: &str) -> bool {
        let reserved = topic.starts_with('$') && !is_own_bridge_state(subject.client_id, topic);
        !reserved && self.allows(subject, Action::Publish, topic)
    }

    /// Whether the client may publish to `topic`, subscribe to it as a filter, or receive what is published there.
    pub(crate) fn allows(&self, subject: Subject<'_>, action: Action, topic: &str) -> bool {
        self.decides(subject, action, topic).unwrap_or(self.default_allow)
    }

    /// The number of the first rule that matches, counted from 0; `None` where none does.
    pub(crate) fn deciding(
        &self,
        subject: Subject<'_>,
        action: Action,
        topic: &str,
    ) -> Option<usize> {
        self.rules.iter().position(|rule| {
            rule.concerns(action) && rule.is_about(subject) && rule.covers(subject, action, topic)
        })
    }

    /// What the first rule that matches says about a client; `None` where none does.
    #[must_use]
    pub fn decide(
        &self,
        user: &User,
        client_id: &str,
        action: Action,
        topic: &str,
    ) -> Option<bool> {
        self.decides(Subject { user: Some(user), client_id }, action, topic)
    }

    /// What the first rule that matches says; `None` where none does.
    pub(crate) fn decides(
        &self,
        subject: Subject<'_>,
        action: Action,
        topic: &str,
    ) -> Option<bool> {
        let about = |rule: &&Rule| rule.concerns(action) && rule.is_about(subject);
        let mut rules = self.rules.iter().filter(about);
        rules.find(|rule| rule.covers(subject, action, topic)).map(|rule| rule.allow)
    }
}

/// Whether `topic` is where mosquitto's bridges say whether they are connected
/// (`$SYS/broker/connection/<client id>/state`), and the client's own.
pub(crate) fn is_own_bridge_state(client_id: &str, topic: &str) -> bool {
    let name = topic.strip_prefix("$SYS/broker/connection/");
    let name = name.and_then(|rest| rest.strip_suffix("/state"));
    name.is_some_and(|name| name == client_id)
}

impl Rule {
    fn is_about(&self, subject: Subject<'_>) -> bool {
        match &self.who {
            Who::Anyone => true,
            Who::Anonymous => subject.user.is_none(),
            Who::User(name) => subject.name() == Some(name),
            Who::Client(id) => subject.client_id == &**id,
        }
    }

    fn concerns(&self, action: Action) -> bool {
        match self.action {
            Some(Action::Subscribe) => action != Action::Publish,
            only => only.is_none_or(|only| only == action),
        }
    }

    fn denies_subscribers(&self) -> bool {
        !self.allow && self.action != Some(Action::Publish)
    }

    fn covers(&self, subject: Subject<'_>, action: Action, topic: &str) -> bool {
        let Some(filter) = fill(&self.filter, subject) else { return false };
        match action {
            _ if self.exact => *filter == *topic,
            Action::Publish => matches(&filter, topic),
            Action::Subscribe | Action::Receive => includes(&filter, topic),
        }
    }
}

/// A filter that reaches whatever the rule's filter reaches, for whomever.
pub(crate) fn anybodys(filter: &str) -> Box<str> {
    let level = |level| if has_placeholder(level) { "+" } else { level };
    filter.split('/').map(level).collect::<Vec<_>>().join("/").into()
}

fn has_placeholder(text: &str) -> bool {
    text.contains("%u") || text.contains("%c")
}

/// The filter with its placeholders filled; `None` when a name cannot fill one.
fn fill<'a>(filter: &'a str, subject: Subject<'_>) -> Option<Cow<'a, str>> {
    if !has_placeholder(filter) {
        return Some(filter.into());
    }
    let mut filled = filter.to_owned();
    for (placeholder, name) in [("%u", subject.name()), ("%c", Some(subject.client_id))] {
        if !filter.contains(placeholder) {
            continue;
        }
        let name = name.filter(|name| !name.is_empty() && !name.contains(['+', '#', '/']))?;
        filled = filled.replace(placeholder, name);
    }
    Some(filled.into())
}

/// The filter of a rule with its placeholders filled.
pub(crate) fn matched<'a>(filter: &'a str, subject: Subject<'_>) -> Option<Cow<'a, str>> {
    fill(filter, subject)
}

/// Whether a rule's filter, for this client, covers all that a subscription's filter does.
pub(crate) fn covered(rule: &str, subject: Subject<'_>, filter: &str) -> bool {
    fill(rule, subject).is_some_and(|rule| includes(&rule, filter))
}

/// Whether everything `inner` matches is matched by `outer`.
fn includes(outer: &str, inner: &str) -> bool {
    let mut inner_levels = inner.split('/');
    for level in outer.split('/') {
        match (level, inner_levels.next()) {
            ("#", _) => return true,
            (_, None) | (_, Some("#")) => return false,
            ("+", Some(_)) => {}
            (a, Some(b)) if a == b => {}
            _ => return false,
        }
    }
    inner_levels.next().is_none()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    fn rule(allow: bool, who: Who, action: Option<Action>, filter: &str) -> Rule {
        Rule { allow, who, action, filter: filter.into(), exact: false }
    }

    static ANN_USER: LazyLock<User> = LazyLock::new(|| User::named("ann").unwrap());
    static ANN: LazyLock<Subject<'static>> =
        LazyLock::new(|| Subject { user: Some(&ANN_USER), client_id: "phone" });

    #[test]
    fn first_match_decides_and_placeholders_are_filled() {
        let rules = AccessRules::new(
            vec![
                rule(false, Who::Anyone, Some(Action::Publish), "devices/%u/locked"),
                rule(true, Who::Anyone, None, "devices/%u/#"),
                rule(true, Who::Client("phone".into()), Some(Action::Subscribe), "news/+"),
            ],
            false,
        )
        .unwrap();
        assert!(rules.allows(*ANN, Action::Publish, "devices/ann/temp"));
        assert!(!rules.allows(*ANN, Action::Publish, "devices/ann/locked"));
        assert!(!rules.allows(*ANN, Action::Publish, "devices/bob/temp"));
        assert!(rules.allows(*ANN, Action::Subscribe, "news/+"));
        assert!(!rules.allows(*ANN, Action::Subscribe, "news/#"));
        assert!(!rules.allows(*ANN, Action::Subscribe, "#"));
    }

    #[test]
    fn of_dollar_topics_a_client_has_only_its_own_bridge_state() {
        let open = AccessRules::default();
        assert!(open.may_publish(*ANN, "$SYS/broker/connection/phone/state"));
        for topic in [
            "$SYS/broker/connection/other/state",
            "$SYS/broker/connection/phone/state/more",
            "$SYS/broker/connection/phone",
            "$SYS/broker/uptime",
            "$share/g/t",
            "$x",
        ] {
            assert!(!open.may_publish(*ANN, topic), "{topic}");
        }
        let state = "$SYS/broker/connection/%c/state";
        let rules = |rules| AccessRules::new(rules, false).unwrap();
        let allowing = rules(vec![rule(true, Who::Anyone, Some(Action::Publish), state)]);
        assert!(allowing.may_publish(*ANN, "$SYS/broker/connection/phone/state"));
        assert!(!rules(Vec::new()).may_publish(*ANN, "$SYS/broker/connection/phone/state"));
    }

    #[test]
    fn a_denial_refuses_what_it_covers_and_guards_what_wider_subscriptions_bring() {
        let denied = vec![
            rule(false, Who::Anyone, None, "secret/#"),
            rule(false, Who::Anyone, Some(Action::Publish), "log"),
            rule(false, Who::Anyone, Some(Action::Subscribe), "mail/x-%u/+"),
        ];
        let rules = AccessRules::new(denied, true).unwrap();
        for filter in ["secret/#", "secret", "secret/+/keys", "mail/x-ann/+", "mail/x-ann/1"] {
            assert!(!rules.allows(*ANN, Action::Subscribe, filter), "{filter}");
        }
        for filter in ["#", "+/keys", "+/+/#", "public/#", "log", "mail/x-bob/1"] {
            assert!(rules.allows(*ANN, Action::Subscribe, filter), "{filter}");
        }
        for topic in ["secret", "secret/keys", "mail/x-ann/1", "mail/x-bob/1"] {
            assert!(rules.guards(topic), "{topic}");
        }
        for topic in ["public/x", "log", "mail/x-ann/1/2"] {
            assert!(!rules.guards(topic), "{topic}");
        }
        assert!(AccessRules::new(Vec::new(), false).unwrap().guards("x"));
    }

    #[test]
    fn what_a_client_receives_can_have_rules_of_its_own() {
        let receive = Some(Action::Receive);
        let rules = vec![
            rule(true, Who::Anyone, receive, "news/+"),
            rule(false, Who::Anyone, receive, "#"),
            rule(true, Who::Anyone, Some(Action::Subscribe), "#"),
        ];
        let rules = AccessRules::new(rules, false).unwrap();
        for filter in ["#", "news/#", "other"] {
            assert!(rules.allows(*ANN, Action::Subscribe, filter), "{filter}");
        }
        assert!(rules.allows(*ANN, Action::Receive, "news/1"));
        assert!(!rules.allows(*ANN, Action::Receive, "other"));
        assert!(!rules.allows(*ANN, Action::Publish, "news/1"));
        let denial = vec![rule(false, Who::Anyone, receive, "secret/#")];
        let rules = AccessRules::new(denial, true).unwrap();
        assert!(rules.guards("secret/x") && rules.allows(*ANN, Action::Subscribe, "secret/#"));
    }

    #[test]
    fn an_exact_rule_is_about_one_text() {
        let exact = |allow, filter| Rule {
            exact: true,
            ..rule(allow, Who::Anyone, Some(Action::Subscribe), filter)
        };
        let rules = vec![exact(false, "#"), exact(true, "a/+"), exact(true, "c/%c/#")];
        let rules = AccessRules::new(rules, false).unwrap();
        let allowed = |filter| rules.decides(*ANN, Action::Subscribe, filter);
        assert_eq!(allowed("#"), Some(false));
        assert_eq!([allowed("a/+"), allowed("c/phone/#")], [Some(true); 2]);
        assert_eq!([allowed("a/b"), allowed("c/phone/x"), allowed("b/#")], [None; 3]);
    }

    #[test]
    fn names_with_wildcards_fill_nothing() {
        let rules = AccessRules::new(vec![rule(true, Who::Anyone, None, "d/%c/#")], false).unwrap();
        for client_id in ["#", "+", "a/b", ""] {
            let subject = Subject { user: None, client_id };
            assert!(!rules.allows(subject, Action::Publish, "d/x/y"), "{client_id}");
            assert!(!rules.allows(subject, Action::Subscribe, "d/#"), "{client_id}");
        }
    }
}
