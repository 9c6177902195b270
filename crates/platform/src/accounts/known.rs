//! A set that forgets its oldest.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use parking_lot::Mutex;

/// The last so many things that were noted.
#[derive(Debug)]
pub(crate) struct Known<K> {
    most: usize,
    inner: Mutex<Inner<K>>,
}

#[derive(Debug)]
struct Inner<K> {
    /// By thing, when it was noted last.
    known: HashMap<K, u64>,
    /// Each as often as it was noted, until it is looked at again.
    order: VecDeque<(K, u64)>,
    clock: u64,
}

impl<K: Clone + Eq + Hash> Known<K> {
    /// Remembers at most so many.
    pub(crate) fn new(most: usize) -> Known<K> {
        let inner = Inner { known: HashMap::new(), order: VecDeque::new(), clock: 0 };
        Known { most, inner: Mutex::new(inner) }
    }

    /// Whether it was noted, and not long ago.
    pub(crate) fn has(&self, thing: &K) -> bool {
        self.inner.lock().known.contains_key(thing)
    }

    /// Remembers it as the newest.
    pub(crate) fn note(&self, thing: K) {
        let inner = &mut *self.inner.lock();
        inner.clock += 1;
        inner.known.insert(thing.clone(), inner.clock);
        inner.order.push_back((thing, inner.clock));
        while inner.known.len() > self.most || inner.order.len() > 2 * self.most {
            let Some((oldest, at)) = inner.order.pop_front() else { return };
            if inner.known.get(&oldest) == Some(&at) {
                inner.known.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let known = Known::new(2);
        for thing in [1, 2, 1, 3] {
            known.note(thing);
        }
        assert_eq!([1, 2, 3].map(|thing| known.has(&thing)), [true, false, true]);
        for _ in 0..100 {
            known.note(1);
        }
        assert!(known.has(&1) && known.inner.lock().order.len() <= 4);
    }
}
