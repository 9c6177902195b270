//! Reading and writing PEM files.
//!
//! A file is written whole or not at all, over crashes too. Keys are never readable by others, not
//! even for a moment while they are written, and are refused when they are.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::CertError;

/// Largest file of secrets.
const MAX_SECRET_BYTES: u64 = 64 << 20;

fn file_error(path: &Path, source: io::Error) -> CertError {
    CertError::File { path: path.to_owned(), source }
}

pub(crate) fn read_text(path: &Path) -> Result<String, CertError> {
    fs::read_to_string(path).map_err(|source| file_error(path, source))
}

/// Reads a certificate chain, leaf first.
///
/// # Errors
/// The file cannot be read, is damaged or holds no certificate.
pub fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertError> {
    let bytes = fs::read(path).map_err(|source| file_error(path, source))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let chain = chain.map_err(|source| CertError::Malformed { path: path.to_owned(), source })?;
    if chain.is_empty() {
        return Err(CertError::Missing { path: path.to_owned(), wanted: "certificate" });
    }
    Ok(chain)
}

/// Reads a private key; refuses one that [`check_secret`] refuses.
///
/// # Errors
/// The file cannot be read, is open to others, encrypted or damaged, or holds no key.
pub fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, CertError> {
    let bytes = read_secret(path)?;
    let path = || path.to_owned();
    match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(key) => Ok(key),
        Err(rustls_pki_types::pem::Error::NoItemsFound) => {
            let encrypted = b"-----BEGIN ENCRYPTED PRIVATE KEY-----";
            if bytes.windows(encrypted.len()).any(|window| window == encrypted) {
                return Err(CertError::Encrypted(path()));
            }
            Err(CertError::Missing { path: path(), wanted: "private key" })
        }
        Err(source) => Err(CertError::Malformed { path: path(), source }),
    }
}

/// Reads a file of secrets of any form; refuses one that [`check_secret`] refuses.
///
/// # Errors
/// The file cannot be read, is larger than 64 MiB, or is open to others.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, CertError> {
    let fail = |source| file_error(path, source);
    let file = File::open(path).map_err(fail)?;
    check_mode(path, &file.metadata().map_err(fail)?)?;
    let mut bytes = Vec::new();
    file.take(MAX_SECRET_BYTES + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MAX_SECRET_BYTES {
        return Err(fail(ErrorKind::FileTooLarge.into()));
    }
    Ok(bytes)
}

/// Reads a secret that Fulmar keeps in its data folder, as [`read_secret`] does, but first takes away what a group may do
/// with it: Kubernetes gives every file of a volume to the group `fsGroup` whenever it mounts it.
///
/// # Errors
/// As [`read_secret`]; the group counts only if the file is another user's.
pub fn read_own_secret(path: &Path) -> Result<Vec<u8>, CertError> {
    take_from_group(path);
    read_secret(path)
}

/// Removes a group's access, if this process can: otherwise the file is refused when it is read.
pub(crate) fn take_from_group(path: &Path) {
    let mode = fs::metadata(path).map_or(0, |file| file.mode());
    if mode & 0o070 != 0 && mode & 0o007 == 0 {
        let _ = fs::set_permissions(path, Permissions::from_mode(mode & 0o600));
    }
}

/// The first line of a file with a password or token, without its end.
///
/// # Errors
/// As [`read_secret`]; or it is not UTF-8.
pub fn read_secret_line(path: &Path) -> Result<String, CertError> {
    let text = String::from_utf8(read_secret(path)?);
    let text =
        text.map_err(|error| file_error(path, io::Error::new(ErrorKind::InvalidData, error)))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Checks that a file of secrets is its owner's alone. A group may read it if root owns it: so do administrators and
/// Kubernetes give services their secrets.
///
/// # Errors
/// It is open to others, or is not there.
pub fn check_secret(path: &Path) -> Result<(), CertError> {
    check_mode(path, &fs::metadata(path).map_err(|source| file_error(path, source))?)
}

fn check_mode(path: &Path, file: &fs::Metadata) -> Result<(), CertError> {
    if is_exposed(file.mode(), file.uid()) {
        return Err(CertError::SecretExposed(path.to_owned()));
    }
    Ok(())
}

fn is_exposed(mode: u32, owner: u32) -> bool {
    mode & 0o007 != 0 || mode & 0o070 != 0 && owner != 0
}

/// Writes a file whole or not at all, readable by its owner only if `secret`. A secret that replaces another keeps that
/// one's owner, group and mode, unless others could read it.
///
/// # Errors
/// The system refuses.
pub fn write(path: &Path, contents: &[u8], secret: bool) -> Result<(), CertError> {
    write_and_publish(path, contents, secret, |new, path| fs::rename(new, path))
        .map_err(|source| file_error(path, source))
}

/// Checks that [`write()`] would find a place for a file, before what it is to contain takes effect.
///
/// # Errors
/// It is a folder, or the system refuses.
pub fn check_writable(path: &Path) -> Result<(), CertError> {
    let new = temporary(path);
    let is_folder = || io::Error::from(ErrorKind::IsADirectory);
    let made = if path.is_dir() { Err(is_folder()) } else { File::create_new(&new).map(drop) };
    made.and_then(|()| fs::remove_file(&new)).map_err(|source| file_error(path, source))
}

/// Like [`write()`], but never over a file that is there.
///
/// # Errors
/// The file exists, or the system refuses.
pub fn write_new(path: &Path, contents: &[u8], secret: bool) -> Result<(), CertError> {
    // Unlike a rename, a link fails if the name is taken.
    let link = |new: &Path, path: &Path| {
        fs::hard_link(new, path)?;
        fs::remove_file(new)
    };
    match write_and_publish(path, contents, secret, link) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Err(CertError::Exists(path.to_owned()))
        }
        // Some file systems have no links (FAT).
        Err(error) if error.kind() == ErrorKind::PermissionDenied && !path.exists() => {
            write(path, contents, secret)
        }
        other => other.map_err(|source| file_error(path, source)),
    }
}

