//! The identity store's clients, as the broker uses them: passwords' hashes, and each client's rules by user name.
//!
//! Another part of the program keeps the store and replaces here what has changed, while the broker runs. A check costs
//! the rules of the client's own roles, whatever others have. It is done when a client connects or subscribes, when it
//! publishes to a topic other than its last one, and when a route is found; never for each message.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use fulmar_mqtt::topic::{matches, overlaps};
use fulmar_scram::Verifier;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use super::because::Because;
use super::password::HashReplacements;
use super::stored_hash::{HashError, StoredHash};
use crate::access::{Action, Subject, anybodys, covered, matched};

/// How the credentials of the store's clients begin ([`super::Admitted::credential`]); a number and the user name follow.
const CREDENTIAL: &str = "identity:";

/// Prefix of topics that nobody has by default.
pub(crate) const CONTROL_PREFIX: &str = "$CONTROL";

/// The rules of one role, each list in the order in which it is asked.
#[derive(Clone, Debug, Default)]
pub struct RoleRules {
    /// For publishing.
    pub publish: Vec<TopicRule>,
    /// For receiving what was published.
    pub receive: Vec<TopicRule>,
    /// For subscribing to the same text; asked before `subscribe`.
    pub subscribe_literal: Vec<TopicRule>,
    /// For subscribing to filters that the rule's filter includes.
    pub subscribe: Vec<TopicRule>,
    /// For unsubscribing from the same text; asked before `unsubscribe`.
    pub unsubscribe_literal: Vec<TopicRule>,
    /// For unsubscribing from filters that the rule's filter includes.
    pub unsubscribe: Vec<TopicRule>,
}

/// One rule.
#[derive(Clone, Debug)]
pub struct TopicRule {
    /// Topic filter, perhaps with the placeholders `%u` and `%c`.
    pub filter: Box<str>,
    /// Whether it allows or denies.
    pub allow: bool,
}

/// What holds where no rule matches; never for topics that begin with `$CONTROL`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefaultAccess {
    /// Publishing.
    pub publish: bool,
    /// Receiving.
    pub receive: bool,
    /// Subscribing.
    pub subscribe: bool,
    /// Unsubscribing.
    pub unsubscribe: bool,
}

/// One client.
#[derive(Debug)]
pub struct Identity {
    client_id: Option<Box<str>>,
    hash: Option<StoredHash>,
    /// For SCRAM.
    verifier: Option<Arc<Verifier>>,
    disabled: bool,
    /// Changes with anything above: clients that connected with an earlier number have to go.
    revision: u64,
    roles: Box<[Arc<RoleRules>]>,
}

impl Identity {
    /// One that may connect with any client identifier, or only with this one; without a hash, not by password.
    /// `revision` is another number after each change of these and of `disabled`, and after the client was deleted.
    ///
    /// # Errors
    /// The hash has none of the known forms.
    pub fn new(
        client_id: Option<&str>,
        hash: Option<&str>,
        disabled: bool,
        revision: u64,
        roles: Vec<Arc<RoleRules>>,
    ) -> Result<Identity, HashError> {
        let hash = hash.map(StoredHash::parse).transpose()?;
        let client_id = client_id.map(Into::into);
        let roles = roles.into();
        Ok(Identity { client_id, hash, verifier: None, disabled, revision, roles })
    }

    /// One that may also connect with SCRAM.
    #[must_use]
    pub fn with_verifier(self, verifier: Option<Verifier>) -> Identity {
        Identity { verifier: verifier.map(Arc::new), ..self }
    }
}

/// Changes of the table.
#[derive(Debug, Default)]
pub struct IdentityChanges {
    /// Clients by user name; `None` for those that are gone.
    pub users: Vec<(Box<str>, Option<Identity>)>,
    /// The roles of clients without a user name. `None` if these are not the store's.
    pub anonymous: Option<Vec<Arc<RoleRules>>>,
    /// What holds where no rule matches.
    pub defaults: DefaultAccess,
    /// Filters of what some role denies to receive.
    pub denials: Vec<Box<str>>,
}

/// All clients of the store.
#[derive(Debug, Default)]
pub struct IdentityTable {
    inner: RwLock<Inner>,
    /// Whether there is a client.
    in_use: AtomicBool,
    replacements: OnceLock<Arc<dyn HashReplacements>>,
}

