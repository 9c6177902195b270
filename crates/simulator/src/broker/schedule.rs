//! The schedules of broker and storage: the setup of a world and its steps.

use fastrand::Rng;
use fulmar_broker::DropPolicy;
use fulmar_mqtt::QoS;

use super::liars::{self, Lie};
use super::troubles;
use crate::clock::ClockStep;
use crate::script::{Script, Setting, rng_of, vary, weighted};
use crate::work::{Amid, WorkStep};

/// The most clients of a world.
const MAX_CLIENTS: usize = 4;

/// Topics that clients publish to, long enough for aliases.
pub(crate) const TOPICS: [&str; 3] = ["topic/0", "topic/1", "topic/2"];

/// Filters that clients subscribe to.
pub(crate) const FILTERS: [&str; 6] =
    ["topic/0", "topic/1", "topic/+", "topic/#", "$share/g/topic/+", "$share/g/topic/0"];

/// A client's properties.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nature {
    /// MQTT 5.0, not 3.1.1.
    pub v5: bool,
    /// The session outlives its connections.
    pub durable: bool,
    /// Publications it takes at once.
    pub receive_maximum: u16,
    /// Publications that it may have in flight.
    pub window: u16,
    /// Packets that may wait for it in the network.
    pub room: usize,
    /// Whether it acknowledges later instead of at once.
    pub slow_acks: bool,
    /// The will that it leaves behind.
    pub will: Option<Will>,
    /// It says a topic's name once and an alias from then on, and allows the broker to.
    pub aliases: bool,
    /// Whether it publishes; a client that only reads sends less, which might flush waiting messages by chance.
    pub publishes: bool,
    /// It subscribes with No Local, except to shared subscriptions.
    pub no_local: bool,
    /// Keep Alive; 0 for none.
    pub keep_alive_s: u16,
}

/// A client's will.
#[derive(Clone, Copy, Debug)]
pub struct Will {
    /// Delay in seconds.
    pub delay_s: u32,
    /// Quality of service.
    pub qos: QoS,
    /// Seconds after which it expires.
    pub expiry_s: Option<u32>,
}

/// Setup of a world.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Workers at first.
    pub workers: usize,
    /// Clients.
    pub natures: Vec<Nature>,
    /// Whether each client keeps to one filter.
    pub one_filter: bool,
    /// Whether few connections end, and most messages have subscribers: more happens within one turn.
    pub calm: bool,
    /// A worker whose turns are long.
    pub slow_worker: Option<usize>,
    /// During one in this many publications, other workers act in between; 0 for none.
    pub amid: u8,
    /// Publications a flow may have in flight.
    pub max_in_flight: u16,
    /// The limit of a session's queue if it is small, and which messages are dropped beyond it.
    pub queue: Option<(usize, DropPolicy)>,
    /// If all messages are large ([`fulmar_broker::Limits::large_message_bytes`]), how many bytes of them are copied per
    /// turn.
    pub large: Option<usize>,
    /// When storage counts as stalled, if ever.
    pub stalls: Option<Stalls>,
    /// The client of an internal session, if there is one: the program itself, which reads and does not publish.
    pub internal: Option<usize>,
    /// Whether its clients lie: they take steps of their own kind, and have no natures.
    pub liars: bool,
}

/// When storage counts as stalled, and what may wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stalls {
    /// Seconds after which a batch is overdue.
    pub timeout_s: u64,
    /// Operations that may wait for the disk before publishers are not read from.
    pub backlog: usize,
}

/// State of a flow for which a client asks, if the broker knows it already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowChoice {
    /// As it was left, or else a new one.
    Any,
    /// As it was left, or none.
    AsLeft,
    /// Without anything it held (the draft's CLEAN flag).
    Clean,
}

