//! Both sides of the lease: the node that has it, and those that wait for it. Each uses its own monotonic clock.

use std::time::{Duration, Instant};

/// Time from one renewal to the next.
pub const RENEW: Duration = Duration::from_secs(1);
/// The node acknowledges nothing this long after it has sent the last renewal that succeeded.
pub const LEASE: Duration = Duration::from_secs(3);
/// Others consider a lease free that they have seen unchanged for this long.
pub const EXPIRY: Duration = Duration::from_secs(4);
/// After an attempt to take it without an answer. A node that still has the lease renews it first, once there are
/// answers again.
pub const UNANSWERED: Duration = Duration::from_secs(1);
/// Longest time between two looks of a node that waits, answered or not. A node that was paused does not know what has
/// happened meanwhile.
const LONGEST_GAP: Duration = Duration::from_secs(2);

/// The lease of the node that has it.
#[derive(Clone, Debug)]
pub struct Holder {
    /// When the last renewal that succeeded was sent.
    renewed: Instant,
    /// When one was sent that has no answer.
    sent: Option<Instant>,
    /// When the first one was sent since then.
    first_sent: Option<Instant>,
    next: Instant,
}

impl Holder {
    /// The lease taken by a change of the control record that was sent at `sent`, and has succeeded.
    pub fn new(sent: Instant) -> Holder {
        Holder { renewed: sent, sent: None, first_sent: None, next: sent + RENEW }
    }

    /// When the next renewal is to be sent.
    pub fn next_renewal(&self) -> Instant {
        self.next
    }

    /// A renewal is sent now.
    pub fn send(&mut self, now: Instant) {
        self.sent = Some(now);
        self.first_sent.get_or_insert(now);
        self.next = now + RENEW;
    }

    /// The renewal that was sent last has succeeded. Returns until when the node may acknowledge.
    pub fn renewed(&mut self) -> Instant {
        if let Some(sent) = self.sent.take() {
            self.renewed = sent;
            self.first_sent = None;
        }
        self.until()
    }

    /// The control record shows that one of the renewals without an answer has succeeded: it counts as the first of them.
    /// The servers may take longer than an attempt waits, each time. Returns until when the node may acknowledge.
    pub fn found(&mut self) -> Instant {
        if let Some(sent) = self.first_sent.take() {
            self.renewed = sent;
        }
        self.until()
    }

    /// It is not known whether the renewal that was sent last has succeeded. The next one is due at `next`.
    pub fn unanswered(&mut self, next: Instant) {
        self.sent = None;
        self.next = self.next.min(next);
    }

    /// Until when the node may acknowledge.
    pub fn until(&self) -> Instant {
        self.renewed + LEASE
    }
}

/// A waiting node's view of the lease.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    revision: Option<u64>,
    unchanged_since: Option<Instant>,
    asked_at: Option<Instant>,
    answered_at: Option<Instant>,
    /// Until when it is the holder's turn, after a time without answers.
    not_before: Option<Instant>,
}

impl Watch {
    /// The control record is asked for now. That there is no answer changes nothing: a lease that could be renewed
    /// meanwhile has another revision, and is not taken.
    pub fn request_sent(&mut self, now: Instant) {
        let since_last = self.asked_at.map(|at| now.saturating_duration_since(at));
        if since_last.is_none_or(|gap| gap > LONGEST_GAP) {
            self.unchanged_since = None;
        }
        self.asked_at = Some(now);
    }

    /// The control record has this revision at `now`, when its answer arrived; `released`: its holder has given it
    /// back, or nobody has had it. Returns whether the lease may be taken, by replacing this revision.
    pub fn observe(&mut self, revision: u64, released: bool, now: Instant) -> bool {
        if self.revision != Some(revision) {
            self.unchanged_since = None;
        }
        self.revision = Some(revision);
        let since = *self.unchanged_since.get_or_insert(now);
        let answered = self.answered_at.replace(now);
        if answered.is_some_and(|at| now.saturating_duration_since(at) > LONGEST_GAP) {
            self.not_before = Some(now + UNANSWERED);
        }
        let unchanged = now.saturating_duration_since(since) >= EXPIRY;
        released || (unchanged && self.not_before.is_none_or(|at| now >= at))
    }

