//! A thread with the store, and everybody else's view of the state.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fulmar_mirror::{NotShared, Shared};
use parking_lot::RwLock;

use crate::affected::Affected;
use crate::command::{Command, Refused};
use crate::passwords::PasswordHasher;
use crate::state::{Change, Principal, State};
use crate::store::{Store, StoreError};

/// Interval at which the thread looks for changes by another process.
const POLL: Duration = Duration::from_millis(500);

/// Jobs that wait; further ones are refused.
const MAX_WAITING: usize = 256;

/// Job that the thread does with the store.
pub type Job = Box<dyn FnOnce(&mut Desk) + Send>;

/// Told of every change: the rows, whom it affects, and the new state. Called on the thread, before the command is
/// reported as applied.
pub type Watch = Box<dyn Fn(&Change, &Affected, &State) + Send + Sync>;

/// Told of every change, as [`Watch`], by a part of the server that begins later.
pub type Subscriber = Box<dyn Fn(&Change, &State) + Send + Sync>;

/// Why commands have not been applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// One of them is refused.
    #[error("{0}")]
    Refused(#[from] Refused),
    /// Too many others wait.
    #[error("too many changes of identities wait; try again later")]
    Busy,
    /// This node has not shared the change with the others.
    #[error("{0}")]
    NotShared(#[from] NotShared),
    /// The disk.
    #[error("{0}")]
    Store(StoreError),
}

impl From<StoreError> for ApplyError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Refused(refused) => ApplyError::Refused(refused),
            StoreError::NotShared(error) => ApplyError::NotShared(error),
            other => ApplyError::Store(other),
        }
    }
}

/// The identities of a running broker.
pub struct Identities {
    shared: Arc<RwLock<State>>,
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
    hasher: Arc<PasswordHasher>,
    subscriber: Arc<OnceLock<Subscriber>>,
}

fulmar_text::opaque_debug!(Identities);

/// The thread's side.
pub struct Desk {
    path: PathBuf,
    /// `None` until it is used for the first time.
    store: Option<Store>,
    shared: Arc<RwLock<State>>,
    hasher: Arc<PasswordHasher>,
    watch: Watch,
    subscriber: Arc<OnceLock<Subscriber>>,
}

fulmar_text::opaque_debug!(Desk { path });

impl Identities {
    /// Opens the store at `path`, if there is one: otherwise the first command creates it. `watch` is called for every
    /// change from now on; what the store has already is [`Identities::read`].
    ///
    /// # Errors
    /// There is a store, and it cannot be opened; or there is no thread to be had.
    pub fn open(path: &Path, watch: Watch) -> Result<Identities, StoreError> {
        let store = path.exists().then(|| Store::open(path)).transpose()?;
        Identities::with(path, store, watch)
    }

    /// Those of a node that has taken over: see [`Store::open_shared`].
    ///
    /// # Errors
    /// As [`Identities::open`].
    pub fn open_shared(
        path: &Path,
        shared: Shared,
        watch: Watch,
    ) -> Result<Identities, StoreError> {
        Identities::with(path, Some(Store::open_shared(path, shared)?), watch)
    }

    fn with(path: &Path, store: Option<Store>, watch: Watch) -> Result<Identities, StoreError> {
        let failed = |source| StoreError::File { path: path.into(), source };
        let shared = Arc::<RwLock<State>>::default();
        let hasher = Arc::<PasswordHasher>::default();
        if let Some(store) = &store {
            *shared.write() = store.state().clone();
        }
        let subscriber = Arc::<OnceLock<Subscriber>>::default();
        let desk = Desk {
            path: path.into(),
            store,
            shared: Arc::clone(&shared),
            hasher: Arc::clone(&hasher),
            watch,
            subscriber: Arc::clone(&subscriber),
        };
        let (jobs, waiting) = sync_channel(MAX_WAITING);
        let thread = std::thread::Builder::new().name("fulmar-identity".into());
        let thread = thread.spawn(move || desk.serve(&waiting)).map_err(failed)?;
        Ok(Identities { shared, jobs: Some(jobs), thread: Some(thread), hasher, subscriber })
    }

