//! A connection that comes back: made anew when it is lost, for the next transaction.
//!
//! Only a transaction's beginning is tried again: nothing has been done then. What is lost later fails as a
//! whole, and whoever sent it is told to send it again; identifiers see to it that it is stored once, should
//! it have been stored after all.

use std::cell::{Cell, Ref, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::{Begin, DatabaseError, Result};
use super::address::Address;
use super::link::{Link, Prepared};
use super::tables;

/// For so long a server that was there is waited for: it may be starting again.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Once it was waited for in vain, it is looked for this often, and what comes meanwhile is refused at once.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a server process that was killed may take to notice that its client is gone.
const LET_GO: Duration = Duration::from_secs(10);
/// How often it is looked for what other processes have changed.
const LOOK_FOR_CHANGES: Duration = Duration::from_millis(500);

/// What locks of this program are under in the database ("FULP").
const LOCKS: i32 = 0x4655_4c50;
/// Held by the one server that may use the database.
const SERVER: i32 = 1;
/// Held by whoever writes.
const WRITER: i32 = 2;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Changes, by the one server that may make them.
    Server,
    /// Changes by a command, beside the server.
    Command,
    /// Looking.
    Look,
}

#[derive(Debug)]
pub(crate) struct Session {
    address: Arc<Address>,
    purpose: Purpose,
    link: RefCell<Option<Link>>,
    /// When connecting failed last, if it has not succeeded since.
    failed: Cell<Option<Instant>>,
    /// How many connections there were, and what other processes had changed.
    seen: Cell<(u64, i64)>,
    looked: Cell<Instant>,
}

impl Session {
    /// Connects, and makes the tables what this version wants. Not for tasks.
    pub(in super::super) fn open(address: &Arc<Address>, purpose: Purpose) -> Result<Session> {
        let link = Link::connect(address)?;
        if purpose != Purpose::Look {
            prepare(&link, address)?;
            lock(&link, purpose, LET_GO)?;
        }
        Ok(Session {
            address: Arc::clone(address),
            purpose,
            link: RefCell::new(Some(link)),
            failed: Cell::new(None),
            seen: Cell::new((1, 0)),
            looked: Cell::new(Instant::now()),
        })
    }

