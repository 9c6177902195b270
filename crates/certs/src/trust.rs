//! The CAs that verify the other side's certificate.

use std::path::Path;

use rustls::RootCertStore;

use crate::{CertError, dev_ca_locations, files};

/// The CAs of a file.
///
/// # Errors
/// The file cannot be read, or something in it cannot be a CA.
pub fn roots_of(path: &Path) -> Result<RootCertStore, CertError> {
    let mut roots = RootCertStore::empty();
    for certificate in files::read_chain(path)? {
        let unusable = |source| CertError::Unusable { path: path.to_owned(), source };
        roots.add(certificate).map_err(unusable)?;
    }
    Ok(roots)
}

/// The CAs by which a client verifies a server: those of a file; without one the system's and, of a server on this
/// machine (`loopback`), its development CA.
///
/// # Errors
/// The file cannot be read, or something in it cannot be a CA.
pub fn roots(file: Option<&Path>, loopback: bool) -> Result<RootCertStore, CertError> {
    if let Some(path) = file {
        return roots_of(path);
    }
    let mut roots = RootCertStore::empty();
    if loopback {
        for path in dev_ca_locations().iter().filter(|path| path.is_file()) {
            // A broken default file is no error by itself: verification fails if it was needed.
            roots.add_parsable_certificates(files::read_chain(path).unwrap_or_default());
        }
    }
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    Ok(roots)
}
