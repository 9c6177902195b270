//! The model of authorisation: laws that hold for every name, rule, source of rights and moment, and the same decisions
//! made by naive code that shares nothing with the real one.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use fulmar_mqtt::topic::{check_filter, check_name};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::{AccessControl, Because};
use crate::access::{AccessRules, Action, Rule, Subject, Who};
use crate::identities::{
    DefaultAccess, Identity, IdentityChanges, IdentityTable, RoleRules, TopicRule,
};
use crate::rights::{Rights, StoredRights, Verdict};
use crate::user::User;

const ACTIONS: [Action; 3] = [Action::Publish, Action::Subscribe, Action::Receive];

/// What names are made of.
const PIECES: [&str; 18] = [
    "$",
    "#",
    "+",
    "/",
    "%c",
    "%u",
    "%",
    ":",
    "\0",
    "e\u{301}",
    "\u{202e}",
    "a",
    "b",
    "ful",
    "mar",
    "fulmar",
    "SYS",
    "platform:",
];

/// Levels of rules.
const RULE_LEVELS: [&str; 14] = [
    "a", "b", "+", "%c", "%u", "%u%c", "x-%c", "ful%c", "fulmar", "$SYS", "$CONTROL", "$%c",
    "$%u%%c", "",
];

/// Levels of topics.
const LEVELS: [&str; 12] =
    ["a", "b", "fulmar", "fulmars", "mar", "$SYS", "$CONTROL", "$x", "$", "%c", "x-a", ""];

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => vec(select(&PIECES[..]), 0..4).prop_map(|pieces| pieces.concat()),
        4 => select(&["a", "b", "$SYS", "$CONTROL", "fulmar", "%c", "%u"][..]).prop_map(str::to_owned),
        1 => Just("a".repeat(65_535)),
    ]
}

/// The user of a client. What cannot be a name does not log in, so it is nobody here.
fn user() -> impl Strategy<Value = Option<User>> {
    prop_oneof![
        6 => name().prop_map(|name| User::named(&name).ok()),
        1 => name().prop_map(|name| User::external(&name)),
        1 => Just(Some(User::program())),
        2 => Just(None),
    ]
}

fn filter() -> impl Strategy<Value = String> {
    let levels = (vec(select(&RULE_LEVELS[..]), 1..4), any::<bool>());
    let text = levels.prop_map(|(mut levels, wide)| {
        levels.extend(wide.then_some("#"));
        levels.join("/")
    });
    prop_oneof![9 => text, 1 => Just("#".to_owned())]
        .prop_filter("a filter", |text| check_filter(text).is_ok())
}

fn topic() -> impl Strategy<Value = String> {
    let levels =
        vec(prop_oneof![4 => select(&LEVELS[..]).prop_map(str::to_owned), 1 => name()], 1..4);
    levels
        .prop_map(|levels| levels.join("/"))
        .prop_filter("a topic name", |text| check_name(text).is_ok() && text.len() < 65_000)
}

/// A topic, or for subscribing a filter.
fn request() -> impl Strategy<Value = (Action, String)> {
    let wide = (topic(), any::<bool>(), any::<bool>()).prop_map(|(topic, first, last)| {
        let mut levels: Vec<&str> = topic.split('/').collect();
        if first {
            levels[0] = "+";
        }
        if last {
            levels.push("#");
        }
        (Action::Subscribe, levels.join("/"))
    });
    prop_oneof![2 => (select(&ACTIONS[..]), topic()), 1 => wide]
}

fn rule() -> impl Strategy<Value = Rule> {
    let who = prop_oneof![
        6 => Just(Who::Anyone),
        1 => Just(Who::Anonymous),
        1 => name().prop_map(|name| Who::User(name.into())),
        1 => name().prop_map(|name| Who::Client(name.into())),
    ];
    let action = prop_oneof![2 => Just(None), 1 => select(&ACTIONS[..]).prop_map(Some)];
    let exact = prop::bool::weighted(0.2);
    (any::<bool>(), who, action, filter(), exact).prop_map(|(allow, who, action, filter, exact)| {
        Rule { allow, who, action, filter: filter.into(), exact }
    })
}

