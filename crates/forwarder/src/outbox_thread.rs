//! The outbox's thread: it stores messages, reads them, removes those that were sent, and counts what is stored. No
//! other thread uses the file.
//!
//! An error is returned to the caller and logged once. The caller tries again, and acknowledges nothing meanwhile, so
//! that no message is lost. Both connections wait for the answer to messages before they accept more, so that the thread's
//! queue is bounded.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use fulmar_gateway::Error;
use fulmar_gateway::mapping::Priority;
use fulmar_gateway::outbox::{Item, Outbox, Page, StoredCounts};
use tokio::sync::oneshot;

use super::dead_letters::{DeadLetter, DeadLetters, Direction};
use super::drop_log::{self, DropLog};
use super::metrics::{GatewayMetrics, count};
use super::wall_clock::now_ms;

/// Messages read at once, and their bytes; the first may be larger.
const READ_MESSAGES: usize = 256;
const READ_BYTES: usize = 128 * 1024;
/// Removals that are collected, and the longest time.
const REMOVE_AT: usize = 512;
const REMOVE_AFTER: Duration = Duration::from_secs(1);
/// Pause before reading again after an error.
const READ_AGAIN: Duration = Duration::from_secs(1);
/// Pause before dead letters are written again after an error.
const ADD_AGAIN: Duration = Duration::from_millis(500);
/// Time between two searches for messages that are too old.
const TIDY: Duration = Duration::from_secs(1);

/// A request to the thread. Answers that nobody waits for any more are dropped.
enum Request {
    Put(Vec<Item>, oneshot::Sender<(Vec<Item>, Result<StoredCounts, ()>)>),
    Read { priority: Priority, after: u64, answer: oneshot::Sender<Option<Page>> },
    Remove(Vec<u64>),
    AddDeadLetters(Vec<DeadLetter>, oneshot::Sender<Result<(), Vec<DeadLetter>>>),
    SetMeta { name: &'static str, value: String },
    Meta { name: &'static str, answer: oneshot::Sender<String> },
    Close,
}

/// Owns the thread; dropping this writes pending changes and ends it.
pub(super) struct OutboxThread {
    handle: OutboxHandle,
    thread: Option<JoinHandle<()>>,
}

/// Sends requests to the thread.
#[derive(Clone)]
pub(super) struct OutboxHandle(mpsc::Sender<Request>);

impl OutboxThread {
    pub(super) fn start(
        outbox: Outbox,
        dead_letters: Option<DeadLetters>,
        metrics: Arc<GatewayMetrics>,
    ) -> anyhow::Result<OutboxThread> {
        let (request, requests) = mpsc::channel();
        *metrics.totals.lock() = outbox.totals();
        let worker = Worker {
            outbox,
            dead_letters,
            metrics,
            removals: BTreeSet::new(),
            dropped: 0,
            drop_log: DropLog::default(),
            letters_failed: false,
        };
        let thread = std::thread::Builder::new().name("fulmar-outbox".into());
        let run = move || {
            let _entered = worker.metrics.span().entered();
            worker.run(&requests);
        };
        let thread = thread.spawn(run).context("outbox")?;
        Ok(OutboxThread { handle: OutboxHandle(request), thread: Some(thread) })
    }

    pub(super) fn handle(&self) -> OutboxHandle {
        self.handle.clone()
    }
}

impl Drop for OutboxThread {
    fn drop(&mut self) {
        self.handle.request(Request::Close);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the outbox's thread panicked");
        }
    }
}

impl OutboxHandle {
    fn request(&self, request: Request) {
        // After the thread has ended there is no answer, and the caller sees that.
        drop(self.0.send(request));
    }

    /// Stores messages. They are durable if this returns `Ok`; otherwise none was stored. Returns the messages for
    /// another try.
    pub(super) async fn store(&self, items: Vec<Item>) -> (Vec<Item>, Result<StoredCounts, ()>) {
        let (answer, answered) = oneshot::channel();
        self.request(Request::Put(items, answer));
        match answered.await {
            Ok(outcome) => outcome,
            // The thread has ended. Nothing may be acknowledged any more.
            Err(_) => std::future::pending().await,
        }
    }

