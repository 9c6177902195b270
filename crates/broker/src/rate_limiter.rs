//! The rate limiter: connections per second from one address, and failed logins from it.
//!
//! An address may stand for many clients behind one NAT. So connections are limited only if the
//! operator configures it, and a failed login delays its own connection, not its neighbours': the
//! answer is delayed more with each failure. Each successful login makes up for a failed one. IPv6 addresses
//! count by their first 64 bits, because a site has a prefix of that length. In which order logins are checked
//! is decided in `auth/queue.rs`.

use std::net::IpAddr;
use std::time::Duration;

use fulmar_auth::Timestamp;
use fulmar_text::network::site;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::bucket::Bucket;

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
        AddressState { connections: None, refused: false, failures: 0, failed_at: now }
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

    /// A login from `address` has succeeded.
    pub(crate) fn login_succeeded(&self, address: IpAddr) {
        if let Some(state) = self.0.lock().states.get_mut(&site(address)) {
            state.failures = state.failures.saturating_sub(1);
        }
    }

    /// A login from `address` has failed: returns how long to delay the answer.
    pub(crate) fn login_failed(&self, address: IpAddr, now: Timestamp) -> Duration {
        let mut addresses = self.0.lock();
        let Some(state) = addresses.state(address, now) else { return Duration::ZERO };
        if state.is_forgiven(now) {
            state.failures = 0;
        }
        state.failures = state.failures.saturating_add(1);
        state.failed_at = now;
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
            (0..12).map(|_| rate_limiter.login_failed(a, now).as_millis()).collect();
        assert_eq!(delays[..6], [0, 0, 0, 250, 500, 1000]);
        assert_eq!(delays[11], 8000);
        assert_eq!(rate_limiter.login_failed(neighbour, now).as_millis(), 8000, "the same site");
        assert_eq!(rate_limiter.login_failed(address("2001:db8:0:1::1"), now).as_millis(), 0);
        let later = now + MEMORY;
        assert_eq!(rate_limiter.login_failed(a, later).as_millis(), 0, "forgotten");
    }

    #[test]
    fn a_success_makes_up_for_a_failure() {
        let rate_limiter = RateLimiter::default();
        let (a, now) = (address("192.0.2.1"), Timestamp(1_000));
        for _ in 0..20 {
            assert!(rate_limiter.login_failed(a, now).is_zero());
            rate_limiter.login_succeeded(a);
        }
    }

    #[test]
    fn memory_is_bounded() {
        let rate_limiter = RateLimiter::default();
        let numbered = |number: u32| IpAddr::V4((0x0a00_0000 + number).into());
        for number in 0..MAX_ADDRESSES as u32 {
            rate_limiter.login_failed(numbered(number), Timestamp(0));
        }
        let newcomer = numbered(MAX_ADDRESSES as u32);
        assert_eq!(rate_limiter.attempt(newcomer, 1, Timestamp(0)), Attempt::Allowed);
        assert_eq!(rate_limiter.0.lock().states.len(), MAX_ADDRESSES);
        // All of them could be forgotten, had they not just been searched.
        let searched = Timestamp(0) + (MEMORY - SEARCH_INTERVAL / 2);
        rate_limiter.login_failed(newcomer, searched);
        rate_limiter.login_failed(newcomer, Timestamp(0) + MEMORY);
        assert_eq!(rate_limiter.0.lock().states.len(), MAX_ADDRESSES);
        rate_limiter.login_failed(newcomer, searched + SEARCH_INTERVAL);
        assert_eq!(rate_limiter.0.lock().states.len(), 1);
    }
}
