//! A database's file: its rights before SQLite opens it, what its header says of its owner, and how it is made durable.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use rusqlite::Connection;
use rustix::fs::{Access, access};

/// Bytes of the smallest page that SQLite has. It takes a file of one byte for an empty database and would write over it.
const SMALLEST_PAGE: u64 = 512;

/// Creates the file of a database, if it is missing, for its owner alone, or removes other users' access. Its owner is that of
/// the folder, because root runs commands on the data of a service. SQLite gives the files beside it the same mode, and as
/// root the same owner.
///
/// Never opens an existing file: closing it again would release this process's locks on it (POSIX `fcntl`).
///
/// # Errors
/// This process cannot use the file, or it is shorter than any database; an empty one is new.
pub fn prepare_file(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    prepare(path, folder).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => io::Error::other(format!(
            "{error}; run this as the server's user, who must own the file (as root: chown --reference={} {})",
            folder.display(),
            path.display()
        )),
        _ => error,
    })
}

fn prepare(path: &Path, folder: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        new => {
            let (new, folder) = (new?, folder.metadata()?);
            if folder.uid() != new.metadata()?.uid() {
                // Only root can; whoever else creates files in another user's folder keeps them.
                let _ = fchown(&new, Some(folder.uid()), Some(folder.gid()));
            }
            return Ok(());
        }
    }
    access(path, Access::READ_OK | Access::WRITE_OK)?;
    let file = path.metadata()?;
    if file.mode() & 0o077 != 0 {
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
    }
    match file.len() {
        length @ 1..SMALLEST_PAGE => Err(io::Error::other(format!(
            "damaged (only {length} bytes of it are written): restore a backup, or move the file away to start empty"
        ))),
        _ => Ok(()),
    }
}

/// Description that a database has of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The program's mark in SQLite's header; 0 until a program sets it.
    pub application_id: i64,
    /// The version of the tables there; 0 until a program sets it.
    pub user_version: i64,
    /// Number of tables and indexes.
    pub tables: i64,
}

impl Header {
    /// Reads it.
    ///
    /// # Errors
    /// SQLite's: the file is in use, damaged, or no database.
    pub fn read(connection: &Connection) -> rusqlite::Result<Header> {
        let number = |name| connection.pragma_query_value(None, name, |row| row.get(0));
        let tables = "SELECT count(*) FROM sqlite_schema";
        Ok(Header {
            application_id: number("application_id")?,
            user_version: number("user_version")?,
            tables: connection.query_row(tables, [], |row| row.get(0))?,
        })
    }

    /// True before the first program has created something.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.tables == 0 && self.user_version == 0
    }

    /// Sets the program's mark and the version of the tables.
    ///
    /// # Errors
    /// SQLite's.
    pub fn write(
        connection: &Connection,
        application_id: i64,
        user_version: i64,
    ) -> rusqlite::Result<()> {
        connection.pragma_update(None, "user_version", user_version)?;
        connection.pragma_update(None, "application_id", application_id)
    }
}

/// Makes commits durable: with a write-ahead log that is synced, and whose file is cut back to `log_bytes` when it starts
/// anew.
///
/// # Errors
/// SQLite's.
pub fn make_durable(connection: &Connection, log_bytes: i64) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "journal_size_limit", log_bytes)
}

/// Limits the file's size in bytes, to at least `least_pages` pages; what exceeds it fails like a full disk.
///
/// # Errors
/// SQLite's.
pub fn limit_file(connection: &Connection, bytes: u64, least_pages: i64) -> rusqlite::Result<()> {
    let page: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
    let pages = i64::try_from(bytes).unwrap_or(i64::MAX) / page.max(1);
    connection.pragma_update(None, "max_page_count", pages.clamp(least_pages, 0xffff_fffe))
}