/// One step of a schedule. Numbers choose among what there is: a `stream` among a client's, a `line` among the
/// connections with input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A client connects, perhaps taking over its own connection.
    Connect {
        client: usize,
        worker: usize,
        /// Over a transport with streams.
        quic: bool,
        /// Whether it wants a new session, as after the loss of its own state.
        clean: bool,
        /// Whether a connected client may be chosen.
        takeover: bool,
    },
    /// A client's connection breaks, perhaps with its last packets; the broker detects it at its next read.
    Cut { client: usize, lossy: bool },
    /// A client sends DISCONNECT.
    Leave { client: usize },
    /// A client publishes.
    Publish {
        client: usize,
        /// Index in [`TOPICS`].
        topic: usize,
        qos: QoS,
        stream: usize,
        /// Whether to retain it, on a topic of its own.
        retain: bool,
        /// Seconds after which it expires.
        expiry_s: Option<u32>,
    },
    /// A client subscribes to one of [`FILTERS`], or moves a subscription to another stream.
    Subscribe { client: usize, filter: usize, qos: QoS, stream: usize },
    /// A client unsubscribes.
    Unsubscribe { client: usize, filter: usize },
    /// A client opens a further stream.
    OpenStream {
        client: usize,
        /// The flow it names.
        name: Option<u64>,
        /// Whether the flow outlives the stream.
        keep: bool,
        /// State of the flow for which it asks.
        wanted: FlowChoice,
    },
    /// A client ends a further stream, by FIN (`finish`) or a reset.
    EndStream { client: usize, stream: usize, finish: bool },
    /// A client reads one packet from a stream on which something waits.
    Hear { client: usize, stream: usize },
    /// A slow client acknowledges one of the messages that wait.
    Acknowledge { client: usize, pick: usize },
    /// A worker or storage does something.
    Work(WorkStep),
    /// A worker reads one input; during it, if it is a publication, others act.
    ReadAmid { line: usize, stream: usize, amid: Amid },
    /// The disk fills up, or has room again.
    Disk { failing: bool },
    /// Time passes.
    Wait { seconds: u64 },
    /// The broker crashes and starts again with this many workers.
    Crash { workers: usize },
    /// Storage commits nothing until all that waits for it is overdue, and clients have read what they get then.
    Stall,
    /// Everything comes to rest: connected clients have received everything that they are owed.
    Rest,
    /// The machine's clocks are set, or it stands still.
    Clock(ClockStep),
    /// A client lies, or an operator changes rights, in a schedule with liars.
    Lie(Lie),
}

/// A schedule of broker and storage.
pub type Schedule = Script<Setup>;

/// Frequency of each kind of step; some kinds are left out of a schedule, so that others meet more often.
const WEIGHTS: [u32; 19] = [6, 1, 1, 12, 4, 1, 3, 2, 24, 8, 28, 16, 16, 10, 1, 2, 1, 1, 1];

/// The same for a calm world.
const CALM: [u32; 19] = [6, 1, 1, 36, 6, 1, 6, 5, 72, 24, 84, 48, 48, 30, 1, 2, 1, 1, 4];

/// Filters to which clients keep in a calm world, all of which reach the first topic.
const CALM_FILTERS: [usize; 3] = [0, 2, 3];

/// Kinds of steps without which little happens.
const NEEDED: [usize; 8] = [0, 3, 4, 8, 9, 10, 11, 12];

impl Setting for Setup {
    type Step = Step;

    fn draw(seed: u64, steps: usize) -> (Setup, Vec<Step>) {
        if liars::is_chosen(seed) {
            return liars::draw(seed, steps);
        }
        let mut rng = rng_of(seed, 0x5EED);
        let mut setup = Setup::draw_either(&mut rng);
        let mut weights = if setup.calm { CALM } else { WEIGHTS };
        vary(&mut rng, &mut weights, 4, |kind| !NEEDED.contains(&kind));
        let quic = *rng.choice([0u8, 50, 100].iter()).unwrap_or(&0);
        if quic > 0 && rng.u8(..3) == 0 {
            // Flows come and go within turns that go on.
            weights[6] *= 5;
            weights[7] *= 3;
        }
        let qos = rng.u8(..5);
        let mut steps_drawn = Vec::with_capacity(steps + setup.natures.len() * 8);
        setup.open(&mut rng, quic, &mut steps_drawn);
        let opening = steps_drawn.len();
        for _ in 0..steps {
            let step = setup.step(&mut rng, &weights, quic, qos);
            if matches!(step, Step::Crash { .. }) && rng.bool() {
                // At the moment when a worker's turn is durable and those of others are not.
                let end = WorkStep::EndTurn { worker: rng.usize(..3) };
                steps_drawn.extend([end, WorkStep::Commit { most: 100 }].map(Step::Work));
            }
            steps_drawn.push(step);
        }
        let steps = troubles::add(seed, &mut setup, steps_drawn, opening);
        (setup, steps)
    }
}

