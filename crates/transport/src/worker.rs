//! One worker: an event loop with everything it touches owned by it. Which thread runs it is not its
//! affair (see `run`).
//!
//! A turn: wait for sockets, read from them, run timers; deliver the core's events; write each
//! connection that has something to say once; hand the turn's work over; sleep. Sockets are
//! registered once, edge-triggered, for both directions, and never again.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fulmar_broker::{
    BrokerEvent, CloseOrder, ListenerPolicy, LogLimiter, LostCause, MemoryPressure, Timestamp,
    Token,
};
use mio::event::Event;
use mio::net::TcpListener;
use mio::{Events, Interest, Poll};
use slab::Slab;
use tracing::{error, info, warn};

use crate::clock::Clock;
use crate::config::{Carrier, ListenerConfig};
use crate::connection::{After, Io, StreamConn};
use crate::handoff::{Handed, HandoffQueue};
use crate::quic::{self, QuicShard};
use crate::socket::Socket;
use crate::timer::{Armed, Timers};

/// Connections accepted from one listener before the others have their turn.
const ACCEPTS_PER_TURN: usize = 128;

/// Rest of a listener that met the end of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Longest sleep while draining.
const DRAIN_TURN: Duration = Duration::from_millis(20);

/// Rounds of events and writes per turn; the rest waits until the sockets have been polled once.
const NOTICE_ROUNDS: usize = 4;

/// The poller's name for the waker. Names of listeners have the top bit, those of connections have
/// their generation below it, so none meets another.
pub(crate) const WAKER: mio::Token = mio::Token(usize::MAX);
const LISTENER_BIT: u64 = 1 << 63;
const GENERATION_MASK: u32 = 0x3fff_ffff;

/// Mark the poller's names of listeners and of QUIC sockets, above the bits of connections.
const LISTENER_NAME: usize = 1 << (usize::BITS - 1);
const QUIC_SOCKET_NAME: usize = 1 << (usize::BITS - 2);

/// Bits of a connection's place in its name on machines with 32 bits, more connections than their memory is for; ten of
/// the generation are above them.
const NARROW_INDEX_BITS: u32 = 20;

/// A connection's name in the poller. It is the token where that fits.
const fn connection_name(token: u64) -> usize {
    if usize::BITS >= u64::BITS {
        return token as usize;
    }
    let generation = (token >> 32) as usize & 0x3ff;
    generation << NARROW_INDEX_BITS | token as usize & ((1 << NARROW_INDEX_BITS) - 1)
}

/// The way in which the server's handle reaches its workers.
#[derive(Debug)]
pub(crate) struct Control {
    /// When draining gives up, in milliseconds; 0 while not draining.
    drain_by: AtomicU64,
    /// Workers that still accept connections.
    accepting: AtomicUsize,
    /// The events that close every connection are in the workers' mailboxes.
    told: AtomicBool,
}

impl Control {
    pub(crate) fn new(workers: usize) -> Control {
        Control {
            drain_by: AtomicU64::new(0),
            accepting: AtomicUsize::new(workers),
            told: AtomicBool::new(false),
        }
    }

    /// Asks the workers to drain by `deadline`; they look when they are woken.
    pub(crate) fn drain(&self, deadline: Timestamp) {
        self.drain_by.store(deadline.0.max(1), Ordering::SeqCst);
    }

    fn draining(&self) -> Option<Timestamp> {
        match self.drain_by.load(Ordering::SeqCst) {
            0 => None,
            deadline => Some(Timestamp(deadline)),
        }
    }
}

/// A listening socket of one worker.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    config: Arc<ListenerConfig>,
    /// The socket may have connections.
    ready: bool,
    armed: Armed,
    /// Until when it rests after an error.
    paused_until: Timestamp,
    /// Limits the log lines about such errors.
    log_limiter: LogLimiter,
}

