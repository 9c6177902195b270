//! Who knocks how often: connections a second from one address, and failed logins from it.
//!
//! An address may stand for many clients behind one NAT. So connections are limited only where the
//! operator says so, and a failed login costs its own connection time, not its neighbours': the
//! answer comes late, the later the more have failed. IPv6 addresses count by their first 64 bits,
//! of which one site has one.

use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::bucket::Bucket;
use crate::time::Timestamp;

/// Addresses remembered; beyond it, those that would be treated no differently are forgotten, and
/// if there are none, newcomers are let pass: an attacker with so many is not stopped by counting.
const MAX_ADDRESSES: usize = 50_000;

/// Failed logins answered at once; people mistype.
const FREE_FAILURES: u32 = 3;

/// Delay of the answer to the first failure after those; it doubles with each.
const FIRST_DELAY: Duration = Duration::from_millis(250);

/// Longest delay of an answer; below the default time for connecting.
const LONGEST_DELAY: Duration = Duration::from_secs(8);

/// Time without failures after which they are forgotten.
const MEMORY: Duration = Duration::from_secs(60);

/// What is known of the addresses.
#[derive(Debug, Default)]
pub(crate) struct Doorman(Mutex<FxHashMap<IpAddr, Visitor>>);

#[derive(Debug)]
struct Visitor {
    connections: Option<Bucket>,
    refused: bool,
    failures: u32,
    failed_at: Timestamp,
}

/// Whether a connection may come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Knock {
    Welcome,
    /// Too many; the first since it was welcome is worth a line in the log.
    TooMany {
        first: bool,
    },
}

impl Visitor {
    fn new(now: Timestamp) -> Visitor {
        Visitor { connections: None, refused: false, failures: 0, failed_at: now }
    }

    fn is_forgettable(&self, now: Timestamp) -> bool {
        self.connections.is_none_or(|bucket| bucket.is_full(now))
            && (self.failures == 0 || now >= self.failed_at + MEMORY)
    }
}

impl Doorman {
    /// A connection from `address`, of which `per_s` are allowed a second; 0 for any number.
    pub(crate) fn knock(&self, address: IpAddr, per_s: u32, now: Timestamp) -> Knock {
        if per_s == 0 {
            return Knock::Welcome;
        }
        let mut visitors = self.0.lock();
        let Some(visitor) = visitor(&mut visitors, address, now) else { return Knock::Welcome };
        let bucket = visitor.connections.take().or_else(|| Bucket::new(per_s, now));
        let Some(mut bucket) = bucket else { return Knock::Welcome };
        let over = bucket.free_at(now).is_some();
        if !over {
            bucket.take(1.0, now);
        }
        visitor.connections = Some(bucket);
        let first = over && !visitor.refused;
        visitor.refused = over;
        if over { Knock::TooMany { first } } else { Knock::Welcome }
    }

    /// A login from `address` has failed: how long its answer is to be kept back.
    pub(crate) fn login_failed(&self, address: IpAddr, now: Timestamp) -> Duration {
        let mut visitors = self.0.lock();
        let Some(visitor) = visitor(&mut visitors, address, now) else { return Duration::ZERO };
        if now >= visitor.failed_at + MEMORY {
            visitor.failures = 0;
        }
        visitor.failures = visitor.failures.saturating_add(1);
        visitor.failed_at = now;
        match visitor.failures.checked_sub(FREE_FAILURES + 1) {
            None => Duration::ZERO,
            Some(doublings) => (FIRST_DELAY * 2u32.pow(doublings.min(10))).min(LONGEST_DELAY),
        }
    }
}

fn visitor(
    visitors: &mut FxHashMap<IpAddr, Visitor>,
    address: IpAddr,
    now: Timestamp,
) -> Option<&mut Visitor> {
    let site = site(address);
    if !visitors.contains_key(&site) && visitors.len() >= MAX_ADDRESSES {
        visitors.retain(|_, visitor| !visitor.is_forgettable(now));
        if visitors.len() >= MAX_ADDRESSES {
            return None;
        }
    }
    Some(visitors.entry(site).or_insert_with(|| Visitor::new(now)))
}

/// An IPv6 address without what its owner may choose.
fn site(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
        v4 => v4,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_is_limited_and_others_are_not() {
        let doorman = Doorman::default();
        let (a, b) = (address("192.0.2.1"), address("192.0.2.2"));
        let now = Timestamp(1_000);
        for _ in 0..3 {
            assert_eq!(doorman.knock(a, 2, now), Knock::Welcome);
        }
        assert_eq!(doorman.knock(a, 2, now), Knock::TooMany { first: true });
        assert_eq!(doorman.knock(a, 2, now), Knock::TooMany { first: false });
        assert_eq!(doorman.knock(b, 2, now), Knock::Welcome);
        assert_eq!(doorman.knock(a, 2, Timestamp(1_500)), Knock::Welcome);
        assert_eq!(doorman.knock(a, 0, now), Knock::Welcome);
    }

    #[test]
    fn the_more_logins_fail_the_later_comes_the_answer() {
        let doorman = Doorman::default();
        let (a, neighbour) = (address("2001:db8::1"), address("2001:db8::2"));
        let now = Timestamp(1_000);
        let delays: Vec<u128> = (0..12).map(|_| doorman.login_failed(a, now).as_millis()).collect();
        assert_eq!(delays[..6], [0, 0, 0, 250, 500, 1000]);
        assert_eq!(delays[11], 8000);
        assert_eq!(doorman.login_failed(neighbour, now).as_millis(), 8000, "the same site");
        assert_eq!(doorman.login_failed(address("2001:db8:0:1::1"), now).as_millis(), 0);
        let later = now + MEMORY;
        assert_eq!(doorman.login_failed(a, later).as_millis(), 0, "forgotten");
    }

    #[test]
    fn memory_is_bounded() {
        let doorman = Doorman::default();
        let numbered = |number: u32| IpAddr::V4((0x0a00_0000 + number).into());
        for number in 0..MAX_ADDRESSES as u32 {
            doorman.login_failed(numbered(number), Timestamp(0));
        }
        let newcomer = numbered(MAX_ADDRESSES as u32);
        assert_eq!(doorman.knock(newcomer, 1, Timestamp(0)), Knock::Welcome);
        assert_eq!(doorman.0.lock().len(), MAX_ADDRESSES);
        doorman.login_failed(newcomer, Timestamp(0) + MEMORY);
        assert_eq!(doorman.0.lock().len(), 1);
    }
}