#[derive(Debug, Default)]
struct Inner {
    users: FxHashMap<Box<str>, Identity>,
    anonymous: Option<Box<[Arc<RoleRules>]>>,
    defaults: DefaultAccess,
    denials: Vec<Box<str>>,
}

impl IdentityTable {
    /// Applies changes; `users` has only those that have changed, the rest is whole. To be followed by
    /// [`crate::Broker::identities_changed`].
    pub fn change(&self, changes: IdentityChanges) {
        let mut inner = self.inner.write();
        for (name, identity) in changes.users {
            match identity {
                Some(identity) => drop(inner.users.insert(name, identity)),
                None => drop(inner.users.remove(&name)),
            }
        }
        inner.anonymous = changes.anonymous.map(Into::into);
        inner.defaults = changes.defaults;
        inner.denials = changes.denials.iter().map(|filter| anybodys(filter)).collect();
        let in_use = !inner.users.is_empty() || inner.anonymous.is_some();
        self.in_use.store(in_use, Ordering::Release);
    }

    /// Has hashes of mosquitto replaced there at the first successful login. Only the first call counts.
    pub fn replace_outdated(&self, replacements: Arc<dyn HashReplacements>) {
        drop(self.replacements.set(replacements));
    }

    pub(super) fn replacements(&self) -> Option<&Arc<dyn HashReplacements>> {
        self.replacements.get()
    }

    /// Whether the store has clients, or rules for those without a user name.
    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Acquire)
    }

    /// Whether the store has this client.
    pub(crate) fn knows(&self, username: &str) -> bool {
        self.is_in_use() && self.inner.read().users.contains_key(username)
    }

    /// The client's hash and revision.
    pub(super) fn find(&self, username: &str) -> Option<(Option<StoredHash>, u64)> {
        let inner = self.inner.read();
        inner.users.get(username).map(|identity| (identity.hash.clone(), identity.revision))
    }

    /// The client's verifier for SCRAM, if it has one, and the revision.
    pub(super) fn verifier(&self, username: &str) -> Option<(Arc<Verifier>, u64)> {
        let inner = self.inner.read();
        let identity = inner.users.get(username)?;
        Some((Arc::clone(identity.verifier.as_ref()?), identity.revision))
    }

    pub(super) fn revision(&self, username: &str) -> Option<u64> {
        self.inner.read().users.get(username).map(|identity| identity.revision)
    }

    /// The credential of a client that is the store's, as it is now.
    pub(crate) fn credential(&self, username: &str) -> Option<Box<str>> {
        self.revision(username).map(|revision| credential(revision, username))
    }

    /// Whether a credential is still valid; `None` if it is not the store's.
    pub(crate) fn is_good(&self, credential: &str) -> Option<bool> {
        let (revision, username) = credential.strip_prefix(CREDENTIAL)?.split_once(':')?;
        let revision: u64 = revision.parse().ok()?;
        Some(self.revision(username) == Some(revision))
    }

    /// Whether the store keeps this client from connecting with this client identifier, however it was authenticated.
    pub(crate) fn refuses(&self, subject: Subject<'_>) -> bool {
        let Some(name) = subject.name().filter(|_| self.is_in_use()) else { return false };
        self.inner.read().users.get(name).is_some_and(|identity| {
            let own = identity.client_id.as_deref();
            identity.disabled || own.is_some_and(|own| own != subject.client_id)
        })
    }

    /// What the store says; `None` if the client is not the store's. `by_default` is whether the defaults apply.
    pub(crate) fn decide(
        &self,
        subject: Subject<'_>,
        action: Action,
        topic: &str,
        by_default: bool,
    ) -> Option<bool> {
        self.with_roles(subject, |inner, roles| {
            let decision = roles.iter().find_map(|role| role.decide(subject, action, topic));
            decision.unwrap_or_else(|| inner.by_default(topic, by_default).get(action))
        })
    }

    /// What makes [`IdentityTable::decide`] say that.
    pub(super) fn because(
        &self,
        subject: Subject<'_>,
        action: Action,
        topic: &str,
    ) -> Option<Because> {
        self.with_roles(subject, |_, roles| {
            let found = roles.iter().enumerate().find_map(|(role, rules)| {
                let (literal, rule) = rules.deciding(subject, action, topic)?;
                Some(Because::Role { role, literal, rule })
            });
            found.unwrap_or(Because::RolesDefault)
        })
    }

    /// Whether the store decides what this client may do.
    pub(crate) fn has_rules_for(&self, subject: Subject<'_>) -> bool {
        self.with_roles(subject, |_, _| ()).is_some()
    }

    /// Whether the client may end a subscription; `None` if it is not the store's.
    pub(crate) fn may_unsubscribe(&self, subject: Subject<'_>, filter: &str) -> Option<bool> {
        self.with_roles(subject, |inner, roles| {
            let decision = roles.iter().find_map(|role| {
                let exact = role.unsubscribe_literal.iter().find(|rule| *rule.filter == *filter);
                exact.or_else(|| first_covering(&role.unsubscribe, subject, filter))
            });
            decision.map_or(inner.by_default(filter, true).unsubscribe, |rule| rule.allow)
        })
    }

    fn with_roles<R>(
        &self,
        subject: Subject<'_>,
        decide: impl FnOnce(&Inner, &[Arc<RoleRules>]) -> R,
    ) -> Option<R> {
        if !self.is_in_use() {
            return None;
        }
        let inner = self.inner.read();
        let roles = match subject.user {
            Some(user) => &inner.users.get(user.operators()?)?.roles,
            None => inner.anonymous.as_ref()?,
        };
        Some(decide(&inner, roles))
    }

    /// Whether a client with a subscription that matches `topic` might not be allowed to get its messages.
    pub(crate) fn guards(&self, topic: &str) -> bool {
        if !self.is_in_use() {
            return false;
        }
        let inner = self.inner.read();
        !inner.by_default(topic, true).receive
            || inner.denials.iter().any(|filter| overlaps(filter, topic))
    }
}

