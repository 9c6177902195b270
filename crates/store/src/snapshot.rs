//! A copy of the database while it is written: what a power cut at that moment would leave.
//!
//! Meanwhile, the log is not copied back, so that the database's own file does not change, and the log only grows: a part
//! of a transaction at the end of the copy is ignored when it is opened. If the log begins anew during the copy, all of
//! it was in the database before, and the copied part has no valid transactions or the newest ones. The writer does not
//! wait for the copy.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::handle::SqliteStorage;

/// The database's file, opened by the first copy and only closed with the database: closing a file releases this
/// process's locks on it (POSIX `fcntl`), and SQLite's lock keeps other processes out.
#[derive(Default)]
pub(crate) struct DatabaseFile(Mutex<Option<File>>);

impl SqliteStorage {
    /// Copies the database, and its log beside it, into a folder, under the same names. Opening the copy recovers the
    /// state of a moment during this call: at least what was committed before.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn copy_to(&self, folder: &Path) -> io::Result<()> {
        let path = self.path();
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let _no_checkpoint = self.shared().checkpoints.lock();
        let mut kept = self.file().0.lock();
        let file = match &mut *kept {
            Some(file) => file,
            none => none.insert(File::open(path)?),
        };
        // First the database, then the log: the log has everything that is not in the database.
        io::Seek::rewind(file)?;
        let to = folder.join(name);
        copy(file, &to)?;
        let log = |path: &Path| {
            let mut name = path.as_os_str().to_owned();
            name.push("-wal");
            PathBuf::from(name)
        };
        match File::open(log(path)) {
            // SQLite has no locks on the log.
            Ok(mut file) => copy(&mut file, &log(&to)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn copy(from: &mut File, to: &Path) -> io::Result<()> {
    let mut copy = fs::OpenOptions::new().write(true).create_new(true).open(to)?;
    io::copy(from, &mut copy).map(drop)
}