    /// The statement, prepared before if it was needed before.
    pub(in super::super) fn prepare(&self, sql: &str) -> Result<Prepared<'_>> {
        Link::prepare(self.link()?, sql)
    }

    fn link(&self) -> Result<Ref<'_, Link>> {
        let link = self.link.try_borrow().map_err(|_| self.away("in use"))?;
        Ref::filter_map(link, Option::as_ref).map_err(|_| self.away("the connection was lost"))
    }

    fn away(&self, why: &str) -> DatabaseError {
        DatabaseError::Away(self.address.to_string(), why.to_owned())
    }

    /// Begins a transaction, on a new connection if need be.
    pub(in super::super) fn begin(&self, kind: Begin) -> Result<()> {
        let lost = self.link.borrow().as_ref().is_none_or(Link::is_lost);
        if !lost {
            match self.try_begin(kind) {
                Err(error) if self.link()?.is_lost() => {
                    tracing::debug!("platform storage: {error}");
                }
                outcome => return outcome,
            }
        }
        self.reconnect()?;
        self.try_begin(kind)
    }

    fn try_begin(&self, kind: Begin) -> Result<()> {
        let link = self.link()?;
        link.unspoil();
        if kind == Begin::Read {
            return link.batch("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY");
        }
        let changes = link.number(&format!(
            "BEGIN; SELECT pg_advisory_xact_lock({LOCKS}, {WRITER}); SELECT changes FROM installation"
        ))?;
        self.note_changes(changes);
        Ok(())
    }

    fn reconnect(&self) -> Result<()> {
        drop(self.link.take());
        let waited_in_vain = self.failed.get();
        if waited_in_vain.is_some_and(|failed| failed.elapsed() < LOOK_EVERY) {
            return Err(self.away("it was unreachable a moment ago"));
        }
        let patience = if waited_in_vain.is_some() { Duration::ZERO } else { PATIENCE };
        let until = Instant::now() + patience;
        let connected = loop {
            let connected = Link::connect(&self.address);
            let connected = connected.and_then(|link| {
                // What was written meanwhile by a server that took this one's place is not overwritten.
                lock(&link, self.purpose, Duration::ZERO).map(|()| link)
            });
            if connected.is_ok() || Instant::now() >= until {
                break connected;
            }
            std::thread::sleep(PAUSE);
        };
        let told = self.purpose != Purpose::Look;
        match connected {
            Ok(link) => {
                self.link.replace(Some(link));
                self.failed.set(None);
                let (connections, changes) = self.seen.get();
                self.seen.set((connections + 1, changes));
                if told {
                    tracing::info!("platform storage: reconnected to PostgreSQL: {}", self.address);
                }
                Ok(())
            }
            Err(error) => {
                if told && waited_in_vain.is_none() {
                    tracing::error!(
                        "platform storage: {error}; requests are refused until it is back"
                    );
                }
                self.failed.set(Some(Instant::now()));
                Err(error)
            }
        }
    }

    /// Runs what belongs to a transaction.
    pub(in super::super) fn batch(&self, sql: &str) -> Result<()> {
        let link = self.link()?;
        link.unspoil();
        link.batch(sql)
    }

    /// Ends the transaction.
    pub(in super::super) fn commit(&self) -> Result<()> {
        let link = self.link()?;
        if self.purpose == Purpose::Command {
            return link.batch("UPDATE installation SET changes = changes + 1; COMMIT");
        }
        link.batch("COMMIT")
    }

    /// Ends the transaction, if there is one, and takes all of it back.
    pub(in super::super) fn roll_back(&self) -> Result<()> {
        let Ok(link) = self.link() else { return Ok(()) };
        if link.is_lost() {
            drop(link);
            drop(self.link.take());
            return Ok(());
        }
        link.batch("ROLLBACK")
    }

    /// Whether a statement failed since the transaction or its mark was set.
    pub(in super::super) fn is_spoilt(&self) -> bool {
        self.link.borrow().as_ref().is_none_or(Link::is_spoilt)
    }

    /// What changes when another process has committed, and with every connection.
    pub(in super::super) fn foreign_changes(&self) -> Result<(u64, i64)> {
        if self.looked.get().elapsed() >= LOOK_FOR_CHANGES {
            self.note_changes(self.link()?.number("SELECT changes FROM installation")?);
        }
        Ok(self.seen.get())
    }

    fn note_changes(&self, changes: i64) {
        self.seen.set((self.seen.get().0, changes));
        self.looked.set(Instant::now());
    }
}

/// Makes the tables what this version wants, and looks whether the server keeps what it promises.
fn prepare(link: &Link, address: &Address) -> Result<()> {
    let is = |sql: &str| Ok::<_, DatabaseError>(link.number(&format!("SELECT ({sql})::int"))? == 1);
    if !is("current_setting('server_encoding') = 'UTF8'")? {
        let text = "its encoding is not UTF8: make one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0";
        return Err(DatabaseError::Setting(text.to_owned()));
    }
    if !is("current_setting('fsync')::bool AND current_setting('full_page_writes')::bool")? {
        tracing::warn!(
            "platform storage: PostgreSQL ({address}) has fsync or full_page_writes switched off: \
             a power failure may lose what it acknowledged"
        );
    }
    link.batch(&format!("BEGIN; SELECT pg_advisory_xact_lock({LOCKS}, {WRITER})"))?;
    tables::migrate(link)?;
    link.batch("COMMIT")
}

/// Sees to it that one server alone uses the database.
fn lock(link: &Link, purpose: Purpose, patience: Duration) -> Result<()> {
    if purpose != Purpose::Server {
        return Ok(());
    }
    let until = Instant::now() + patience;
    while link.number(&format!("SELECT pg_try_advisory_lock({LOCKS}, {SERVER})::int"))? == 0 {
        if Instant::now() >= until {
            return Err(DatabaseError::Taken);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}
