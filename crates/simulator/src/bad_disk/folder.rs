//! A folder in which SQLite sees a disk in memory, for one process after another.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fastrand::Rng;
use rusqlite::{Connection, OpenFlags};

use super::disk::{Disk, Survival};
use super::vfs::{Mount, mount};

/// Power failures while one process starts, at most.
const STARTS: usize = 3;

/// The folder. Real are only the files that SQLite's users create themselves.
pub(crate) struct Folder {
    path: PathBuf,
    mount: Mount,
    _folder: tempfile::TempDir,
}

impl Folder {
    /// A folder of its own, with this disk.
    ///
    /// # Panics
    /// If it cannot be made.
    pub(crate) fn new(disk: &Arc<Disk>) -> Folder {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("no folder: {error}"));
        let mount = mount(folder.path(), Arc::clone(disk));
        Folder { path: folder.path().to_owned(), mount, _folder: folder }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a database of which no other connection is open, as its only user.
    pub(crate) fn open_sound(&self, database: &str) -> Result<Connection, String> {
        let open = || {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(self.path.join(database), flags)?;
            connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
            let whole = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
            Ok((connection, whole))
        };
        let opened = open().map_err(|error: rusqlite::Error| error.to_string());
        let (connection, whole): (_, String) = opened?;
        if whole == "ok" { Ok(connection) } else { Err(format!("{database}: {whole}")) }
    }

    /// Puts a disk there. Files that are open stay with the old one.
    pub(crate) fn mount(&self, disk: &Arc<Disk>) {
        self.mount.replace(Arc::clone(disk));
    }

    /// Starts a process with what `disk` holds, perhaps with power failures while it starts. Fails only with the power
    /// on.
    pub(crate) fn start<T, E>(
        &self,
        disk: Disk,
        rng: &mut Rng,
        start: impl Fn(&Path, &Disk) -> Result<T, E>,
    ) -> Result<(T, Arc<Disk>), E> {
        let mut failures = if rng.u8(..4) == 0 { rng.usize(..=STARTS) } else { 0 };
        let mut disk = Arc::new(disk);
        loop {
            self.mount(&disk);
            if failures > 0 {
                disk.fail_power_after(Some(rng.u64(..40)));
                failures -= 1;
            }
            let started = start(&self.path, &disk);
            if !disk.is_dead() {
                disk.fail_power_after(None);
                return Ok((started?, disk));
            }
            drop(started);
            disk = Arc::new(disk.power_failure(Survival::draw(rng), rng));
        }
    }
}
