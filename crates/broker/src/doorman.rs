//! Who knocks how often: connections a second from one address, and failed logins from it.
//!
//! An address may stand for many clients behind one NAT. So connections are limited only where the
//! operator says so, and a failed login costs its own connection time, not its neighbours': the
//! answer comes late, the later the more have failed. It costs its address too where somebody has to wait:
//! logins that must be hashed come after those of addresses without failures, and after its neighbours' if
//! it is its own user that fails. Each login that succeeds makes up for one that failed. IPv6 addresses
//! count by their first 64 bits, of which one site has one.

use std::hash::BuildHasher as _;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::{FxBuildHasher, FxHashMap};

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

/// Users of an address whose logins failed that are remembered, the newest of them.
const FAILING_USERS: usize = 16;

/// How an address stands, and a user of it, as far as failed logins go; the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// None have failed lately, or so few that somebody may have mistyped.
    Clean,
    /// Others' have.
    Neighbour,
    /// This user's have.
    Failing,
}

/// What is known of the addresses.
#[derive(Debug, Default)]
pub(crate) struct Doorman(Mutex<FxHashMap<IpAddr, Visitor>>);

#[derive(Debug)]
struct Visitor {
    connections: Option<Bucket>,
    refused: bool,
    failures: u32,
    failed_at: Timestamp,
    /// Hashes of the users that failed last, oldest first.
    failing: Vec<u64>,
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
        Visitor {
            connections: None,
            refused: false,
            failures: 0,
            failed_at: now,
            failing: Vec::new(),
        }
    }

    fn is_forgettable(&self, now: Timestamp) -> bool {
        self.connections.is_none_or(|bucket| bucket.is_full(now))
            && (self.failures == 0 || self.is_forgiven(now))
    }

    fn is_forgiven(&self, now: Timestamp) -> bool {
        now >= self.failed_at + MEMORY
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

    /// How a login of `user` from `address` stands that has not been checked yet.
    pub(crate) fn standing(&self, address: IpAddr, user: &str, now: Timestamp) -> Standing {
        let visitors = self.0.lock();
        match visitors.get(&site(address)) {
            Some(visitor) if visitor.failures > FREE_FAILURES && !visitor.is_forgiven(now) => {
                let failing = visitor.failing.contains(&FxBuildHasher.hash_one(user));
                if failing { Standing::Failing } else { Standing::Neighbour }
            }
            _ => Standing::Clean,
        }
    }

    /// A login of `user` from `address` has succeeded.
    pub(crate) fn login_succeeded(&self, address: IpAddr, user: &str) {
        if let Some(visitor) = self.0.lock().get_mut(&site(address)) {
            visitor.failures = visitor.failures.saturating_sub(1);
            let user = FxBuildHasher.hash_one(user);
            visitor.failing.retain(|failing| *failing != user);
        }
    }

    /// A login of `user` from `address` has failed: how long its answer is to be kept back.
    pub(crate) fn login_failed(&self, address: IpAddr, user: &str, now: Timestamp) -> Duration {
        let mut visitors = self.0.lock();
        let Some(visitor) = visitor(&mut visitors, address, now) else { return Duration::ZERO };
        if visitor.is_forgiven(now) {
            visitor.failures = 0;
            visitor.failing.clear();
        }
        visitor.failures = visitor.failures.saturating_add(1);
        visitor.failed_at = now;
        let user = FxBuildHasher.hash_one(user);
        visitor.failing.retain(|failing| *failing != user);
        if visitor.failing.len() >= FAILING_USERS {
            visitor.failing.remove(0);
        }
        visitor.failing.push(user);
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
pub(crate) fn site(address: IpAddr) -> IpAddr {
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
        let delays: Vec<u128> =
            (0..12).map(|_| doorman.login_failed(a, "u", now).as_millis()).collect();
        assert_eq!(delays[..6], [0, 0, 0, 250, 500, 1000]);
        assert_eq!(delays[11], 8000);
        assert_eq!(doorman.login_failed(neighbour, "u", now).as_millis(), 8000, "the same site");
        assert_eq!(doorman.login_failed(address("2001:db8:0:1::1"), "u", now).as_millis(), 0);
        let later = now + MEMORY;
        assert_eq!(doorman.login_failed(a, "u", later).as_millis(), 0, "forgotten");
    }

    #[test]
    fn failures_cost_their_own_user_first_then_their_address_and_success_makes_up_for_them() {
        let doorman = Doorman::default();
        let (a, b) = (address("2001:db8::1"), address("2001:db8:0:1::1"));
        let now = Timestamp(1_000);
        for _ in 0..FREE_FAILURES {
            doorman.login_failed(a, "ann", now);
        }
        assert_eq!(doorman.standing(a, "ann", now), Standing::Clean, "people mistype");
        doorman.login_failed(a, "ann", now);
        assert_eq!(doorman.standing(a, "ann", now), Standing::Failing);
        assert_eq!(doorman.standing(address("2001:db8::2"), "bob", now), Standing::Neighbour);
        assert_eq!(doorman.standing(b, "ann", now), Standing::Clean);
        doorman.login_succeeded(a, "bob");
        assert_eq!(doorman.standing(a, "bob", now), Standing::Clean);
        doorman.login_failed(a, "eve", now);
        assert_eq!(doorman.standing(a, "ann", now + MEMORY), Standing::Clean, "forgotten");
        for number in 0..1000 {
            doorman.login_failed(a, &number.to_string(), now);
        }
        let visitors = doorman.0.lock();
        assert_eq!(visitors[&site(a)].failing.len(), FAILING_USERS);
    }

    #[test]
    fn memory_is_bounded() {
        let doorman = Doorman::default();
        let numbered = |number: u32| IpAddr::V4((0x0a00_0000 + number).into());
        for number in 0..MAX_ADDRESSES as u32 {
            doorman.login_failed(numbered(number), "u", Timestamp(0));
        }
        let newcomer = numbered(MAX_ADDRESSES as u32);
        assert_eq!(doorman.knock(newcomer, 1, Timestamp(0)), Knock::Welcome);
        assert_eq!(doorman.0.lock().len(), MAX_ADDRESSES);
        doorman.login_failed(newcomer, "u", Timestamp(0) + MEMORY);
        assert_eq!(doorman.0.lock().len(), 1);
    }
}