fn rules() -> impl Strategy<Value = Rules> {
    (vec(rule(), 0..5), any::<bool>())
        .prop_map(|(list, default_allow)| Rules { list, default_allow })
}

fn role() -> impl Strategy<Value = RoleRules> {
    let list = || {
        let rule = (filter(), any::<bool>());
        vec(rule.prop_map(|(filter, allow)| TopicRule { filter: filter.into(), allow }), 0..3)
    };
    (list(), list(), list(), list()).prop_map(|(publish, receive, subscribe_literal, subscribe)| {
        RoleRules { publish, receive, subscribe_literal, subscribe, ..RoleRules::default() }
    })
}

fn defaults() -> impl Strategy<Value = DefaultAccess> {
    any::<[bool; 4]>().prop_map(|[publish, receive, subscribe, unsubscribe]| DefaultAccess {
        publish,
        receive,
        subscribe,
        unsubscribe,
    })
}

/// Rules as they are written.
#[derive(Clone, Debug)]
struct Rules {
    list: Vec<Rule>,
    default_allow: bool,
}

impl Rules {
    fn real(&self) -> AccessRules {
        AccessRules::new(self.list.clone(), self.default_allow).unwrap()
    }
}

/// All that a decision depends on.
#[derive(Clone, Debug)]
struct World {
    user: Option<User>,
    client_id: String,
    external_users: bool,
    stored: Option<(Vec<Arc<RoleRules>>, DefaultAccess)>,
    login: Option<Rules>,
    rules: Rules,
}

fn world() -> impl Strategy<Value = World> {
    let stored = (vec(role().prop_map(Arc::new), 0..3), defaults());
    let stored = prop::option::weighted(0.4, stored);
    let login = prop::option::weighted(0.3, rules());
    (user(), name(), any::<bool>(), stored, login, rules()).prop_map(
        |(user, client_id, external_users, stored, login, rules)| {
            // Neither the program nor external users are the store's.
            let is_operators = user.as_ref().is_none_or(|user| user.operators().is_some());
            let stored = stored.filter(|_| is_operators);
            World { user, client_id, external_users, stored, login, rules }
        },
    )
}

impl World {
    fn decide(&self, action: Action, topic: &str) -> Verdict {
        let (login, rules) = (self.login.as_ref().map(Rules::real), self.rules.real());
        let subject = Subject { user: self.user.as_ref(), client_id: &self.client_id };
        let stored = self.stored.as_ref();
        let stored = stored.map(|(roles, defaults)| StoredRights { roles, defaults: *defaults });
        let external_users = self.external_users;
        Rights { subject, external_users, stored, login: login.as_ref(), rules: &rules }
            .decide(action, topic)
    }

    fn allows(&self, action: Action, topic: &str) -> bool {
        matches!(self.decide(action, topic), Verdict::Allowed(_))
    }

    fn is_operators(&self) -> bool {
        self.user.as_ref().is_none_or(|user| user.operators().is_some())
    }

    /// The text of the rule that has allowed something; of a login's rules, which have no numbers, all that allow.
    fn deciding(&self, because: Because, action: Action) -> Vec<&str> {
        match because {
            Because::Rule(number) => vec![&self.rules.list[number].filter],
            Because::Role { role, literal, rule } => {
                let role = &self.stored.as_ref().unwrap().0[role];
                let list = match (action, literal) {
                    (Action::Publish, _) => &role.publish,
                    (Action::Receive, _) => &role.receive,
                    (Action::Subscribe, true) => &role.subscribe_literal,
                    (Action::Subscribe, false) => &role.subscribe,
                };
                vec![&list[rule].filter]
            }
            _ => {
                let rules = self.login.iter().flat_map(|rules| &rules.list);
                rules.filter(|rule| rule.allow).map(|rule| &*rule.filter).collect()
            }
        }
    }
}

// The naive decisions.

fn levels(text: &str) -> Vec<&str> {
    text.split('/').collect()
}

fn under_reserved(topic: &str) -> bool {
    topic.starts_with('$') || levels(topic).first() == Some(&"fulmar") && levels(topic).len() > 1
}

