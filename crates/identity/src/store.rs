//! The state in SQLite: a table with a row per entity.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fulmar_mirror::{
    CommitError, Header, Mirror, NotShared, Rows, Shared, make_durable, prepare_file,
};
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::command::{Command, Refused};
use crate::rows::Row;
use crate::state::{Change, State};

/// Name of the file in the data folder.
pub const FILE: &str = "identities.db";

/// Marks the file in SQLite's header ("FULI").
const APPLICATION_ID: i64 = 0x4655_4c49;

/// 2: rows for clients that were removed. 3: accounts.
const VERSION: i64 = 3;

const SCHEMA: &str = "
CREATE TABLE entity (
    kind INTEGER NOT NULL,                   -- 0 settings, 1 role, 2 group, 3 client, 4 API token, 5 removed client
    name TEXT NOT NULL,
    body TEXT NOT NULL,                      -- JSON
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
";

/// In a table of their own, so that a node of a cluster with an earlier version refuses to serve without them.
const ACCOUNTS: &str = "
CREATE TABLE account (
    name TEXT PRIMARY KEY NOT NULL,
    body TEXT NOT NULL                       -- JSON
) STRICT, WITHOUT ROWID;
";

/// Tables that nodes of a cluster share.
const TABLES: [&str; 2] = ["entity", "account"];

/// Longest wait of two processes for one another.
const PATIENCE: Duration = Duration::from_secs(5);

/// The log's file is cut back to this size when it starts anew.
const LOG_BYTES: i64 = 1 << 20;

/// Advice about a file that is only half there, or is another kind of file.
fn advice(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            "; restore the file from a backup, or move it away to begin without users"
        }
        _ => "",
    }
}

/// Why the store cannot be used, or has not taken a command.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The command is refused.
    #[error("{0}")]
    Refused(#[from] Refused),
    /// SQLite or the disk.
    #[error("{path}: {source}{}", advice(source))]
    Sqlite {
        /// The database's file.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
    /// The file cannot be created.
    #[error("{path}: {source}")]
    File {
        /// The database's file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another program's.
    #[error("{0} is not a database of identities; move it away, or choose another data folder")]
    Foreign(PathBuf),
    /// A database of a newer version.
    #[error(
        "{0}: a newer version of Fulmar has changed its tables: use that version, or a copy from before"
    )]
    TooNew(PathBuf),
    /// The node has not shared the change.
    #[error("{0}")]
    NotShared(#[from] NotShared),
    /// A row that is not what it should be.
    #[error("{path}: the row of {name} is damaged ({detail}); restore the file from a backup")]
    Damaged {
        /// The database's file.
        path: PathBuf,
        /// Name of the row.
        name: String,
        /// Fault in it.
        detail: String,
    },
}

/// A store, open.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
    state: State,
    /// With which other nodes of a cluster get every change.
    mirror: Option<Mirror>,
    /// SQLite's number of other connections' commits when the state was read.
    version: i64,
}

/// Kinds of rows, as the database has them.
#[derive(Clone, Copy)]
#[repr(i64)]
enum Kind {
    Settings = 0,
    Role = 1,
    Group = 2,
    Client = 3,
    Token = 4,
    Removed = 5,
}

impl Store {
    /// Opens the store at `path`, which is created if it is missing. Several processes may have it open.
    ///
    /// # Errors
    /// It cannot be opened or created, or is not such a store.
    pub fn open(path: &Path) -> Result<Store, StoreError> {
        Store::open_as(path, false)
    }

    /// Like [`Store::open`], for a disk without shared memory: no other process may have it open.
    ///
    /// # Errors
    /// Those of [`Store::open`].
    pub fn open_exclusively(path: &Path) -> Result<Store, StoreError> {
        Store::open_as(path, true)
    }

    /// Opens the store of a node that has taken over, with everything that is shared and nothing else. Every change is
    /// shared before it is in effect.
    ///
    /// # Errors
    /// Those of [`Store::open`].
    pub fn open_shared(path: &Path, shared: Shared) -> Result<Store, StoreError> {
        let mut store = Store::open(path)?;
        let mirror = Mirror::attach(&mut store.connection, &TABLES, shared);
        let failed = |source| StoreError::Sqlite { path: path.into(), source };
        store.mirror = Some(mirror.map_err(failed)?);
        store.version = -1;
        store.refresh()?;
        Ok(store)
    }

