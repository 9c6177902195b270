//! Draws schedules with liars from a seed.
//!
//! Which seeds have liars is decided apart from what they do: the schedules of all other seeds remain as they were.

use fastrand::Rng;
use fulmar_mqtt::QoS;

use super::law::ROLES;
use super::{
    ACCOUNTS, Connecting, Deed, FILTERS, IDS, LISTS, Lie, NAMES, Rule, Stored, TOPICS, Voucher,
    Whom,
};
use crate::broker::schedule::{Setup, Step};
use crate::script::weighted;
use crate::work::WorkStep;

/// Clients of a schedule.
const CLIENTS: usize = 3;

/// One seed in this many has liars.
const ONE_IN: u64 = 8;

const ROLE_NUMBERS: [usize; ROLES] = [0, 1, 2];

/// Frequency of each kind of lie.
const WEIGHTS: [u32; 15] = [10, 3, 24, 10, 6, 7, 1, 5, 2, 3, 3, 3, 2, 2, 1];

/// Whether this seed's schedule has liars. None of those in the tables of TESTING.md has.
pub(crate) fn is_chosen(seed: u64) -> bool {
    ((seed ^ 24).wrapping_mul(0x9E6C_63D0_876A_68DE) >> 32).is_multiple_of(ONE_IN)
}

