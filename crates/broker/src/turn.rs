//! What one turn of a worker's event loop collects: storage operations, events, and what waits for storage.

use std::collections::VecDeque;
use std::sync::Arc;

use fulmar_auth::{Timestamp, User, text_of};
use fulmar_mqtt::PacketId;
use smallvec::SmallVec;

use crate::broker::Broker;
use crate::deferred_ops::{DeferredOps, TurnNumber, TurnStamp};
use crate::event::BrokerEvent;
use crate::fan_out::FanOutBudget;
use crate::limits::Limits;
use crate::log_limiter::LogLimiter;
use crate::mailbox::{Addressed, Attachment};
use crate::memory::MemoryOwner;
use crate::message::Message;
use crate::metrics::ShardMetrics;
use crate::peer::Token;
use crate::send_line::SendLine;
use crate::session::Session;
use crate::storage::{FlowId, Op, Position, Seq};
use crate::tracer::{TraceInHand, TraceNumber};
use crate::waiting::{self, WaitCause, WaitCauses, WaitTable};

/// For [`Turn::occurred`]: what finds no room in [`crate::memory`].
pub(crate) const MEMORY_FULL: &str = "[limits] memory";

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
    /// Effects of a traced publication.
    Trace(TraceNumber),
}

/// A turn whose batch storage has.
#[derive(Clone, Copy, Debug)]
struct Submitted {
    turn: TurnNumber,
    seq: Seq,
    at: Timestamp,
}

/// Causes that a commit, and a stall that begins or ends, may end.
const FOR_STORAGE: [WaitCause; 2] = [WaitCause::Storage, WaitCause::Stall];

/// Wake-up of the connections that wait for storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StorageState {
    committed: Seq,
    stalled: bool,
}

