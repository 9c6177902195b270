//! TLS configurations of the listeners. What they show and what they demand of clients can be
//! replaced while they run.
//!
//! Cipher suites go by the client's order, so that its hardware decides between AES and ChaCha20.
//! Over TCP no ALPN is negotiated: MQTT clients send none or what they like. Connections are not
//! made here, and early data is for QUIC only.

mod clients;
mod sessions;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fulmar_broker::{PeerCertificate, PeerIdentity, Timestamp};
use fulmar_certs::{CertificateId, KeyLogFile, RevocationList};
use parking_lot::RwLock;
pub use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::SignatureAlgorithm;
use rustls::crypto::ring::default_provider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert, StoresServerSessions};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::tickets::{TicketError, Tickets};
use clients::{Bound, Clients};
use serde::{Deserialize, Serialize};
use sessions::MemorySessions;

/// Names of MQTT over QUIC in the handshake; the second is RMQTT's for MQTT 5.
const QUIC_ALPN: [&[u8]; 2] = [b"mqtt", b"mqttv5"];

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Certificate and key do not fit, or the key is of an unknown kind.
    #[error("certificate and private key cannot be used together: {0}")]
    Certificate(#[from] rustls::Error),
    /// The certificate is of a kind that clients refuse.
    #[error("the certificate cannot be used: {0}")]
    Defect(String),
    /// The client authorities are unusable.
    #[error("client CAs cannot be used: {0}")]
    ClientAuthorities(#[from] rustls::server::VerifierBuilderError),
    /// QUIC needs a cipher suite that is missing.
    #[error("no cipher suite for QUIC")]
    Quic(#[from] quinn_proto::crypto::rustls::NoInitialCipherSuite),
    /// Tickets cannot be kept.
    #[error(transparent)]
    Tickets(#[from] TicketError),
}

/// Roots and revocations against which clients' certificates are verified.
#[derive(Clone, Debug)]
pub struct ClientTrust {
    /// The CAs.
    pub roots: RootCertStore,
    /// Certificates that they have revoked. If there are lists, there has to be one of each CA.
    pub revocation_lists: Vec<RevocationList>,
    /// Whether a list past its next update still counts; otherwise it counts as missing.
    pub accept_expired_lists: bool,
}

impl From<RootCertStore> for ClientTrust {
    fn from(roots: RootCertStore) -> ClientTrust {
        ClientTrust { roots, revocation_lists: Vec::new(), accept_expired_lists: false }
    }
}

/// Whether clients show certificates.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
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
    current: RwLock<Arc<Current>>,
}

#[derive(Debug)]
struct Current {
    certified: Arc<CertifiedKey>,
    key: PrivateKeyDer<'static>,
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
        let current = Current { certified: certified(chain, key.clone_key())?, key };
        Ok(Arc::new(Identity { current: RwLock::new(Arc::new(current)) }))
    }

    /// Shows `new`'s certificate from now on, also on listeners that run.
    pub fn replace(&self, new: &Identity) {
        let new = Arc::clone(&new.current.read());
        *self.current.write() = new;
    }

    /// When the certificate that it shows now expires.
    pub fn not_after(&self) -> Option<SystemTime> {
        let current = self.current.read();
        Some(*fulmar_certs::validity(current.certified.cert.first()?)?.end())
    }

    /// The certificate that it shows now and its key, DER; `None` if that is not an ECDSA key.
    pub fn ecdsa(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let current = self.current.read();
        let is_ecdsa = current.certified.key.algorithm() == SignatureAlgorithm::ECDSA;
        let leaf = current.certified.cert.first().filter(|_| is_ecdsa)?;
        Some((leaf.to_vec(), current.key.secret_der().to_vec()))
    }
}

/// Without the root at a chain's end: clients trust it already (RFC 8446 section 4.4.2), and without it most chains
/// fit the first datagram of a QUIC handshake.
fn certified(
    mut chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<CertifiedKey>, TlsError> {
    while chain.len() > 1 && chain.last().is_some_and(fulmar_certs::is_root) {
        chain.pop();
    }
    if let Some(defect) = chain.first().and_then(fulmar_certs::defect) {
        return Err(TlsError::Defect(defect));
    }
    Ok(Arc::new(CertifiedKey::from_der(chain, key, &default_provider())?))
}

/// A failed handshake in words.
pub(crate) fn explained(error: &rustls::Error) -> String {
    let hint = match error {
        rustls::Error::PeerIncompatible(rustls::PeerIncompatible::NoCipherSuitesInCommon) => {
            "; a client with TLS 1.2 that knows RSA only needs a certificate with an RSA key, which the development CA \
             does not make: [tls] cert and key"
        }
        _ => "",
    };
    format!("{error}{hint}")
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read().certified))
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
    clients: Arc<Clients>,
}

impl ServerTls {
    /// Both configurations from one identity; tickets end with the process.
    ///
    /// # Errors
    /// The client authorities are unusable.
    pub fn new(
        identity: &Arc<Identity>,
        client_auth: ClientAuth,
        client_roots: RootCertStore,
    ) -> Result<ServerTls, TlsError> {
        ServerTls::with_tickets(identity, client_auth, client_roots, &Tickets::in_memory()?)
    }

