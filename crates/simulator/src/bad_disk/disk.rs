//! A disk in memory: files as programs see them, and the parts of them that have reached the medium.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;

use fastrand::Rng;
use parking_lot::{Condvar, Mutex};

/// The unit in which data survives a power failure, in bytes.
const SECTOR: usize = 512;

/// A fault of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    #[default]
    None,
    /// Files cannot grow.
    Full,
    /// Nothing can be written.
    Writes,
    /// Writes succeed and syncs fail. Data that was to be synced never reaches the medium unless it is written again,
    /// because Linux treats pages whose writeback failed like that.
    Syncs,
}

/// Part of the unsynced data that survives a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// Nothing.
    Nothing,
    /// Everything, as after kill -9.
    Everything,
    /// Any sectors, in any order, drawn for each file separately.
    Any,
}

impl Survival {
    pub(crate) fn draw(rng: &mut Rng) -> Survival {
        [Survival::Nothing, Survival::Everything, Survival::Any, Survival::Any][rng.usize(..4)]
    }
}

/// Why an operation did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Full,
    Failed,
}

#[derive(Clone, Debug)]
enum Change {
    Write { at: usize, bytes: Vec<u8> },
    Length(usize),
}

#[derive(Clone, Debug, Default)]
struct File {
    seen: Vec<u8>,
    synced: Vec<u8>,
    pending: Vec<Change>,
    /// Whether the folder's entry is durable.
    entered: bool,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<String, File>,
    /// Removed files whose removal may not be durable.
    removed: BTreeMap<String, File>,
    trouble: Trouble,
    /// Changes until the disk stalls.
    until_stall: Option<u64>,
    stalled: bool,
    /// Changes until the power fails.
    until_dead: Option<u64>,
    dead: bool,
    changes: u64,
    told: Option<Sender<()>>,
}

/// A disk with files in one folder.
#[derive(Debug, Default)]
pub struct Disk {
    state: Mutex<State>,
    moved: Condvar,
}

impl File {
    fn synced(bytes: Vec<u8>) -> File {
        File { seen: bytes.clone(), synced: bytes, pending: Vec::new(), entered: true }
    }

    fn apply(bytes: &mut Vec<u8>, change: &Change) {
        match change {
            Change::Write { at, bytes: new } => {
                let end = at + new.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[*at..end].copy_from_slice(new);
            }
            Change::Length(length) => bytes.resize(*length, 0),
        }
    }

    fn change(&mut self, change: Change) {
        File::apply(&mut self.seen, &change);
        self.pending.push(change);
    }

    fn sync(&mut self) {
        for change in self.pending.drain(..) {
            File::apply(&mut self.synced, &change);
        }
        self.entered = true;
    }

    /// The state after a power failure.
    fn after_power_failure(&self, survival: Survival, rng: &mut Rng) -> Vec<u8> {
        let share = match survival {
            Survival::Nothing => 0,
            Survival::Everything => 100,
            Survival::Any => [0, 100, 50, 90, 10][rng.usize(..5)],
        };
        // A prefix of them, or any.
        let ends =
            (survival == Survival::Any && rng.bool()).then(|| rng.usize(..=self.pending.len()));
        let mut bytes = self.synced.clone();
        for (number, change) in self.pending.iter().enumerate() {
            let share = match ends {
                Some(end) if number < end => 100,
                Some(end) if number > end => 0,
                _ => share,
            };
            let Change::Write { at, bytes: new } = change else {
                if rng.u8(..100) < share {
                    File::apply(&mut bytes, change);
                }
                continue;
            };
            let mut from = 0;
            while from < new.len() {
                let to = (from + SECTOR - (at + from) % SECTOR).min(new.len());
                if rng.u8(..100) < share {
                    let part = Change::Write { at: at + from, bytes: new[from..to].to_vec() };
                    File::apply(&mut bytes, &part);
                }
                from = to;
            }
        }
        bytes
    }
}

impl Disk {
    /// Sends to `told` when the disk stalls or loses its power by itself.
    pub fn notify(&self, told: Sender<()>) {
        self.state.lock().told = Some(told);
    }

    /// Sets its fault from now on.
    pub fn set_trouble(&self, trouble: Trouble) {
        self.state.lock().trouble = trouble;
    }

    /// After this number of changes (writes, lengths, syncs, removals), the next one waits until this is called
    /// again; with `None`, none does.
    pub fn stall_after(&self, changes: Option<u64>) {
        let mut state = self.state.lock();
        (state.stalled, state.until_stall) = (false, changes);
        self.moved.notify_all();
    }

    /// Whether an operation is stalled.
    pub fn is_stalled(&self) -> bool {
        self.state.lock().stalled
    }

    /// The power fails after this number of changes; with `None`, it does not.
    pub fn fail_power_after(&self, changes: Option<u64>) {
        self.state.lock().until_dead = changes;
    }

    /// The power fails: every operation fails from now on.
    pub fn cut_power(&self) {
        self.state.lock().dead = true;
        self.moved.notify_all();
    }

    /// Whether the power has failed.
    pub fn is_dead(&self) -> bool {
        self.state.lock().dead
    }

    /// Changes so far.
    pub fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// The power fails, if it has not yet. Returns the disk in the state in which the next process finds it.
    pub fn power_failure(&self, survival: Survival, rng: &mut Rng) -> Disk {
        self.cut_power();
        self.image(survival, rng)
    }

