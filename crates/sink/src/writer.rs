//! Writes what the session brings, and returns when all of it is stored: in the target or, what does not fit, in the file
//! of dead letters.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use fulmar_part::consumer::{Consume, Message};
use fulmar_transport::Clock;

use crate::dead_letters::DeadLetter;
use crate::mapping::Letter;
use crate::status::Status;
use crate::target::{Fault, Target};

/// First and longest pause before a write is repeated.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(10);

/// Writes the messages of one sink.
pub(crate) struct Writer {
    pub(crate) target: Target,
    pub(crate) status: Arc<Status>,
    /// Messages written together.
    pub(crate) batch: usize,
}

impl Consume for Writer {
    async fn consume(&mut self, batch: Vec<Message>) -> Result<(), (Vec<Message>, String)> {
        let now_ms = Clock::wall().0;
        self.status.since_ms.store(now_ms, Relaxed);
        let letters = batch.into_iter().map(|message| Letter::new(message, now_ms));
        let letters: Vec<Letter> = letters.collect();
        for part in letters.chunks(self.batch) {
            let mut pause = FIRST_PAUSE;
            let status = &self.status;
            let again = async |fault| {
                wait(status, &mut pause, fault).await;
                Ok::<(), Infallible>(())
            };
            let Ok(dead) = self.target.write_apart(part, again).await;
            // Alone: what is written does not come again because there is no room for what is not.
            while let Err(fault) = self.bury(&dead) {
                wait(&self.status, &mut pause, fault).await;
            }
            self.status.dead.fetch_add(dead.len() as u64, Relaxed);
            self.status.written.fetch_add((part.len() - dead.len()) as u64, Relaxed);
            self.status.set(None);
        }
        self.status.since_ms.store(0, Relaxed);
        Ok(())
    }
}

impl Writer {
    fn bury(&self, dead: &[DeadLetter]) -> Result<(), Fault> {
        let (Some(first), status) = (dead.first(), &self.status) else { return Ok(()) };
        status.letters.append(dead).map_err(|error| {
            let text = format!("{}: {error}", status.letters.path().display());
            // The command that writes them again has them locked.
            let is_locked = error.kind() == ErrorKind::WouldBlock;
            if is_locked { Fault::Temporary(text) } else { Fault::Target(text) }
        })?;
        let (sink, count, reason) = (&status.name, dead.len(), first.reason.escape_debug());
        let (id, topic) = (&first.letter.id, &first.letter.topic);
        tracing::warn!(sink, count, id, topic, "sink: dead letters; the first: {reason}");
        Ok(())
    }
}

async fn wait(status: &Status, pause: &mut Duration, fault: Fault) {
    status.set(Some(fault));
    status.retries.fetch_add(1, Relaxed);
    // Not all sinks at once when a target returns.
    tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
    *pause = (2 * *pause).min(LAST_PAUSE);
}