    /// Calls `subscriber` on the thread for every change from now on; the first call counts.
    pub fn subscribe(&self, subscriber: Subscriber) {
        drop(self.subscriber.set(subscriber));
    }

    /// Hashes new passwords.
    pub fn hasher(&self) -> &Arc<PasswordHasher> {
        &self.hasher
    }

    /// Looks at the state. Keep it short: changes wait.
    pub fn read<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&self.shared.read())
    }

    /// Has the thread do something with the store, after what it has to do already.
    ///
    /// # Errors
    /// [`ApplyError::Busy`].
    pub fn submit(&self, job: Job) -> Result<(), ApplyError> {
        let Some(jobs) = &self.jobs else { return Err(ApplyError::Busy) };
        jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) | TrySendError::Disconnected(_) => ApplyError::Busy,
        })
    }

    /// Applies commands, all or none, and returns when they are durable and in effect.
    ///
    /// # Errors
    /// None of them is applied.
    pub fn apply(&self, commands: Vec<Command>) -> Result<(), ApplyError> {
        let (done, reply) = sync_channel(1);
        self.submit(Box::new(move |desk| {
            // Nobody waits any more if this fails.
            drop(done.send(desk.apply(commands)));
        }))?;
        reply.recv().unwrap_or(Err(ApplyError::Busy))
    }

    /// The principal of an API token.
    pub fn verify_token(&self, token: &str) -> Option<Principal> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.shared.read().verify_token(token, u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
    }
}

impl Drop for Identities {
    /// Waits for what was submitted.
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the identities' thread panicked");
        }
    }
}

impl Desk {
    fn serve(mut self, waiting: &Receiver<Job>) {
        loop {
            match waiting.recv_timeout(POLL) {
                Ok(job) => job(&mut self),
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(error) = self.poll() {
                        tracing::warn!("cannot read what another process has changed: {error}");
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    pub(crate) fn hasher(&self) -> &PasswordHasher {
        &self.hasher
    }

    /// One with a store in memory and nobody else who looks at it, for tests.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn in_memory() -> Result<Desk, StoreError> {
        Ok(Desk {
            path: PathBuf::new(),
            store: Some(Store::in_memory()?),
            shared: Arc::default(),
            hasher: Arc::default(),
            watch: Box::new(|_, _, _| ()),
            subscriber: Arc::default(),
        })
    }

    /// The state.
    pub fn state(&self) -> State {
        self.shared.read().clone()
    }

    /// Looks at the state.
    pub fn read<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&self.shared.read())
    }

    /// Applies commands, all or none. Afterwards, they are durable and in effect.
    ///
    /// # Errors
    /// None of them is applied.
    pub fn apply(&mut self, commands: Vec<Command>) -> Result<(), ApplyError> {
        let store = match &mut self.store {
            Some(store) => store,
            none => none.insert(Store::open(&self.path)?),
        };
        let changes = store.apply(commands)?;
        changes.into_iter().for_each(|change| self.publish(change));
        Ok(())
    }

    /// Looks for changes by another process.
    fn poll(&mut self) -> Result<(), StoreError> {
        let change = match &mut self.store {
            Some(store) => store.refresh()?,
            None if self.path.exists() => {
                let store = Store::open(&self.path)?;
                let rows = State::default().difference(store.state());
                self.store = Some(store);
                Some(State::default().put_all(rows))
            }
            None => None,
        };
        if let Some(change) = change {
            tracing::info!(rows = change.rows.len(), "identities changed by another process");
            self.publish(change);
        }
        Ok(())
    }

    fn publish(&self, change: Change) {
        let mut state = self.shared.write();
        state.put_all(change.rows.clone());
        drop(state);
        // Only this thread writes.
        let state = self.shared.read();
        let affected = Affected::by(&change, &state);
        (self.watch)(&change, &affected, &state);
        if let Some(subscriber) = self.subscriber.get() {
            subscriber(&change, &state);
        }
    }
}
