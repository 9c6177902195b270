//! The world of a broker, its storage and its clients. Playing a schedule takes its steps, then lets everything come to
//! rest without further faults, and checks that every promise was kept and that no state is left over.
//!
//! `schedule` draws the steps and `troubles` those that make storage stall, an internal session fall behind or clocks
//! jump; `client` has the clients, `ledger` what the broker has promised them, `wills` their wills. `stalls` and
//! `pressure` check what must hold while clients are refused or wait, `clock_steps` sets clocks, `rest` checks the state
//! at the end. In other schedules, clients lie and rights change: `liars`.

mod client;
mod clock_steps;
mod ledger;
mod liars;
mod pressure;
mod rest;
mod schedule;
mod stalls;
mod troubles;
mod wills;

use std::sync::Arc;
use std::time::Duration;

use fulmar_broker::{DropPolicy, Limits, Peer, StreamEnd, User};
use fulmar_mqtt::QoS;

use self::client::{Client, EXPIRY_S, StreamBytes};
use self::ledger::{Lane, Ledger};
use self::liars::Stage;
pub use self::schedule::Schedule;
use self::schedule::{FILTERS, FlowChoice, Setup, Step};
use self::wills::Wills;
use crate::network::{DISCONNECT, Input};
use crate::script::{Failure, Played, Simulation, Story};
use crate::settings::{self, Settings};
use crate::volume::{TableVolume, Volume};
use crate::world::World;

/// Rounds after which everything must be at rest.
const MAX_ROUNDS: usize = 3_000;

/// Number of times that clients that were disconnected because of a full queue return at most.
const MAX_RETURNS: usize = 5;

pub(crate) struct Scene<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) world: World,
    pub(crate) clients: Vec<Client>,
    pub(crate) ledger: Ledger,
    pub(crate) wills: Wills,
    disk_fails: bool,
    /// Counts of what has happened so far.
    pub(crate) played: Played,
    /// The broker has crashed.
    pub(crate) crashed: bool,
    story: Story,
    /// Seconds since everything was old last.
    pub(crate) unaged_s: u64,
}

/// Plays a schedule over the simulated storage.
///
/// # Errors
/// Says which promise was broken first.
pub fn play(schedule: &Schedule) -> Result<Played, Failure> {
    play_on(schedule, || Arc::new(TableVolume::default()))
}

/// Plays a schedule over the storage that `disk` creates. The storage must be empty, and may panic when its state is
/// wrong.
///
/// # Errors
/// Says which promise was broken first.
pub fn play_on(
    schedule: &Schedule,
    disk: impl FnOnce() -> Arc<dyn Volume>,
) -> Result<Played, Failure> {
    let setup = &schedule.setup;
    if setup.liars {
        return schedule.play(|story| Stage::new(setup, disk(), story));
    }
    schedule.play(|story| Ok(Scene::new(setup, disk(), story)))
}

