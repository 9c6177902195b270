//! Limits the memory for request bodies over all connections; if it is used up, unfinished bodies make room.
//!
//! Requests without a valid token share a quarter of the budget. When that is used up, the oldest unfinished body of
//! the network with the most bytes is given up, so that clients that send half a body and wait do not keep others
//! out. Nor do accounts: an account may have all that is free, but when there is no more, the oldest unfinished body of
//! the one with the most is given up for an account with less than half as much; and a sixteenth is for requests without
//! a token alone, beyond the budget, so that logins pass. Requests whose bodies are refused or given up get 503.
//!
//! The headers of a request count with its body, and those that are not complete like the body of a request without a
//! token: over HTTP/3, where a client can have many of them at once ([`crate::h3`]).

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;

use crate::connection_slots::{Activity, Busy};
use fulmar_text::network::site as network;

/// Requests without a valid token have one part in this many of the budget.
const STRANGERS_PART: usize = 4;

/// One part in this many of the budget is theirs alone, beyond it: a body may be as large as the budget, and would
/// otherwise keep logins out, or be ended by them.
const STRANGERS_OWN_PART: usize = 16;

/// An account with more than this many times what another would have makes room for it. Not with a little more: bodies of
/// about the same size would end each other, and none would get through.
const LARGER_TIMES: usize = 2;

/// The overhead of a part of a body.
pub(crate) const PART_BYTES: usize = 64;

/// The overhead of a header.
const HEADER_BYTES: usize = 100;

/// The overhead of a request that waits for its body: the tasks and futures that handle it.
const REQUEST_BYTES: usize = 4 * 1024;

/// Smaller parts are copied: they may be a slice of a large buffer, which they would keep alive.
const COPIED_BELOW_BYTES: usize = 4 * 1024;

/// The budget; clones share it.
#[derive(Clone, Debug)]
pub struct BodyBudget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    held: Mutex<BodyUse>,
}

#[derive(Debug, Default)]
struct BodyUse {
    next: u64,
    bytes: usize,
    strangers: usize,
    shares: BTreeMap<u64, Entry>,
    /// Bytes by holder; none has 0.
    holders: HashMap<Holder, usize>,
}

/// Whose bytes are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Holder {
    /// Requests without a valid token, by network.
    Network(IpAddr),
    /// The account whose token a request has.
    Account(Box<str>),
}

#[derive(Debug)]
struct Entry {
    holder: Holder,
    bytes: usize,
    state: State,
    /// Wakes the task that waits for more of the body.
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Coming,
    Whole,
    GivenUp,
}

/// A request's share of the budget, returned when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Share(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    budget: BodyBudget,
    number: u64,
    activity: Activity,
    busy: Mutex<Option<Busy>>,
}

/// The budget is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many request bodies are being received")]
pub(crate) struct UsedUp;

impl BodyBudget {
    /// A budget of this many bytes.
    pub fn new(bytes: usize) -> BodyBudget {
        BodyBudget(Arc::new(Shared { most: bytes, held: Mutex::default() }))
    }

    /// The share of a request from `address`. `account`: whose token it has, if it has a valid one.
    pub(crate) fn share(
        &self,
        address: IpAddr,
        account: Option<Box<str>>,
        activity: &Activity,
    ) -> Share {
        let mut held = self.0.held.lock();
        let number = held.next;
        held.next += 1;
        let holder = account.map_or_else(|| Holder::Network(network(address)), Holder::Account);
        let entry = Entry { holder, bytes: 0, state: State::Coming, waker: None };
        held.shares.insert(number, entry);
        let (budget, activity, busy) = (self.clone(), activity.clone(), Mutex::default());
        Share(Arc::new(Inner { budget, number, activity, busy }))
    }
}

impl BodyUse {
    /// Counts bytes; returns false if there is no room for them.
    fn charge(&mut self, number: u64, bytes: usize, most: usize) -> bool {
        loop {
            let Some(entry) = self.shares.get(&number) else { return false };
            if entry.state == State::GivenUp {
                return false;
            }
            let is_known = entry.is_known();
            let own = most / STRANGERS_OWN_PART;
            let strangers = self.strangers + if is_known { 0 } else { bytes };
            let strangers_full = !is_known && strangers > most / STRANGERS_PART;
            if !strangers_full && self.bytes + bytes - strangers.min(own) <= most {
                self.add(number, bytes);
                return true;
            }
            // A network without tokens that holds most bytes makes room for others, not for itself.
            // What is the strangers' own is of no use to an account.
            let useful = !is_known || self.strangers > own;
            let victim = self.victim(|holder| useful && matches!(holder, Holder::Network(_)));
            let victim = victim.or_else(|| self.larger_account(number, bytes));
            match victim {
                Some(victim) if victim != number => self.give_up(victim),
                _ => return false,
            }
        }
    }

