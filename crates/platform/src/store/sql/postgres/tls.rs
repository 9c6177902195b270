//! TLS to the server: its certificate must be good for its name.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::super::DatabaseError;

/// What makes connections TLS, believing the authorities of this PEM file or else the system's.
pub(super) fn connector(ca_file: Option<&Path>) -> Result<MakeRustlsConnect, DatabaseError> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            let wrong = |error: &dyn std::fmt::Display| {
                DatabaseError::Setting(format!("CAs in {}: {error}", path.display()))
            };
            let certificates =
                CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| wrong(&error))?;
                roots.add(certificate).map_err(|error| wrong(&error))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| DatabaseError::Setting(error.to_string()))?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}
