//! Which connections stay when there are more than the limit: each holds a slot, and an idle one gives way to a new one.
//!
//! While the process' memory is short, idle connections are closed likewise ([`ConnectionSlots::shed_for_memory`]): what
//! HTTP/2 and HTTP/3 keep for responses that are not taken is not counted.
//!
//! A connection keeps its slot while it has a complete request or carries MQTT. One without a complete request, or
//! whose requests are all answered, is idle. Of the network with most connections, the oldest idle one is closed:
//! clients that open connections and send nothing lose them to clients that send requests.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fulmar_broker::MemoryPressure;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use crate::idle::Tunnels;
use fulmar_text::network::site as network;

/// At each look while memory is short, one in this many connections is closed, and a larger part when more is taken; but
/// at most this many, for each is looked for among all.
const PART: usize = 8;
const PART_WHEN_RISING: usize = 4;
const MOST_AT_ONCE: usize = 500;

/// Fewer connections than these are not the reason.
const SPARED: usize = 32;

/// A connection whose client has taken some of a response within this time is closed last.
const TAKES_WITHIN: Duration = Duration::from_secs(2);

/// Large parts of responses per connection that may wait for the client ([`crate::unread_response`]).
const LARGE_PARTS: usize = 8;

/// The slots of all connections.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionSlots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    taken: Mutex<UsedSlots>,
}

#[derive(Debug, Default)]
struct UsedSlots {
    next: u64,
    len: usize,
    /// By network and age.
    networks: HashMap<IpAddr, BTreeMap<u64, Activity>>,
}

fulmar_text::with_defaults! {
    /// Activity of a connection, which decides whether it may be closed to make room.
    #[derive(Clone, Debug)]
    pub(crate) struct Activity {
        /// Requests that are complete and not yet answered.
        busy: Arc<AtomicUsize> = Arc::default(),
        /// MQTT connections inside this one.
        pub(crate) tunnels: Tunnels = Tunnels::default(),
        shed: Arc<Notify> = Arc::default(),
        /// For each part of a response that waits for the client, if it is a large one.
        pub(crate) large_parts: Arc<Semaphore> = Arc::new(Semaphore::new(LARGE_PARTS)),
        opened: Instant = Instant::now(),
        /// When the client took some of a response, in ms since it was opened; 0 for never.
        taken_at: Arc<AtomicU64> = Arc::default(),
    }
}

/// A connection's slot, for as long as it lives.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    slots: ConnectionSlots,
    network: IpAddr,
    number: u64,
    pub(crate) activity: Activity,
}

/// A request is complete and not yet answered, until this is dropped.
#[derive(Debug)]
pub(crate) struct Busy(Activity);

impl Activity {
    /// A request of this connection is complete.
    pub(crate) fn busy(&self) -> Busy {
        self.busy.fetch_add(1, Relaxed);
        Busy(self.clone())
    }

    /// The client takes some of a response.
    pub(crate) fn takes(&self) {
        let at = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.taken_at.store(at.max(1), Relaxed);
    }

    fn has_just_taken(&self) -> bool {
        let at = self.taken_at.load(Relaxed);
        at > 0 && self.opened.elapsed() < Duration::from_millis(at) + TAKES_WITHIN
    }

    fn may_go(&self) -> bool {
        self.busy.load(Relaxed) == 0 && !self.tunnels.is_open()
    }

    /// Returns when the connection is to close, to make room.
    pub(crate) async fn shed(&self) {
        self.shed.notified().await;
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Relaxed);
    }
}

impl ConnectionSlots {
    /// Slots for `most` connections.
    pub(crate) fn new(most: usize) -> ConnectionSlots {
        ConnectionSlots(Arc::new(Shared { most, taken: Mutex::default() }))
    }

    /// Whether a new connection requires another to be closed.
    pub(crate) fn is_full(&self) -> bool {
        self.0.taken.lock().len >= self.0.most
    }

    /// A slot for a connection from `address`, and whether another one is closed for it; `None` if none is
    /// idle.
    pub(crate) fn acquire(&self, address: IpAddr) -> Option<(ConnectionSlot, bool)> {
        let (mut taken, network) = (self.0.taken.lock(), network(address));
        let full = taken.len >= self.0.most;
        if full && !taken.shed(Activity::may_go) {
            return None;
        }
        let (number, activity) = (taken.next, Activity::default());
        taken.next += 1;
        taken.len += 1;
        taken.networks.entry(network).or_default().insert(number, activity.clone());
        Some((ConnectionSlot { slots: self.clone(), network, number, activity }, full))
    }

    /// Closes an idle connection, as when file descriptors are short; returns whether there was one.
    pub(crate) fn shed(&self) -> bool {
        self.0.taken.lock().shed(Activity::may_go)
    }

    /// Closes some of many idle connections, because memory is short; returns how many.
    pub(crate) fn shed_for_memory(&self, pressure: MemoryPressure) -> usize {
        let mut taken = self.0.taken.lock();
        let part = match pressure {
            MemoryPressure::None => return 0,
            MemoryPressure::High => PART,
            MemoryPressure::Rising => PART_WHEN_RISING,
        };
        let most = (taken.len / part).min(taken.len.saturating_sub(SPARED)).min(MOST_AT_ONCE);
        let quiet = |activity: &Activity| activity.may_go() && !activity.has_just_taken();
        let closed = (0..most).take_while(|_| taken.shed(quiet)).count();
        let left = if pressure == MemoryPressure::Rising { most - closed } else { 0 };
        closed + (0..left).take_while(|_| taken.shed(Activity::may_go)).count()
    }
}