/// The levels of a rule: filled, or `None` for one that cannot be.
fn filled(text: &str, world: &World) -> Vec<Option<String>> {
    let fits = |name: &str| {
        let odd = |c| c == '+' || c == '#' || c == '/';
        !name.is_empty() && !name.chars().any(odd) && !name.starts_with('$')
    };
    let fill = |level: &str| {
        let (mut out, mut chars) = (String::new(), level.chars().peekable());
        while let Some(c) = chars.next() {
            let name = match (c, chars.peek()) {
                ('%', Some('u')) => world.user.as_ref().and_then(User::operators).unwrap_or(""),
                ('%', Some('c')) => &world.client_id,
                _ => {
                    out.push(c);
                    continue;
                }
            };
            chars.next();
            out.push_str(fits(name).then_some(name)?);
        }
        Some(out)
    };
    levels(text).into_iter().map(fill).collect()
}

/// Whether all that `topic` can be is what `filter` says; a wildcard first is about nothing with `$` where topics are
/// published.
fn within(filter: &[Option<String>], topic: &[&str], first: bool) -> bool {
    match (filter.split_first(), topic.split_first()) {
        (None, None) => true,
        (Some((level, rest)), top) => {
            let is_wild = level.as_deref().is_none_or(|level| level == "+" || level == "#");
            if first && is_wild && topic[0].starts_with('$') {
                return false;
            }
            match (level.as_deref(), top) {
                (Some("#"), _) => true,
                (_, None) | (_, Some((&"#", _))) => false,
                (None | Some("+"), Some((_, topic))) => within(rest, topic, false),
                (Some(level), Some((top, topic))) => level == *top && within(rest, topic, false),
            }
        }
        (None, Some(_)) => false,
    }
}

fn naive_rule(
    world: &World,
    (text, allow, exact): (&str, bool, bool),
    action: Action,
    topic: &str,
) -> bool {
    let (filled, own) = (filled(text, world), levels(topic));
    if allow && filled.iter().any(Option::is_none) {
        return false;
    }
    let begins = levels(text)[0];
    if allow
        && under_reserved(topic)
        && (begins != own[0] || begins.contains("%c") || begins.contains("%u"))
    {
        return false;
    }
    if exact {
        let same = |(a, b): (&Option<String>, &&str)| a.as_deref().is_none_or(|a| a == *b);
        // Where a name cannot fill one level, all of the rule's placeholders stand for anything.
        let loose = filled.iter().any(Option::is_none);
        let free = |(a, b): (&str, &str)| a.contains("%c") || a.contains("%u") || a == b;
        return filled.len() == own.len()
            && if loose {
                levels(text).into_iter().zip(own).all(free)
            } else {
                filled.iter().zip(&own).all(same)
            };
    }
    let loose = filled.iter().any(Option::is_none);
    let wild = |(text, level): (&str, Option<String>)| {
        if loose && (text.contains("%c") || text.contains("%u")) { None } else { level }
    };
    let pattern: Vec<_> = levels(text).into_iter().zip(filled).map(wild).collect();
    within(&pattern, &own, action == Action::Publish)
}

fn naive_list(world: &World, rules: &Rules, action: Action, topic: &str) -> Option<bool> {
    let name = world.user.as_ref().and_then(User::operators);
    let mut found = None;
    for rule in rules.list.iter().rev() {
        let about = match &rule.who {
            Who::Anyone => true,
            Who::Anonymous => world.user.is_none(),
            Who::User(user) => name == Some(user),
            Who::Client(id) => **id == *world.client_id,
        };
        let acts = match rule.action {
            None => true,
            Some(Action::Subscribe) => action != Action::Publish,
            Some(own) => own == action,
        };
        if about && acts && naive_rule(world, (&rule.filter, rule.allow, rule.exact), action, topic)
        {
            found = Some(rule.allow);
        }
    }
    found
}

