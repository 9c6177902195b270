//! Logins that wait to be checked, in an order that is fair by address.
//!
//! Checking a password costs tens of milliseconds, and anybody may ask for it. So addresses take turns, each
//! may have a bounded number of logins waiting, and those whose logins have failed come after the others.
//! No I/O, no clock, no threads.

use std::collections::VecDeque;
use std::net::IpAddr;

use rustc_hash::FxHashMap;

use crate::rate_limiter::Reputation;

/// Logins that wait over all addresses. Two threads check some hundred a second, so that the last one's turn
/// comes within the default time for connecting.
const MAX_WAITING: usize = 512;

/// Every check whose number this divides begins with logins of addresses that have failed, so that none starves.
const TURN_OF_THE_LAST: u32 = 4;

/// Identifies a login in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct QueueId(u64);

/// The queue; see the module.
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    /// By reputation, best first.
    lanes: [Lane<T>; 3],
    places: FxHashMap<QueueId, (Reputation, IpAddr)>,
    last_id: u64,
    taken: u32,
}

/// Addresses of one reputation.
#[derive(Debug)]
struct Lane<T> {
    sites: FxHashMap<IpAddr, VecDeque<(QueueId, T)>>,
    /// Whose turn it is: each address that has something waiting, once.
    turns: VecDeque<IpAddr>,
}

/// Most logins of one address that wait: a fleet behind one NAT, an address where some have failed, and of a user
/// whose own logins fail from there.
fn most_per_site(reputation: Reputation) -> usize {
    match reputation {
        Reputation::Clean => 128,
        Reputation::Neighbour => 32,
        Reputation::Failing => 8,
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        let lane = || Lane { sites: FxHashMap::default(), turns: VecDeque::new() };
        let lanes = [lane(), lane(), lane()];
        FairQueue { lanes, places: FxHashMap::default(), last_id: 0, taken: 0 }
    }
}

impl<T> FairQueue<T> {
    /// Puts a login behind those of its address; with the one that has to make room for it, if one has.
    ///
    /// # Errors
    /// There is no room: gives it back.
    pub(super) fn push(
        &mut self,
        site: IpAddr,
        reputation: Reputation,
        login: T,
    ) -> Result<(QueueId, Option<T>), T> {
        let waiting = self.lanes[reputation as usize].waiting(site);
        if waiting >= most_per_site(reputation) {
            return Err(login);
        }
        let mut removed = None;
        if self.places.len() >= MAX_WAITING {
            removed = self.make_room(reputation, waiting);
            if removed.is_none() {
                return Err(login);
            }
        }
        self.last_id += 1;
        let id = QueueId(self.last_id);
        let lane = &mut self.lanes[reputation as usize];
        let queue = lane.sites.entry(site).or_default();
        if queue.is_empty() {
            lane.turns.push_back(site);
        }
        queue.push_back((id, login));
        self.places.insert(id, (reputation, site));
        Ok((id, removed))
    }

    /// Makes room for a newcomer of this reputation whose address already has `waiting` logins in the queue: removes
    /// the newest login of the address that has the most waiting, if that address ranks below the newcomer's.
    fn make_room(&mut self, reputation: Reputation, waiting: usize) -> Option<T> {
        let lanes = [Reputation::Failing, Reputation::Neighbour, Reputation::Clean];
        let worst = lanes.into_iter().find(|&lane| !self.lanes[lane as usize].turns.is_empty())?;
        let lane = &mut self.lanes[worst as usize];
        let (&site, most) = lane.sites.iter().max_by_key(|(_, queue)| queue.len())?;
        let most = most.len();
        if worst < reputation || (worst == reputation && most <= waiting + 1) {
            return None;
        }
        let (id, login) = lane.sites.get_mut(&site)?.pop_back()?;
        lane.tidy(site);
        self.places.remove(&id);
        Some(login)
    }

    /// Takes the login whose turn it is; with `any`, also those of users who fail.
    pub(super) fn pop(&mut self, any: bool) -> Option<T> {
        self.taken = self.taken.wrapping_add(1);
        let lanes: &[usize] = match (any, self.taken.is_multiple_of(TURN_OF_THE_LAST)) {
            (true, false) => &[0, 1, 2],
            (true, true) => &[1, 2, 0],
            (false, false) => &[0, 1],
            (false, true) => &[1, 0],
        };
        let (id, login) = lanes.iter().find_map(|&lane| self.lanes[lane].pop())?;
        self.places.remove(&id);
        Some(login)
    }

    /// All that wait, in no order.
    pub(super) fn into_iter(self) -> impl Iterator<Item = T> {
        let sites = self.lanes.into_iter().flat_map(|lane| lane.sites.into_values());
        sites.flatten().map(|(_, login)| login)
    }

    /// Takes out a login that nobody waits for any more.
    pub(super) fn remove(&mut self, id: QueueId) -> Option<T> {
        let (reputation, site) = self.places.remove(&id)?;
        let lane = &mut self.lanes[reputation as usize];
        let queue = lane.sites.get_mut(&site)?;
        let at = queue.iter().position(|(other, _)| *other == id)?;
        let (_, login) = queue.remove(at)?;
        lane.tidy(site);
        Some(login)
    }
}

