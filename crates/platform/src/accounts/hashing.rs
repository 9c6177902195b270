//! Decides which password is hashed next: hashing takes 19 MiB and a core for tens of milliseconds, and every client
//! can cause it by a login.
//!
//! A [`Turn`] is owned by the work itself, so that work whose request was cancelled still counts; a request that is
//! cancelled before its turn leaves the queue. Waiting requests are served in rotation by network. Users who have
//! logged in from there before are served first, but every fourth turn is for others. Nothing here depends on time or
//! threads.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Concurrent turns.
const MAX_AT_ONCE: usize = 2;
/// Requests that wait, in total.
const MAX_WAITING: usize = 512;
/// Requests of one network that wait.
const MAX_PER_NETWORK: usize = 64;
/// Waiting requests of one user at one network that are served before others.
const MAX_PER_USER: usize = 2;
/// Successive turns of known users while others wait.
const MAX_IN_A_ROW: usize = 3;

/// For whom a password is hashed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Claimant {
    /// A user who has logged in from this network before.
    Known(String, IpAddr),
    /// Anyone else, by network ([`super::rate::network`]).
    Stranger(IpAddr),
}

impl Claimant {
    fn most(&self) -> usize {
        match self {
            Claimant::Known(..) => MAX_PER_USER,
            Claimant::Stranger(_) => MAX_PER_NETWORK,
        }
    }
}

/// There is no room in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowded {
    /// This network has too many requests waiting.
    Network,
    /// There are too many waiting requests in total.
    All,
}

/// The queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hashing(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    running: usize,
    known: Rotation<Claimant>,
    strangers: Rotation<Claimant>,
    /// Turns of known users since the last turn of another client.
    in_a_row: usize,
    next_number: u64,
}

/// Permission to hash, returned when dropped.
#[derive(Debug)]
pub(crate) struct Turn(Hashing);

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.running -= 1;
        let next = state.start();
        drop(state);
        self.0.hand(next);
    }
}

/// A place in the queue, freed when dropped.
struct Place<'a> {
    hashing: &'a Hashing,
    claimant: &'a Claimant,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.hashing.0.lock();
        state.lane(self.claimant).remove(self.claimant, self.number);
    }
}

impl Hashing {
    /// Waits for a turn.
    ///
    /// # Errors
    /// Too many requests wait already.
    pub(crate) async fn turn(&self, claimant: &Claimant) -> Result<Turn, Crowded> {
        let (place, mine) = {
            let mut state = self.0.lock();
            if state.running < MAX_AT_ONCE {
                state.running += 1;
                return Ok(Turn(self.clone()));
            }
            let (sender, mine) = oneshot::channel();
            let number = state.next_number;
            state.next_number += 1;
            // A displaced login is notified because its sender is dropped.
            state.enter(claimant, number, sender)?;
            (Place { hashing: self, claimant, number }, mine)
        };
        let turn = mine.await.map_err(|_| Crowded::All);
        drop(place);
        turn
    }

    /// Gives a turn to the next login.
    fn hand(&self, next: Option<oneshot::Sender<Turn>>) {
        if let Some(next) = next {
            // If its request is cancelled at this moment, the turn is dropped and passed on.
            drop(next.send(Turn(self.clone())));
        }
    }
}

impl State {
    fn lane(&mut self, claimant: &Claimant) -> &mut Rotation<Claimant> {
        match claimant {
            Claimant::Known(..) => &mut self.known,
            Claimant::Stranger(_) => &mut self.strangers,
        }
    }

    fn enter(
        &mut self,
        claimant: &Claimant,
        number: u64,
        sender: oneshot::Sender<Turn>,
    ) -> Result<(), Crowded> {
        if self.lane(claimant).waiting_of(claimant) >= claimant.most() {
            return Err(Crowded::Network);
        }
        if self.known.len + self.strangers.len >= MAX_WAITING {
            // The claimant with most waiting logins makes room, unless it is the one that asks.
            let own = self.lane(claimant).waiting_of(claimant);
            self.strangers.evict(own + 1).ok_or(Crowded::All)?;
        }
        self.lane(claimant).push(claimant.clone(), number, sender);
        Ok(())
    }

