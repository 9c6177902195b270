//! A reading's path from a device to the platform.
//!
//! There are two processes. `process` is a broker, the real outbox with SQLite on a disk in memory, the session between
//! the two, and the connection upstream (`uplink`) with the client library's own session machine. `server` is a broker
//! and the real platform with its SQLite on another such disk. Devices are the client library's session machine as well.
//! `schedule` draws the steps; this takes them, then lets everything come to rest without further faults. `ledger` has
//! the readings and checks them: each that a device saw acknowledged is in the platform exactly once (at least once if
//! the gateway speaks MQTT 3.1.1 upstream), those of a topic arrive in the order in which they were sent, and nothing
//! else is there.
//!
//! Sockets and threads of `fulmar serve` (`crates/forwarder`, `crates/server/src/serve/platform/client.rs`) are steps
//! here; each may be the last before a crash. Not simulated: the QUIC streams of the connection upstream, messages from
//! upstream, refusals other than those of stalled storage, dead letters and back pressure.

mod ledger;
mod process;
mod schedule;
mod server;
mod stored;
mod subscriber;
mod uplink;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use fulmar_client::simulation::Outcome;
use fulmar_client::{Error, Message, ReasonCode, Version};
use fulmar_gateway::uplink_scheduler::{Batching, Window};
use fulmar_mqtt::{Property, QoS};
use tokio::runtime::Runtime;

use self::ledger::{Ledger, QUANTITIES, device_name};
use self::process::Gateway;
pub use self::schedule::Schedule;
use self::schedule::{End, Process, Setup, Step, Wake};
use self::server::Server;
use self::subscriber::MAY_END;
use self::uplink::Uplink;
use crate::bad_disk::{Disk, Folder, Survival, Trouble};
use crate::script::{Failure, Played, Simulation};
use crate::session::{Session, session_options};
use crate::world::World;

/// Rounds after which everything must be at rest.
const MAX_ROUNDS: usize = 2_000;
/// Time for what waits for it, in milliseconds: longer than the longest pause before a refused topic is tried again.
const PATIENCE_MS: u64 = 310_000;
/// Milliseconds that pass at most where no broker may find that its storage is stalled.
const MAX_WAIT_MS: u128 = 8_000;
/// A broker's reason to refuse a publication while its storage stands still.
const STALLED: ReasonCode = ReasonCode::ImplementationSpecificError;
const PROCESSES: [Process; 2] = [Process::Gateway, Process::Server];
/// Expiry interval of some readings in seconds: none may expire.
const EXPIRY_S: u32 = 86_400;
/// Readings of a schedule, at most.
const MAX_READINGS: usize = 200;

/// State that all schedules share: folders, and a platform that has stored nothing.
pub struct Scenery {
    gateway: Folder,
    server: Folder,
    check: Folder,
    runtime: Runtime,
    blank: Disk,
}

impl Default for Scenery {
    /// Folders and a platform for the schedules of one thread.
    ///
    /// # Panics
    /// If a folder or the platform cannot be made.
    fn default() -> Scenery {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let folder = || Folder::new(&Arc::default());
        let server = folder();
        Scenery {
            blank: server::blank(&server),
            gateway: folder(),
            server,
            check: folder(),
            runtime: runtime.unwrap_or_else(|error| panic!("no runtime: {error}")),
        }
    }
}

/// Plays a schedule.
///
/// # Errors
/// Says which promise was broken first.
pub fn play(schedule: &Schedule, scenery: &Scenery) -> Result<Played, Failure> {
    schedule.play(|_| Scene::new(schedule, scenery))
}

struct Scene<'a> {
    scenery: &'a Scenery,
    rng: Rng,
    began: Instant,
    elapsed: Duration,
    devices: Vec<Session<usize>>,
    gateway: Gateway<'a>,
    uplink: Uplink,
    /// Whether readings have identifiers on the way upstream.
    only_once: bool,
    /// Whether a broker may find that its storage is stalled.
    stalls: bool,
    /// Whether some readings have an expiry interval.
    clocks: bool,
    server: Server<'a>,
    ledger: Ledger,
    packets: u64,
}

fn version(v5: bool) -> Version {
    if v5 { Version::V5 } else { Version::V311 }
}

