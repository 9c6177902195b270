//! The shared subscriptions of one filter (MQTT 5.0 section 4.8.2), grouped by share name.
//!
//! Nearly every filter has a few share names, so a list serves them. One user may have ten thousand on one filter: from
//! some number on, they are a map. It is ordered, so that no choice of names makes it slow.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use crate::session::Session;
use crate::subscribers::{Subscriber, Subscribers};

/// Groups from which on they are a map.
const MAP_FROM: usize = 32;

/// Groups below which they are a list again; lower, so that one at the edge does not convert them again and again.
const MAP_UNTIL: usize = 16;

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

/// The groups of one filter, in no order.
#[derive(Debug)]
pub(crate) enum SharedGroups {
    Few(Vec<(Box<str>, Arc<SharedGroup>)>),
    Many(BTreeMap<Box<str>, Arc<SharedGroup>>),
}

impl Default for SharedGroups {
    fn default() -> Self {
        SharedGroups::Few(Vec::new())
    }
}

impl SharedGroups {
    pub(crate) fn is_empty(&self) -> bool {
        // Never an empty map.
        matches!(self, SharedGroups::Few(list) if list.is_empty())
    }

    /// Appends the groups to `out`.
    pub(crate) fn collect(&self, out: &mut Vec<Arc<SharedGroup>>) {
        match self {
            SharedGroups::Few(list) => out.extend(list.iter().map(|(_, group)| Arc::clone(group))),
            SharedGroups::Many(map) => out.extend(map.values().map(Arc::clone)),
        }
    }

    fn get(&self, share: &str) -> Option<&Arc<SharedGroup>> {
        match self {
            SharedGroups::Few(list) => {
                list.iter().find(|(name, _)| **name == *share).map(|(_, group)| group)
            }
            SharedGroups::Many(map) => map.get(share),
        }
    }

    /// Adds a member to a group; returns whether it replaced the one of its session.
    pub(crate) fn put(&mut self, share: &str, name: u32, subscriber: Subscriber) -> bool {
        if let Some(group) = self.get(share) {
            return group.members.write().put(subscriber);
        }
        let group = SharedGroup { name, ..SharedGroup::default() };
        group.members.write().put(subscriber);
        let (name, group) = (Box::from(share), Arc::new(group));
        match self {
            SharedGroups::Few(list) if list.len() + 1 < MAP_FROM => list.push((name, group)),
            SharedGroups::Few(list) => {
                let others = std::mem::take(list).into_iter();
                *self = SharedGroups::Many(others.chain([(name, group)]).collect());
            }
            SharedGroups::Many(map) => {
                map.insert(name, group);
            }
        }
        false
    }

    /// Removes a session from a group, and the group with its last member; returns whether it was there.
    pub(crate) fn take(&mut self, share: &str, session: &Session) -> bool {
        let Some(group) = self.get(share) else { return false };
        let mut members = group.members.write();
        let removed = members.take(session);
        let empty = members.is_empty();
        drop(members);
        if empty {
            self.remove(share);
        }
        removed
    }

    fn remove(&mut self, share: &str) {
        match self {
            SharedGroups::Few(list) => list.retain(|(name, _)| **name != *share),
            SharedGroups::Many(map) => {
                map.remove(share);
                if map.len() < MAP_UNTIL {
                    *self = SharedGroups::Few(std::mem::take(map).into_iter().collect());
                }
            }
        }
    }

    /// Whether they are a map.
    #[cfg(test)]
    pub(crate) fn is_indexed(&self) -> bool {
        matches!(self, SharedGroups::Many(_))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use fulmar_mqtt::QoS;
    use proptest::prelude::*;

    use super::*;
    use crate::limits::Limits;
    use crate::storage::{FlowId, SessionKey};

    proptest! {
        /// Grows into a map and shrinks to a list again, always holding what a map of numbers would.
        #[test]
        fn they_hold_what_a_map_holds(
            steps in proptest::collection::vec((0u32..60, prop::bool::weighted(0.6)), 0..400),
        ) {
            let session = Session::new(SessionKey(1), "c", &Limits::default());
            let mut groups = SharedGroups::default();
            let mut map = BTreeMap::new();
            for (step, (number, add)) in steps.into_iter().enumerate() {
                let (name, step) = (format!("group {number}"), step as u32);
                if add {
                    let subscriber = Subscriber {
                        session: Arc::clone(&session),
                        flow: FlowId::CONTROL,
                        qos: QoS::AtMostOnce,
                        no_local: false,
                        retain_as_published: false,
                        identifier: Some(step),
                    };
                    prop_assert_eq!(groups.put(&name, number, subscriber), map.insert(number, step).is_some());
                } else {
                    prop_assert_eq!(groups.take(&name, &session), map.remove(&number).is_some());
                }
                let mut held = Vec::new();
                groups.collect(&mut held);
                let mut held: Vec<u32> =
                    held.iter().map(|group| group.members()[0].identifier.unwrap()).collect();
                held.sort_unstable();
                let mut expected: Vec<u32> = map.values().copied().collect();
                expected.sort_unstable();
                prop_assert_eq!(held, expected);
                prop_assert_eq!(groups.is_empty(), map.is_empty());
                let lengths = if groups.is_indexed() { MAP_UNTIL..usize::MAX } else { 0..MAP_FROM };
                prop_assert!(lengths.contains(&map.len()));
            }
        }
    }
}