impl<'a> Scene<'a> {
    fn new(setup: &'a Setup, disk: Arc<dyn Volume>, story: Story) -> Scene<'a> {
        let mut limits = Limits {
            max_in_flight: setup.max_in_flight,
            storage_stall_timeout: Duration::MAX,
            // Each client has one, and an address may have half.
            max_retained_messages: 2 * setup.natures.len() + 4,
            ..Limits::default()
        };
        if let Some((most, policy)) = setup.queue {
            (limits.max_queued_messages, limits.drop_policy) = (most, policy);
        }
        if let Some(bytes) = setup.large {
            (limits.large_message_bytes, limits.large_bytes_per_turn) = (1, bytes);
        }
        if let Some(stalls) = setup.stalls {
            limits.storage_stall_timeout = Duration::from_secs(stalls.timeout_s);
            limits.max_storage_backlog = stalls.backlog;
        }
        let natures = setup.natures.iter().enumerate();
        let internal = setup.internal.iter().map(|client| Client::name(*client).into()).collect();
        let settings = Settings::open(limits, internal);
        let world = World::new(disk, setup.workers, settings);
        let ledger = Ledger::new(&setup.natures, world.machine.real());
        Scene {
            setup,
            world,
            clients: natures.map(|(index, nature)| Client::new(index, *nature)).collect(),
            ledger,
            wills: Wills::new(setup.natures.len()),
            disk_fails: false,
            crashed: false,
            played: Played::default(),
            story,
            unaged_s: 0,
        }
    }
}

impl Simulation<Step> for Scene<'_> {
    fn step(&mut self, step: Step) -> Result<(), String> {
        self.ledger.tick = self.world.tick();
        match step {
            Step::Connect { client, worker, quic, clean, takeover } => {
                let away = |at: &usize| takeover || self.clients[*at].line.is_none();
                if let Some(client) = self.pick(client, away) {
                    self.connect(client, worker, quic, clean);
                }
            }
            Step::Cut { client, lossy } => self.cut(client, lossy, false),
            Step::Leave { client } => {
                if let Some(line) = self.greeted(client) {
                    let said = self.clients[client].disconnect();
                    self.send_all(line, [said]);
                    self.cut(client, false, true);
                }
            }
            Step::Publish { client, topic, qos, stream, retain, expiry_s } => {
                self.publish(client, (!retain).then_some(topic), qos, stream, expiry_s);
            }
            Step::Subscribe { client, filter, qos, stream } => {
                if let Some(line) = self.greeted(client) {
                    // The program has no shared subscriptions.
                    let most = if self.setup.internal == Some(client) { 4 } else { FILTERS.len() };
                    let (filter, who) = (filter % most, &mut self.clients[client]);
                    let said = who.subscribe(filter, qos, stream, &mut self.ledger);
                    self.send_all(line, said);
                }
            }
            Step::Unsubscribe { client, filter } => {
                if let Some(line) = self.greeted(client) {
                    let said = self.clients[client].unsubscribe(filter, &mut self.ledger);
                    self.send_all(line, [said]);
                }
            }
            Step::OpenStream { client, name, keep, wanted } => {
                self.open_stream(client, name, keep, wanted);
            }
            Step::EndStream { client, stream, finish } => {
                if let Some(line) = self.greeted(client)
                    && let Some(key) = self.clients[client].end_stream(stream, &mut self.ledger)
                {
                    let end = if finish { StreamEnd::Finished } else { StreamEnd::Reset(0) };
                    self.world.input(line, key, Input::End(end));
                }
            }
            Step::Hear { client, stream } => {
                let can = |at: &usize| {
                    self.clients[*at].line.is_some_and(|line| !self.world.audible(line).is_empty())
                };
                if let Some(client) = self.pick(client, can) {
                    self.receive(client, stream)?;
                }
            }
            Step::Acknowledge { client, pick } => {
                let can = |at: &usize| self.clients[*at].owes_acknowledgements();
                if let Some(client) = self.pick(client, can)
                    && let Some(line) = self.greeted(client)
                {
                    let said = self.clients[client].acknowledge(pick);
                    self.send_all(line, said);
                }
            }
            Step::Work(work) => drop(self.world.work(work)),
            Step::ReadAmid { line, stream, amid } => {
                self.world.read_any(line, stream, Some(amid));
            }
            Step::Disk { failing } => {
                self.disk_fails = failing;
                self.world.disk.set_failing(failing);
            }
            Step::Wait { seconds } => self.wait(seconds),
            Step::Crash { workers } => self.crash(workers)?,
            Step::Stall => self.stall()?,
            Step::Rest => self.rest()?,
            Step::Clock(step) => self.clock_step(step)?,
            Step::Lie(_) => {}
        }
        self.check_lines()
    }

    fn finish(&mut self) -> Result<Played, String> {
        self.end()?;
        let (sent, refused) = (self.ledger.sent.len() as u64, self.ledger.refusals);
        Ok(Played { sent, refused, ..self.played })
    }
}

