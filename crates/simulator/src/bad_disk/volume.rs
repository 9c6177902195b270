//! The simulator's storage over the real store: `SqliteStorage`, its thread and SQLite, on a [`Disk`].
//!
//! All random decisions come from a seed, and the writer's thread never runs in parallel with the simulation: after
//! waking it, the simulation waits until it sleeps again, is stalled by the disk, or has failed twice (the first
//! attempt may have begun before). So every run with the same seed is equal.
//!
//! After each crash what the store gives back must be what the operations of a whole number of batches
//! mean, of all that were reported durable at the least, as `crate::Tables` has it.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use fastrand::Rng;
use fulmar_broker::Timestamp;
use fulmar_broker::storage::{Op, Restored, Seq, Storage};
use fulmar_mirror::{Clocks, Reading};
use fulmar_store::{Error, Options, SqliteStorage};
use parking_lot::Mutex;

use super::disk::{Disk, Survival, Trouble};
use super::folder::Folder;
use crate::clock::{BEGIN, Moved};
use crate::tables::Tables;
use crate::volume::Volume;

/// A wait longer than this is a hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// The store's file.
const DATABASE: &str = "broker.db";

struct Running {
    store: SqliteStorage,
    events: Receiver<()>,
}

impl Running {
    fn open(folder: &Path, disk: &Disk, options: &Options) -> Result<(Running, Restored), Error> {
        let (sender, events) = channel();
        disk.notify(sender.clone());
        let wake = move || {
            // Nobody listens any more once the volume is gone.
            let _ = sender.send(());
        };
        let (store, restored) =
            SqliteStorage::open(&folder.join(DATABASE), options, Box::new(wake))?;
        Ok((Running { store, events }, restored))
    }
}

/// Batches that the store was given as one, and has not been seen to commit.
struct Handed {
    seq: Seq,
    batches: usize,
    ops: Vec<Op>,
}

struct State {
    rng: Rng,
    disk: Arc<Disk>,
    running: Option<Running>,
    waiting: VecDeque<Vec<Op>>,
    handed: VecDeque<Handed>,
    committed: u64,
    /// The last batch that somebody may wait for.
    awaited: u64,
    failing: bool,
    failure: Option<String>,
    /// State that is durable.
    tables: Tables,
}

/// The real store as storage of a simulated world.
pub struct StoreVolume {
    folder: Arc<Folder>,
    options: Options,
    clocks: Arc<Mutex<Reading>>,
    state: Mutex<State>,
}

impl StoreVolume {
    /// A disk with an empty database, for [`StoreVolume::start`].
    ///
    /// # Panics
    /// If the store cannot be opened.
    pub fn blank() -> Disk {
        let disk = Arc::new(Disk::default());
        let folder = Folder::new(&disk);
        drop(Running::open(folder.path(), &disk, &Options::default()));
        disk.image(Survival::Nothing, &mut Rng::with_seed(0))
    }

    /// An empty store, mostly on a copy of `blank`. `seed` decides on its disk's faults.
    ///
    /// # Panics
    /// If the store cannot be opened.
    pub fn start(seed: u64, blank: Option<&Disk>) -> Arc<dyn Volume> {
        let mut rng = Rng::with_seed(seed ^ 0xD15C);
        // A new database takes as long to make as a short schedule to play.
        let disk = match blank.filter(|_| rng.u8(..8) > 0) {
            Some(blank) => blank.image(Survival::Nothing, &mut rng),
            None => Disk::default(),
        };
        let folder = Arc::new(Folder::new(&Arc::default()));
        let clocks = Arc::new(Mutex::new(BEGIN));
        let read = Arc::clone(&clocks);
        let options = Options {
            clocks: Some(Clocks::new(move || *read.lock())),
            // Seldom and often, and never for the clock's sake: see `Writer::work`.
            log_pages: [8, 40, 200, 900][rng.usize(..4)],
            cache_bytes: [64 << 10, 2 << 20][rng.usize(..2)],
            retry_first: Duration::from_micros(200),
            retry_last: Duration::from_micros(200),
            ..Options::default()
        };
        let states = &[Tables::default()];
        let (volume, _) = StoreVolume::open(rng, folder, options, clocks, disk, states, (0, 0, 0));
        Arc::new(volume)
    }

