//! Three nodes of a cluster with their log, control record, clocks, network and clients.
//!
//! Real are the broker, the records, their chain and their reader (`fulmar_store::journal`), the rules of the lease
//! (`fulmar_cluster`) and the clients (the client library's session machine). `engine` stands for NATS JetStream: it
//! appends by compare-and-swap, and answers late, never, or after an election. `node` repeats step by step what a node
//! does on threads: it follows the log, takes the lease, claims, serves, appends (`writer`), renews and gives way; its
//! database behind the log is tables. `client` and `ledger` have the clients and what they were promised. `schedule`
//! draws the steps, and this takes them: a node dies, stops and continues, is cut off, its clock runs fast or slow, its
//! disk is behind; the engine loses requests and answers, elects a leader, mixes up records; strangers publish to the
//! log.
//!
//! Afterwards all faults end, and all comes to rest. Every message that a publisher saw acknowledged has then arrived at
//! every subscriber that saw its subscription acknowledged before, those at QoS 2 once, those of a publisher in order;
//! what any node saw appended is in the one chain of the log. A node that finds the chain broken serves no more.
//!
//! [`Mistake`] puts known mistakes into the nodes; each makes schedules fail.

mod client;
mod engine;
mod ledger;
mod mistake;
mod node;
mod schedule;
mod writer;

use std::time::{Duration, Instant};

use fulmar_broker::Timestamp;
use fulmar_broker::storage::Seq;
use fulmar_client::simulation::Outcome;
use fulmar_store::journal::{Applied, LogReader};

use self::client::Client;
use self::engine::{Engine, InFlightRequest};
use self::ledger::Ledger;
pub use self::mistake::Mistake;
use self::node::Node;
use self::schedule::{Fate, NODES, PAIRS};
pub use self::schedule::{Schedule, Step};
use crate::clock::{BEGIN, Wall};
use crate::script::{Failure, Played, Simulation};
use crate::world::World;

/// Messages of a schedule, at most.
const MAX_MESSAGES: usize = 60;
/// Time of a round in which everything does what it can.
const ROUND: Duration = Duration::from_millis(50);
/// Rounds after which everything must be at rest: a minute.
const MAX_ROUNDS: usize = 1_200;
/// Rounds in which nothing may change, for it to be at rest.
const QUIET_ROUNDS: usize = 30;

/// Plays a schedule, perhaps with nodes that make a mistake.
///
/// # Errors
/// Says which promise was broken first.
pub fn play(schedule: &Schedule, mistake: Option<Mistake>) -> Result<Played, Failure> {
    schedule.play(|_| Scene::new(schedule, mistake))
}

struct Scene<'s> {
    schedule: &'s Schedule,
    began: Instant,
    elapsed: Duration,
    /// Seconds by which the nodes' wall clocks are ahead.
    ahead_s: [i64; NODES],
    mistake: Option<Mistake>,
    engine: Engine,
    nodes: Vec<Node>,
    /// Publishers, then subscribers.
    clients: Vec<Client>,
    /// Whether each client's session must be there.
    known: Vec<bool>,
    ledger: Ledger,
    /// Changes of rows without an answer: number, node, and what the node looks at.
    changes: Vec<(u64, usize, (u64, Seq))>,
    packets: u64,
}

