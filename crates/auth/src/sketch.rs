//! How often something has happened lately, per key, in memory of a fixed size.
//!
//! A count-min sketch whose sums halve every [`HALF_LIFE`]. Keys share cells, so that a sum is never too small, and keys
//! that come once do not displace any other: a table that forgets would forget those that an attacker wants it to.

use std::time::{Duration, Instant};

/// Time in which a sum falls to half of it.
pub(crate) const HALF_LIFE: Duration = Duration::from_secs(20);

/// Cells of a row; 8 bytes each. At 2,000 keys per second, each key's sum is too large by one on average.
const CELLS: usize = 1 << 16;
const ROWS: usize = 2;

/// What cells have as time, in milliseconds: 32 bits suffice for eight years.
const TICK_MS: u128 = 64;

#[derive(Clone, Debug, Default)]
pub(crate) struct Sketch {
    /// Sum and time of each cell; empty until the first addition.
    cells: Vec<u64>,
    begin: Option<Instant>,
}

impl Sketch {
    /// The sum of a key, which is a keyed hash.
    pub(crate) fn get(&self, key: u64, now: Instant) -> f32 {
        let tick = self.tick(now);
        places(key)
            .map(|place| self.cells.get(place).map_or(0.0, |cell| decayed(*cell, tick)))
            .into_iter()
            .fold(f32::INFINITY, f32::min)
    }

    /// Adds to the sum of a key; what was added in error can be subtracted.
    pub(crate) fn add(&mut self, key: u64, amount: f32, now: Instant) {
        self.begin.get_or_insert(now);
        if self.cells.is_empty() {
            // Zeroes from the kernel take no memory until they are used.
            self.cells = vec![0; ROWS * CELLS];
        }
        let tick = self.tick(now);
        for place in places(key) {
            if let Some(cell) = self.cells.get_mut(place) {
                let sum = (decayed(*cell, tick) + amount).max(0.0);
                *cell = u64::from(sum.to_bits()) << 32 | u64::from(tick);
            }
        }
    }

    fn tick(&self, now: Instant) -> u32 {
        let passed = self.begin.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        (passed.as_millis() / TICK_MS) as u32
    }
}

/// One cell per row.
fn places(key: u64) -> [usize; ROWS] {
    [key as usize % CELLS, CELLS + (key >> 32) as usize % CELLS]
}

fn decayed(cell: u64, tick: u32) -> f32 {
    let sum = f32::from_bits((cell >> 32) as u32);
    if sum == 0.0 {
        return 0.0;
    }
    let passed = tick.saturating_sub(cell as u32) as f32 * TICK_MS as f32;
    sum * (-passed / HALF_LIFE.as_millis() as f32).exp2()
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher as _, RandomState};

    use super::*;

    #[test]
    fn sums_halve_and_many_keys_hardly_disturb_one() {
        let (keys, start) = (RandomState::new(), Instant::now());
        let mut sketch = Sketch::default();
        let ann = keys.hash_one("ann");
        assert!(sketch.get(ann, start) < 0.01);
        for _ in 0..8 {
            sketch.add(ann, 1.0, start);
        }
        assert!((sketch.get(ann, start) - 8.0).abs() < 0.1);
        let later = start + 2 * HALF_LIFE;
        assert!((sketch.get(ann, later) - 2.0).abs() < 0.1);
        sketch.add(ann, -5.0, later);
        assert!(sketch.get(ann, later) < 0.01);
        for second in 0..60 {
            for number in 0..2_000 {
                let now = start + Duration::from_secs(second);
                sketch.add(keys.hash_one((second, number)), 1.0, now);
            }
        }
        let now = start + Duration::from_secs(60);
        let sums: f32 = (0..1_000).map(|other| sketch.get(keys.hash_one((other, "x")), now)).sum();
        assert!(sums < 1_500.0, "{sums} for 1,000 keys");
    }
}
