//! A worker's part of the broker: what one thread owns, and what one turn of its event loop collects.
//!
//! In a turn, the transport passes received bytes in, which may append to sessions of any worker, to the storage batch
//! and to the lists of events; [`Shard::take_events`] then returns the events of this worker's connections, such as
//! that they have something to send; [`Shard::end_turn`] submits the storage batch and sends events to other workers.
//! What waits for storage is released in the turn after its commit.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use fulmar_mqtt::PacketId;
use rustc_hash::FxHashSet;

use crate::broker::Broker;
use crate::deferred_ops::{DeferredOps, TurnNumber, TurnStamp};
use crate::event::BrokerEvent;
use crate::fan_out::{FEW_VISITS, FanOutBudget, WILLS};
use crate::limits::Limits;
use crate::log_limiter::LogLimiter;
use crate::mailbox::{Addressed, Attachment};
use crate::metrics::ShardMetrics;
use crate::peer::Token;
use crate::publish::Parcel;
use crate::route::RouteCache;
use crate::session::Session;
use crate::storage::{FlowId, Op, Position, Seq};
use crate::test_hook::TestHook;
use crate::time::Timestamp;
use crate::will::Will;

/// Buffers kept for reuse, and the largest worth keeping.
const POOLED_BUFFERS: usize = 256;
const POOLED_BUFFER_BYTES: usize = 64 * 1024;

/// Something that may happen once its turn's batch is durable.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// A connection has acknowledgements to send.
    Acknowledge(Token),
    /// A flow on a new stream may send again what is not acknowledged.
    Resend(Arc<Session>, FlowId),
    /// A QoS 2 message may be sent under its now durable identifier.
    Send(Arc<Session>, FlowId, PacketId, Position),
}

/// A turn whose batch storage has.
#[derive(Clone, Copy, Debug)]
struct Submitted {
    turn: TurnNumber,
    seq: Seq,
    at: Timestamp,
}

/// A worker's part of the broker. One a thread; every call of the core takes it.
#[derive(Debug)]
pub struct Shard {
    pub(crate) routes: RouteCache,
    pub(crate) parcel: Parcel,
    pub(crate) turn: Turn,
    /// For connections beyond the limit.
    connections_full: LogLimiter,
    /// For retained messages beyond their bounds.
    pub(crate) retained_full: LogLimiter,
    /// For logins that the queue had no room for.
    pub(crate) logins_full: LogLimiter,
    /// For client identifiers that belong to other users.
    pub(crate) foreign_client_id: LogLimiter,
    /// Sessions with a will that is due and gives way.
    pub(crate) wills: VecDeque<Arc<Session>>,
    pub(crate) test_hook: TestHook,
}