impl Inner {
    fn by_default(&self, topic: &str, applies: bool) -> DefaultAccess {
        let applies = applies && !topic.starts_with(CONTROL_PREFIX);
        if applies { self.defaults } else { DefaultAccess::default() }
    }
}

impl DefaultAccess {
    fn get(&self, action: Action) -> bool {
        match action {
            Action::Publish => self.publish,
            Action::Receive => self.receive,
            Action::Subscribe => self.subscribe,
        }
    }
}

impl RoleRules {
    fn decide(&self, subject: Subject<'_>, action: Action, topic: &str) -> Option<bool> {
        let (literal, number) = self.deciding(subject, action, topic)?;
        self.list(action, literal).get(number).map(|rule| rule.allow)
    }

    /// Whether the rule that decides is about the same text, and its number in [`RoleRules::list`].
    fn deciding(&self, subject: Subject<'_>, action: Action, topic: &str) -> Option<(bool, usize)> {
        let exact = self.list(action, true).iter().position(|rule| *rule.filter == *topic);
        if let Some(exact) = exact {
            return Some((true, exact));
        }
        let matches = |rule: &TopicRule| match action {
            Action::Subscribe => covered(&rule.filter, subject, topic),
            Action::Publish | Action::Receive => rule.matches(subject, topic),
        };
        self.list(action, false).iter().position(matches).map(|number| (false, number))
    }

    fn list(&self, action: Action, literal: bool) -> &[TopicRule] {
        match (action, literal) {
            (Action::Publish, false) => &self.publish,
            (Action::Receive, false) => &self.receive,
            (Action::Subscribe, false) => &self.subscribe,
            (Action::Subscribe, true) => &self.subscribe_literal,
            (Action::Publish | Action::Receive, true) => &[],
        }
    }
}

impl TopicRule {
    fn matches(&self, subject: Subject<'_>, topic: &str) -> bool {
        matched(&self.filter, subject).is_some_and(|filter| matches(&filter, topic))
    }
}

fn first_covering<'r>(
    rules: &'r [TopicRule],
    subject: Subject<'_>,
    filter: &str,
) -> Option<&'r TopicRule> {
    rules.iter().find(|rule| covered(&rule.filter, subject, filter))
}

