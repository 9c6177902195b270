//! Which address of a list a client tries next, and whether it follows a server that names another one (section 4.11).
//!
//! The addresses of a list are equivalent: nodes of one cluster. After a lost connection, the client tries the same
//! address first, because a link is lost more often than a server; where that fails, the others at once, and after all
//! of them it waits.
//!
//! A Server Reference decides where credentials and messages go. It is followed only
//!
//! - to an address of the list: the user has named it;
//! - or if the transport is encrypted and certificates are checked: the server has shown that it is the one that the
//!   user has named, and the other one has to show that it has the name in the reference, before it gets anything;
//! - or from this machine to this machine.
//!
//! Over plain TCP, an attacker on the path could otherwise send clients and their passwords anywhere. The transport stays
//! the same, and redirections in a row are bounded.

use std::collections::VecDeque;
use std::time::Duration;

use fulmar_mqtt::ReasonCode;

use crate::error::Error;
use crate::options::{Options, Trust};
use crate::url::BrokerUrl;

/// Redirections that are followed before a connection has lasted [`SETTLED`].
const MAX_HOPS: u32 = 3;
/// Addresses of one Server Reference that are tried.
const MAX_REFERENCES: usize = 8;
/// A connection that has lasted this long was no mistake.
const SETTLED: Duration = Duration::from_secs(10);

/// Next step after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Try the current address, which is another one now.
    AtOnce,
    /// Wait before that.
    Wait,
}

/// End of an attempt to connect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended<'a> {
    pub(crate) error: &'a Error,
    /// The Server Reference of the server's last packet.
    pub(crate) reference: Option<&'a str>,
    /// Time for which the server had accepted the connection; `None` if it had not.
    pub(crate) lasted: Option<Duration>,
}

/// The addresses, and the one in use.
#[derive(Debug)]
pub(crate) struct Addresses {
    list: Vec<BrokerUrl>,
    at: usize,
    /// An address that is not in the list.
    elsewhere: Option<BrokerUrl>,
    /// Further ones of the last reference.
    references: VecDeque<BrokerUrl>,
    hops: u32,
    /// Failures of the list since the last wait.
    failed: usize,
    /// Waits since the last connection.
    rounds: u32,
    /// Whether a server has to show that it has its name.
    verified: bool,
}

impl Addresses {
    pub(crate) fn new(options: &Options) -> Addresses {
        let mut list = vec![options.url.clone()];
        list.extend(options.others.iter().cloned());
        Addresses {
            list,
            at: 0,
            elsewhere: None,
            references: VecDeque::new(),
            hops: 0,
            failed: 0,
            rounds: 0,
            verified: options.url.transport.is_secure() && options.trust != Trust::Insecure,
        }
    }

    /// The address to use.
    pub(crate) fn current(&self) -> &BrokerUrl {
        self.elsewhere.as_ref().unwrap_or(&self.list[self.at])
    }

    /// Returns all addresses: the one in use, and the others in the order in which they are tried.
    pub(crate) fn urls(&self) -> Vec<BrokerUrl> {
        let (before, after) = self.list.split_at(self.at);
        self.elsewhere.iter().chain(after).chain(before).cloned().collect()
    }