    /// The disk as a process would find it if the power failed now; this disk continues.
    pub fn image(&self, survival: Survival, rng: &mut Rng) -> Disk {
        let state = self.state.lock();
        let mut files = BTreeMap::new();
        for (name, file) in &state.removed {
            let stays = survival == Survival::Any && rng.bool();
            if stays && !state.files.get(name).is_some_and(|new| new.entered) {
                files.insert(name.clone(), file.after_power_failure(survival, rng));
            }
        }
        for (name, file) in &state.files {
            if file.entered || survival == Survival::Everything {
                files.insert(name.clone(), file.after_power_failure(survival, rng));
            }
        }
        let files = files.into_iter().map(|(name, bytes)| (name, File::synced(bytes))).collect();
        Disk { state: Mutex::new(State { files, ..State::default() }), moved: Condvar::new() }
    }

    /// The bytes of a file, as programs see them.
    pub fn file(&self, name: &str) -> Option<Vec<u8>> {
        self.state.lock().files.get(name).map(|file| file.seen.clone())
    }

    /// Creates a file, synced, or removes it.
    pub fn set_file(&self, name: &str, bytes: Option<Vec<u8>>) {
        let files = &mut self.state.lock().files;
        match bytes {
            Some(bytes) => drop(files.insert(name.to_owned(), File::synced(bytes))),
            None => drop(files.remove(name)),
        }
    }

    /// Waits while the disk is stalled; counts a change. Fails if the power fails.
    fn enter(&self, mut act: impl FnMut(&mut State) -> Result<(), Refusal>) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        if state.until_stall == Some(0) && !state.dead {
            state.stalled = true;
            state.notify_listener();
            while state.stalled && !state.dead {
                self.moved.wait(&mut state);
            }
        }
        state.until_stall = state.until_stall.map(|left| left.saturating_sub(1));
        if state.until_dead == Some(0) && !state.dead {
            state.dead = true;
            state.notify_listener();
        }
        state.until_dead = state.until_dead.map(|left| left.saturating_sub(1));
        state.changes += 1;
        if state.dead { Err(Refusal::Failed) } else { act(&mut state) }
    }

    /// Opens a file; creates it if `create`. False if there is none.
    pub(crate) fn open(&self, name: &str, create: bool) -> bool {
        let mut state = self.state.lock();
        if state.dead {
            return false;
        }
        if create {
            state.files.entry(name.to_owned()).or_default();
        }
        state.files.contains_key(name)
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.state.lock().files.contains_key(name)
    }

    pub(crate) fn length(&self, name: &str) -> usize {
        self.state.lock().files.get(name).map_or(0, |file| file.seen.len())
    }

    /// Fills `into` up to the file's end; returns how far.
    pub(crate) fn read(&self, name: &str, at: usize, into: &mut [u8]) -> Result<usize, Refusal> {
        let state = self.state.lock();
        if state.dead {
            return Err(Refusal::Failed);
        }
        let seen = state.files.get(name).map_or(&[][..], |file| &file.seen);
        let there = seen.get(at..).unwrap_or_default();
        let length = there.len().min(into.len());
        into[..length].copy_from_slice(&there[..length]);
        Ok(length)
    }

    pub(crate) fn write(&self, name: &str, at: usize, bytes: &[u8]) -> Result<(), Refusal> {
        self.enter(|state| {
            let file = state.files.get_mut(name).ok_or(Refusal::Failed)?;
            match state.trouble {
                Trouble::Writes => return Err(Refusal::Failed),
                Trouble::Full if at + bytes.len() > file.seen.len() => return Err(Refusal::Full),
                _ => {}
            }
            file.change(Change::Write { at, bytes: bytes.to_vec() });
            Ok(())
        })
    }

    pub(crate) fn set_length(&self, name: &str, length: usize) -> Result<(), Refusal> {
        self.enter(|state| {
            if state.trouble == Trouble::Writes {
                return Err(Refusal::Failed);
            }
            let file = state.files.get_mut(name).ok_or(Refusal::Failed)?;
            file.change(Change::Length(length));
            Ok(())
        })
    }

    /// Syncs a file and the folder's entry of it, as SQLite does for files that it creates.
    pub(crate) fn sync(&self, name: &str) -> Result<(), Refusal> {
        self.enter(|state| {
            let file = state.files.get_mut(name).ok_or(Refusal::Failed)?;
            match state.trouble {
                Trouble::Syncs => {
                    file.pending.clear();
                    Err(Refusal::Failed)
                }
                Trouble::Writes => Err(Refusal::Failed),
                Trouble::None | Trouble::Full => {
                    file.sync();
                    // One sync of the folder covers all of its entries.
                    state.files.values_mut().for_each(|file| file.entered = true);
                    state.removed.clear();
                    Ok(())
                }
            }
        })
    }

    pub(crate) fn remove(&self, name: &str, for_good: bool) -> Result<(), Refusal> {
        self.enter(|state| {
            if state.trouble == Trouble::Writes {
                return Err(Refusal::Failed);
            }
            if let Some(file) = state.files.remove(name)
                && !for_good
            {
                state.removed.insert(name.to_owned(), file);
            }
            Ok(())
        })
    }
}

impl State {
    fn notify_listener(&self) {
        if let Some(told) = &self.told {
            // There is no receiver once the test is over.
            let _ = told.send(());
        }
    }
}
