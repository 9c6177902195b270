//! Creates and reopens hidden files in a folder to which other users may write: no symbolic or hard link that somebody
//! put there is followed (`O_NOFOLLOW`), and only files of this user are opened.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Prefix of the names of these files. A file with such a name cannot be sent.
pub(super) const PREFIX: &str = ".fulmar-";

/// Creates an empty file. It replaces a file that a crash left, or a link, whose target remains unchanged.
pub(super) fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// Opens a file that an earlier run left. For links, pipes and other users' files, the error is `NotFound`.
pub(super) fn reopen(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // O_NONBLOCK: to open a pipe would otherwise wait for its other end.
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
    fn links_are_not_followed() {
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