/// What a turn gathers; apart from [`Shard`] so that a cached route can be read meanwhile.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) broker: Arc<Broker>,
    pub(crate) index: usize,
    pub(crate) now: Timestamp,
    number: TurnNumber,
    /// Somebody may wait for this turn's end, although it may store nothing: [`Turn::awaitable_stamp`].
    awaitable: bool,
    ready: Vec<Addressed>,
    outgoing: Vec<Vec<Addressed>>,
    batch: Vec<Op>,
    /// Operations that wait for other workers' turns to end.
    deferred: DeferredOps,
    /// Topics whose retained message has changed in this turn.
    retained: Vec<Box<str>>,
    submitted: VecDeque<Submitted>,
    waiters: VecDeque<(TurnNumber, Waiter)>,
    durable: TurnNumber,
    /// The last turn that was found overdue.
    overdue: TurnNumber,
    /// Whether storage is stalled, as of the beginning of the turn; see [`crate::stall`].
    stalled: bool,
    pool: Vec<Vec<u8>>,
    /// Connections that wait for storage.
    held: FxHashSet<Token>,
    /// How far storage was when the first of them began to wait.
    held_since: Seq,
    /// Connections that wait because an internal session is behind.
    delayed: FxHashSet<Token>,
    /// [`BackPressure::falls`](crate::back_pressure::BackPressure) when the first of them began to wait.
    delayed_since: u64,
    /// What publications may cost the turn, and which connections wait for a later one.
    pub(crate) fan_out: FanOutBudget,
    /// For subscriptions over an owner's quota.
    pub(crate) quota_full: LogLimiter,
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
        let workers = broker.mailboxes().len();
        assert!(index < workers, "worker {index} of {workers}");
        broker.mailboxes()[index].set_wake(Box::new(move || wake()));
        Shard {
            routes: RouteCache::default(),
            parcel: Parcel::default(),
            turn: Turn {
                broker,
                index,
                now,
                number: TurnNumber(1),
                awaitable: false,
                ready: Vec::new(),
                outgoing: (0..workers).map(|_| Vec::new()).collect(),
                batch: Vec::new(),
                deferred: DeferredOps::new(workers),
                retained: Vec::new(),
                submitted: VecDeque::new(),
                waiters: VecDeque::new(),
                durable: TurnNumber(0),
                overdue: TurnNumber(0),
                stalled: false,
                pool: Vec::new(),
                held: FxHashSet::default(),
                held_since: Seq(0),
                delayed: FxHashSet::default(),
                delayed_since: 0,
                fan_out: FanOutBudget::default(),
                quota_full: LogLimiter::default(),
            },
            connections_full: LogLimiter::default(),
            retained_full: LogLimiter::default(),
            logins_full: LogLimiter::default(),
            foreign_client_id: LogLimiter::default(),
            wills: VecDeque::new(),
            test_hook: TestHook::default(),
        }
    }

    /// Counts a connection beyond the limit, and logs it at intervals. The transport calls this for those that it
    /// refuses itself.
    pub fn refuse_connection(&mut self, address: SocketAddr) {
        self.turn.metrics().connections_refused.add(1);
        if let Some(times) = self.connections_full.occurred(self.turn.now) {
            tracing::warn!(peer = %address, times, "max_connections reached, connection refused");
        }
    }

    /// Sets the time; called once per turn.
    pub fn set_now(&mut self, now: Timestamp) {
        self.turn.now = now;
        self.turn.stalled = self.turn.broker.is_storage_stalled();
    }

    /// The time set last.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.turn.now
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

    /// Appends the events of this worker's connections: pass each to [`crate::Connection::on_event`], then flush that
    /// connection. Call it until it appends nothing.
    pub fn take_events(&mut self, out: &mut Vec<(Token, BrokerEvent)>) {
        self.turn.stalled = self.turn.broker.is_storage_stalled();
        self.turn.release_durable();
        self.turn.release_waiting();
        match self.turn.fan_out.call() {
            Some(WILLS) => crate::housekeeping::go_on(self),
            Some(token) => self.turn.ready.push((token, BrokerEvent::Ready)),
            None => {}
        }
        self.turn.broker.mailboxes()[self.turn.index].take(out);
        out.append(&mut self.turn.ready);
    }

    /// Whether events from other workers wait to be taken.
    #[must_use]
    pub fn has_events(&self) -> bool {
        self.turn.broker.mailboxes()[self.turn.index].has_events()
    }

    /// Ends a turn: submits the storage batch, and sends the other workers their events.
    pub fn end_turn(&mut self) {
        self.turn.end();
    }

    /// Called before the worker sleeps. False if it must not, because an event has arrived.
    #[must_use]
    pub fn before_sleep(&mut self) -> bool {
        let line = self.turn.fan_out.has_line();
        if !self.turn.ready.is_empty() || self.turn.waits_for_workers() || line {
            return false;
        }
        let broker = &self.turn.broker;
        let mailbox = &broker.mailboxes()[self.turn.index];
        if !mailbox.fall_asleep() {
            return false;
        }
        // A commit between the last look and falling asleep would have found us awake.
        let front = self.turn.submitted.front();
        if front.is_some_and(|batch| broker.storage().committed() >= batch.seq)
            || self.turn.may_release_held()
            || self.turn.may_release_delayed()
        {
            mailbox.wake_up();
            return false;
        }
        true
    }

    /// Called when the worker is awake again.
    pub fn after_sleep(&mut self) {
        self.turn.broker.mailboxes()[self.turn.index].wake_up();
    }

    /// When [`Shard::on_deadline`] is to be called; only the first worker does housekeeping.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        let housekeeping = (self.turn.index == 0).then(|| self.turn.broker.next_housekeeping());
        housekeeping.into_iter().chain(self.turn.overdue_at()).min()
    }

    /// Does what is due: finds storage stalled, and the housekeeping of session expiry, delayed wills, `$SYS`.
    pub fn on_deadline(&mut self) {
        self.turn.find_overdue();
        if self.turn.index == 0 {
            crate::housekeeping::run(self);
        }
    }

    /// Whether this turn has done as much as it should: what can wait is for the next.
    #[must_use]
    pub fn is_turn_over(&self) -> bool {
        self.turn.fan_out.is_over()
    }

    /// Whether a publication to `topic` now would reach many.
    pub(crate) fn reaches_many(&mut self, topic: &str) -> bool {
        let broker = Arc::clone(&self.turn.broker);
        let route = self.routes.find(&broker, topic, &mut self.turn.fan_out);
        let members = route.shared.iter().map(|group| group.len());
        route.targets.len() + members.sum::<usize>() > FEW_VISITS
    }

    /// Whether a will that is due has to wait for a later turn.
    pub(crate) fn will_waits(&mut self, will: &Will) -> bool {
        self.turn.fan_out.must_wait(WILLS) && self.reaches_many(&will.topic)
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
}

