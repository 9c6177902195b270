//! Datagrams that wait for their next copy.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Plan;

struct Waiting<T> {
    at: Instant,
    gap: Duration,
    left: u8,
    datagram: T,
}

/// Datagrams that are to be sent again, up to a limit. Datagrams beyond it get no copies, which are optional.
pub struct CopyQueue<T> {
    waiting: VecDeque<Waiting<T>>,
    most: usize,
}

impl<T> std::fmt::Debug for CopyQueue<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyQueue").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

impl<T> CopyQueue<T> {
    /// A queue of at most `most` datagrams. Nothing is allocated before the first.
    pub fn new(most: usize) -> CopyQueue<T> {
        CopyQueue { waiting: VecDeque::new(), most }
    }

    /// Keeps a datagram that was sent at `now` until its copies are due; false if it is not kept.
    pub fn push(&mut self, now: Instant, plan: Plan, datagram: impl FnOnce() -> T) -> bool {
        let fits = plan.copies > 0 && self.waiting.len() < self.most;
        if fits {
            let (at, gap, left) = (now + plan.gap, plan.gap, plan.copies);
            self.waiting.push_back(Waiting { at, gap, left, datagram: datagram() });
        }
        fits
    }

    /// When the next copy is due.
    pub fn next(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.at).min()
    }

    /// Sends what is due at `now`, the newest first: behind a datagram and the next one, their copies in the same order
    /// would all be lost where every second packet is dropped. Of copies that are late, the next keeps its distance.
    pub fn send_due(&mut self, now: Instant, mut send: impl FnMut(&T)) {
        for waiting in self.waiting.iter_mut().rev().filter(|waiting| waiting.at <= now) {
            send(&waiting.datagram);
            waiting.at = now + waiting.gap;
            waiting.left -= 1;
        }
        self.waiting.retain(|waiting| waiting.left > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: Duration = Duration::from_millis(2);

    fn plan(copies: u8) -> Plan {
        Plan { copies, gap: GAP }
    }

    #[test]
    fn copies_are_sent_when_they_are_due_and_no_oftener() {
        let now = Instant::now();
        let mut queue = CopyQueue::new(8);
        assert!(!queue.push(now, plan(0), || 'z'));
        assert!(queue.push(now, plan(2), || 'a'));
        assert!(queue.push(now + GAP / 2, plan(1), || 'b'));
        let mut sent = Vec::new();
        let mut at = now;
        while let Some(next) = queue.next() {
            assert!(next > at);
            at = next;
            queue.send_due(at, |datagram| sent.push((*datagram, at - now)));
        }
        assert_eq!(sent, [('a', GAP), ('b', GAP * 3 / 2), ('a', GAP * 2)]);
    }

    #[test]
    fn copies_of_two_datagrams_in_a_row_begin_with_the_newer_one() {
        let now = Instant::now();
        let mut queue = CopyQueue::new(8);
        ['a', 'b'].iter().for_each(|name| _ = queue.push(now, plan(1), || *name));
        let mut sent = Vec::new();
        queue.send_due(now + GAP, |datagram| sent.push(*datagram));
        assert_eq!(sent, ['b', 'a']);
    }

    #[test]
    fn what_does_not_fit_has_no_copies() {
        let now = Instant::now();
        let mut queue = CopyQueue::new(2);
        let kept = (0..5).filter(|i| queue.push(now, plan(4), || *i)).count();
        assert_eq!(kept, 2);
        let mut count = 0;
        for turn in 1..100 {
            queue.send_due(now + turn * GAP, |_| count += 1);
        }
        assert_eq!((count, queue.next()), (8, None));
    }
}