/// See the module's words.
#[derive(Debug)]
pub(crate) struct Worker {
    poll: Poll,
    clock: Clock,
    control: Arc<Control>,
    io: Io,
    listeners: Vec<Listener>,
    /// Configurations by the listener's number; they outlive the listeners when draining.
    configs: Vec<Arc<ListenerConfig>>,
    conns: Slab<StreamConn>,
    quic: Vec<QuicShard>,
    handoff_queue: Arc<HandoffQueue>,
    generation: u32,
    timers: Timers,
    again: Vec<u64>,
    to_flush: Vec<u64>,
    broker_events: Vec<(Token, BrokerEvent)>,
    /// The last look at the process' memory that was acted upon.
    memory_seen: u32,
    draining: bool,
    /// [`Control::told`] as it was a turn ago.
    told: bool,
}

impl Worker {
    /// A worker of `listeners`, already bound.
    pub(crate) fn new(
        poll: Poll,
        clock: Clock,
        control: Arc<Control>,
        io: Io,
        listeners: Vec<(TcpListener, Arc<ListenerConfig>)>,
        quic: Vec<QuicShard>,
        handoff_queue: Arc<HandoffQueue>,
    ) -> io::Result<Worker> {
        let mut configs: Vec<_> = listeners.iter().map(|(_, config)| Arc::clone(config)).collect();
        configs.push(Arc::new(handed_over()));
        let mut worker = Worker {
            poll,
            clock,
            control,
            io,
            listeners: Vec::new(),
            configs,
            conns: Slab::new(),
            quic,
            handoff_queue,
            generation: 0,
            timers: Timers::default(),
            again: Vec::new(),
            to_flush: Vec::new(),
            broker_events: Vec::new(),
            memory_seen: 0,
            draining: false,
            told: false,
        };
        for (index, (mut socket, config)) in listeners.into_iter().enumerate() {
            let token = mio::Token(LISTENER_NAME | index);
            worker.poll.registry().register(&mut socket, token, Interest::READABLE)?;
            worker.listeners.push(Listener {
                socket,
                config,
                ready: false,
                armed: Armed::default(),
                paused_until: Timestamp(0),
                log_limiter: LogLimiter::default(),
            });
        }
        for (index, quic) in worker.quic.iter_mut().enumerate() {
            let token = mio::Token(QUIC_SOCKET_NAME | index);
            quic.register(worker.poll.registry(), token)?;
        }
        Ok(worker)
    }

    pub(crate) fn poller(&self) -> &Poll {
        &self.poll
    }