    /// Messages of a lane after this one, without those about to be removed. Waits while they cannot be read, because
    /// an empty page would mean that there are none.
    pub(super) async fn read(&self, priority: Priority, after: u64) -> Page {
        loop {
            let (answer, answered) = oneshot::channel();
            self.request(Request::Read { priority, after, answer });
            match answered.await {
                Ok(Some(page)) => return page,
                Ok(None) => tokio::time::sleep(READ_AGAIN).await,
                // The thread has ended; its users are stopped by other means.
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Removes messages, soon.
    pub(super) fn remove(&self, seqs: Vec<u64>) {
        self.request(Request::Remove(seqs));
    }

    /// Drops messages that can never be accepted: they are in the dead-letter file, if there is one, when this returns.
    /// Tries until it succeeds.
    pub(super) async fn add_dead_letters(&self, mut letters: Vec<DeadLetter>) {
        while !letters.is_empty() {
            let (answer, answered) = oneshot::channel();
            self.request(Request::AddDeadLetters(letters, answer));
            letters = match answered.await {
                Ok(Ok(())) => return,
                Ok(Err(back)) => back,
                // The thread has ended. Nothing may be acknowledged any more.
                Err(_) => std::future::pending().await,
            };
            tokio::time::sleep(ADD_AGAIN).await;
        }
    }

    /// The same for messages of the outbox: they are removed once they are in the file, and stay if it cannot be
    /// written.
    pub(super) fn give_up(&self, letters: Vec<DeadLetter>) {
        let (answer, _) = oneshot::channel();
        self.request(Request::AddDeadLetters(letters, answer));
    }

    /// A text stored with the messages; empty if there is none.
    pub(super) async fn meta(&self, name: &'static str) -> String {
        let (answer, answered) = oneshot::channel();
        self.request(Request::Meta { name, answer });
        answered.await.unwrap_or_default()
    }

    /// Stores a text with the messages.
    pub(super) fn set_meta(&self, name: &'static str, value: String) {
        self.request(Request::SetMeta { name, value });
    }
}

/// The thread's state.
struct Worker {
    outbox: Outbox,
    dead_letters: Option<DeadLetters>,
    metrics: Arc<GatewayMetrics>,
    removals: BTreeSet<u64>,
    /// Messages dropped, as last logged.
    dropped: u64,
    drop_log: DropLog,
    /// The dead-letter file could not be written at the last try.
    letters_failed: bool,
}

impl Worker {
    fn run(mut self, requests: &mpsc::Receiver<Request>) {
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
            match requests.recv_timeout(wait) {
                Ok(Request::Close) | Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Ok(request) => self.answer(request),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
        self.remove();
    }

    fn answer(&mut self, request: Request) {
        match request {
            Request::Put(items, answer) => {
                let removals: Vec<u64> = self.removals.iter().copied().collect();
                let outcome = self.outbox.store_and_remove(&items, &removals, now_ms());
                let outcome = outcome.map_err(|error| self.failed(&error));
                if let Ok(put) = outcome {
                    self.removals.clear();
                    if !self.letters_failed {
                        self.recovered();
                    }
                    count(&self.metrics.repeated, put.known);
                }
                self.update_totals();
                let _ = answer.send((items, outcome));
            }
            Request::Read { priority, after, answer } => {
                let read = self.outbox.read(priority, after, READ_MESSAGES, READ_BYTES);
                let page = read.map_err(|error| self.failed(&error)).ok().map(|mut page| {
                    page.messages.retain(|message| !self.removals.contains(&message.seq));
                    page
                });
                let _ = answer.send(page);
            }
            Request::Remove(seqs) => self.removals.extend(seqs),
            Request::AddDeadLetters(letters, answer) => {
                // Nobody waits for those of the outbox.
                let _ = answer.send(self.add_dead_letters(letters));
            }
            Request::SetMeta { name, value } => {
                if let Err(error) = self.outbox.set_meta(name, &value) {
                    self.failed(&error);
                }
            }
            Request::Meta { name, answer } => {
                let text = self.outbox.meta(name, String::new);
                let _ = answer.send(text.unwrap_or_default());
            }
            Request::Close => {}
        }
    }

    /// Returns the letters if they cannot be written.
    fn add_dead_letters(&mut self, letters: Vec<DeadLetter>) -> Result<(), Vec<DeadLetter>> {
        if let Some(dead_letters) = &mut self.dead_letters {
            if let Err(error) = dead_letters.append(&letters) {
                let path = dead_letters.path().display().to_string();
                self.letters_failed = true;
                self.report(format!(
                    "dead_letter_file {path}: {error}; its messages are kept where they are and tried again: \
                     make room, or correct [upstream.outbox]"
                ));
                return Err(letters);
            }
            count(&self.metrics.dead_letters, letters.len());
            if std::mem::take(&mut self.letters_failed) {
                self.recovered();
            }
        }
        for letter in letters {
            self.log_dropped(&letter);
            let DeadLetter { message, way, .. } = letter;
            match way {
                Direction::Up => {
                    count(&self.metrics.refused, 1);
                    self.removals.insert(message.seq);
                }
                Direction::Refused => count(&self.metrics.refused, 1),
                Direction::Down(taken) => {
                    count(&self.metrics.refused_here, 1);
                    taken.send(()).ok();
                }
            }
        }
        Ok(())
    }

    fn log_dropped(&mut self, DeadLetter { message, reason, way, text }: &DeadLetter) {
        if self.drop_log.names(Instant::now()) {
            tracing::error!(
                topic = drop_log::shortened(&message.topic),
                way = way.name(),
                reason,
                id = drop_log::shortened(&message.id),
                bytes = message.payload.len(),
                "{text}"
            );
        }
    }

    fn remove(&mut self) {
        if self.removals.is_empty() {
            return;
        }
        let removals: Vec<u64> = self.removals.iter().copied().collect();
        match self.outbox.remove(&removals) {
            Ok(()) => self.removals.clear(),
            // Kept for the next try; this process does not send them again meanwhile.
            Err(error) => self.failed(&error),
        }
        self.update_totals();
    }

    fn tidy(&mut self) {
        if let Some(more) = self.drop_log.rest(Instant::now()) {
            tracing::error!(
                "dropped: {more} more messages within a minute that can never be accepted; metrics count \
                 them, and dead_letter_file of [upstream.outbox] keeps them"
            );
        }
        if let Err(error) = self.outbox.tidy(now_ms()) {
            self.failed(&error);
        }
        self.update_totals();
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

    fn update_totals(&self) {
        *self.metrics.totals.lock() = self.outbox.totals();
    }

    fn failed(&self, error: &Error) {
        self.report(error.to_string());
    }

    fn report(&self, text: String) {
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
        let (request, requests) = mpsc::channel();
        let page = Page { messages: Vec::new(), to: 7, more: true };
        let answers = [None, Some(page.clone())];
        let thread = std::thread::spawn(move || {
            for page in answers {
                let Ok(Request::Read { answer, .. }) = requests.recv() else { return };
                answer.send(page).unwrap();
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let handle = OutboxHandle(request);
        let read =
            async { tokio::time::timeout(10 * READ_AGAIN, handle.read(Priority::Normal, 3)).await };
        assert_eq!(runtime.block_on(read).unwrap(), page);
        thread.join().unwrap();
    }
}
