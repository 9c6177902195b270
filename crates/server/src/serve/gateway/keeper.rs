//! The outbox's thread: takes messages in, reads them out, removes what was sent, and tells how full
//! it is. The only user of the file.
//!
//! What fails is told to who asked and in the log once, and tried again by who asked: nothing is
//! acknowledged meanwhile, so nothing is lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use fulmar_gateway::Error;
use fulmar_gateway::mapping::Priority;
use fulmar_gateway::outbox::{Item, Outbox, Page, Put};
use tokio::sync::oneshot;

use super::dead_letters::{DeadLetters, Letter, Way};
use super::metrics::{GatewayMetrics, count};
use super::now_ms;

/// Messages read at a time, and bytes of them but for the first.
const READ_MESSAGES: usize = 256;
const READ_BYTES: usize = 128 * 1024;
/// Removals that wait for each other, and how long.
const REMOVE_AT: usize = 512;
const REMOVE_AFTER: Duration = Duration::from_millis(100);
/// Before reading again what could not be read.
const READ_AGAIN: Duration = Duration::from_secs(1);
/// Between two looks for what is too old.
const TIDY: Duration = Duration::from_secs(1);

/// What is asked of the thread. Answers that nobody waits for any more are dropped.
enum Ask {
    Put(Vec<Item>, oneshot::Sender<(Vec<Item>, Result<Put, ()>)>),
    Read { priority: Priority, after: u64, answer: oneshot::Sender<Option<Page>> },
    Remove(Vec<u64>),
    Bury(Vec<Letter>),
    SetMeta { name: &'static str, value: String },
    Meta { name: &'static str, answer: oneshot::Sender<String> },
    Close,
}

/// Owns the thread.
pub(super) struct Keeper {
    asking: Asking,
    thread: JoinHandle<()>,
}

/// Asks it.
#[derive(Clone)]
pub(super) struct Asking(mpsc::Sender<Ask>);

impl Keeper {
    pub(super) fn start(
        outbox: Outbox,
        graves: Option<DeadLetters>,
        metrics: Arc<GatewayMetrics>,
    ) -> anyhow::Result<Keeper> {
        let (ask, asked) = mpsc::channel();
        *metrics.totals.lock() = outbox.totals();
        let work = Work { outbox, graves, metrics, removals: BTreeSet::new(), dropped: 0 };
        let thread = std::thread::Builder::new().name("fulmar-outbox".into());
        let thread = thread.spawn(move || work.run(&asked)).context("outbox")?;
        Ok(Keeper { asking: Asking(ask), thread })
    }

    pub(super) fn asking(&self) -> Asking {
        self.asking.clone()
    }

    /// Writes what is to be written and ends the thread.
    pub(super) fn close(self) {
        self.asking.ask(Ask::Close);
        if self.thread.join().is_err() {
            tracing::error!("the outbox's thread panicked");
        }
    }
}

impl Asking {
    fn ask(&self, ask: Ask) {
        // After the end nobody is there to answer, which who asked sees.
        drop(self.0.send(ask));
    }

    /// Takes messages in. When it says what became of them they are durable; otherwise nothing was
    /// taken. Gives the messages back for another try.
    pub(super) async fn put(&self, items: Vec<Item>) -> (Vec<Item>, Result<Put, ()>) {
        let (answer, answered) = oneshot::channel();
        self.ask(Ask::Put(items, answer));
        match answered.await {
            Ok(outcome) => outcome,
            // As below. Nothing may be acknowledged any more.
            Err(_) => std::future::pending().await,
        }
    }

    /// Messages of a lane behind this one, without those that are about to be removed. Waits as long as they
    /// cannot be read: an answer without messages would mean that there are none.
    pub(super) async fn read(&self, priority: Priority, after: u64) -> Page {
        loop {
            let (answer, answered) = oneshot::channel();
            self.ask(Ask::Read { priority, after, answer });
            match answered.await {
                Ok(Some(page)) => return page,
                Ok(None) => tokio::time::sleep(READ_AGAIN).await,
                // The thread has ended; its users are stopped by other means.
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Removes what is done with, soon.
    pub(super) fn remove(&self, seqs: Vec<u64>) {
        self.ask(Ask::Remove(seqs));
    }

    /// Lets go of messages that can never be accepted, once they are in the dead-letter file if there is one.
    pub(super) fn bury(&self, letters: Vec<Letter>) {
        self.ask(Ask::Bury(letters));
    }

    /// A text kept with the messages; empty if there is none.
    pub(super) async fn meta(&self, name: &'static str) -> String {
        let (answer, answered) = oneshot::channel();
        self.ask(Ask::Meta { name, answer });
        answered.await.unwrap_or_default()
    }

    /// Keeps a text with the messages.
    pub(super) fn set_meta(&self, name: &'static str, value: String) {
        self.ask(Ask::SetMeta { name, value });
    }
}

/// What the thread owns.
struct Work {
    outbox: Outbox,
    graves: Option<DeadLetters>,
    metrics: Arc<GatewayMetrics>,
    removals: BTreeSet<u64>,
    /// Messages dropped, as the log was told of it.
    dropped: u64,
}

impl Work {
    fn run(mut self, asked: &mpsc::Receiver<Ask>) {
        let mut tidy_at = Instant::now();
        let mut remove_at = None;
        loop {
            let now = Instant::now();
            if tidy_at <= now {
                tidy_at = now + TIDY;
                self.tidy();
            }
            if self.removals.len() >= REMOVE_AT || remove_at.is_some_and(|at| at <= now) {
                self.remove();
            }
            remove_at = match self.removals.is_empty() {
                true => None,
                false => remove_at.or(Some(now + REMOVE_AFTER)),
            };
            let wait =
                remove_at.map_or(tidy_at, |at| at.min(tidy_at)).saturating_duration_since(now);
            match asked.recv_timeout(wait) {
                Ok(Ask::Close) | Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Ok(ask) => self.answer(ask),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
        self.remove();
    }

    fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::Put(items, answer) => {
                let outcome = self.outbox.put(&items, now_ms());
                let outcome = outcome.map_err(|error| self.failed(&error));
                if let Ok(put) = outcome {
                    self.recovered();
                    count(&self.metrics.repeated, put.known);
                }
                self.tell();
                let _ = answer.send((items, outcome));
            }
            Ask::Read { priority, after, answer } => {
                let read = self.outbox.read(priority, after, READ_MESSAGES, READ_BYTES);
                let page = read.map_err(|error| self.failed(&error)).ok().map(|mut page| {
                    page.messages.retain(|message| !self.removals.contains(&message.seq));
                    page
                });
                let _ = answer.send(page);
            }
            Ask::Remove(seqs) => self.removals.extend(seqs),
            Ask::Bury(letters) => self.bury(letters),
            Ask::SetMeta { name, value } => {
                if let Err(error) = self.outbox.set_meta(name, &value) {
                    self.failed(&error);
                }
            }
            Ask::Meta { name, answer } => {
                let text = self.outbox.meta(name, String::new);
                let _ = answer.send(text.unwrap_or_default());
            }
            Ask::Close => {}
        }
    }

    fn bury(&mut self, letters: Vec<Letter>) {
        if let Some(graves) = &mut self.graves {
            if let Err(error) = graves.append(&letters) {
                // They stay in the outbox or upstream, and are tried again with the next connection.
                tracing::error!(
                    "[upstream.outbox] dead_letter_file {}: {error}; {} messages are kept where they are",
                    graves.path().display(),
                    letters.len()
                );
                return;
            }
            count(&self.metrics.dead_letters, letters.len());
        }
        for Letter { message, way, .. } in letters {
            match way {
                Way::Up => {
                    count(&self.metrics.refused, 1);
                    self.removals.insert(message.seq);
                }
                Way::Refused => count(&self.metrics.refused, 1),
                Way::Down(taken) => {
                    count(&self.metrics.refused_here, 1);
                    taken.send(()).ok();
                }
            }
        }
    }

    fn remove(&mut self) {
        if self.removals.is_empty() {
            return;
        }
        let removals: Vec<u64> = self.removals.iter().copied().collect();
        match self.outbox.remove(&removals) {
            Ok(()) => self.removals.clear(),
            // Kept for the next try; what is not removed is not sent again by this process.
            Err(error) => self.failed(&error),
        }
        self.tell();
    }

    fn tidy(&mut self) {
        if let Err(error) = self.outbox.tidy(now_ms()) {
            self.failed(&error);
        }
        self.tell();
        let dropped = self.outbox.totals().dropped;
        let total = dropped.full + dropped.age + dropped.expired;
        if total > self.dropped {
            let new = total - self.dropped;
            tracing::warn!(
                full = dropped.full,
                age = dropped.age,
                expired = dropped.expired,
                "the outbox dropped {new} messages by its policy; the fields count all since the \
                 start"
            );
            self.dropped = total;
        }
    }

    fn tell(&self) {
        *self.metrics.totals.lock() = self.outbox.totals();
    }

    fn failed(&self, error: &Error) {
        let text = error.to_string();
        let mut failure = self.metrics.failure.lock();
        if failure.as_ref() != Some(&text) {
            tracing::error!("outbox: {text}");
            *failure = Some(text);
        }
    }

    fn recovered(&self) {
        if self.metrics.failure.lock().take().is_some() {
            tracing::info!("outbox: writing resumed");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_read_again_and_not_taken_for_nothing() {
        let (ask, asked) = mpsc::channel();
        let page = Page { messages: Vec::new(), to: 7, more: true };
        let answers = [None, Some(page.clone())];
        let thread = std::thread::spawn(move || {
            for page in answers {
                let Ok(Ask::Read { answer, .. }) = asked.recv() else { return };
                answer.send(page).unwrap();
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let asking = Asking(ask);
        let read =
            async { tokio::time::timeout(10 * READ_AGAIN, asking.read(Priority::Normal, 3)).await };
        assert_eq!(runtime.block_on(read).unwrap(), page);
        thread.join().unwrap();
    }
}
