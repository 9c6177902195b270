//! What a client may do, by names, rules and moments alone. Nothing here uses the broker's functions.

use std::collections::BTreeMap;
use std::net::IpAddr;

use fulmar_broker::Timestamp;
use fulmar_broker::access::Action;

use super::{ACCOUNTS, About, Rule, Stored, Voucher, Whom};

/// Roles of the store.
pub(crate) const ROLES: usize = 3;

/// A client.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub(crate) voucher: Voucher,
    /// The user's name; of an account, with its prefix.
    pub(crate) name: Option<String>,
    pub(crate) id: &'static str,
    pub(crate) address: IpAddr,
    /// When its credential ends.
    pub(crate) until: Timestamp,
    /// Which client's certificate it has.
    pub(crate) certificate: Option<usize>,
}

/// A user of the store, or what it was before it was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) stored: Stored,
    pub(crate) deleted: bool,
    /// Changes with its credential.
    pub(crate) revision: u64,
}

/// All rights at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Law {
    pub(crate) users: BTreeMap<&'static str, User>,
    pub(crate) nameless: Option<[usize; 2]>,
    /// The roles' rules.
    pub(crate) roles: [&'static [Rule]; ROLES],
    /// The store's default.
    pub(crate) store_open: bool,
    /// The operator's rules.
    pub(crate) rules: &'static [Rule],
    pub(crate) whom: Whom,
    pub(crate) rules_open: bool,
    /// What came from the login service; nothing after a crash.
    pub(crate) service: Option<&'static [Rule]>,
    pub(crate) bans: Vec<(Whom, Timestamp)>,
    /// Which accounts are not in order.
    pub(crate) suspended: [bool; 2],
    /// Whose certificates are revoked: bits of clients.
    pub(crate) revoked: u8,
}

impl Law {
    /// Puts a user into the store, or deletes it. `number` is another one for each change.
    pub(crate) fn set_user(&mut self, name: &'static str, user: Option<Stored>, number: u64) {
        let own = self.users.get_mut(name);
        let Some(stored) = user else {
            return own.into_iter().for_each(|own| own.deleted = true);
        };
        let same = |before: &&mut User| {
            let Stored { disabled, bound, .. } = before.stored;
            !before.deleted && (disabled, bound) == (stored.disabled, stored.bound)
        };
        let revision = own.filter(same).map_or(number, |before| before.revision);
        self.users.insert(name, User { stored, deleted: false, revision });
    }

    /// Whether the client was a user of the store.
    pub(crate) fn is_deleted(&self, who: &Who) -> bool {
        self.user(who).is_some_and(|user| user.deleted)
    }

    /// Whether a login with the same credentials can succeed. A deleted user is refused what it was refused before.
    pub(crate) fn may_log_in(&self, who: &Who, now: Timestamp) -> bool {
        if who.voucher == Voucher::Program {
            return true;
        }
        let is_banned = self.bans.iter().any(|(whom, until)| now < *until && whom.is(who));
        let is_revoked = who.certificate.is_some_and(|client| self.revoked & (1 << client) != 0);
        if is_banned || is_revoked || who.until <= now {
            return false;
        }
        if who.voucher == Voucher::Platform {
            return who.account().is_some_and(|account| !self.suspended[account]);
        }
        self.user(who).is_none_or(|user| {
            let Stored { disabled, bound, .. } = user.stored;
            !disabled && bound.is_none_or(|own| own == who.id)
        })
    }

    /// Whether a will may be published. Rules that came with its client's login when it was accepted, if these allowed
    /// it, last until others come.
    pub(crate) fn may_leave(&self, who: &Who, topic: &str, accepted: &Law, now: Timestamp) -> bool {
        let service = |law: &Law| decide(law.service?, who, Action::Publish, topic);
        let is_stored = self.user(who).is_some();
        let by_login = !is_stored
            && ![Voucher::Nobody, Voucher::Platform].contains(&who.voucher)
            && service(accepted) == Some(true)
            && self.service.is_none();
        let may = by_login || self.may(who, Action::Publish, topic);
        !self.is_deleted(who) && self.may_log_in(who, now) && may
    }