impl Setup {
    fn draw_either(rng: &mut Rng) -> Setup {
        let mut setup = Setup::draw_any(rng);
        if rng.bool() {
            setup.calm_down(rng);
        }
        setup
    }

    /// Makes the world calm, with clients that have small windows.
    fn calm_down(&mut self, rng: &mut Rng) {
        (self.calm, self.one_filter) = (true, true);
        self.workers = self.workers.max(2);
        self.slow_worker = (rng.u8(..4) > 0).then(|| rng.usize(..self.workers));
        self.amid = [0, 4, 2][rng.usize(..3)];
        self.max_in_flight = [1, 2, 8][rng.usize(..3)];
        let publishers = rng.usize(1..=2);
        for (client, nature) in self.natures.iter_mut().enumerate() {
            nature.publishes = client < publishers;
            nature.receive_maximum = [1, 1, 2, 3][rng.usize(..4)];
            nature.will = nature.will.filter(|_| rng.u8(..4) == 0);
        }
    }

    fn draw_any(rng: &mut Rng) -> Setup {
        let clients = rng.usize(2..=MAX_CLIENTS);
        let mut nature = || Nature {
            v5: rng.u8(..4) > 0,
            durable: rng.u8(..5) > 0,
            receive_maximum: [1, 2, 3, 10][rng.usize(..4)],
            window: [1, 2, 4, 20][rng.usize(..4)],
            room: [1, 3, 100][rng.usize(..3)],
            slow_acks: rng.bool(),
            will: (rng.u8(..3) == 0).then(|| Will {
                delay_s: [0, 5, 100][rng.usize(..3)],
                qos: [QoS::AtLeastOnce, QoS::ExactlyOnce][rng.usize(..2)],
                expiry_s: (rng.u8(..4) == 0).then(|| [2, 60][rng.usize(..2)]),
            }),
            aliases: rng.bool(),
            publishes: rng.u8(..4) > 0,
            no_local: false,
            keep_alive_s: 0,
        };
        let mut natures: Vec<Nature> = (0..clients).map(|_| nature()).collect();
        natures[0].publishes = true;
        let workers = rng.usize(1..=3);
        Setup {
            workers,
            natures,
            one_filter: rng.bool(),
            slow_worker: rng.bool().then(|| rng.usize(..workers)),
            amid: [0, 0, 16, 4][rng.usize(..4)],
            max_in_flight: [2, 8, 100][rng.usize(..3)],
            queue: (rng.u8(..6) == 0).then(|| {
                let policies = [DropPolicy::Oldest, DropPolicy::Newest, DropPolicy::Disconnect];
                ([1, 2, 5][rng.usize(..3)], policies[rng.usize(..3)])
            }),
            large: (rng.u8(..4) == 0).then(|| [1, 40, 400][rng.usize(..3)]),
            ..Setup::default()
        }
    }

