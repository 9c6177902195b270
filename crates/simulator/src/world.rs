//! The broker with workers that run step by step, and a network whose packets arrive when the schedule decides.
//!
//! A worker sleeps as the real one does: it does nothing until a packet, a timer or another worker wakes it. Work
//! forgotten before a worker falls asleep is therefore missing here too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fulmar_broker::auth::AccessControl;
use fulmar_broker::storage::{Restored, SessionRecord};
use fulmar_broker::{
    Account, Broker, BrokerConfig, ClientStatistics, Connection, Limits, ListenerPolicy, LostCause,
    Peer, PublishHook, ReadState, Shard, StreamAction, StreamEnd, StreamKey, Timestamp, Token,
    TransportKind,
};
use fulmar_mqtt::codec::peek_frame;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::disk::Volume;
use crate::schedule::{Amid, Aside};

/// First byte of a DISCONNECT.
pub(crate) const DISCONNECT: u8 = 0xE0;

/// Input from a client that is in flight to the broker.
#[derive(Clone, Debug)]
pub enum Input {
    /// One packet, or a flow header.
    Bytes(Vec<u8>),
    /// The client's end of the stream.
    End(StreamEnd),
}

/// One stream of a network connection.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) key: StreamKey,
    to_broker: VecDeque<Input>,
    to_client: VecDeque<Vec<u8>>,
    /// The broker does not read from it until an event.
    blocked: bool,
    opened: bool,
    /// The network accepts no more for the client until the client has read something.
    full: bool,
}

/// A network connection.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) worker: usize,
    /// `None` during a publication in which other workers act.
    connection: Option<Connection>,
    pub(crate) wires: Vec<Wire>,
    /// Whether the broker's end is open.
    pub(crate) open: bool,
    /// The client has closed it, and the broker has not detected that yet.
    cut: bool,
    /// Whether the transport is to ask for output.
    flush: bool,
    /// Packets per stream that the network holds for the client.
    room: usize,
    /// The broker has read the client's DISCONNECT.
    pub(crate) said_goodbye: bool,
    /// When the broker's end was closed.
    pub(crate) closed_at: Option<Timestamp>,
    /// Streams that the broker has aborted: data sent there is lost.
    pub(crate) aborted: Vec<StreamKey>,
}

#[derive(Debug)]
struct Worker {
    /// `None` during a publication in which other workers act.
    shard: Option<Shard>,
    asleep: bool,
    woken: Arc<AtomicBool>,
}

/// The broker, its storage, its network and the time.
pub struct World {
    /// The broker's storage.
    pub disk: Arc<dyn Volume>,
    broker: Arc<Broker>,
    workers: Vec<Worker>,
    pub(crate) lines: Vec<Line>,
    /// The time.
    pub now: Timestamp,
    limits: Limits,
    /// Messages that earlier brokers have dropped because of a full queue.
    dropped_before: u64,
}

impl World {
    /// A world with the empty storage `disk`.
    #[must_use]
    pub fn new(disk: Arc<dyn Volume>, workers: usize, limits: Limits) -> World {
        let now = Timestamp(1_000_000);
        World::start(disk, Restored::default(), workers, limits, now)
    }

    fn start(
        disk: Arc<dyn Volume>,
        restored: Restored,
        workers: usize,
        limits: Limits,
        now: Timestamp,
    ) -> World {
        let config = BrokerConfig {
            workers,
            limits: limits.clone(),
            access_control: AccessControl::default(),
            sys_interval_s: 0,
            client_statistics: ClientStatistics::Rules,
            internal_sessions: Vec::new(),
        };
        let broker = Broker::new(config, Arc::clone(&disk) as _, restored, now);
        let worker = |index| {
            let woken = Arc::new(AtomicBool::new(false));
            let wake = Arc::clone(&woken);
            let wake = Arc::new(move || wake.store(true, Ordering::Relaxed));
            let shard = Shard::new(Arc::clone(&broker), index, now, wake);
            Worker { shard: Some(shard), asleep: false, woken }
        };
        let workers = (0..workers).map(worker).collect();
        World { disk, broker, workers, lines: Vec::new(), now, limits, dropped_before: 0 }
    }

