//! What a node of a cluster does on threads (`crates/server/src/serve/cluster`), one step after the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmar_broker::storage::{Op, Seq, Storage as _};
use fulmar_broker::{Limits, Timestamp};
use fulmar_cluster::{Holder, Watch};
use fulmar_store::journal::{Applied, Claimant, LogPosition, LogReader, RecordKind};
use parking_lot::Mutex;

use super::engine::{Answer, Appended, Control, Entry, Request};
use super::mistake::Mistake;
use super::writer::{AppendOutcome, Writer};
use crate::settings::Settings;
use crate::tables::{Rows, Tables};
use crate::volume::{TableVolume, Volume as _};
use crate::world::World;

/// After this long, a request counts as lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two looks at the control record.
const LOOK: Duration = Duration::from_millis(250);
/// After a renewal without an answer.
const RENEW_AGAIN: Duration = Duration::from_millis(200);
/// A node that has handed over leaves the lease to others for this time.
const HOLD_OFF: Duration = Duration::from_secs(5);

/// A request without an answer so far.
#[derive(Clone, Copy)]
struct UnansweredRequest {
    id: u64,
    at: Instant,
}

impl UnansweredRequest {
    fn is_lost(self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) >= PATIENCE
    }
}

/// The lease of this node.
struct Keeper {
    holder: Holder,
    revision: u64,
    asked: Option<UnansweredRequest>,
}

enum Role {
    StandBy { watch: Watch, asked: Option<UnansweredRequest>, look_at: Instant },
    Taking { watch: Watch, revision: u64, asked: Option<UnansweredRequest> },
    Claiming { keeper: Keeper, asked: Option<UnansweredRequest>, at_end: bool },
    Serving(Box<Serving>),
}

/// A node that serves.
struct Serving {
    keeper: Keeper,
    world: World,
    storage: Arc<TableVolume>,
    /// Until when it may acknowledge, by its own clock.
    until: Arc<Mutex<Instant>>,
    writer: Writer,
    /// It hands over: it acknowledges nothing more.
    draining: bool,
    released: Option<LogPosition>,
}

pub(crate) struct Node {
    /// The clock of this node.
    clock: Arc<Mutex<Instant>>,
    mistake: Option<Mistake>,
    workers: usize,
    incarnation: u64,
    /// Which of this node's servers serves, or was the last.
    pub(crate) generation: u64,
    pub(crate) paused: bool,
    pub(crate) cut: bool,
    /// Why it serves no more.
    pub(crate) broken: Option<String>,
    role: Role,
    /// The log as far as it was read, and the database behind that.
    reader: LogReader,
    tables: Tables,
    /// Contents of its disk.
    disk: (LogPosition, Tables),
    pub(crate) inbox: VecDeque<(u64, Answer)>,
    next_id: u64,
    hold_off: Option<Instant>,
    /// Records that it has seen stored.
    pub(crate) stored: Vec<LogPosition>,
}

impl Node {
    pub(crate) fn new(
        index: usize,
        workers: usize,
        now: Instant,
        mistake: Option<Mistake>,
    ) -> Node {
        Node {
            clock: Arc::new(Mutex::new(now)),
            mistake,
            workers,
            incarnation: index as u64 + 1,
            generation: 0,
            paused: false,
            cut: false,
            broken: None,
            role: stand_by(now),
            reader: LogReader::default(),
            tables: Tables::default(),
            disk: Default::default(),
            inbox: VecDeque::new(),
            next_id: (index as u64) << 48,
            hold_off: None,
            stored: Vec::new(),
        }
    }

    pub(crate) fn set_clock(&self, now: Instant) {
        *self.clock.lock() = now;
    }

    fn now(&self) -> Instant {
        *self.clock.lock()
    }

    /// The world of its server, while it runs.
    pub(crate) fn serving(&mut self) -> Option<&mut World> {
        if self.paused { None } else { self.server() }
    }

    /// The world of its server; also of one that is paused, for what happens in the network.
    pub(crate) fn server(&mut self) -> Option<&mut World> {
        match &mut self.role {
            Role::Serving(serving) => Some(&mut serving.world),
            _ => None,
        }
    }

    pub(crate) fn has_server(&self) -> bool {
        matches!(self.role, Role::Serving(_))
    }

