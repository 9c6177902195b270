//! The lease: which node serves. The node that has it renews it each second, and acknowledges nothing when that has
//! not succeeded for three; the others watch it, each by its own clock, and try to get it when it has not changed for four.
//!
//! The lease decides which node tries. Whether a node may write is decided by the log alone: its claim, and every record
//! behind it, are appended by compare-and-swap.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fulmar_cluster::{Holder, LEASE, RENEW};
use fulmar_cluster_nats::{AppendError, Control, Entry};
use fulmar_store::Lease as MayAcknowledge;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use fulmar_part::cluster_status::ClusterStatus;
use fulmar_part::thread::Thread;

/// The record.
const KEY: &str = "lease";
/// After a renewal without an answer.
const RENEW_AGAIN: Duration = Duration::from_millis(200);

/// Contents of the record.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Lease {
    /// The node's name.
    pub(super) node: String,
    /// Where clients reach it; empty if that is not configured.
    pub(super) address: String,
    /// Where clients reach it by each transport, as URLs; none from older versions.
    #[serde(default)]
    pub(super) addresses: Vec<String>,
    /// The process of that node.
    pub(super) incarnation: u64,
    /// Counts the renewals, so that each changes the record.
    pub(super) renewal: u64,
    /// Whether the node has stopped in order.
    pub(super) released: bool,
}

impl Lease {
    fn parse(entry: &Entry) -> Lease {
        serde_json::from_slice(&entry.value).unwrap_or_default()
    }

    fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The node with its address, for people.
    pub(super) fn shown(&self) -> String {
        match self.address.as_str() {
            "" => self.node.clone(),
            address => format!("{} at {address}", self.node),
        }
    }
}

/// The lease now, for `fulmar cluster status`.
pub(super) fn current(control: &Control) -> Result<Option<Lease>, fulmar_cluster_nats::Error> {
    Ok(control.get(KEY)?.map(|entry| Lease::parse(&entry)))
}

/// A stand-by's view of the lease.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// This process, whose own attempt may have succeeded without an answer.
    own: u64,
    seen: Option<Lease>,
    watch: fulmar_cluster::Watch,
}

impl Watch {
    /// For this process, which does not serve.
    pub(super) fn new(incarnation: u64) -> Watch {
        Watch { own: incarnation, ..Watch::default() }
    }

    /// The node that serves, as far as is known.
    pub(super) fn holder(&self) -> Option<&Lease> {
        self.seen.as_ref().filter(|lease| !lease.released)
    }

    /// Whether this node had the lease last.
    pub(super) fn was_last_of(&self, node: &str) -> bool {
        self.seen.as_ref().is_some_and(|lease| lease.node == node)
    }

    /// The node that serves, if it has renewed the lease lately enough to acknowledge anything.
    pub(super) fn serves(&self, now: Instant) -> Option<&Lease> {
        let unchanged = self.watch.unchanged(now)?;
        self.holder().filter(|_| unchanged < LEASE)
    }

    /// Reads the record, and returns the revision at which the lease may be taken, if it is free.
    pub(super) fn read_record(
        &mut self,
        control: &Control,
    ) -> Result<Option<u64>, fulmar_cluster_nats::Error> {
        self.watch.request_sent(Instant::now());
        let entry = control.get(KEY)?;
        Ok(self.observe(entry.as_ref(), Instant::now()))
    }

    fn observe(&mut self, entry: Option<&Entry>, now: Instant) -> Option<u64> {
        let revision = entry.map_or(0, |entry| entry.revision);
        let lease = entry.map(Lease::parse).unwrap_or_default();
        let own = self.own != 0 && lease.incarnation == self.own;
        let released = entry.is_none() || lease.released || own;
        self.seen = Some(lease);
        self.watch.observe(revision, released, now).then_some(revision)
    }

    /// NATS has not answered an attempt to get the lease.
    pub(super) fn unanswered(&mut self) {
        self.watch.unanswered(Instant::now());
    }

