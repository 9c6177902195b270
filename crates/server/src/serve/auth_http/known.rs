//! What is remembered of logins: for a while that they were allowed, and the access rules that came with them.
//!
//! No password is kept, but keyed digests whose keys never leave the process.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

use fulmar_broker::access::{AccessRules, Action};
use fulmar_broker::auth::Admitted;
use parking_lot::{Mutex, RwLock};

/// Clients with rules in memory.
const MAX_CLIENTS_WITH_RULES: usize = 1_000_000;

/// Name, password (none with a certificate) and client identifier of a login.
pub(super) type Digest = [u64; 2];

#[derive(Debug)]
pub(super) struct Known {
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
    users: HashMap<Box<str>, HashMap<Box<str>, AccessRules>>,
    clients: usize,
}

impl Known {
    pub(super) fn new(keep_s: u32, most: usize) -> Known {
        Known {
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

    /// Remembers an allowed login, and the client's rules from now on. Returns whether it had or gets rules, or `None` if
    /// there is no room for them.
    pub(super) fn put(
        &self,
        digest: Digest,
        admitted: Admitted,
        (username, client_id): (Box<str>, Box<str>),
        rules: Option<AccessRules>,
        now_ms: u64,
    ) -> Option<bool> {
        let changed = self.rules.write().set(username, client_id, rules)?;
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
        Some(changed)
    }

    pub(super) fn decides(
        &self,
        username: &str,
        client_id: &str,
        action: Action,
        topic: &str,
    ) -> Option<bool> {
        let all = self.rules.read();
        let rules = all.users.get(username)?.get(client_id)?;
        rules.decide(username, client_id, action, topic)
    }
}

impl Rules {
    /// Whether the client had or gets rules; `None` if there is no room for them.
    fn set(
        &mut self,
        username: Box<str>,
        client_id: Box<str>,
        rules: Option<AccessRules>,
    ) -> Option<bool> {
        let Some(rules) = rules else {
            let Some(clients) = self.users.get_mut(&username) else { return Some(false) };
            let had = clients.remove(&client_id).is_some();
            self.clients -= usize::from(had);
            if clients.is_empty() {
                self.users.remove(&username);
            }
            return Some(had);
        };
        let known = self.users.get(&username).is_some_and(|user| user.contains_key(&client_id));
        if !known && self.clients >= MAX_CLIENTS_WITH_RULES {
            return None;
        }
        self.users.entry(username).or_default().insert(client_id, rules);
        self.clients += usize::from(!known);
        Some(true)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use fulmar_broker::Timestamp;
    use fulmar_broker::access::{Rule, Who};

    fn admitted(until: Timestamp) -> Admitted {
        Admitted { username: Some("ann".into()), until, credential: None }
    }

    fn rules() -> Option<AccessRules> {
        let rule = Rule {
            allow: true,
            who: Who::Anyone,
            action: None,
            filter: "%u/#".into(),
            exact: false,
        };
        Some(AccessRules::new(vec![rule], false).unwrap())
    }

    #[test]
    fn a_login_is_remembered_for_its_time_and_never_longer_than_it_holds() {
        let known = Known::new(60, 10);
        let who = || ("ann".into(), "phone".into());
        let digest = known.digest("ann", Some("right"), "phone");
        known.put(digest, admitted(Timestamp::NEVER), who(), None, 1000).unwrap();
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
        known.put(digest, admitted(Timestamp(2000)), who(), None, 1000).unwrap();
        assert!(known.admitted(digest, 1999).is_some() && known.admitted(digest, 2000).is_none());
        for n in 0..50 {
            let digest = known.digest("ann", Some("right"), &n.to_string());
            known.put(digest, admitted(Timestamp::NEVER), who(), None, 1000).unwrap();
            assert!(known.logins.lock().len() <= 10);
        }
    }

    #[test]
    fn rules_are_those_of_one_user_with_one_client() {
        let known = Known::new(0, 0);
        let put = |user: &str, client: &str, rules| {
            known.put([0; 2], admitted(Timestamp::NEVER), (user.into(), client.into()), rules, 0)
        };
        assert_eq!(put("ann", "phone", rules()), Some(true));
        let decides = |user, client| known.decides(user, client, Action::Publish, "ann/x");
        assert_eq!(decides("ann", "phone"), Some(true));
        assert_eq!([decides("ann", "desk"), decides("bob", "phone")], [None; 2]);
        // Another user with the same identifier takes nothing away.
        assert_eq!(put("bob", "phone", None), Some(false));
        assert_eq!(decides("ann", "phone"), Some(true));
        assert_eq!(put("ann", "phone", None), Some(true));
        assert_eq!((decides("ann", "phone"), known.rules.read().clients), (None, 0));
    }
}