    /// Whether it serves with its lease and has nothing to append.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(&self.role, Role::Serving(serving)
            if serving.writer.is_idle() && serving.storage.waiting() == 0
                && self.now() < serving.keeper.holder.until())
    }

    /// An operator changes a row of another part of the server. Returns what to look at with [`Node::shared`], if the
    /// node serves and considers itself allowed to acknowledge (`fulmar_store::SqliteStorage::share`).
    pub(crate) fn share(&mut self, number: u64) -> Option<(u64, Seq)> {
        let Role::Serving(serving) = &self.role else { return None };
        if self.paused || !serving.storage.may_acknowledge() {
            return None;
        }
        let value = Some(number.to_be_bytes().into());
        let own = Op::Row { database: 0, key: number.to_be_bytes().into(), value: value.clone() };
        let last = Op::Row { database: 1, key: b"last"[..].into(), value };
        Some((self.generation, serving.storage.submit(&mut vec![own, last])))
    }

    /// Whether a change has been shared; `None` if the server that was asked has ended.
    pub(crate) fn shared(&self, generation: u64, seq: Seq) -> Option<bool> {
        let Role::Serving(serving) = &self.role else { return None };
        (self.generation == generation).then(|| serving.storage.committed() >= seq)
    }

    /// Rows that it would begin with, if it took over now.
    pub(crate) fn rows(&self) -> &Rows {
        &self.tables.rows
    }

    /// The process dies and starts again with what is on its disk.
    pub(crate) fn crash(&mut self) {
        self.inbox.clear();
        self.paused = false;
        self.hold_off = None;
        self.stand_by();
    }

    fn stand_by(&mut self) {
        self.role = stand_by(self.now());
        self.reader = LogReader::new(self.disk.0);
        self.tables = self.disk.1.clone();
    }

    /// The disk gets what the node has read.
    pub(crate) fn flush(&mut self) -> (LogPosition, Tables) {
        self.disk = (self.reader.whole(), self.tables.clone());
        self.disk.clone()
    }

    pub(crate) fn drain(&mut self) {
        if let Role::Serving(serving) = &mut self.role {
            serving.draining = true;
        }
    }

    fn new_request(&mut self, now: Instant) -> UnansweredRequest {
        self.next_id += 1;
        UnansweredRequest { id: self.next_id, at: now }
    }

    /// Handles one answer, and what is due. Returns the requests that it sends.
    pub(crate) fn turn(&mut self, time: Timestamp) -> Vec<(u64, Request)> {
        let mut out = Vec::new();
        if self.paused || self.broken.is_some() {
            return out;
        }
        if let Some((id, answer)) = self.inbox.pop_front()
            && let Err(why) = self.answered(id, answer, time)
        {
            // It does not serve on a log like this.
            self.broken = Some(why);
            self.stand_by();
            return out;
        }
        self.act(&mut out);
        out
    }

    fn own(&self, released: bool) -> Control {
        Control { incarnation: self.incarnation, released }
    }

    fn act(&mut self, out: &mut Vec<(u64, Request)>) {
        let now = self.now();
        let (asked, own) = (self.new_request(now), self.own(false));
        let log = || Request::ReadLog(self.reader.position().number + 1);
        match &mut self.role {
            Role::StandBy { watch, asked: waits, look_at } => {
                if waits.is_some_and(|waits| !waits.is_lost(now)) {
                    return;
                }
                *waits = Some(asked);
                if now >= *look_at {
                    *look_at = now + LOOK;
                    watch.request_sent(now);
                    out.push((asked.id, Request::ReadControl));
                } else {
                    out.push((asked.id, log()));
                }
            }
            Role::Taking { watch, asked: Some(waits), .. } => {
                // Perhaps it has the lease now, and does not know: it waits as for another node's.
                if waits.is_lost(now) {
                    let mut watch = std::mem::take(watch);
                    watch.unanswered(now);
                    self.role = Role::StandBy { watch, asked: None, look_at: now };
                }
            }
            Role::Taking { revision, asked: waits, .. } => {
                *waits = Some(asked);
                out.push((asked.id, Request::Swap(*revision, own)));
            }
            Role::Claiming { keeper, asked: waits, at_end } => {
                renew(keeper, own, asked, now, out);
                if waits.is_some_and(|waits| !waits.is_lost(now)) {
                    return;
                }
                let asked = UnansweredRequest { id: asked.id + 1, ..asked };
                self.next_id = asked.id;
                *waits = Some(asked);
                if std::mem::take(at_end) {
                    let (position, bytes) =
                        self.reader.position().claim(claimant(self.incarnation));
                    out.push((asked.id, Request::Append(position, bytes.into())));
                } else {
                    out.push((asked.id, log()));
                }
            }
            Role::Serving(_) => self.act_serving(asked, out),
        }
    }

    fn act_serving(&mut self, asked: UnansweredRequest, out: &mut Vec<(u64, Request)>) {
        let (own, released) = (self.own(false), self.own(true));
        let Role::Serving(serving) = &mut self.role else { return };
        if serving.released.is_some() && serving.keeper.asked.is_none() {
            out.push((asked.id, Request::Swap(serving.keeper.revision, released)));
            self.hold_off = Some(asked.at + HOLD_OFF);
            self.stand_by();
            return;
        }
        if !serving.draining {
            renew(&mut serving.keeper, own, asked, asked.at, out);
        } else if serving.keeper.asked.is_some_and(|waits| waits.is_lost(asked.at)) {
            serving.keeper.asked = None;
        }
        if serving.writer.has_room() && serving.released.is_none() {
            let (seq, ops) = serving.storage.take_waiting();
            if !ops.is_empty() {
                serving.writer.add(seq, ops);
            } else if serving.draining && serving.writer.is_idle() {
                serving.set_lease(asked.at);
                serving.writer.release();
            }
        }
        let mut id = asked.id;
        loop {
            id += 1;
            let Some(request) = serving.writer.request(id, asked.at) else { break };
            out.push((id, request));
        }
        self.next_id = id;
    }

    fn answered(&mut self, id: u64, answer: Answer, time: Timestamp) -> Result<(), String> {
        let now = self.now();
        match &mut self.role {
            Role::StandBy { watch, asked, .. } => {
                if asked.is_none_or(|asked| asked.id != id) {
                    return Ok(());
                }
                *asked = None;
                if let Answer::Control(revision, control) = answer {
                    let released = control.is_none_or(|control| control.released);
                    let held_off = self.hold_off.is_some_and(|until| now < until);
                    if watch.observe(revision, released, now) && !held_off {
                        // Each attempt has its own: the log may have an earlier claim of this process.
                        self.incarnation += 16;
                        let watch = std::mem::take(watch);
                        self.role = Role::Taking { watch, revision, asked: None };
                    }
                    return Ok(());
                }
                self.read(answer).map(drop)
            }
            Role::Taking { asked: Some(asked), .. } if asked.id == id => {
                match answer {
                    Answer::Swapped(Ok(revision)) => {
                        // From when it was sent.
                        let keeper =
                            Keeper { holder: Holder::new(asked.at), revision, asked: None };
                        self.role = Role::Claiming { keeper, asked: None, at_end: false };
                    }
                    _ => self.role = stand_by(now),
                }
                Ok(())
            }
            Role::Taking { .. } => Ok(()),
            Role::Claiming { keeper, asked, at_end } => {
                if keeper.asked.is_some_and(|asked| asked.id == id) {
                    if !renewed(keeper, &answer, self.incarnation, now) {
                        self.stand_by();
                    }
                    return Ok(());
                }
                if asked.is_none_or(|asked| asked.id != id) {
                    return Ok(());
                }
                *asked = None;
                *at_end = matches!(&answer, Answer::Log(records) if records.is_empty());
                if self.read(answer)? {
                    self.serve(time);
                }
                Ok(())
            }
            Role::Serving(_) => {
                self.answered_serving(id, &answer, now);
                Ok(())
            }
        }
    }

    /// Reads records. True if the last is this process' claim.
    fn read(&mut self, answer: Answer) -> Result<bool, String> {
        match answer {
            Answer::Log(records) => {
                let mut own = false;
                for record in records {
                    own = match self.apply(&record)? {
                        Applied::Void(_) => own,
                        Applied::Operations | Applied::Released => false,
                        Applied::Claimed { incarnation, .. } => incarnation == self.incarnation,
                    };
                }
                Ok(own)
            }
            Answer::Purged(at, tables) => {
                self.reader = LogReader::new(at);
                self.tables = *tables;
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Reads what the log has next.
    fn apply(&mut self, record: &Entry) -> Result<Applied, String> {
        let mut entry = record.as_read();
        let rechained;
        match self.mistake {
            Some(Mistake::EndsAtStrangers) => entry.conditional = true,
            Some(Mistake::PassesDamage) => entry.conditional = false,
            Some(Mistake::NoChain) => {
                rechained = rechain(self.reader.position(), entry.bytes);
                entry.bytes = rechained.as_deref().unwrap_or(entry.bytes);
            }
            _ => {}
        }
        let mut ops = Vec::new();
        let applied = self.reader.read(entry, &mut ops).map_err(|error| error.to_string())?;
        ops.iter().for_each(|op| self.tables.apply(op));
        Ok(applied)
    }

    fn serve(&mut self, time: Timestamp) {
        let now = self.now();
        let Role::Claiming { keeper, .. } = std::mem::replace(&mut self.role, stand_by(now)) else {
            return;
        };
        self.generation += 1;
        let until = Arc::new(Mutex::new(keeper.holder.until()));
        let (clock, lease) = (Arc::clone(&self.clock), Arc::clone(&until));
        let leased = self.mistake != Some(Mistake::NoLease);
        let may_acknowledge = move || !leased || *clock.lock() < *lease.lock();
        let storage = Arc::new(TableVolume::behind_log(may_acknowledge));
        let limits = Limits { storage_stall_timeout: Duration::MAX, ..Limits::default() };
        let settings = Settings::open(limits, Vec::new());
        let (volume, restored) = (Arc::clone(&storage) as _, self.tables.restored());
        let world = World::start(volume, restored, self.workers, settings, time);
        let depth = if self.mistake == Some(Mistake::TwoInFlight) { 2 } else { 1 };
        let writer = Writer::new(self.reader.position(), depth);
        let (draining, released) = (false, None);
        let serving = Serving { keeper, world, storage, until, writer, draining, released };
        self.role = Role::Serving(Box::new(serving));
    }

    fn answered_serving(&mut self, id: u64, answer: &Answer, now: Instant) {
        let Role::Serving(serving) = &mut self.role else { return };
        if serving.keeper.asked.is_some_and(|asked| asked.id == id) {
            if renewed(&mut serving.keeper, answer, self.incarnation, now) {
                if !serving.draining {
                    serving.set_lease(serving.keeper.holder.until());
                }
            } else {
                self.stand_by();
            }
            return;
        }
        let Answer::Appended(appended) = answer else { return };
        let appended = match (self.mistake, appended) {
            (Some(Mistake::EndsAtStrangers), Appended::Displaced(_)) => &Appended::Refused,
            _ => appended,
        };
        match serving.writer.answered(id, appended) {
            AppendOutcome::Stored(position, group) => {
                self.stored.push(position);
                if let Some((seq, ops)) = group {
                    ops.iter().for_each(|op| self.tables.apply(op));
                    self.reader = LogReader::new(position);
                    serving.storage.logged(seq);
                    serving.world.storage_changed();
                } else if serving.draining && serving.writer.is_idle() {
                    serving.released = Some(position);
                }
            }
            AppendOutcome::Refused => self.stand_by(),
            AppendOutcome::Other => {}
        }
    }
}

impl Serving {
    /// The node may acknowledge until then.
    fn set_lease(&self, until: Instant) {
        *self.until.lock() = until;
        self.world.storage_changed();
    }
}

/// A record as if it continued what was read, whatever it says.
fn rechain(at: LogPosition, record: &[u8]) -> Option<Vec<u8>> {
    let word = |from: usize| record.get(from..from + 8).and_then(|bytes| bytes.try_into().ok());
    let checksum = record.get(17..21).and_then(|bytes| bytes.try_into().ok());
    let claims = record.get(21) == Some(&2);
    let before = LogPosition {
        epoch: u64::from_le_bytes(word(1)?).saturating_sub(u64::from(claims)),
        number: u64::from_le_bytes(word(9)?).saturating_sub(1),
        checksum: u32::from_le_bytes(checksum?),
    };
    let mut bytes = Vec::new();
    match before.read(record).ok()?.kind? {
        RecordKind::Claim(claimant) => bytes = at.claim(claimant).1,
        kind => drop(at.next(kind, &mut bytes)),
    }
    Some(bytes)
}

fn stand_by(now: Instant) -> Role {
    Role::StandBy { watch: Watch::default(), asked: None, look_at: now }
}

fn claimant(incarnation: u64) -> Claimant<'static> {
    Claimant { node: "node", incarnation }
}

/// Sends a renewal that is due.
fn renew(
    keeper: &mut Keeper,
    own: Control,
    asked: UnansweredRequest,
    now: Instant,
    out: &mut Vec<(u64, Request)>,
) {
    if let Some(waits) = keeper.asked {
        if !waits.is_lost(now) {
            return;
        }
        keeper.asked = None;
        keeper.holder.unanswered(now);
    }
    if now >= keeper.holder.next_renewal() {
        keeper.holder.send(now);
        keeper.asked = Some(asked);
        out.push((asked.id, Request::Swap(keeper.revision, own)));
    }
}

/// A renewal is answered. False if the lease is another node's.
fn renewed(keeper: &mut Keeper, answer: &Answer, incarnation: u64, now: Instant) -> bool {
    keeper.asked = None;
    match answer {
        Answer::Swapped(Ok(revision)) => {
            keeper.revision = *revision;
            keeper.holder.renewed();
            true
        }
        // An earlier renewal, whose answer was lost or late.
        Answer::Swapped(Err((revision, Some(control)))) if control.incarnation == incarnation => {
            keeper.revision = *revision;
            keeper.holder.found();
            keeper.holder.unanswered(now + RENEW_AGAIN);
            true
        }
        _ => false,
    }
}