    /// Another node has got the lease, or may have: it gets as much time again.
    pub(super) fn again(&mut self) {
        self.watch.again();
    }
}

/// Why a node has the lease no more.
pub(super) type LossReason = Arc<Mutex<Option<String>>>;

/// Renews the lease, on a thread of its own, until it is dropped or the lease is lost.
pub(super) struct Keeper {
    lost: LossReason,
    thread: Option<Thread>,
    state: Arc<Mutex<(Lease, u64)>>,
    control: Control,
    renewed: Arc<AtomicBool>,
    lasts: Arc<MayAcknowledge>,
}

impl Keeper {
    /// Takes the lease that is at `revision`. `None` if another node was faster.
    ///
    /// # Errors
    /// No answer; it is not known whether this node has it now.
    pub(super) fn acquire(
        control: &Control,
        mut lease: Lease,
        revision: u64,
        status: &Arc<ClusterStatus>,
    ) -> anyhow::Result<Option<Keeper>> {
        lease.renewal = 0;
        lease.released = false;
        let (sent, lasts) = (Instant::now(), Arc::new(MayAcknowledge::new()));
        let revision = match control.swap(KEY, &lease.bytes(), revision) {
            Ok(revision) => revision,
            Err(AppendError::Refused(_) | AppendError::Displaced(_)) => return Ok(None),
            Err(AppendError::Unknown(error)) => anyhow::bail!(error),
        };
        lasts.extend(sent + LEASE);
        status.renewed(sent + LEASE);
        let state = Arc::new(Mutex::new((lease, revision)));
        let lost = LossReason::default();
        let renewed = Arc::new(AtomicBool::new(true));
        let mut renewal = Renewal {
            control: control.clone(),
            state: Arc::clone(&state),
            lost: Arc::clone(&lost),
            renewed: Arc::clone(&renewed),
            lasts: Arc::clone(&lasts),
            status: Arc::clone(status),
            holder: Holder::new(sent),
        };
        let thread = Thread::blocking("fulmar-lease", move |stopped| {
            let mut pause = RENEW;
            while stopped.pause(pause) {
                match renewal.renew() {
                    Some(next) => pause = next,
                    None => return,
                }
            }
        })?;
        let (thread, control) = (Some(thread), control.clone());
        Ok(Some(Keeper { lost, thread, state, control, renewed, lasts }))
    }

    /// Why this node does not have the lease any more.
    pub(super) fn lost(&self) -> Option<String> {
        self.lost.lock().clone()
    }

    /// The same, for those that answer with it.
    pub(super) fn reason(&self) -> LossReason {
        Arc::clone(&self.lost)
    }

    /// Until when this node may acknowledge, for the store.
    pub(super) fn lasts(&self) -> Arc<MayAcknowledge> {
        Arc::clone(&self.lasts)
    }

    /// Whether the last renewal was answered.
    pub(super) fn is_renewed(&self) -> bool {
        self.renewed.load(Ordering::Relaxed)
    }

    /// Gives the lease back, so that another node need not wait.
    pub(super) fn release(mut self) {
        self.end();
        let (mut lease, revision) = self.state.lock().clone();
        lease.released = true;
        // If that fails, the others wait until it has not changed for some seconds.
        if let Err(error) = self.control.swap(KEY, &lease.bytes(), revision) {
            tracing::warn!(%error, "lease not released");
        }
    }

