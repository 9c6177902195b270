//! A bounded set of ranges of numbers: received packets, parts of streams that came or went out of order.

use crate::limits::RANGES;

/// From the first number to the one after the last.
pub(crate) type Range = (u32, u32);

/// Ranges that neither touch nor overlap, lowest first.
pub(crate) struct Ranges {
    list: [Range; RANGES],
    count: u8,
}

impl Ranges {
    pub(crate) const fn new() -> Self {
        Self { list: [(0, 0); RANGES], count: 0 }
    }

    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }

    pub(crate) fn as_slice(&self) -> &[Range] {
        self.list.get(..self.count.into()).unwrap_or_default()
    }

    pub(crate) fn contains(&self, number: u32) -> bool {
        self.as_slice().iter().any(|range| range.0 <= number && number < range.1)
    }

    /// Adds `start..end`, which joins the ranges it touches. Gives false, and adds nothing, if there is no
    /// room for another range.
    #[inline(never)]
    pub(crate) fn insert(&mut self, mut start: u32, mut end: u32) -> bool {
        if start >= end {
            return true;
        }
        let mut joined = Self::new();
        let mut placed = false;
        for &(low, high) in self.as_slice() {
            if high < start {
                joined.push((low, high));
            } else if low > end {
                if !placed {
                    placed = joined.push((start, end));
                }
                if !placed || !joined.push((low, high)) {
                    return false;
                }
            } else {
                start = start.min(low);
                end = end.max(high);
            }
        }
        if !placed && !joined.push((start, end)) {
            return false;
        }
        *self = joined;
        true
    }

    fn push(&mut self, range: Range) -> bool {
        let Some(place) = self.list.get_mut(usize::from(self.count)) else { return false };
        *place = range;
        self.count += 1;
        true
    }

    /// Forgets the lowest range.
    pub(crate) fn drop_lowest(&mut self) {
        self.list.copy_within(1.., 0);
        self.count = self.count.saturating_sub(1);
    }

    /// Forgets all below `number`.
    pub(crate) fn drop_below(&mut self, number: u32) {
        while self.as_slice().first().is_some_and(|range| range.1 <= number) {
            self.drop_lowest();
        }
        if self.count > 0 {
            let first = &mut self.list[0];
            first.0 = first.0.max(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[Range]) -> Ranges {
        let mut set = Ranges::new();
        for &(start, end) in ranges {
            assert!(set.insert(start, end));
        }
        set
    }

    #[test]
    fn ranges_that_touch_become_one() {
        assert_eq!(set(&[(5, 6), (1, 2), (3, 4)]).as_slice(), [(1, 2), (3, 4), (5, 6)]);
        assert_eq!(set(&[(5, 6), (1, 2), (2, 5)]).as_slice(), [(1, 6)]);
        assert_eq!(set(&[(1, 9), (3, 4)]).as_slice(), [(1, 9)]);
        assert_eq!(set(&[(3, 3)]).as_slice(), []);
    }

    #[test]
    fn a_full_set_stays_as_it_is_but_still_joins() {
        let mut set = set(&[(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11)]);
        assert_eq!(set.as_slice().len(), RANGES);
        for range in [(20, 21), (12, 13)] {
            assert!(!set.insert(range.0, range.1));
            assert_eq!(set.as_slice().len(), RANGES);
        }
        assert!(set.insert(11, 12));
        assert!(set.contains(11) && !set.contains(12));
        assert!(set.insert(0, 8));
        assert_eq!(set.as_slice(), [(0, 9), (10, 12)]);
    }

    #[test]
    fn what_is_below_is_forgotten() {
        let mut set = set(&[(0, 1), (2, 5), (7, 9)]);
        set.drop_below(3);
        assert_eq!(set.as_slice(), [(3, 5), (7, 9)]);
        set.drop_below(9);
        assert_eq!(set.as_slice(), []);
    }

    /// Against a set of booleans, over many short histories.
    #[test]
    fn agrees_with_a_simple_model() {
        let mut seed = 1u32;
        for _ in 0..2000 {
            let mut set = Ranges::new();
            let mut model = [false; 32];
            for _ in 0..12 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let (start, len) = (seed >> 27, seed >> 20 & 7);
                let end = (start + len).min(32);
                if set.insert(start, end) {
                    model[start as usize..end as usize].fill(true);
                }
                for (number, expected) in (0..).zip(model) {
                    assert_eq!(set.contains(number), expected, "{number} of {:?}", set.as_slice());
                }
            }
        }
    }
}