impl Turn {
    pub(crate) fn limits(&self) -> &Limits {
        self.broker.limits()
    }

    pub(crate) fn metrics(&self) -> &ShardMetrics {
        self.broker.metrics().shard(self.index)
    }

    pub(crate) fn attachment(&self, token: Token) -> Attachment {
        // Workers are counted in cores; the broker refuses to be made for more than u16::MAX.
        Attachment { shard: u16::try_from(self.index).unwrap_or(u16::MAX), token }
    }

    /// Sends the connection at `at` the event that its session has output.
    pub(crate) fn ready(&mut self, at: Attachment) {
        self.notify(at, BrokerEvent::Ready);
    }

    /// Sends an event for a connection, to another worker at the end of the turn.
    pub(crate) fn notify(&mut self, at: Attachment, event: BrokerEvent) {
        let shard = usize::from(at.shard);
        if shard == self.index {
            self.ready.push((at.token, event));
        } else {
            self.outgoing[shard].push((at.token, event));
        }
    }

    /// Appends to the storage batch.
    pub(crate) fn op(&mut self, op: Op) {
        self.batch.push(op);
    }

    /// Appends to the storage batch what changes or removes something that was stored in the turn
    /// `stamp`: not before storage has that, or it would come behind its own removal and stay.
    pub(crate) fn op_after(&mut self, stamp: TurnStamp, op: Op) {
        self.append_after(stamp, None, op);
    }

    /// Appends what stores anew a message that was stored in the turn `stamp`. What is stored of it
    /// later comes after the returned stamp.
    pub(crate) fn move_after(&mut self, stamp: TurnStamp, op: Op) -> TurnStamp {
        let moved = self.append_after(stamp, Some(self.number.0), op);
        TurnStamp { moved, ..self.stamp() }
    }

    /// Returns whether the operation was deferred.
    fn append_after(&mut self, stamp: TurnStamp, moves_since: Option<u64>, op: Op) -> bool {
        self.take_deferred();
        let defer = self.deferred.holds(stamp) || !self.has_handed_over(stamp);
        if defer {
            self.deferred.push(stamp, moves_since, op);
        } else {
            self.batch.push(op);
        }
        defer
    }

    /// Whether it waits for other workers' turns to end. It must not sleep meanwhile: no event announces the end of a
    /// turn, and turns are short.
    fn waits_for_workers(&self) -> bool {
        !self.deferred.is_empty()
    }

