//! Makes storage stall in some schedules, one of the clients an internal session of the program in some, has clients
//! subscribe with No Local, and sets clocks and pauses the broker in some.
//!
//! All of this comes from a generator of its own: the schedules of other seeds remain as they were without it.

use fastrand::Rng;
use fulmar_broker::DropPolicy;
use fulmar_mqtt::QoS;

use super::schedule::{Setup, Stalls, Step, TOPICS};
use crate::clock::{ClockStep, Wall};
use crate::work::WorkStep;

/// Makes the changes of this seed to a schedule, of which the first `opening` steps connect the clients.
pub(crate) fn add(seed: u64, setup: &mut Setup, steps: Vec<Step>, opening: usize) -> Vec<Step> {
    let mixed = (seed ^ 143).wrapping_mul(0xD1B5_4A32_D192_ED03);
    let (kind, mut rng) = (mixed >> 60, Rng::with_seed(mixed));
    let mut own = Rng::with_seed(mixed ^ 38);
    for nature in &mut setup.natures {
        nature.no_local = nature.v5 && own.u8(..4) == 0;
    }
    if kind < 4 {
        setup.stalls = Some(Stalls {
            timeout_s: [1, 3, 10][rng.usize(..3)],
            backlog: [3, 10, 50_000, 50_000][rng.usize(..4)],
        });
    }
    if (3..6).contains(&kind) {
        add_internal_session(setup, &mut rng);
    }
    if kind >= 12 {
        return add_clocks(setup, &mut own, steps, opening);
    }
    if kind >= 6 {
        return steps;
    }
    let mut all = Vec::with_capacity(steps.len() * 2);
    for (number, step) in steps.into_iter().enumerate() {
        all.push(step);
        if number < opening {
            continue;
        }
        if let Some(stalls) = setup.stalls
            && rng.u8(..10) == 0
        {
            stall(stalls, &mut rng, &mut all);
        }
        if let Some(internal) = setup.internal {
            fill(internal, setup.natures.len(), &mut rng, &mut all);
        }
    }
    all
}

/// The last client becomes the program itself, with a small queue. No client has a will: wills are published however
/// far behind an internal session is.
fn add_internal_session(setup: &mut Setup, rng: &mut Rng) {
    let internal = setup.natures.len() - 1;
    for nature in &mut setup.natures {
        nature.will = None;
    }
    let own = &mut setup.natures[internal];
    (own.v5, own.durable, own.publishes) = (true, true, false);
    own.receive_maximum = rng.u16(1..=2);
    // Not `Disconnect`: clients that fill their own queues would have to return too often.
    let policies = [DropPolicy::Oldest, DropPolicy::Newest, DropPolicy::Newest];
    setup.queue = Some(([8, 12][rng.usize(..2)], policies[rng.usize(..3)]));
    setup.internal = Some(internal);
}

/// Steps of which some make storage stall, and some end that.
fn stall(stalls: Stalls, rng: &mut Rng, steps: &mut Vec<Step>) {
    match rng.u8(..12) {
        0..=1 => steps.push(Step::Disk { failing: true }),
        2..=4 => steps.push(Step::Disk { failing: false }),
        5..=6 => steps.push(Step::Wait { seconds: rng.u64(1..=stalls.timeout_s) }),
        7..=8 => steps.push(Step::Work(WorkStep::Timers { worker: rng.usize(..3) })),
        9..=10 => {
            // A stall begins, for some of the workers or for all.
            steps.extend((0..3).map(|worker| Step::Work(WorkStep::EndTurn { worker })));
            steps.push(Step::Wait { seconds: stalls.timeout_s });
            let workers = rng.usize(1..=3);
            steps.extend((0..workers).map(|worker| Step::Work(WorkStep::Timers { worker })));
        }
        _ => steps.push(Step::Stall),
    }
}

/// Steps that fill the queue of the internal session.
fn fill(internal: usize, clients: usize, rng: &mut Rng, steps: &mut Vec<Step>) {
    match rng.u8(..24) {
        0..=7 => {
            let (client, topic) = (rng.usize(..clients), rng.usize(..TOPICS.len()));
            let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][rng.usize(..2)];
            let (stream, retain, expiry_s) = (rng.usize(..2), false, None);
            steps.push(Step::Publish { client, topic, qos, stream, retain, expiry_s });
            steps.push(Step::Work(WorkStep::Read { line: rng.usize(..8), stream: 0 }));
        }
        8 if rng.u8(..4) == 0 => steps.push(Step::Cut { client: internal, lossy: rng.bool() }),
        9 if rng.u8(..4) == 0 => steps.push(Step::Rest),
        _ => {}
    }
}

/// Adds steps of the clocks, and pauses, behind the first `opening` steps; some clients get a Keep Alive.
fn add_clocks(setup: &mut Setup, rng: &mut Rng, steps: Vec<Step>, opening: usize) -> Vec<Step> {
    for nature in &mut setup.natures {
        nature.keep_alive_s = [0, 2, 20][rng.usize(..3)];
    }
    let mut all = Vec::with_capacity(steps.len() * 2);
    for (number, step) in steps.into_iter().enumerate() {
        all.push(step);
        if number >= opening && rng.u8(..12) == 0 {
            all.push(Step::Clock(clock_step(rng)));
            if rng.u8(..4) == 0 {
                all.push(Step::Crash { workers: rng.usize(1..=3) });
            }
        }
    }
    all
}

fn clock_step(rng: &mut Rng) -> ClockStep {
    let seconds = [4, 10, 40][rng.usize(..3)];
    match rng.u8(..8) {
        0 | 1 => ClockStep::Set(Wall::Right),
        2 => ClockStep::Set(Wall::Unset),
        3 => {
            let off = [10, 3600, 86_400 * 365][rng.usize(..3)];
            ClockStep::Set(Wall::Off(if rng.bool() { off } else { -off }))
        }
        4 => ClockStep::Suspend { seconds },
        5 | 6 => ClockStep::Pause { seconds, late: rng.bool() },
        _ => ClockStep::Reboot { seconds, is_set: rng.bool(), workers: rng.usize(1..=3) },
    }
}
