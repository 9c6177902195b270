//! What must hold of an internal session: nothing is dropped for it, others wait for it before its queue is full, and for
//! no longer than it is behind.

use fulmar_broker::storage::Progress;

use crate::broker::Scene;
use crate::broker::client::Client;

/// The most workers that a schedule has.
const MAX_WORKERS: usize = 3;

impl Scene<'_> {
    /// The internal session has everything that was acknowledged to its publisher, if `is_there`.
    pub(crate) fn check_internal_session(
        &self,
        is_there: impl Fn(usize) -> bool,
    ) -> Result<(), String> {
        let Some(internal) = self.setup.internal else { return Ok(()) };
        let missing = self.ledger.missing_of(internal);
        if is_there(internal) && !missing.is_empty() {
            return Err(format!("of the internal session: {}", missing.join(", ")));
        }
        Ok(())
    }

    /// Messages that wait for the internal session's client, not counting those that it was sent; and all of them.
    fn queued(&self) -> Option<(usize, usize)> {
        let name = Client::name(self.setup.internal?);
        let tables = self.world.disk.durable();
        let session = tables.sessions.values().find(|record| *record.client_id == *name)?.key;
        let own = || tables.queued.iter().filter(|(place, _)| place.0 == session);
        let waits = |progress: &Progress| matches!(progress, Progress::Queued | Progress::Offered);
        Some((own().filter(|(_, queued)| waits(&queued.progress)).count(), own().count()))
    }

    /// Number of messages that may be queued for the internal session: four per worker in any case.
    fn most_queued(&self, workers: usize) -> usize {
        self.setup.queue.map_or(usize::MAX, |(most, _)| most.max(4 * workers))
    }

    /// At rest: whether clients may wait because the internal session is behind.
    pub(crate) fn is_internal_session_behind(&self) -> bool {
        let most = self.most_queued(self.world.workers());
        self.queued().is_some_and(|(queued, _)| queued > most / 4 * 2)
    }

    /// Everything comes to rest except for the internal session, whose client reads nothing.
    pub(crate) fn settle_behind(&mut self) -> Result<(), String> {
        let Some(internal) = self.setup.internal else { return Ok(()) };
        self.settle_with(usize::MAX, Some(internal))?;
        self.check_all_is_read()
    }

    /// At rest: nothing is left unread, except of clients that wait because the internal session is behind; and they
    /// have waited before its queue was full.
    pub(crate) fn check_all_is_read(&mut self) -> Result<(), String> {
        let most = self.most_queued(self.world.workers());
        // Before the crash there may have been more workers.
        let ever = if self.crashed { self.most_queued(MAX_WORKERS) } else { most };
        let (queued, all) = self.queued().unwrap_or((0, 0));
        // The message that has crossed the mark, and one that another worker was publishing.
        let beyond = 1 + usize::from(self.setup.amid > 0);
        // A crash may return to the queue what was in flight.
        let (counted, returned) = match self.setup.internal {
            Some(internal) if self.crashed => {
                (all, usize::from(self.setup.natures[internal].receive_maximum))
            }
            _ => (queued, 0),
        };
        if self.setup.internal.is_some() && counted > ever / 4 * 3 + beyond + returned {
            return Err(format!("{queued} messages of {most} are queued for the internal session"));
        }
        for line in self.world.unread() {
            self.played.delayed += 1;
            let client = self.clients.iter().find(|client| client.line == Some(line));
            let publishes = client.is_none_or(|client| client.nature.publishes);
            let is_internal =
                client.is_some_and(|client| self.setup.internal == Some(client.index));
            let all_wait = queued > most / 4 * 3;
            if is_internal || !all_wait && (queued <= most / 4 * 2 || !publishes) {
                return Err(format!(
                    "the broker leaves a packet unread, {queued} are queued: {client:?}"
                ));
            }
        }
        Ok(())
    }
}