    /// The process dies and starts again with this many workers: all connections and uncommitted batches are lost.
    /// Returns the sessions that are in storage then.
    ///
    /// # Errors
    /// Storage contradicts itself.
    pub fn crash(&mut self, workers: usize) -> Result<Vec<SessionRecord>, String> {
        let (disk, restored) = self.disk.crash();
        if let Some(what) = disk.durable().contradiction() {
            return Err(what);
        }
        let sessions = restored.sessions.clone();
        let dropped_before = self.dropped();
        let next = World::start(disk, restored, workers, self.limits.clone(), self.now);
        *self = World { dropped_before, ..next };
        Ok(sessions)
    }

    /// Messages dropped because of a full queue.
    pub(crate) fn dropped(&self) -> u64 {
        let now = self.broker.metrics().sum(|worker| &worker.messages_dropped_queue);
        self.dropped_before + now
    }

    /// Bytes of all messages that the broker keeps, and of those that are retained.
    pub(crate) fn kept_bytes(&self) -> (usize, usize) {
        (self.broker.memory_totals(Account::Messages).0, self.broker.retained_totals().1)
    }

    /// The number of workers.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Lets `hook` see clients' publications until the process dies.
    pub fn set_publish_hook(&self, hook: Arc<dyn PublishHook>) {
        self.broker.set_publish_hook(hook);
    }

    /// Whether the broker's end of a connection is open.
    #[must_use]
    pub fn is_open(&self, line: usize) -> bool {
        self.lines[line].open
    }

    /// Opens a connection to a worker; the network holds `room` packets per stream for a slow client.
    pub fn open(&mut self, worker: usize, quic: bool, room: usize) -> Option<usize> {
        let at = self.lines.len();
        let peer = Peer {
            address: ([127, 0, 0, 1], 1000).into(),
            transport: if quic { TransportKind::Quic } else { TransportKind::Tcp },
            identity: None,
            listener: Arc::new(ListenerPolicy { name: "sim".into(), allow_anonymous: true }),
        };
        let worker = worker % self.workers.len();
        self.wake(worker);
        let shard = self.workers[worker].shard.as_mut()?;
        let connection = Some(Connection::new(shard, Token(at as u64), peer).ok()?);
        let (wires, open) = (vec![Wire::new(StreamKey::CONTROL)], true);
        self.lines.push(Line {
            worker,
            connection,
            wires,
            open,
            cut: false,
            flush: false,
            room,
            said_goodbye: false,
            closed_at: None,
            aborted: Vec::new(),
        });
        Some(at)
    }

    /// The client sends something on a stream, which this opens.
    pub fn say(&mut self, line: usize, key: StreamKey, input: Input) {
        let line = &mut self.lines[line];
        if line.cut || line.aborted.contains(&key) {
            return;
        }
        if let Some(wire) = line.wires.iter_mut().find(|wire| wire.key == key) {
            wire.to_broker.push_back(input);
        } else {
            let mut wire = Wire::new(key);
            wire.to_broker.push_back(input);
            line.wires.push(wire);
        }
    }

    /// The client resets a stream; its unread data is lost.
    pub(crate) fn reset(&mut self, line: usize, key: StreamKey) {
        if let Some(wire) = self.lines[line].wires.iter_mut().find(|wire| wire.key == key) {
            wire.to_broker.clear();
            wire.to_broker.extend(wire.opened.then_some(Input::End(StreamEnd::Reset(0))));
        }
    }

    /// The client closes the connection. Its last packets may be lost.
    pub fn cut(&mut self, line: usize, lossy: bool) {
        let line = &mut self.lines[line];
        line.cut = true;
        for wire in &mut line.wires {
            wire.to_client.clear();
            if lossy {
                wire.to_broker.clear();
            }
        }
    }