    /// Waits for events, for `timeout` at most. Fails only when the process is out of resources.
    pub(crate) fn poll(
        &mut self,
        events: &mut Events,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        match self.poll.poll(events, timeout) {
            // After a pause of the process, what has come meanwhile is read before timers run.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.poll(events, Some(Duration::ZERO))
            }
            Err(error) => {
                error!(%error, "the worker's poller failed");
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Handles events and whatever else there is to do. True when it is drained and done.
    pub(crate) fn turn<'e>(&mut self, events: impl Iterator<Item = &'e Event>) -> bool {
        self.io.shard.after_sleep();
        self.io.shard.set_now(self.clock.now());
        self.io.shard.set_wall(Clock::wall());
        self.read_again();
        for event in events {
            self.event(event);
        }
        self.accept_all();
        self.run_timers();
        self.exchange();
        let drained = self.drain();
        self.io.shard.end_turn();
        self.handoff_queue.answer(drained);
        drained
    }

    /// Datagrams received so far.
    pub(crate) fn datagrams(&self) -> u64 {
        self.quic.iter().map(QuicShard::received).sum()
    }

    /// Whether another worker has sent something that was not looked at yet.
    pub(crate) fn has_events(&self) -> bool {
        self.io.shard.has_events()
    }

    /// Whether the server is asked to end.
    pub(crate) fn is_draining(&self) -> bool {
        self.control.draining().is_some()
    }

    /// Time to sleep: not at all while there is work.
    pub(crate) fn timeout(&mut self) -> Option<Duration> {
        let busy = !self.again.is_empty()
            || !self.to_flush.is_empty()
            || self.quic.iter().any(QuicShard::has_work)
            || self.listeners.iter().any(|listener| listener.ready);
        if busy || !self.io.shard.before_sleep() {
            return Some(Duration::ZERO);
        }
        let deadlines = [self.timers.next(), self.io.shard.deadline(), self.drain_deadline()];
        let next = deadlines.into_iter().flatten().min();
        let quic = self.quic.iter().filter_map(QuicShard::deadline).min();
        let quic = quic.map(|at| at.saturating_duration_since(Instant::now()));
        next.and_then(|deadline| self.clock.until(deadline)).into_iter().chain(quic).min()
    }

    /// While draining the others' progress is looked at now and then.
    fn drain_deadline(&self) -> Option<Timestamp> {
        self.draining.then(|| self.io.shard.now() + DRAIN_TURN)
    }

    fn event(&mut self, event: &Event) {
        if event.token() == WAKER {
            for handed in self.handoff_queue.drain() {
                self.take_over(handed);
            }
            return;
        }
        let name = event.token().0;
        if name & LISTENER_NAME != 0 {
            if let Some(listener) = self.listeners.get_mut(name & !LISTENER_NAME) {
                listener.ready = self.io.shard.now() >= listener.paused_until;
            }
            return;
        }
        if name & QUIC_SOCKET_NAME != 0 {
            if let Some(quic) = self.quic.get_mut(name & !QUIC_SOCKET_NAME) {
                quic.on_event(&mut self.io, event.is_readable(), Instant::now());
            }
            return;
        }
        let Some(token) = self.token_of(name) else { return };
        let readable = event.is_readable() || event.is_read_closed() || event.is_error();
        let writable = event.is_writable();
        let read_closed = event.is_read_closed() || event.is_error();
        self.with(token, |conn, io, listener| {
            if writable {
                conn.note_writable();
            }
            if !readable {
                return After::Wait;
            }
            conn.note_readable(read_closed);
            conn.readable(io, listener)
        });
    }

    /// The token of the connection that has this name in the poller; of one that has ended perhaps.
    fn token_of(&self, name: usize) -> Option<u64> {
        if usize::BITS >= u64::BITS {
            return Some(name as u64);
        }
        let index = name & ((1 << NARROW_INDEX_BITS) - 1);
        let token = self.conns.get(index)?.token().0;
        (connection_name(token) == name).then_some(token)
    }

    /// Calls `f` with the connection `token` names, if it still exists, and follows what it says.
    fn with(
        &mut self,
        token: u64,
        f: impl FnOnce(&mut StreamConn, &mut Io, &ListenerConfig) -> After,
    ) {
        let index = token as u32 as usize;
        let Some(conn) = self.conns.get_mut(index).filter(|conn| conn.token().0 == token) else {
            return;
        };
        match f(conn, &mut self.io, &self.configs[usize::from(conn.listener)]) {
            After::Gone => {
                conn.forget(&mut self.io);
                self.conns.remove(index);
                return;
            }
            After::Again if !conn.again_listed => {
                conn.again_listed = true;
                self.again.push(token);
            }
            After::Again | After::Wait => {}
        }
        if conn.wants_flush() && !conn.flush_listed {
            conn.flush_listed = true;
            self.to_flush.push(token);
        }
        let deadline = conn.deadline(&self.io.shard);
        self.timers.arm(&mut conn.armed, deadline, token);
    }

    /// Goes on with connections whose share of the last turn was used up.
    fn read_again(&mut self) {
        for token in std::mem::take(&mut self.again) {
            self.with(token, |conn, io, listener| {
                conn.again_listed = false;
                conn.readable(io, listener)
            });
        }
    }

    fn accept_all(&mut self) {
        for index in 0..self.listeners.len() {
            for _ in 0..ACCEPTS_PER_TURN {
                if !self.listeners[index].ready {
                    break;
                }
                self.accept(index);
            }
        }
    }

    fn accept(&mut self, index: usize) {
        let listener = &mut self.listeners[index];
        match listener.socket.accept() {
            Ok((socket, address)) => {
                if let Err(error) = self.admit(index, Socket::Tcp(socket), address) {
                    warn!(%address, %error, "a connection could not be registered");
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => listener.ready = false,
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                _ => {
                    let now = self.io.shard.now();
                    self.io.shard.metrics().accept_failed.add(1);
                    if let Some(times) = listener.log_limiter.occurred(now) {
                        warn!(
                            listener = %listener.config.policy.name, %error, times,
                            "cannot accept connections; trying again several times per second (if \
                             the limit of open files is reached, raise it)"
                        );
                    }
                    listener.ready = false;
                    listener.paused_until = now + ACCEPT_PAUSE;
                    let token = LISTENER_BIT | index as u64;
                    self.timers.arm(&mut listener.armed, listener.paused_until, token);
                }
            },
        }
    }

    fn admit(&mut self, index: usize, socket: Socket, address: SocketAddr) -> io::Result<()> {
        let config = Arc::clone(&self.listeners[index].config);
        self.enter(address, |token, io| {
            StreamConn::accept(socket, address, token, index as u16, &config, io)
        })
    }

    /// Takes a connection that was accepted elsewhere.
    fn take_over(&mut self, handed: Handed) {
        let address = handed.peer.address;
        // The last configuration is that of connections without a listener here.
        let listener = (self.configs.len() - 1) as u16;
        let entered =
            self.enter(address, |token, io| StreamConn::handed(handed, token, listener, io));
        if let Err(error) = entered {
            warn!(%address, %error, "a connection could not be registered");
        }
    }

    /// Gives a connection its place, if there is one and `begin` does not refuse it.
    fn enter(
        &mut self,
        address: SocketAddr,
        begin: impl FnOnce(Token, &mut Io) -> Option<StreamConn>,
    ) -> io::Result<()> {
        // Connections in a handshake are not the core's yet, so they are bounded here.
        if self.conns.len() >= self.io.shard.broker().limits().max_connections {
            self.io.shard.refuse_connection(address);
            return Ok(());
        }
        self.generation = (self.generation + 1) & GENERATION_MASK;
        let entry = self.conns.vacant_entry();
        let token = Token(entry.key() as u64 | u64::from(self.generation) << 32);
        let Some(mut conn) = begin(token, &mut self.io) else { return Ok(()) };
        let interest = Interest::READABLE | Interest::WRITABLE;
        let name = mio::Token(connection_name(token.0));
        if let Err(error) = self.poll.registry().register(conn.socket(), name, interest) {
            conn.lost(&mut self.io, LostCause::Failed);
            return Err(error);
        }
        let deadline = conn.deadline(&self.io.shard);
        self.timers.arm(&mut conn.armed, deadline, token.0);
        entry.insert(conn);
        Ok(())
    }

    fn run_timers(&mut self) {
        let now = self.io.shard.now();
        while let Some((at, token)) = self.timers.pop(now) {
            if token & LISTENER_BIT != 0 {
                if let Some(listener) = self.listeners.get_mut((token & !LISTENER_BIT) as usize) {
                    listener.ready |= Timers::disarm_if(&mut listener.armed, at);
                }
                continue;
            }
            self.with(token, |conn, io, _| {
                let due = Timers::disarm_if(&mut conn.armed, at) && conn.deadline(&io.shard) <= now;
                if due { conn.on_deadline(io) } else { After::Wait }
            });
        }
        for quic in &mut self.quic {
            quic.on_timeout(&mut self.io, Instant::now());
        }
        self.give_way();
        if self.io.shard.deadline().is_some_and(|deadline| deadline <= now) {
            self.io.shard.on_deadline();
        }
    }

    /// Closes connections that may be the reason that memory is short.
    fn give_way(&mut self) {
        let pressure = self.io.shard.broker().memory_gauge().pressure_since(&mut self.memory_seen);
        if pressure == MemoryPressure::None {
            return;
        }
        let stuck = self
            .conns
            .iter_mut()
            .filter_map(|(_, conn)| conn.gives_way(pressure).then(|| conn.token().0));
        let stuck: Vec<_> = stuck.collect();
        for token in stuck {
            self.with(token, |conn, io, _| conn.give_way(io));
        }
        for quic in &mut self.quic {
            quic.give_way(&mut self.io, pressure, Instant::now());
        }
    }

    /// Delivers events and writes, until none are left or other connections must have their turn: the shard does not
    /// sleep while some are left.
    fn exchange(&mut self) {
        for _ in 0..NOTICE_ROUNDS {
            let mut events = std::mem::take(&mut self.broker_events);
            self.io.shard.take_events(&mut events);
            let quiet = self.quic.iter().all(|quic| !quic.has_work());
            if events.is_empty() && self.to_flush.is_empty() && quiet {
                self.broker_events = events;
                return;
            }
            for (token, event) in events.drain(..) {
                self.on_broker_event(token, event);
            }
            self.broker_events = events;
            for quic in &mut self.quic {
                quic.flush(&mut self.io, Instant::now());
            }
            let mut to_flush = std::mem::take(&mut self.to_flush);
            for token in to_flush.drain(..) {
                self.with(token, |conn, io, _| {
                    conn.flush_listed = false;
                    conn.flush(io)
                });
            }
            if self.to_flush.is_empty() {
                self.to_flush = to_flush;
            }
        }
    }

    fn on_broker_event(&mut self, token: Token, event: BrokerEvent) {
        if let Some(endpoint) = quic::endpoint_of(token) {
            if let Some(quic) = self.quic.get_mut(endpoint) {
                quic.on_broker_event(&mut self.io, token, event);
            }
            return;
        }
        self.with(token.0, |conn, io, listener| conn.on_broker_event(io, event, listener));
        let index = token.0 as u32 as usize;
        if let Some(conn) = self.conns.get_mut(index)
            && conn.token() == token
            && !conn.flush_listed
        {
            conn.flush_listed = true;
            self.to_flush.push(token.0);
        }
    }

    /// Stops accepting when the server asks for it; says when everything is over.
    fn drain(&mut self) -> bool {
        let Some(deadline) = self.control.draining() else { return false };
        if !self.draining {
            self.draining = true;
            self.listeners.clear();
            self.handoff_queue.close();
            self.lose_all(StreamConn::is_opening);
            for quic in &mut self.quic {
                quic.begin_close(&mut self.io, Instant::now());
            }
            if self.control.accepting.fetch_sub(1, Ordering::SeqCst) == 1 {
                // No worker accepts any more, so no connection is missed.
                self.io.shard.broker().close_all(CloseOrder::ShuttingDown);
                self.control.told.store(true, Ordering::SeqCst);
            }
        } else if self.told {
            // All clients with a session have been notified by now; the others cannot be.
            self.lose_all(|conn| !conn.is_closing());
        }
        self.told = self.control.told.load(Ordering::SeqCst);
        let late = self.io.shard.now() >= deadline;
        if late {
            if !self.conns.is_empty() {
                info!(connections = self.conns.len(), "closed without waiting any longer");
            }
            self.lose_all(|_| true);
        }
        late || (self.told && self.conns.is_empty() && self.quic.iter().all(QuicShard::is_idle))
    }

    fn lose_all(&mut self, which: impl Fn(&StreamConn) -> bool) {
        let io = &mut self.io;
        self.conns.retain(|_, conn| {
            let lose = which(conn);
            if lose {
                conn.lost(io, LostCause::Closed);
                conn.forget(io);
            }
            !lose
        });
    }
}

/// The listener configuration of connections that were accepted elsewhere: they need no TLS or WebSocket
/// layer. Each brings its own peer and policy.
fn handed_over() -> ListenerConfig {
    let address = SocketAddr::from(([0, 0, 0, 0], 0));
    let policy = ListenerPolicy { name: "handoff".into(), allow_anonymous: false };
    ListenerConfig { address, carrier: Carrier::TCP, policy: Arc::new(policy), proxies: None }
}
