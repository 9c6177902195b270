//! Counts the heap bytes of each thread, so that a target can check a machine's limits.
//!
//! Every program that links this crate gets the counting allocator: fuzz targets and their tests.
#![allow(
    unsafe_code,
    reason = "an allocator cannot be written without; it hands on to the system's"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    // Neither needs a destructor, so both may be used while a thread ends.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn changed(by: isize) {
    let live = LIVE.get() + by;
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

// SAFETY: every call is passed on unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        changed(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        changed(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        changed(size as isize - layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The heap use of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Maximum number of bytes that it had at once.
    pub peak_bytes: usize,
    /// Bytes that it did not free; negative if it freed memory of others.
    pub left_bytes: isize,
}

/// Runs `work` and returns its heap use.
pub fn measure<R>(work: impl FnOnce() -> R) -> (R, Use) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    let peak_bytes = usize::try_from(PEAK.get() - before).unwrap_or(0);
    (result, Use { peak_bytes, left_bytes: LIVE.get() - before })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_is_counted() {
        let (kept, used) = measure(|| {
            drop(vec![0u8; 1000]);
            vec![0u8; 10]
        });
        assert_eq!((kept.len(), used), (10, Use { peak_bytes: 1000, left_bytes: 10 }));
    }
}