    /// Takes the next packet for the client on a stream.
    pub fn receive(&mut self, line: usize, key: StreamKey) -> Option<Vec<u8>> {
        let line = &mut self.lines[line];
        let wire = line.wires.iter_mut().find(|wire| wire.key == key)?;
        let packet = wire.to_client.pop_front()?;
        // The network accepts more now. If it was full before, the worker is woken to send more.
        if line.open && std::mem::replace(&mut wire.full, false) {
            line.flush = true;
            let worker = line.worker;
            self.wake(worker);
        }
        Some(packet)
    }

    /// Streams with packets for the client.
    pub(crate) fn audible(&self, line: usize) -> Vec<StreamKey> {
        let wires = self.lines[line].wires.iter();
        wires.filter(|wire| !wire.to_client.is_empty()).map(|wire| wire.key).collect()
    }

    /// Connections with input for the broker.
    #[must_use]
    pub fn readable(&self) -> Vec<usize> {
        let readable = |line: &Line| {
            let wires = || line.wires.iter().any(Wire::is_readable);
            line.open && line.connection.is_some() && (line.cut || wires())
        };
        let is_free = |line: &Line| self.workers[line.worker].shard.is_some();
        let able = |at: &usize| readable(&self.lines[*at]) && is_free(&self.lines[*at]);
        (0..self.lines.len()).filter(able).collect()
    }

    /// A worker reads one input of a connection, from the stream that `pick` chooses. False if there is none.
    pub fn read(&mut self, at: usize, pick: usize) -> bool {
        self.read_amid(at, pick, None)
    }

    /// The same; during a publication, other workers act as in `amid`.
    pub(crate) fn read_amid(&mut self, at: usize, pick: usize, amid: Option<Amid>) -> bool {
        let line = &self.lines[at];
        if !line.open {
            return false;
        }
        let readable: SmallVec<[usize; 4]> =
            (0..line.wires.len()).filter(|wire| line.wires[*wire].is_readable()).collect();
        let (worker, cut) = (line.worker, line.cut);
        if readable.is_empty() && !cut {
            return false;
        }
        self.wake(worker);
        if readable.is_empty() {
            self.lose(at, LostCause::PeerClosed);
            return true;
        }
        let line = &mut self.lines[at];
        let wire = &mut line.wires[readable[pick % readable.len()]];
        let (key, is_new) = (wire.key, !std::mem::replace(&mut wire.opened, true));
        let Some(input) = wire.to_broker.pop_front() else { return false };
        let worker = &mut self.workers[worker];
        let (Some(connection), Some(shard)) = (line.connection.take(), worker.shard.take()) else {
            return false;
        };
        self.act(at, key, input, (connection, shard), (is_new, amid));
        true
    }

    /// The core handles one input.
    fn act(
        &mut self,
        at: usize,
        key: StreamKey,
        input: Input,
        (mut connection, mut shard): (Connection, Shard),
        (is_new, amid): (bool, Option<Amid>),
    ) {
        if is_new && key != StreamKey::CONTROL {
            connection.stream_opened(&mut shard, key);
        }
        let received = match &input {
            Input::Bytes(bytes) => Some(
                self.with_others(amid, &mut shard, |shard| connection.receive(shard, key, bytes)),
            ),
            Input::End(end) => {
                connection.stream_ended(&mut shard, key, *end);
                None
            }
        };
        let line = &mut self.lines[at];
        line.connection = Some(connection);
        self.workers[line.worker].shard = Some(shard);
        let Some(wire) = line.wires.iter_mut().find(|wire| wire.key == key) else { return };
        match (input, received) {
            (Input::Bytes(mut bytes), Some(received)) => {
                line.said_goodbye |= bytes.first() == Some(&DISCONNECT) && received.consumed > 0;
                bytes.drain(..received.consumed);
                if !bytes.is_empty() {
                    wire.to_broker.push_front(Input::Bytes(bytes));
                }
                wire.blocked = received.state == ReadState::Blocked;
                if received.state == ReadState::Closed {
                    wire.to_broker.clear();
                }
            }
            (Input::End(end), _) if end != StreamEnd::Finished => {
                line.wires.retain(|wire| wire.key != key);
            }
            _ => {}
        }
    }

