//! The broker with workers that are turned by hand, and a transport made of vectors.

use std::sync::Arc;
use std::time::Duration;

use fulmar_broker::access::{AccessRules, Action, Rule, Who};
use fulmar_broker::auth::AccessControl;
use fulmar_broker::storage::Restored;
use fulmar_broker::{
    Broker, BrokerConfig, ClientStatistics, Connection, DropPolicy, Limits, ListenerPolicy,
    LostCause, Peer, ReadState, Shard, StreamAction, StreamEnd, StreamKey, Timestamp, Token,
    TransportKind,
};
use fulmar_mqtt::Packet;
use smallvec::SmallVec;

use crate::disk::Disk;
use crate::line::{Terms, Wire};

/// Workers of the broker.
pub(crate) const WORKERS: usize = 2;

/// Turns in which everything must have come to rest.
const MAX_TURNS: usize = 10_000;

/// A connection, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conn(pub(crate) usize);

struct Line {
    shard: usize,
    connection: Connection,
    streams: Vec<(StreamKey, Wire)>,
    terms: Terms,
    /// Whether the client reads; if not, the transport asks for nothing more.
    reading: bool,
    /// It has had an event since its bytes were last offered to it.
    noticed: bool,
    open: bool,
}

pub(crate) struct Rig {
    pub(crate) disk: Arc<Disk>,
    broker: Arc<Broker>,
    shards: Vec<Shard>,
    lines: Vec<Line>,
    now: Timestamp,
    limits: Limits,
}

/// Bounds small enough to be met.
pub(crate) fn limits(drop_policy: DropPolicy) -> Limits {
    Limits {
        max_packet_bytes: 512,
        max_connections: 12,
        max_client_id_bytes: 32,
        receive_maximum: 4,
        max_in_flight: 4,
        topic_alias_maximum: 4,
        max_keep_alive_s: None,
        max_sessions: 16,
        max_subscriptions_per_session: 8,
        max_flows_per_session: 3,
        max_retained_messages: 16,
        max_retained_bytes: 8192,
        max_queued_messages: 64,
        max_queued_bytes: 16 * 1024,
        drop_policy,
        max_outbox_bytes: 4096,
        max_cached_routes: 16,
        // The witness takes no refusal because of storage: `tests/stall.rs` has those.
        storage_stall_timeout: Duration::MAX,
        ..Limits::default()
    }
}

/// Nobody but the witness may publish where the witness listens.
fn access_control() -> AccessControl {
    let rule = |allow, who| Rule {
        allow,
        who,
        action: Some(Action::Publish),
        filter: "witness/#".into(),
        exact: false,
    };
    let own = rule(true, Who::Client("witness-publisher".into()));
    match AccessRules::new(vec![own, rule(false, Who::Anyone)], true) {
        Ok(rules) => AccessControl { rules, ..AccessControl::default() },
        Err((filter, error)) => panic!("{filter}: {error}"),
    }
}

impl Rig {
    pub(crate) fn new(limits: Limits) -> Rig {
        let now = Timestamp(1_000_000);
        Rig::start(Arc::new(Disk::default()), Restored::default(), limits, now)
    }

    fn start(disk: Arc<Disk>, restored: Restored, limits: Limits, now: Timestamp) -> Rig {
        let config = BrokerConfig {
            workers: WORKERS,
            limits: limits.clone(),
            access_control: access_control(),
            sys_interval_s: 60,
            client_statistics: ClientStatistics::Rules,
            internal_sessions: Vec::new(),
        };
        let broker = Broker::new(config, Arc::clone(&disk) as _, restored, now);
        let shard = |index| Shard::new(Arc::clone(&broker), index, now, Arc::new(|| {}));
        let shards = (0..WORKERS).map(shard).collect();
        Rig { disk, broker, shards, lines: Vec::new(), now, limits }
    }

    /// The process dies and starts again: what is not committed is lost, and so is every connection.
    pub(crate) fn crash(&mut self) {
        let (disk, restored) = self.disk.crash();
        *self = Rig::start(disk, restored, self.limits.clone(), self.now);
    }

