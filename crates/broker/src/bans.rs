//! Bans: clients, users and networks that may not connect until a time.
//!
//! A CONNECT looks through the list, which is short ([`MAX_BANS`]); while there are no bans, that is one load. The
//! caller stores bans, and sets them again when the broker starts.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fulmar_auth::{Timestamp, User, text_of};
use fulmar_text::network::is_within;
use parking_lot::{Mutex, RwLock};

/// Bans at most.
pub const MAX_BANS: usize = 1000;

/// Whom a ban is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Banned {
    /// A client identifier.
    Client(Box<str>),
    /// A user, as [`User::text`].
    User(Box<str>),
    /// Addresses whose first bits are these.
    Network(IpAddr, u8),
}

/// A ban.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    /// Whom it is about.
    pub whom: Banned,
    /// When it ends.
    pub until: Timestamp,
}

impl Banned {
    /// Whether it is about this client, whose user is [`User::text`]. A network is about none whose address is not known.
    #[must_use]
    pub fn covers(&self, client_id: &str, user: Option<&str>, address: Option<IpAddr>) -> bool {
        match self {
            Banned::Client(id) => client_id == &**id,
            Banned::User(name) => user == Some(name),
            Banned::Network(network, bits) => {
                address.is_some_and(|address| is_within(address, *network, *bits))
            }
        }
    }
}

/// A client that may be banned.
pub(crate) struct BannedSubject<'a> {
    pub(crate) client_id: &'a str,
    pub(crate) user: Option<&'a User>,
    /// `None` if it is not known.
    pub(crate) address: Option<IpAddr>,
}

/// All bans.
#[derive(Debug, Default)]
pub(crate) struct Bans {
    any: AtomicBool,
    list: RwLock<Arc<[Ban]>>,
    watchers: Mutex<Vec<Watcher>>,
}

/// Called when bans have changed.
struct Watcher(Box<dyn Fn() + Send + Sync>);

fulmar_text::opaque_debug!(Watcher);

impl Bans {
    /// Replaces all; those beyond [`MAX_BANS`] are left out.
    pub(crate) fn set(&self, mut bans: Vec<Ban>) {
        bans.truncate(MAX_BANS);
        let any = !bans.is_empty();
        *self.list.write() = bans.into();
        self.any.store(any, Ordering::Release);
        for watcher in &*self.watchers.lock() {
            (watcher.0)();
        }
    }

    /// Calls this whenever bans have changed.
    pub(crate) fn watch(&self, watcher: impl Fn() + Send + Sync + 'static) {
        self.watchers.lock().push(Watcher(Box::new(watcher)));
    }

    /// Whether one of them is about this address now.
    pub(crate) fn covers_address(&self, address: IpAddr, now: Timestamp) -> bool {
        self.any.load(Ordering::Acquire)
            && self.list.read().iter().any(|ban| {
                let Banned::Network(network, bits) = ban.whom else { return false };
                now < ban.until && is_within(address, network, bits)
            })
    }

    /// Whether one of them is about this client now. Never about the program itself.
    pub(crate) fn covers(&self, client: &BannedSubject<'_>, now: Timestamp) -> bool {
        if !self.any.load(Ordering::Acquire) || User::is_program(client.user) {
            return false;
        }
        let bans = Arc::clone(&self.list.read());
        let BannedSubject { client_id, user, address } = *client;
        bans.iter().any(|ban| now < ban.until && ban.whom.covers(client_id, text_of(user), address))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn covers(whom: Banned, client_id: &str, user: Option<&str>, address: &str) -> bool {
        let bans = Bans::default();
        bans.set(vec![Ban { whom, until: Timestamp(10) }]);
        let user = user.map(User::from_text);
        let address = Some(address.parse().unwrap());
        let client = BannedSubject { client_id, user: user.as_ref(), address };
        assert!(!bans.covers(&client, Timestamp(10)), "it has ended");
        bans.covers(&client, Timestamp(9))
    }

    #[test]
    fn a_ban_is_about_an_identifier_a_user_or_a_network() {
        assert!(covers(Banned::Client("a".into()), "a", None, "::1"));
        assert!(!covers(Banned::Client("a".into()), "b", Some("a"), "::1"));
        assert!(covers(Banned::User("a".into()), "b", Some("a"), "::1"));
        assert!(!covers(Banned::User("a".into()), "a", None, "::1"));
        let network = |text: &str, bits| Banned::Network(text.parse().unwrap(), bits);
        for (network, address, within) in [
            (network("192.0.2.0", 24), "192.0.2.255", true),
            (network("192.0.2.0", 24), "192.0.3.0", false),
            (network("192.0.2.0", 24), "::ffff:192.0.2.7", true),
            (network("192.0.2.1", 32), "192.0.2.1", true),
            (network("192.0.2.1", 32), "192.0.2.2", false),
            (network("0.0.0.0", 0), "203.0.113.1", true),
            (network("0.0.0.0", 0), "2001:db8::1", false),
            (network("2001:db8::", 64), "2001:db8::ffff:1", true),
            (network("2001:db8::", 64), "2001:db8:0:1::", false),
        ] {
            assert_eq!(
                covers(network.clone(), "c", None, address),
                within,
                "{network:?} {address}"
            );
        }
        let program = User::program();
        assert!(!covers(network("0.0.0.0", 0), "c", Some(program.text()), "127.0.0.1"));
    }
}
