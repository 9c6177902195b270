//! A folder in which SQLite sees a disk in memory, for one process after another.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fastrand::Rng;
use fulmar_baddisk::{Disk, Mount, Survival, mount};

/// Crashes while one process starts, at most.
const STARTS: usize = 3;

/// The folder. Real are only the files that SQLite's users create themselves.
pub(crate) struct Folder {
    path: PathBuf,
    mount: RefCell<Mount>,
    _folder: tempfile::TempDir,
}

impl Folder {
    pub(crate) fn new() -> Folder {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("no folder: {error}"));
        let mount = RefCell::new(mount(folder.path(), Arc::new(Disk::default())));
        Folder { path: folder.path().to_owned(), mount, _folder: folder }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts a disk there. Files that are open stay with the old one.
    pub(crate) fn put(&self, disk: &Arc<Disk>) {
        self.mount.borrow().replace(Arc::clone(disk));
    }

    /// Starts a process with what `disk` holds, perhaps with crashes while it starts.
    ///
    /// # Errors
    /// It does not start although the power is on.
    pub(crate) fn start<T>(
        &self,
        disk: Disk,
        rng: &mut Rng,
        start: impl Fn(&Path) -> Result<T, String>,
    ) -> Result<(T, Arc<Disk>), String> {
        let mut crashes = if rng.u8(..4) == 0 { rng.usize(..=STARTS) } else { 0 };
        let mut disk = Arc::new(disk);
        loop {
            self.put(&disk);
            if crashes > 0 {
                disk.fail_power_after(Some(rng.u64(..40)));
            }
            let started = start(&self.path);
            if !disk.is_dead() {
                disk.fail_power_after(None);
                return Ok((started?, disk));
            }
            drop(started);
            crashes = crashes.saturating_sub(1);
            let survival = draw_survival(rng);
            disk = Arc::new(disk.power_failure(survival, rng));
        }
    }
}

pub(crate) fn draw_survival(rng: &mut Rng) -> Survival {
    [Survival::Nothing, Survival::Everything, Survival::Any][rng.usize(..3)]
}