    /// Opens what a crash has left on `disk`, perhaps with further ones while it is opened. It must hold
    /// one of `states`, with moments moved as is allowed.
    fn open(
        mut rng: Rng,
        folder: Arc<Folder>,
        options: Options,
        clocks: Arc<Mutex<Reading>>,
        disk: Disk,
        states: &[Tables],
        (moved, less, more): Moved,
    ) -> (StoreVolume, Restored) {
        let opened = folder.start(disk, &mut rng, |path, disk| Running::open(path, disk, &options));
        let ((running, restored), disk) = opened.unwrap_or_else(|error| {
            panic!("the store refuses what a power failure has left: {error}")
        });
        let tables = Tables::from(&restored);
        let is_it = |state: &&Tables| {
            let by = moved_by(state, &tables).unwrap_or(moved);
            (moved - less..=moved + more).contains(&by)
                && same(&Tables::clone(state).moved(by), &tables)
        };
        if !states.iter().any(|state| is_it(&state)) {
            let (most, least) = (states.len() - 1, &states[0]);
            panic!(
                "after a crash the store holds not the state after some of {most} groups: {tables:?}, \
                 where durable is {least:?}"
            );
        }
        let state = State {
            rng,
            disk,
            running: Some(running),
            waiting: VecDeque::new(),
            handed: VecDeque::new(),
            committed: 0,
            awaited: 0,
            failing: false,
            failure: None,
            tables,
        };
        (StoreVolume { folder, options, clocks, state: Mutex::new(state) }, restored)
    }

    /// For a look at the files of now: nothing is moved.
    fn without_clocks(&self) -> Options {
        Options { clocks: None, ..self.options.clone() }
    }
}

/// By how many milliseconds moments have moved; `None` if there are none in both. One that would be before the epoch is 0.
fn moved_by(before: &Tables, after: &Tables) -> Option<i64> {
    let moments = |tables: &Tables| {
        let sessions = tables.sessions.values();
        let sessions = sessions.flat_map(|session| [session.expires_at, session.will_at]);
        let queued = tables.queued.values().map(|queued| queued.message.expires_at());
        let retained = tables.retained.values().map(|message| message.expires_at());
        sessions.chain(queued).chain(retained).collect::<Vec<_>>()
    };
    let both = moments(before).into_iter().zip(moments(after));
    let both = both.filter_map(|(before, after)| Some((before?, after?)));
    let moved = both.filter(|(before, after)| *before != Timestamp::NEVER && after.0 > 0);
    moved.map(|(before, after)| after.0.cast_signed() - before.0.cast_signed()).min()
}

/// Whether two tables hold the same, and the numbers of `found` are at least those that `wanted` uses.
pub fn same(wanted: &Tables, found: &Tables) -> bool {
    let text = |tables: &Tables| {
        let Tables { sessions, flows, subscriptions, queued, inbound, retained, .. } = tables;
        format!("{sessions:?}{flows:?}{subscriptions:?}{queued:?}{inbound:?}{retained:?}")
    };
    let queued = wanted.queued.values().map(|queued| queued.message.id().0);
    let used = queued.chain(wanted.retained.values().map(|message| message.id().0));
    text(wanted) == text(found)
        && used.max().unwrap_or(0) <= found.last_message_id
        && wanted.last_session_key <= found.last_session_key
}

impl State {
    /// Waits until the store has written everything, stands still or keeps failing.
    fn rest(&self) {
        let Some(Running { store, events }) = &self.running else { return };
        let last = self.handed.back().map_or(Seq(0), |handed| handed.seq);
        let failed_before = store.stats().failed_commits;
        let until = Instant::now() + PATIENCE;
        while !self.disk.is_stalled() {
            if store.committed() >= last && store.is_idle() {
                return;
            }
            if self.failing && store.stats().failed_commits >= failed_before + 2 {
                return;
            }
            assert!(
                Instant::now() < until,
                "the store neither commits nor says why: {:?}",
                store.failure()
            );
            if store.committed() >= last && !self.failing {
                std::thread::yield_now();
            } else {
                // A failure is reported once, so the next attempt has to be polled for.
                let _ = events.recv_timeout(Duration::from_micros(500));
            }
        }
    }

