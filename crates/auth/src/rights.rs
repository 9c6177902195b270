//! Whether a client may do something, and the reason: one pure function of plain data.
//!
//! The program and its external users are known by the one that vouches for their names. Of the rest, a client of
//! the identity store has only the store's rules; others have the rules that came with their login, then the operator's.
//! A topic under `$` or `fulmar/` is reached only by a rule whose own text begins with its first level, whatever a name
//! in a placeholder is ([`crate::access`]); defaults reach `$SYS`, and `fulmar/` if nobody has a right to it of its own.

use std::sync::Arc;

use crate::access::{AccessRules, Action, EXTERNAL_TOPICS, Subject, is_own_bridge_state};
use crate::because::Because;
use crate::identities::{CONTROL_PREFIX, DefaultAccess, RoleRules};
use crate::user::Vouched;

/// All that a decision depends on, besides what is to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights<'a> {
    pub(crate) subject: Subject<'a>,
    /// Whether a part of the program has external users.
    pub(crate) external_users: bool,
    /// If the client is one of the identity store's.
    pub(crate) stored: Option<StoredRights<'a>>,
    /// The rules that came with its login.
    pub(crate) login: Option<&'a AccessRules>,
    /// The operator's.
    pub(crate) rules: &'a AccessRules,
}

/// What the identity store says about one of its clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredRights<'a> {
    pub(crate) roles: &'a [Arc<RoleRules>],
    pub(crate) defaults: DefaultAccess,
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed(Because),
    Denied(Because),
    /// The part of the program that has external users decides.
    ExternalUsers,
}

impl Verdict {
    fn new(allowed: bool, because: Because) -> Verdict {
        if allowed { Verdict::Allowed(because) } else { Verdict::Denied(because) }
    }
}

/// Whether a default reaches a topic. To none of the broker's own topics but its statistics, and not to those that
/// external users have.
pub(crate) fn is_by_default(topic: &str, external_users: bool) -> bool {
    match topic.strip_prefix("$SYS") {
        Some(rest) => rest.is_empty() || rest.starts_with('/'),
        None => !(topic.starts_with('$') || external_users && topic.starts_with(EXTERNAL_TOPICS)),
    }
}

impl Rights<'_> {
    /// Whether the client may publish to `topic`, subscribe to it as a filter, or receive what is published there.
    pub(crate) fn decide(self, action: Action, topic: &str) -> Verdict {
        let Rights { subject, external_users, stored, login, rules } = self;
        // Nobody publishes to the broker's own topics, except requests and the state of bridges.
        let is_own = action == Action::Publish && topic.starts_with('$');
        match subject.vouched() {
            Some(Vouched::Program) => return Verdict::new(!is_own, Because::Program),
            Some(Vouched::External(_)) if is_own => return Verdict::Denied(Because::OwnTopics),
            // They lose their connection with their rights.
            Some(Vouched::External(_)) if action == Action::Receive => {
                return Verdict::Allowed(Because::ExternalUser);
            }
            Some(Vouched::External(_)) if external_users => return Verdict::ExternalUsers,
            _ => {}
        }
        let is_request = stored.is_some() && topic.starts_with(CONTROL_PREFIX);
        if is_own && !is_request && !is_own_bridge_state(subject.client_id, topic) {
            return Verdict::Denied(Because::OwnTopics);
        }
        if let Some(stored) = stored {
            return stored.decide(subject, action, topic, external_users);
        }
        let is_by_default = is_by_default(topic, external_users);
        let for_external_users = external_users && topic.starts_with(EXTERNAL_TOPICS);
        let login = login.filter(|_| !for_external_users);
        if let Some((_, allow)) = login.and_then(|rules| rules.first(subject, action, topic)) {
            return Verdict::new(allow, Because::Login);
        }
        match rules.first(subject, action, topic) {
            Some((number, allow)) => Verdict::new(allow, Because::Rule(number)),
            None if for_external_users => Verdict::Denied(Because::ExternalTopics),
            None if !is_by_default => Verdict::Denied(Because::OwnTopics),
            None if rules.is_open() => Verdict::Allowed(Because::NoRules),
            None => Verdict::new(rules.default_allow(), Because::Default),
        }
    }
}

impl StoredRights<'_> {
    fn decide(
        self,
        subject: Subject<'_>,
        action: Action,
        topic: &str,
        external_users: bool,
    ) -> Verdict {
        let found = self.roles.iter().enumerate().find_map(|(role, rules)| {
            let (literal, rule, allow) = rules.first(subject, action, topic)?;
            Some(Verdict::new(allow, Because::Role { role, literal, rule }))
        });
        let by_default = is_by_default(topic, external_users) && self.defaults.get(action);
        found.unwrap_or(Verdict::new(by_default, Because::RolesDefault))
    }
}