    /// A network connection to one of the workers; `None` at the broker's limit.
    pub(crate) fn open(&mut self, shard: usize, early: bool) -> Option<Conn> {
        let token = Token(self.lines.len() as u64);
        let peer = Peer {
            address: ([127, 0, 0, 1], 1000).into(),
            transport: if early { TransportKind::Quic } else { TransportKind::Tcp },
            identity: None,
            listener: Arc::new(ListenerPolicy { name: "fuzz".into(), allow_anonymous: true }),
        };
        let worker = &mut self.shards[shard % WORKERS];
        let new = if early { Connection::new_early } else { Connection::new };
        self.lines.push(Line {
            shard: shard % WORKERS,
            connection: new(worker, token, peer).ok()?,
            streams: vec![(StreamKey::CONTROL, Wire::default())],
            terms: Terms::default(),
            reading: true,
            noticed: false,
            open: true,
        });
        Some(Conn(self.lines.len() - 1))
    }

    pub(crate) fn is_open(&self, conn: Conn) -> bool {
        self.lines[conn.0].open
    }

    pub(crate) fn set_reading(&mut self, conn: Conn, reading: bool) {
        self.lines[conn.0].reading = reading;
    }

    /// The streams of a connection that are open.
    pub(crate) fn streams(&self, conn: Conn) -> Vec<StreamKey> {
        self.lines[conn.0].streams.iter().map(|(key, _)| *key).collect()
    }

    pub(crate) fn open_stream(&mut self, conn: Conn, key: StreamKey) {
        let line = &mut self.lines[conn.0];
        if line.open && line.streams.iter().all(|(open, _)| *open != key) {
            line.streams.push((key, Wire::default()));
            line.connection.stream_opened(&mut self.shards[line.shard], key);
        }
    }

    pub(crate) fn end_stream(&mut self, conn: Conn, key: StreamKey, end: StreamEnd) {
        let line = &mut self.lines[conn.0];
        if line.open && line.streams.iter().any(|(open, _)| *open == key) {
            line.connection.stream_ended(&mut self.shards[line.shard], key, end);
        }
    }

    pub(crate) fn confirm_handshake(&mut self, conn: Conn) {
        let line = &mut self.lines[conn.0];
        if line.open {
            line.connection.handshake_confirmed(&mut self.shards[line.shard], None);
        }
    }

    /// The client says something.
    pub(crate) fn say(&mut self, conn: Conn, key: StreamKey, bytes: &[u8]) {
        let line = &mut self.lines[conn.0];
        let Some(at) = line.streams.iter().position(|(open, _)| *open == key) else { return };
        if line.open {
            if key.is_unidirectional() {
                line.streams[0].1.confuse();
            }
            line.streams[at].1.say(bytes);
            line.terms.listen(key, &mut line.streams[at].1);
            self.feed(conn.0, at);
        }
    }

    /// The network connection breaks.
    pub(crate) fn cut(&mut self, conn: Conn) {
        self.lose(conn.0, LostCause::Failed);
    }

    fn lose(&mut self, at: usize, cause: LostCause) {
        let line = &mut self.lines[at];
        if std::mem::replace(&mut line.open, false) {
            line.connection.lost(&mut self.shards[line.shard], cause);
        }
    }

    /// Gives the broker what it has not used of a stream; whether it used any.
    fn feed(&mut self, at: usize, stream: usize) -> bool {
        let line = &mut self.lines[at];
        let (key, wire) = &mut line.streams[stream];
        if wire.unread.is_empty() {
            return false;
        }
        let received = line.connection.receive(&mut self.shards[line.shard], *key, &wire.unread);
        assert!(received.consumed <= wire.unread.len());
        wire.unread.drain(..received.consumed);
        match received.state {
            ReadState::Closed => wire.unread.clear(),
            ReadState::Blocked => assert!(line.connection.is_blocked(*key)),
            ReadState::More => {
                let most = self.limits.max_packet_bytes;
                assert!(wire.unread.len() <= most, "half a packet is less than a whole one");
            }
        }
        received.consumed > 0
    }