    /// The next login, counted as running.
    fn start(&mut self) -> Option<oneshot::Sender<Turn>> {
        let stranger_first = self.in_a_row >= MAX_IN_A_ROW;
        let stranger = if stranger_first { self.strangers.pop() } else { None };
        let known = stranger.is_none().then(|| self.known.pop()).flatten();
        self.in_a_row = if known.is_some() { self.in_a_row + 1 } else { 0 };
        let next = stranger.or(known).or_else(|| self.strangers.pop())?;
        self.running += 1;
        Some(next)
    }
}

/// Waiting requests, served in rotation by key.
#[derive(Debug)]
struct Rotation<K> {
    waiting: HashMap<K, VecDeque<(u64, oneshot::Sender<Turn>)>>,
    order: VecDeque<K>,
    len: usize,
}

impl<K> Default for Rotation<K> {
    fn default() -> Rotation<K> {
        Rotation { waiting: HashMap::new(), order: VecDeque::new(), len: 0 }
    }
}

impl<K: Clone + Eq + Hash> Rotation<K> {
    fn waiting_of(&self, key: &K) -> usize {
        self.waiting.get(key).map_or(0, VecDeque::len)
    }

    fn push(&mut self, key: K, number: u64, sender: oneshot::Sender<Turn>) {
        let waiting = self.waiting.entry(key.clone()).or_default();
        if waiting.is_empty() {
            self.order.push_back(key);
        }
        waiting.push_back((number, sender));
        self.len += 1;
    }

    fn pop(&mut self) -> Option<oneshot::Sender<Turn>> {
        let key = self.order.pop_front()?;
        let waiting = self.waiting.get_mut(&key)?;
        let (_, sender) = waiting.pop_front()?;
        self.len -= 1;
        if waiting.is_empty() {
            self.waiting.remove(&key);
        } else {
            self.order.push_back(key);
        }
        Some(sender)
    }

    /// Removes a cancelled request.
    fn remove(&mut self, key: &K, number: u64) {
        let Some(waiting) = self.waiting.get_mut(key) else { return };
        let before = waiting.len();
        waiting.retain(|(other, _)| *other != number);
        self.len -= before - waiting.len();
        if waiting.is_empty() {
            self.waiting.remove(key);
            self.order.retain(|other| other != key);
        }
    }