    /// Most schedules begin with clients that are connected and subscribed.
    fn open(&self, rng: &mut Rng, quic: u8, steps: &mut Vec<Step>) {
        if rng.u8(..8) == 0 {
            return;
        }
        for client in 0..self.natures.len() {
            let (worker, quic) = (rng.usize(..3), rng.u8(..100) < quic);
            steps.push(Step::Connect { client, worker, quic, clean: false, takeover: true });
            steps.push(Step::Work(WorkStep::Read { line: 0, stream: 0 }));
            let filter = self.filter(client, rng);
            let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce, QoS::ExactlyOnce][rng.usize(..3)];
            steps.extend((0..3).map(|worker| Step::Work(WorkStep::EndTurn { worker })));
            steps.push(Step::Work(WorkStep::Commit { most: 100 }));
            steps.extend((0..3).map(|worker| Step::Work(WorkStep::Exchange { worker })));
            steps.push(Step::Hear { client: 0, stream: 0 });
            if rng.u8(..100) < 60 || !quic {
                steps.push(Step::Subscribe { client, filter, qos, stream: 0 });
            } else {
                let name = rng.bool().then(|| 2 + 2 * rng.u64(..2));
                let keep = rng.u8(..4) > 0;
                steps.push(Step::OpenStream { client, name, keep, wanted: FlowChoice::Any });
                steps.push(Step::Subscribe { client, filter, qos, stream: 1 });
            }
        }
    }

    fn step(&self, rng: &mut Rng, weights: &[u32; 19], quic: u8, qos: u8) -> Step {
        let kind = weighted(rng, weights);
        let client = rng.usize(..self.natures.len());
        let worker = rng.usize(..3);
        let stream = if rng.bool() { 0 } else { rng.usize(..4) };
        let qos = match (qos, rng.u8(..8)) {
            (4, 0..=3) => QoS::AtMostOnce,
            (0, _) | (_, 1..=3) => QoS::ExactlyOnce,
            (1, _) | (_, 4..=6) => QoS::AtLeastOnce,
            (_, 0) => QoS::AtMostOnce,
            _ => QoS::ExactlyOnce,
        };
        let filter = self.filter(client, rng);
        match kind {
            0 => Step::Connect {
                client,
                worker,
                quic: rng.u8(..100) < quic,
                clean: rng.u8(..12) == 0,
                takeover: rng.u8(..if self.calm { 16 } else { 4 }) == 0,
            },
            1 => Step::Cut { client, lossy: rng.bool() },
            2 => Step::Leave { client },
            3 => {
                let topic =
                    if self.calm && rng.u8(..4) > 0 { 0 } else { rng.usize(..TOPICS.len()) };
                let retain = rng.u8(..10) == 0;
                let expiry_s = (rng.u8(..8) == 0).then(|| [2, 5, 60][rng.usize(..3)]);
                Step::Publish { client, topic, qos, stream, retain, expiry_s }
            }
            4 => Step::Subscribe { client, filter, qos, stream },
            5 => Step::Unsubscribe { client, filter },
            6 => {
                let name = rng.bool().then(|| 2 + 2 * rng.u64(..2));
                let wanted = match rng.u8(..8) {
                    0 | 1 if name.is_some() => FlowChoice::AsLeft,
                    2 | 3 if name.is_some() => FlowChoice::Clean,
                    _ => FlowChoice::Any,
                };
                Step::OpenStream { client, name, keep: rng.u8(..4) > 0, wanted }
            }
            7 => Step::EndStream { client, stream: rng.usize(..4), finish: rng.bool() },
            8 => Step::Hear { client, stream },
            9 => Step::Acknowledge { client, pick: rng.usize(..8) },
            10 => {
                let line = rng.usize(..8);
                match self.amid(rng) {
                    Some(amid) => Step::ReadAmid { line, stream, amid },
                    None => Step::Work(WorkStep::Read { line, stream }),
                }
            }
            11 => Step::Work(WorkStep::Exchange { worker }),
            12 => {
                let slow = self.slow_worker == Some(worker % self.workers) && rng.u8(..8) > 0;
                Step::Work(WorkStep::EndTurn { worker: if slow { worker + 1 } else { worker } })
            }
            13 => Step::Work(WorkStep::Commit { most: [1, 1, 2, 100][rng.usize(..4)] }),
            14 => Step::Disk { failing: rng.bool() },
            15 => Step::Work(WorkStep::Timers { worker }),
            16 => Step::Wait { seconds: [1, 3, 10, 2000][rng.usize(..4)] },
            17 => Step::Crash { workers: rng.usize(1..=3) },
            _ => Step::Rest,
        }
    }

    fn filter(&self, client: usize, rng: &mut Rng) -> usize {
        match (self.calm, self.one_filter) {
            (true, _) => CALM_FILTERS[client % CALM_FILTERS.len()],
            (false, true) => client % 3,
            (false, false) => rng.usize(..FILTERS.len()),
        }
    }

    fn amid(&self, rng: &mut Rng) -> Option<Amid> {
        if self.amid == 0 || rng.u8(..self.amid) > 0 {
            return None;
        }
        let mut aside = || match rng.u8(..9) {
            0 => None,
            1..=5 => Some(WorkStep::Read { line: rng.usize(..8), stream: rng.usize(..4) }),
            6 => Some(WorkStep::Exchange { worker: rng.usize(..3) }),
            7 => Some(WorkStep::EndTurn { worker: rng.usize(..3) }),
            _ => Some(WorkStep::Commit { most: usize::MAX }),
        };
        let asides = [aside(), aside(), aside()];
        Some(Amid { before: rng.usize(..3), asides })
    }
}