    fn take_deferred(&mut self) {
        if self.deferred.is_empty() {
            return;
        }
        let own = self.stamp().shard;
        let (handed_over, deferred) = (self.broker.handed_over(), &mut self.deferred);
        deferred.take(
            own,
            |stamp| handed_over[usize::from(stamp.shard)].covers(stamp),
            &mut self.batch,
        );
    }

    /// Stores what this topic retains when the turn ends: stored now, a message could reach storage
    /// behind a newer one from another worker whose turn is over sooner.
    pub(crate) fn store_retained(&mut self, topic: &str) {
        self.retained.push(topic.into());
    }

    /// Hands the batch over.
    fn submit(&mut self) -> Seq {
        let broker = Arc::clone(&self.broker);
        if self.retained.is_empty() {
            return broker.storage().submit(&mut self.batch);
        }
        self.retained.sort_unstable();
        self.retained.dedup();
        // Held until storage has the batch, so that nobody hands over a newer message before.
        let retained = broker.retained().read();
        for topic in self.retained.drain(..) {
            self.batch.push(match retained.get(&topic) {
                Some(message) => Op::RetainedPut(Arc::clone(message)),
                None => Op::RetainedRemove(topic),
            });
        }
        broker.storage().submit(&mut self.batch)
    }

    /// When something is appended to the batch now.
    pub(crate) fn stamp(&self) -> TurnStamp {
        // Workers are counted in cores; the broker refuses to be made for more than u16::MAX.
        TurnStamp {
            shard: u16::try_from(self.index).unwrap_or(u16::MAX),
            turn: self.number.0,
            moved: false,
        }
    }

    /// As [`Turn::stamp`], for those who wait for the turn's end whether it stores something or not.
    pub(crate) fn awaitable_stamp(&mut self) -> TurnStamp {
        self.awaitable = true;
        self.stamp()
    }

    /// Whether storage has what was appended then, or gets it before what is appended now.
    pub(crate) fn has_handed_over(&self, stamp: TurnStamp) -> bool {
        let shard = usize::from(stamp.shard);
        if shard == self.index {
            return !stamp.moved || self.deferred.settled(stamp.turn) == stamp.turn;
        }
        self.broker.handed_over()[shard].covers(stamp)
    }

    /// Number of operations so far: whether something was stored since.
    pub(crate) fn batch_len(&self) -> usize {
        self.batch.len() + self.retained.len()
    }

    /// Registers something to happen when all that this turn stores is durable, and says which
    /// turn that is.
    pub(crate) fn when_durable(&mut self, waiter: Waiter) -> TurnNumber {
        self.waiters.push_back((self.number, waiter));
        self.number
    }

    /// The newest turn whose batch is durable.
    pub(crate) fn durable(&self) -> TurnNumber {
        self.durable
    }

    /// Whether storage is so far behind that publishers must wait.
    pub(crate) fn storage_is_behind(&self) -> bool {
        self.broker.storage().backlog() > self.limits().max_storage_backlog
    }

    /// Whether storage is stalled.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// The last turn of this worker that was found overdue.
    pub(crate) fn overdue(&self) -> TurnNumber {
        self.overdue
    }

    /// When the oldest batch that was not found overdue will be.
    fn overdue_at(&self) -> Option<Timestamp> {
        let next = self.submitted.partition_point(|batch| batch.turn <= self.overdue);
        self.submitted.get(next).map(|batch| batch.at + self.limits().storage_stall_timeout)
    }