    fn add(&mut self, number: u64, bytes: usize) {
        let Some(entry) = self.shares.get_mut(&number) else { return };
        entry.bytes += bytes;
        self.bytes += bytes;
        *self.holders.entry(entry.holder.clone()).or_default() += bytes;
        if !entry.is_known() {
            self.strangers += bytes;
        }
    }

    fn held(&self, holder: &Holder) -> usize {
        self.holders.get(holder).copied().unwrap_or(0)
    }

    /// The oldest unfinished body of the holder that has most bytes, of those that `may` make room.
    fn victim(&self, may: impl Fn(&Holder) -> bool) -> Option<u64> {
        let unfinished =
            |entry: &Entry| entry.bytes > 0 && entry.state == State::Coming && may(&entry.holder);
        let candidates = || self.shares.iter().filter(|(_, entry)| unfinished(entry));
        let most = candidates().map(|(_, entry)| self.held(&entry.holder)).max()?;
        candidates().find(|(_, entry)| self.held(&entry.holder) == most).map(|(number, _)| *number)
    }

    /// Returns the body that makes room for a request with a token: the oldest unfinished one of the account that has
    /// most bytes, and many more than the request's account would have.
    fn larger_account(&self, number: u64, bytes: usize) -> Option<u64> {
        let asking = self.shares.get(&number).filter(|entry| entry.is_known())?;
        let wanted = self.held(&asking.holder) + bytes;
        self.victim(|holder| {
            matches!(holder, Holder::Account(_)) && self.held(holder) > LARGER_TIMES * wanted
        })
    }

    fn give_up(&mut self, number: u64) {
        self.release(number);
        let Some(entry) = self.shares.get_mut(&number) else { return };
        entry.state = State::GivenUp;
        if let Some(waker) = entry.waker.take() {
            waker.wake();
        }
    }

    fn release(&mut self, number: u64) {
        let Some(entry) = self.shares.get_mut(&number) else { return };
        let bytes = std::mem::take(&mut entry.bytes);
        self.bytes -= bytes;
        if !entry.is_known() {
            self.strangers -= bytes;
        }
        if let Some(held) = self.holders.get_mut(&entry.holder) {
            *held -= bytes;
            if *held == 0 {
                self.holders.remove(&entry.holder);
            }
        }
    }
}

impl Entry {
    /// Whether the request has a valid token.
    fn is_known(&self) -> bool {
        matches!(self.holder, Holder::Account(_))
    }
}

impl Share {
    /// Wraps the body to count it.
    pub(crate) fn count<B>(&self, body: B) -> CountedBody<B>
    where
        B: Body<Data = Bytes>,
    {
        if body.is_end_stream() {
            self.whole();
        }
        CountedBody { body, share: self.clone() }
    }

    /// Whether the request was refused or given up for lack of memory.
    pub(crate) fn is_refused(&self) -> bool {
        let held = self.0.budget.0.held.lock();
        held.shares.get(&self.0.number).is_some_and(|entry| entry.state == State::GivenUp)
    }

    /// The request is complete: it is no longer given up, and its connection counts as busy.
    fn whole(&self) {
        let mut held = self.0.budget.0.held.lock();
        if let Some(entry) = held.shares.get_mut(&self.0.number)
            && entry.state == State::Coming
        {
            entry.state = State::Whole;
            let mut busy = self.0.busy.lock();
            *busy = Some(self.0.activity.busy());
        }
    }

    /// Counts a request whose body is still to come, with its headers.
    pub(crate) fn charge_headers(&self, headers: &HeaderMap) -> Result<(), UsedUp> {
        let bytes = |(name, value): (&HeaderName, &HeaderValue)| {
            name.as_str().len() + value.len() + HEADER_BYTES
        };
        self.charge(headers.iter().map(bytes).sum::<usize>() + REQUEST_BYTES)
    }

    /// Counts bytes that have arrived; an error if the request is given up.
    pub(crate) fn charge(&self, bytes: usize) -> Result<(), UsedUp> {
        let (mut held, most) = (self.0.budget.0.held.lock(), self.0.budget.0.most);
        if held.charge(self.0.number, bytes, most) {
            return Ok(());
        }
        held.give_up(self.0.number);
        Err(UsedUp)
    }

