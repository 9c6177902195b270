//! The schedules of a cluster: the setup of a world and its steps.

use fastrand::Rng;
use fulmar_client::QoS;

use super::engine::Strange;
use crate::script::{Script, Setting, rng_of, vary, weighted};

pub(crate) const NODES: usize = 3;
/// Publishers, and as many subscribers.
pub(crate) const PAIRS: usize = 2;

/// Setup of a world.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Workers of each node's broker.
    pub workers: usize,
    /// Speed of each node's clock, in thousandths.
    pub rates: [u32; NODES],
    /// Each publisher's quality of service.
    pub qos: [QoS; PAIRS],
    /// Whether records are mixed up.
    pub corrupt: bool,
    /// Whether strangers publish to the log.
    pub strangers: bool,
}

/// Fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is handled, and answered.
    Answered,
    /// It is handled, and the answer gets lost.
    AnswerLost,
    /// It gets lost.
    Lost,
}

/// A step. Numbers choose among the possibilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A publisher publishes.
    Publish(usize),
    /// An operator changes a row of another part of the server at a node that serves, or considers itself to.
    Change(usize),
    /// A subscriber subscribes, or gives its subscription up.
    Subscribe(usize),
    /// A client connects to a node that serves, or considers itself to.
    Connect(usize, usize),
    /// A client's connection breaks, perhaps with what was sent last.
    Cut(usize, bool),
    /// A client reads what it has received.
    Receive(usize),
    /// A node's worker reads one packet.
    Read(usize, usize),
    /// A node's workers take their events, send, and end their turns.
    EndTurn(usize),
    /// A node handles an answer, and does what is due.
    Turn(usize),
    /// One of the requests in the network.
    Engine(usize, Fate),
    /// Time passes, in milliseconds.
    Wait(u64),
    /// A node's process stops, or continues.
    Pause(usize, bool),
    /// A node is cut off from the engine, or connected again.
    CutOff(usize, bool),
    /// The node that serves is cut off from the engine; its clients are not.
    Split,
    /// A node's process dies and starts again.
    Crash(usize),
    /// There is no leader for these milliseconds.
    Elect(u64),
    /// A node's database catches up with what it has read.
    Flush(usize),
    /// A node stores a snapshot, and the log is purged behind an older one.
    Snapshot(usize),
    /// A node that serves hands over.
    Drain(usize),
    /// The engine mixes up records, or loses one.
    MixUp(usize, bool),
    /// A stranger publishes to the log.
    Publication(Strange, usize),
    /// Sets a node's wall clock this many seconds ahead of the right time, or behind it.
    SetWall(usize, i64),
    /// Everything that runs and is connected does what it can for some rounds of 50 ms.
    Run(usize),
}

/// A schedule of a cluster.
pub type Schedule = Script<Setup>;

/// Frequency of each kind of step; some kinds are left out of a schedule.
const WEIGHTS: [u32; 20] = [20, 8, 10, 2, 10, 20, 14, 20, 22, 8, 2, 3, 1, 1, 3, 1, 1, 1, 16, 1];
/// Besides these, a row is changed after every twentieth step.
const CHANGE_EVERY: usize = 20;
/// Strangers publish in the schedules of every fourth seed: those with this remainder.
const STRANGE_SEEDS: u64 = 2;
const STRANGER_EVERY: usize = 25;
/// Wall clocks are set in those with this one. Nodes have clocks that are right by less than what is stored lasts, a day.
const CLOCK_SEEDS: u64 = 1;
const CLOCK_EVERY: usize = 20;
/// Kinds of steps that are left out of some schedules, so that others meet more often: faults.
const FAULTS: [usize; 10] = [3, 10, 11, 12, 13, 14, 15, 16, 17, 19];

impl Setting for Setup {
    type Step = Step;

    fn draw(seed: u64, steps: usize) -> (Setup, Vec<Step>) {
        let mut rng = rng_of(seed, 0xC1A5);
        let qos = |rng: &mut Rng| [QoS::AtLeastOnce, QoS::ExactlyOnce][rng.usize(..2)];
        let setup = Setup {
            workers: rng.usize(1..=2),
            rates: [0; NODES].map(|_| rng.u32(900..=1100)),
            qos: [0; PAIRS].map(|_| qos(&mut rng)),
            corrupt: rng.u8(..8) == 0,
            strangers: seed % 4 == STRANGE_SEEDS,
        };
        let mut weights = WEIGHTS;
        vary(&mut rng, &mut weights, 3, |kind| FAULTS.contains(&kind));
        if setup.corrupt {
            // Somebody has to read what was mixed up.
            weights[12] = 4;
            weights[17] = 4;
        } else {
            weights[17] = 0;
        }
        let begin = [Step::Run(120), Step::Subscribe(0)];
        let drawn = (0..steps).map(|_| draw(&mut rng, &weights));
        let mut steps: Vec<Step> = begin.into_iter().chain(drawn).collect();
        for _ in 0..steps.len() / CHANGE_EVERY {
            steps.insert(rng.usize(begin.len()..=steps.len()), Step::Change(rng.usize(..NODES)));
        }
        if setup.strangers {
            for _ in 0..steps.len() / STRANGER_EVERY {
                let what = Strange::ALL[rng.usize(..Strange::ALL.len())];
                let step = Step::Publication(what, rng.usize(..1000));
                steps.insert(rng.usize(begin.len()..=steps.len()), step);
            }
        }
        if seed % 4 == CLOCK_SEEDS {
            for _ in 0..steps.len() / CLOCK_EVERY {
                let off = [-36_000, -3_600, -10, 0, 10, 3_600, 36_000][rng.usize(..7)];
                let step = Step::SetWall(rng.usize(..NODES), off);
                steps.insert(rng.usize(begin.len()..=steps.len()), step);
            }
        }
        (setup, steps)
    }
}

fn draw(rng: &mut Rng, weights: &[u32; 20]) -> Step {
    let kind = weighted(rng, weights);
    let (node, client) = (rng.usize(..NODES), rng.usize(..2 * PAIRS));
    match kind {
        0 => Step::Publish(rng.usize(..PAIRS)),
        1 => Step::Subscribe(rng.usize(..PAIRS)),
        2 => Step::Connect(client, node),
        3 => Step::Cut(client, rng.bool()),
        4 => Step::Receive(client),
        5 => Step::Read(node, rng.usize(..8)),
        6 => Step::EndTurn(node),
        7 => Step::Turn(node),
        8 => {
            let fates = [Fate::AnswerLost, Fate::Lost];
            let fate = fates.get(rng.usize(..24)).copied().unwrap_or(Fate::Answered);
            Step::Engine(rng.usize(..16), fate)
        }
        9 => Step::Wait([5, 50, 400, 1_500][rng.usize(..4)]),
        10 => Step::Pause(node, rng.bool()),
        11 => Step::CutOff(node, rng.bool()),
        12 => Step::Crash(node),
        13 => Step::Elect(rng.u64(..9_000)),
        14 => Step::Flush(node),
        15 => Step::Snapshot(node),
        16 => Step::Drain(node),
        17 => Step::MixUp(rng.usize(..64), rng.bool()),
        19 => Step::Split,
        _ => Step::Run([1, 4, 20, 110][rng.usize(..4)]),
    }
}