fn device(
    index: usize,
    v5: bool,
    keep_alive_s: u16,
    now: Instant,
) -> Result<Session<usize>, String> {
    let mut options = session_options(&device_name(index))?;
    options.version = version(v5);
    (options.clean_start, options.keep_alive_s) = (true, keep_alive_s);
    Ok(Session::new(options, now))
}

impl<'a> Scene<'a> {
    fn new(schedule: &Schedule, scenery: &'a Scenery) -> Result<Scene<'a>, String> {
        let Setup { workers, devices_v5, window, batch, upstream_v5, stalls, clocks } =
            &schedule.setup;
        let mut rng = Rng::with_seed(schedule.seed ^ 0xD15C);
        let began = Instant::now();
        let gateway = Gateway::new(&scenery.gateway, workers[0], began, &mut rng)?;
        let blank = scenery.blank.image(Survival::Nothing, &mut rng);
        let runtime = &scenery.runtime;
        let server = Server::new(&scenery.server, runtime, blank, workers[1], began, &mut rng)?;
        let window = Window { messages: *window, bytes: 64 << 10 };
        let batching = batch.map(|messages| Batching {
            messages,
            bytes: 16 << 10,
            delay_ms: 1000,
            only_sensors: true,
        });
        let (now_ms, keep_alive_s) = (gateway.now_ms(), if *clocks { 2 } else { 0 });
        let devices = devices_v5.iter().enumerate();
        let devices = devices.map(|(index, v5)| device(index, *v5, keep_alive_s, began));
        let mut scene = Scene {
            scenery,
            rng,
            began,
            elapsed: Duration::ZERO,
            devices: devices.collect::<Result<_, _>>()?,
            gateway,
            uplink: Uplink::new(window, batching, version(*upstream_v5), began, now_ms)?,
            only_once: *upstream_v5,
            stalls: *stalls,
            clocks: *clocks,
            server,
            ledger: Ledger::default(),
            packets: 0,
        };
        // The sessions inside the processes exist before the first client connects (`internal_sessions.rs`).
        scene.connect(End::Local, 0);
        scene.connect(End::Platform, 0);
        scene.settle()?;
        Ok(scene)
    }

    fn now(&self) -> Instant {
        self.began + self.elapsed
    }
}

impl Simulation<Step> for Scene<'_> {
    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Publish { device, quantity, qos } => self.publish(device, quantity, qos),
            Step::Connect { end, worker } => self.connect(end, worker),
            Step::Cut { end, lossy } => self.cut(end, lossy),
            Step::Receive { device } => drop(self.receive(device)?),
            Step::Work { process, work } => {
                self.packets += u64::from(self.world(process).work(work));
            }
            Step::Take { process, most } => drop(self.read_packets(process, most)?),
            Step::Store { process: Process::Gateway, most } => drop(self.gateway.fill_outbox(most)),
            Step::Store { process: Process::Server, .. } => drop(self.server.store()),
            Step::Acknowledge { process } => drop(self.acknowledge(process)),
            Step::Uplink(wake) => drop(self.turn(wake)?),
            Step::ReplaceClient => {
                let now = self.now();
                self.uplink.replace(&mut self.gateway, &mut self.server.world, now);
            }
            Step::Remove => drop(self.gateway.write_removals()),
            Step::Tidy => self.gateway.tidy(),
            Step::Crash { process, survival, workers } => self.crash(process, survival, workers)?,
            Step::FailPower { process, changes } => {
                self.disk(process).fail_power_after(Some(changes));
            }
            Step::Disk { process, trouble } => self.disk(process).set_trouble(trouble),
            Step::Storage { process, failing } => self.world(process).disk.set_failing(failing),
            Step::Reboot { device } => self.reboot(device),
            Step::SetWall(wall) => self.gateway.world.set_wall(wall),
            Step::Wait { .. } | Step::Suspend { .. } | Step::Pause { .. }
                if !self.stalls && self.elapsed.as_millis() >= MAX_WAIT_MS => {}
            Step::Wait { ms } => self.pass(ms),
            Step::Suspend { ms } => {
                self.elapsed += Duration::from_millis(ms);
                self.gateway.world.suspend(Duration::from_millis(ms));
                self.server.world.wait(Duration::from_millis(ms));
                self.gateway.world.ping();
            }
            Step::Pause { ms, late } => self.pause(ms, late),
            Step::Rest => self.settle()?,
        }
        self.gateway.see_clocks();
        self.bury()
    }

    fn finish(&mut self) -> Result<Played, String> {
        self.end()?;
        Ok(Played { heard: self.packets, sent: self.ledger.len() as u64, ..Played::default() })
    }
}

