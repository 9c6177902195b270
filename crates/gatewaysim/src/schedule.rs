//! A schedule: the setup of a world and its steps, all drawn from a seed before the first is taken. Every step is
//! valid in every state (it does nothing if impossible), so that steps can be removed to find the few that matter.

use fastrand::Rng;
use fulmar_baddisk::{Survival, Trouble};
use fulmar_mqtt::QoS;
use fulmar_simulator::Script;

use crate::folder::draw_survival;
use crate::ledger::QUANTITIES;

/// A device's properties.
#[derive(Clone, Copy, Debug)]
pub struct Nature {
    /// MQTT 5.0, not 3.1.1.
    pub v5: bool,
}

/// How a world is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Workers of the gateway's broker and of the server's.
    pub workers: [usize; 2],
    /// Devices.
    pub natures: Vec<Nature>,
    /// Messages that the gateway may have in flight upstream.
    pub window: usize,
    /// Messages per batch, if there are batches.
    pub batch: Option<usize>,
    /// MQTT 5.0 upstream, not 3.1.1, which has no identifiers: readings are stored at least once.
    pub upstream_v5: bool,
    /// Whether time passes in which a broker may find that its storage is stalled. It then refuses messages, which
    /// later ones that are in flight overtake.
    pub stalls: bool,
}

/// What the gateway's connection upstream handles next.
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
    Publish {
        /// Which device.
        device: usize,
        /// Which quantity.
        quantity: usize,
        /// Quality of service.
        qos: QoS,
    },
    /// A connection is opened.
    Connect {
        /// Which.
        end: End,
        /// The broker's worker.
        worker: usize,
    },
    /// A connection breaks.
    Cut {
        /// Which.
        end: End,
        /// Whether what the client sent last is lost.
        lossy: bool,
    },
    /// A device reads a packet.
    Receive {
        /// Which device.
        device: usize,
    },
    /// A broker's worker reads one packet.
    Read {
        /// Which broker.
        process: Process,
        /// Which connection of those with input.
        line: usize,
    },
    /// A worker takes its events and sends.
    Exchange {
        /// Which broker.
        process: Process,
        /// Which worker.
        worker: usize,
    },
    /// A worker ends its turn.
    EndTurn {
        /// Which broker.
        process: Process,
        /// Which worker.
        worker: usize,
    },
    /// A broker's storage commits.
    Commit {
        /// Which broker's.
        process: Process,
        /// Batches at most.
        most: usize,
    },
    /// The gateway's session, or the platform, reads messages from its broker.
    Take {
        /// Which.
        process: Process,
        /// Packets at most.
        most: usize,
    },
    /// They are put into the outbox, or stored by the platform.
    Store {
        /// Which.
        process: Process,
        /// Messages at most (the outbox).
        most: usize,
    },
    /// They are acknowledged to the broker.
    Acknowledge {
        /// By which.
        process: Process,
    },
    /// A turn of the gateway's connection upstream.
    Uplink(Wake),
    /// Another client takes the place of the gateway's client upstream.
    ReplaceClient,
    /// The outbox removes what upstream has acknowledged.
    Remove,
    /// The outbox drops what is too old.
    Tidy,
    /// A process dies and starts again.
    Crash {
        /// Which.
        process: Process,
        /// What remains of what its disk has not synced.
        survival: Survival,
        /// Workers then.
        workers: usize,
    },
    /// The power of a process' disk fails soon.
    FailPower {
        /// Which.
        process: Process,
        /// After how many changes of its files.
        changes: u64,
    },
    /// A process' disk fails, or works again.
    Disk {
        /// Which.
        process: Process,
        /// How.
        trouble: Trouble,
    },
    /// The storage of a process' broker fails, or works again.
    Storage {
        /// Which.
        process: Process,
        /// Whether it fails from now on.
        failing: bool,
    },
    /// A device starts again: it forgets its session and the readings that were not acknowledged.
    Reboot {
        /// Which, if it speaks MQTT 5.0.
        device: usize,
    },
    /// Time passes.
    Wait {
        /// How much.
        ms: u64,
    },
    /// Everything that is connected comes to rest.
    Rest,
}