    /// Runs a part of a worker's turn; during a publication, others act as in `amid`.
    fn with_others<R>(
        &mut self,
        amid: Option<Amid>,
        shard: &mut Shard,
        act: impl FnOnce(&mut Shard) -> R,
    ) -> R {
        let Some(amid) = amid else { return act(shard) };
        let nobody = World {
            disk: Arc::clone(&self.disk),
            broker: Arc::clone(&self.broker),
            workers: Vec::new(),
            lines: Vec::new(),
            now: self.now,
            limits: self.limits.clone(),
            dropped_before: self.dropped_before,
        };
        let rest = Arc::new(Mutex::new(std::mem::replace(self, nobody)));
        let others = Arc::clone(&rest);
        let mut before = 0;
        let meanwhile = move || {
            if before == amid.before {
                others.lock().take_asides(&amid);
            }
            before += 1;
        };
        shard.set_test_hook(Some(Box::new(meanwhile)));
        let result = act(shard);
        shard.set_test_hook(None);
        if let Some(rest) = Arc::into_inner(rest) {
            *self = rest.into_inner();
        }
        result
    }

    fn take_asides(&mut self, amid: &Amid) {
        for aside in amid.asides.iter().flatten() {
            match *aside {
                Aside::Read { line, stream } => {
                    let readable = self.readable();
                    if !readable.is_empty() {
                        self.read(readable[line % readable.len()], stream);
                    }
                }
                Aside::Exchange { worker } => drop(self.exchange(worker % self.workers())),
                Aside::EndTurn { worker } => self.end_turn(worker % self.workers()),
                Aside::Commit => drop(self.commit(usize::MAX)),
            }
        }
    }

    fn lose(&mut self, at: usize, cause: LostCause) {
        let line = &mut self.lines[at];
        let shard = self.workers[line.worker].shard.as_mut();
        if let (Some(connection), Some(shard), true) = (&mut line.connection, shard, line.open) {
            line.open = false;
            line.closed_at = Some(self.now);
            connection.lost(shard, cause);
        }
    }

    /// A packet or a timer wakes a worker that sleeps.
    fn wake(&mut self, at: usize) {
        let worker = &mut self.workers[at];
        let Some(shard) = &mut worker.shard else { return };
        if std::mem::replace(&mut worker.asleep, false) {
            shard.after_sleep();
        }
        shard.set_now(self.now);
    }

    /// Whether the worker may run without input; wakes it if it was notified.
    pub(crate) fn is_awake(&mut self, at: usize) -> bool {
        if self.workers[at].shard.is_none() {
            return false;
        }
        let woken = self.workers[at].woken.swap(false, Ordering::Relaxed);
        if woken || !self.workers[at].asleep {
            self.wake(at);
            return true;
        }
        false
    }

    /// A worker handles its events and sends the resulting output; returns how many packets.
    pub fn exchange(&mut self, at: usize) -> usize {
        if !self.is_awake(at) {
            return 0;
        }
        let Some(shard) = &mut self.workers[at].shard else { return 0 };
        let mut events = Vec::new();
        shard.take_events(&mut events);
        let count = events.len();
        for (token, event) in events {
            let line = &mut self.lines[token.0 as usize];
            if let (true, Some(connection)) = (line.open, &mut line.connection) {
                connection.on_event(shard, event);
                line.flush = true;
                for wire in &mut line.wires {
                    wire.blocked = false;
                }
            }
        }
        let own = |line: &Line| line.worker == at && line.open && line.flush;
        let lines: Vec<usize> = (0..self.lines.len()).filter(|n| own(&self.lines[*n])).collect();
        lines.into_iter().for_each(|line| self.flush(line));
        count
    }

