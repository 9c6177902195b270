//! The rate limiter: connections per second from one address, and failed logins from it.
//!
//! An address may stand for many clients behind one NAT. So connections are limited only if the
//! operator configures it, and a failed login delays its own connection, not its neighbours': the
//! answer is delayed more with each failure. Failures also cost the address where logins have to wait:
//! its logins that must be hashed come after those of addresses without failures, and a user whose own logins
//! fail comes after that user's neighbours. Each successful login makes up for a failed one. IPv6 addresses
//! count by their first 64 bits, because a site has a prefix of that length.

use std::hash::BuildHasher as _;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::bucket::Bucket;
use crate::time::Timestamp;

/// Addresses remembered; above it, those that would be treated no differently are forgotten, and
/// if there are none, new addresses are not limited: counting does not stop an attacker with that many addresses.
const MAX_ADDRESSES: usize = 50_000;

/// Time between searches for addresses that can be forgotten: each looks at all of them, while others wait.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);

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

/// The reputation of a user at an address by failed logins; the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reputation {
    /// No login has failed lately, or so few that a person may have mistyped.
    Clean,
    /// Logins of other users have failed.
    OthersFailed,
    /// Logins of this user have failed.
    Failing,
}

/// State of all addresses; see the module.
#[derive(Debug, Default)]
pub(crate) struct RateLimiter(Mutex<Addresses>);

#[derive(Debug, Default)]
struct Addresses {
    states: FxHashMap<IpAddr, AddressState>,
    /// When addresses that can be forgotten were last searched for, if ever.
    searched_at: Option<Timestamp>,
}

#[derive(Debug)]
struct AddressState {
    connections: Option<Bucket>,
    refused: bool,
    failures: u32,
    failed_at: Timestamp,
    /// Hashes of the users that failed last, oldest first.
    failing: Vec<u64>,
}

/// The answer to an attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    Allowed,
    /// Too many; the first refusal since an attempt was allowed is worth a line in the log.
    TooMany {
        first: bool,
    },
}