/// `None` where external users' own part of the program decides.
fn naive(world: &World, action: Action, topic: &str) -> Option<bool> {
    let publishes = action == Action::Publish;
    let dollar = topic.starts_with('$');
    if world.user == Some(User::program()) {
        return Some(!(publishes && dollar));
    }
    if !world.is_operators() {
        match action {
            Action::Publish if dollar => return Some(false),
            Action::Receive => return Some(true),
            _ if world.external_users => return None,
            _ => {}
        }
    }
    let bridge = format!("$SYS/broker/connection/{}/state", world.client_id);
    if publishes
        && dollar
        && topic != bridge
        && !(world.stored.is_some() && topic.starts_with("$CONTROL"))
    {
        return Some(false);
    }
    let platforms = world.external_users && topic.starts_with("fulmar/");
    let default_reaches = match levels(topic)[0] {
        "$SYS" => true,
        _ => !dollar && !platforms,
    };
    if let Some((roles, defaults)) = &world.stored {
        for role in roles {
            let lists: &[(&[TopicRule], bool)] = match action {
                Action::Publish => &[(&role.publish, false)],
                Action::Receive => &[(&role.receive, false)],
                Action::Subscribe => &[(&role.subscribe_literal, true), (&role.subscribe, false)],
            };
            for (list, literal) in lists {
                for rule in *list {
                    let covers = if *literal {
                        *rule.filter == *topic
                    } else {
                        naive_rule(world, (&rule.filter, rule.allow, false), action, topic)
                    };
                    if covers {
                        return Some(rule.allow);
                    }
                }
            }
        }
        let by_default = match action {
            Action::Publish => defaults.publish,
            Action::Receive => defaults.receive,
            Action::Subscribe => defaults.subscribe,
        };
        return Some(default_reaches && by_default);
    }
    let login = world.login.as_ref().filter(|_| !platforms);
    let of_login = login.and_then(|rules| naive_list(world, rules, action, topic));
    let by_default = default_reaches && world.rules.default_allow;
    Some(of_login.or_else(|| naive_list(world, &world.rules, action, topic)).unwrap_or(by_default))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn naive_code_decides_the_same(world in world(), (action, topic) in request()) {
        let real = match world.decide(action, &topic) {
            Verdict::Allowed(_) => Some(true),
            Verdict::Denied(_) => Some(false),
            Verdict::ExternalUsers => None,
        };
        prop_assert_eq!(real, naive(&world, action, &topic));
    }

    #[test]
    fn what_is_reserved_is_only_for_rules_that_begin_so(world in world(), (action, topic) in request()) {
        if !under_reserved(&topic) || !world.is_operators() {
            return Ok(());
        }
        let first = levels(&topic)[0].to_owned();
        let begins = |text: &&str| levels(text)[0] == first && !first.contains('%');
        if let Verdict::Allowed(because) = world.decide(action, &topic) {
            let by_default = matches!(because, Because::NoRules | Because::Default | Because::RolesDefault);
            if by_default {
                prop_assert!(first == "$SYS" || first == "fulmar" && !world.external_users);
            } else {
                prop_assert!(world.deciding(because, action).iter().any(begins), "{:?}", because);
            }
        }
    }

    #[test]
    fn a_denial_that_comes_first_wins_be_it_fillable_or_not(
        mut world in world(), action in select(&ACTIONS[..]), topic in topic(), at in any::<usize>(),
        odd in prop::option::of(select(&["", "a/b", "+", "x#", "$x", "$"][..])),
    ) {
        let mut own = levels(&topic);
        let at = at % own.len();
        // No name makes a placeholder reach these topics.
        if !world.is_operators() || topic.contains('%') || odd.is_some() && at == 0 && topic.starts_with('$') {
            return Ok(());
        }
        if let Some(odd) = odd {
            own[at] = "%c";
            world.client_id = odd.to_owned();
        }
        let filter: Box<str> = own.join("/").into();
        if let Some((roles, _)) = &mut world.stored {
            let list = || vec![TopicRule { filter: filter.clone(), allow: false }];
            let (publish, receive, subscribe) = (list(), list(), list());
            let role = RoleRules { publish, receive, subscribe, ..RoleRules::default() };
            roles.insert(0, Arc::new(role));
        }
        let denial = Rule { allow: false, who: Who::Anyone, action: None, filter, exact: false };
        for rules in [world.login.as_mut(), Some(&mut world.rules)].into_iter().flatten() {
            rules.list.insert(0, denial.clone());
        }
        prop_assert!(!world.allows(action, &topic));
    }

    #[test]
    fn without_a_rule_that_allows_nobody_has_more(
        world in world(), (action, topic) in request(), at in any::<usize>(),
    ) {
        let before = world.allows(action, &topic);
        let mut less = world;
        let in_list = |rules: &mut Rules| {
            let allowing: Vec<usize> = (0..rules.list.len()).filter(|i| rules.list[*i].allow).collect();
            if !allowing.is_empty() {
                rules.list.remove(allowing[at % allowing.len()]);
            }
        };
        in_list(&mut less.rules);
        less.login.as_mut().map(in_list);
        for role in less.stored.iter_mut().flat_map(|(roles, _)| roles) {
            let role = Arc::make_mut(role);
            for list in [&mut role.publish, &mut role.receive, &mut role.subscribe_literal, &mut role.subscribe] {
                if let Some(at) = list.iter().position(|rule| rule.allow) {
                    list.remove(at);
                }
            }
        }
        prop_assert!(before || !less.allows(action, &topic));
    }

    #[test]
    fn a_name_is_the_operators_however_it_is_spelled(name in name()) {
        if let Ok(user) = User::named(&name) {
            prop_assert_eq!(user.operators(), Some(&*name));
        }
    }

    #[test]
    fn a_user_that_the_store_has_lost_may_do_nothing(
        world in world(), (action, topic) in request(), back in any::<bool>(),
    ) {
        let Some(name) = world.user.as_ref().and_then(User::operators) else { return Ok(()) };
        let access_control = control(&world, None);
        let table = access_control.identities.as_ref().unwrap();
        let change = |removed| {
            let (users, removed) = (vec![(name.into(), None)], vec![(name.into(), removed)]);
            table.change(IdentityChanges { users, removed, ..IdentityChanges::default() });
        };
        change(true);
        let subject = Subject { user: world.user.as_ref(), client_id: &world.client_id };
        prop_assert!(access_control.refuses(subject));
        prop_assert!(!access_control.allows(subject, action, &topic));
        if back {
            change(false);
            prop_assert!(!access_control.refuses(subject));
        }
    }

    #[test]
    fn the_answer_now_is_that_to_a_fresh_login_and_nothing_goes_round_it(
        world in world(), before in rules(), earlier in (vec(role().prop_map(Arc::new), 0..3), defaults()),
        (action, topic) in request(),
    ) {
        let now = control(&world, None);
        let changed = control(&world, Some((before, earlier)));
        let subject = Subject { user: world.user.as_ref(), client_id: &world.client_id };
        let answer = now.allows(subject, action, &topic);
        prop_assert_eq!(changed.allows(subject, action, &topic), answer);
        prop_assert_eq!(changed.guards(&topic), now.guards(&topic));
        prop_assert!(now.guards(&topic) || action != Action::Receive || answer);
        let open = now.open_topics(1).contain(&topic);
        prop_assert!(!open || action != Action::Publish || !world.is_operators() || answer);
    }
}

