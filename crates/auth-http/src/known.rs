//! What is remembered of logins: for a while that they were allowed, and the access rules that came with them.
//!
//! No password is kept, but keyed digests whose keys never leave the process.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use fulmar_broker::access::AccessRules;
use fulmar_broker::auth::Admitted;
use fulmar_broker::{MemoryShare, User};
use parking_lot::{Mutex, RwLock};

/// Time between two looks for rules of clients that have no session any more, in milliseconds. Rules that came within it
/// stay: their client may not have its session yet.
const FORGET_EVERY_MS: u64 = 60_000;

/// Name, password (none with a certificate) and client identifier of a login.
pub(super) type Digest = [u64; 2];

#[derive(Debug)]
pub(super) struct LoginCache {
    /// For how long a login is remembered.
    keep_ms: u64,
    most: usize,
    keys: [RandomState; 2],
    logins: Mutex<HashMap<Digest, (u64, Admitted)>>,
    rules: RwLock<Rules>,
}

/// By user and client identifier.
#[derive(Debug, Default)]
struct Rules {
    users: HashMap<User, HashMap<Box<str>, OfClient>>,
    /// When those of clients without a session were last forgotten.
    forgotten_ms: u64,
}

#[derive(Debug)]
struct OfClient {
    rules: Arc<AccessRules>,
    since_ms: u64,
    /// Memory of the rules, in the account of sessions.
    _memory: MemoryShare,
}

impl LoginCache {
    pub(super) fn new(keep_s: u32, most: usize) -> LoginCache {
        LoginCache {
            keep_ms: u64::from(keep_s) * 1000,
            most,
            keys: [RandomState::new(), RandomState::new()],
            logins: Mutex::default(),
            rules: RwLock::default(),
        }
    }

    pub(super) fn digest(&self, username: &str, password: Option<&str>, client_id: &str) -> Digest {
        self.keys.each_ref().map(|key| key.hash_one((username, password, client_id)))
    }

    /// The result of an equal login, while it is remembered and still holds.
    pub(super) fn admitted(&self, digest: Digest, now_ms: u64) -> Option<Admitted> {
        let mut logins = self.logins.lock();
        let (until_ms, admitted) = logins.get(&digest)?;
        if now_ms < *until_ms && now_ms < admitted.until.0 {
            return Some(admitted.clone());
        }
        logins.remove(&digest);
        None
    }

    /// Remembers an allowed login, and the client's rules from now on. Returns whether it had or gets rules.
    pub(super) fn remember(
        &self,
        digest: Digest,
        admitted: Admitted,
        user: User,
        client_id: Box<str>,
        rules: Option<(AccessRules, MemoryShare)>,
        now_ms: u64,
    ) -> bool {
        let rules = rules.map(|(rules, memory)| OfClient {
            rules: Arc::new(rules),
            since_ms: now_ms,
            _memory: memory,
        });
        let changed = self.rules.write().set(user, client_id, rules);
        let mut logins = self.logins.lock();
        if logins.len() >= self.most {
            logins.retain(|_, (until_ms, _)| now_ms < *until_ms);
        }
        if logins.len() >= self.most {
            logins.clear();
        }
        if self.keep_ms > 0 && self.most > 0 {
            logins.insert(digest, (now_ms.saturating_add(self.keep_ms), admitted));
        }
        changed
    }

    /// Forgets the rules of clients without a session, at most once a minute. They stay as long as a login that came with
    /// them is remembered: with it, the client may come back.
    pub(super) fn forget(&self, now_ms: u64, has_session: impl Fn(&str) -> bool) {
        if now_ms < self.rules.read().forgotten_ms.saturating_add(FORGET_EVERY_MS) {
            return;
        }
        let stay_ms = self.keep_ms.saturating_add(FORGET_EVERY_MS);
        let is_old = |since_ms: u64| now_ms >= since_ms.saturating_add(stay_ms);
        let mut all = self.rules.write();
        all.forgotten_ms = now_ms;
        all.users.retain(|_, clients| {
            clients.retain(|client_id, of| !is_old(of.since_ms) || has_session(client_id));
            !clients.is_empty()
        });
    }

    pub(super) fn rules(&self, user: &User, client_id: &str) -> Option<Arc<AccessRules>> {
        let all = self.rules.read();
        Some(Arc::clone(&all.users.get(user)?.get(client_id)?.rules))
    }
}

