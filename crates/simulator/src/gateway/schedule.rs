//! The schedules of a gateway and the server upstream: the setup of a world and its steps.

use fastrand::Rng;
use fulmar_mqtt::QoS;

use super::ledger::QUANTITIES;
use crate::bad_disk::{Survival, Trouble};
use crate::clock::Wall;
use crate::script::{Script, Setting, rng_of, vary, weighted};
use crate::work::WorkStep;

/// Setup of a world.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Workers of the gateway's broker and of the server's.
    pub workers: [usize; 2],
    /// Devices: whether each speaks MQTT 5.0, not 3.1.1.
    pub devices_v5: Vec<bool>,
    /// Messages that the gateway may have in flight upstream.
    pub window: usize,
    /// Messages per batch, if there are batches.
    pub batch: Option<usize>,
    /// MQTT 5.0 upstream, not 3.1.1, which has no identifiers: readings are stored at least once.
    pub upstream_v5: bool,
    /// Whether time passes in which a broker may find that its storage is stalled. It then refuses messages, which
    /// later ones that are in flight overtake.
    pub stalls: bool,
    /// Whether the gateway's clocks are set and it stands still; some readings then have an expiry interval.
    pub clocks: bool,
}

/// The next input that the gateway's connection upstream handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// A packet from upstream.
    Received,
    /// Messages that were read from the outbox.
    Loaded,
    /// The news that the outbox has new messages.
    Arrived,
}

/// One of the two processes with a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// The gateway.
    Gateway,
    /// The server upstream.
    Server,
}

/// A connection; numbers name devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A device's to the gateway.
    Device(usize),
    /// The gateway's session with its own broker.
    Local,
    /// The gateway's upstream.
    Uplink,
    /// The platform's with its own broker.
    Platform,
}

/// A step. Numbers choose among the possibilities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// A device sends a reading.
    Publish { device: usize, quantity: usize, qos: QoS },
    /// A connection is opened to a worker of the broker.
    Connect { end: End, worker: usize },
    /// A connection breaks, perhaps with what the client sent last.
    Cut { end: End, lossy: bool },
    /// A device reads a packet.
    Receive { device: usize },
    /// A broker's worker or its storage does something.
    Work { process: Process, work: WorkStep },
    /// The gateway's session, or the platform, reads up to `most` packets from its broker.
    Take { process: Process, most: usize },
    /// What was read is put into the outbox, `most` messages at once, or stored by the platform.
    Store { process: Process, most: usize },
    /// What is stored is acknowledged to the broker.
    Acknowledge { process: Process },
    /// A turn of the gateway's connection upstream.
    Uplink(Wake),
    /// Another client takes the place of the gateway's client upstream.
    ReplaceClient,
    /// The outbox removes what upstream has acknowledged.
    Remove,
    /// The outbox drops what is too old.
    Tidy,
    /// A process dies and starts again with this many workers; of what its disk has not synced, `survival` remains.
    Crash { process: Process, survival: Survival, workers: usize },
    /// The power of a process' disk fails after this number of changes of its files.
    FailPower { process: Process, changes: u64 },
    /// A process' disk fails, or works again.
    Disk { process: Process, trouble: Trouble },
    /// The storage of a process' broker fails, or works again.
    Storage { process: Process, failing: bool },
    /// A device starts again, if it speaks MQTT 5.0: it forgets its session and the readings that were not acknowledged.
    Reboot { device: usize },
    /// Time passes.
    Wait { ms: u64 },
    /// The wall clock of the gateway's machine is set.
    SetWall(Wall),
    /// That machine is suspended.
    Suspend { ms: u64 },
    /// The gateway's process stands still; what devices have sent meanwhile is there then, or comes later (`late`).
    Pause { ms: u64, late: bool },
    /// Everything that is connected comes to rest.
    Rest,
}

/// A schedule of a gateway and the server upstream.
pub type Schedule = Script<Setup>;

/// Devices of a world, at most.
const MAX_DEVICES: usize = 3;

/// Frequency of each kind of step; some kinds are left out of a schedule.
const WEIGHTS: [u32; 22] =
    [14, 8, 2, 16, 28, 20, 18, 18, 12, 12, 12, 30, 1, 4, 1, 2, 1, 2, 2, 2, 1, 1];

/// Kinds of steps that are left out of some schedules, so that others meet more often: faults.
const FAULTS: [usize; 9] = [2, 12, 14, 15, 16, 17, 18, 20, 21];

impl Setting for Setup {
    type Step = Step;