    /// Time goes by; what is due happens.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        for shard in &mut self.shards {
            shard.set_now(self.now);
            if shard.deadline().is_some_and(|at| at <= self.now) {
                shard.on_deadline();
            }
        }
        for line in self.lines.iter_mut().filter(|line| line.open) {
            let shard = &mut self.shards[line.shard];
            if line.connection.deadline(shard) <= self.now {
                line.connection.on_deadline(shard);
                assert!(
                    line.connection.deadline(shard) > self.now
                        || line.connection.closing().is_some()
                );
            }
        }
    }

    /// Turns the workers until nothing moves.
    pub(crate) fn settle(&mut self) {
        for _ in 0..MAX_TURNS {
            let mut moved = false;
            for index in 0..WORKERS {
                moved |= self.turn(index);
            }
            for at in 0..self.lines.len() {
                moved |= self.move_line(at);
            }
            if !moved {
                return;
            }
        }
        panic!("the broker does not come to rest");
    }

    fn turn(&mut self, index: usize) -> bool {
        let shard = &mut self.shards[index];
        let mut events = Vec::new();
        shard.take_events(&mut events);
        let moved = !events.is_empty();
        for (token, event) in events {
            let line = &mut self.lines[token.0 as usize];
            assert_eq!(line.shard, index, "an event for another worker's connection");
            if line.open {
                line.connection.on_event(shard, event);
                line.noticed = true;
            }
        }
        shard.end_turn();
        let asleep = shard.before_sleep();
        shard.after_sleep();
        moved || !asleep
    }

    fn move_line(&mut self, at: usize) -> bool {
        if !self.lines[at].open {
            return false;
        }
        let mut moved = false;
        // What was not used is offered again after an event, as the transport does it.
        if std::mem::take(&mut self.lines[at].noticed) {
            for stream in 0..self.lines[at].streams.len() {
                moved |= self.feed(at, stream);
            }
        }
        if self.lines[at].reading {
            moved |= self.drain(at);
        }
        if self.lines[at].connection.closing().is_some() && self.lines[at].open {
            self.lose(at, LostCause::Closed);
            moved = true;
        }
        moved
    }

    fn drain(&mut self, at: usize) -> bool {
        let line = &mut self.lines[at];
        let shard = &mut self.shards[line.shard];
        let mut moved = false;
        let mut ready = SmallVec::new();
        line.connection.ready_streams(&mut ready);
        for key in ready {
            loop {
                let output = line.connection.output(shard, key);
                moved |= !output.bytes.is_empty();
                if let Some((_, wire)) = line.streams.iter_mut().find(|(open, _)| *open == key) {
                    wire.inbox.extend_from_slice(&output.bytes);
                }
                let (more, empty) = (output.more, output.bytes.is_empty());
                shard.recycle(output.bytes);
                if !more {
                    break;
                }
                assert!(!empty, "more is promised and nothing comes");
            }
        }
        for action in line.connection.stream_actions() {
            let (StreamAction::Abort(key, _) | StreamAction::Finish(key)) = action;
            line.streams.retain(|(open, _)| *open != key);
            moved = true;
        }
        moved
    }

    /// Checks what a client has received since it looked last, and shows it.
    pub(crate) fn look(&mut self, conn: Conn, mut each: impl FnMut(&Packet<'_>)) {
        let line = &mut self.lines[conn.0];
        for (key, wire) in &mut line.streams {
            line.terms.check(*key, wire, &mut each);
        }
    }

    pub(crate) fn conns(&self) -> impl Iterator<Item = Conn> + use<> {
        (0..self.lines.len()).map(Conn)
    }

    pub(crate) fn sessions(&self) -> usize {
        self.broker.sessions()
    }

    pub(crate) fn subscriptions(&self) -> usize {
        self.broker.subscriptions()
    }
}
