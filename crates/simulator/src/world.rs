//! The broker with workers that run step by step, and a network whose packets arrive when the schedule decides.
//!
//! A worker sleeps as the real one does: it does nothing until a packet, a timer or another worker wakes it. Work
//! forgotten before a worker falls asleep is therefore missing here too.

mod time;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fulmar_broker::storage::{Restored, SessionRecord};
use fulmar_broker::{
    Account, Broker, BrokerConfig, ClientStatistics, Connection, LostCause, Peer, ReadState, Shard,
    StreamAction, StreamEnd, StreamKey, Timestamp, Token,
};
use smallvec::SmallVec;

use crate::clock::{BEGIN, Machine};
use crate::network::{DISCONNECT, Input, Line, Wire};
use crate::overdue::{Overdue, Tick};
use crate::settings::{self, Settings};
use crate::volume::Volume;
use crate::work::Amid;

/// Why the broker closes connections because of a stall.
const CLOSED_BY_STALL: &str = "storage is stalled";

#[derive(Debug)]
struct Worker {
    /// `None` during a publication in which other workers act.
    shard: Option<Shard>,
    asleep: bool,
    woken: Arc<AtomicBool>,
    /// It has begun a turn, and seen the time.
    in_turn: bool,
    /// Whether a batch was overdue when it saw how far storage is.
    saw_overdue: bool,
}

/// The broker, its storage, its network and the time.
pub(crate) struct World {
    /// The broker's storage.
    pub(crate) disk: Arc<dyn Volume>,
    broker: Arc<Broker>,
    workers: Vec<Worker>,
    pub(crate) lines: Vec<Line>,
    /// The time.
    pub(crate) now: Timestamp,
    /// The machine's clocks.
    pub(crate) machine: Machine,
    settings: Settings,
    tick: Tick,
    overdue: Overdue,
    /// Publications that the broker has refused when it read them, by their number.
    refused: Vec<u64>,
    /// Messages that earlier brokers have dropped because of a full queue.
    dropped_before: u64,
}

impl World {
    /// A world with the empty storage `disk`.
    pub(crate) fn new(disk: Arc<dyn Volume>, workers: usize, settings: Settings) -> World {
        let begin = Timestamp(BEGIN.time.cast_unsigned());
        World::start(disk, Restored::default(), workers, settings, begin)
    }

    /// A world with the storage `disk`, from which `restored` was read.
    pub(crate) fn start(
        disk: Arc<dyn Volume>,
        restored: Restored,
        workers: usize,
        settings: Settings,
        now: Timestamp,
    ) -> World {
        let overdue = Overdue::new(settings.limits.storage_stall_timeout);
        let config = BrokerConfig {
            workers,
            limits: settings.limits.clone(),
            access_control: (settings.access_control)(),
            sys_interval_s: settings.sys_interval_s,
            client_statistics: ClientStatistics::Rules,
            internal_sessions: settings.internal.clone(),
        };
        let broker = Broker::new(config, Arc::clone(&disk) as _, restored, now);
        let worker = |index| {
            let woken = Arc::new(AtomicBool::new(false));
            let wake = Arc::clone(&woken);
            let wake = Arc::new(move || wake.store(true, Ordering::Relaxed));
            let shard = Shard::new(Arc::clone(&broker), index, now, wake);
            let (asleep, in_turn, saw_overdue) = (false, false, false);
            Worker { shard: Some(shard), asleep, woken, in_turn, saw_overdue }
        };
        let workers = (0..workers).map(worker).collect();
        World {
            disk,
            broker,
            workers,
            lines: Vec::new(),
            now,
            machine: Machine::new(now),
            settings,
            tick: Tick::default(),
            overdue,
            refused: Vec::new(),
            dropped_before: 0,
        }
    }

    /// The process dies and starts again with this many workers: all connections and uncommitted batches are lost.
    /// Returns the sessions that are in storage then.
    pub(crate) fn crash(&mut self, workers: usize) -> Result<Vec<SessionRecord>, String> {
        let moved = self.machine.restart();
        let (disk, restored) = self.disk.crash(self.machine.shows, moved);
        if let Some(what) = disk.durable().contradiction() {
            return Err(what);
        }
        let sessions = restored.sessions.clone();
        let (dropped_before, refused) = (self.dropped(), self.take_refused());
        let next =
            World::start(disk, restored, workers, self.settings.clone(), self.machine_time());
        let (tick, machine) = (self.tick, self.machine);
        *self = World { dropped_before, refused, tick, machine, ..next };
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
    pub(crate) fn workers(&self) -> usize {
        self.workers.len()
    }

    /// The broker that runs now.
    pub(crate) fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }

    /// Whether the broker's end of a connection is open.
    pub(crate) fn is_open(&self, line: usize) -> bool {
        self.lines[line].open
    }

    /// Opens a connection to a worker; the network holds `room` packets per stream for a slow client.
    pub(crate) fn open(&mut self, worker: usize, quic: bool, room: usize) -> Option<usize> {
        self.open_as(worker, room, settings::peer(quic))
    }

    /// The same for a client of which the transport knows this.
    pub(crate) fn open_as(&mut self, worker: usize, room: usize, peer: Peer) -> Option<usize> {
        let at = self.lines.len();
        let worker = worker % self.workers.len();
        self.wake(worker);
        let shard = self.workers[worker].shard.as_mut()?;
        let connection = Connection::new(shard, Token(at as u64), peer).ok()?;
        let is_patient = self.is_patient();
        self.lines.push(Line::new(worker, connection, room, is_patient));
        Some(at)
    }

    /// The client sends a packet, or a flow header, on a stream, which this opens.
    pub(crate) fn client_sends(&mut self, line: usize, key: StreamKey, bytes: Vec<u8>) {
        self.input(line, key, Input::Bytes(bytes));
    }

    /// The client sends something on a stream, which this opens, or ends the stream.
    pub(crate) fn input(&mut self, line: usize, key: StreamKey, input: Input) {
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
    pub(crate) fn cut(&mut self, line: usize, lossy: bool) {
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
    pub(crate) fn receive(&mut self, line: usize, key: StreamKey) -> Option<Vec<u8>> {
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
    pub(crate) fn readable(&self) -> Vec<usize> {
        let readable = |line: &Line| {
            let wires = || line.wires.iter().any(Wire::is_readable);
            line.open && line.connection.is_some() && (line.ends() || wires())
        };
        let is_free = |line: &Line| self.workers[line.worker].shard.is_some();
        let able = |at: &usize| readable(&self.lines[*at]) && is_free(&self.lines[*at]);
        (0..self.lines.len()).filter(able).collect()
    }

    /// A worker reads one input of a connection, from the stream that `pick` chooses. Returns false if there is none.
    pub(crate) fn read(&mut self, at: usize, pick: usize) -> bool {
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
        let (worker, ends) = (line.worker, line.ends());
        if readable.is_empty() && !ends {
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
        let own = &mut self.workers[worker];
        let (Some(connection), Some(shard)) = (line.connection.take(), own.shard.take()) else {
            return false;
        };
        let stalled = self.call(worker, [at]);
        self.act(at, key, input, (connection, shard), (is_new, amid));
        self.note_closing(at, stalled);
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
        let refused_before = shard.metrics().storage_refused.get();
        let received = match &input {
            Input::Bytes(bytes) => Some(
                self.with_others(amid, &mut shard, |shard| connection.receive(shard, key, bytes)),
            ),
            Input::End(end) => {
                connection.stream_ended(&mut shard, key, *end);
                None
            }
        };
        if let (Input::Bytes(bytes), true) =
            (&input, shard.metrics().storage_refused.get() > refused_before)
        {
            self.refused.extend(publication_in(bytes));
        }
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

    /// What holds the place of this world while its workers act apart.
    pub(crate) fn without_anybody(&self) -> World {
        World {
            disk: Arc::clone(&self.disk),
            broker: Arc::clone(&self.broker),
            workers: Vec::new(),
            lines: Vec::new(),
            now: self.now,
            machine: self.machine,
            settings: self.settings.clone(),
            tick: self.tick,
            overdue: Overdue::new(Duration::MAX),
            refused: Vec::new(),
            dropped_before: self.dropped_before,
        }
    }

    fn lose(&mut self, at: usize, cause: LostCause) {
        let line = &mut self.lines[at];
        let shard = self.workers[line.worker].shard.as_mut();
        if let (Some(connection), Some(shard), true) = (&mut line.connection, shard, line.open) {
            line.open = false;
            line.closed_at.get_or_insert(self.machine.real());
            connection.lost(shard, cause);
        }
    }

    /// A packet or a timer wakes a worker that sleeps.
    fn wake(&mut self, at: usize) {
        let in_turn = self.is_patient() && self.workers[at].in_turn;
        let worker = &mut self.workers[at];
        let Some(shard) = &mut worker.shard else { return };
        if std::mem::replace(&mut worker.asleep, false) {
            shard.after_sleep();
        }
        if !in_turn {
            shard.set_now(self.now);
            shard.set_wall(Timestamp(self.machine.shows.wall.cast_unsigned()));
            worker.in_turn = true;
            self.look_at_storage(at);
        }
    }

    /// A worker sees how far storage is, and whether it is stalled.
    fn look_at_storage(&mut self, at: usize) {
        self.workers[at].saw_overdue = self.overdue.lasts(&*self.disk, self.now);
    }

    /// Whether clients may have to wait in this world.
    fn is_patient(&self) -> bool {
        self.overdue.is_possible() || !self.settings.internal.is_empty()
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
    pub(crate) fn exchange(&mut self, at: usize) -> usize {
        if !self.is_awake(at) {
            return 0;
        }
        let Some(shard) = &mut self.workers[at].shard else { return 0 };
        let mut events = Vec::new();
        shard.take_events(&mut events);
        let count = events.len();
        let lines: SmallVec<[usize; 8]> =
            events.iter().map(|(token, _)| token.0 as usize).collect();
        self.look_at_storage(at);
        let stalled = self.call(at, lines.iter().copied());
        let Some(shard) = &mut self.workers[at].shard else { return 0 };
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
        lines.into_iter().for_each(|line| self.note_closing(line, stalled));
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
                    wire.push_packets(&output.bytes);
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
    pub(crate) fn end_turn(&mut self, at: usize) {
        if !self.is_awake(at) {
            return;
        }
        let worker = &mut self.workers[at];
        let Some(shard) = &mut worker.shard else { return };
        shard.end_turn();
        worker.in_turn = false;
        self.overdue.turn_ended(&*self.disk, shard.now());
        // A worker whose network accepts more sends before it sleeps.
        let sends = |line: &Line| line.worker == at && line.open && line.flush;
        worker.asleep = !self.lines.iter().any(sends) && shard.before_sleep();
    }

    /// The core is about to be called for these connections of a worker. Whether a batch is overdue as far as that
    /// has seen.
    fn call(&mut self, worker: usize, lines: impl IntoIterator<Item = usize>) -> bool {
        self.tick.0 += 1;
        let stalled = self.workers[worker].saw_overdue;
        if stalled {
            let tick = self.tick;
            lines.into_iter().for_each(|line| self.lines[line].stalled_in = tick);
        }
        stalled
    }

    /// The core was called for a connection, while a batch was overdue if `stalled`.
    fn note_closing(&mut self, at: usize, stalled: bool) {
        let Some(line) = self.lines.get_mut(at) else { return };
        let closing = line.connection.as_ref().and_then(Connection::closing);
        let Some(closing) = closing else { return };
        line.closed_by_stall |= stalled && closing.reason == CLOSED_BY_STALL;
        if line.is_patient {
            // The will is published now, the connection closed when its output is sent.
            line.closed_at.get_or_insert(self.machine.real());
        }
    }

    /// The number of the last call of the core.
    pub(crate) fn tick(&self) -> Tick {
        self.tick
    }

    /// Publications that the broker has refused when it read them, since this was called last.
    pub(crate) fn take_refused(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.refused)
    }

    /// Storage commits up to `most` batches, and wakes those that wait for them.
    pub(crate) fn commit(&mut self, most: usize) -> usize {
        let committed = self.disk.commit(most);
        if committed > 0 {
            self.storage_changed();
        }
        committed
    }

    /// Wakes those that wait for storage.
    pub(crate) fn storage_changed(&self) {
        self.broker.storage_committed();
    }
}

/// The number of the publication in a PUBLISH, which is the last word of its payload.
fn publication_in(packet: &[u8]) -> Option<u64> {
    let is_publish = packet.first()? >> 4 == 3;
    let last = packet.rsplit(|byte| *byte == b' ').next()?;
    std::str::from_utf8(last).ok()?.parse().ok().filter(|_| is_publish)
}
