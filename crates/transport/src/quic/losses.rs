//! What the paths to clients lost, by the networks of the clients: a client that returns need not lose packets first to
//! get copies (`copies.rs`). How long they are is kept with it, for the first timer of a handshake (`initial_rtt.rs`):
//! where nothing is lost, it has nothing to do.
//!
//! Only what connections with a validated address have seen is kept, for an hour. The workers of a listener share it,
//! because a client's next connection may belong to any of them. While nobody loses packets, it costs a new connection
//! one load.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fulmar_text::network::site;
use parking_lot::Mutex;

/// Networks remembered, at most; beyond that, the one of which nothing was learned for longest is forgotten.
const MAX_NETWORKS: usize = 1024;
/// How long what was learned is used.
const BELIEVED: Duration = Duration::from_secs(3600);
/// Less than this share of its packets is not worth remembering.
const LEAST: f64 = 0.02;

/// What networks of clients lose. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Losses(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    networks: Mutex<HashMap<IpAddr, (Known, Instant)>>,
    /// How many there are, to be read without the lock.
    count: AtomicUsize,
}

/// What the last connection from a network found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Known {
    /// The share of packets that were lost.
    pub(super) share: f64,
    pub(super) round_trip: Duration,
}

impl Losses {
    /// What a connection from this address is to expect.
    pub(super) fn of(&self, address: IpAddr, now: Instant) -> Option<Known> {
        if self.0.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let kept = self.0.networks.lock().get(&site(address)).copied();
        kept.filter(|(_, at)| !is_old(*at, now)).map(|(known, _)| known)
    }

    /// Keeps what a connection has found.
    pub(super) fn keep(&self, address: IpAddr, known: Known, now: Instant) {
        let mut networks = self.0.networks.lock();
        if known.share < LEAST {
            networks.remove(&site(address));
        } else {
            let site = site(address);
            if networks.len() >= MAX_NETWORKS && !networks.contains_key(&site) {
                let oldest = networks.iter().min_by_key(|(_, (_, at))| *at).map(|(site, _)| *site);
                oldest.and_then(|oldest| networks.remove(&oldest));
            }
            networks.insert(site, (known, now));
        }
        self.0.count.store(networks.len(), Ordering::Relaxed);
    }
}

fn is_old(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) > BELIEVED
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn known(share: f64) -> Known {
        Known { share, round_trip: Duration::from_millis(70) }
    }

    #[test]
    fn losses_of_a_network_are_remembered_for_an_hour() {
        let (losses, now) = (Losses::default(), Instant::now());
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        losses.keep(address("2001:db8::1"), known(0.2), now);
        assert_eq!(losses.of(address("2001:db8::2"), now + BELIEVED), Some(known(0.2)));
        assert_eq!(losses.of(address("2001:db8:0:1::1"), now), None);
        assert_eq!(losses.of(address("2001:db8::1"), now + 2 * BELIEVED), None);
        losses.clone().keep(address("2001:db8::3"), known(0.01), now);
        assert_eq!(losses.of(address("2001:db8::1"), now), None);
    }

    #[test]
    fn many_networks_do_not_fill_the_memory() {
        let (losses, now) = (Losses::default(), Instant::now());
        let address = |number: u32| IpAddr::from(number.to_be_bytes());
        let at = |number: u32| now + Duration::from_millis(number.into());
        let most = MAX_NETWORKS as u32;
        for number in 0..most {
            losses.keep(address(number), known(0.1), at(number));
        }
        // The first is stored again, then others follow.
        losses.keep(address(0), known(0.2), at(most));
        for number in most..most + 10 {
            losses.keep(address(number), known(0.1), at(number + 1));
        }
        assert_eq!(losses.0.networks.lock().len(), MAX_NETWORKS);
        let share = |number| losses.of(address(number), at(2 * most)).map(|known| known.share);
        assert_eq!([share(0), share(1), share(10), share(11)], [Some(0.2), None, None, Some(0.1)]);
    }
}