    /// Returns the number of addresses.
    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }

    /// Longest wait for an address. With several, the first rounds are short, so that a server that is silent does
    /// not hold up the others for long; over a link that is too slow for that, the third round is not.
    pub(crate) fn patience(&self, longest: Duration) -> Duration {
        let several = self.list.len() > 1 || self.elsewhere.is_some();
        let part = if several { 4 >> self.rounds.min(2) } else { 1 };
        longest / part
    }

    /// Chooses the address for the next attempt.
    pub(crate) fn next(&mut self, ended: Ended<'_>) -> Next {
        if let Some(lasted) = ended.lasted {
            (self.failed, self.rounds) = (0, 0);
            if lasted >= SETTLED {
                self.hops = 0;
            }
            self.references.clear();
        }
        let named = ended.reference.is_some_and(|reference| self.follow(reference));
        match (ended.lasted, named) {
            // Not at once: a server that ends has many clients, and the other one is just beginning.
            (Some(_), true) => return Next::Wait,
            (None, true) => return Next::AtOnce,
            (Some(_), false) => {
                if leaves(ended.error) {
                    self.advance();
                }
                return Next::Wait;
            }
            (None, false) => {}
        }
        if let Some(next) = self.references.pop_front() {
            self.go_to(next);
            return Next::AtOnce;
        }
        if self.elsewhere.take().is_some() {
            return Next::AtOnce;
        }
        self.failed += 1;
        self.advance();
        if self.failed < self.list.len() {
            return Next::AtOnce;
        }
        (self.failed, self.hops) = (0, 0);
        self.rounds = self.rounds.saturating_add(1);
        Next::Wait
    }

    fn advance(&mut self) {
        self.elsewhere = None;
        self.at = (self.at + 1) % self.list.len();
    }

    /// Makes `url` the address in use.
    pub(crate) fn go_to(&mut self, url: BrokerUrl) {
        match self.list.iter().position(|known| *known == url) {
            Some(at) => (self.at, self.elsewhere) = (at, None),
            None => self.elsewhere = Some(url),
        }
    }

    /// Goes to the first address of a reference that may be followed, if there is one.
    fn follow(&mut self, reference: &str) -> bool {
        let mut targets: VecDeque<_> = reference
            .split_ascii_whitespace()
            .take(MAX_REFERENCES)
            .filter_map(|text| self.target(text))
            .collect();
        let Some(first) = targets.pop_front() else { return false };
        if self.hops >= MAX_HOPS {
            tracing::warn!(to = %first, "not followed: redirected too often");
            return false;
        }
        self.hops += 1;
        tracing::debug!(from = %self.current(), to = %first, "the server names another one");
        self.references = targets;
        self.go_to(first);
        true
    }

    /// The address that a part of a reference names, if it may be used.
    fn target(&self, text: &str) -> Option<BrokerUrl> {
        let here = self.current();
        let url = match text.contains("://") {
            true => text.to_owned(),
            false => format!("{}://{text}", here.transport.scheme()),
        };
        let url: BrokerUrl = url.parse().ok()?;
        let url = BrokerUrl { path: here.path.clone(), ..url };
        if url.transport != here.transport || url == *here {
            return None;
        }
        let trusted =
            self.verified || self.list.contains(&url) || (url.is_loopback() && here.is_loopback());
        if !trusted {
            tracing::warn!(from = %here, to = %url,
                "not followed: it is no address of the list, and nothing shows which server it is");
        }
        trusted.then_some(url)
    }
}

