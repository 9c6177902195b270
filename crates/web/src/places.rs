//! Places of connections: as many as the limit allows, and above it the one that is worth least makes room.
//!
//! A connection is worth something while it has a request that is there whole, or carries MQTT. One that has not
//! yet said what it wants, or wants nothing more, gives its place to a new one: of the network that has most
//! connections the oldest. Who opens connections and says nothing loses them to those who ask.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::idle::Tunnels;
use crate::network;

/// All places.
#[derive(Clone, Debug)]
pub(crate) struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    len: usize,
    /// By network and age.
    networks: HashMap<IpAddr, BTreeMap<u64, Seat>>,
}

/// What is known of a connection by its requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seat {
    /// Requests that are there whole and not yet answered.
    busy: Arc<AtomicUsize>,
    /// MQTT connections inside this one.
    pub(crate) tunnels: Tunnels,
    shed: Arc<Notify>,
}

/// A connection's place, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Place {
    places: Places,
    network: IpAddr,
    number: u64,
    pub(crate) seat: Seat,
}

/// A request is there whole; until this is dropped.
#[derive(Debug)]
pub(crate) struct Busy(Seat);

impl Seat {
    /// A request of this connection is there whole.
    pub(crate) fn busy(&self) -> Busy {
        self.busy.fetch_add(1, Relaxed);
        Busy(self.clone())
    }

    fn may_go(&self) -> bool {
        self.busy.load(Relaxed) == 0 && !self.tunnels.any()
    }

    /// Returns when the connection has to make room.
    pub(crate) async fn shed(&self) {
        self.shed.notified().await;
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Relaxed);
    }
}

impl Places {
    /// So many.
    pub(crate) fn new(most: usize) -> Places {
        Places(Arc::new(Shared { most, taken: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one would have to make room.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().len >= self.0.most
    }

    /// A place for a connection from there, and whether another one had to go for it; `None` if all are worth
    /// more.
    pub(crate) fn take(&self, address: IpAddr) -> Option<(Place, bool)> {
        let (mut taken, network) = (self.lock(), network(address));
        let full = taken.len >= self.0.most;
        if full && !taken.shed() {
            return None;
        }
        let (number, seat) = (taken.next, Seat::default());
        taken.next += 1;
        taken.len += 1;
        taken.networks.entry(network).or_default().insert(number, seat.clone());
        Some((Place { places: self.clone(), network, number, seat }, full))
    }

    /// Has a connection make room, as when file descriptors are short; whether there was one.
    pub(crate) fn shed(&self) -> bool {
        self.lock().shed()
    }
}

impl Taken {
    fn shed(&mut self) -> bool {
        let idle = |seats: &BTreeMap<u64, Seat>| {
            seats.iter().find(|(_, seat)| seat.may_go()).map(|(number, _)| *number)
        };
        let most = self.networks.iter().max_by_key(|(_, seats)| seats.len());
        let first = most.and_then(|(network, seats)| Some((*network, idle(seats)?)));
        let oldest = || {
            let all = self.networks.iter();
            all.filter_map(|(network, seats)| Some((*network, idle(seats)?)))
                .min_by_key(|(_, n)| *n)
        };
        let Some((network, number)) = first.or_else(oldest) else { return false };
        if let Some(seat) = self.remove(network, number) {
            seat.shed.notify_one();
        }
        true
    }

    fn remove(&mut self, network: IpAddr, number: u64) -> Option<Seat> {
        let seats = self.networks.get_mut(&network)?;
        let seat = seats.remove(&number)?;
        if seats.is_empty() {
            self.networks.remove(&network);
        }
        self.len -= 1;
        Some(seat)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().remove(self.network, self.number);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn is_shed(place: &Place) -> bool {
        !place
            .places
            .lock()
            .networks
            .get(&place.network)
            .is_some_and(|seats| seats.contains_key(&place.number))
    }

    #[test]
    fn the_oldest_silent_one_of_the_largest_network_makes_room() {
        let places = Places::new(4);
        let take = |last| places.take(address(last)).unwrap().0;
        let (alone, busy, oldest, newest) = (take(1), take(2), take(2), take(2));
        let asks = busy.seat.busy();
        let (_new, shed) = places.take(address(3)).unwrap();
        assert!(shed && is_shed(&oldest));
        assert!(![&alone, &busy, &newest].into_iter().any(is_shed));
        drop(asks);
        let _newer = take(3);
        assert!(is_shed(&busy), "what it asked for is answered");
        drop((oldest, newest));
        assert_eq!(places.lock().len, 3);
    }

    #[test]
    fn requests_and_mqtt_keep_their_places() {
        let places = Places::new(2);
        let (first, _) = places.take(address(1)).unwrap();
        let (second, _) = places.take(address(1)).unwrap();
        let _asks = first.seat.busy();
        let tunnel = second.seat.tunnels.open();
        assert!(places.take(address(2)).is_none());
        drop(tunnel);
        assert!(places.take(address(2)).is_some());
        assert!(is_shed(&second));
    }
}
