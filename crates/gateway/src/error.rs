//! Errors of the outbox's file, with what to do about them.

use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// Why the outbox cannot be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process has the outbox open.
    #[error("{} is in use by another process: stop that one, or give this one its own data folder", .0.display())]
    InUse(PathBuf),
    /// A database of some other program, or of a newer version of this one.
    #[error("{} is not an outbox this version knows: run the newer Fulmar, or move the file away to start empty", .0.display())]
    Foreign(PathBuf),
    /// The file is damaged.
    #[error("{} is damaged ({detail}): restore a backup, or move the file away to start empty", path.display())]
    Damaged {
        /// The database file.
        path: PathBuf,
        /// Damage that SQLite found.
        detail: String,
    },
    /// The disk, or what the operator allows of it, is full.
    #[error("no room for {}: make room on the disk, or raise [upstream.outbox] max_bytes; messages wait in the broker until then, and devices when its queue is half full", .0.display())]
    Full(PathBuf),
    /// Any other failure of SQLite.
    #[error("cannot write {}: {source}; check the disk and the folder's rights", path.display())]
    Sqlite {
        /// The database file.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// This node has not shared the change with the others of its cluster.
    #[error("outbox: {0}")]
    NotShared(#[from] fulmar_mirror::NotShared),
    /// This process cannot use the file.
    #[error("cannot use {}: {source}", path.display())]
    File {
        /// The database file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

impl Error {
    /// Classifies an error of SQLite.
    pub(crate) fn from_sqlite(path: &Path, source: rusqlite::Error) -> Error {
        let path = path.to_owned();
        match source.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::InUse(path),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Error::Damaged { path, detail: source.to_string() }
            }
            Some(ErrorCode::DiskFull) => Error::Full(path),
            _ => Error::Sqlite { path, source },
        }
    }
}