    fn draw(seed: u64, steps: usize) -> (Setup, Vec<Step>) {
        let mut rng = rng_of(seed, 0x6A7E);
        let mut setup = Setup::draw_world(&mut rng);
        let mut weights = WEIGHTS;
        vary(&mut rng, &mut weights, 3, |kind| FAULTS.contains(&kind));
        let mut clocks = rng_of(seed, 0xC10C);
        setup.clocks = clocks.u8(..4) == 0;
        let steps = (0..steps).map(|_| setup.step(&mut rng, &weights));
        let mut all = Vec::new();
        for step in steps {
            all.push(step);
            if setup.clocks && clocks.u8(..16) == 0 {
                all.push(clock_step(&mut clocks));
                if matches!(all.last(), Some(Step::SetWall(_))) && clocks.bool() {
                    let (process, survival) = (Process::Gateway, Survival::Everything);
                    all.extend([Step::Crash { process, survival, workers: 1 }, Step::Tidy]);
                }
            }
        }
        (setup, all)
    }
}

impl Setup {
    fn draw_world(rng: &mut Rng) -> Setup {
        let devices = rng.usize(1..=MAX_DEVICES);
        let upstream_v5 = rng.u8(..6) > 0;
        // Batches need properties.
        let batch = (upstream_v5 && rng.u8(..3) == 0).then(|| [2, 4, 50][rng.usize(..3)]);
        Setup {
            workers: [rng.usize(1..=2), rng.usize(1..=2)],
            devices_v5: (0..devices).map(|_| rng.u8(..3) > 0).collect(),
            window: [1, 3, 8, 100][rng.usize(..4)],
            batch,
            upstream_v5,
            stalls: rng.u8(..3) == 0,
            clocks: false,
        }
    }

    fn step(&self, rng: &mut Rng, weights: &[u32; 22]) -> Step {
        let kind = weighted(rng, weights);
        let device = rng.usize(..self.devices_v5.len());
        let process = [Process::Gateway, Process::Server][rng.usize(..2)];
        let worker = rng.usize(..2);
        let most = [1, 2, 5, usize::MAX][rng.usize(..4)];
        let end = [End::Device(device), End::Local, End::Uplink, End::Platform][rng.usize(..4)];
        match kind {
            0 => {
                let qos = match rng.u8(..8) {
                    0 => QoS::AtMostOnce,
                    1..=3 => QoS::ExactlyOnce,
                    _ => QoS::AtLeastOnce,
                };
                Step::Publish { device, quantity: rng.usize(..QUANTITIES.len()), qos }
            }
            1 => Step::Connect { end, worker },
            2 => Step::Cut { end, lossy: rng.bool() },
            3 => Step::Receive { device },
            4 => {
                let work = WorkStep::Read { line: rng.usize(..8), stream: 0 };
                Step::Work { process, work }
            }
            5 => Step::Work { process, work: WorkStep::Exchange { worker } },
            6 => Step::Work { process, work: WorkStep::EndTurn { worker } },
            7 => Step::Work { process, work: WorkStep::Commit { most } },
            8 => Step::Take { process, most },
            9 => Step::Store { process, most },
            10 => Step::Acknowledge { process },
            11 => Step::Uplink([Wake::Received, Wake::Loaded, Wake::Arrived][rng.usize(..3)]),
            12 => Step::ReplaceClient,
            13 => Step::Remove,
            14 => Step::Tidy,
            15 => {
                let (survival, workers) = (Survival::draw(rng), rng.usize(1..=2));
                Step::Crash { process, survival, workers }
            }
            16 => Step::FailPower { process, changes: rng.u64(..12) },
            17 => {
                let kinds = [Trouble::Full, Trouble::Writes, Trouble::Syncs, Trouble::None];
                Step::Disk { process, trouble: kinds[rng.usize(..4)] }
            }
            18 => Step::Storage { process, failing: rng.bool() },
            19 if self.stalls => Step::Wait { ms: [10, 200, 2_000, 40_000][rng.usize(..4)] },
            19 => Step::Wait { ms: [10, 100, 500][rng.usize(..3)] },
            20 => Step::Reboot { device },
            _ => Step::Rest,
        }
    }
}

fn clock_step(rng: &mut Rng) -> Step {
    let ms = [500, 4_000, 40_000][rng.usize(..3)];
    match rng.u8(..6) {
        0 => Step::SetWall(Wall::Right),
        1 => Step::SetWall(Wall::Unset),
        2 => {
            // The platform has a clock of its own, by which measurements may not be of the future.
            Step::SetWall(Wall::Off([-10, -3600, -86_400 * 30, 3600][rng.usize(..4)]))
        }
        3 => Step::Suspend { ms },
        _ => Step::Pause { ms, late: rng.bool() },
    }
}