    /// Learns what the store has committed.
    fn observe_commits(&mut self) -> usize {
        let Some(Running { store, events }) = &self.running else { return 0 };
        while events.try_recv().is_ok() {}
        let committed = store.committed();
        self.failure = store.failure();
        let mut batches = 0;
        while let Some(handed) = self.handed.pop_front_if(|handed| handed.seq <= committed) {
            handed.ops.iter().for_each(|op| self.tables.apply(op));
            batches += handed.batches;
        }
        self.committed += batches as u64;
        batches
    }

    /// States that a crash may leave: what is durable, and each group further.
    fn states(&self) -> Vec<Tables> {
        let mut states = vec![self.tables.clone()];
        for handed in &self.handed {
            let mut next = states[states.len() - 1].clone();
            handed.ops.iter().for_each(|op| next.apply(op));
            states.push(next);
        }
        states
    }

    /// A snapshot of the file system, taken while the store writes, holds a whole number of groups, of all that
    /// were reported durable at the least.
    fn check_backup(&mut self, options: &Options) {
        let survival = Survival::draw(&mut self.rng);
        let disk = Arc::new(self.disk.image(survival, &mut self.rng));
        let folder = Folder::new(&disk);
        let (running, restored) = Running::open(folder.path(), &disk, options)
            .unwrap_or_else(|error| panic!("the store refuses a backup: {error}"));
        drop(running);
        let (tables, states) = (Tables::from(&restored), self.states());
        assert!(
            states.iter().any(|state| same(state, &tables)),
            "a backup holds {tables:?}, where durable is {:?}",
            states[0]
        );
    }

    /// Ends the store, in order or as a crash does, and returns the disk as the next one finds it.
    fn end(&mut self) -> Disk {
        // The writer attempts nothing any more if everything was committed since the last look.
        self.observe_commits();
        if self.failing && !self.handed.is_empty() {
            // The writer is to be found at the beginning of an attempt, wherever it is now.
            self.disk.stall_after(Some(0));
            let until = Instant::now() + PATIENCE;
            while !self.disk.is_stalled() && Instant::now() < until {
                std::thread::yield_now();
            }
        }
        let running = self.running.take();
        let at_rest = !self.failing && !self.disk.is_stalled();
        if at_rest && self.rng.u8(..6) == 0 {
            self.disk.stall_after(None);
            let within = self.rng.bool().then(|| self.rng.u64(..20));
            self.disk.fail_power_after(within);
            let ended = running.as_ref().map(|running| running.store.close());
            if matches!(ended, Some(Ok(()))) {
                // What was closed in order holds all.
                while let Some(handed) = self.handed.pop_front() {
                    handed.ops.iter().for_each(|op| self.tables.apply(op));
                }
            }
        }
        let survival = Survival::draw(&mut self.rng);
        let disk = self.disk.power_failure(survival, &mut self.rng);
        drop(running);
        disk
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // A writer that the disk has stalled would never end.
        self.disk.cut_power();
    }
}

impl Storage for StoreVolume {
    fn submit(&self, batch: &mut Vec<Op>) -> Seq {
        let state = &mut *self.state.lock();
        if !batch.is_empty() {
            state.waiting.push_back(std::mem::take(batch));
            let handed: usize = state.handed.iter().map(|handed| handed.batches).sum();
            state.awaited = state.committed + (handed + state.waiting.len()) as u64;
        }
        Seq(state.awaited)
    }

    fn submit_removals(&self, batch: &mut Vec<Op>) {
        self.state.lock().waiting.push_back(std::mem::take(batch));
    }

    fn committed(&self) -> Seq {
        Seq(self.state.lock().committed)
    }

    fn backlog(&self) -> usize {
        let state = self.state.lock();
        let handed: usize = state.handed.iter().map(|handed| handed.ops.len()).sum();
        handed + state.waiting.iter().map(Vec::len).sum::<usize>()
    }

