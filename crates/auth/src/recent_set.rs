//! A set of bounded size that forgets its oldest elements.

use std::collections::VecDeque;
use std::hash::Hash;

use rustc_hash::FxHashMap;

/// The elements inserted last, up to a limit.
#[derive(Clone, Debug)]
pub(crate) struct RecentSet<K> {
    most: usize,
    /// Each element, and when it was inserted last.
    newest: FxHashMap<K, u64>,
    /// Insertions in order, an element's repeated ones included, until they are removed.
    order: VecDeque<(K, u64)>,
    clock: u64,
}

impl<K: Clone + Eq + Hash> RecentSet<K> {
    /// A set of at most `most` elements.
    pub(crate) fn new(most: usize) -> RecentSet<K> {
        RecentSet { most, newest: FxHashMap::default(), order: VecDeque::new(), clock: 0 }
    }

    /// Whether it was inserted and not yet forgotten.
    pub(crate) fn contains(&self, element: &K) -> bool {
        self.newest.contains_key(element)
    }

    /// Inserts it as the newest element.
    pub(crate) fn insert(&mut self, element: K) {
        self.clock += 1;
        self.newest.insert(element.clone(), self.clock);
        self.order.push_back((element, self.clock));
        while self.newest.len() > self.most || self.order.len() > 2 * self.most {
            let Some((oldest, at)) = self.order.pop_front() else { return };
            if self.newest.get(&oldest) == Some(&at) {
                self.newest.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut set = RecentSet::new(2);
        for element in [1, 2, 1, 3] {
            set.insert(element);
        }
        assert_eq!([1, 2, 3].map(|element| set.contains(&element)), [true, false, true]);
        for _ in 0..100 {
            set.insert(1);
        }
        assert!(set.contains(&1) && set.order.len() <= 4);
    }
}