/// Whether the server has ended the connection for a reason for which another one may be better.
fn leaves(error: &Error) -> bool {
    use ReasonCode as R;
    let Error::Disconnected(reason) = error else { return false };
    matches!(reason, R::ServerShuttingDown | R::ServerBusy | R::UseAnotherServer | R::ServerMoved)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn list(url: &str) -> Addresses {
        Addresses::new(&Options::new(url).unwrap())
    }

    fn refused() -> Error {
        Error::Dial { url: "here".into(), reason: "refused".into() }
    }

    /// An attempt that does not get to a CONNACK of success.
    fn fail(addresses: &mut Addresses, reference: Option<&str>) -> (Next, String) {
        let next = addresses.next(Ended { error: &refused(), reference, lasted: None });
        (next, addresses.current().to_string())
    }

    fn lose(addresses: &mut Addresses, error: Error, reference: Option<&str>) -> (Next, String) {
        let lasted = Some(SETTLED);
        let next = addresses.next(Ended { error: &error, reference, lasted });
        (next, addresses.current().to_string())
    }

    #[test]
    fn each_address_of_a_list_is_tried_before_there_is_a_wait() {
        let mut three = list("mqtt://a,b:2,c");
        assert_eq!(three.current().to_string(), "mqtt://a:1883");
        for _ in 0..2 {
            assert_eq!(fail(&mut three, None), (Next::AtOnce, "mqtt://b:2".into()));
            assert_eq!(fail(&mut three, None), (Next::AtOnce, "mqtt://c:1883".into()));
            assert_eq!(fail(&mut three, None), (Next::Wait, "mqtt://a:1883".into()));
        }
        assert_eq!(fail(&mut list("mqtt://a"), None), (Next::Wait, "mqtt://a:1883".into()));
    }

    #[test]
    fn a_lost_connection_begins_where_it_was_and_one_that_the_server_ends_elsewhere() {
        let mut two = list("quic://a,b");
        fail(&mut two, None);
        let lost = lose(&mut two, Error::KeepAlive, None);
        assert_eq!(lost, (Next::Wait, "quic://b:14567".into()));
        let ended = Error::Disconnected(ReasonCode::ServerShuttingDown);
        assert_eq!(lose(&mut two, ended, None), (Next::Wait, "quic://a:14567".into()));
    }

    #[test]
    fn a_silent_address_of_several_gets_a_part_of_the_time_at_first() {
        let whole = Duration::from_secs(8);
        let (mut one, mut two) = (list("mqtt://a"), list("mqtt://a,b"));
        for part in [4, 2, 1, 1] {
            assert_eq!((one.patience(whole), two.patience(whole)), (whole, whole / part));
            fail(&mut one, None);
            fail(&mut two, None);
            fail(&mut two, None);
        }
    }

    #[test]
    fn mqtt5_4_11_a_reference_is_followed_and_its_further_addresses_are_tried() {
        let mut one = list("mqtts://a");
        assert_eq!(fail(&mut one, Some("b c:9 [::1]:7")), (Next::AtOnce, "mqtts://b:8883".into()));
        assert_eq!(fail(&mut one, None), (Next::AtOnce, "mqtts://c:9".into()));
        assert_eq!(fail(&mut one, None), (Next::AtOnce, "mqtts://[::1]:7".into()));
        assert_eq!(fail(&mut one, None), (Next::AtOnce, "mqtts://a:8883".into()));
        assert_eq!(fail(&mut one, None), (Next::Wait, "mqtts://a:8883".into()));
        // A connected client waits a moment, as after any end.
        let moved = Error::Disconnected(ReasonCode::UseAnotherServer);
        assert_eq!(lose(&mut one, moved, Some("b")), (Next::Wait, "mqtts://b:8883".into()));
    }

    #[test]
    fn a_reference_is_followed_only_to_where_the_credentials_may_go() {
        let insecure = || {
            let mut options = Options::new("mqtts://a,b").unwrap();
            options.trust = Trust::Insecure;
            Addresses::new(&options)
        };
        for (from, reference, to) in [
            (list("mqtt://a"), "evil", None),
            (list("mqtt://a"), "localhost:2", None),
            (list("mqtt://a,b:2"), "b:2", Some("mqtt://b:2")),
            (list("mqtt://a,b:2"), "b:3", None),
            (list("mqtt://127.0.0.1"), "127.0.0.1:2", Some("mqtt://127.0.0.1:2")),
            (list("mqtt://127.0.0.1"), "10.0.0.1", None),
            (list("ws://127.0.0.1/x"), "[::1]:2", Some("ws://[::1]:2/x")),
            (list("quic://a"), "b", Some("quic://b:14567")),
            (list("quic://a"), "mqtts://b", None),
            (list("quic://a"), "quic://b:1", Some("quic://b:1")),
            (insecure(), "c", None),
            (insecure(), "b", Some("mqtts://b:8883")),
            (list("mqtts://a"), "", None),
            (list("mqtts://a"), "a:8883", None),
            (list("mqtts://a"), "x@b ?,? :", None),
        ] {
            let mut addresses = from;
            let followed = addresses.follow(reference).then(|| addresses.current().to_string());
            assert_eq!(followed.as_deref(), to, "{:?} {reference}", addresses.list);
        }
    }

    #[test]
    fn servers_that_name_each_other_do_not_keep_a_client_running() {
        let mut two = list("mqtts://a,b");
        let mut at_once = 0;
        while fail(&mut two, Some("a b")).0 == Next::AtOnce {
            at_once += 1;
            assert!(at_once <= MAX_HOPS + 1, "three redirections, and the second address");
        }
        assert_eq!(at_once, MAX_HOPS + 1);
    }
}
