//! Rate limits for logins and requests: one token bucket per name (an account, a network), of a bounded number of names.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Instant;

use parking_lot::Mutex;

/// The most names remembered. Beyond, the fullest buckets, which limit least, are forgotten: a client that fills the
/// table with names does not empty the bucket of another.
const MAX_NAMES: usize = 10_000;
/// Buckets that are forgotten at once, so that not every new name causes a search.
const FORGOTTEN_AT_ONCE: usize = MAX_NAMES / 10;

/// Token buckets, one per name.
#[derive(Debug)]
pub struct Rate<K> {
    per_s: f64,
    burst: f64,
    buckets: Mutex<HashMap<K, Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl<K: Hash + Eq> Rate<K> {
    /// `per_s` is the refill rate, `burst` the size of a bucket.
    pub fn new(per_s: f64, burst: f64) -> Rate<K> {
        Rate { per_s, burst, buckets: Mutex::default() }
    }

    /// Takes a token.
    ///
    /// # Errors
    /// There is no token; the error is the number of seconds until there is one.
    pub fn take(&self, name: K, now: Instant) -> Result<(), u64> {
        self.take_many(name, 1.0, now)
    }

    /// Takes this many tokens.
    ///
    /// # Errors
    /// As for [`Rate::take`].
    pub fn take_many(&self, name: K, wanted: f64, now: Instant) -> Result<(), u64> {
        let mut buckets = self.buckets.lock();
        if buckets.len() >= MAX_NAMES && !buckets.contains_key(&name) {
            self.forget(&mut buckets, now);
        }
        let bucket = buckets.entry(name).or_insert(Bucket { tokens: self.burst, at: now });
        let tokens = self.filled(*bucket, now);
        *bucket = Bucket { tokens, at: now };
        if tokens < wanted {
            return Err(((wanted - tokens) / self.per_s).ceil() as u64);
        }
        bucket.tokens -= wanted;
        Ok(())
    }

    /// Makes room: forgets full buckets, or if there are none, the fullest.
    fn forget(&self, buckets: &mut HashMap<K, Bucket>, now: Instant) {
        buckets.retain(|_, bucket| self.filled(*bucket, now) < self.burst);
        if buckets.len() < MAX_NAMES {
            return;
        }
        let mut tokens: Vec<f64> =
            buckets.values().map(|bucket| self.filled(*bucket, now)).collect();
        let (_, &mut least, _) =
            tokens.select_nth_unstable_by(FORGOTTEN_AT_ONCE - 1, |a, b| b.total_cmp(a));
        let mut left = FORGOTTEN_AT_ONCE;
        buckets.retain(|_, bucket| {
            let goes = left > 0 && self.filled(*bucket, now) >= least;
            left -= usize::from(goes);
            !goes
        });
    }

    /// Returns a token.
    pub fn give_back(&self, name: &K) {
        self.give_back_many(name, 1.0);
    }

    /// Returns this many tokens.
    pub fn give_back_many(&self, name: &K, tokens: f64) {
        if let Some(bucket) = self.buckets.lock().get_mut(name) {
            bucket.tokens += tokens;
        }
    }

    fn filled(&self, bucket: Bucket, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(bucket.at).as_secs_f64();
        (bucket.tokens + passed * self.per_s).min(self.burst)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_bucket_empties_and_fills_again() {
        let rate = Rate::new(0.5, 2.0);
        let start = Instant::now();
        let after = |s| start + Duration::from_secs(s);
        assert_eq!([rate.take("a", start), rate.take("a", start)], [Ok(()), Ok(())]);
        assert_eq!(rate.take("a", start), Err(2));
        assert_eq!(rate.take("b", start), Ok(()), "another name has a bucket of its own");
        assert_eq!(rate.take("a", after(2)), Ok(()));
        assert_eq!(rate.take("a", after(2)), Err(2));
        rate.give_back(&"a");
        assert_eq!(rate.take("a", after(2)), Ok(()));
    }

    #[test]
    fn names_are_bounded() {
        let rate = Rate::new(0.001, 1.0);
        let now = Instant::now();
        for name in 0..=MAX_NAMES {
            assert_eq!(rate.take(name, now), Ok(()));
        }
        assert!(rate.buckets.lock().len() <= MAX_NAMES);
    }

    #[test]
    fn a_flood_of_names_resets_no_limit() {
        let rate = Rate::new(0.001, 5.0);
        let now = Instant::now();
        while rate.take(usize::MAX, now).is_ok() {}
        for name in 0..3 * MAX_NAMES {
            assert_eq!(rate.take(name, now), Ok(()));
        }
        assert!(rate.take(usize::MAX, now).is_err(), "who has tried too often still waits");
        assert!(rate.buckets.lock().len() <= MAX_NAMES);
    }

    #[test]
    fn what_is_given_back_may_be_used_again_and_is_no_more_than_before() {
        let (rate, start) = (Rate::new(0.5, 2.0), Instant::now());
        for _ in 0..5 {
            assert_eq!(rate.take("a", start), Ok(()));
            rate.give_back(&"a");
        }
        rate.give_back(&"a");
        let left = std::iter::from_fn(|| rate.take("a", start).ok());
        assert_eq!(left.count(), 2);
    }

    #[test]
    fn an_ipv6_network_counts_as_one() {
        let of = |text: &str| fulmar_text::network::site(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1:2:3"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }
}