    /// Whether a connected client may publish to a topic, subscribe to a filter, or receive what is published to a topic.
    pub(crate) fn may(&self, who: &Who, action: Action, topic: &str) -> bool {
        match who.voucher {
            Voucher::Program => return true,
            Voucher::Platform => {
                return who.account().is_some_and(|account| self.account_may(account, topic));
            }
            Voucher::Nobody | Voucher::Service | Voucher::Certificate => {}
        }
        if action == Action::Publish && is_own_state(who, topic) {
            return true;
        }
        let decide = |rules| decide(rules, who, action, topic);
        let needs_rule = topic.starts_with("fulmar/")
            || topic.starts_with("$CONTROL")
            || (topic.starts_with('$') && action == Action::Publish);
        let roles = match who.name {
            Some(_) => self.user(who).map(|user| user.stored.roles),
            None => self.nameless,
        };
        if let Some(roles) = roles {
            let said = roles.iter().find_map(|role| decide(self.roles[*role]));
            return said.unwrap_or(self.store_open && !needs_rule);
        }
        let service = || decide(self.service?).filter(|_| who.name.is_some());
        let rules = || decide(self.rules).filter(|_| self.whom.is(who));
        service().or_else(rules).unwrap_or(self.rules_open && !needs_rule)
    }

    /// What the platform says of its own accounts.
    pub(crate) fn account_may(&self, account: usize, topic: &str) -> bool {
        let below = ["fulmar/", "fulmar/bob/"][account];
        !self.suspended[account] && topic.starts_with(below)
    }

    fn user(&self, who: &Who) -> Option<&User> {
        let own = who.name.as_deref().filter(|_| who.voucher != Voucher::Platform)?;
        self.users.get(own)
    }
}

impl Who {
    fn account(&self) -> Option<usize> {
        let name = self.name.as_deref()?.strip_prefix("platform:")?;
        ACCOUNTS.iter().position(|account| *account == name)
    }
}

impl Whom {
    fn is(self, who: &Who) -> bool {
        match self {
            Whom::Anyone => true,
            Whom::User(name) => who.name.as_deref() == Some(name),
            Whom::Id(id) => who.id == id,
            Whom::Address(client) => who.address == address_of(client),
        }
    }
}

pub(crate) fn address_of(client: usize) -> IpAddr {
    [10, 0, 0, client as u8].into()
}

/// Where a bridge says that it is connected.
fn is_own_state(who: &Who, topic: &str) -> bool {
    topic == format!("$SYS/broker/connection/{}/state", who.id)
}

/// What the first rule that reaches the topic says.
fn decide(rules: &[Rule], who: &Who, action: Action, topic: &str) -> Option<bool> {
    let concerns = |about: About| match about {
        About::Both => true,
        About::Publishing => action == Action::Publish,
        About::Reading => action != Action::Publish,
    };
    let mut rules = rules.iter().filter(|(about, ..)| concerns(*about));
    rules.find(|(_, allow, text)| reaches(text, *allow, who, topic)).map(|(_, allow, _)| *allow)
}

/// Whether a rule reaches a topic, or all topics of a filter.
fn reaches(text: &str, allow: bool, who: &Who, topic: &str) -> bool {
    let mut asked = topic.split('/');
    let first = asked.clone().next().unwrap_or_default();
    // Nobody gets there by a wildcard or a name.
    let is_reserved = first.starts_with('$') || (first == "fulmar" && topic.contains('/'));
    if is_reserved && text.split('/').next() != Some(first) {
        return false;
    }
    for level in text.split('/') {
        let (level, is_any) = match fill(level, who) {
            Some(filled) => (filled, level == "+"),
            None if allow => return false,
            None => (String::new(), true),
        };
        match asked.next() {
            _ if level == "#" => return true,
            None | Some("#") => return false,
            Some(_) if is_any => {}
            Some(own) if own == level => {}
            Some(_) => return false,
        }
    }
    asked.next().is_none()
}

/// A level of a rule for this client; `None` if a name cannot stand there.
fn fill(mut level: &str, who: &Who) -> Option<String> {
    let mut filled = String::with_capacity(level.len());
    while let Some(at) = level.find("%u").into_iter().chain(level.find("%c")).min() {
        let name = if level[at..].starts_with("%u") { who.name.as_deref() } else { Some(who.id) };
        let name = name.filter(|name| !name.is_empty() && !name.contains(['/', '+', '#']))?;
        if name.starts_with('$') {
            return None;
        }
        filled.push_str(&level[..at]);
        filled.push_str(name);
        level = &level[at + 2..];
    }
    filled.push_str(level);
    Some(filled)
}
