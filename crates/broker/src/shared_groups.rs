//! The shared subscriptions of one filter (MQTT 5.0 section 4.8.2), grouped by share name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use crate::session::Session;
use crate::subscribers::{Subscriber, Subscribers};

/// The members of one share name on one filter; one of them gets each message.
///
/// Members are added and removed in place, under a lock of their own: a route contains the group, not its members. This
/// lock is the innermost of all; no thread locks a session while it holds this one.
#[derive(Debug, Default)]
pub(crate) struct SharedGroup {
    /// [`crate::message::share`] of its name and filter.
    pub(crate) name: u32,
    members: RwLock<Subscribers>,
    next: AtomicUsize,
}

impl SharedGroup {
    pub(crate) fn len(&self) -> usize {
        self.members.read().as_slice().len()
    }

    pub(crate) fn members(&self) -> Vec<Subscriber> {
        self.members.read().as_slice().to_vec()
    }

    /// Members in the order in which they should be tried for the next message. Members added or removed meanwhile may
    /// be missed or returned twice.
    pub(crate) fn rotation(&self) -> impl Iterator<Item = Subscriber> {
        let count = self.members.read().as_slice().len();
        let start = self.next.fetch_add(1, Ordering::Relaxed) % count.max(1);
        let places = (start..count).chain(0..start);
        places.filter_map(|at| self.members.read().as_slice().get(at).cloned())
    }
}

/// The groups of one filter, by share name. One user may have ten thousand on one filter, and no choice of names makes an
/// ordered map slow.
#[derive(Debug, Default)]
pub(crate) struct SharedGroups(BTreeMap<Box<str>, Arc<SharedGroup>>);

impl SharedGroups {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends the groups to `out`.
    pub(crate) fn collect(&self, out: &mut Vec<Arc<SharedGroup>>) {
        out.extend(self.0.values().map(Arc::clone));
    }

    /// Adds a member to a group; returns whether it replaced the one of its session.
    pub(crate) fn add_member(&mut self, share: &str, name: u32, subscriber: Subscriber) -> bool {
        let new = || Arc::new(SharedGroup { name, ..SharedGroup::default() });
        let group = self.0.entry(share.into()).or_insert_with(new);
        group.members.write().add(subscriber)
    }

    /// Removes a session from a group, and the group with its last member; returns whether it was there.
    pub(crate) fn remove_member(&mut self, share: &str, session: &Session) -> bool {
        let Some(group) = self.0.get(share) else { return false };
        let mut members = group.members.write();
        let removed = members.remove(session);
        let empty = members.is_empty();
        drop(members);
        if empty {
            self.0.remove(share);
        }
        removed
    }
}