    /// Time for which the control record has had the revision that was seen last; `None` if that is not known.
    pub fn unchanged(&self, now: Instant) -> Option<Duration> {
        self.unchanged_since.map(|since| now.saturating_duration_since(since))
    }

    /// An attempt to take the lease has no answer.
    pub fn unanswered(&mut self, now: Instant) {
        self.asked_at = Some(now);
        self.unchanged_since = now.checked_sub(EXPIRY - UNANSWERED);
    }

    /// Another node was faster: the wait begins again.
    pub fn again(&mut self) {
        *self = Watch::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_lease_counts_from_when_its_renewal_was_sent() {
        let start = Instant::now();
        let mut holder = Holder::new(start);
        assert_eq!(holder.until(), start + LEASE);
        holder.send(start + SECOND);
        assert_eq!(holder.until(), start + LEASE, "not answered yet");
        // The answer takes two seconds; that changes nothing.
        assert_eq!(holder.renewed(), start + SECOND + LEASE);
        assert_eq!(holder.renewed(), start + SECOND + LEASE, "no renewal was sent since");
    }

    #[test]
    fn a_renewal_without_an_answer_is_none() {
        let start = Instant::now();
        let mut holder = Holder::new(start);
        holder.send(start + SECOND);
        holder.unanswered(start + SECOND + SECOND / 5);
        assert_eq!(holder.next_renewal(), start + SECOND + SECOND / 5);
        assert_eq!(holder.renewed(), start + LEASE, "an answer that comes too late");
    }

    #[test]
    fn a_renewal_that_is_found_later_counts_from_the_first_that_it_can_be() {
        let start = Instant::now();
        let mut holder = Holder::new(start);
        for attempt in [SECOND, 2 * SECOND] {
            holder.send(start + attempt);
            holder.unanswered(start + attempt);
        }
        assert_eq!(holder.found(), start + SECOND + LEASE);
        assert_eq!(holder.found(), start + SECOND + LEASE, "none was sent since");
        holder.send(start + 4 * SECOND);
        assert_eq!(holder.renewed(), start + 4 * SECOND + LEASE);
        assert_eq!(holder.found(), start + 4 * SECOND + LEASE, "the same one");
    }

    /// Looks, with an answer at once.
    fn look(watch: &mut Watch, revision: u64, now: Instant) -> bool {
        watch.request_sent(now);
        watch.observe(revision, false, now)
    }

    /// Seconds of looking once a second until the lease may be taken.
    fn free_after(watch: &mut Watch, start: Instant, revision: u64) -> Option<u32> {
        (0..60).find(|second| look(watch, revision, start + *second * SECOND))
    }

    #[test]
    fn a_lease_is_free_when_it_has_not_changed_for_four_seconds() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        assert_eq!(free_after(&mut watch, start, 7), Some(4));
        assert_eq!(free_after(&mut watch, start + 5 * SECOND, 8), Some(4), "it was renewed");
        assert!(watch.observe(9, true, start + 10 * SECOND), "released");
    }

    #[test]
    fn looks_without_an_answer_do_not_prolong_the_wait() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        assert!(!look(&mut watch, 7, start));
        (1..9).for_each(|second| watch.request_sent(start + second * SECOND));
        assert!(!look(&mut watch, 7, start + 9 * SECOND), "first its holder may renew it");
        assert!(look(&mut watch, 7, start + 10 * SECOND));
        watch.unanswered(start + 10 * SECOND);
        assert_eq!(free_after(&mut watch, start + 10 * SECOND, 7), Some(1));
    }

    #[test]
    fn a_node_that_was_paused_or_has_just_tried_waits_again() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        assert!(!look(&mut watch, 7, start));
        assert_eq!(free_after(&mut watch, start + 100 * SECOND, 7), Some(4));
        watch.again();
        assert_eq!(free_after(&mut watch, start + 105 * SECOND, 7), Some(4));
    }
}