/// The credential of a client that has shown the password of this revision.
pub(super) fn credential(revision: u64, username: &str) -> Box<str> {
    format!("{CREDENTIAL}{revision}:{username}").into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::user::User;

    static ANN_USER: LazyLock<User> = LazyLock::new(|| User::named("ann").unwrap());
    static ANN: LazyLock<Subject<'static>> =
        LazyLock::new(|| Subject { user: Some(&ANN_USER), client_id: "phone" });

    fn rule(filter: &str, allow: bool) -> TopicRule {
        TopicRule { filter: filter.into(), allow }
    }

    fn table(rules: RoleRules, defaults: DefaultAccess) -> IdentityTable {
        let table = IdentityTable::default();
        let identity = Identity::new(None, None, false, 1, vec![Arc::new(rules)]).unwrap();
        let users = vec![("ann".into(), Some(identity))];
        table.change(IdentityChanges { users, defaults, ..IdentityChanges::default() });
        table
    }

    #[test]
    fn the_literal_rule_comes_first_and_then_the_order_counts() {
        let rules = RoleRules {
            subscribe_literal: vec![rule("a/#", false)],
            subscribe: vec![rule("a/#", true), rule("#", false)],
            publish: vec![rule("a/%u/%c", true), rule("a/#", false)],
            ..RoleRules::default()
        };
        let open = DefaultAccess { publish: true, subscribe: true, ..DefaultAccess::default() };
        let table = table(rules, open);
        let may = |action, topic| table.decide(*ANN, action, topic, true).unwrap();
        assert!(!may(Action::Subscribe, "a/#") && may(Action::Subscribe, "a/+"));
        assert!(!may(Action::Subscribe, "b"));
        assert!(may(Action::Publish, "a/ann/phone") && !may(Action::Publish, "a/ann/tablet"));
        assert!(may(Action::Publish, "b") && !may(Action::Receive, "b"));
        let bob = User::named("bob").unwrap();
        for user in [Some(&bob), None] {
            let other = Subject { user, ..*ANN };
            assert_eq!(table.decide(other, Action::Publish, "b", true), None);
            assert_eq!(table.because(other, Action::Publish, "b"), None);
        }
        let because = |action, topic| table.because(*ANN, action, topic).unwrap();
        let role = |literal, rule| Because::Role { role: 0, literal, rule };
        assert_eq!(because(Action::Subscribe, "a/#"), role(true, 0));
        assert_eq!(because(Action::Subscribe, "b"), role(false, 1));
        assert_eq!(because(Action::Publish, "a/ann/tablet"), role(false, 1));
        assert_eq!(because(Action::Publish, "b"), Because::RolesDefault);
    }

    #[test]
    fn nobody_changes_the_store_by_default() {
        let open =
            DefaultAccess { publish: true, receive: true, subscribe: true, unsubscribe: true };
        let table = table(RoleRules::default(), open);
        let may = |action, topic| table.decide(*ANN, action, topic, true).unwrap();
        for action in [Action::Publish, Action::Subscribe, Action::Receive] {
            assert!(may(action, "t") && !may(action, "$CONTROL/dynamic-security/v1"), "{action:?}");
        }
        assert_eq!(table.decide(*ANN, Action::Publish, "fulmar/x", false), Some(false));
        assert!(!table.guards("t") && table.guards("$CONTROL/dynamic-security/v1/response"));
    }

    #[test]
    fn a_credential_ends_with_its_revision() {
        let table = table(RoleRules::default(), DefaultAccess::default());
        let credential = table.credential("ann").unwrap();
        assert_eq!(table.is_good(&credential), Some(true));
        assert_eq!(table.is_good("session-of-the-platform"), None);
        let change = |identity| {
            let users = vec![("ann".into(), identity)];
            table.change(IdentityChanges { users, ..IdentityChanges::default() });
        };
        change(Some(Identity::new(Some("phone"), None, false, 2, Vec::new()).unwrap()));
        assert_eq!(table.is_good(&credential), Some(false));
        let tablet = Subject { client_id: "tablet", ..*ANN };
        assert!(!table.refuses(*ANN) && table.refuses(tablet));
        change(None);
        assert_eq!(table.is_good(&credential), Some(false));
        assert!(!table.knows("ann") && !table.is_in_use());
    }
}