    /// The same with QUIC's tickets in a store that may outlive the process.
    ///
    /// # Errors
    /// The client authorities are unusable.
    pub fn with_tickets(
        identity: &Arc<Identity>,
        client_auth: ClientAuth,
        trust: impl Into<ClientTrust>,
        tickets: &Arc<Tickets>,
    ) -> Result<ServerTls, TlsError> {
        let provider = Arc::new(default_provider());
        let clients = Clients::new(client_auth, trust.into(), &provider)?;
        let build = |versions: &[&'static rustls::SupportedProtocolVersion],
                     sessions: Arc<dyn StoresServerSessions>| {
            let verifier = Arc::clone(&clients) as Arc<dyn ClientCertVerifier>;
            let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(versions)?
                .with_client_cert_verifier(verifier)
                .with_cert_resolver(Arc::clone(identity) as _);
            config.ignore_client_order = false;
            config.session_storage =
                Arc::new(Bound { sessions, clients: Arc::clone(&clients) }) as _;
            config.send_tls13_tickets = 1;
            Ok::<_, TlsError>(config)
        };
        let tcp = build(rustls::ALL_VERSIONS, Arc::new(MemorySessions::new()))?;
        let mut quic = build(&[&rustls::version::TLS13], Arc::clone(tickets) as _)?;
        quic.alpn_protocols = QUIC_ALPN.map(<[u8]>::to_vec).to_vec();
        quic.max_early_data_size = u32::MAX;
        Ok(ServerTls { tcp: Arc::new(tcp), quic: Arc::new(quic), client_auth, clients })
    }

    /// The same, and the secrets of all connections are appended to a file.
    pub fn with_key_log(mut self, file: &Arc<KeyLogFile>) -> ServerTls {
        for config in [&mut self.tcp, &mut self.quic] {
            Arc::make_mut(config).key_log = Arc::clone(file) as _;
        }
        self
    }

    /// The same demands and tickets, with another certificate to show.
    pub fn showing(&self, identity: &Arc<Identity>) -> ServerTls {
        let other = |config: &Arc<ServerConfig>| {
            let mut config = (**config).clone();
            config.cert_resolver = Arc::clone(identity) as _;
            Arc::new(config)
        };
        ServerTls { tcp: other(&self.tcp), quic: other(&self.quic), ..self.clone() }
    }

    /// Verifies clients' certificates against these authorities and revocation lists from now on, also on listeners
    /// that run. If authorities or revoked certificates have changed, sessions made before are not resumed.
    ///
    /// # Errors
    /// They are unusable; the old ones stay then.
    pub fn replace_client_trust(&self, trust: impl Into<ClientTrust>) -> Result<(), TlsError> {
        Ok(self.clients.replace(trust.into())?)
    }

    /// Verifies clients' certificates as all listeners do, replacements included.
    pub fn client_verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.clients) as _
    }
}

/// The user whom the first certificate of a verified chain names; `None` for what cannot be a name. The chain may be that
/// of a session that is resumed, whose certificates nobody has verified again: its end is in the result.
pub fn client_name(chain: &[CertificateDer<'_>]) -> Option<PeerIdentity> {
    let leaf = chain.first()?;
    let name = fulmar_certs::user_name(leaf)?;
    let until = fulmar_certs::end_of_chain(chain)?.duration_since(UNIX_EPOCH).ok()?;
    // The last second is within the validity (RFC 5280 section 4.1.2.5).
    let until = u64::try_from(until.as_millis()).ok()?.saturating_add(1000);
    let number = CertificateId::from_certificate(leaf).map(|id| id.0);
    let certificate = PeerCertificate { number, until: Timestamp(until) };
    PeerIdentity::certified(&name, certificate).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_cannot_make_its_holder_a_part_of_the_program() {
        let named = |name: &str| {
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap()
        };
        let meter = client_name(&[named("meter-7").der().clone()]).unwrap();
        assert_eq!(meter.user().operators(), Some("meter-7"));
        assert_eq!(client_name(&[named("platform:").der().clone()]), None);
        assert_eq!(client_name(&[named("platform:admin").der().clone()]), None);
    }

    #[test]
    fn a_root_is_not_shown_unless_it_is_all_there_is() {
        let key = || rcgen::KeyPair::generate().unwrap();
        let named = |name: &str| {
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params
        };
        let (root_key, leaf_key) = (key(), key());
        let root = named("root").self_signed(&root_key).unwrap();
        let authority = named("root");
        let issuer = rcgen::Issuer::from_params(&authority, &root_key);
        let leaf = named("leaf").signed_by(&leaf_key, &issuer).unwrap();
        let shown = |chain: &[&rcgen::Certificate], key: &rcgen::KeyPair| {
            let chain = chain.iter().map(|certificate| certificate.der().clone()).collect();
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            Identity::new(chain, key).unwrap().current.read().certified.cert.clone()
        };
        assert_eq!(shown(&[&leaf, &root], &leaf_key), [leaf.der().clone()]);
        assert_eq!(shown(&[&root], &root_key), [root.der().clone()]);
    }
}