    /// Everything that nodes of a cluster would share of it.
    ///
    /// # Errors
    /// SQLite's.
    pub fn rows(&self) -> Result<Rows, StoreError> {
        let rows = fulmar_mirror::read_rows(&self.connection, &TABLES);
        rows.map_err(|source| StoreError::Sqlite { path: self.path.clone(), source })
    }

    /// Makes what nodes have shared everything that it has.
    ///
    /// # Errors
    /// SQLite's.
    pub fn replace(&mut self, rows: &Rows) -> Result<(), StoreError> {
        let replaced = fulmar_mirror::replace(&mut self.connection, &TABLES, rows);
        replaced.map_err(|source| StoreError::Sqlite { path: self.path.clone(), source })
    }

    /// A store that is gone with this object, for tests.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn in_memory() -> Result<Store, StoreError> {
        let path = Path::new(":memory:");
        let opened = Connection::open_in_memory();
        let connection =
            opened.map_err(|source| StoreError::Sqlite { path: path.into(), source })?;
        Store::over(path, connection)
    }

    fn open_as(path: &Path, exclusive: bool) -> Result<Store, StoreError> {
        // Hashes are in it.
        prepare_file(path).map_err(|source| StoreError::File { path: path.into(), source })?;
        let failed = |source| StoreError::Sqlite { path: path.into(), source };
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
        connection.busy_timeout(PATIENCE).map_err(failed)?;
        if exclusive {
            connection.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(failed)?;
        }
        Store::over(path, connection)
    }

    fn over(path: &Path, mut connection: Connection) -> Result<Store, StoreError> {
        prepare(path, &mut connection)?;
        let mut store = Store {
            connection,
            path: path.into(),
            state: State::default(),
            mirror: None,
            version: -1,
        };
        store.refresh()?;
        Ok(store)
    }

    /// Whether there is a store at `path` that has clients; also if it cannot be read, which opening it then reports.
    pub fn has_clients(path: &Path) -> bool {
        let read = || {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(path, flags)?;
            connection.busy_timeout(PATIENCE)?;
            // What was created and not filled before the power failed has no tables.
            let sql = "SELECT count(*) FROM sqlite_schema WHERE name = 'entity'";
            let tables: i64 = connection.query_row(sql, [], |row| row.get(0))?;
            if tables == 0 {
                return Ok(0);
            }
            let sql = "SELECT count(*) FROM (SELECT 1 FROM entity WHERE kind = 3 LIMIT 1)";
            connection.query_row(sql, [], |row| row.get::<_, i64>(0))
        };
        path.is_file() && read().map_or(true, |clients: i64| clients > 0)
    }

    /// The state as of the last change or [`Store::refresh`].
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Reads what another process has changed; `None` if it has not.
    ///
    /// # Errors
    /// It cannot be read; the state stays what it was.
    pub fn refresh(&mut self) -> Result<Option<Change>, StoreError> {
        let path = self.path.clone();
        let failed = |source| StoreError::Sqlite { path: path.clone(), source };
        let transaction = self.connection.transaction().map_err(failed)?;
        let change = read_if_changed(&transaction, &path, &mut self.state, &mut self.version)?;
        transaction.commit().map_err(failed)?;
        Ok(change)
    }

    /// Applies commands in one transaction: all of them or, after an error, none. Returns what has changed since the last
    /// call, by other processes as well; it is durable.
    ///
    /// # Errors
    /// A command is refused, or the disk fails.
    pub fn apply(&mut self, commands: Vec<Command>) -> Result<Vec<Change>, StoreError> {
        let path = self.path.clone();
        let failed = |source| StoreError::Sqlite { path: path.clone(), source };
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behavior).map_err(failed)?;
        // Under the lock for writing: nobody else can change it now.
        let foreign = read_if_changed(&transaction, &path, &mut self.state, &mut self.version)?;
        let mut own = Vec::new();
        let written = commands.into_iter().try_for_each(|command| {
            let change = self.state.apply(command)?;
            own.push(change);
            Ok(())
        });
        let rows = || own.iter().flat_map(|change| &change.rows);
        let written = written.and_then(|()| {
            rows().try_for_each(|row| write(&transaction, row)).map_err(failed)?;
            let Some(mirror) = &self.mirror else { return transaction.commit().map_err(failed) };
            mirror.commit(transaction).map_err(|error| match error {
                CommitError::NotShared(error) => StoreError::NotShared(error),
                CommitError::Sqlite(error) => failed(error),
            })
        });
        if let Err(error) = written {
            own.into_iter().rev().for_each(|change| self.state.undo(change));
            if let Some(foreign) = foreign {
                // So that the caller sees it with the next change.
                self.state.undo(foreign);
                self.version = -1;
            }
            return Err(error);
        }
        Ok(foreign.into_iter().chain(own).collect())
    }
}

