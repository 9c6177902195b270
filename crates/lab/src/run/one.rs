//! One sample: creates a network, starts the roles in their order, records their output and use of resources, and
//! ends everything.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::measure::{Record, measure_all};
use super::process::{Event, Program, end_marked, new_mark, now_ns, usage};
use super::program::find;
use super::sample::Outcome;
use crate::experiment::{Cell, Experiment, From, Role, host_and_changes};
use crate::network::{LinkPlan, Network, NetworkFactory, NetworkPlan, Observed};

/// The interval at which the use of resources is recorded.
const USAGE_EVERY: Duration = Duration::from_millis(100);

/// Time for a service to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(3);

/// Events that may be queued; a program that prints faster is slowed down.
const EVENTS: usize = 4096;

/// Lines of a program's standard error that a failure message quotes.
const QUOTED: usize = 3;

/// Time for which the output of a program that has ended may stay open, held by a process that it started.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A sample to take.
#[derive(Debug)]
pub(super) struct Task<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) cell: &'a Cell,
    pub(super) repetition: u32,
    pub(super) seed: u64,
    /// Working folder, made here.
    pub(super) folder: PathBuf,
    /// This program, for `{fulmar}`.
    pub(super) fulmar: &'a Path,
    /// Folder of the experiment file, for `{here}`.
    pub(super) here: &'a Path,
}

/// The result.
#[derive(Debug, Default)]
pub(super) struct SampleResult {
    pub(super) values: BTreeMap<String, f64>,
    pub(super) points: BTreeMap<String, Vec<[f64; 2]>>,
    pub(super) observed: Observed,
}

/// Why a sample has no result.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It failed or took too long.
    Kept(Outcome, String),
    /// The whole run is being stopped; nothing is kept.
    Stopped,
}

fn failed(reason: impl Into<String>) -> Trouble {
    Trouble::Kept(Outcome::Failed, reason.into())
}

/// Runs a sample; even if it fails, no process of it keeps running.
pub(super) fn run_sample(
    task: &Task<'_>,
    networks: &dyn NetworkFactory,
    stop: &AtomicBool,
) -> (SampleResult, Result<(), Trouble>) {
    let mark = new_mark();
    let mut taken = SampleResult::default();
    let outcome = prepare(task, networks).and_then(|network| {
        let (sender, events) = sync_channel(EVENTS);
        let mut stage = Stage::new(task, network, mark.clone(), sender, events, stop);
        let outcome = stage.play();
        stage.end();
        taken.observed = stage.network.close();
        outcome?;
        let measured = measure_all(task.experiment, task.cell, &stage.record, &taken.observed)
            .map_err(failed)?;
        (taken.values, taken.points) = measured;
        Ok(())
    });
    end_marked(&mark);
    (taken, outcome)
}

fn prepare(task: &Task<'_>, networks: &dyn NetworkFactory) -> Result<Box<dyn Network>, Trouble> {
    let (experiment, cell) = (task.experiment, task.cell);
    fs::create_dir_all(&task.folder)
        .map_err(|error| failed(format!("{}: {error}", task.folder.display())))?;
    let fill = |text: &str| cell.fill(experiment, text, &|_| None).map_err(failed);
    let mut links = Vec::new();
    for link in &experiment.links {
        let mut settings = Vec::new();
        for (key, value) in link.set.iter() {
            settings.push((key.to_owned(), fill(value.get_ref().as_str())?));
        }
        links.push(LinkPlan { between: link.between.get_ref().names(), settings });
    }
    let hosts = experiment.hosts.iter().map(|host| host.get_ref().clone()).collect();
    let mut measures = experiment.measures.iter();
    let round_trips = measures.any(|(_, measure)| measure.from == From::Spin);
    let folder = task.folder.clone();
    let plan = NetworkPlan { hosts, links, round_trips, seed: task.seed, folder };
    networks.open(&plan).map_err(|error| failed(format!("the network: {error}")))
}

/// A role that was started.
struct Player<'a> {
    name: &'a str,
    role: &'a Role,
    program: Program,
    /// The text of the line that shows that it is ready; `None` when it is.
    awaited: Option<String>,
    /// Outputs that are still open.
    outputs: u8,
    /// Exit status, and the time of the end.
    ended: Option<(ExitStatus, Instant)>,
    /// Whether it has ended successfully.
    done: bool,
    log: Option<File>,
    last_errors: Vec<String>,
}

/// A sample that is running.
struct Stage<'a> {
    task: &'a Task<'a>,
    network: Box<dyn Network>,
    ports: RefCell<BTreeMap<String, u16>>,
    mark: String,
    sender: SyncSender<Event>,
    events: Receiver<Event>,
    stop: &'a AtomicBool,
    players: Vec<Player<'a>>,
    record: Record,
    deadline: Instant,
    next_usage: Instant,
}

