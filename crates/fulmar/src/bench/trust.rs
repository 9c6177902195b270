//! Whether to believe the broker's certificate: an authority's file, or nobody's word at all.
//!
//! `--insecure` exists because a load generator sends nothing worth protecting, and a peer's test
//! certificate is nobody's. No other command has it through this file.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::exit::Usage;

/// TLS 1.3 for QUIC with ALPN `mqtt`.
///
/// # Errors
/// Neither a file nor `insecure`, or a file without certificates.
pub(super) fn tls(cafile: Option<&Path>, insecure: bool) -> anyhow::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?;
    let mut config = match cafile {
        _ if insecure => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth(),
        Some(file) => builder.with_root_certificates(roots(file)?).with_no_client_auth(),
        None => bail!(Usage(
            "quic:// needs --cafile FILE, or --insecure to believe any certificate".to_owned()
        )),
    };
    config.alpn_protocols = vec![b"mqtt".to_vec()];
    Ok(config)
}

fn roots(file: &Path) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let read = || format!("cannot read {}", file.display());
    for certificate in CertificateDer::pem_file_iter(file).with_context(read)? {
        roots.add(certificate.with_context(read)?)?;
    }
    if roots.is_empty() {
        bail!("{} holds no certificate", file.display());
    }
    Ok(roots)
}

/// Accepts any certificate; the handshake's signature is still checked, as its cost is part of what
/// is measured.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