impl Scene<'_> {
    /// The nth client for which `can` is true.
    fn pick(&self, nth: usize, can: impl Fn(&usize) -> bool) -> Option<usize> {
        let able: Vec<usize> = (0..self.clients.len()).filter(can).collect();
        (!able.is_empty()).then(|| able[nth % able.len()])
    }

    fn publish(
        &mut self,
        nth: usize,
        topic: Option<usize>,
        qos: QoS,
        stream: usize,
        expiry_s: Option<u32>,
    ) {
        let publishes = |at: &usize| self.clients[*at].nature.publishes;
        let there = |at: &usize| publishes(at) && self.greeted(*at).is_some();
        if let Some(client) = self.pick(nth, there)
            && let Some(line) = self.greeted(client)
        {
            let who = &mut self.clients[client];
            let said = who.publish(topic, qos, stream, expiry_s, &mut self.ledger);
            self.send_all(line, said);
        }
    }

    /// The connection of a client that has received CONNACK.
    pub(crate) fn greeted(&self, client: usize) -> Option<usize> {
        self.clients[client].line.filter(|_| self.clients[client].greeted)
    }

    fn send_all(&mut self, line: usize, said: impl IntoIterator<Item = StreamBytes>) {
        for (key, bytes) in said {
            self.world.client_sends(line, key, bytes);
        }
    }

    fn connect(&mut self, client: usize, worker: usize, quic: bool, clean: bool) {
        let old = self.clients[client].line;
        let was_greeted = self.clients[client].greeted;
        let room = self.setup.natures[client].room;
        let is_internal = self.setup.internal == Some(client);
        let user = is_internal.then(|| User::program().into());
        let quic = quic && !is_internal;
        let peer = Peer { identity: user, ..settings::peer(quic) };
        let Some(line) = self.world.open_as(worker, room, peer) else { return };
        let who = &mut self.clients[client];
        let anew = who.begins_anew(clean);
        let will = self.wills.connecting(who, anew, line, &self.world, &mut self.ledger);
        let said = who.connect(line, quic, clean, will, &mut self.ledger);
        self.send_all(line, [said]);
        if let Some(old) = old {
            // The broker detects that when it takes the session over, or before. An older CONNECT read later would
            // take it back, and an older retained message would become the last.
            let lossy = !was_greeted || self.clients[client].retained.1.is_some();
            self.world.cut(old, lossy);
        }
        self.world.lines[line].keeps_alive = self.setup.natures[client].keep_alive_s > 0;
    }

    /// A client closes its connection, perhaps after DISCONNECT.
    pub(crate) fn cut(&mut self, client: usize, lossy: bool, goodbye: bool) {
        if let Some(line) = self.clients[client].line {
            let who = &self.clients[client];
            let lossy = lossy || !who.greeted || who.retained.1.is_some();
            if goodbye && !lossy {
                self.wills.left(client, &mut self.ledger);
            } else {
                self.wills.lost(client, &mut self.ledger);
            }
            self.clients[client].disconnected(&mut self.ledger);
            self.world.cut(line, lossy);
        }
    }

    fn open_stream(&mut self, client: usize, name: Option<u64>, keep: bool, wanted: FlowChoice) {
        let who = &mut self.clients[client];
        if let (Some(line), true, true) = (who.line, who.greeted, who.quic) {
            // An older stream of that name that is still unread would displace this one.
            for old in name.map_or_else(Vec::new, |name| who.streams_of(name)) {
                self.world.reset(line, old);
            }
            let said = who.open_stream(name, keep, wanted, &mut self.ledger);
            self.send_all(line, said);
        }
    }

    fn receive(&mut self, client: usize, stream: usize) -> Result<bool, String> {
        let Some(line) = self.clients[client].line else { return Ok(false) };
        let keys = self.world.audible(line);
        if keys.is_empty() {
            return Ok(false);
        }
        let key = keys[stream % keys.len()];
        let Some(packet) = self.world.receive(line, key) else { return Ok(false) };
        if packet.first() == Some(&DISCONNECT)
            && (self.may_overflow() || self.is_for_stall(line, &packet))
        {
            return Ok(true);
        }
        self.played.heard += 1;
        self.wills.record_detected(&self.world, &mut self.ledger);
        self.see_refusals(line);
        let who = &mut self.clients[client];
        self.story
            .add_event(|| format!("    client {client} reads {} ({key:?})", who.words(&packet)));
        let said = who.receive(key, &packet, &mut self.ledger)?;
        if who.greeted {
            self.wills.greeted(client);
        }
        if std::mem::take(&mut who.turned_away) {
            self.wills.refused(client, &mut self.ledger)?;
            self.cut(client, true, false);
        }
        self.send_all(line, said);
        Ok(true)
    }

    pub(crate) fn pass(&mut self, seconds: u64) {
        self.world.wait(Duration::from_secs(seconds));
        self.see_time();
        self.world.ping();
    }

    pub(crate) fn wait(&mut self, seconds: u64) {
        self.pass(seconds);
        self.passed(seconds);
    }

    /// Sessions may have expired if enough time has passed.
    pub(crate) fn passed(&mut self, seconds: u64) {
        self.unaged_s += seconds;
        if self.unaged_s < u64::from(EXPIRY_S) - 200 {
            return;
        }
        self.unaged_s = 0;
        // A client that was not accepted so far starts again, and one that has not read yet that it must.
        for client in 0..self.clients.len() {
            let closed = |line: usize| !self.world.is_open(line);
            if self.greeted(client).is_none_or(closed) {
                self.cut(client, true, false);
            }
        }
        for client in &mut self.clients {
            client.aged(&mut self.ledger);
        }
    }

    pub(crate) fn crash(&mut self, workers: usize) -> Result<(), String> {
        self.wills.record_detected(&self.world, &mut self.ledger);
        self.crashed = true;
        self.ledger.undone |= self.world.dropped() > 0;
        let stored = self.world.crash(workers)?;
        self.see_time();
        self.wills.crash(&stored, self.world.now, &mut self.ledger);
        for client in &mut self.clients {
            client.disconnected(&mut self.ledger);
        }
        Ok(())
    }

    /// The broker closes no connection of an honest client, except after a slow CONNECT, or because of a full queue
    /// if it is configured so.
    fn check_lines(&mut self) -> Result<(), String> {
        for client in 0..self.clients.len() {
            let who = &mut self.clients[client];
            let line = who.line.map(|line| &self.world.lines[line]);
            for key in line.iter().flat_map(|line| &line.aborted) {
                who.refused(*key, &mut self.ledger)?;
            }
            let who = &self.clients[client];
            let Some(line) = who.line.filter(|line| !self.world.lines[*line].open) else {
                continue;
            };
            let overflowed = self.may_overflow() && self.setup.internal != Some(client);
            if who.greeted && !overflowed && !self.world.lines[line].closed_by_stall {
                return Err(format!("the broker closed the connection of client {client}"));
            }
            if self.reads_on(line) {
                continue;
            }
            self.cut(client, true, false);
            self.world.cut(line, true);
        }
        Ok(())
    }

    /// Whether clients may have been disconnected because their queue was full.
    fn may_overflow(&self) -> bool {
        let disconnects =
            self.setup.queue.is_some_and(|(_, policy)| policy == DropPolicy::Disconnect);
        disconnects && self.world.dropped() > 0
    }

    /// Checks every promise, except for messages that full queues have dropped.
    fn check_missing(&self) -> Result<(), String> {
        let missing = self.ledger.missing(|_| true);
        if missing.len() as u64 > self.world.dropped() {
            return Err(missing.join(", "));
        }
        self.check_internal_session(|_| true)
    }

    /// Everything comes to rest in the middle: connected clients that have streams for all that they are owed have
    /// received it.
    fn rest(&mut self) -> Result<(), String> {
        if self.disk_fails {
            return Ok(());
        }
        self.settle_behind()?;
        self.settle()?;
        self.check_all_is_read()?;
        let is_there = |client: usize| {
            self.greeted(client).is_some() && self.clients[client].has_all_streams()
        };
        self.check_internal_session(is_there)?;
        if self.is_internal_session_behind() {
            // The acknowledgements of clients that wait are not read either.
            return Ok(());
        }
        let missing = self.ledger.missing(is_there);
        if missing.len() as u64 > self.world.dropped() {
            return Err(format!("at rest {}", missing.join(", ")));
        }
        if let Some(client) = self.clients.iter().find(|client| client.has_false_stream()) {
            return Err(format!("client {} resumed a flow that never was", client.index));
        }
        let under_way = |who: &&Client| is_there(who.index) && !who.is_at_rest();
        match self.clients.iter().find(under_way).filter(|_| !self.may_overflow()) {
            Some(client) => Err(format!("at rest, under way: {}", client.at_rest_but_for())),
            None => Ok(()),
        }
    }

    /// Faults end; all clients connect and do what is due.
    fn end(&mut self) -> Result<(), String> {
        self.world.disk.set_failing(false);
        self.disk_fails = false;
        self.rest()?;
        // Once more, because a full queue ends connections: everything that could wait has arrived by then.
        for _ in 0..MAX_RETURNS {
            self.come_back();
            self.settle()?;
            self.reopen();
            self.settle()?;
            let done =
                |who: &Client| who.is_at_rest() && (who.line.is_some() || !who.nature.durable);
            if self.clients.iter().all(done) {
                break;
            }
        }
        self.check_missing()?;
        // Lets time pass for what waits for it.
        self.pass(10);
        self.settle()?;
        self.wills.record_detected(&self.world, &mut self.ledger);
        self.wills.at_the_end(&mut self.ledger);
        self.check_missing()?;
        if self.may_overflow() {
            // Clients that fill a queue with repeated messages may be disconnected for ever.
            return Ok(());
        }
        if let Some(client) = self.clients.iter().find(|client| !client.is_at_rest()) {
            return Err(format!("still under way: {}", client.at_rest_but_for()));
        }
        self.check_tables()?;
        self.check_retained()
    }

    /// Clients that are owed messages connect.
    fn come_back(&mut self) {
        for client in 0..self.clients.len() {
            let who = &self.clients[client];
            if who.nature.durable && who.line.is_none() {
                let quic = who.index.is_multiple_of(2);
                self.connect(client, client, quic, false);
            }
        }
    }

    /// Flows that wait for a stream get one.
    fn reopen(&mut self) {
        for client in 0..self.clients.len() {
            for name in [2, 4] {
                let who = &self.clients[client];
                if who.quic && !who.has_stream_of(Lane::Named(name)) {
                    self.open_stream(client, Some(name), true, FlowChoice::Any);
                }
            }
        }
    }

    /// Runs until nothing happens any more.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        self.settle_with(usize::MAX, None)
    }

    /// The same; storage commits this many batches each time, and one client may read nothing.
    pub(crate) fn settle_with(&mut self, most: usize, idle: Option<usize>) -> Result<(), String> {
        let mut quiet = 0;
        for _ in 0..MAX_ROUNDS {
            self.ledger.tick = self.world.tick();
            let mut moved = self.world.round(most);
            for client in (0..self.clients.len()).filter(|client| idle != Some(*client)) {
                while self.receive(client, 0)? {
                    moved = true;
                }
                while let Some(line) = self.greeted(client)
                    && let Some(said) = self.clients[client].acknowledge(0)
                {
                    moved = true;
                    self.send_all(line, [said]);
                }
            }
            self.check_lines()?;
            quiet = if moved { 0 } else { quiet + 1 };
            if quiet == 3 {
                return Ok(());
            }
        }
        Err("the world does not come to rest".to_owned())
    }
}
