//! Hidden files in a folder that others may write to as well: opened only if they are ours, never by way of a
//! link that somebody put there.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// What all names of such files begin with. Nothing that is sent may have such a name.
pub(super) const PREFIX: &str = ".fulmar-";

/// Makes an empty file. What had its name goes: a file that a crash left, or a link, whose target stays as it is.
pub(super) fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// Opens a file that an earlier run left. Links, pipes and other users' files are not found.
pub(super) fn reopen(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Not to wait for somebody at the other end of a pipe.
    options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if metadata.is_file() && metadata.nlink() == 1 && is_ours {
        Ok(file)
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_lead_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("precious"), folder.path().join(".fulmar-x"));
        fs::write(&target, "as it was").unwrap();
        symlink(&target, &link).unwrap();
        assert!(reopen(&link).is_err());
        create(&link).unwrap().write_all(b"new").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"as it was");
        assert!(reopen(&link).is_ok());
        fs::remove_file(&link).unwrap();
        fs::hard_link(&target, &link).unwrap();
        assert!(reopen(&link).is_err());
        create(&link).unwrap().write_all(b"new").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"as it was");
    }
}
