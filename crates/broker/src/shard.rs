//! A worker's part of the broker: what one thread owns.
//!
//! In a turn, the transport passes received bytes in, which may append to sessions of any worker, to the storage batch
//! and to the lists of events; [`Shard::take_events`] then returns the events of this worker's connections, such as
//! that they have something to send; [`Shard::end_turn`] submits the storage batch and sends events to other workers.
//! What waits for storage is released in the turn after its commit.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use fulmar_auth::{OpenTopics, PeerIdentity, Timestamp, User};
use fulmar_text::network::site;

use crate::broker::Broker;
use crate::fan_out::{WILLS, cost, is_much};
use crate::memory::{Account, MemoryShare};
use crate::metrics::ShardMetrics;
use crate::peer::{TransportKind, Via};
use crate::publication::Parcel;
use crate::route::RouteCache;
use crate::session::Session;
use crate::test_hook::TestHook;
use crate::turn::Turn;
use crate::will::Will;

/// A worker's part of the broker. One a thread; every call of the core takes it.
#[derive(Debug)]
pub struct Shard {
    pub(crate) routes: RouteCache,
    pub(crate) parcel: Parcel,
    pub(crate) turn: Turn,
    open_topics: OpenTopics,
    /// Sessions with a will that is due and gives way.
    pub(crate) wills: VecDeque<Arc<Session>>,
    pub(crate) test_hook: TestHook,
}

impl Shard {
    /// The part of worker `index`; `wake` interrupts its sleep from another thread.
    ///
    /// # Panics
    /// If `index` is not below the number of workers the broker was made for.
    #[must_use]
    pub fn new(
        broker: Arc<Broker>,
        index: usize,
        now: Timestamp,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> Shard {
        let workers = broker.mailboxes.len();
        assert!(index < workers, "worker {index} of {workers}");
        broker.mailboxes[index].set_wake(Box::new(move || wake()));
        Shard {
            routes: RouteCache::default(),
            parcel: Parcel::default(),
            turn: Turn::new(broker, index, workers, now),
            open_topics: OpenTopics::default(),
            wills: VecDeque::new(),
            test_hook: TestHook::default(),
        }
    }

    /// Counts a connection beyond the limit, and logs it at intervals. The transport calls this for those that it
    /// refuses itself.
    pub fn refuse_connection(&mut self, address: SocketAddr) {
        self.turn.metrics().connections_refused.add(1);
        if let Some(times) = self.turn.occurred("connections") {
            tracing::warn!(peer = %address, times, "max_connections reached, connection refused");
        }
    }

    /// Counts a connection that has come in, until what this returns is dropped. `None` if its network (the user, if it is
    /// a part of the program) has no room for it: the connection is to be closed.
    pub fn count_connection(
        &mut self,
        address: SocketAddr,
        (transport, via): (TransportKind, Via),
        identity: Option<&PeerIdentity>,
    ) -> Option<Box<MemoryShare>> {
        let program = identity.map(PeerIdentity::user).filter(|user| User::is_program(Some(user)));
        let owner = self.turn.broker.memory.owner(program, site(address.ip()));
        let share = MemoryShare::take(owner, Account::Connections, transport.memory_bytes(via));
        if share.is_none() {
            self.turn.metrics().connections_refused.add(1);
            self.turn.metrics().memory_refused.add(1);
            if let Some(times) = self.turn.occurred("connections") {
                tracing::warn!(peer = %address, transport = %transport, times,
                    "connection refused: connections from its network have their share of [limits] memory");
            }
        }
        // A pointer, as a connection is small.
        share.map(Box::new)
    }

    /// Sets the time; called once per turn.
    pub fn set_now(&mut self, now: Timestamp) {
        self.turn.now = now;
        self.turn.see_storage();
    }

    /// Sets what the system's clock shows now.
    pub fn set_wall(&mut self, wall: Timestamp) {
        self.turn.broker.set_wall(self.turn.now, wall);
    }

    /// The system's time, which dates credentials and bans.
    pub(crate) fn wall(&self) -> Timestamp {
        self.turn.broker.wall(self.turn.now)
    }

    /// The time set last.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.turn.now
    }

    /// Whether everybody may publish to this topic.
    #[inline]
    pub(crate) fn is_open_to(&mut self, topic: &str) -> bool {
        self.turn.broker.is_open_to(topic, &mut self.open_topics)
    }