/// Rules, and what the store said, before a change.
type Before = (Rules, (Vec<Arc<RoleRules>>, DefaultAccess));

/// The real thing, fresh or after changes.
fn control(world: &World, before: Option<Before>) -> AccessControl {
    let table = Arc::new(IdentityTable::default());
    let name = world.user.as_ref().and_then(User::operators);
    let change = |roles: Option<Vec<Arc<RoleRules>>>, defaults| {
        let denials = roles.iter().flatten().flat_map(|role| &role.receive);
        let denials = denials.filter(|rule| !rule.allow).map(|rule| rule.filter.clone()).collect();
        let identity = |roles| Identity::new(None, None, false, 1, roles).unwrap();
        let (users, anonymous) = match name {
            Some(name) => (vec![(name.into(), roles.map(identity))], None),
            None => (Vec::new(), roles),
        };
        table.change(IdentityChanges {
            users,
            anonymous,
            defaults,
            denials,
            ..IdentityChanges::default()
        });
    };
    let mut access_control = AccessControl::default();
    if let Some((rules, (roles, defaults))) = before {
        change(Some(roles), defaults);
        access_control.rules = rules.real();
    }
    match world.stored.clone() {
        Some((roles, defaults)) => change(Some(roles), defaults),
        None => change(None, DefaultAccess::default()),
    }
    AccessControl { rules: world.rules.real(), identities: Some(table), ..access_control }
}
