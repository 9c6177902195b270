//! The writer thread: takes what waits, runs it in one transaction, commits, then answers.
//!
//! Each change runs in a savepoint, so that one that fails takes nothing with it; if the commit itself
//! fails, all are told so and none is stored.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, TransactionBehavior};

use super::Db;
use crate::problem::Problem;

/// Changes that wait; more are told to come again.
const MAX_WAITING: usize = 1024;
/// Changes of one transaction.
const MAX_GROUP: usize = 256;
/// How often it is looked whether another process, such as `fulmar user add`, has changed something.
const LOOK_EVERY: Duration = Duration::from_millis(500);

type Foreign = Box<dyn Fn(&Db) + Send>;
type Tell = Box<dyn FnOnce(Option<Problem>) + Send>;
/// Makes the change and says whether it is to stay, and how to tell of it.
type Change = Box<dyn FnOnce(&Db) -> (bool, Tell) + Send>;

/// A change and what is done with its outcome.
pub(super) struct Job(Change);

impl Job {
    /// `answer` is called after the commit, or after what kept it from happening.
    pub(super) fn new<T, F, A>(change: F, answer: A) -> Job
    where
        T: Send + 'static,
        F: FnOnce(&Db) -> Result<T, Problem> + Send + 'static,
        A: FnOnce(Result<T, Problem>) + Send + 'static,
    {
        Job(Box::new(move |db| {
            let outcome = change(db);
            let good = outcome.is_ok();
            let tell = move |failure: Option<Problem>| answer(failure.map_or(outcome, Err));
            (good, Box::new(tell))
        }))
    }
}

pub(super) struct Writer {
    jobs: Mutex<Option<SyncSender<Work>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Work {
    Change(Job),
    OnForeignChange(Foreign),
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Writer")
    }
}

impl Writer {
    pub(super) fn start(connection: Connection) -> Writer {
        let (jobs, waiting) = sync_channel(MAX_WAITING);
        let thread = std::thread::Builder::new().name("fulmar-platform".into());
        let thread = thread.spawn(move || run(connection, &waiting));
        if let Err(error) = &thread {
            tracing::error!("platform storage: {error}");
        }
        Writer { jobs: Mutex::new(Some(jobs)), thread: Mutex::new(thread.ok()) }
    }

    pub(super) fn hand(&self, job: Job) -> Result<(), Problem> {
        let jobs = self.jobs.lock();
        let Some(jobs) = jobs.as_ref() else {
            return Err(Problem::unavailable("the server is stopping"));
        };
        jobs.try_send(Work::Change(job)).map_err(|error| match error {
            TrySendError::Full(_) => Problem::unavailable("the server is busy; nothing was stored"),
            TrySendError::Disconnected(_) => Problem::unavailable("the server's storage failed"),
        })
    }

    pub(super) fn on_foreign_change(&self, changed: Foreign) {
        if let Some(jobs) = &*self.jobs.lock() {
            // Fails only when the thread has ended, and then nothing changes any more.
            drop(jobs.send(Work::OnForeignChange(changed)));
        }
    }

    pub(super) fn close(&self) {
        drop(self.jobs.lock().take());
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("platform storage: the writer failed");
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

fn run(mut connection: Connection, waiting: &Receiver<Work>) {
    let mut foreign: Option<Foreign> = None;
    let mut version = data_version(&connection);
    loop {
        let mut jobs = Vec::new();
        match waiting.recv_timeout(LOOK_EVERY) {
            Ok(Work::Change(job)) => jobs.push(job),
            Ok(Work::OnForeignChange(changed)) => foreign = Some(changed),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while jobs.len() < MAX_GROUP {
            match waiting.try_recv() {
                Ok(Work::Change(job)) => jobs.push(job),
                Ok(Work::OnForeignChange(changed)) => foreign = Some(changed),
                Err(_) => break,
            }
        }
        if !jobs.is_empty() {
            commit(&mut connection, jobs);
        }
        let now = data_version(&connection);
        if now != version {
            version = now;
            if let Some(changed) = &foreign {
                changed(&connection);
            }
        }
    }
}

/// A number that changes when another connection has committed.
fn data_version(connection: &Connection) -> i64 {
    connection.pragma_query_value(None, "data_version", |row| row.get(0)).unwrap_or_default()
}

fn commit(connection: &mut Connection, jobs: Vec<Job>) {
    let mut told: Vec<Tell> = Vec::with_capacity(jobs.len());
    let failure = group(connection, jobs, &mut told).err().map(Problem::from);
    for tell in told {
        tell(failure.clone());
    }
}

fn group(
    connection: &mut Connection,
    jobs: Vec<Job>,
    told: &mut Vec<Tell>,
) -> rusqlite::Result<()> {
    let mut all = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for Job(change) in jobs {
        let one = all.savepoint()?;
        let (good, tell) = change(&one);
        told.push(tell);
        if good {
            one.commit()?;
        } else {
            // Dropping a savepoint takes its changes back.
            drop(one);
        }
    }
    all.commit()
}
