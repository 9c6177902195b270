//! Access to files, so that tests and fuzzing need no disk.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fulmar_certs::CertError;
use fulmar_certs::files::check_secret;
use rustix::fs::OFlags;

use super::report::{Error, SourceLine};

/// Largest file that is read: a password file with some 400,000 users.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Files in a folder of `include_dir`.
const MAX_INCLUDED: usize = 1000;

/// The machine of the configuration.
pub trait Files {
    /// The contents of a file.
    ///
    /// # Errors
    /// It cannot be read, or is no regular file.
    fn read(&self, path: &Path) -> io::Result<String>;

    /// The files in a folder.
    ///
    /// # Errors
    /// It cannot be read.
    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>>;

    /// Whether the file is open to others, so that the server refuses a secret in it.
    fn is_exposed(&self, path: &Path) -> bool;

    /// The addresses of a host name.
    ///
    /// # Errors
    /// There are none.
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;

    /// The machine's name; empty if it is not known.
    fn host_name(&self) -> String;

    /// Whether the machine has IPv6.
    fn has_ipv6(&self) -> bool;
}

/// This machine.
#[derive(Debug)]
pub struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path) -> io::Result<String> {
        // Opening a FIFO would wait for its other end; reading a device may have effects, or no end.
        let wait_for_nothing = OFlags::NONBLOCK.bits().cast_signed();
        let irregular = || io::Error::new(ErrorKind::InvalidInput, "it is no regular file");
        if !path.metadata()?.is_file() {
            return Err(irregular());
        }
        let file = File::options().read(true).custom_flags(wait_for_nothing).open(path)?;
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(irregular());
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
        // As the kernel's own files below /proc say.
        if about.len() == 0 && !bytes.is_empty() {
            return Err(irregular());
        }
        if bytes.len() as u64 > MAX_FILE_BYTES {
            let text = format!("more than {MAX_FILE_BYTES} bytes");
            return Err(io::Error::new(ErrorKind::FileTooLarge, text));
        }
        String::from_utf8(bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(folder)?.take(MAX_INCLUDED + 1);
        let paths: Vec<PathBuf> =
            entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        if paths.len() > MAX_INCLUDED {
            return Err(io::Error::other(format!("more than {MAX_INCLUDED} files")));
        }
        Ok(paths)
    }

    fn is_exposed(&self, path: &Path) -> bool {
        matches!(check_secret(path), Err(CertError::SecretExposed(_)))
    }

    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok((host, port).to_socket_addrs()?.collect())
    }

    fn host_name(&self) -> String {
        std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default()
    }

    fn has_ipv6(&self) -> bool {
        TcpListener::bind("[::1]:0").is_ok()
    }
}

/// Reads a file that is named somewhere.
pub(super) fn read(
    files: &dyn Files,
    path: &Path,
    named_at: Option<&SourceLine>,
) -> Result<String, Error> {
    files.read(path).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::PermissionDenied => "; run the import as root or as mosquitto's user",
            ErrorKind::NotFound if path.is_relative() => {
                "; a relative path begins at the current folder, as mosquitto's does"
            }
            _ => "",
        };
        let text = format!("{error}{hint}");
        let path = path.display();
        match named_at {
            Some(place) => Error::malformed(place, format!("cannot read {path}: {text}")),
            None => Error::Unreadable { path: path.to_string(), text },
        }
    })
}

/// The lines of a file with their places, without spaces around them, empty ones and comments.
pub(super) fn lines<'a>(file: &Path, text: &'a str) -> impl Iterator<Item = (SourceLine, &'a str)> {
    let file: Arc<Path> = file.into();
    // Some editors put a byte order mark first.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines.map(move |(line, text)| (SourceLine { file: Arc::clone(&file), line }, text))
}

#[cfg(test)]
#[path = "files_tests.rs"]
pub(super) mod tests;