/// A schedule.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Decides on what survives a crash.
    pub seed: u64,
    /// The world.
    pub setup: Setup,
    /// Its steps.
    pub steps: Vec<Step>,
    /// Whether a failure has its story.
    pub aloud: bool,
}

/// Devices of a world, at most.
const MAX_DEVICES: usize = 3;

/// How often each kind of step is drawn; some kinds are left out of a schedule.
const WEIGHTS: [u32; 22] =
    [14, 8, 2, 16, 28, 20, 18, 18, 12, 12, 12, 30, 1, 4, 1, 2, 1, 2, 2, 2, 1, 1];

/// Kinds of steps that are left out of some schedules, so that others meet more often: faults.
const FAULTS: [usize; 9] = [2, 12, 14, 15, 16, 17, 18, 20, 21];

impl Script for Schedule {
    type Step = Step;

    fn draw(seed: u64, steps: usize) -> Schedule {
        // Neighbouring seeds must have unrelated schedules.
        let mut rng = Rng::with_seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x6A7E);
        let setup = Setup::draw(&mut rng);
        let mut weights = WEIGHTS;
        for (kind, weight) in weights.iter_mut().enumerate() {
            if FAULTS.contains(&kind) && rng.u8(..3) == 0 {
                *weight = 0;
            } else if rng.u8(..4) == 0 {
                *weight *= 3;
            }
        }
        let steps = (0..steps).map(|_| setup.step(&mut rng, &weights)).collect();
        Schedule { seed, setup, steps, aloud: false }
    }

    fn steps(&mut self) -> &mut Vec<Step> {
        &mut self.steps
    }

    fn setting(&self) -> Vec<String> {
        vec![format!("{:?}", self.setup)]
    }

    fn set_aloud(&mut self) {
        self.aloud = true;
    }
}

impl Setup {
    fn draw(rng: &mut Rng) -> Setup {
        let devices = rng.usize(1..=MAX_DEVICES);
        let upstream_v5 = rng.u8(..6) > 0;
        // Batches need properties.
        let batch = (upstream_v5 && rng.u8(..3) == 0).then(|| [2, 4, 50][rng.usize(..3)]);
        Setup {
            workers: [rng.usize(1..=2), rng.usize(1..=2)],
            natures: (0..devices).map(|_| Nature { v5: rng.u8(..3) > 0 }).collect(),
            window: [1, 3, 8, 100][rng.usize(..4)],
            batch,
            upstream_v5,
            stalls: rng.u8(..3) == 0,
        }
    }

    fn step(&self, rng: &mut Rng, weights: &[u32; 22]) -> Step {
        let all: u32 = weights.iter().sum();
        let mut at = rng.u32(..all);
        let kind = weights.iter().position(|weight| match at.checked_sub(*weight) {
            Some(rest) => {
                at = rest;
                false
            }
            None => true,
        });
        let device = rng.usize(..self.natures.len());
        let process = [Process::Gateway, Process::Server][rng.usize(..2)];
        let worker = rng.usize(..2);
        let most = [1, 2, 5, usize::MAX][rng.usize(..4)];
        let end = [End::Device(device), End::Local, End::Uplink, End::Platform][rng.usize(..4)];
        match kind.unwrap_or(0) {
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
            4 => Step::Read { process, line: rng.usize(..8) },
            5 => Step::Exchange { process, worker },
            6 => Step::EndTurn { process, worker },
            7 => Step::Commit { process, most },
            8 => Step::Take { process, most },
            9 => Step::Store { process, most },
            10 => Step::Acknowledge { process },
            11 => Step::Uplink([Wake::Received, Wake::Loaded, Wake::Arrived][rng.usize(..3)]),
            12 => Step::ReplaceClient,
            13 => Step::Remove,
            14 => Step::Tidy,
            15 => {
                let (survival, workers) = (draw_survival(rng), rng.usize(1..=2));
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
