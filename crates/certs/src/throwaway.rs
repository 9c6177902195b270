//! An untrusted certificate for an end that has none of its own, in protocols that require one.

use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::CertError;

/// A self-signed certificate of a fresh P-256 key, and the key.
///
/// # Errors
/// The system has no randomness to give.
pub fn throwaway() -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), CertError> {
    let key = rcgen::KeyPair::generate()?;
    let params = rcgen::CertificateParams::new(vec!["client.invalid".to_owned()])?;
    let certificate = params.self_signed(&key)?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    Ok((certificate.der().clone(), key.into()))
}
