//! What must hold while storage is stalled ([`crate::broker::ledger`] has what refusals mean).

use crate::broker::Scene;
use crate::world::World;

/// The reason in a DISCONNECT because of a stall.
const STALLED: u8 = 0x83;

/// Number of times that the time after which a batch is overdue has to pass until nothing waits any more: a batch
/// becomes overdue, and a packet of 3.1.1 is left unread as long.
const TIMES: usize = 3;

impl Scene<'_> {
    /// A client is about to read from a connection: it may be refused.
    pub(crate) fn see_refusals(&mut self, line: usize) {
        (self.ledger.tick, self.ledger.stalled_in) =
            (self.world.tick(), self.world.lines[line].stalled_in);
        for publication in self.world.take_refused() {
            self.ledger.is_refused(publication);
        }
    }

    /// Whether a DISCONNECT says that the connection was closed because of a stall, and it was.
    pub(crate) fn is_for_stall(&self, line: usize, disconnect: &[u8]) -> bool {
        self.world.lines[line].closed_by_stall && disconnect.get(2) == Some(&STALLED)
    }

    /// Whether a client still has something to read on a connection that the broker has closed.
    pub(crate) fn reads_on(&mut self, line: usize) -> bool {
        let reads = self.setup.stalls.is_some() && !self.world.audible(line).is_empty();
        if reads {
            self.wills.record_detected(&self.world, &mut self.ledger);
        }
        reads
    }

    /// Storage commits nothing for so long that everything is overdue that waits for it. Nobody waits then.
    pub(crate) fn stall(&mut self) -> Result<(), String> {
        let Some(stalls) = self.setup.stalls else { return Ok(()) };
        for _ in 0..TIMES {
            self.settle_with(0, None)?;
            self.pass(stalls.timeout_s);
        }
        self.settle_with(0, None)?;
        if self.setup.internal.is_some() {
            // Clients may wait for that session.
            return Ok(());
        }
        self.check_all_is_read()?;
        for client in &self.clients {
            if client.line.is_some() && client.is_unanswered() {
                return Err(format!("during a stall, unanswered: {}", client.at_rest_but_for()));
            }
        }
        Ok(())
    }
}

impl World {
    /// The connections of which the broker has left input unread.
    pub(crate) fn unread(&self) -> Vec<usize> {
        (0..self.lines.len()).filter(|line| self.lines[*line].is_unread()).collect()
    }
}