/// Writes beside `path`, then lets `publish` bring it there; what is left over is removed.
fn write_and_publish(
    path: &Path,
    contents: &[u8],
    secret: bool,
    publish: impl FnOnce(&Path, &Path) -> io::Result<()>,
) -> io::Result<()> {
    let new = temporary(path);
    let mode = if secret { 0o600 } else { 0o644 };
    // A file left over by a process of the same number may have other rights.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    if secret {
        keep_access(&file, path);
    }
    let written =
        file.write_all(contents).and_then(|()| file.sync_all()).and_then(|()| publish(&new, path));
    if let Err(error) = written {
        // The first error is the one to return.
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    // The new name itself has to survive a power cut.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all())
}

/// Gives a new secret the access of the one it replaces, or, where the system refuses that, its writer's alone.
fn keep_access(new: &File, replaced: &Path) {
    if let Ok(before) = fs::metadata(replaced)
        && !is_exposed(before.mode(), before.uid())
        && fchown(new, Some(before.uid()), Some(before.gid())).is_ok()
    {
        let _ = new.set_permissions(Permissions::from_mode(before.mode() & 0o777));
    }
}

fn temporary(path: &Path) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.{number}", std::process::id()));
    path.with_file_name(name)
}

/// Makes a folder for secrets: its owner's only. One that exists is left as it is.
///
/// # Errors
/// The system refuses.
pub fn make_private_dir(path: &Path) -> Result<(), CertError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| file_error(path, source))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn holding(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file.pem");
        write(&path, text.as_bytes(), true).unwrap();
        (dir, path)
    }

    #[test]
    fn what_is_no_key_or_chain_is_named() {
        let damaged = "-----BEGIN CERTIFICATE-----\nMIIB*\n-----END CERTIFICATE-----\n";
        let (_dir, path) = holding(damaged);
        assert!(matches!(read_chain(&path), Err(CertError::Malformed { .. })));
        let (_dir, path) = holding("nothing of the kind");
        assert!(matches!(read_chain(&path), Err(CertError::Missing { .. })));
        assert!(matches!(read_key(&path), Err(CertError::Missing { .. })));
        let (_dir, path) = holding(
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n",
        );
        let error = read_key(&path).unwrap_err().to_string();
        assert!(error.contains("openssl pkey"), "{error}");
    }

    #[test]
    fn a_secret_is_its_owners_alone_or_roots_and_a_groups() {
        for (mode, owner, refused) in [
            (0o600, 1000, false),
            (0o400, 0, false),
            (0o440, 0, false),
            (0o640, 0, false),
            (0o640, 1000, true),
            (0o604, 1000, true),
            (0o444, 0, true),
            (0o644, 0, true),
        ] {
            assert_eq!(is_exposed(0o100_000 | mode, owner), refused, "{mode:o} of {owner}");
        }
        let (_dir, path) = holding("two words \r\nmore");
        assert_eq!(read_secret_line(&path).unwrap(), "two words ");
        fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
        for result in [check_secret(&path), read_secret(&path).map(drop), read_key(&path).map(drop)]
        {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("run `chmod 600 "), "{error}");
        }
        // What Kubernetes has given to a group is taken back; what everybody may read stays refused.
        assert!(read_own_secret(&path).is_err());
        fs::set_permissions(&path, Permissions::from_mode(0o660)).unwrap();
        read_own_secret(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_secret_that_is_replaced_stays_readable_for_those_who_could_read_it() {
        let (_dir, path) = holding("one");
        // Only root can give files away.
        let is_roots = fchown(File::open(&path).unwrap(), Some(0), Some(990)).is_ok();
        let access = || fs::metadata(&path).map(|file| (file.mode() & 0o777, file.gid())).unwrap();
        for (mode, kept) in [(0o640, is_roots), (0o400, true), (0o644, false)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let group = access().1;
            write(&path, b"two", true).unwrap();
            assert_eq!(access().0, if kept { mode } else { 0o600 }, "{mode:o}");
            assert_eq!(access().1 == group, kept || !is_roots, "{mode:o}");
        }
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let (dir, path) = holding("one");
        write(&path, b"two", false).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        let error = write_new(&path, b"three", true).unwrap_err();
        assert!(matches!(error, CertError::Exists(_)), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"two");
        write_new(&dir.path().join("other"), b"four", true).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        let mode = |name| fs::metadata(dir.path().join(name)).unwrap().mode() & 0o777;
        assert_eq!((mode("file.pem"), mode("other")), (0o644, 0o600));
    }
}
