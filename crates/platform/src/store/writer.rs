//! The writer thread: takes what waits, runs it in one transaction, commits, then answers.
//!
//! Each change runs in a savepoint, so that one that fails does not affect others; if the commit itself fails, all
//! callers get the error and nothing is stored.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use fulmar_mirror::Mirror;
use parking_lot::Mutex;

use super::sql::{self, Begin};
use super::{Db, DbTask};
use crate::problem::{Problem, Result, internal};

/// The most waiting changes; beyond, callers get 503.
const MAX_WAITING: usize = 1024;
/// Changes of one transaction.
const MAX_GROUP: usize = 256;
/// The same where they are shared: each may be a photo, and all of them are one change of the cluster's log.
const MAX_SHARED_GROUP: usize = 32;
/// Interval of checks whether another process, such as `fulmar user add`, has changed something.
const LOOK_EVERY: Duration = Duration::from_millis(500);

type Foreign = Box<dyn Fn(&Db) + Send>;
type Tell = Box<dyn FnOnce(Option<Problem>) + Send>;
/// Makes the change if possible, and returns whether to keep it, and how to report the result.
type Change = Box<dyn FnOnce(Result<&Db>) -> (bool, Tell) + Send>;

/// A change and what is done with its outcome.
pub(super) struct Job(Change);

impl Job {
    /// `answer` is called after the commit, or after what kept it from happening.
    pub(super) fn new<T: Send + 'static>(
        change: impl DbTask<T>,
        answer: impl FnOnce(Result<T>) + Send + 'static,
    ) -> Job {
        Job(Box::new(move |db| {
            let outcome = db.and_then(change);
            let good = outcome.is_ok();
            let tell = move |failure: Option<Problem>| answer(failure.map_or(outcome, Err));
            (good, Box::new(tell))
        }))
    }
}

pub(super) struct Writer {
    jobs: Mutex<Option<SyncSender<WriterTask>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum WriterTask {
    Change(Job),
    OnForeignChange(Foreign),
}

fulmar_text::opaque_debug!(Writer);

impl Writer {
    /// `mirror` shares what is changed with other nodes of a cluster.
    pub(super) fn start(db: Db, mirror: Option<Mirror>) -> Writer {
        let (jobs, waiting) = sync_channel(MAX_WAITING);
        let thread = std::thread::Builder::new().name("fulmar-platform".into());
        let thread = thread.spawn(move || run(&db, mirror.as_ref(), &waiting));
        if let Err(error) = &thread {
            tracing::error!("platform storage: {error}");
        }
        Writer { jobs: Mutex::new(Some(jobs)), thread: Mutex::new(thread.ok()) }
    }

    pub(super) fn hand(&self, job: Job) -> Result<()> {
        let jobs = self.jobs.lock();
        let Some(jobs) = jobs.as_ref() else {
            return Err(Problem::unavailable("the server is stopping"));
        };
        jobs.try_send(WriterTask::Change(job)).map_err(|error| match error {
            TrySendError::Full(_) => Problem::unavailable("the server is busy; nothing was stored"),
            TrySendError::Disconnected(_) => Problem::unavailable("the server's storage failed"),
        })
    }

    pub(super) fn on_foreign_change(&self, changed: Foreign) {
        if let Some(jobs) = &*self.jobs.lock() {
            // Fails only when the thread has ended, and then nothing changes any more.
            drop(jobs.send(WriterTask::OnForeignChange(changed)));
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

fn run(db: &Db, mirror: Option<&Mirror>, waiting: &Receiver<WriterTask>) {
    let max_group = if mirror.is_some() { MAX_SHARED_GROUP } else { MAX_GROUP };
    let mut foreign: Option<Foreign> = None;
    let mut version = db.foreign_changes().ok();
    loop {
        let mut jobs = Vec::new();
        match waiting.recv_timeout(LOOK_EVERY) {
            Ok(WriterTask::Change(job)) => jobs.push(job),
            Ok(WriterTask::OnForeignChange(changed)) => foreign = Some(changed),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while jobs.len() < max_group {
            match waiting.try_recv() {
                Ok(WriterTask::Change(job)) => jobs.push(job),
                Ok(WriterTask::OnForeignChange(changed)) => foreign = Some(changed),
                Err(_) => break,
            }
        }
        if !jobs.is_empty() && !commit(db, mirror, jobs) {
            // What is kept in memory may have been loaded from what was not stored after all.
            version = None;
        }
        if let Ok(now) = db.foreign_changes()
            && version != Some(now)
        {
            version = Some(now);
            if let Some(changed) = &foreign {
                changed(db);
            }
        }
    }
}

/// Whether it was stored.
fn commit(db: &Db, mirror: Option<&Mirror>, jobs: Vec<Job>) -> bool {
    let mut told: Vec<(Tell, Option<Problem>)> = Vec::with_capacity(jobs.len());
    let mut jobs = jobs.into_iter();
    let failure = group(db, mirror, &mut jobs, &mut told).err().map(Problem::from);
    if failure.is_some()
        && let Err(error) = db.roll_back()
    {
        tracing::warn!("platform storage: {error}");
    }
    for (tell, spoilt) in told {
        tell(failure.clone().or(spoilt));
    }
    let Some(failure) = failure else { return true };
    for Job(change) in jobs {
        let (_, tell) = change(Err(failure.clone()));
        tell(None);
    }
    false
}

fn group(
    db: &Db,
    mirror: Option<&Mirror>,
    jobs: &mut std::vec::IntoIter<Job>,
    told: &mut Vec<(Tell, Option<Problem>)>,
) -> sql::Result<()> {
    db.begin(Begin::Write)?;
    // One that is alone needs nothing to go back to but the beginning.
    let alone = jobs.len() == 1;
    for Job(change) in jobs {
        if !alone {
            db.mark()?;
        }
        let (good, tell) = change(Ok(db));
        let spoilt = good && db.is_spoilt();
        told.push((tell, spoilt.then(|| internal(&"storage: a failure was ignored"))));
        match (good && !spoilt, alone) {
            (true, true) => {}
            (true, false) => db.release_mark()?,
            (false, true) => return db.roll_back(),
            (false, false) => db.go_back()?,
        }
    }
    db.commit(mirror)
}