impl<T> Lane<T> {
    fn waiting(&self, site: IpAddr) -> usize {
        self.sites.get(&site).map_or(0, VecDeque::len)
    }

    fn pop(&mut self) -> Option<(QueueId, T)> {
        let site = self.turns.pop_front()?;
        let queue = self.sites.get_mut(&site)?;
        let first = queue.pop_front();
        if queue.is_empty() {
            self.sites.remove(&site);
        } else {
            self.turns.push_back(site);
        }
        first
    }

    /// Forgets an address that has nothing waiting any more.
    fn tidy(&mut self, site: IpAddr) {
        if self.waiting(site) == 0 {
            self.sites.remove(&site);
            self.turns.retain(|other| *other != site);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn site(number: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + number).into())
    }

    fn drain(queue: &mut FairQueue<(u32, usize)>) -> Vec<(u32, usize)> {
        std::iter::from_fn(|| queue.pop(true)).collect()
    }

    #[test]
    fn addresses_take_turns() {
        let mut queue = FairQueue::default();
        for number in 0..100 {
            queue.push(site(1), Reputation::Clean, (1, number)).unwrap();
        }
        queue.push(site(2), Reputation::Clean, (2, 0)).unwrap();
        let order = drain(&mut queue);
        assert!(order.iter().position(|login| login.0 == 2).unwrap() <= 1);
        let first: Vec<usize> = order.iter().filter(|l| l.0 == 1).map(|l| l.1).collect();
        assert_eq!(first, (0..100).collect::<Vec<_>>(), "its own stay in order");
        assert!(queue.places.is_empty() && queue.lanes[0].sites.is_empty());
    }

    #[test]
    fn who_fails_waits_for_the_others_but_does_not_starve() {
        let mut queue = FairQueue::default();
        for number in 0..8 {
            queue.push(site(1), Reputation::Failing, (1, number)).unwrap();
        }
        for number in 0..40 {
            queue.push(site(2), Reputation::Clean, (2, number)).unwrap();
        }
        let order = drain(&mut queue);
        assert_eq!(order[..2], [(2, 0), (2, 1)]);
        let failing = order[..16].iter().filter(|login| login.0 == 1).count();
        assert_eq!(failing, 4, "one in four");
        queue.push(site(1), Reputation::Failing, (1, 0)).unwrap();
        assert_eq!(queue.pop(false), None, "one thread is for the others alone");
    }

    #[test]
    fn an_address_has_its_bound_and_the_whole_too() {
        let mut queue = FairQueue::default();
        for (reputation, most) in
            [(Reputation::Clean, 128), (Reputation::Neighbour, 32), (Reputation::Failing, 8)]
        {
            let took = (0..1000).take_while(|&n| queue.push(site(1), reputation, (1, n)).is_ok());
            assert_eq!(took.count(), most);
        }
        for number in 2.. {
            if queue.places.len() == MAX_WAITING {
                break;
            }
            queue.push(site(number), Reputation::Clean, (number, 0)).unwrap();
        }
        // Addresses with failed logins make room first, then the one with the most; none for one with as many.
        let (_, removed) = queue.push(site(5000), Reputation::Clean, (5000, 0)).unwrap();
        assert_eq!(removed, Some((1, 7)), "the newest of those who fail");
        for number in 5001..5000 + 8 + 32 {
            let (_, removed) = queue.push(site(number), Reputation::Clean, (number, 0)).unwrap();
            assert_eq!(removed.unwrap().0, 1);
        }
        let (_, removed) = queue.push(site(6000), Reputation::Clean, (6000, 0)).unwrap();
        assert_eq!(removed, Some((1, 127)));
        for number in 6001..6000 + 127 {
            queue.push(site(number), Reputation::Clean, (number, 0)).unwrap();
        }
        assert!(queue.push(site(7000), Reputation::Clean, (7000, 0)).is_err());
        assert!(queue.push(site(7000), Reputation::Failing, (7000, 0)).is_err());
        assert_eq!(queue.places.len(), MAX_WAITING);
    }

    #[test]
    fn who_goes_away_leaves_the_queue() {
        let mut queue = FairQueue::default();
        let ids: Vec<QueueId> =
            (0..5).map(|n| queue.push(site(1), Reputation::Clean, (1, n)).unwrap().0).collect();
        assert_eq!(queue.remove(ids[1]), Some((1, 1)));
        assert_eq!(queue.remove(ids[1]), None);
        assert_eq!(queue.pop(true), Some((1, 0)));
        assert_eq!(queue.remove(ids[0]), None, "it is being checked");
        for id in &ids[2..] {
            queue.remove(*id).unwrap();
        }
        assert_eq!(queue.pop(true), None);
        assert!(queue.places.is_empty() && queue.lanes[0].turns.is_empty());
    }
}