    /// Drops the newest request of the key with the most waiting requests, if those are more than `least`.
    fn evict(&mut self, least: usize) -> Option<NonZeroUsize> {
        let key = self.waiting.iter().max_by_key(|(_, waiting)| waiting.len());
        let (key, most) = key.map(|(key, waiting)| (key.clone(), waiting.len()))?;
        let most = NonZeroUsize::new(most).filter(|most| most.get() > least)?;
        let newest = self.waiting.get(&key)?.back().map(|(number, _)| *number)?;
        self.remove(&key, newest);
        Some(most)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::Future;
    use std::net::Ipv4Addr;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn stranger(network: u8) -> Claimant {
        Claimant::Stranger(Ipv4Addr::new(192, 0, 2, network).into())
    }

    fn known(user: &str) -> Claimant {
        Claimant::Known(user.to_owned(), Ipv4Addr::LOCALHOST.into())
    }

    fn poll<F: Future>(future: &mut Pin<&mut F>) -> Option<F::Output> {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// Takes all turns.
    fn full(hashing: &Hashing) -> Vec<Turn> {
        let taken = (0..MAX_AT_ONCE).map(|_| {
            let claimant = stranger(0);
            let turn = pin!(hashing.turn(&claimant));
            poll(&mut { turn }).unwrap().unwrap()
        });
        taken.collect()
    }

    #[test]
    fn a_request_that_is_gone_leaves_the_queue() {
        let hashing = Hashing::default();
        let mut turns = full(&hashing);
        let claimant = stranger(1);
        {
            let mut gone = pin!(hashing.turn(&claimant));
            assert!(poll(&mut gone).is_none());
            assert_eq!(hashing.0.lock().strangers.len, 1);
        }
        assert_eq!(hashing.0.lock().strangers.len, 0);
        let mut waits = pin!(hashing.turn(&claimant));
        assert!(poll(&mut waits).is_none());
        turns.pop();
        let turn = poll(&mut waits).unwrap().unwrap();
        drop((turn, turns));
        assert_eq!(hashing.0.lock().running, 0);
    }

    #[test]
    fn a_turn_that_meets_nobody_goes_on() {
        let hashing = Hashing::default();
        let mut turns = full(&hashing);
        let (first, second) = (stranger(1), stranger(2));
        let mut next = Box::pin(hashing.turn(&first));
        assert!(poll(&mut next.as_mut()).is_none());
        let mut after = pin!(hashing.turn(&second));
        assert!(poll(&mut after).is_none());
        turns.pop();
        // It was given the turn, and is cancelled without noticing.
        drop(next);
        assert!(poll(&mut after).unwrap().is_ok());
    }

    #[test]
    fn networks_take_turns_and_a_crowd_waits_for_itself() {
        let hashing = Hashing::default();
        let mut turns = full(&hashing);
        let (crowd, other) = (stranger(1), stranger(2));
        let mut many: Vec<_> =
            (0..MAX_PER_NETWORK).map(|_| Box::pin(hashing.turn(&crowd))).collect();
        for one in &mut many {
            assert!(poll(&mut one.as_mut()).is_none());
        }
        let mut more = pin!(hashing.turn(&crowd));
        assert_eq!(poll(&mut more).unwrap().unwrap_err(), Crowded::Network);
        let mut honest = pin!(hashing.turn(&other));
        assert!(poll(&mut honest).is_none());
        turns.pop();
        let first = poll(&mut many[0].as_mut()).unwrap().unwrap();
        drop(first);
        assert!(poll(&mut honest).unwrap().is_ok(), "the second turn is the other network's");
    }

    #[test]
    fn a_full_queue_makes_room_for_other_networks() {
        let hashing = Hashing::default();
        let _turns = full(&hashing);
        let claimants: Vec<Claimant> =
            (0..MAX_WAITING).map(|n| stranger((n / MAX_PER_NETWORK) as u8)).collect();
        let mut all: Vec<_> = claimants.iter().map(|who| Box::pin(hashing.turn(who))).collect();
        for one in &mut all {
            assert!(poll(&mut one.as_mut()).is_none());
        }
        let newcomer = stranger(200);
        let mut new = pin!(hashing.turn(&newcomer));
        assert!(poll(&mut new).is_none());
        let told = all.iter_mut().filter_map(|one| poll(&mut one.as_mut()));
        let told: Vec<Crowded> = told.map(Result::unwrap_err).collect();
        assert_eq!(told, [Crowded::All]);
        assert_eq!(hashing.0.lock().strangers.len, MAX_WAITING);
    }

    #[test]
    fn known_users_go_first_and_starve_nobody() {
        let hashing = Hashing::default();
        let mut turns = full(&hashing);
        let (ann, new) = (known("ann"), stranger(1));
        let mut strange = pin!(hashing.turn(&new));
        assert!(poll(&mut strange).is_none());
        let turn = turns.pop();
        let mut round = 0;
        let mut turn = Some(turn.unwrap());
        loop {
            let mut own = pin!(hashing.turn(&ann));
            assert!(poll(&mut own).is_none());
            drop(turn.take());
            match poll(&mut own) {
                Some(given) => turn = Some(given.unwrap()),
                None => break,
            }
            round += 1;
        }
        assert_eq!(round, MAX_IN_A_ROW);
        assert!(poll(&mut strange).unwrap().is_ok());
    }
}
