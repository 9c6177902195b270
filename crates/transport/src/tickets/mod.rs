//! TLS 1.3 session tickets that outlive the process and still work only once.
//!
//! rustls takes the ticket out of this store before it accepts the early data that came with it (RFC 8446 section
//! 8.1, single-use tickets), so a recorded first flight fails when it is repeated as long as a taken ticket stays taken,
//! whatever happens to the process or the machine. `file` explains how that works without an fsync in the handshake.
//! Tickets are limited in number, size and age. There is no thread: a put or a take is one small SQLite transaction
//! (measured 40 to 50 µs in an unoptimised build, compared with the 350 µs of a handshake), on the calling thread.
//!
//! Not here: TLS 1.2 sessions. They are not single-use, and on disk they would cost their
//! connections forward secrecy.

mod file;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rusqlite::{ErrorCode, params};
use rustls::server::StoresServerSessions;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};

use file::{Store, Trust};

/// The default number of tickets; the oldest are removed first.
pub const MAX_TICKETS: usize = 65_536;

/// Age up to which a ticket is valid, in seconds. rustls announces the same 24 hours to clients, and leaves enforcing
/// them to the store.
pub const LIFETIME_S: u64 = 24 * 3600;

/// Largest session in bytes: a client certificate chain is the bulk of it (about 150 without).
const MAX_SESSION_BYTES: usize = 8 * 1024;

/// A ticket from further in the future than this is from before the clock was set back; how old
/// it is cannot be said.
const CLOCK_SKEW_S: u64 = 60;

/// Rows that expire or are evicted at once, once per this many puts; a handful of pages.
const SWEEP: usize = 64;

/// Why the store cannot be opened or closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TicketError {
    /// The system refuses a file.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// Another process has it open.
    #[error(
        "{0} is in use by another broker, it seems: stop that one, or choose another data folder with --data"
    )]
    InUse(PathBuf),
    /// SQLite cannot work with the file, not even with a new one.
    #[error("cannot store TLS tickets in {path}: {source}")]
    Database {
        /// Path of the file.
        path: PathBuf,
        /// Error of SQLite.
        source: rusqlite::Error,
    },
}

/// Counts of tickets since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TicketCounts {
    /// Put into the store.
    pub issued: u64,
    /// Taken: sessions resumed, with early data or without.
    pub taken: u64,
    /// Asked for and not there: used before, too old, unknown.
    pub missed: u64,
    /// Removed for their age.
    pub expired: u64,
    /// Removed to make room.
    pub evicted: u64,
    /// Refused because the session was too large or the disk failed. The client's next
    /// connection has one round trip more.
    pub failed: u64,
    /// In the store now.
    pub held: u64,
}

#[derive(Debug, Default)]
struct Counters {
    issued: AtomicU64,
    taken: AtomicU64,
    missed: AtomicU64,
    expired: AtomicU64,
    evicted: AtomicU64,
    failed: AtomicU64,
}

/// The store, shared by all workers.
#[derive(Debug)]
pub struct Tickets {
    /// `None` once closed.
    table: Mutex<Option<Table>>,
    path: Option<PathBuf>,
    max: usize,
    clock: Arc<dyn TimeProvider>,
    counters: Counters,
}

#[derive(Debug)]
struct Table {
    store: Store,
    held: usize,
    puts: usize,
}

impl Tickets {
    /// Opens the store at `path` or makes one, its owner's only. Tickets that cannot be trusted to
    /// be unused (see [`file`]) are dropped; so is a damaged store, with a log line.
    ///
    /// # Errors
    /// The folder is missing or not writable, or another process has the store open.
    pub fn open(path: &Path) -> Result<Arc<Tickets>, TicketError> {
        Tickets::open_with(path, MAX_TICKETS, Trust::of_this_boot(), Arc::new(DefaultTimeProvider))
    }

    /// A store that ends with the process.
    ///
    /// # Errors
    /// SQLite gets no memory.
    pub fn in_memory() -> Result<Arc<Tickets>, TicketError> {
        let path = Path::new(":memory:");
        let database = |source| TicketError::Database { path: path.to_owned(), source };
        let table = Table { store: Store::in_memory().map_err(database)?, held: 0, puts: 0 };
        Ok(Arc::new(Tickets::new(table, None, MAX_TICKETS, Arc::new(DefaultTimeProvider))))
    }