/// What this schedule keeps to, so that the same names meet.
struct Few {
    names: [&'static str; 3],
    ids: [&'static str; 3],
    topics: [&'static str; 4],
    filters: [&'static str; 4],
    lists: [&'static [Rule]; 4],
    /// Whether there are credentials that end, bans and crashes.
    ends: bool,
    bans: bool,
    crashes: bool,
    /// Number of eight actions that are followed by all that they cause.
    promptly: u8,
}

pub(crate) fn draw(seed: u64, steps: usize) -> (Setup, Vec<Step>) {
    let mut rng = Rng::with_seed(seed.wrapping_mul(0xA24B_AED4_963E_E407) ^ 0x11A5);
    let few = Few::draw(&mut rng);
    let setup = Setup { liars: true, workers: rng.usize(1..=3), ..Setup::default() };
    let mut all = Vec::with_capacity(steps * 2);
    few.open(&mut rng, &mut all);
    while all.len() < steps {
        few.step(&mut rng, &mut all);
    }
    (setup, all)
}

fn lie(deed: Deed) -> Step {
    Step::Lie(Lie(deed))
}

fn choices<T: Copy, const N: usize>(rng: &mut Rng, of: &[T]) -> [T; N] {
    std::array::from_fn(|_| of[rng.usize(..of.len())])
}

fn choice<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

impl Few {
    fn draw(rng: &mut Rng) -> Few {
        Few {
            names: choices(rng, NAMES),
            ids: choices(rng, IDS),
            topics: choices(rng, TOPICS),
            filters: choices(rng, FILTERS),
            lists: choices(rng, LISTS),
            ends: rng.bool(),
            bans: rng.bool(),
            crashes: rng.u8(..4) == 0,
            promptly: choice(rng, &[2, 6, 8]),
        }
    }

    /// First rights, and clients.
    fn open(&self, rng: &mut Rng, all: &mut Vec<Step>) {
        for role in 0..ROLES {
            all.push(lie(Deed::SetRole(role, choice(rng, &self.lists))));
        }
        if rng.u8(..3) > 0 {
            let names = if rng.bool() { 1 } else { 2 };
            for name in &self.names[..names] {
                all.push(lie(Deed::SetUser(name, Some(self.stored(rng)))));
            }
            all.push(lie(Deed::SetDefault(rng.bool())));
        }
        all.push(lie(self.rules(rng)));
        all.push(lie(Deed::SetService(choice(rng, &self.lists))));
        for client in 0..CLIENTS {
            all.push(lie(self.connect(client, rng)));
            follow(all);
            all.push(lie(Deed::Subscribe(client, choice(rng, &self.filters))));
        }
        follow(all);
    }

    fn step(&self, rng: &mut Rng, all: &mut Vec<Step>) {
        if rng.u8(..3) > 0 {
            all.push(self.work(rng));
            return;
        }
        all.push(lie(self.deed(rng)));
        if rng.u8(..8) < self.promptly {
            follow(all);
        }
    }

    fn deed(&self, rng: &mut Rng) -> Deed {
        let kind = weighted(rng, &WEIGHTS);
        let (client, line) = (rng.usize(..CLIENTS), rng.usize(..8));
        let name = choice(rng, &self.names[..2]);
        match kind {
            0 => self.connect(client, rng),
            1 => Deed::ConnectProgram,
            2 => {
                let qos = choice(rng, &[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
                Deed::Publish(line, choice(rng, &self.topics), qos, rng.u8(..6) == 0)
            }
            3 => Deed::Subscribe(line, choice(rng, &self.filters)),
            4 if rng.u8(..6) == 0 => Deed::Disconnect(line),
            4 => Deed::Cut(line),
            5 => Deed::SetUser(name, (rng.u8(..3) > 0).then(|| self.stored(rng))),
            6 => Deed::SetNameless(rng.bool().then(|| choices(rng, &ROLE_NUMBERS))),
            7 => Deed::SetRole(rng.usize(..ROLES), choice(rng, &self.lists)),
            8 => Deed::SetDefault(rng.bool()),
            9 => self.rules(rng),
            10 => Deed::SetService(choice(rng, &self.lists)),
            11 if self.bans => {
                let whom = match rng.u8(..6) {
                    0 => Whom::Anyone,
                    1 | 2 => Whom::User(choice(rng, &self.names)),
                    3 => Whom::Id(choice(rng, &self.ids)),
                    _ => Whom::Address(client),
                };
                Deed::Ban(whom, choice(rng, &[2, 20, 1000]))
            }
            11 | 12 => Deed::Unban,
            13 => Deed::SetAccount(rng.usize(..ACCOUNTS.len()), rng.u8(..3) > 0),
            _ => Deed::Revoke(rng.u8(..1 << CLIENTS) & rng.u8(..1 << CLIENTS)),
        }
    }

    fn connect(&self, client: usize, rng: &mut Rng) -> Deed {
        let voucher = match rng.u8(..10) {
            0 => Voucher::Nobody,
            1..=5 => Voucher::Service,
            6 | 7 => Voucher::Certificate,
            _ => Voucher::Platform,
        };
        let ends_s = (self.ends && rng.bool()).then(|| choice(rng, &[1, 5, 60]));
        let (name, id) = (choice(rng, &self.names), choice(rng, &self.ids));
        let will = rng.bool().then(|| (choice(rng, &self.topics), choice(rng, &[0, 0, 3, 30])));
        Deed::Connect(Connecting {
            client,
            worker: rng.usize(..3),
            voucher,
            name,
            id,
            ends_s,
            will,
            durable: rng.bool(),
            stays: rng.u8(..4) == 0,
        })
    }

    fn work(&self, rng: &mut Rng) -> Step {
        let worker = rng.usize(..3);
        match rng.u8(..64) {
            0..=27 => Step::Work(WorkStep::Read { line: rng.usize(..8), stream: 0 }),
            28..=41 => Step::Work(WorkStep::Exchange { worker }),
            42..=49 => Step::Work(WorkStep::EndTurn { worker }),
            50..=55 => Step::Work(WorkStep::Commit { most: choice(rng, &[1, 100]) }),
            56..=59 => Step::Work(WorkStep::Timers { worker }),
            60 if self.crashes => Step::Crash { workers: rng.usize(1..=3) },
            _ => Step::Wait { seconds: choice(rng, &[1, 3, 10, 600]) },
        }
    }

    fn stored(&self, rng: &mut Rng) -> Stored {
        Stored {
            roles: choices(rng, &ROLE_NUMBERS),
            disabled: rng.u8(..6) == 0,
            bound: (rng.u8(..6) == 0).then(|| choice(rng, &self.ids)),
        }
    }

    fn rules(&self, rng: &mut Rng) -> Deed {
        let whom = match rng.u8(..4) {
            0 => Whom::User(choice(rng, &self.names)),
            1 => Whom::Id(choice(rng, &self.ids)),
            _ => Whom::Anyone,
        };
        Deed::SetRules(choice(rng, &self.lists), whom, rng.bool())
    }
}

/// Everything that was said is read, and everything that was caused happens.
fn follow(all: &mut Vec<Step>) {
    let mut work = vec![WorkStep::Read { line: 0, stream: 0 }; 2];
    work.extend((0..3).map(|worker| WorkStep::EndTurn { worker }));
    work.push(WorkStep::Commit { most: 100 });
    work.extend(
        (0..3).flat_map(|worker| [WorkStep::Timers { worker }, WorkStep::Exchange { worker }]),
    );
    all.extend(work.into_iter().map(Step::Work));
}
