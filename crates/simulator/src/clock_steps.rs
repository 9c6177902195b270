//! Steps of the machine's clocks, and pauses of the broker's process, in which clients send PINGREQ all along.

use std::time::Duration;

use fastrand::Rng;
use fulmar_broker::StreamKey;

use crate::clock::Wall;
use crate::network::{Input, PINGREQ};
use crate::play::Scene;
use crate::schedule::{Setup, Step};

/// What happens to the machine, or to the broker's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockStep {
    /// The wall clock is set.
    Set(Wall),
    /// The machine is suspended.
    Suspend { seconds: u64 },
    /// The process stands still; what clients have sent meanwhile is there then, or comes soon (`late`).
    Pause { seconds: u64, late: bool },
    /// The machine is off and boots, with a clock that is set or not.
    Reboot { seconds: u64, is_set: bool, workers: usize },
}

/// Adds such steps to a schedule, behind the first `opening`.
pub(crate) fn add(setup: &mut Setup, rng: &mut Rng, steps: Vec<Step>, opening: usize) -> Vec<Step> {
    for nature in &mut setup.natures {
        nature.keep_alive_s = [0, 2, 20][rng.usize(..3)];
    }
    let mut all = Vec::with_capacity(steps.len() * 2);
    for (number, step) in steps.into_iter().enumerate() {
        all.push(step);
        if number >= opening && rng.u8(..12) == 0 {
            all.push(Step::Clock(draw(rng)));
            if rng.u8(..4) == 0 {
                all.push(Step::Crash { workers: rng.usize(1..=3) });
            }
        }
    }
    all
}

fn draw(rng: &mut Rng) -> ClockStep {
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

impl Scene<'_> {
    /// Takes such a step.
    pub(crate) fn clock_step(&mut self, step: ClockStep) -> Result<(), String> {
        match step {
            ClockStep::Set(wall) => self.world.set_wall(wall),
            ClockStep::Suspend { seconds } => {
                self.world.suspend(Duration::from_secs(seconds));
                self.see_time();
                self.passed(seconds);
                self.ping();
            }
            ClockStep::Pause { seconds, late } => {
                self.world.wait(Duration::from_secs(seconds));
                if !late {
                    self.ping();
                }
                (0..self.world.workers()).for_each(|worker| self.world.fire_timers(worker));
                self.wait(2);
                self.passed(seconds);
            }
            ClockStep::Reboot { seconds, is_set, workers } => {
                self.world.machine.reboot(Duration::from_secs(seconds), is_set);
                self.crash(workers)?;
                self.passed(seconds);
            }
        }
        Ok(())
    }

    /// Clients' clocks show what has really passed.
    pub(crate) fn see_time(&mut self) {
        let machine = &self.world.machine;
        self.ledger.now = machine.real();
        self.ledger.late = Duration::from_millis(machine.late.cast_unsigned());
    }

    /// Clients with a keep alive have sent PINGREQ in time.
    pub(crate) fn ping(&mut self) {
        for client in &self.clients {
            if let Some(line) = client.line.filter(|_| client.nature.keep_alive_s > 0) {
                self.world.say(line, StreamKey::CONTROL, Input::Bytes(PINGREQ.to_vec()));
            }
        }
    }
}