impl<'a> Stage<'a> {
    fn new(
        task: &'a Task<'a>,
        network: Box<dyn Network>,
        mark: String,
        sender: SyncSender<Event>,
        events: Receiver<Event>,
        stop: &'a AtomicBool,
    ) -> Stage<'a> {
        let now = Instant::now();
        Stage {
            task,
            network,
            ports: RefCell::default(),
            mark,
            sender,
            events,
            stop,
            players: Vec::new(),
            record: Record { began_ns: now_ns(), ..Record::default() },
            deadline: now + Duration::from_secs_f64(*task.experiment.timeout_s.get_ref()),
            next_usage: now,
        }
    }

    fn play(&mut self) -> Result<(), Trouble> {
        self.give_ports()?;
        self.write_files()?;
        let experiment = self.task.experiment;
        for (name, role) in experiment.roles.iter() {
            if self.task.cell.matches(&role.only) {
                self.enter(name, role)?;
            }
        }
        self.wait("an end", |stage| {
            stage.players.iter().all(|player| player.role.service || player.done)
        })
    }

    /// Assigns a number to every `{port.NAME}` in the texts.
    fn give_ports(&mut self) -> Result<(), Trouble> {
        let asked = RefCell::new(Vec::new());
        let e = self.task.experiment;
        let listen = |name: &str| {
            if let Some(port) = name.strip_prefix("port.") {
                asked.borrow_mut().push(port.to_owned());
            }
            Some(String::new())
        };
        let roles = e.roles.iter().filter(|(_, role)| self.task.cell.matches(&role.only));
        let commands = roles.flat_map(|(_, role)| {
            role.run
                .get_ref()
                .iter()
                .chain(role.env.iter().map(|(_, value)| value))
                .chain(&role.ready)
        });
        for text in commands.chain(e.files.iter().map(|(_, text)| text)) {
            self.task.cell.fill(e, text.get_ref(), &listen).map_err(failed)?;
        }
        let host = e.hosts.first().map_or("", |host| host.get_ref());
        for name in asked.into_inner() {
            if !self.ports.borrow().contains_key(&name) {
                let port = self.network.free_port(host);
                let port = port.map_err(|error| failed(format!("no free port: {error}")))?;
                self.ports.borrow_mut().insert(name, port);
            }
        }
        Ok(())
    }

    fn fill(&self, text: &str) -> Result<String, Trouble> {
        let task = self.task;
        let builtin = |name: &str| match name.split_once('.') {
            Some(("addr", host)) => {
                let (host, changes) = host_and_changes(host);
                self.network.address(host, changes).map(|address| address.to_string())
            }
            Some(("port", port)) => self.ports.borrow().get(port).map(u16::to_string),
            _ => match name {
                "dir" => Some(task.folder.display().to_string()),
                "here" => Some(task.here.display().to_string()),
                "fulmar" => Some(task.fulmar.display().to_string()),
                "seed" => Some(task.seed.to_string()),
                "repetition" => Some(task.repetition.to_string()),
                _ => None,
            },
        };
        task.cell.fill(task.experiment, text, &builtin).map_err(failed)
    }

    fn write_files(&self) -> Result<(), Trouble> {
        for (name, text) in self.task.experiment.files.iter() {
            let path = self.task.folder.join(name);
            let text = self.fill(text.get_ref())?;
            let write = || -> std::io::Result<()> {
                fs::create_dir_all(path.parent().unwrap_or(&self.task.folder))?;
                fs::write(&path, text)
            };
            write().map_err(|error| failed(format!("{}: {error}", path.display())))?;
        }
        Ok(())
    }

    /// Starts a role when it is its turn, and waits until it is ready.
    fn enter(&mut self, name: &'a str, role: &'a Role) -> Result<(), Trouble> {
        if let Some(after) = &role.after {
            self.wait(&format!("the end of {}", after.get_ref()), |stage| {
                let before = stage.players.iter().find(|player| player.name == after.get_ref());
                before.is_none_or(|player| player.done)
            })?;
        }
        let begin = Instant::now() + Duration::from_secs_f64(role.delay_s);
        self.wait("a delay", |_| Instant::now() >= begin)?;
        let mut words = Vec::new();
        for text in role.run.get_ref() {
            words.push(self.fill(text.get_ref())?);
        }
        let program = words.first().map_or("", String::as_str);
        let mut command = Command::new(find(program).unwrap_or_else(|| program.into()));
        command.args(words.iter().skip(1)).current_dir(&self.task.folder);
        for (variable, value) in role.env.iter() {
            command.env(variable, self.fill(value.get_ref())?);
        }
        let (host, number) = (role.host.get_ref(), self.players.len());
        let network = self.network.as_mut();
        let program = Program::start(network, host, command, &self.mark, number, &self.sender);
        let program = program.map_err(|error| {
            failed(format!("{name}: cannot start `{}`: {error}", words.join(" ")))
        })?;
        // Without the log there is still a sample.
        let log = File::create(self.task.folder.join(format!("{name}.log"))).ok();
        let awaited = role.ready.as_ref().map(|text| self.fill(text.get_ref())).transpose()?;
        let last_errors = Vec::new();
        self.players.push(Player {
            name,
            role,
            program,
            awaited,
            outputs: 2,
            ended: None,
            done: false,
            log,
            last_errors,
        });
        self.wait(&format!("{name} to be ready"), |stage| stage.players[number].awaited.is_none())
    }

    /// Handles events until `done`.
    fn wait(&mut self, what: &str, done: impl Fn(&Stage<'_>) -> bool) -> Result<(), Trouble> {
        while !done(self) {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Trouble::Stopped);
            }
            let now = Instant::now();
            if now >= self.deadline {
                let limit = self.task.experiment.timeout_s.get_ref();
                let reason = format!("still waiting for {what} after {limit} s");
                return Err(Trouble::Kept(Outcome::Timeout, reason));
            }
            self.look_at_usage(now);
            let until = self.next_usage.min(self.deadline);
            match self.events.recv_timeout(until.saturating_duration_since(now)) {
                Ok(event) => {
                    self.on_event(event)?;
                    self.judge()?;
                }
                // This stage holds a sender itself.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => self.judge()?,
            }
        }
        Ok(())
    }

    fn look_at_usage(&mut self, now: Instant) {
        if now < self.next_usage {
            return;
        }
        self.next_usage = now + USAGE_EVERY;
        for player in self.players.iter().filter(|player| !player.program.has_ended()) {
            if let Some((cpu, rss)) = usage(player.program.id()) {
                let record = self.record.usage.entry(player.name.to_owned()).or_default();
                record.push((now_ns(), cpu, rss));
            }
        }
    }

    fn on_event(&mut self, event: Event) -> Result<(), Trouble> {
        match event {
            Event::Line { program, at_ns, error, text } => {
                self.on_line(program, at_ns, error, &text);
            }
            Event::Closed { program } => self.players[program].outputs -= 1,
            Event::Ended { program } => {
                let player = &mut self.players[program];
                let status = player.program.reap();
                let status = status.map_err(|error| failed(format!("{}: {error}", player.name)))?;
                player.ended = Some((status, Instant::now()));
            }
        }
        Ok(())
    }

    /// Checks how roles ended, after all of their output was read.
    fn judge(&mut self) -> Result<(), Trouble> {
        for player in self.players.iter_mut().filter(|player| !player.done) {
            let Some((status, at)) = player.ended else { continue };
            if player.outputs > 0 && at.elapsed() < LAST_WORDS {
                continue;
            }
            let quoted = player.last_errors.join(" / ");
            if player.role.service {
                return Err(failed(format!("{} ended early, {status}: {quoted}", player.name)));
            }
            if !status.code().is_some_and(|code| player.role.exit.contains(&code)) {
                return Err(failed(format!("{}: {status}: {quoted}", player.name)));
            }
            player.done = true;
        }
        Ok(())
    }

    fn on_line(&mut self, program: usize, at_ns: u64, error: bool, text: &str) {
        let player = &mut self.players[program];
        if let Some(log) = &mut player.log {
            // See where it is opened.
            let _ = writeln!(log, "{text}");
        }
        if player.awaited.as_ref().is_some_and(|awaited| text.contains(awaited)) {
            player.awaited = None;
        }
        let object = (!error && text.starts_with('{'))
            .then(|| serde_json::from_str::<serde_json::Value>(text).ok())
            .flatten();
        let said = object.as_ref().and_then(|object| object.get("at_ns")?.as_u64());
        let at_ns = said.unwrap_or(at_ns);
        for (name, mark) in self.task.experiment.marks.iter() {
            if mark.role.get_ref() == player.name && text.contains(&mark.line) {
                self.record.marks.entry(name.to_owned()).or_insert(at_ns);
            }
        }
        if error {
            player.last_errors.push(text.to_owned());
            let surplus = player.last_errors.len().saturating_sub(QUOTED);
            player.last_errors.drain(..surplus);
        }
        if let Some(object) = object {
            let objects = self.record.objects.entry(player.name.to_owned()).or_default();
            objects.push((at_ns, object));
        }
    }

    /// Ends what still runs: SIGTERM, a short wait, SIGKILL.
    fn end(&mut self) {
        for player in self.players.iter().rev() {
            player.program.signal(Signal::TERM);
        }
        let patience = Instant::now() + GRACE;
        let mut running: Vec<usize> =
            (0..self.players.len()).filter(|n| !self.players[*n].program.has_ended()).collect();
        while !running.is_empty() {
            let left = patience.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(Event::Ended { program }) => running.retain(|number| *number != program),
                Ok(Event::Line { program, at_ns, error, text }) => {
                    self.on_line(program, at_ns, error, &text);
                }
                Ok(Event::Closed { .. }) => {}
                Err(_) => break,
            }
        }
        // Reaps them, and kills those that did not end.
        self.players.clear();
    }
}
