//! What refuses a client although its rights allow what it does: bounds that are reached.

use std::net::IpAddr;

use fulmar_auth::User;
use fulmar_mqtt::topic::Subscription;
use fulmar_text::network::site;

use crate::broker::Broker;
use crate::memory::Account;
use crate::quota;
use crate::read::Reader;
use crate::session_memory;

/// One reason, with what an operator looks up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// It has no session, and `[limits] max_sessions` is reached, which is this.
    Sessions(usize),
    /// The sessions of its user, or of its address if it has none, have their share of `[limits] memory`.
    Memory,
    /// Its session has `[limits] max_subscriptions_per_session`, which are these.
    Subscriptions(usize),
    /// Its user has `[limits] max_wildcard_subscriptions_per_user`, which are these.
    WildcardSubscriptions(usize),
}

impl Broker {
    /// What would refuse the client now; with a filter, also what would refuse this subscription. What depends on its
    /// address is only found if that is given.
    #[must_use]
    pub fn obstacles(
        &self,
        client: Reader<'_>,
        address: Option<IpAddr>,
        filter: Option<&Subscription<'_>>,
    ) -> Vec<Obstacle> {
        let mut found = Vec::new();
        let Reader { user, client_id } = client;
        if User::is_program(user) {
            return found;
        }
        let limits = self.limits();
        let Some(session) = self.registry.find(client_id) else {
            if self.sessions() >= limits.max_sessions {
                found.push(Obstacle::Sessions(limits.max_sessions));
            }
            let owner = match (user, address) {
                (None, None) => None,
                // A user's do not depend on the address.
                (Some(_), None) => Some(self.memory.owner(user, IpAddr::from([0; 4]))),
                (_, Some(address)) => Some(self.memory.owner(user, site(address))),
            };
            let bytes = session_memory::of_session(client_id, None);
            if owner.is_some_and(|owner| !owner.has_room(Account::Sessions, bytes)) {
                found.push(Obstacle::Memory);
            }
            return found;
        };
        let Some(filter) = filter else { return found };
        let state = session.lock();
        if state.subscriptions.contains_key(filter.filter) {
            return found;
        }
        if state.subscriptions.len() >= limits.max_subscriptions_per_session {
            found.push(Obstacle::Subscriptions(limits.max_subscriptions_per_session));
        }
        if !state.may_grow(session_memory::of_subscription(filter.filter)) {
            found.push(Obstacle::Memory);
        }
        let most = limits.max_wildcard_subscriptions_per_user;
        let site = address.map(site);
        if quota::is_wide(filter) && !self.quota.has_room(&state.quota_use, user, site, most) {
            found.push(Obstacle::WildcardSubscriptions(most));
        }
        found
    }
}
