//! The identity store's clients, as the broker uses them: passwords' hashes, and each client's rules by user name.
//!
//! Another part of the program keeps the store and replaces here what has changed, while the broker runs. A check costs
//! the rules of the client's own roles, whatever others have. It is done when a client connects or subscribes, when it
//! publishes to a topic other than its last one, and when a route is found; never for each message.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use fulmar_mqtt::topic::overlaps;
use fulmar_scram::{Verifier, VerifierShape};
use parking_lot::RwLock;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::access::{Action, Subject, Wording, anybodys};
use crate::password_file::HashReplacements;
use crate::rights::StoredRights;
use crate::stored_hash::{HashError, StoredHash};

/// Beginning of the credentials of the store's clients ([`super::Admitted::credential`]); a number and the user name
/// follow.
const CREDENTIAL: &str = "identity:";

/// Prefix of topics that nobody has by default.
pub const CONTROL_PREFIX: &str = "$CONTROL";

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

/// Access where no rule matches; never for topics that begin with `$CONTROL`.
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
    /// `revision` is a number of these and of `disabled`: another one when they change, the same after a restart.
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
    /// Names of clients that are gone, and whether they were removed: such a client may do nothing, and is refused.
    pub removed: Vec<(Box<str>, bool)>,
    /// The roles of clients without a user name. `None` if these are not the store's.
    pub anonymous: Option<Vec<Arc<RoleRules>>>,
    /// Access where no rule matches.
    pub defaults: DefaultAccess,
    /// Filters of what some role denies to receive.
    pub denials: Vec<Box<str>>,
    /// Whether other names than the store's remain labels where anonymous clients may connect.
    pub admits_unknown_names: bool,
}

/// All clients of the store.
#[derive(Debug, Default)]
pub struct IdentityTable {
    inner: RwLock<Inner>,
    /// Whether there is a client.
    in_use: AtomicBool,
    admits_unknown_names: AtomicBool,
    replacements: OnceLock<Arc<dyn HashReplacements>>,
}

#[derive(Debug, Default)]
struct Inner {
    users: FxHashMap<Box<str>, Identity>,
    removed: FxHashSet<Box<str>>,
    anonymous: Option<Box<[Arc<RoleRules>]>>,
    defaults: DefaultAccess,
    denials: Vec<Box<str>>,
    /// Number of users that have a verifier of each shape.
    shapes: BTreeMap<VerifierShape, u32>,
}

impl IdentityTable {
    /// Applies changes; `users` has only those that have changed, the rest is whole. To be followed by
    /// the broker's `identities_changed`.
    pub fn change(&self, changes: IdentityChanges) {
        let mut inner = self.inner.write();
        for (name, identity) in changes.users {
            inner.count_shape(identity.as_ref(), 1);
            let before = match identity {
                Some(identity) => inner.users.insert(name, identity),
                None => inner.users.remove(&name),
            };
            inner.count_shape(before.as_ref(), -1);
        }
        for (name, removed) in changes.removed {
            let _ = if removed { inner.removed.insert(name) } else { inner.removed.remove(&name) };
        }
        inner.anonymous = changes.anonymous.map(Into::into);
        inner.defaults = changes.defaults;
        inner.denials = changes.denials.iter().map(|filter| anybodys(filter)).collect();
        let in_use =
            !inner.users.is_empty() || inner.anonymous.is_some() || !inner.removed.is_empty();
        self.admits_unknown_names.store(changes.admits_unknown_names, Ordering::Release);
        self.in_use.store(in_use, Ordering::Release);
    }

    /// Has hashes of mosquitto replaced there at the first successful login. Only the first call counts.
    pub fn replace_outdated(&self, replacements: Arc<dyn HashReplacements>) {
        drop(self.replacements.set(replacements));
    }