impl AddressState {
    fn new(now: Timestamp) -> AddressState {
        AddressState {
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

impl RateLimiter {
    /// An attempt to connect from `address`, of which `per_s` are allowed per second; 0 for any number.
    pub(crate) fn attempt(&self, address: IpAddr, per_s: u32, now: Timestamp) -> Attempt {
        if per_s == 0 {
            return Attempt::Allowed;
        }
        let mut addresses = self.0.lock();
        let Some(state) = addresses.state(address, now) else { return Attempt::Allowed };
        let bucket = state.connections.take().or_else(|| Bucket::new(per_s, now));
        let Some(mut bucket) = bucket else { return Attempt::Allowed };
        let over = bucket.free_at(now).is_some();
        if !over {
            bucket.take(1.0, now);
        }
        state.connections = Some(bucket);
        let first = over && !state.refused;
        state.refused = over;
        if over { Attempt::TooMany { first } } else { Attempt::Allowed }
    }

    /// The reputation of `user` at `address`, whose login has not been checked yet.
    pub(crate) fn reputation(&self, address: IpAddr, user: &str, now: Timestamp) -> Reputation {
        let addresses = self.0.lock();
        match addresses.states.get(&site(address)) {
            Some(state) if state.failures > FREE_FAILURES && !state.is_forgiven(now) => {
                let failing = state.failing.contains(&FxBuildHasher.hash_one(user));
                if failing { Reputation::Failing } else { Reputation::OthersFailed }
            }
            _ => Reputation::Clean,
        }
    }

    /// A login of `user` from `address` has succeeded.
    pub(crate) fn login_succeeded(&self, address: IpAddr, user: &str) {
        if let Some(state) = self.0.lock().states.get_mut(&site(address)) {
            state.failures = state.failures.saturating_sub(1);
            let user = FxBuildHasher.hash_one(user);
            state.failing.retain(|failing| *failing != user);
        }
    }

    /// A login of `user` from `address` has failed: returns how long to delay the answer.
    pub(crate) fn login_failed(&self, address: IpAddr, user: &str, now: Timestamp) -> Duration {
        let mut addresses = self.0.lock();
        let Some(state) = addresses.state(address, now) else { return Duration::ZERO };
        if state.is_forgiven(now) {
            state.failures = 0;
            state.failing.clear();
        }
        state.failures = state.failures.saturating_add(1);
        state.failed_at = now;
        let user = FxBuildHasher.hash_one(user);
        state.failing.retain(|failing| *failing != user);
        if state.failing.len() >= FAILING_USERS {
            state.failing.remove(0);
        }
        state.failing.push(user);
        match state.failures.checked_sub(FREE_FAILURES + 1) {
            None => Duration::ZERO,
            Some(doublings) => (FIRST_DELAY * 2u32.pow(doublings.min(10))).min(LONGEST_DELAY),
        }
    }
}

impl Addresses {
    /// The state of `address`; `None` if it has none and there is no room for another.
    fn state(&mut self, address: IpAddr, now: Timestamp) -> Option<&mut AddressState> {
        let site = site(address);
        if self.states.len() >= MAX_ADDRESSES && !self.states.contains_key(&site) {
            if self.searched_at.is_some_and(|at| now < at + SEARCH_INTERVAL) {
                return None;
            }
            self.searched_at = Some(now);
            self.states.retain(|_, state| !state.is_forgettable(now));
            if self.states.len() >= MAX_ADDRESSES {
                return None;
            }
        }
        Some(self.states.entry(site).or_insert_with(|| AddressState::new(now)))
    }
}

/// The address itself, or the /64 prefix of an IPv6 address.
pub fn site(address: IpAddr) -> IpAddr {
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
        let rate_limiter = RateLimiter::default();
        let (a, b) = (address("192.0.2.1"), address("192.0.2.2"));
        let now = Timestamp(1_000);
        for _ in 0..3 {
            assert_eq!(rate_limiter.attempt(a, 2, now), Attempt::Allowed);
        }
        assert_eq!(rate_limiter.attempt(a, 2, now), Attempt::TooMany { first: true });
        assert_eq!(rate_limiter.attempt(a, 2, now), Attempt::TooMany { first: false });
        assert_eq!(rate_limiter.attempt(b, 2, now), Attempt::Allowed);
        assert_eq!(rate_limiter.attempt(a, 2, Timestamp(1_500)), Attempt::Allowed);
        assert_eq!(rate_limiter.attempt(a, 0, now), Attempt::Allowed);
    }

    #[test]
    fn the_more_logins_fail_the_later_comes_the_answer() {
        let rate_limiter = RateLimiter::default();
        let (a, neighbour) = (address("2001:db8::1"), address("2001:db8::2"));
        let now = Timestamp(1_000);
        let delays: Vec<u128> =
            (0..12).map(|_| rate_limiter.login_failed(a, "u", now).as_millis()).collect();
        assert_eq!(delays[..6], [0, 0, 0, 250, 500, 1000]);
        assert_eq!(delays[11], 8000);
        assert_eq!(
            rate_limiter.login_failed(neighbour, "u", now).as_millis(),
            8000,
            "the same site"
        );
        assert_eq!(rate_limiter.login_failed(address("2001:db8:0:1::1"), "u", now).as_millis(), 0);
        let later = now + MEMORY;
        assert_eq!(rate_limiter.login_failed(a, "u", later).as_millis(), 0, "forgotten");
    }

    #[test]
    fn failures_cost_their_own_user_first_then_their_address_and_success_makes_up_for_them() {
        let rate_limiter = RateLimiter::default();
        let (a, b) = (address("2001:db8::1"), address("2001:db8:0:1::1"));
        let now = Timestamp(1_000);
        for _ in 0..FREE_FAILURES {
            rate_limiter.login_failed(a, "ann", now);
        }
        assert_eq!(rate_limiter.reputation(a, "ann", now), Reputation::Clean, "people mistype");
        rate_limiter.login_failed(a, "ann", now);
        assert_eq!(rate_limiter.reputation(a, "ann", now), Reputation::Failing);
        assert_eq!(
            rate_limiter.reputation(address("2001:db8::2"), "bob", now),
            Reputation::OthersFailed
        );
        assert_eq!(rate_limiter.reputation(b, "ann", now), Reputation::Clean);
        rate_limiter.login_succeeded(a, "bob");
        assert_eq!(rate_limiter.reputation(a, "bob", now), Reputation::Clean);
        rate_limiter.login_failed(a, "eve", now);
        assert_eq!(rate_limiter.reputation(a, "ann", now + MEMORY), Reputation::Clean, "forgotten");
        for number in 0..1000 {
            rate_limiter.login_failed(a, &number.to_string(), now);
        }
        let addresses = rate_limiter.0.lock();
        assert_eq!(addresses.states[&site(a)].failing.len(), FAILING_USERS);
    }

    #[test]
    fn memory_is_bounded() {
        let rate_limiter = RateLimiter::default();
        let numbered = |number: u32| IpAddr::V4((0x0a00_0000 + number).into());
        for number in 0..MAX_ADDRESSES as u32 {
            rate_limiter.login_failed(numbered(number), "u", Timestamp(0));
        }
        let newcomer = numbered(MAX_ADDRESSES as u32);
        assert_eq!(rate_limiter.attempt(newcomer, 1, Timestamp(0)), Attempt::Allowed);
        assert_eq!(rate_limiter.0.lock().states.len(), MAX_ADDRESSES);
        // All of them could be forgotten, had they not just been searched.
        let searched = Timestamp(0) + (MEMORY - SEARCH_INTERVAL / 2);
        rate_limiter.login_failed(newcomer, "u", searched);
        rate_limiter.login_failed(newcomer, "u", Timestamp(0) + MEMORY);
        assert_eq!(rate_limiter.0.lock().states.len(), MAX_ADDRESSES);
        rate_limiter.login_failed(newcomer, "u", searched + SEARCH_INTERVAL);
        assert_eq!(rate_limiter.0.lock().states.len(), 1);
    }
}