    fn failure(&self) -> Option<String> {
        self.state.lock().failure.clone()
    }

    fn clock_was_set(&self) {
        let state = self.state.lock();
        state.running.iter().for_each(|running| running.store.clock_was_set());
        state.rest();
    }
}

impl Volume for StoreVolume {
    /// The store gets them as one batch: for it that is the same as several that came while it was busy.
    fn commit(&self, most: usize) -> usize {
        let state = &mut *self.state.lock();
        let batches = most.min(state.waiting.len());
        let Some(running) = &state.running else { return 0 };
        if batches > 0 {
            let ops: Vec<Op> = state.waiting.drain(..batches).flatten().collect();
            // Once it stands still the store takes nothing more until it goes on.
            if !state.disk.is_stalled() && state.rng.u8(..8) == 0 {
                state.disk.stall_after(Some(state.rng.u64(..12)));
            }
            let seq = running.store.submit(&mut ops.clone());
            state.handed.push_back(Handed { seq, batches, ops });
        }
        if most == usize::MAX || (state.disk.is_stalled() && state.rng.bool()) {
            state.disk.stall_after(None);
        }
        state.rest();
        let batches = state.observe_commits();
        if state.disk.is_stalled() && state.rng.u8(..4) == 0 {
            state.check_backup(&self.without_clocks());
        }
        batches
    }

    fn set_failing(&self, failing: bool) {
        let state = &mut *self.state.lock();
        let kinds = [Trouble::Full, Trouble::Writes, Trouble::Syncs];
        let trouble = if failing { kinds[state.rng.usize(..3)] } else { Trouble::None };
        state.disk.set_trouble(trouble);
        state.failing = failing;
        // The writer tries again by itself.
        state.rest();
    }

    fn waiting(&self) -> usize {
        let state = self.state.lock();
        state.waiting.len() + state.handed.len()
    }

    /// Read from what is synced alone; compared with what should be there, row by row.
    fn durable(&self) -> Tables {
        let state = &mut *self.state.lock();
        let disk = Arc::new(state.disk.image(Survival::Nothing, &mut state.rng));
        let folder = Folder::new(&disk);
        let (running, restored) = Running::open(folder.path(), &disk, &self.without_clocks())
            .unwrap_or_else(|error| panic!("the store refuses what is synced: {error}"));
        let tables = Tables::from(&restored);
        assert!(
            same(&state.tables, &tables),
            "synced is {tables:?}, but committed {:?}",
            state.tables
        );
        running.store.close().unwrap_or_else(|error| panic!("cannot close: {error}"));
        drop(running);
        if state.rng.u8(..4) == 0 {
            check_rows(&folder, &tables);
        }
        tables
    }

    fn crash(&self, clocks: Reading, moved: Moved) -> (Arc<dyn Volume>, Restored) {
        let state = &mut *self.state.lock();
        let disk = state.end();
        *self.clocks.lock() = clocks;
        let (folder, options) = (Arc::clone(&self.folder), self.options.clone());
        let (rng, states) = (state.rng.fork(), state.states());
        let of_machine = Arc::clone(&self.clocks);
        let (volume, restored) =
            StoreVolume::open(rng, folder, options, of_machine, disk, &states, moved);
        (Arc::new(volume), restored)
    }

    fn set_clocks(&self, clocks: Reading) {
        *self.clocks.lock() = clocks;
    }
}

/// A closed database is sound and has no message that nobody refers to.
fn check_rows(folder: &Folder, tables: &Tables) {
    let connection = folder.open_sound(DATABASE).unwrap_or_else(|error| panic!("{error}"));
    let messages = connection.query_row("SELECT count(*) FROM message", [], |row| row.get(0));
    let messages: i64 = messages.unwrap_or_else(|error| panic!("cannot read rows: {error}"));
    let queued = tables.queued.values().map(|queued| queued.message.id().0);
    let mut used: Vec<u64> =
        queued.chain(tables.retained.values().map(|message| message.id().0)).collect();
    used.sort_unstable();
    used.dedup();
    assert_eq!(messages, used.len() as i64, "messages that nobody refers to are left");
}
