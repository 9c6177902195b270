//! Logins that wait to be checked, in an order that is fair by address.
//!
//! Checking a password costs tens of milliseconds, and any client can cause it. So addresses take turns, each
//! may have a bounded number of logins waiting, and those whose logins have failed are served last.
//! No I/O, no clock, no threads.

use std::collections::VecDeque;
use std::net::IpAddr;

use rustc_hash::FxHashMap;

use crate::rate_limiter::Reputation;

/// Waiting logins of all addresses. Two threads check some hundreds per second, so the last login is checked
/// within the default time for connecting.
const MAX_WAITING: usize = 512;

/// Every fourth check starts with addresses whose logins have failed, to prevent starvation.
const FAILING_FIRST_EVERY: u32 = 4;

/// Identifies a login in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueId(u64);

/// Logins that wait to be checked, in an order that is fair by address, up to 512.
#[derive(Debug)]
pub struct FairQueue<T> {
    /// By reputation, best first.
    by_reputation: [RoundRobin<T>; 3],
    /// Where each login waits.
    locations: FxHashMap<QueueId, (Reputation, IpAddr)>,
    last_id: u64,
    /// Calls of `pop`.
    popped: u32,
}

/// Logins of one reputation. Addresses take turns.
#[derive(Debug)]
struct RoundRobin<T> {
    by_address: FxHashMap<IpAddr, VecDeque<(QueueId, T)>>,
    /// Round-robin order of the addresses with waiting logins.
    order: VecDeque<IpAddr>,
}

/// Maximum number of waiting logins of one address.
fn max_per_address(reputation: Reputation) -> usize {
    match reputation {
        // Enough for a fleet behind one NAT.
        Reputation::Clean => 128,
        Reputation::OthersFailed => 32,
        Reputation::Failing => 8,
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        let empty = || RoundRobin { by_address: FxHashMap::default(), order: VecDeque::new() };
        let by_reputation = [empty(), empty(), empty()];
        FairQueue { by_reputation, locations: FxHashMap::default(), last_id: 0, popped: 0 }
    }
}

impl<T> FairQueue<T> {
    /// Queues a login behind those of its address. Returns the login evicted to make room, if any.
    ///
    /// # Errors
    /// There is no room; returns the rejected login.
    pub fn push(
        &mut self,
        address: IpAddr,
        reputation: Reputation,
        login: T,
    ) -> Result<(QueueId, Option<T>), T> {
        let waiting = self.by_reputation[reputation as usize].waiting(address);
        if waiting >= max_per_address(reputation) {
            return Err(login);
        }
        let mut removed = None;
        if self.locations.len() >= MAX_WAITING {
            removed = self.make_room(reputation, waiting);
            if removed.is_none() {
                return Err(login);
            }
        }
        self.last_id += 1;
        let id = QueueId(self.last_id);
        let same = &mut self.by_reputation[reputation as usize];
        let queue = same.by_address.entry(address).or_default();
        if queue.is_empty() {
            same.order.push_back(address);
        }
        queue.push_back((id, login));
        self.locations.insert(id, (reputation, address));
        Ok((id, removed))
    }

    /// Makes room for a new login of this reputation whose address already has `waiting` logins in the queue: evicts
    /// the newest login of the address that has the most waiting, if that address ranks below the new login's.
    fn make_room(&mut self, reputation: Reputation, waiting: usize) -> Option<T> {
        let worst_first = [Reputation::Failing, Reputation::OthersFailed, Reputation::Clean];
        let has_logins = |of: &Reputation| !self.by_reputation[*of as usize].order.is_empty();
        let worst = worst_first.into_iter().find(has_logins)?;
        let waiting_there = &mut self.by_reputation[worst as usize];
        let (&address, most) =
            waiting_there.by_address.iter().max_by_key(|(_, queue)| queue.len())?;
        let most = most.len();
        if worst < reputation || (worst == reputation && most <= waiting + 1) {
            return None;
        }
        let (id, login) = waiting_there.by_address.get_mut(&address)?.pop_back()?;
        waiting_there.remove_if_empty(address);
        self.locations.remove(&id);
        Some(login)
    }

    /// Takes the next login; with `include_failing`, also those of users whose logins have failed.
    pub fn pop(&mut self, include_failing: bool) -> Option<T> {
        self.popped = self.popped.wrapping_add(1);
        let failing_first = self.popped.is_multiple_of(FAILING_FIRST_EVERY);
        let order: &[usize] = match (include_failing, failing_first) {
            (true, false) => &[0, 1, 2],
            (true, true) => &[1, 2, 0],
            (false, false) => &[0, 1],
            (false, true) => &[1, 0],
        };
        let (id, login) = order.iter().find_map(|&of| self.by_reputation[of].pop())?;
        self.locations.remove(&id);
        Some(login)
    }

    /// All waiting logins, unordered.
    pub(super) fn into_iter(self) -> impl Iterator<Item = T> {
        let waiting = self.by_reputation.into_iter();
        waiting.flat_map(|of| of.by_address.into_values()).flatten().map(|(_, login)| login)
    }