    /// The broker this is a part of.
    #[must_use]
    pub fn broker(&self) -> &Arc<Broker> {
        &self.turn.broker
    }

    /// This worker's counters.
    #[must_use]
    pub fn metrics(&self) -> &ShardMetrics {
        self.turn.metrics()
    }

    /// Whether events from other workers wait to be taken.
    #[must_use]
    pub fn has_events(&self) -> bool {
        self.turn.broker.mailboxes[self.turn.index].has_events()
    }

    /// Ends a turn: submits the storage batch, and sends the other workers their events.
    pub fn end_turn(&mut self) {
        self.hand_on_jobs();
        self.turn.end();
    }

    /// Called before the worker sleeps. False if it must not, because an event has arrived.
    #[must_use]
    pub fn before_sleep(&mut self) -> bool {
        if self.turn.has_work() {
            return false;
        }
        let mailbox = &self.turn.broker.mailboxes[self.turn.index];
        if !mailbox.fall_asleep() {
            return false;
        }
        // What happened between the last look and falling asleep would have found us awake.
        if self.turn.may_release() {
            mailbox.wake_up();
            return false;
        }
        true
    }

    /// Called when the worker is awake again.
    pub fn after_sleep(&mut self) {
        self.turn.broker.mailboxes[self.turn.index].wake_up();
    }

    /// When [`Shard::on_deadline`] is to be called; only the first worker does housekeeping.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        let housekeeping = (self.turn.index == 0).then(|| self.turn.broker.next_housekeeping());
        let long_wait = Some(self.turn.long_wait_at()).filter(|at| *at != Timestamp::NEVER);
        housekeeping.into_iter().chain(self.turn.overdue_at()).chain(long_wait).min()
    }

    /// Whether this turn has done as much as it should: what can wait is for the next.
    #[must_use]
    pub fn is_turn_over(&self) -> bool {
        self.turn.fan_out.is_over() || self.turn.sends.is_over()
    }

    /// Whether a publication of this size in bytes to `topic` now would be one of those that give way to others.
    pub(crate) fn reaches_many(&mut self, topic: &str, bytes: usize) -> bool {
        let (visits, copies) = self.receivers(topic);
        is_much(visits, copies.saturating_mul(bytes))
    }

    /// How many sessions a publication to `topic` now could visit, and how many copies there would be.
    pub(crate) fn receivers(&mut self, topic: &str) -> (usize, usize) {
        let broker = Arc::clone(&self.turn.broker);
        let route = self.routes.find(&broker, topic, &mut self.turn.fan_out);
        let members = route.shared.iter().map(|group| group.len());
        let targets = route.targets.len();
        (targets + members.sum::<usize>(), targets + route.shared.len())
    }

    /// What it would cost to publish a will now, in visits.
    pub(crate) fn cost_of_will(&mut self, will: &Will) -> usize {
        let (visits, copies) = self.receivers(&will.topic);
        cost(visits, copies.saturating_mul(will.bytes()))
    }

    /// Whether a will that is due has to wait for a later turn.
    pub(crate) fn will_waits(&mut self, will: &Will) -> bool {
        self.turn.fan_out.must_wait(WILLS) && self.reaches_many(&will.topic, will.bytes())
    }

    /// Whether a will that is due has to wait because an internal session that is behind would get it.
    pub(crate) fn will_is_delayed(&mut self, will: &Will) -> bool {
        let broker = Arc::clone(&self.turn.broker);
        if !broker.back_pressure.is_on() {
            return false;
        }
        let route = self.routes.find(&broker, &will.topic, &mut self.turn.fan_out);
        broker.back_pressure.is_behind(route.targets.iter().map(|target| target.session.key()))
    }

    /// An empty buffer, perhaps with capacity.
    #[must_use]
    pub fn buffer(&mut self) -> Vec<u8> {
        self.turn.buffer()
    }

    /// Takes a buffer back.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.turn.recycle(buffer);
    }

    /// For tests: sets the function that is called within this worker's publications, after the receivers are found and
    /// before each of them gets the message.
    pub fn set_test_hook(&mut self, hook: Option<Box<dyn FnMut() + Send>>) {
        self.test_hook = TestHook(hook);
    }
}