impl Rules {
    /// Whether the client had or gets rules.
    fn set(&mut self, user: User, client_id: Box<str>, rules: Option<OfClient>) -> bool {
        let Some(rules) = rules else {
            let Some(clients) = self.users.get_mut(&user) else { return false };
            let had = clients.remove(&client_id).is_some();
            if clients.is_empty() {
                self.users.remove(&user);
            }
            return had;
        };
        self.users.entry(user).or_default().insert(client_id, rules);
        true
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    use fulmar_broker::access::{Action, Rule, Who};
    use fulmar_broker::auth::AccessControl;
    use fulmar_broker::storage::{NoStorage, Restored};
    use fulmar_broker::{Broker, BrokerConfig, ClientStatistics, Limits, Timestamp};

    fn admitted(until: Timestamp) -> Admitted {
        Admitted { user: Some(user("ann")), until, credential: None }
    }

    fn user(name: &str) -> User {
        User::named(name).unwrap()
    }

    fn decision(known: &LoginCache, name: &str, client_id: &str) -> Option<bool> {
        let user = user(name);
        known.rules(&user, client_id)?.decide(&user, client_id, Action::Publish, "ann/x")
    }

    fn broker() -> Arc<Broker> {
        let config = BrokerConfig {
            workers: 1,
            limits: Limits::default(),
            access_control: AccessControl::default(),
            sys_interval_s: 0,
            client_statistics: ClientStatistics::Rules,
            internal_sessions: Vec::new(),
        };
        Broker::new(config, Arc::new(NoStorage), Restored::default(), Timestamp(0))
    }

    fn rules() -> Option<(AccessRules, MemoryShare)> {
        let rule = Rule {
            allow: true,
            who: Who::Anyone,
            action: None,
            filter: "%u/#".into(),
            exact: false,
        };
        let memory = broker().count_for_user(&user("ann"), 1).unwrap();
        Some((AccessRules::new(vec![rule], false).unwrap(), memory))
    }

    #[test]
    fn a_login_is_remembered_for_its_time_and_never_longer_than_it_holds() {
        let known = LoginCache::new(60, 10);
        let user = || user("ann");
        let digest = known.digest("ann", Some("right"), "phone");
        known.remember(digest, admitted(Timestamp::NEVER), user(), "phone".into(), None, 1000);
        assert!(known.admitted(digest, 60_999).is_some());
        for other in [
            ("ann", Some("wrong"), "phone"),
            ("ann", Some("right"), "desk"),
            ("bob", Some("right"), "phone"),
            ("ann", Some(""), "phone"),
            ("ann", None, "phone"),
        ] {
            assert!(known.admitted(known.digest(other.0, other.1, other.2), 1000).is_none());
        }
        assert!(known.admitted(digest, 61_000).is_none());
        known.remember(digest, admitted(Timestamp(2000)), user(), "phone".into(), None, 1000);
        assert!(known.admitted(digest, 1999).is_some() && known.admitted(digest, 2000).is_none());
        for n in 0..50 {
            let digest = known.digest("ann", Some("right"), &n.to_string());
            known.remember(digest, admitted(Timestamp::NEVER), user(), "phone".into(), None, 1000);
            assert!(known.logins.lock().len() <= 10);
        }
    }

    #[test]
    fn rules_are_those_of_one_user_with_one_client() {
        let known = LoginCache::new(0, 0);
        let put = |name, client: &str, rules| {
            known.remember([0; 2], admitted(Timestamp::NEVER), user(name), client.into(), rules, 0)
        };
        assert!(put("ann", "phone", rules()));
        let decides = |name, client| decision(&known, name, client);
        assert_eq!(decides("ann", "phone"), Some(true));
        assert_eq!([decides("ann", "desk"), decides("bob", "phone")], [None; 2]);
        // Another user with the same identifier takes nothing away.
        assert!(!put("bob", "phone", None));
        assert_eq!(decides("ann", "phone"), Some(true));
        assert!(put("ann", "phone", None));
        assert_eq!((decides("ann", "phone"), known.rules.read().users.len()), (None, 0));
        // They go with the session, but not before the client can have one.
        put("ann", "phone", rules());
        put("ann", "desk", rules());
        known.forget(FORGET_EVERY_MS - 1, |_| false);
        assert_eq!(decides("ann", "phone"), Some(true));
        known.forget(FORGET_EVERY_MS, |client_id| client_id == "phone");
        assert_eq!([decides("ann", "phone"), decides("ann", "desk")], [Some(true), None]);
        known.forget(2 * FORGET_EVERY_MS, |_| false);
        assert_eq!(known.rules.read().users.len(), 0);
        // Nor while an equal login would be admitted without asking.
        let known = LoginCache::new(100, 10);
        known.remember([0; 2], admitted(Timestamp::NEVER), user("ann"), "phone".into(), rules(), 0);
        for now in [FORGET_EVERY_MS, 2 * FORGET_EVERY_MS] {
            known.forget(now, |_| false);
            assert!(decision(&known, "ann", "phone").is_some());
        }
        known.forget(100_000 + 2 * FORGET_EVERY_MS, |_| false);
        assert!(known.rules.read().users.is_empty());
    }
}
