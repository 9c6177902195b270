//! How often something may be done per key: token buckets, of a bounded number of keys.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Instant;

use parking_lot::Mutex;

/// Buckets at most. If there are more keys, the full ones are forgotten, then all.
const MAX_KEYS: usize = 10_000;

/// A limit of `per_s` in the long run and `at_once` in a burst, per key.
#[derive(Debug)]
pub(crate) struct Rate<K> {
    per_s: f64,
    at_once: f64,
    buckets: Mutex<HashMap<K, Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    room: f64,
    at: Instant,
}

impl<K: Eq + Hash> Rate<K> {
    pub(crate) fn new(per_s: f64, at_once: f64) -> Rate<K> {
        Rate { per_s, at_once, buckets: Mutex::default() }
    }

    /// Uses one of the requests that the key has left.
    ///
    /// # Errors
    /// No request is left; the next one is accepted after this many seconds.
    pub(crate) fn take(&self, key: K, now: Instant) -> Result<(), u64> {
        let mut buckets = self.buckets.lock();
        self.make_room(&mut buckets, now);
        let bucket = buckets.entry(key).or_insert(Bucket { room: self.at_once, at: now });
        bucket.room = self.room(bucket, now);
        bucket.at = now;
        if bucket.room < 1.0 {
            return Err(((1.0 - bucket.room) / self.per_s).ceil() as u64);
        }
        bucket.room -= 1.0;
        Ok(())
    }

    /// Gives one back that was used.
    pub(crate) fn give_back(&self, key: &K) {
        if let Some(bucket) = self.buckets.lock().get_mut(key) {
            bucket.room = (bucket.room + 1.0).min(self.at_once);
        }
    }

    fn room(&self, bucket: &Bucket, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(bucket.at).as_secs_f64();
        (bucket.room + passed * self.per_s).min(self.at_once)
    }

    fn make_room(&self, buckets: &mut HashMap<K, Bucket>, now: Instant) {
        if buckets.len() < MAX_KEYS {
            return;
        }
        buckets.retain(|_, bucket| self.room(bucket, now) < self.at_once);
        if buckets.len() >= MAX_KEYS {
            buckets.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_burst_then_a_rate_per_key() {
        let (rate, start) = (Rate::new(0.5, 2.0), Instant::now());
        assert_eq!([rate.take("a", start), rate.take("a", start)], [Ok(()); 2]);
        assert_eq!(rate.take("a", start), Err(2));
        assert_eq!(rate.take("b", start), Ok(()));
        assert_eq!(rate.take("a", start + Duration::from_secs(2)), Ok(()));
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
    fn the_keys_are_bounded() {
        let (rate, start) = (Rate::new(1.0, 1.0), Instant::now());
        for key in 0..3 * MAX_KEYS {
            let _ = rate.take(key, start);
        }
        assert!(rate.buckets.lock().len() <= MAX_KEYS);
    }
}