    fn open_with(
        path: &Path,
        max: usize,
        trust: Trust,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<Arc<Tickets>, TicketError> {
        let (store, held) = Store::open(path, &trust)?;
        let table = Table { store, held, puts: 0 };
        let tickets = Tickets::new(table, Some(path.to_owned()), max, clock);
        Ok(Arc::new(tickets))
    }

    fn new(
        table: Table,
        path: Option<PathBuf>,
        max: usize,
        clock: Arc<dyn TimeProvider>,
    ) -> Tickets {
        let table = Mutex::new(Some(table));
        Tickets { table, path, max, clock, counters: Counters::default() }
    }

    /// Counts of tickets so far.
    pub fn counts(&self) -> TicketCounts {
        let held = self.table.lock().as_ref().map_or(0, |table| table.held as u64);
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TicketCounts {
            issued: load(&self.counters.issued),
            taken: load(&self.counters.taken),
            missed: load(&self.counters.missed),
            expired: load(&self.counters.expired),
            evicted: load(&self.counters.evicted),
            failed: load(&self.counters.failed),
            held,
        }
    }

    /// Writes everything to the disk, so that tickets are good after a restart of the machine too.
    /// Handshakes that come later get no ticket and resume nothing. Without this call, as after
    /// a crash, they outlive the process but not the machine's run.
    ///
    /// # Errors
    /// The disk fails; clients then return by full handshakes.
    pub fn close(&self) -> Result<(), TicketError> {
        let table = self.table.lock().take();
        table.map_or(Ok(()), |table| table.store.close())
    }

    fn store(&self, id: &[u8], session: &[u8]) -> bool {
        let mut table = self.table.lock();
        let (Some(table), Some(now)) = (table.as_mut(), self.now()) else { return false };
        if session.len() > MAX_SESSION_BYTES {
            add(&self.counters.failed, 1);
            return false;
        }
        let mut stored = table.insert(id, now, session);
        if stored.as_ref().is_err_and(is_full) {
            self.make_room(table, now, SWEEP);
            stored = table.insert(id, now, session);
        }
        match &stored {
            Ok(()) => add(&self.counters.issued, 1),
            Err(error) => self.failed("not kept", error),
        }
        let excess = table.held.saturating_sub(self.max);
        if excess > 0 || table.puts.is_multiple_of(SWEEP) {
            self.make_room(table, now, excess);
        }
        stored.is_ok()
    }

    fn make_room(&self, table: &mut Table, now: u64, excess: usize) {
        match table.sweep(now, excess) {
            Ok((expired, evicted)) => {
                add(&self.counters.expired, expired);
                add(&self.counters.evicted, evicted);
            }
            Err(error) => self.failed("old ones not removed", &error),
        }
    }

    fn remove(&self, id: &[u8]) -> Option<Vec<u8>> {
        let mut table = self.table.lock();
        let taken = table.as_mut()?.delete(id);
        drop(table);
        match taken {
            Ok(Some((born, session))) => {
                let now = self.now()?;
                let good = born <= now + CLOCK_SKEW_S && now.saturating_sub(born) < LIFETIME_S;
                add(if good { &self.counters.taken } else { &self.counters.expired }, 1);
                good.then_some(session)
            }
            Ok(None) => {
                add(&self.counters.missed, 1);
                None
            }
            // It may still be there for the next attempt: it has had no effect.
            Err(error) => {
                self.failed("not taken", &error);
                None
            }
        }
    }

    fn now(&self) -> Option<u64> {
        self.clock.current_time().map(|now| now.as_secs())
    }

    fn failed(&self, what: &str, error: &rusqlite::Error) {
        let before = self.counters.failed.fetch_add(1, Ordering::Relaxed);
        // Every handshake would say it again.
        if before.is_power_of_two() || before == 0 {
            let path = self.path.as_deref().unwrap_or(Path::new(":memory:")).display();
            tracing::warn!(%path, %error, failures = before + 1, "TLS ticket {what}");
        }
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// The file's bound is met, or the disk's.
fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

impl Table {
    fn insert(&mut self, id: &[u8], now: u64, session: &[u8]) -> rusqlite::Result<()> {
        self.puts = self.puts.wrapping_add(1);
        self.store
            .connection
            .prepare_cached("INSERT INTO ticket (id, born, session) VALUES (?1, ?2, ?3)")?
            .execute(params![id, now.cast_signed(), session])?;
        self.held += 1;
        Ok(())
    }

    fn delete(&mut self, id: &[u8]) -> rusqlite::Result<Option<(u64, Vec<u8>)>> {
        let mut delete = self
            .store
            .connection
            .prepare_cached("DELETE FROM ticket WHERE id = ?1 RETURNING born, session")?;
        let mut rows = delete.query([id])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let found = (row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?);
        // The transaction commits when the statement is done, not when it returns its row: only stepping on shows
        // whether the ticket is gone.
        while rows.next()?.is_some() {}
        self.held = self.held.saturating_sub(1);
        Ok(Some(found))
    }

    /// Removes up to [`SWEEP`] of the oldest that have expired, then `excess` of the oldest and
    /// some more, so that a full store does not come here at every put.
    fn sweep(&mut self, now: u64, excess: usize) -> rusqlite::Result<(u64, u64)> {
        let expired = self
            .store
            .connection
            .prepare_cached(
                "DELETE FROM ticket WHERE number IN (SELECT number FROM (SELECT number, born \
                 FROM ticket ORDER BY number LIMIT ?1) WHERE born <= ?2)",
            )?
            .execute(params![SWEEP.cast_signed(), now.saturating_sub(LIFETIME_S).cast_signed()])?;
        self.held = self.held.saturating_sub(expired);
        let mut evicted = 0;
        if excess > expired {
            let more = excess - expired + (self.held / 1024).min(SWEEP);
            evicted = self
                .store
                .connection
                .prepare_cached(
                    "DELETE FROM ticket WHERE number IN \
                     (SELECT number FROM ticket ORDER BY number LIMIT ?1)",
                )?
                .execute([more.cast_signed()])?;
            self.held = self.held.saturating_sub(evicted);
        }
        Ok((expired as u64, evicted as u64))
    }
}

impl StoresServerSessions for Tickets {
    fn put(&self, ticket: Vec<u8>, session: Vec<u8>) -> bool {
        self.store(&ticket, &session)
    }

    /// Finds nothing: only TLS 1.2 asks without taking.
    fn get(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn take(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.remove(ticket)
    }

    fn can_cache(&self) -> bool {
        true
    }
}
