//! A database's file, before SQLite opens it.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

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
