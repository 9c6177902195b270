//! A set of bounded size that forgets its oldest elements.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use parking_lot::Mutex;

/// The elements inserted last, up to a limit.
#[derive(Debug)]
pub(crate) struct RecentSet<K> {
    most: usize,
    inner: Mutex<Inner<K>>,
}

#[derive(Debug)]
struct Inner<K> {
    /// Each element, and when it was inserted last.
    newest: HashMap<K, u64>,
    /// Insertions in order, an element's repeated ones included, until they are removed.
    order: VecDeque<(K, u64)>,
    clock: u64,
}

impl<K: Clone + Eq + Hash> RecentSet<K> {
    /// A set of at most `most` elements.
    pub(crate) fn new(most: usize) -> RecentSet<K> {
        let inner = Inner { newest: HashMap::new(), order: VecDeque::new(), clock: 0 };
        RecentSet { most, inner: Mutex::new(inner) }
    }

    /// Whether it was inserted and not yet forgotten.
    pub(crate) fn contains(&self, element: &K) -> bool {
        self.inner.lock().newest.contains_key(element)
    }

    /// Inserts it as the newest element.
    pub(crate) fn insert(&self, element: K) {
        let inner = &mut *self.inner.lock();
        inner.clock += 1;
        inner.newest.insert(element.clone(), inner.clock);
        inner.order.push_back((element, inner.clock));
        while inner.newest.len() > self.most || inner.order.len() > 2 * self.most {
            let Some((oldest, at)) = inner.order.pop_front() else { return };
            if inner.newest.get(&oldest) == Some(&at) {
                inner.newest.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let set = RecentSet::new(2);
        for element in [1, 2, 1, 3] {
            set.insert(element);
        }
        assert_eq!([1, 2, 3].map(|element| set.contains(&element)), [true, false, true]);
        for _ in 0..100 {
            set.insert(1);
        }
        assert!(set.contains(&1) && set.inner.lock().order.len() <= 4);
    }
}
