//! A connection that reconnects: one that is lost is replaced for the next transaction.
//!
//! Only the beginning of a transaction is tried again, because nothing has been done then. A transaction that is lost
//! later fails as a whole, and its client is asked to send it again; identifiers ensure that it is stored once, even
//! if it had been stored after all.

use std::cell::{Cell, Ref, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmar_mirror::{NotShared, Share};

use super::super::row::Columns;
use super::super::{Begin, DatabaseError, Db, Engine, Purpose, Result, Value};
use super::connection::Connection;
use super::tables;
use fulmar_postgres::Address;

/// For so long a server that was there is waited for: it may be starting again.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long each statement may take that upgrades the tables.
const UPGRADE_PATIENCE: Duration = Duration::from_secs(3600);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// After a wait without success, the interval of attempts to connect; meanwhile requests are refused at once.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a server process that was killed may take to notice that its client is gone.
const LET_GO: Duration = Duration::from_secs(10);
/// How often it is looked for what other processes have changed.
const LOOK_FOR_CHANGES: Duration = Duration::from_millis(500);

/// What locks of this program are under in the database ("FULP").
const LOCKS: i32 = 0x4655_4c50;
/// Held by the one server that may use the database.
const SERVER: i32 = 1;
/// The lock of the process that writes.
const WRITER: i32 = 2;

/// Connects on a thread of its own, because the caller may be an async task, which must not block.
pub(in super::super) fn connect(
    address: &Arc<Address>,
    purpose: Purpose,
    node: Option<Arc<dyn Share>>,
) -> Result<Db> {
    let open = || ReconnectingConnection::open(address, purpose, node).map(Db::new);
    let connected = std::thread::scope(|scope| scope.spawn(open).join());
    connected.map_err(|_| DatabaseError::Setting("connecting to PostgreSQL failed".to_owned()))?
}

#[derive(Debug)]
struct ReconnectingConnection {
    address: Arc<Address>,
    purpose: Purpose,
    /// The node of a cluster that uses the database while it serves.
    node: Option<Arc<dyn Share>>,
    connection: RefCell<Option<Connection>>,
    /// When connecting failed last, if it has not succeeded since.
    failed: Cell<Option<Instant>>,
    /// How many connections there were, and what other processes had changed.
    seen: Cell<(u64, i64)>,
    looked: Cell<Instant>,
}

impl ReconnectingConnection {
    /// Connects, and makes the tables what this version wants. Not for tasks.
    fn open(
        address: &Arc<Address>,
        purpose: Purpose,
        node: Option<Arc<dyn Share>>,
    ) -> Result<ReconnectingConnection> {
        let connection = Connection::connect(address)?;
        if purpose != Purpose::Look {
            prepare(&connection, address)?;
            lock(&connection, (purpose, node.as_deref()), LET_GO)?;
        }
        Ok(ReconnectingConnection {
            address: Arc::clone(address),
            purpose,
            node,
            connection: RefCell::new(Some(connection)),
            failed: Cell::new(None),
            seen: Cell::new((1, 0)),
            looked: Cell::new(Instant::now()),
        })
    }

    fn connection(&self) -> Result<Ref<'_, Connection>> {
        let connection = self.connection.try_borrow().map_err(|_| self.away("in use"))?;
        Ref::filter_map(connection, Option::as_ref)
            .map_err(|_| self.away("the connection was lost"))
    }

    fn away(&self, why: &str) -> DatabaseError {
        DatabaseError::Away(self.address.to_string(), why.to_owned())
    }

    fn try_begin(&self, kind: Begin) -> Result<()> {
        let connection = self.connection()?;
        connection.unspoil();
        if kind == Begin::Read {
            return connection.batch("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY");
        }
        let changes = connection.number(&format!(
            "BEGIN; SELECT pg_advisory_xact_lock({LOCKS}, {WRITER}); SELECT changes FROM installation"
        ))?;
        self.note_changes(changes);
        Ok(())
    }

    fn reconnect(&self) -> Result<()> {
        drop(self.connection.take());
        let waited_in_vain = self.failed.get();
        if waited_in_vain.is_some_and(|failed| failed.elapsed() < LOOK_EVERY) {
            return Err(self.away("it was unreachable a moment ago"));
        }
        let patience = if waited_in_vain.is_some() { Duration::ZERO } else { PATIENCE };
        let until = Instant::now() + patience;
        let connected = loop {
            let connected = Connection::connect(&self.address);
            let connected = connected.and_then(|connection| {
                // What was written meanwhile by a server that took this one's place is not overwritten.
                let who = (self.purpose, self.node.as_deref());
                lock(&connection, who, Duration::ZERO).map(|()| connection)
            });
            if connected.is_ok() || Instant::now() >= until {
                break connected;
            }
            std::thread::sleep(PAUSE);
        };
        let told = self.purpose != Purpose::Look;
        match connected {
            Ok(connection) => {
                self.connection.replace(Some(connection));
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

    fn note_changes(&self, changes: i64) {
        self.seen.set((self.seen.get().0, changes));
        self.looked.set(Instant::now());
    }
}

impl Engine for ReconnectingConnection {
    fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<usize> {
        self.connection()?.execute(sql, values)
    }

    fn each(
        &self,
        sql: &str,
        values: &[Value<'_>],
        see: &mut dyn FnMut(&dyn Columns) -> Result<bool>,
    ) -> Result<()> {
        for row in &self.connection()?.rows(sql, values)? {
            if !see(row)? {
                break;
            }
        }
        Ok(())
    }

    /// On a new connection if need be.
    fn begin(&self, kind: Begin) -> Result<()> {
        let lost = self.connection.borrow().as_ref().is_none_or(Connection::is_lost);
        if !lost {
            match self.try_begin(kind) {
                Err(error) if self.connection()?.is_lost() => {
                    tracing::debug!("platform storage: {error}");
                }
                outcome => return outcome,
            }
        }
        self.reconnect()?;
        self.try_begin(kind)
    }

    fn batch(&self, sql: &str) -> Result<()> {
        let connection = self.connection()?;
        connection.unspoil();
        connection.batch(sql)
    }

    fn commit(&self) -> Result<()> {
        let connection = self.connection()?;
        if self.purpose == Purpose::Command {
            return connection.batch("UPDATE installation SET changes = changes + 1; COMMIT");
        }
        connection.batch("COMMIT")
    }

    fn roll_back(&self) -> Result<()> {
        let Ok(connection) = self.connection() else { return Ok(()) };
        if connection.is_lost() {
            drop(connection);
            drop(self.connection.take());
            return Ok(());
        }
        connection.batch("ROLLBACK")
    }

    fn is_spoilt(&self) -> bool {
        self.connection.borrow().as_ref().is_none_or(Connection::is_spoilt)
    }

    fn foreign_changes(&self) -> Result<(u64, i64)> {
        if self.looked.get().elapsed() >= LOOK_FOR_CHANGES {
            self.note_changes(self.connection()?.number("SELECT changes FROM installation")?);
        }
        Ok(self.seen.get())
    }
}

/// Makes the tables what this version wants, and looks whether the server keeps what it promises.
fn prepare(connection: &Connection, address: &Address) -> Result<()> {
    let is = |sql: &str| {
        Ok::<_, DatabaseError>(connection.number(&format!("SELECT ({sql})::int"))? == 1)
    };
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
    connection.batch(&format!("BEGIN; SELECT pg_advisory_xact_lock({LOCKS}, {WRITER})"))?;
    let version = tables::version(connection)?;
    if version == tables::VERSION {
        return connection.batch("COMMIT");
    }
    connection.with_patience(UPGRADE_PATIENCE, || upgrade(connection, address, version))
}

/// Migrates the tables, and ends the transaction. A new index or column takes as long as there are rows: under the time
/// limit of requests, large tables could never be upgraded. What others have locked is not waited for any longer.
fn upgrade(connection: &Connection, address: &Address, version: usize) -> Result<()> {
    let (to, started) = (tables::VERSION, Instant::now());
    if version > 0 {
        tracing::info!(
            "platform storage: upgrading the tables in PostgreSQL ({address}) from version {version} to {to}: with \
             many rows this takes minutes, for which the server must not be stopped"
        );
    }
    connection.batch("SET LOCAL statement_timeout = 0")?;
    tables::migrate(connection, version)?;
    connection.batch("COMMIT")?;
    if version > 0 {
        let seconds = started.elapsed().as_secs();
        tracing::info!(seconds, "platform storage: the tables are upgraded to version {to}");
    }
    Ok(())
}

/// Sees to it that one server alone uses the database. In a cluster, that is the node that serves: it takes the lock from
/// one that was paused or cut off, whose connection the database may still take for alive.
fn lock(
    connection: &Connection,
    (purpose, node): (Purpose, Option<&dyn Share>),
    patience: Duration,
) -> Result<()> {
    if purpose != Purpose::Server {
        return Ok(());
    }
    let until = Instant::now() + patience;
    loop {
        if node.is_some_and(|node| !node.serves()) {
            return Err(NotShared("this node does not serve any more".to_owned()).into());
        }
        if connection.number(&format!("SELECT pg_try_advisory_lock({LOCKS}, {SERVER})::int"))? == 1
        {
            return Ok(());
        }
        if node.is_some() {
            let ended = connection.number(&end_other())?;
            tracing::info!(ended, "platform storage: took the database from another node");
        }
        if Instant::now() >= until {
            return Err(DatabaseError::Taken);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Ends the connection that has the lock of the one server; counts them.
fn end_other() -> String {
    format!(
        "SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_locks
             WHERE locktype = 'advisory' AND granted AND pid <> pg_backend_pid()
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
             AND classid = {LOCKS} AND objid = {SERVER} AND objsubid = 2) ended"
    )
}
