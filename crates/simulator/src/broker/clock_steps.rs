//! Steps of the machine's clocks, and pauses of the broker's process, in which clients send PINGREQ all along.

use std::time::Duration;

use crate::broker::Scene;
use crate::clock::ClockStep;

impl Scene<'_> {
    /// Takes such a step.
    pub(crate) fn clock_step(&mut self, step: ClockStep) -> Result<(), String> {
        match step {
            ClockStep::Set(wall) => self.world.set_wall(wall),
            ClockStep::Suspend { seconds } => {
                self.world.suspend(Duration::from_secs(seconds));
                self.see_time();
                self.passed(seconds);
                self.world.ping();
            }
            ClockStep::Pause { seconds, late } => {
                self.world.wait(Duration::from_secs(seconds));
                if !late {
                    self.world.ping();
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
}