/// Creates the tables, or checks whose they are.
fn prepare(path: &Path, connection: &mut Connection) -> Result<(), StoreError> {
    let failed = |source| StoreError::Sqlite { path: path.into(), source };
    let header = Header::read(connection).map_err(failed)?;
    if header.tables > 0 && header.application_id != APPLICATION_ID {
        return Err(StoreError::Foreign(path.into()));
    }
    make_durable(connection, LOG_BYTES).map_err(failed)?;
    connection.set_prepared_statement_cache_capacity(8);
    let behavior = TransactionBehavior::Immediate;
    let transaction = connection.transaction_with_behavior(behavior).map_err(failed)?;
    // Another process may have created them meanwhile.
    let version = Header::read(&transaction).map_err(failed)?.user_version;
    if (1..VERSION).contains(&version) {
        keep_copy(path, version)?;
    }
    match version {
        0 => transaction.execute_batch(&[SCHEMA, ACCOUNTS].concat()).map_err(failed)?,
        1..=2 => transaction.execute_batch(ACCOUNTS).map_err(failed)?,
        VERSION => {}
        _ => return Err(StoreError::TooNew(path.into())),
    }
    if version < VERSION {
        Header::write(&transaction, APPLICATION_ID, VERSION).map_err(failed)?;
    }
    transaction.commit().map_err(failed)
}

/// Copies the file before its tables change, so that the version before can be used again. The caller has the lock for
/// writing, so that no other process does the same, or has changed them already; a connection in a transaction of its own
/// cannot copy.
fn keep_copy(path: &Path, version: i64) -> Result<(), StoreError> {
    let copy = path.with_extension(format!("db.version-{version}"));
    let new = path.with_extension("db.new-copy");
    let in_file = |source| StoreError::File { path: copy.clone(), source };
    if let Err(error) = std::fs::remove_file(&new)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(in_file(error));
    }
    // With the rights of the store: hashes are in it.
    prepare_file(&new).map_err(in_file)?;
    let failed = |source| StoreError::Sqlite { path: copy.clone(), source };
    let connection = Connection::open(path).map_err(failed)?;
    connection.busy_timeout(PATIENCE).map_err(failed)?;
    connection.execute("VACUUM INTO ?1", [new.to_string_lossy()]).map_err(failed)?;
    let synced = std::fs::File::open(&new).and_then(|file| file.sync_all());
    synced.and_then(|()| std::fs::rename(&new, &copy)).map_err(in_file)
}

/// Brings `state` up to date, if another connection has committed since `version`.
fn read_if_changed(
    transaction: &Transaction<'_>,
    path: &Path,
    state: &mut State,
    version: &mut i64,
) -> Result<Option<Change>, StoreError> {
    let failed = |source| StoreError::Sqlite { path: path.into(), source };
    let now =
        transaction.pragma_query_value(None, "data_version", |row| row.get(0)).map_err(failed)?;
    if now == *version {
        return Ok(None);
    }
    let new = read(transaction, path)?;
    *version = now;
    let rows = state.difference(&new);
    Ok((!rows.is_empty()).then(|| state.put_all(rows)))
}

