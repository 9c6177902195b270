//! The subscribers of one filter: found by session in constant time however many there are, and
//! listed without gaps for callers that visit all of them.
//!
//! Nearly every filter has a few subscribers, so the list alone serves them; an index is made when
//! it has grown and dropped when it has shrunk.

use std::sync::Arc;

use fulmar_mqtt::QoS;
use rustc_hash::FxHashMap;

use crate::session::Session;
use crate::storage::{FlowId, SessionKey};

/// Subscribers from which on there is an index. Looking through fewer costs less than hashing.
const INDEX_FROM: usize = 32;

/// Subscribers below which the index goes; lower, so that one at the edge does not build it again
/// and again.
const INDEX_UNTIL: usize = 16;

/// One subscription as the router sees it.
#[derive(Clone, Debug)]
pub(crate) struct Subscriber {
    pub(crate) session: Arc<Session>,
    pub(crate) flow: FlowId,
    pub(crate) qos: QoS,
    pub(crate) no_local: bool,
    pub(crate) retain_as_published: bool,
    pub(crate) identifier: Option<u32>,
}

/// Subscribers, one per session, in no order.
#[derive(Debug, Default)]
pub(crate) struct Subscribers {
    list: Vec<Subscriber>,
    /// Places in the list, by session.
    index: Option<Box<FxHashMap<SessionKey, usize>>>,
}

impl Subscribers {
    pub(crate) fn as_slice(&self) -> &[Subscriber] {
        &self.list
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn place(&self, key: SessionKey) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(&key).copied(),
            None => self.list.iter().position(|subscriber| subscriber.session.key() == key),
        }
    }

    /// Adds a subscriber; returns whether it replaced the one of its session.
    pub(crate) fn add(&mut self, subscriber: Subscriber) -> bool {
        let key = subscriber.session.key();
        if let Some(at) = self.place(key) {
            self.list[at] = subscriber;
            return true;
        }
        self.list.push(subscriber);
        if let Some(index) = &mut self.index {
            index.insert(key, self.list.len() - 1);
        } else if self.list.len() >= INDEX_FROM {
            let places = self.list.iter().enumerate();
            let index = places.map(|(at, subscriber)| (subscriber.session.key(), at)).collect();
            self.index = Some(Box::new(index));
        }
        false
    }

    /// Removes a session's subscriber; returns whether there was one.
    pub(crate) fn remove(&mut self, session: &Session) -> bool {
        let Some(at) = self.place(session.key()) else { return false };
        self.list.swap_remove(at);
        if let Some(index) = &mut self.index {
            index.remove(&session.key());
            if let Some(moved) = self.list.get(at) {
                index.insert(moved.session.key(), at);
            }
        }
        if self.list.len() < INDEX_UNTIL {
            self.index = None;
        }
        // Frees the memory after many subscribers have gone.
        if self.list.len() < self.list.capacity() / 4 {
            self.list.shrink_to(self.list.len() * 2);
            if let Some(index) = &mut self.index {
                index.shrink_to_fit();
            }
        }
        true
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use fulmar_mqtt::QoS;
    use proptest::prelude::*;

    use super::*;
    use crate::limits::Limits;
    use crate::storage::FlowId;

    fn session(key: u64) -> Arc<Session> {
        Session::new(SessionKey(key), "c", &Limits::default())
    }

    fn subscriber(session: &Arc<Session>, identifier: u32) -> Subscriber {
        Subscriber {
            session: Arc::clone(session),
            flow: FlowId::CONTROL,
            qos: QoS::AtMostOnce,
            no_local: false,
            retain_as_published: false,
            identifier: Some(identifier),
        }
    }

    proptest! {
        /// Grows past the index and shrinks below it, always holding what a map would.
        #[test]
        fn it_holds_what_a_map_holds(
            steps in proptest::collection::vec((0usize..60, prop::bool::weighted(0.6)), 0..400),
        ) {
            let sessions: Vec<_> = (0..60).map(session).collect();
            let mut subscribers = Subscribers::default();
            let mut map = BTreeMap::new();
            for (number, (who, add)) in steps.into_iter().enumerate() {
                let number = number as u32;
                if add {
                    let replaced = subscribers.add(subscriber(&sessions[who], number));
                    prop_assert_eq!(replaced, map.insert(who as u64, number).is_some());
                } else {
                    let removed = subscribers.remove(&sessions[who]);
                    prop_assert_eq!(removed, map.remove(&(who as u64)).is_some());
                }
                let held = subscribers.as_slice().iter();
                let held: BTreeMap<u64, u32> =
                    held.map(|one| (one.session.key().0, one.identifier.unwrap())).collect();
                prop_assert_eq!(&held, &map);
                prop_assert_eq!(subscribers.as_slice().len(), map.len());
            }
        }
    }

    /// The index exists exactly while there are many subscribers. Checked instead of measuring that none is searched
    /// for.
    #[test]
    fn a_crowd_on_one_filter_is_indexed_and_leaves_nothing_behind() {
        let sessions: Vec<_> = (0..2_000).map(session).collect();
        let mut subscribers = Subscribers::default();
        for session in &sessions {
            assert!(!subscribers.add(subscriber(session, 1)));
            assert_eq!(subscribers.index.is_some(), subscribers.list.len() >= INDEX_FROM);
        }
        for session in &sessions {
            assert!(subscribers.remove(session));
            assert_eq!(subscribers.index.is_some(), subscribers.list.len() >= INDEX_UNTIL);
        }
        assert!(subscribers.is_empty());
        assert!(subscribers.list.capacity() < 64, "{}", subscribers.list.capacity());
    }
}
