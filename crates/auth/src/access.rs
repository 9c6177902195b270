//! Access rules: to which topics a client may publish and subscribe.
//!
//! A list of rules, first match decides, with a default for what none matches. In a rule's topic
//! `%u` stands for the user's name and `%c` for the client identifier. A name that is empty, has a wildcard or a
//! slash in it, or begins with `$` never fills a placeholder: a client that calls itself `#` would match everything.
//! A rule that cannot be filled allows nothing, and denies what it would deny for any name.
//!
//! Names choose nothing that rules reserve: topics under `$` and `fulmar/` are allowed only by rules whose own text
//! begins with the topic's first level.
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
    /// Everything is allowed.
    fn default() -> Self {
        AccessRules { rules: Vec::new(), default_allow: true, denials: Vec::new() }
    }
}

/// The client a decision is about.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The user, if it has one.
    pub user: Option<&'a User>,
    /// The client identifier.
    pub client_id: &'a str,
}

impl<'a> Subject<'a> {
    /// The one that vouches for its user; `None` without one.
    pub(crate) fn vouched(self) -> Option<Vouched<'a>> {
        self.user.map(User::vouched)
    }

    /// Returns true for the program and external users, whom the operator's rules are not about.
    pub fn is_exempt(self) -> bool {
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
    pub fn is_open(&self) -> bool {
        self.rules.is_empty() && self.default_allow
    }

    /// What holds where no rule matches.
    pub(crate) fn default_allow(&self) -> bool {
        self.default_allow
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
        let subject = Subject { user: Some(user), client_id };
        self.first(subject, action, topic).map(|(_, allow)| allow)
    }

    /// The number of the first rule that matches, counted from 0, and whether it allows; `None` where none matches.
    pub(crate) fn first(
        &self,
        subject: Subject<'_>,
        action: Action,
        topic: &str,
    ) -> Option<(usize, bool)> {
        let number = self.rules.iter().position(|rule| {
            let Rule { allow, exact, .. } = *rule;
            let wording = Wording { filter: &rule.filter, allow, exact };
            rule.concerns(action)
                && rule.is_about(subject)
                && wording.covers(subject, action, topic)
        })?;
        Some((number, self.rules[number].allow))
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
}

/// What a rule says, whomever it is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wording<'a> {
    pub(crate) filter: &'a str,
    pub(crate) allow: bool,
    /// Whether it is only about the topic or filter that is the same text.
    pub(crate) exact: bool,
}

impl Wording<'_> {
    /// Whether it is about publishing to this topic, or about all that this filter matches.
    pub(crate) fn covers(self, subject: Subject<'_>, action: Action, topic: &str) -> bool {
        if self.allow && !reaches(self.filter, topic) {
            return false;
        }
        match (fill(self.filter, subject), self.allow) {
            (None, true) => false,
            (None, false) if self.exact => is_form_of(topic, self.filter),
            (None, false) => is_within(&anybodys(self.filter), action, topic),
            (Some(filter), _) if self.exact => *filter == *topic,
            (Some(filter), _) => is_within(&filter, action, topic),
        }
    }

    /// Whether it is about all that this filter matches: for giving something up, for which nothing is reserved.
    pub(crate) fn covers_all_of(self, subject: Subject<'_>, filter: &str) -> bool {
        match fill(self.filter, subject) {
            Some(own) => includes(&own, filter),
            None => !self.allow && includes(&anybodys(self.filter), filter),
        }
    }
}

fn is_within(filter: &str, action: Action, topic: &str) -> bool {
    match action {
        Action::Publish => matches(filter, topic),
        Action::Subscribe | Action::Receive => includes(filter, topic),
    }
}

/// Whether a rule with this text may allow something about this topic or filter: what is reserved is allowed only by
/// rules that begin with its first level, without wildcards and placeholders.
fn reaches(rule: &str, topic: &str) -> bool {
    if !topic.starts_with('$') && !topic.starts_with(EXTERNAL_TOPICS) {
        return true;
    }
    let level = |text: &'_ str| text.split('/').next().unwrap_or_default().len();
    let own = &rule[..level(rule)];
    own == &topic[..level(topic)] && !has_placeholder(own)
}

/// Whether some name in the placeholders makes this topic of the rule's text.
fn is_form_of(topic: &str, rule: &str) -> bool {
    let mut levels = topic.split('/');
    let all = rule
        .split('/')
        .all(|own| levels.next().is_some_and(|level| has_placeholder(own) || level == own));
    all && levels.next().is_none()
}

/// A filter that reaches whatever the rule's filter reaches, for whomever.
pub(crate) fn anybodys(filter: &str) -> Box<str> {
    let level = |level| if has_placeholder(level) { "+" } else { level };
    filter.split('/').map(level).collect::<Vec<_>>().join("/").into()
}

fn has_placeholder(text: &str) -> bool {
    text.contains("%u") || text.contains("%c")
}

/// The filter with its placeholders filled, each once; `None` when a name cannot fill one.
fn fill<'a>(filter: &'a str, subject: Subject<'_>) -> Option<Cow<'a, str>> {
    if !has_placeholder(filter) {
        return Some(filter.into());
    }
    let (mut filled, mut rest) = (String::with_capacity(filter.len()), filter);
    while let Some((before, after)) = rest.split_once('%') {
        filled.push_str(before);
        let name = match after.as_bytes().first() {
            Some(b'u') => subject.name(),
            Some(b'c') => Some(subject.client_id),
            _ => {
                filled.push('%');
                rest = after;
                continue;
            }
        };
        filled.push_str(name.filter(|name| is_level(name))?);
        rest = &after[1..];
    }
    filled.push_str(rest);
    Some(filled.into())
}

