//! Room of queues that are no longer as long as they were. Sessions outlive their queues, so room that stayed would
//! be memory that no limit counts.

use std::collections::VecDeque;

/// Elements for which a queue keeps room.
const KEPT: usize = 16;

/// Gives most of a queue's unused room back. To be called after each removal: it does nothing until a quarter is used,
/// so that it costs little for each element.
#[inline]
pub fn give_back<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() > KEPT && queue.len() < queue.capacity() / 4 {
        shrink(queue);
    }
}

#[cold]
fn shrink<T>(queue: &mut VecDeque<T>) {
    queue.shrink_to(KEPT.max(2 * queue.len()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_was_long_keeps_little_room_and_rarely_moves() {
        let mut queue: VecDeque<usize> = (0..10_000).collect();
        let (mut moves, mut before) = (0, queue.capacity());
        while queue.pop_front().is_some() {
            give_back(&mut queue);
            assert!(queue.capacity() <= KEPT.max(4 * (queue.len() + 1)), "{}", queue.len());
            moves += usize::from(queue.capacity() != before);
            before = queue.capacity();
        }
        assert!(queue.capacity() <= KEPT && moves < 15, "{moves}");
    }
}
