//! Timers and clocks of a world.

use std::time::Duration;

use fulmar_broker::{Shard, StreamKey, Timestamp};

use super::World;
use crate::clock::{Machine, Wall};
use crate::network::{Line, PINGREQ};

impl World {
    /// Handles what is due on a worker.
    pub(crate) fn fire_timers(&mut self, at: usize) {
        let now = self.now;
        let due = |shard: &Shard| shard.deadline().is_some_and(|due| due <= now);
        if self.workers[at].shard.as_ref().is_some_and(due) {
            self.wake(at);
            let saw_overdue = self.workers[at].saw_overdue;
            self.workers[at].shard.iter_mut().for_each(Shard::on_deadline);
            self.look_at_storage(at);
            // It looks only if it finds a batch overdue.
            self.workers[at].saw_overdue |= saw_overdue;
        }
        for line in 0..self.lines.len() {
            let is_own = self.lines[line].worker == at && self.lines[line].open;
            if is_own {
                self.half_close(line);
            }
            let keeps_alive = self.lines[line].keeps_alive;
            if is_own && keeps_alive && self.is_due(line) {
                // What has come is read first.
                while self.read(line, 0) {}
            }
            if is_own && self.is_due(line) {
                self.wake(at);
                let stalled = self.call(at, [line]);
                let both =
                    self.lines[line].connection.as_mut().zip(self.workers[at].shard.as_mut());
                if let Some((connection, shard)) = both {
                    if keeps_alive {
                        connection.excuse_pause(shard);
                    }
                    connection.on_deadline(shard);
                }
                self.note_closing(line, stalled);
            }
        }
    }

    fn is_due(&self, line: usize) -> bool {
        let Line { connection, worker, .. } = &self.lines[line];
        let both = connection.as_ref().zip(self.workers[*worker].shard.as_ref());
        both.is_some_and(|(connection, shard)| connection.deadline(shard) <= self.now)
    }

    /// Notifies the broker that the client has closed its side, if that is behind something that it leaves unread.
    fn half_close(&mut self, at: usize) {
        let line = &mut self.lines[at];
        if !line.cut || !line.is_patient || !line.is_unread() || line.half_closed {
            return;
        }
        let worker = line.worker;
        self.wake(worker);
        let line = &mut self.lines[at];
        if let (Some(connection), Some(shard)) = (&mut line.connection, &self.workers[worker].shard)
        {
            connection.peer_closed(shard);
            line.half_closed = true;
        }
    }

    /// Time passes.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.set_clocks(|machine| machine.pass(time, true));
        // Turns are short: none goes on meanwhile.
        self.workers.iter_mut().for_each(|worker| worker.in_turn = false);
    }

    /// Clients with a Keep Alive have sent PINGREQ in time.
    pub(crate) fn ping(&mut self) {
        for line in 0..self.lines.len() {
            if self.lines[line].keeps_alive {
                self.client_sends(line, StreamKey::CONTROL, PINGREQ.to_vec());
            }
        }
    }

    /// The machine is suspended.
    pub(crate) fn suspend(&mut self, time: Duration) {
        self.set_clocks(|machine| machine.pass(time, false));
    }

    /// The wall clock is set.
    pub(crate) fn set_wall(&mut self, wall: Wall) {
        self.set_clocks(|machine| machine.set_wall(wall));
    }

    fn set_clocks(&mut self, change: impl FnOnce(&mut Machine)) {
        change(&mut self.machine);
        self.now = self.machine_time();
        self.disk.set_clocks(self.machine.shows);
    }

    pub(crate) fn machine_time(&self) -> Timestamp {
        Timestamp(self.machine.shows.time.cast_unsigned())
    }

    /// Times that the machine's clocks show.
    #[cfg(feature = "worlds")]
    pub(crate) fn clocks(&self) -> fulmar_mirror::Reading {
        self.machine.shows
    }
}
