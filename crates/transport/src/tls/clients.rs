//! Requirements on clients' certificates, which can be replaced while listeners run, and TLS sessions bound to them.
//!
//! A resumed session skips the request for a certificate: the session identifies the client.
//! So a session may only be resumed under the demands it was made under; [`Bound`] sees to that,
//! over an exchange of the authorities and over restarts.

use std::sync::Arc;

use parking_lot::RwLock;
use ring::digest;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    NoClientAuth, StoresServerSessions, VerifierBuilderError, WebPkiClientVerifier,
};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use super::ClientAuth;

/// Verifies clients' certificates against authorities that can be exchanged.
#[derive(Debug)]
pub(super) struct Clients {
    auth: ClientAuth,
    provider: Arc<CryptoProvider>,
    demands: RwLock<Demands>,
}

#[derive(Clone, Debug)]
struct Demands {
    verifier: Arc<dyn ClientCertVerifier>,
    /// Distinguishes these requirements from all others.
    scope: [u8; 32],
}

impl Demands {
    fn new(
        auth: ClientAuth,
        roots: RootCertStore,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Demands, VerifierBuilderError> {
        let scope = scope(auth, &roots);
        let builder = || {
            let provider = Arc::clone(provider);
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        };
        let verifier = match auth {
            ClientAuth::Off => Arc::new(NoClientAuth) as Arc<dyn ClientCertVerifier>,
            ClientAuth::Optional => builder().allow_unauthenticated().build()?,
            ClientAuth::Required => builder().build()?,
        };
        Ok(Demands { verifier, scope })
    }
}

impl Clients {
    pub(super) fn new(
        auth: ClientAuth,
        roots: RootCertStore,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<Clients>, VerifierBuilderError> {
        let demands = RwLock::new(Demands::new(auth, roots, provider)?);
        Ok(Arc::new(Clients { auth, provider: Arc::clone(provider), demands }))
    }

    pub(super) fn replace(&self, roots: RootCertStore) -> Result<(), VerifierBuilderError> {
        *self.demands.write() = Demands::new(self.auth, roots, &self.provider)?;
        Ok(())
    }

    fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.demands.read().verifier)
    }
}

impl ClientCertVerifier for Clients {
    fn offer_client_auth(&self) -> bool {
        self.auth != ClientAuth::Off
    }

    fn client_auth_mandatory(&self) -> bool {
        self.auth == ClientAuth::Required
    }

    /// None: the list would have to outlive an exchange, and devices have one certificate.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verifier().verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier().supported_verify_schemes()
    }
}

/// Digest of a full handshake's requirements for a client.
fn scope(auth: ClientAuth, roots: &RootCertStore) -> [u8; 32] {
    let mut parts: Vec<[&[u8]; 3]> = roots.roots.iter().map(anchor).collect();
    parts.sort_unstable();
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&[auth as u8]);
    for part in parts.iter().flatten() {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    finish(context)
}

fn anchor<'a>(anchor: &'a rustls::pki_types::TrustAnchor<'_>) -> [&'a [u8]; 3] {
    let constraints = anchor.name_constraints.as_deref().unwrap_or_default();
    [&anchor.subject, &anchor.subject_public_key_info, constraints]
}

fn finish(context: digest::Context) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(context.finish().as_ref());
    bytes
}

/// A store of sessions in which only those made under the present demands are found.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) sessions: Arc<dyn StoresServerSessions>,
    pub(super) clients: Arc<Clients>,
}

impl Bound {
    fn key(&self, name: &[u8]) -> Vec<u8> {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&self.clients.demands.read().scope);
        context.update(name);
        finish(context).to_vec()
    }
}

impl StoresServerSessions for Bound {
    fn put(&self, name: Vec<u8>, session: Vec<u8>) -> bool {
        self.sessions.put(self.key(&name), session)
    }

    fn get(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.sessions.get(&self.key(name))
    }

    fn take(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.sessions.take(&self.key(name))
    }

    fn can_cache(&self) -> bool {
        self.sessions.can_cache()
    }
}
