//! Reading and writing PEM files.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::CertError;

fn file_error(path: &Path, source: std::io::Error) -> CertError {
    CertError::File { path: path.to_owned(), source }
}

/// Reads a certificate chain, leaf first.
///
/// # Errors
/// The file cannot be read or holds no certificate.
pub fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertError> {
    let bytes = fs::read(path).map_err(|source| file_error(path, source))?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok).collect();
    if chain.is_empty() {
        return Err(CertError::Missing { path: path.to_owned(), wanted: "certificate" });
    }
    Ok(chain)
}

/// Reads a private key; refuses one that group or others can read.
///
/// # Errors
/// The file cannot be read, is open to others, or holds no key.
pub fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, CertError> {
    let metadata = fs::metadata(path).map_err(|source| file_error(path, source))?;
    if metadata.mode() & 0o077 != 0 {
        return Err(CertError::KeyExposed(path.to_owned()));
    }
    let bytes = fs::read(path).map_err(|source| file_error(path, source))?;
    PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|_| CertError::Missing { path: path.to_owned(), wanted: "private key" })
}

/// Writes a file whole or not at all, readable by its owner only if `secret`.
///
/// # Errors
/// The system refuses.
pub fn write(path: &Path, contents: &[u8], secret: bool) -> Result<(), CertError> {
    let fail = |source| file_error(path, source);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let temporary = path.with_file_name(name);
    let mode = if secret { 0o600 } else { 0o644 };
    let open =
        OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&temporary);
    let mut file = open.map_err(fail)?;
    file.write_all(contents).and_then(|()| file.sync_all()).map_err(fail)?;
    fs::rename(&temporary, path).map_err(fail)?;
    // The rename itself has to survive a power cut.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all()).map_err(fail)
}

/// As [`write()`], but never over a file that is there.
///
/// # Errors
/// The file exists, or the system refuses.
pub fn write_new(path: &Path, contents: &[u8], secret: bool) -> Result<(), CertError> {
    if path.exists() {
        return Err(CertError::Exists(path.to_owned()));
    }
    write(path, contents, secret)
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
