//! The rustls configuration of a client: which servers it trusts, and its own certificate.
//!
//! One configuration is made for a client and shared by all its connections, because it has the session tickets for
//! 0-RTT. They end with the process: rustls does not let a client store them.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme, SupportedProtocolVersion};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::error::Error;
use crate::options::{Options, TlsVersion, Trust};
use crate::url::{BrokerUrl, Transport};

fn options_error(error: impl ToString) -> Error {
    Error::Options(error.to_string())
}

impl Options {
    /// The TLS configuration with which a client with these options connects, without ALPN protocols: for programs
    /// that drive their own connections.
    ///
    /// # Errors
    /// A certificate or key cannot be read or used.
    pub fn tls_config(&self) -> Result<ClientConfig, Error> {
        client_config(self)
    }

    /// Lets all clients with clones of these options share the tickets of servers, so that a new client returns with
    /// TLS resumption and, over QUIC, with 0-RTT. This fixes `trust`, `certificate` and `tls_version`: later changes
    /// to them have no effect.
    ///
    /// # Errors
    /// A certificate or key cannot be read or used.
    pub fn with_shared_tickets(mut self) -> Result<Options, Error> {
        self.tickets.tls = Some(client_config(&self)?);
        Ok(self)
    }
}

/// Makes the configuration, without ALPN protocols.
pub(crate) fn client_config(options: &Options) -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions(options))
        .map_err(options_error)?;
    let builder = match &options.trust {
        Trust::Insecure => {
            let anybody = Arc::new(Anybody(provider));
            builder.dangerous().with_custom_certificate_verifier(anybody)
        }
        trust => {
            let loopback =
                options.url.is_loopback() && options.others.iter().all(BrokerUrl::is_loopback);
            let file = if let Trust::CaFile(path) = trust { Some(&**path) } else { None };
            let roots = fulmar_certs::trust::roots(file, loopback).map_err(options_error)?;
            builder.with_root_certificates(roots)
        }
    };
    let mut config = match &options.certificate {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let certificates = fulmar_certs::files::read_chain(chain).map_err(options_error)?;
            let secret = fulmar_certs::files::read_key(key).map_err(options_error)?;
            builder.with_client_auth_cert(certificates, secret).map_err(|error| {
                let (chain, key) = (chain.display(), key.display());
                Error::Options(format!("certificate {chain} and key {key}: {error}"))
            })?
        }
    };
    if let Some(path) = &options.key_log {
        config.key_log = fulmar_certs::KeyLogFile::open(path).map_err(options_error)?;
    }
    Ok(config)
}

static ONLY_1_2: &[&SupportedProtocolVersion] = &[&TLS12];
static ONLY_1_3: &[&SupportedProtocolVersion] = &[&TLS13];

fn versions(options: &Options) -> &'static [&'static SupportedProtocolVersion] {
    match options.tls_version.filter(|_| options.url.transport != Transport::Quic) {
        None => rustls::DEFAULT_VERSIONS,
        Some(TlsVersion::V1_2) => ONLY_1_2,
        Some(TlsVersion::V1_3) => ONLY_1_3,
    }
}

/// Accepts any certificate, but still requires the signature that proves possession of its key.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
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
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