    /// Finds the batches that are overdue, and notifies the connections that wait for them.
    fn find_overdue(&mut self) {
        if self.overdue_at().is_none_or(|at| at > self.now) {
            return;
        }
        self.release_durable();
        let timeout = self.limits().storage_stall_timeout;
        let due = self.submitted.partition_point(|batch| batch.at + timeout <= self.now);
        let Some(last) = due.checked_sub(1).and_then(|at| self.submitted.get(at)).copied() else {
            return;
        };
        self.broker.storage_stalls(last.seq);
        self.stalled = self.broker.is_storage_stalled();
        let told = self.waiters.partition_point(|(turn, _)| *turn <= self.overdue);
        let to = self.waiters.partition_point(|(turn, _)| *turn <= last.turn);
        self.overdue = self.overdue.max(last.turn);
        let mut before = None;
        for (_, waiter) in self.waiters.range(told.min(to)..to) {
            if let Waiter::Acknowledge(token) = waiter
                && before.replace(*token) != Some(*token)
            {
                self.ready.push((*token, BrokerEvent::Overdue));
            }
        }
    }

    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.pool.pop().unwrap_or_default()
    }

    pub(crate) fn recycle(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity == 0 || capacity > POOLED_BUFFER_BYTES || self.pool.len() >= POOLED_BUFFERS {
            return;
        }
        buffer.clear();
        self.pool.push(buffer);
    }

    fn end(&mut self) {
        self.take_deferred();
        if self.batch_len() > 0 || self.waiters.back().is_some_and(|w| w.0 == self.number) {
            let seq = self.submit();
            self.submitted.push_back(Submitted { turn: self.number, seq, at: self.now });
            self.turn_handed_over();
        } else if self.awaitable {
            self.turn_handed_over();
        }
        self.awaitable = false;
        self.fan_out.end_turn();
        for (mailbox, events) in self.broker.mailboxes().iter().zip(&mut self.outgoing) {
            mailbox.post(events);
        }
    }

    /// Storage has this turn's batch: says so to the other workers and begins the next.
    fn turn_handed_over(&mut self) {
        let settled = self.deferred.settled(self.number.0);
        self.broker.handed_over()[self.index].advance(self.number.0, settled);
        self.number.0 += 1;
    }

    /// Notes that a connection waits for storage.
    pub(crate) fn hold(&mut self, token: Token) {
        if self.held.is_empty() {
            self.held_since = self.broker.storage().committed();
        }
        self.held.insert(token);
    }

    /// Notes that a connection waits because an internal session is behind, as of this number of
    /// [`BackPressure::falls`](crate::back_pressure::BackPressure).
    pub(crate) fn delay(&mut self, token: Token, falls: u64) {
        if self.delayed.is_empty() {
            self.delayed_since = falls;
        }
        self.delayed.insert(token);
    }

    /// Whether a connection waits because an internal session is behind.
    pub(crate) fn is_delayed(&self, token: Token) -> bool {
        self.delayed.contains(&token)
    }

    fn may_release_held(&self) -> bool {
        !self.held.is_empty() && self.broker.storage().committed() > self.held_since
    }

    fn may_release_delayed(&self) -> bool {
        !self.delayed.is_empty() && self.broker.back_pressure().falls() != self.delayed_since
    }

    /// Lets connections be read from again if what they wait for may have happened. Those that still have to wait note
    /// themselves anew.
    fn release_waiting(&mut self) {
        let ready = |token| (token, BrokerEvent::Ready);
        if self.may_release_held() {
            self.ready.extend(self.held.drain().map(ready));
        }
        if self.may_release_delayed() {
            self.ready.extend(self.delayed.drain().map(ready));
        }
    }

    /// Lets go what waited for commits that have happened.
    fn release_durable(&mut self) {
        if self.submitted.is_empty() {
            return;
        }
        let committed = self.broker.storage().committed();
        while let Some(&Submitted { turn, seq, .. }) = self.submitted.front()
            && seq <= committed
        {
            self.durable = turn;
            self.submitted.pop_front();
        }
        while let Some((turn, _)) = self.waiters.front()
            && *turn <= self.durable
        {
            let turn = *turn;
            match self.waiters.pop_front() {
                Some((_, Waiter::Acknowledge(token))) => {
                    self.ready.push((token, BrokerEvent::Durable));
                }
                Some((_, Waiter::Send(session, flow, packet_id, position))) => {
                    session.lock().release(&session, self, flow, packet_id, position);
                }
                Some((_, Waiter::Resend(session, flow))) => {
                    crate::flows::resend(&mut session.lock(), self, flow, turn);
                }
                None => {}
            }
        }
    }
}