    /// Sends the core's output for a connection, as far as the network accepts it.
    fn flush(&mut self, at: usize) {
        let line = &mut self.lines[at];
        line.flush = false;
        let shard = self.workers[line.worker].shard.as_mut();
        let (Some(connection), Some(shard)) = (&mut line.connection, shard) else { return };
        let mut ready = SmallVec::new();
        connection.ready_streams(&mut ready);
        for key in ready {
            let closing = connection.closing().is_some();
            let Some(wire) = line.wires.iter_mut().find(|wire| wire.key == key) else { continue };
            while closing || line.cut || wire.to_client.len() < line.room {
                let output = connection.output(shard, key);
                let more = output.more && !output.bytes.is_empty();
                if !line.cut {
                    wire.put(&output.bytes);
                }
                shard.recycle(output.bytes);
                if !more {
                    break;
                }
            }
            wire.full = wire.to_client.len() >= line.room;
        }
        for action in connection.stream_actions() {
            match action {
                StreamAction::Abort(key, _) => {
                    line.wires.retain(|wire| wire.key != key);
                    line.aborted.push(key);
                }
                StreamAction::Finish(key) => {
                    line.wires.retain(|wire| wire.key != key || !wire.to_client.is_empty());
                }
            }
        }
        if connection.closing().is_some() {
            self.lose(at, LostCause::Closed);
        }
    }

    /// A worker ends its turn, and sleeps if it has nothing to do.
    pub fn end_turn(&mut self, at: usize) {
        if !self.is_awake(at) {
            return;
        }
        let worker = &mut self.workers[at];
        let Some(shard) = &mut worker.shard else { return };
        shard.end_turn();
        // A worker whose network accepts more sends before it sleeps.
        let sends = |line: &Line| line.worker == at && line.open && line.flush;
        worker.asleep = !self.lines.iter().any(sends) && shard.before_sleep();
    }

    /// Handles what is due on a worker.
    pub fn fire_timers(&mut self, at: usize) {
        let now = self.now;
        let due = |shard: &Shard| shard.deadline().is_some_and(|due| due <= now);
        if self.workers[at].shard.as_ref().is_some_and(due) {
            self.wake(at);
            self.workers[at].shard.iter_mut().for_each(Shard::on_deadline);
        }
        for line in 0..self.lines.len() {
            let is_own = self.lines[line].worker == at && self.lines[line].open;
            let due =
                |(connection, shard): (&Connection, &Shard)| connection.deadline(shard) <= now;
            let both = self.lines[line].connection.as_ref().zip(self.workers[at].shard.as_ref());
            if is_own && both.is_some_and(due) {
                self.wake(at);
                let both =
                    self.lines[line].connection.as_mut().zip(self.workers[at].shard.as_mut());
                both.into_iter().for_each(|(connection, shard)| connection.on_deadline(shard));
            }
        }
    }

    /// Storage commits up to `most` batches, and wakes those that wait for them.
    pub fn commit(&mut self, most: usize) -> usize {
        let committed = self.disk.commit(most);
        if committed > 0 {
            self.broker.storage_committed();
        }
        committed
    }

    /// Time passes.
    pub fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
    }
}

impl Wire {
    fn new(key: StreamKey) -> Wire {
        let (to_broker, to_client) = (VecDeque::new(), VecDeque::new());
        Wire { key, to_broker, to_client, blocked: false, opened: false, full: false }
    }

    fn is_readable(&self) -> bool {
        !self.blocked && !self.to_broker.is_empty()
    }

    /// Puts whole packets into the network towards the client.
    fn put(&mut self, mut bytes: &[u8]) {
        while let Ok(Some(frame)) = peek_frame(bytes, usize::MAX) {
            self.to_client.push_back(bytes[..frame.len].to_vec());
            bytes = &bytes[frame.len..];
        }
        assert!(bytes.is_empty(), "the broker sent half a packet");
    }
}