    pub(crate) fn replacements(&self) -> Option<&Arc<dyn HashReplacements>> {
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

    /// Whether a client with this user name has to log in, where anonymous clients may connect or not.
    pub(crate) fn requires_login(&self, username: Option<&str>, allow_anonymous: bool) -> bool {
        if !self.is_in_use() {
            return false;
        }
        if !allow_anonymous || !self.admits_unknown_names.load(Ordering::Acquire) {
            return true;
        }
        let inner = self.inner.read();
        username.is_some_and(|name| inner.users.contains_key(name) || inner.removed.contains(name))
    }

    /// The client's hash and revision.
    pub(crate) fn find(&self, username: &str) -> Option<(Option<StoredHash>, u64)> {
        let inner = self.inner.read();
        inner.users.get(username).map(|identity| (identity.hash.clone(), identity.revision))
    }

    /// The client's verifier for SCRAM, if it has one, and the revision.
    pub(crate) fn verifier(&self, username: &str) -> Option<(Arc<Verifier>, u64)> {
        let inner = self.inner.read();
        let identity = inner.users.get(username)?;
        Some((Arc::clone(identity.verifier.as_ref()?), identity.revision))
    }

    /// Number of clients that have a verifier of each shape.
    pub(crate) fn verifier_shapes(&self) -> BTreeMap<VerifierShape, u32> {
        self.inner.read().shapes.clone()
    }

    pub(crate) fn revision(&self, username: &str) -> Option<u64> {
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
        let inner = self.inner.read();
        inner.users.get(name).map_or_else(
            || inner.removed.contains(name),
            |identity| {
                let own = identity.client_id.as_deref();
                identity.disabled || own.is_some_and(|own| own != subject.client_id)
            },
        )
    }

    /// Whether the store decides what this client may do.
    pub(crate) fn has_rules_for(&self, subject: Subject<'_>) -> bool {
        self.with_rights(subject, |stored| stored.is_some())
    }

    /// Whether the client may end a subscription; `None` if it is not the store's.
    pub(crate) fn may_unsubscribe(&self, subject: Subject<'_>, filter: &str) -> Option<bool> {
        self.with_rights(subject, |stored| {
            let StoredRights { roles, defaults } = stored?;
            let decision = roles.iter().find_map(|role| {
                let exact = role.unsubscribe_literal.iter().find(|rule| *rule.filter == *filter);
                let covers = |rule: &&TopicRule| rule.wording().covers_all_of(subject, filter);
                exact.or_else(|| role.unsubscribe.iter().find(covers))
            });
            let by_default = defaults.unsubscribe && !filter.starts_with(CONTROL_PREFIX);
            Some(decision.map_or(by_default, |rule| rule.allow))
        })
    }

    /// The store's rules for a client, if it is the store's.
    pub(crate) fn with_rights<R>(
        &self,
        subject: Subject<'_>,
        decide: impl FnOnce(Option<StoredRights<'_>>) -> R,
    ) -> R {
        if !self.is_in_use() {
            return decide(None);
        }
        let inner = self.inner.read();
        let roles = match subject.user {
            Some(_) => subject.name().and_then(|name| Some(&inner.users.get(name)?.roles)),
            None => inner.anonymous.as_ref(),
        };
        if roles.is_none() && subject.name().is_some_and(|name| inner.removed.contains(name)) {
            let defaults = DefaultAccess::default();
            return decide(Some(StoredRights { roles: &[], defaults }));
        }
        decide(roles.map(|roles| StoredRights { roles, defaults: inner.defaults }))
    }

    /// Whether a client with a subscription that matches `topic` might not be allowed to get its messages.
    pub(crate) fn guards(&self, topic: &str) -> bool {
        if !self.is_in_use() {
            return false;
        }
        let inner = self.inner.read();
        !inner.defaults.receive || inner.denials.iter().any(|filter| overlaps(filter, topic))
    }
}

impl Inner {
    fn count_shape(&mut self, identity: Option<&Identity>, change: i32) {
        let Some(verifier) = identity.and_then(|identity| identity.verifier.as_ref()) else {
            return;
        };
        let shape = verifier.shape();
        let count = self.shapes.entry(shape).or_default();
        *count = count.saturating_add_signed(change);
        if *count == 0 {
            self.shapes.remove(&shape);
        }
    }
}

impl DefaultAccess {
    pub(crate) fn get(&self, action: Action) -> bool {
        match action {
            Action::Publish => self.publish,
            Action::Receive => self.receive,
            Action::Subscribe => self.subscribe,
        }
    }
}

impl RoleRules {
    /// Whether the first rule that matches is about the same text, its number in [`RoleRules::list`], and whether it
    /// allows.
    pub(crate) fn first(
        &self,
        subject: Subject<'_>,
        action: Action,
        topic: &str,
    ) -> Option<(bool, usize, bool)> {
        let of = |literal| {
            let list = self.list(action, literal);
            let number = list.iter().position(|rule| match literal {
                true => *rule.filter == *topic,
                false => rule.wording().covers(subject, action, topic),
            })?;
            Some((literal, number, list[number].allow))
        };
        of(true).or_else(|| of(false))
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
    fn wording(&self) -> Wording<'_> {
        Wording { filter: &self.filter, allow: self.allow, exact: false }
    }
}

/// The credential of a client that has shown the password of this revision.
pub(crate) fn credential(revision: u64, username: &str) -> Box<str> {
    format!("{CREDENTIAL}{revision}:{username}").into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::access::AccessRules;
    use crate::because::Because;
    use crate::rights::{Rights, Verdict};
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

    /// `None` if the client is not the store's.
    fn decide(
        table: &IdentityTable,
        subject: Subject<'_>,
        action: Action,
        topic: &str,
    ) -> Option<Verdict> {
        let rules = AccessRules::default();
        table.with_rights(subject, |stored| {
            let (login, external_users) = (None, false);
            let rights = Rights { subject, external_users, stored, login, rules: &rules };
            stored.map(|_| rights.decide(action, topic))
        })
    }

    fn stored_may(
        table: &IdentityTable,
        subject: Subject<'_>,
        action: Action,
        topic: &str,
    ) -> Option<bool> {
        decide(table, subject, action, topic).map(|found| matches!(found, Verdict::Allowed(_)))
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
        let may = |action, topic| stored_may(&table, *ANN, action, topic).unwrap();
        assert!(!may(Action::Subscribe, "a/#") && may(Action::Subscribe, "a/+"));
        assert!(!may(Action::Subscribe, "b"));
        assert!(may(Action::Publish, "a/ann/phone") && !may(Action::Publish, "a/ann/tablet"));
        assert!(may(Action::Publish, "b") && !may(Action::Receive, "b"));
        let bob = User::named("bob").unwrap();
        for user in [Some(&bob), None] {
            let other = Subject { user, ..*ANN };
            assert_eq!(stored_may(&table, other, Action::Publish, "b"), None);
        }
        let because = |action, topic| match decide(&table, *ANN, action, topic).unwrap() {
            Verdict::Allowed(because) | Verdict::Denied(because) => because,
            Verdict::ExternalUsers => unreachable!(),
        };
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
        let may = |action, topic| stored_may(&table, *ANN, action, topic).unwrap();
        for action in [Action::Publish, Action::Subscribe, Action::Receive] {
            assert!(may(action, "t") && !may(action, "$CONTROL/dynamic-security/v1"), "{action:?}");
        }
        assert!(!table.guards("t"));
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