impl<'s> Scene<'s> {
    fn new(schedule: &'s Schedule, mistake: Option<Mistake>) -> Result<Scene<'s>, String> {
        let began = Instant::now();
        let workers = schedule.setup.workers;
        let name = |client: usize| match client.checked_sub(PAIRS) {
            None => format!("p{client}"),
            Some(subscriber) => format!("s{subscriber}"),
        };
        let clients = (0..2 * PAIRS).map(|client| Client::new(&name(client), began));
        Ok(Scene {
            schedule,
            began,
            elapsed: Duration::ZERO,
            ahead_s: [0; NODES],
            mistake,
            engine: Engine::new(),
            nodes: (0..NODES).map(|node| Node::new(node, workers, began, mistake)).collect(),
            clients: clients.collect::<Result<_, _>>()?,
            known: vec![false; 2 * PAIRS],
            ledger: Ledger::new(PAIRS),
            changes: Vec::new(),
            packets: 0,
        })
    }

    fn now(&self) -> Instant {
        self.began + self.elapsed
    }
}

impl Simulation<Step> for Scene<'_> {
    fn step(&mut self, step: Step) -> Result<(), String> {
        let now = self.now();
        match step {
            Step::Publish(publisher) => {
                if self.ledger.len() < MAX_MESSAGES {
                    let qos = self.schedule.setup.qos[publisher];
                    let number = self.ledger.publish(publisher, qos);
                    self.clients[publisher].publish(&mut self.nodes, number, qos, now);
                }
            }
            Step::Change(node) => self.change(node),
            Step::Subscribe(subscriber) => {
                let (request, wanted) = self.ledger.toggle(subscriber);
                let client = &mut self.clients[PAIRS + subscriber];
                client.subscribe(&mut self.nodes, request, wanted, now);
            }
            Step::Connect(client, node) => self.connect(client, node),
            Step::Cut(client, lossy) => self.clients[client].cut(&mut self.nodes, lossy),
            Step::Receive(client) => drop(self.receive(client)?),
            Step::Read(node, line) => {
                let world = self.nodes[node].serving();
                self.packets += u64::from(world.is_some_and(|world| world.read_any(line, 0, None)));
            }
            Step::EndTurn(node) => {
                self.nodes[node].serving().map(World::turns);
            }
            Step::Turn(node) => self.turn(node),
            Step::Engine(at, fate) => self.handle(at, fate),
            Step::Wait(ms) => self.pass(Duration::from_millis(ms)),
            Step::Pause(node, paused) => self.nodes[node].paused = paused,
            Step::CutOff(node, cut) => self.cut_off(node, cut),
            Step::Split => {
                if let Some(node) = self.nodes.iter().position(Node::is_settled) {
                    self.cut_off(node, true);
                }
            }
            Step::Crash(node) => self.nodes[node].crash(),
            Step::Elect(ms) => self.engine.down_until = self.elapsed + Duration::from_millis(ms),
            Step::Flush(node) => drop(self.nodes[node].flush()),
            Step::Snapshot(node) => {
                if !self.nodes[node].cut && !self.nodes[node].paused {
                    let (position, tables) = self.nodes[node].flush();
                    self.engine.snapshot(position, tables);
                }
            }
            Step::Drain(node) => self.nodes[node].drain(),
            Step::MixUp(at, lose) => self.engine.mix_up(at, lose),
            Step::Publication(what, at) => {
                if self.elapsed >= self.engine.down_until {
                    self.engine.publish(what, at);
                }
            }
            Step::SetWall(node, ahead_s) => {
                self.ahead_s[node] = ahead_s;
                if let Some(world) = self.nodes[node].server() {
                    world.set_wall(Wall::Off(ahead_s));
                }
            }
            Step::Run(rounds) => {
                for _ in 0..rounds {
                    self.round()?;
                }
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Played, String> {
        self.end()?;
        Ok(Played { heard: self.packets, sent: self.ledger.len() as u64, ..Played::default() })
    }
}

impl Scene<'_> {
    fn connect(&mut self, client: usize, node: usize) {
        let serve = |node: &usize| self.nodes[*node].has_server() && !self.nodes[*node].paused;
        let serving: Vec<usize> = (0..NODES).filter(serve).collect();
        if !serving.is_empty() {
            let now = self.now();
            let to = serving[node % serving.len()];
            self.clients[client].connect(&mut self.nodes, to, node, now);
        }
    }

    /// Each change is a row of its own, and one that all change.
    fn change(&mut self, node: usize) {
        let number = self.ledger.next_change();
        if let Some(asked) = self.nodes[node].share(number) {
            self.ledger.change();
            self.changes.push((number, node, asked));
        }
    }

    /// Changes that are acknowledged now.
    fn look_at_changes(&mut self) {
        let (nodes, ledger) = (&self.nodes, &mut self.ledger);
        self.changes.retain(|(number, node, asked)| match nodes[*node].shared(asked.0, asked.1) {
            Some(true) => {
                ledger.change_acknowledged(*number);
                false
            }
            Some(false) => true,
            None => false,
        });
    }

    fn cut_off(&mut self, node: usize, cut: bool) {
        self.nodes[node].cut = cut;
        if cut {
            self.engine.network.retain(|sent| sent.node != node);
            self.nodes[node].inbox.clear();
        }
    }

    /// A client reads a packet. False if there is none.
    fn receive(&mut self, at: usize) -> Result<bool, String> {
        let now = self.now();
        let client = &mut self.clients[at];
        let received = client.receive(&mut self.nodes, now)?;
        while let Some(outcome) = client.outcome() {
            match outcome {
                Outcome::Connected { session_present } => {
                    if self.known[at] && !session_present {
                        return Err(format!("client {at}: its session is forgotten"));
                    }
                    self.known[at] = true;
                }
                Outcome::Message(message) => self.ledger.arrive(at - PAIRS, &message.payload)?,
                Outcome::Published(number, Ok(_)) => self.ledger.acknowledged(number),
                Outcome::Answered(request, Ok(_)) => self.ledger.granted(at - PAIRS, request),
                Outcome::Published(_, Err(error)) | Outcome::Answered(_, Err(error)) => {
                    return Err(format!("client {at}: {error}"));
                }
                Outcome::MayRepeat { .. } => {}
            }
        }
        self.packets += u64::from(received);
        Ok(received)
    }

    fn turn(&mut self, node: usize) {
        let time = BEGIN.time + self.elapsed.as_millis() as i64 + self.ahead_s[node] * 1000;
        let own = &mut self.nodes[node];
        for (id, request) in own.turn(Timestamp(time.cast_unsigned())) {
            if !own.cut {
                self.engine.network.push(InFlightRequest { id, node, request });
            }
        }
        self.look_at_changes();
    }

    /// Whether the engine had a request to handle.
    fn handle(&mut self, at: usize, fate: Fate) {
        if self.engine.network.is_empty() || self.elapsed < self.engine.down_until {
            return;
        }
        let at = at % self.engine.network.len();
        let InFlightRequest { id, node, request } = self.engine.network.remove(at);
        if fate == Fate::Lost {
            return;
        }
        let answer = self.engine.handle(&request);
        if fate == Fate::Answered && !self.nodes[node].cut {
            self.nodes[node].inbox.push_back((id, answer));
        }
    }

    fn pass(&mut self, time: Duration) {
        self.elapsed += time;
        let setup = &self.schedule.setup;
        for (node, (rate, ahead_s)) in
            self.nodes.iter_mut().zip(setup.rates.iter().zip(self.ahead_s))
        {
            let mut clock = self.began + self.elapsed * *rate / 1_000;
            if self.mistake == Some(Mistake::WallLease) {
                clock += Duration::from_secs((100_000 + ahead_s).cast_unsigned());
            }
            node.set_clock(clock);
            // Its time passes while it is stopped, too.
            if let Some(world) = node.server() {
                world.wait(time);
            }
        }
    }

    /// Everything that runs and is connected does what it can, and time passes.
    fn round(&mut self) -> Result<bool, String> {
        let mut busy = false;
        for _ in 0..4 {
            for node in 0..NODES {
                self.turn(node);
                if let Some(world) = self.nodes[node].serving() {
                    busy |= world.round(0);
                }
            }
            for _ in 0..self.engine.network.len() {
                self.handle(0, Fate::Answered);
            }
            for client in 0..self.clients.len() {
                while self.receive(client)? {
                    busy = true;
                }
            }
        }
        self.pass(ROUND);
        Ok(busy)
    }

    /// Faults end.
    fn end(&mut self) -> Result<(), String> {
        self.engine.down_until = Duration::ZERO;
        for node in 0..NODES {
            self.nodes[node].paused = false;
            self.nodes[node].cut = false;
        }
        if !self.comes_to_rest()? {
            if self.engine.corrupt {
                return Ok(());
            }
            self.check_log()?;
            return Err("not at rest after a minute".to_owned());
        }
        self.ledger.check()?;
        let serving = self.nodes.iter().find(|node| node.is_settled());
        serving.map_or(Ok(()), |node| self.ledger.check_rows(node.rows()))?;
        if self.engine.corrupt { Ok(()) } else { self.check_log() }
    }

    fn comes_to_rest(&mut self) -> Result<bool, String> {
        let mut quiet = 0;
        for _ in 0..MAX_ROUNDS {
            for client in 0..self.clients.len() {
                if !self.clients[client].is_connected() {
                    self.connect(client, 0);
                }
            }
            let busy = self.round()?;
            let settled = self.nodes.iter().filter(|node| node.is_settled()).count() == 1
                && self.nodes.iter().filter(|node| node.has_server()).count() == 1;
            let idle = self.clients.iter().all(|client| client.is_idle() && client.is_connected());
            quiet = if settled && idle && !busy { quiet + 1 } else { 0 };
            if quiet == QUIET_ROUNDS {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The log is one chain, in which is everything that a node saw stored.
    fn check_log(&self) -> Result<(), String> {
        let mut reader = LogReader::default();
        let mut chain = Vec::new();
        for record in &self.engine.all {
            let before = reader.position();
            let read = reader.read(record.as_read(), &mut Vec::new());
            match read.map_err(|error| error.to_string())? {
                Applied::Void(_) if record.conditional => {
                    return Err(format!("after {before} comes a record of an earlier epoch"));
                }
                Applied::Void(_) => {}
                _ => chain.push(reader.position()),
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            if let Some(lost) = node.stored.iter().find(|position| !chain.contains(position)) {
                return Err(format!("node {index} saw {lost} stored, and it does not count"));
            }
        }
        Ok(())
    }
}