    /// Removes a login whose client has gone.
    pub fn remove(&mut self, id: QueueId) -> Option<T> {
        let (reputation, address) = self.locations.remove(&id)?;
        let waiting = &mut self.by_reputation[reputation as usize];
        let queue = waiting.by_address.get_mut(&address)?;
        let at = queue.iter().position(|(other, _)| *other == id)?;
        let (_, login) = queue.remove(at)?;
        waiting.remove_if_empty(address);
        Some(login)
    }
}

impl<T> RoundRobin<T> {
    fn waiting(&self, address: IpAddr) -> usize {
        self.by_address.get(&address).map_or(0, VecDeque::len)
    }

    fn pop(&mut self) -> Option<(QueueId, T)> {
        let address = self.order.pop_front()?;
        let queue = self.by_address.get_mut(&address)?;
        let first = queue.pop_front();
        if queue.is_empty() {
            self.by_address.remove(&address);
        } else {
            self.order.push_back(address);
        }
        first
    }

    /// Removes an address that has no more logins waiting.
    fn remove_if_empty(&mut self, address: IpAddr) {
        if self.waiting(address) == 0 {
            self.by_address.remove(&address);
            self.order.retain(|other| *other != address);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + number).into())
    }

    fn drain(queue: &mut FairQueue<(u32, usize)>) -> Vec<(u32, usize)> {
        std::iter::from_fn(|| queue.pop(true)).collect()
    }

    #[test]
    fn addresses_take_turns() {
        let mut queue = FairQueue::default();
        for number in 0..100 {
            queue.push(address(1), Reputation::Clean, (1, number)).unwrap();
        }
        queue.push(address(2), Reputation::Clean, (2, 0)).unwrap();
        let order = drain(&mut queue);
        assert!(order.iter().position(|login| login.0 == 2).unwrap() <= 1);
        let first: Vec<usize> = order.iter().filter(|l| l.0 == 1).map(|l| l.1).collect();
        assert_eq!(first, (0..100).collect::<Vec<_>>(), "an address's logins stay in order");
        assert!(queue.locations.is_empty() && queue.by_reputation[0].by_address.is_empty());
    }

    #[test]
    fn failing_logins_wait_but_do_not_starve() {
        let mut queue = FairQueue::default();
        for number in 0..8 {
            queue.push(address(1), Reputation::Failing, (1, number)).unwrap();
        }
        for number in 0..40 {
            queue.push(address(2), Reputation::Clean, (2, number)).unwrap();
        }
        let order = drain(&mut queue);
        assert_eq!(order[..2], [(2, 0), (2, 1)]);
        let failing = order[..16].iter().filter(|login| login.0 == 1).count();
        assert_eq!(failing, 4, "one in four");
        queue.push(address(1), Reputation::Failing, (1, 0)).unwrap();
        assert_eq!(queue.pop(false), None, "one thread checks no failing logins");
    }

    #[test]
    fn an_address_has_its_bound_and_so_has_the_queue() {
        let mut queue = FairQueue::default();
        for (reputation, most) in
            [(Reputation::Clean, 128), (Reputation::OthersFailed, 32), (Reputation::Failing, 8)]
        {
            let took =
                (0..1000).take_while(|&n| queue.push(address(1), reputation, (1, n)).is_ok());
            assert_eq!(took.count(), most);
        }
        for number in 2.. {
            if queue.locations.len() == MAX_WAITING {
                break;
            }
            queue.push(address(number), Reputation::Clean, (number, 0)).unwrap();
        }
        // Addresses with failed logins make room first, then the one with the most; none for one with as many.
        let (_, removed) = queue.push(address(5000), Reputation::Clean, (5000, 0)).unwrap();
        assert_eq!(removed, Some((1, 7)), "the newest of the failing address");
        for number in 5001..5000 + 8 + 32 {
            let (_, removed) = queue.push(address(number), Reputation::Clean, (number, 0)).unwrap();
            assert_eq!(removed.unwrap().0, 1);
        }
        let (_, removed) = queue.push(address(6000), Reputation::Clean, (6000, 0)).unwrap();
        assert_eq!(removed, Some((1, 127)));
        for number in 6001..6000 + 127 {
            queue.push(address(number), Reputation::Clean, (number, 0)).unwrap();
        }
        assert!(queue.push(address(7000), Reputation::Clean, (7000, 0)).is_err());
        assert!(queue.push(address(7000), Reputation::Failing, (7000, 0)).is_err());
        assert_eq!(queue.locations.len(), MAX_WAITING);
    }

    #[test]
    fn cancelled_logins_leave_the_queue() {
        let mut queue = FairQueue::default();
        let ids: Vec<QueueId> =
            (0..5).map(|n| queue.push(address(1), Reputation::Clean, (1, n)).unwrap().0).collect();
        assert_eq!(queue.remove(ids[1]), Some((1, 1)));
        assert_eq!(queue.remove(ids[1]), None);
        assert_eq!(queue.pop(true), Some((1, 0)));
        assert_eq!(queue.remove(ids[0]), None, "it is being checked");
        for id in &ids[2..] {
            queue.remove(*id).unwrap();
        }
        assert_eq!(queue.pop(true), None);
        assert!(queue.locations.is_empty() && queue.by_reputation[0].order.is_empty());
    }
}
