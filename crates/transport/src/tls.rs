//! TLS configurations of the listeners, with a certificate that can be replaced while they run.

use std::sync::Arc;

use parking_lot::RwLock;
pub use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// TLS sessions the server remembers for resumption, over all transports.
pub const REMEMBERED_SESSIONS: usize = 65_536;

/// Names of MQTT over QUIC in the handshake; the second is RMQTT's for MQTT 5.
const QUIC_ALPN: [&[u8]; 2] = [b"mqtt", b"mqttv5"];

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Certificate and key do not fit, or the key is of an unknown kind.
    #[error("certificate and private key cannot be used together: {0}")]
    Certificate(#[from] rustls::Error),
    /// The client authorities are unusable.
    #[error("client certificate authorities cannot be used: {0}")]
    ClientAuthorities(#[from] rustls::server::VerifierBuilderError),
    /// QUIC needs a cipher suite that is missing.
    #[error("no cipher suite for QUIC")]
    Quic(#[from] quinn_proto::crypto::rustls::NoInitialCipherSuite),
}

/// Whether clients show certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// They are not asked.
    #[default]
    Off,
    /// They may.
    Optional,
    /// They must.
    Required,
}

/// The server's certificate; replace it and new connections get the new one.
#[derive(Debug)]
pub struct Identity {
    current: RwLock<Arc<CertifiedKey>>,
}

impl Identity {
    /// From a chain, leaf first, and its key.
    ///
    /// # Errors
    /// They do not fit together.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Arc<Identity>, TlsError> {
        let current = RwLock::new(certified(chain, key)?);
        Ok(Arc::new(Identity { current }))
    }

    /// Replaces it.
    ///
    /// # Errors
    /// As [`Identity::new`]; the old one stays then.
    pub fn replace(
        &self,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<(), TlsError> {
        *self.current.write() = certified(chain, key)?;
        Ok(())
    }
}

fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<CertifiedKey>, TlsError> {
    Ok(Arc::new(CertifiedKey::from_der(chain, key, &default_provider())?))
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read()))
    }
}

/// TLS for every listener.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// For TCP: TLS 1.2 and 1.3.
    pub tcp: Arc<ServerConfig>,
    /// For QUIC: TLS 1.3 with early data.
    pub quic: Arc<ServerConfig>,
    /// Whether clients show certificates.
    pub client_auth: ClientAuth,
}

impl ServerTls {
    /// Both configurations from one identity.
    ///
    /// # Errors
    /// The client authorities are unusable.
    pub fn new(
        identity: &Arc<Identity>,
        client_auth: ClientAuth,
        client_roots: RootCertStore,
    ) -> Result<ServerTls, TlsError> {
        // Stateful on both: rustls allows early data only with tickets that the server remembers,
        // and takes each once, which is what keeps a recorded first flight from working twice.
        let sessions = rustls::server::ServerSessionMemoryCache::new(REMEMBERED_SESSIONS);
        let provider = Arc::new(default_provider());
        let build = |versions: &[&'static rustls::SupportedProtocolVersion]| {
            let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(versions)?;
            let builder = if client_auth == ClientAuth::Off {
                builder.with_no_client_auth()
            } else {
                let roots = Arc::new(client_roots.clone());
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
                let verifier = match client_auth {
                    ClientAuth::Optional => verifier.allow_unauthenticated(),
                    _ => verifier,
                };
                builder.with_client_cert_verifier(verifier.build()?)
            };
            let mut config = builder.with_cert_resolver(Arc::clone(identity) as _);
            // AES or ChaCha20 as the client's hardware likes: its order counts, which is the default.
            config.session_storage = Arc::clone(&sessions) as _;
            config.send_tls13_tickets = 1;
            Ok::<_, TlsError>(config)
        };
        let tcp = build(rustls::ALL_VERSIONS)?;
        let mut quic = build(&[&rustls::version::TLS13])?;
        quic.alpn_protocols = QUIC_ALPN.map(<[u8]>::to_vec).to_vec();
        quic.max_early_data_size = u32::MAX;
        Ok(ServerTls { tcp: Arc::new(tcp), quic: Arc::new(quic), client_auth })
    }
}

/// The name in a verified client certificate: its subject's common name, at most 256 bytes.
#[must_use]
pub fn client_name(leaf: &CertificateDer<'_>) -> Option<Box<str>> {
    fulmar_certs::common_name(leaf).filter(|name| name.len() <= 256)
}