/// Results that a turn collects; apart from [`Shard`](crate::Shard) so that a cached route can be read meanwhile.
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
    /// The state of storage for which connections were woken last.
    woken_by_storage: StorageState,
    /// [`BackPressure::falls`](crate::back_pressure::BackPressure) when they were woken for that last.
    woken_by_falls: u64,
    /// The time at which some wait will be long.
    long_wait_at: Timestamp,
    /// Budget of publications in the turn, and the connections that wait for a later one.
    pub(crate) fan_out: FanOutBudget,
    /// Connections that send large messages in this turn.
    pub(crate) sends: SendLine,
    /// By what they count: bounds that were reached, and refusals.
    log_limiters: SmallVec<[(&'static str, LogLimiter); 4]>,
    /// A receiver of the publication in hand had no room for it there.
    pub(crate) memory_refused: bool,
    /// For whom the message that is published next counts if it is retained.
    pub(crate) retainer: Option<Arc<MemoryOwner>>,
    /// Jobs of members that have ended in this turn, with their shared subscription and when they were stored.
    pub(crate) jobs: VecDeque<(Arc<Message>, u32, TurnStamp)>,
    /// The publication in hand, if it is traced.
    pub(crate) trace: Option<TraceInHand>,
}

impl Turn {
    pub(crate) fn new(broker: Arc<Broker>, index: usize, workers: usize, now: Timestamp) -> Turn {
        let per_turn = broker.limits().large_bytes_per_turn;
        let sends = SendLine::new(Arc::clone(&broker.send_backlog), per_turn, index, workers);
        Turn {
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
            woken_by_storage: StorageState::default(),
            woken_by_falls: 0,
            long_wait_at: Timestamp::NEVER,
            fan_out: FanOutBudget::default(),
            sends,
            log_limiters: SmallVec::new(),
            memory_refused: false,
            retainer: None,
            jobs: VecDeque::new(),
            trace: None,
        }
    }

    /// Logs that a bound in `[limits]` was reached, at intervals.
    pub(crate) fn log_bound(
        &mut self,
        bound: &'static str,
        client: &str,
        user: Option<&User>,
        what: std::fmt::Arguments<'_>,
    ) {
        if let Some(times) = self.occurred(bound) {
            tracing::warn!(client, user = text_of(user), times, "{what}: {bound} reached");
        }
    }

    /// Counts something that is logged at intervals. If it is to be logged now, returns how often it has occurred since the
    /// last log line.
    pub(crate) fn occurred(&mut self, event: &'static str) -> Option<u64> {
        let known = self.log_limiters.iter().position(|(known, _)| *known == event);
        let at = known.unwrap_or_else(|| {
            self.log_limiters.push((event, LogLimiter::default()));
            self.log_limiters.len() - 1
        });
        self.log_limiters[at].1.occurred(self.now)
    }

    pub(crate) fn limits(&self) -> &Limits {
        self.broker.limits()
    }

    pub(crate) fn metrics(&self) -> &ShardMetrics {
        self.broker.metrics().shard(self.index)
    }

    pub(crate) fn attachment(&self, token: Token) -> Attachment {
        Attachment { shard: self.worker(), token }
    }

    fn worker(&self) -> u16 {
        // Workers are counted in cores; the broker refuses to be made for more than u16::MAX.
        u16::try_from(self.index).unwrap_or(u16::MAX)
    }

    /// Sends the connection at `at` the event that its session has output.
    pub(crate) fn ready(&mut self, at: Attachment) {
        self.notify(at, BrokerEvent::Ready);
    }

    /// The same of a session that has a large message.
    pub(crate) fn ready_large(&mut self, at: Attachment) {
        self.sends.announce();
        self.notify(at, BrokerEvent::ReadyLarge);
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
        let own = self.worker();
        let (handed_over, deferred) = (&self.broker.handed_over, &mut self.deferred);
        deferred.move_ready(
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
        let retained = broker.retained.read();
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
        TurnStamp { shard: self.worker(), turn: self.number.0, moved: false }
    }

    /// Does what [`Turn::stamp`] does, for those who wait for the turn's end whether it stores something or not.
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
        self.broker.handed_over[shard].covers(stamp)
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

    /// Whether clients may get acknowledgements now.
    pub(crate) fn may_acknowledge(&self) -> bool {
        self.broker.storage().may_acknowledge()
    }

    /// The newest turn whose batch is durable.
    pub(crate) fn durable(&self) -> TurnNumber {
        self.durable
    }

    /// Whether storage is so far behind that clients must wait. What this turn has for it counts already: a turn can be
    /// long.
    pub(crate) fn storage_is_behind(&self) -> bool {
        let backlog = self.broker.storage().backlog().saturating_add(self.batch_len());
        backlog > self.limits().max_storage_backlog
    }

    /// Whether what would have to be stored has to wait because storage is behind. While storage is stalled it need not:
    /// it is refused, or nobody could refuse it.
    pub(crate) fn waits_for_storage(&self) -> bool {
        self.storage_is_behind() && !self.stalled
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
    pub(crate) fn overdue_at(&self) -> Option<Timestamp> {
        let next = self.submitted.partition_point(|batch| batch.turn <= self.overdue);
        self.submitted.get(next).map(|batch| batch.at + self.limits().storage_stall_timeout)
    }

    /// Whether batches are overdue that were not found so.
    pub(crate) fn is_overdue(&self) -> bool {
        self.overdue_at().is_some_and(|at| at <= self.now)
    }

    /// Finds the batches that are overdue, and notifies the connections that wait for them.
    pub(crate) fn find_overdue(&mut self) {
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

    pub(crate) fn end(&mut self) {
        self.take_deferred();
        let was_behind = self.storage_is_behind();
        let is_awaited = self.waiters.back().is_some_and(|(turn, _)| *turn == self.number);
        // Removals that wait count for the backlog.
        if !is_awaited && !was_behind && self.only_removes_deliveries() {
            self.broker.storage().submit_removals(&mut self.batch);
            self.turn_handed_over();
        } else if self.batch_len() > 0 || is_awaited {
            let seq = self.submit();
            self.submitted.push_back(Submitted { turn: self.number, seq, at: self.now });
            self.turn_handed_over();
        } else if self.awaitable {
            self.turn_handed_over();
        }
        self.awaitable = false;
        if was_behind && !self.storage_is_behind() {
            // It was only this turn that had much, and no commit may follow: without storage, there are none.
            self.wake(&FOR_STORAGE);
        }
        self.fan_out.end_turn();
        self.sends.end_turn();
        for (mailbox, events) in self.broker.mailboxes.iter().zip(&mut self.outgoing) {
            mailbox.post(events);
        }
    }

    /// Whether the turn only removes messages from queues, such as those that clients have acknowledged.
    fn only_removes_deliveries(&self) -> bool {
        let mut ops = self.batch.iter();
        self.retained.is_empty()
            && !self.batch.is_empty()
            && ops.all(|op| matches!(op, Op::Dequeue { .. }))
    }

    /// Storage has this turn's batch: says so to the other workers and begins the next.
    fn turn_handed_over(&mut self) {
        let settled = self.deferred.settled(self.number.0);
        self.broker.handed_over[self.index].advance(self.number.0, settled);
        self.number.0 += 1;
    }

    fn waiting(&self) -> &WaitTable {
        &self.broker.waiting[self.index]
    }

    /// Brings the table of connections that wait up to date with one whose causes have changed.
    pub(crate) fn set_waits(&mut self, token: Token, before: WaitCauses, waits: WaitCauses) {
        for cause in WaitCause::ALL {
            match (before.contains(cause), waits.contains(cause)) {
                (true, false) => self.waiting().remove(token, cause),
                (false, true) => {
                    self.waiting().insert(token, cause, self.now);
                    self.long_wait_at = self.long_wait_at.min(waiting::long_at(self.now));
                }
                _ => {}
            }
        }
    }

    /// The time at which [`Turn::announce_long_waits`] has something to do.
    pub(crate) fn long_wait_at(&self) -> Timestamp {
        self.long_wait_at
    }

    /// Has connections log that they have waited for long.
    pub(crate) fn announce_long_waits(&mut self) {
        if self.long_wait_at <= self.now {
            let (table, ready) = (&self.broker.waiting[self.index], &mut self.ready);
            self.long_wait_at = table.take_long(self.now, |token, cause| {
                ready.push((token, BrokerEvent::WaitsLong(cause)));
            });
        }
    }

    /// Has the connections that wait for these causes decide again.
    fn wake(&mut self, causes: &[WaitCause]) {
        let table = &self.broker.waiting[self.index];
        for cause in causes {
            table.for_each(*cause, |token| self.ready.push((token, BrokerEvent::Ready)));
        }
    }

    fn waits_for_any(&self, causes: &[WaitCause]) -> bool {
        causes.iter().any(|cause| self.waiting().len(*cause) > 0)
    }

    fn storage_state(&self) -> StorageState {
        let committed = self.broker.storage().committed();
        StorageState { committed, stalled: self.broker.stall_lasts() }
    }

    fn may_wake_for_storage(&self) -> bool {
        self.waits_for_any(&FOR_STORAGE) && self.storage_state() != self.woken_by_storage
    }

    fn may_wake_for_sessions(&self) -> bool {
        self.waits_for_any(&[WaitCause::InternalSession])
            && self.broker.back_pressure.falls() != self.woken_by_falls
    }

    /// Has connections decide again whether to wait if what they wait for may have happened.
    pub(crate) fn wake_waiting(&mut self) {
        // Before they decide: what happens later wakes them again.
        if self.may_wake_for_storage() {
            self.woken_by_storage = self.storage_state();
            self.wake(&FOR_STORAGE);
        }
        if self.may_wake_for_sessions() {
            self.woken_by_falls = self.broker.back_pressure.falls();
            self.wake(&[WaitCause::InternalSession]);
        }
        self.sends.call(|token| self.ready.push((token, BrokerEvent::Ready)));
    }

    /// Whether something that waits may continue: for storage, or because an internal session is no longer behind.
    pub(crate) fn may_release(&self) -> bool {
        let front = self.submitted.front();
        let is_durable = |seq| self.broker.storage().committed() >= seq && self.may_acknowledge();
        front.is_some_and(|batch| is_durable(batch.seq))
            || self.may_wake_for_storage()
            || self.may_wake_for_sessions()
    }

    /// Finds how far storage is.
    pub(crate) fn see_commits(&mut self) {
        if self.submitted.is_empty() {
            return;
        }
        let committed = self.broker.storage().committed();
        // Asked last: it holds for everything that is seen as durable now.
        if !self.may_acknowledge() {
            return;
        }
        while let Some(&Submitted { turn, seq, .. }) = self.submitted.front()
            && seq <= committed
        {
            self.durable = turn;
            self.submitted.pop_front();
        }
    }

    /// The next that waited for a turn that is durable now, and that turn.
    pub(crate) fn next_durable(&mut self) -> Option<(TurnNumber, Waiter)> {
        let durable = self.durable;
        self.waiters.pop_front_if(|(turn, _)| *turn <= durable)
    }

    /// Whether there is work for the next turn.
    pub(crate) fn has_work(&self) -> bool {
        !self.ready.is_empty()
            || self.waits_for_workers()
            || self.fan_out.has_line()
            || self.sends.has_work()
    }

    /// Sends an event to a connection of this worker.
    pub(crate) fn notify_own(&mut self, token: Token, event: BrokerEvent) {
        self.ready.push((token, event));
    }

    /// Appends the events of this worker's connections to `out`.
    pub(crate) fn take_events(&mut self, out: &mut Vec<Addressed>) {
        let before = out.len();
        self.broker.mailboxes[self.index].drain_into(out);
        out.append(&mut self.ready);
        self.sends.count_announcements(&out[before..]);
    }

    /// Sees whether storage is stalled.
    pub(crate) fn see_storage(&mut self) {
        self.stalled = self.broker.is_storage_stalled();
    }
}