/// Whether a name can stand for a level of a topic, or a part of one.
fn is_level(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('$') && !name.contains(['+', '#', '/'])
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

    fn allows(rules: &AccessRules, subject: Subject<'_>, action: Action, topic: &str) -> bool {
        rules.first(subject, action, topic).map_or(rules.default_allow, |(_, allow)| allow)
    }

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
        assert!(allows(&rules, *ANN, Action::Publish, "devices/ann/temp"));
        assert!(!allows(&rules, *ANN, Action::Publish, "devices/ann/locked"));
        assert!(!allows(&rules, *ANN, Action::Publish, "devices/bob/temp"));
        assert!(allows(&rules, *ANN, Action::Subscribe, "news/+"));
        assert!(!allows(&rules, *ANN, Action::Subscribe, "news/#"));
        assert!(!allows(&rules, *ANN, Action::Subscribe, "#"));
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
            assert!(!allows(&rules, *ANN, Action::Subscribe, filter), "{filter}");
        }
        for filter in ["#", "+/keys", "+/+/#", "public/#", "log", "mail/x-bob/1"] {
            assert!(allows(&rules, *ANN, Action::Subscribe, filter), "{filter}");
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
            assert!(allows(&rules, *ANN, Action::Subscribe, filter), "{filter}");
        }
        assert!(allows(&rules, *ANN, Action::Receive, "news/1"));
        assert!(!allows(&rules, *ANN, Action::Receive, "other"));
        assert!(!allows(&rules, *ANN, Action::Publish, "news/1"));
        let denial = vec![rule(false, Who::Anyone, receive, "secret/#")];
        let rules = AccessRules::new(denial, true).unwrap();
        assert!(rules.guards("secret/x") && allows(&rules, *ANN, Action::Subscribe, "secret/#"));
    }

    #[test]
    fn an_exact_rule_is_about_one_text() {
        let exact = |allow, filter| Rule {
            exact: true,
            ..rule(allow, Who::Anyone, Some(Action::Subscribe), filter)
        };
        let rules = vec![exact(false, "#"), exact(true, "a/+"), exact(true, "c/%c/#")];
        let rules = AccessRules::new(rules, false).unwrap();
        let allowed = |filter| rules.first(*ANN, Action::Subscribe, filter).map(|(_, allow)| allow);
        assert_eq!(allowed("#"), Some(false));
        assert_eq!([allowed("a/+"), allowed("c/phone/#")], [Some(true); 2]);
        assert_eq!([allowed("a/b"), allowed("c/phone/x"), allowed("b/#")], [None; 3]);
    }

    fn user(name: &str) -> User {
        User::named(name).unwrap()
    }

    #[test]
    fn what_no_name_can_fill_allows_nothing_and_denies_all_of_it() {
        let of = |allow| AccessRules::new(vec![rule(allow, Who::Anyone, None, "d/%c/#")], !allow);
        let (allowing, denying) = (of(true).unwrap(), of(false).unwrap());
        let exact = Rule { exact: true, ..rule(false, Who::Anyone, None, "e/%c/+") };
        let exact = AccessRules::new(vec![exact], true).unwrap();
        for client_id in ["#", "+", "a/b", "", "$SYS", "$", "a/#"] {
            let subject = Subject { user: None, client_id };
            for (action, topic) in [(Action::Publish, "d/x/y"), (Action::Subscribe, "d/#")] {
                assert!(!allows(&allowing, subject, action, topic), "{client_id}");
            }
            for (action, topic) in [(Action::Publish, "d/x/y"), (Action::Subscribe, "d/x/#")] {
                assert!(!allows(&denying, subject, action, topic), "{client_id}");
            }
            assert!(allows(&denying, subject, Action::Publish, "e/x"), "{client_id}");
            assert!(!allows(&exact, subject, Action::Subscribe, "e/x/+"), "{client_id}");
            assert!(allows(&exact, subject, Action::Subscribe, "e/x/y"), "{client_id}");
        }
    }

    #[test]
    fn names_are_filled_once_and_choose_nothing_that_is_reserved() {
        let rules = |filter| AccessRules::new(vec![rule(true, Who::Anyone, None, filter)], false);
        let (fulm, percent, ann) = (user("fulm"), user("%c"), user("ann"));
        for (filter, user, client_id, topic, allowed) in [
            ("%c/#", &ann, "fulmar", "fulmar/t/position", false),
            ("%u%c/#", &fulm, "ar", "fulmar/t/position", false),
            ("ful%c/#", &ann, "mar", "fulmar/t/position", false),
            ("%c/#", &ann, "$SYS", "$SYS/#", false),
            ("$%c/#", &ann, "SYS", "$SYS/#", false),
            ("#", &ann, "c", "$SYS/#", false),
            ("+/#", &ann, "c", "fulmar/#", false),
            ("#", &ann, "c", "fulmar/t/position", false),
            ("fulmar/%c/#", &ann, "t", "fulmar/t/position", true),
            ("$SYS/#", &ann, "c", "$SYS/broker/#", true),
            ("fulmars/#", &ann, "c", "fulmars/t", true),
            ("+/#", &ann, "c", "fulmars/t", true),
            ("u/%u", &percent, "c", "u/%c", true),
            ("u/%u", &percent, "c", "u/c", false),
            ("%%c", &ann, "c", "%c", true),
        ] {
            let subject = Subject { user: Some(user), client_id };
            let seen = allows(&rules(filter).unwrap(), subject, Action::Subscribe, topic);
            assert_eq!(seen, allowed, "{filter} {client_id} {topic}");
        }
    }
}