fn read(transaction: &Transaction<'_>, path: &Path) -> Result<State, StoreError> {
    let failed = |source| StoreError::Sqlite { path: path.into(), source };
    let sql = "SELECT kind, name, body FROM entity ORDER BY kind, name";
    let mut statement = transaction.prepare_cached(sql).map_err(failed)?;
    let mut found = statement.query([]).map_err(failed)?;
    let mut state = State::default();
    while let Some(row) = found.next().map_err(failed)? {
        let kind: i64 = row.get(0).map_err(failed)?;
        let (name, body): (String, String) =
            (row.get(1).map_err(failed)?, row.get(2).map_err(failed)?);
        let row = parsed(kind, &name, &body).map_err(|detail| StoreError::Damaged {
            path: path.into(),
            name: name.clone(),
            detail,
        })?;
        state.put_all(vec![row]);
    }
    let mut statement =
        transaction.prepare_cached("SELECT name, body FROM account").map_err(failed)?;
    let mut found = statement.query([]).map_err(failed)?;
    while let Some(row) = found.next().map_err(failed)? {
        let (name, body): (String, String) =
            (row.get(0).map_err(failed)?, row.get(1).map_err(failed)?);
        let account = from_json(&body).map_err(|detail| StoreError::Damaged {
            path: path.into(),
            name: name.clone(),
            detail,
        })?;
        state.put_all(vec![Row::Account(name.into(), Some(account))]);
    }
    Ok(state)
}

fn parsed(kind: i64, name: &str, body: &str) -> Result<Row, String> {
    Ok(match kind {
        0 => Row::Settings(from_json(body)?),
        1 => Row::Role(name.into(), Some(from_json(body)?)),
        2 => Row::Group(name.into(), Some(from_json(body)?)),
        3 => Row::Client(name.into(), Some(from_json(body)?)),
        4 => Row::Token(name.into(), Some(from_json(body)?)),
        5 => Row::Removed(name.into(), Some(from_json(body)?)),
        other => return Err(format!("kind {other}")),
    })
}

fn from_json<T: DeserializeOwned>(body: &str) -> Result<Arc<T>, String> {
    serde_json::from_str(body).map(Arc::new).map_err(|error| error.to_string())
}

fn to_json<T: Serialize>(entity: &T) -> rusqlite::Result<String> {
    let wrong = |error: serde_json::Error| rusqlite::Error::ToSqlConversionFailure(error.into());
    serde_json::to_string(entity).map_err(wrong)
}

fn write(transaction: &Transaction<'_>, row: &Row) -> rusqlite::Result<()> {
    match row {
        Row::Settings(it) => write_entity(transaction, Kind::Settings, "", Some(it)),
        Row::Role(name, it) => write_entity(transaction, Kind::Role, name, it.as_ref()),
        Row::Group(name, it) => write_entity(transaction, Kind::Group, name, it.as_ref()),
        Row::Client(name, it) => write_entity(transaction, Kind::Client, name, it.as_ref()),
        Row::Token(name, it) => write_entity(transaction, Kind::Token, name, it.as_ref()),
        Row::Removed(name, it) => write_entity(transaction, Kind::Removed, name, it.as_ref()),
        Row::Account(name, Some(account)) => {
            let sql = "INSERT OR REPLACE INTO account (name, body) VALUES (?1, ?2)";
            let body = to_json(&**account)?;
            transaction.prepare_cached(sql)?.execute(params![name, body]).map(drop)
        }
        Row::Account(name, None) => {
            let sql = "DELETE FROM account WHERE name = ?1";
            transaction.prepare_cached(sql)?.execute([name]).map(drop)
        }
    }
}

fn write_entity<T: Serialize>(
    transaction: &Transaction<'_>,
    kind: Kind,
    name: &str,
    entity: Option<&Arc<T>>,
) -> rusqlite::Result<()> {
    let kind = kind as i64;
    let Some(entity) = entity else {
        let sql = "DELETE FROM entity WHERE kind = ?1 AND name = ?2";
        return transaction.prepare_cached(sql)?.execute(params![kind, name]).map(drop);
    };
    let body = to_json(&**entity)?;
    let sql = "INSERT OR REPLACE INTO entity (kind, name, body) VALUES (?1, ?2, ?3)";
    transaction.prepare_cached(sql)?.execute(params![kind, name, body]).map(drop)
}