    fn end(&mut self) {
        self.lasts.end();
        drop(self.thread.take());
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}

struct Renewal {
    control: Control,
    state: Arc<Mutex<(Lease, u64)>>,
    lost: LossReason,
    renewed: Arc<AtomicBool>,
    lasts: Arc<MayAcknowledge>,
    status: Arc<ClusterStatus>,
    holder: Holder,
}

impl Renewal {
    /// Once. Returns the pause until the next one, or `None` if the lease is lost.
    fn renew(&mut self) -> Option<Duration> {
        let (mut lease, revision) = self.state.lock().clone();
        lease.renewal += 1;
        self.holder.send(Instant::now());
        match self.control.swap(KEY, &lease.bytes(), revision) {
            Ok(revision) => {
                let until = self.holder.renewed();
                self.succeeded(lease, revision, until);
                return Some(RENEW);
            }
            Err(AppendError::Unknown(error)) => {
                self.status.not_renewed();
                if self.renewed.swap(false, Ordering::Relaxed) {
                    tracing::warn!(error, "lease not renewed; trying again");
                }
                return Some(RENEW_AGAIN);
            }
            // Perhaps by this node: an earlier attempt whose answer was lost or late.
            Err(AppendError::Refused(_) | AppendError::Displaced(_)) => {}
        }
        let Ok(entry) = self.control.get(KEY) else { return Some(RENEW_AGAIN) };
        let found = entry.as_ref().map(Lease::parse).unwrap_or_default();
        let newest = entry.map_or(0, |entry| entry.revision);
        if newest <= revision {
            return Some(RENEW_AGAIN);
        }
        if found.incarnation == lease.incarnation && found.node == lease.node {
            let until = self.holder.found();
            self.succeeded(found, newest, until);
            return Some(RENEW_AGAIN);
        }
        self.lasts.end();
        *self.lost.lock() = Some(format!("{} serves", found.shown()));
        None
    }

    /// This is the record now, and the node may acknowledge until then.
    fn succeeded(&self, lease: Lease, revision: u64, until: Instant) {
        *self.state.lock() = (lease, revision);
        self.lasts.extend(until);
        self.status.renewed(until);
        // Found so late that it is over: not yet.
        if until > Instant::now() {
            self.renewed.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entry(revision: u64, released: bool) -> Entry {
        let lease = Lease { node: "a".into(), released, ..Lease::default() };
        Entry { revision, value: lease.bytes().into() }
    }

    #[test]
    fn a_node_serves_until_it_has_not_renewed_the_lease_for_three_seconds() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        assert_eq!(watch.serves(start), None);
        let at = |seconds| start + Duration::from_secs(seconds);
        for (second, serves) in [(0, true), (2, true), (3, false)] {
            watch.observe(Some(&entry(7, false)), at(second));
            assert_eq!(watch.serves(at(second)).is_some(), serves, "{second}");
        }
        watch.observe(Some(&entry(8, false)), at(4));
        assert!(watch.serves(at(4)).is_some(), "renewed");
        assert!(watch.serves(at(7)).is_none(), "nobody can be asked");
        watch.observe(Some(&entry(9, true)), at(7));
        assert_eq!(watch.serves(at(7)), None, "released");
    }

    #[test]
    fn a_missing_or_released_lease_is_free_at_once() {
        let (mut watch, now) = (Watch::default(), Instant::now());
        assert_eq!(watch.observe(None, now), Some(0));
        assert_eq!(watch.observe(Some(&entry(9, true)), now), Some(9));
        assert_eq!(watch.holder(), None);
    }

    #[test]
    fn a_lease_that_this_process_got_without_an_answer_is_free_at_once() {
        let lease = Lease { node: "a".into(), incarnation: 7, ..Lease::default() };
        let entry = Entry { revision: 3, value: lease.bytes().into() };
        assert_eq!(Watch::new(7).observe(Some(&entry), Instant::now()), Some(3));
        assert_eq!(Watch::new(8).observe(Some(&entry), Instant::now()), None);
    }

    #[test]
    fn the_revision_at_which_it_may_be_taken_is_the_one_seen_last() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        for second in 0..fulmar_cluster::EXPIRY.as_secs() {
            let at = start + Duration::from_secs(second);
            assert_eq!(watch.observe(Some(&entry(7, false)), at), None, "{second}");
        }
        assert_eq!(watch.holder().unwrap().node, "a");
        let later = start + fulmar_cluster::EXPIRY;
        assert_eq!(watch.observe(Some(&entry(7, false)), later), Some(7));
    }
}