impl UsedSlots {
    /// Closes one of those that `may_go`.
    fn shed(&mut self, may_go: impl Fn(&Activity) -> bool) -> bool {
        let idle = |connections: &BTreeMap<u64, Activity>| {
            connections.iter().find(|(_, activity)| may_go(activity)).map(|(number, _)| *number)
        };
        let most = self.networks.iter().max_by_key(|(_, connections)| connections.len());
        let first = most.and_then(|(network, connections)| Some((*network, idle(connections)?)));
        let oldest = || {
            let all = self.networks.iter();
            all.filter_map(|(network, connections)| Some((*network, idle(connections)?)))
                .min_by_key(|(_, n)| *n)
        };
        let Some((network, number)) = first.or_else(oldest) else { return false };
        if let Some(activity) = self.remove(network, number) {
            activity.shed.notify_one();
        }
        true
    }

    fn remove(&mut self, network: IpAddr, number: u64) -> Option<Activity> {
        let connections = self.networks.get_mut(&network)?;
        let activity = connections.remove(&number)?;
        if connections.is_empty() {
            self.networks.remove(&network);
        }
        self.len -= 1;
        Some(activity)
    }
}

impl ConnectionSlot {
    /// The connection's client has this address, not that of its proxy.
    pub(crate) fn is_of(&mut self, address: IpAddr) {
        let slots = self.slots.clone();
        let mut taken = slots.0.taken.lock();
        // One that has just been closed to make room has no slot any more.
        if taken.remove(self.network, self.number).is_some() {
            self.network = network(address);
            let connections = taken.networks.entry(self.network).or_default();
            connections.insert(self.number, self.activity.clone());
            taken.len += 1;
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.0.taken.lock().remove(self.network, self.number);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn is_shed(slot: &ConnectionSlot) -> bool {
        !slot
            .slots
            .0
            .taken
            .lock()
            .networks
            .get(&slot.network)
            .is_some_and(|connections| connections.contains_key(&slot.number))
    }

    #[test]
    fn the_oldest_silent_one_of_the_largest_network_makes_room() {
        let slots = ConnectionSlots::new(4);
        let take = |last| slots.acquire(address(last)).unwrap().0;
        let (alone, busy, oldest, newest) = (take(1), take(2), take(2), take(2));
        let asks = busy.activity.busy();
        let (_new, shed) = slots.acquire(address(3)).unwrap();
        assert!(shed && is_shed(&oldest));
        assert!(![&alone, &busy, &newest].into_iter().any(is_shed));
        drop(asks);
        let _newer = take(3);
        assert!(is_shed(&busy), "what it asked for is answered");
        drop((oldest, newest));
        assert_eq!(slots.0.taken.lock().len, 3);
    }

    #[test]
    fn while_memory_is_short_many_idle_connections_become_few() {
        let slots = ConnectionSlots::new(1000);
        let honest = slots.acquire(address(1)).unwrap().0;
        let crowd: Vec<_> = (0..400).map(|_| slots.acquire(address(2)).unwrap().0).collect();
        let _asks = crowd[0].activity.busy();
        assert_eq!(slots.shed_for_memory(MemoryPressure::None), 0);
        assert_eq!(slots.shed_for_memory(MemoryPressure::High), 50);
        assert_eq!(slots.shed_for_memory(MemoryPressure::Rising), 87);
        assert!(is_shed(&crowd[1]) && !is_shed(&crowd[0]) && !is_shed(&honest));
        // Whose client takes a response goes last.
        crowd[200].activity.takes();
        while slots.shed_for_memory(MemoryPressure::High) > 0 {}
        assert_eq!(slots.0.taken.lock().len, SPARED);
        assert!(is_shed(&crowd[201]) && !is_shed(&crowd[200]));
        assert!(!is_shed(&crowd[0]) && !is_shed(&honest));
    }

    #[test]
    fn clients_behind_a_proxy_are_told_apart() {
        let slots = ConnectionSlots::new(3);
        let take = |last| {
            let mut slot = slots.acquire(address(1)).unwrap().0;
            slot.is_of(address(last));
            slot
        };
        let (alone, oldest, newest) = (take(2), take(3), take(3));
        let (mut new, shed) = slots.acquire(address(1)).unwrap();
        assert!(shed && is_shed(&oldest) && !is_shed(&alone) && !is_shed(&newest));
        assert!(slots.shed() && slots.shed() && slots.shed());
        new.is_of(address(4));
        assert!(is_shed(&new), "it has been closed to make room");
        drop((alone, oldest, newest, new));
        assert_eq!(slots.0.taken.lock().len, 0);
    }

    #[test]
    fn requests_and_mqtt_keep_their_slots() {
        let slots = ConnectionSlots::new(2);
        let (first, _) = slots.acquire(address(1)).unwrap();
        let (second, _) = slots.acquire(address(1)).unwrap();
        let _asks = first.activity.busy();
        let tunnel = second.activity.tunnels.open();
        assert!(slots.acquire(address(2)).is_none());
        drop(tunnel);
        assert!(slots.acquire(address(2)).is_some());
        assert!(is_shed(&second));
    }
}