    /// Stores the waiting task; an error if the body was given up meanwhile.
    pub(crate) fn wait(&self, waker: &Waker) -> Result<(), UsedUp> {
        let mut held = self.0.budget.0.held.lock();
        match held.shares.get_mut(&self.0.number) {
            Some(entry) if entry.state == State::GivenUp => Err(UsedUp),
            Some(entry) => {
                entry.waker = Some(waker.clone());
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut held = self.budget.0.held.lock();
        held.release(self.number);
        held.shares.remove(&self.number);
    }
}

/// A body whose bytes are counted as they arrive.
#[derive(Debug)]
pub(crate) struct CountedBody<B> {
    body: B,
    share: Share,
}

impl<B> Body for CountedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<axum::BoxError>,
{
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        self.share.wait(cx.waker())?;
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let Some(frame) = frame.transpose().map_err(Into::into)? else {
            self.share.whole();
            return Poll::Ready(None);
        };
        let frame = match frame.into_data() {
            Ok(data) => {
                self.share.charge(data.len() + PART_BYTES)?;
                let small = data.len() < COPIED_BELOW_BYTES;
                Frame::data(if small { Bytes::copy_from_slice(&data) } else { data })
            }
            Err(frame) => frame,
        };
        if self.body.is_end_stream() {
            self.share.whole();
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn from(budget: &BodyBudget, last: u8, is_known: bool) -> Share {
        let account = is_known.then(|| last.to_string().into());
        budget.share([192, 0, 2, last].into(), account, &Activity::default())
    }

    #[test]
    fn half_bodies_of_strangers_make_room_for_others() {
        let budget = BodyBudget::new(4000);
        let (crowd, older) = (from(&budget, 1, false), from(&budget, 2, false));
        older.charge(100).unwrap();
        crowd.charge(500).unwrap();
        let again = from(&budget, 1, false);
        again.charge(300).unwrap();
        let new = from(&budget, 3, false);
        new.charge(200).unwrap();
        assert!(crowd.is_refused() && ![older, again, new].iter().any(Share::is_refused));
        assert_eq!(crowd.charge(1), Err(UsedUp), "it stays given up");
        drop(crowd);
        assert_eq!(budget.0.held.lock().bytes, 0, "all of it is given back");
    }

    #[test]
    fn whole_requests_and_known_users_are_not_given_up() {
        let budget = BodyBudget::new(4000);
        let whole = from(&budget, 1, false);
        whole.charge(1000).unwrap();
        whole.whole();
        let other = from(&budget, 2, false);
        assert_eq!(other.charge(1), Err(UsedUp));
        assert!(other.is_refused() && !whole.is_refused());
        let known = from(&budget, 3, true);
        known.charge(3000).unwrap();
        known.whole();
        // All but the strangers' own 250.
        assert_eq!(from(&budget, 4, true).charge(251), Err(UsedUp));
        drop(whole);
        from(&budget, 4, true).charge(251).unwrap();
    }

    #[test]
    fn half_bodies_of_an_account_make_room_for_others() {
        let budget = BodyBudget::new(4000);
        let half: Vec<Share> = (0..3).map(|_| from(&budget, 1, true)).collect();
        half[0].charge(2000).unwrap();
        half[1].charge(1500).unwrap();
        half[2].charge(500).unwrap();
        let login = from(&budget, 2, false);
        login.charge(250).unwrap();
        assert!(!half.iter().any(Share::is_refused), "logins have room of their own");
        assert_eq!(from(&budget, 1, true).charge(1), Err(UsedUp), "nothing is free for itself");
        assert!(!login.is_refused(), "nor is the login's room");
        let other = from(&budget, 3, true);
        other.charge(1500).unwrap();
        assert_eq!(half.iter().map(Share::is_refused).collect::<Vec<_>>(), [true, false, false]);
        // What is about as large does not end the other.
        other.charge(500).unwrap();
        assert_eq!(other.charge(1), Err(UsedUp));
        assert!(!half[1].is_refused());
        drop((half, login, other));
        let held = budget.0.held.lock();
        assert_eq!((held.bytes, held.strangers, held.holders.len()), (0, 0, 0));
    }

    #[test]
    fn a_known_user_takes_the_place_of_half_bodies() {
        let budget = BodyBudget::new(4000);
        let stranger = from(&budget, 1, false);
        stranger.charge(1000).unwrap();
        let known = from(&budget, 2, true);
        known.charge(4000).unwrap();
        assert!(stranger.is_refused());
    }

    #[test]
    fn a_request_that_is_there_whole_keeps_its_connection() {
        let budget = BodyBudget::new(4000);
        let slots = crate::connection_slots::ConnectionSlots::new(1);
        let (slot, _) = slots.acquire([192, 0, 2, 1].into()).unwrap();
        let share = budget.share([192, 0, 2, 1].into(), None, &slot.activity);
        share.whole();
        assert!(slots.acquire([192, 0, 2, 2].into()).is_none());
        drop(share);
        assert!(slots.acquire([192, 0, 2, 2].into()).is_some());
    }
}
