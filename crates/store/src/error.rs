//! Errors of the database file, with what to do about them.
//!
//! Failures of a running store are not errors of a call; `Storage::failure` returns them.

use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// Why the store could not be opened, or not closed with everything written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder of the database does not exist.
    #[error("data folder {} does not exist: create it, owned by the user the broker runs as", .0.display())]
    MissingFolder(PathBuf),
    /// Another process has the database open.
    #[error("{} is in use by another process: stop that one, or give this one its own data folder", .0.display())]
    InUse(PathBuf),
    /// The database was written by a newer Fulmar.
    #[error("{} has schema version {found}; this Fulmar supports up to {known}: run the newer \
             Fulmar, or restore a backup made before the upgrade", path.display())]
    TooNew {
        /// The database file.
        path: PathBuf,
        /// Version found in the file.
        found: i64,
        /// Newest version this build understands.
        known: i64,
    },
    /// A SQLite database of some other program.
    #[error("{} is not a Fulmar database: move it away or choose another data folder", .0.display())]
    Foreign(PathBuf),
    /// The file is damaged.
    #[error("{} is damaged ({detail}): restore a backup, or move the file away to start empty", path.display())]
    Damaged {
        /// The database file.
        path: PathBuf,
        /// Damage that SQLite found.
        detail: String,
    },
    /// The file could not be created or its permissions not be set.
    #[error("cannot prepare {}: {source}", path.display())]
    File {
        /// The database file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The database is written behind a log, and may lack what the log has.
    #[error("{} belongs to a cluster and may lack its last messages: start the broker with [cluster]", .0.display())]
    BehindLog(PathBuf),
    /// The database has contents that the log does not have.
    #[error("{} has contents of its own: start the cluster from it, or move it away", .0.display())]
    NotOfLog(PathBuf),
    /// A database takes over from a log that its process has not claimed.
    #[error("{} does not end with this process's claim of the log", .0.display())]
    Unclaimed(PathBuf),
    /// Any other failure of SQLite while opening.
    #[error("cannot open {}: {source}", path.display())]
    Sqlite {
        /// The database file.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// The writer thread could not be started.
    #[error("cannot start the storage writer: {0}")]
    Thread(std::io::Error),
    /// Closed, although not all submitted batches could be written.
    #[error("{batches} batches were not written before the storage closed: {reason}")]
    Unwritten {
        /// Submitted batches that are not durable.
        batches: u64,
        /// Why.
        reason: String,
    },
}

impl Error {
    /// Classifies a SQLite error from opening `path`.
    pub(crate) fn opening(path: &Path, source: rusqlite::Error) -> Error {
        use rusqlite::Error as Sqlite;
        let path = path.to_owned();
        if let Sqlite::FromSqlConversionFailure(..)
        | Sqlite::IntegralValueOutOfRange(..)
        | Sqlite::InvalidColumnType(..)
        | Sqlite::Utf8Error(..)
        | Sqlite::QueryReturnedNoRows
        | Sqlite::SqlInputError { .. } = source
        {
            // A row with values that the store never writes, without values that it always writes, or without its
            // table.
            return Error::Damaged { path, detail: source.to_string() };
        }
        match source.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::InUse(path),
            Some(
                ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                | ErrorCode::TooBig
                | ErrorCode::TypeMismatch
                | ErrorCode::Unknown,
            ) => Error::Damaged { path, detail: source.to_string() },
            _ => Error::Sqlite { path, source },
        }
    }
}