impl Scene<'_> {
    fn disk(&self, process: Process) -> &Disk {
        match process {
            Process::Gateway => &self.gateway.disk,
            Process::Server => &self.server.disk,
        }
    }

    fn world(&mut self, process: Process) -> &mut World {
        match process {
            Process::Gateway => &mut self.gateway.world,
            Process::Server => &mut self.server.world,
        }
    }

    fn publish(&mut self, device: usize, quantity: usize, qos: QoS) {
        if self.ledger.len() >= MAX_READINGS {
            return;
        }
        let number = self.ledger.send(device, quantity, qos);
        let topic = format!("sensor/{}/{}", device_name(device), QUANTITIES[quantity]);
        let mut message = Message::new(topic, number.to_string()).qos(qos);
        let now = self.now();
        if self.clocks && self.devices[device].is_v5() && number.is_multiple_of(3) {
            message.properties.push(Property::MessageExpiryInterval(EXPIRY_S));
        }
        self.devices[device].publish(&mut self.gateway.world, message, number, now);
    }

    /// A device starts again. One that speaks 3.1.1 cannot begin another session that outlives its connection.
    fn reboot(&mut self, device: usize) {
        let now = self.now();
        let session = &mut self.devices[device];
        if session.is_v5() {
            session.cut(&mut self.gateway.world, true);
            *session = session.replaced(now);
            self.ledger.forget(device);
        }
    }

    fn connect(&mut self, end: End, worker: usize) {
        let now = self.now();
        match end {
            End::Device(device) => {
                self.devices[device].connect(&mut self.gateway.world, worker, now);
            }
            End::Local => self.gateway.local.connect(&mut self.gateway.world, worker, now),
            End::Uplink => self.uplink.session.connect(&mut self.server.world, worker, now),
            End::Platform => self.server.client.connect(&mut self.server.world, worker, now),
        }
    }

    fn cut(&mut self, end: End, lossy: bool) {
        match end {
            End::Device(device) => self.devices[device].cut(&mut self.gateway.world, lossy),
            End::Local => self.gateway.local.session.cut(&mut self.gateway.world, lossy),
            End::Uplink => self.uplink.session.cut(&mut self.server.world, lossy),
            End::Platform => self.server.client.session.cut(&mut self.server.world, lossy),
        }
    }

    /// A device reads a packet. False if there is none.
    fn receive(&mut self, device: usize) -> Result<bool, String> {
        let now = self.now();
        let session = &mut self.devices[device];
        let received = session.receive(&mut self.gateway.world, now, &MAY_END)?;
        while let Some(outcome) = session.outcome() {
            match outcome {
                Outcome::Published(number, Ok(_)) => self.ledger.done(number),
                Outcome::Published(number, Err(Error::Rejected(STALLED))) => {
                    self.ledger.refused(number);
                }
                Outcome::Published(number, Err(error)) => {
                    return Err(format!("reading {number}: {error}"));
                }
                Outcome::MayRepeat { messages } => {
                    return Err(format!(
                        "the gateway has forgotten a session: {messages} readings"
                    ));
                }
                _ => {}
            }
        }
        Ok(received)
    }

    fn read_packets(&mut self, process: Process, most: usize) -> Result<bool, String> {
        let now = self.now();
        match process {
            Process::Gateway => self.gateway.read_packets(most, now),
            Process::Server => self.server.read_packets(most, now, |message| {
                self.ledger.arrive(&message.topic, &message.payload, !self.stalls)
            }),
        }
    }

    fn acknowledge(&mut self, process: Process) -> bool {
        match process {
            Process::Gateway => self.gateway.acknowledge(self.now()),
            Process::Server => self.server.acknowledge(self.now()),
        }
    }

    fn turn(&mut self, wake: Wake) -> Result<bool, String> {
        let now = self.now();
        self.uplink.turn(wake, &mut self.gateway, &mut self.server.world, now)
    }

    fn pass(&mut self, ms: u64) {
        let time = Duration::from_millis(ms);
        self.elapsed += time;
        self.gateway.world.wait(time);
        self.gateway.see_clocks();
        self.server.world.wait(time);
        self.gateway.world.ping();
    }

    /// The gateway's process stands still, and throws no device out therefore.
    fn pause(&mut self, ms: u64, late: bool) {
        // Storage that had no time to commit is found stalled; that has schedules of its own.
        if self.gateway.world.disk.failure().is_some() {
            return self.pass(ms);
        }
        let time = Duration::from_millis(ms);
        self.elapsed += time;
        let world = &mut self.gateway.world;
        (0..world.workers()).for_each(|worker| world.end_turn(worker));
        world.commit(usize::MAX);
        world.wait(time);
        self.server.world.wait(time);
        let world = &mut self.gateway.world;
        if !late {
            world.ping();
        }
        (0..world.workers()).for_each(|worker| world.fire_timers(worker));
        world.ping();
    }

    fn crash(
        &mut self,
        process: Process,
        survival: Survival,
        workers: usize,
    ) -> Result<(), String> {
        let now = self.now();
        match process {
            Process::Gateway => {
                // What it has written to its connection upstream may still arrive there.
                let lossy = self.rng.bool();
                self.uplink.session.cut(&mut self.server.world, lossy);
                self.gateway.crash(survival, workers, now, &mut self.rng)?;
                self.uplink.crash(now, self.gateway.now_ms());
                self.devices.iter_mut().for_each(Session::lost);
            }
            Process::Server => {
                self.server.crash(survival, workers, now, &mut self.rng)?;
                self.uplink.session.lost();
            }
        }
        Ok(())
    }

    /// A process whose disk has lost its power is dead.
    fn bury(&mut self) -> Result<(), String> {
        let survival = Survival::draw(&mut self.rng);
        for process in PROCESSES {
            if self.disk(process).is_dead() {
                self.crash(process, survival, 1)?;
            }
        }
        Ok(())
    }

    /// Everything that is connected does what it can, without further faults of its own.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..MAX_ROUNDS {
            let most = usize::MAX;
            let mut busy = self.gateway.world.round(most) | self.server.world.round(most);
            for device in 0..self.devices.len() {
                while self.receive(device)? {
                    busy = true;
                }
            }
            for process in PROCESSES {
                busy |= self.read_packets(process, usize::MAX)?;
                busy |= match process {
                    Process::Gateway => self.gateway.fill_outbox(usize::MAX),
                    Process::Server => self.server.store(),
                };
                busy |= self.acknowledge(process);
            }
            for wake in [Wake::Arrived, Wake::Loaded, Wake::Received] {
                busy |= self.turn(wake)?;
            }
            busy |= self.gateway.write_removals();
            if PROCESSES.into_iter().any(|process| self.disk(process).is_dead()) {
                self.bury()?;
                busy = true;
            }
            if !busy {
                return Ok(());
            }
        }
        Err(format!("not at rest after {MAX_ROUNDS} rounds"))
    }

    /// Faults end; everything connects and does what is due.
    fn end(&mut self) -> Result<(), String> {
        for process in PROCESSES {
            self.disk(process).fail_power_after(None);
            self.disk(process).set_trouble(Trouble::None);
            self.world(process).disk.set_failing(false);
        }
        self.settle()?;
        // Three times: an old connection that the broker reads late may take a session back.
        for _ in 0..3 {
            self.come_back();
            self.settle()?;
            self.pass(PATIENCE_MS);
            self.settle()?;
        }
        self.ledger.check_acknowledged()?;
        self.gateway.tidy();
        self.gateway.check_empty()?;
        self.server.check_empty()?;
        for process in PROCESSES {
            if let Some(queued) = self.world(process).disk.durable().queued.values().next() {
                let (session, message) = (queued.session.0, &queued.message);
                let payload = String::from_utf8_lossy(message.payload());
                return Err(format!(
                    "at rest, the broker of the {process:?} holds {payload:?} for session {session}"
                ));
            }
        }
        let stored = stored::read(&self.scenery.check, self.server.durable())?;
        self.ledger.check(&stored, self.only_once)
    }

    fn come_back(&mut self) {
        if !self.gateway.local.session.is_connected() {
            self.connect(End::Local, 0);
        }
        if !self.server.client.session.is_connected() {
            self.connect(End::Platform, 0);
        }
        if !self.uplink.session.is_connected() {
            self.connect(End::Uplink, 0);
        }
        for device in 0..self.devices.len() {
            if !self.devices[device].is_connected() {
                self.connect(End::Device(device), 0);
            }
        }
    }
}
