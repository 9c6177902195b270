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
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use super::{ClientAuth, ClientTrust};

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
    /// From then on clients without a handshake of their own are not accepted, in seconds since the Unix epoch: a
    /// revocation list has expired.
    until: i64,
}

impl Demands {
    fn new(
        auth: ClientAuth,
        trust: ClientTrust,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Demands, VerifierBuilderError> {
        let scope = scope(auth, &trust);
        let ClientTrust { roots, revocation_lists: lists, accept_expired_lists } = trust;
        let next_updates = lists.iter().filter_map(|list| list.next_update);
        let until = next_updates.min().filter(|_| !accept_expired_lists).unwrap_or(i64::MAX);
        let builder = || {
            let provider = Arc::clone(provider);
            let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            // As mosquitto's crlfile: only clients' own certificates are looked up, and there must be a valid list.
            let builder = builder.only_check_end_entity_revocation();
            let builder = builder.with_crls(lists.into_iter().map(|list| list.der));
            if accept_expired_lists { builder } else { builder.enforce_revocation_expiration() }
        };
        let verifier = match auth {
            ClientAuth::Off => Arc::new(NoClientAuth) as Arc<dyn ClientCertVerifier>,
            ClientAuth::Optional => builder().allow_unauthenticated().build()?,
            ClientAuth::Required => builder().build()?,
        };
        Ok(Demands { verifier, scope, until })
    }
}

impl Clients {
    pub(super) fn new(
        auth: ClientAuth,
        trust: ClientTrust,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<Clients>, VerifierBuilderError> {
        let demands = RwLock::new(Demands::new(auth, trust, provider)?);
        Ok(Arc::new(Clients { auth, provider: Arc::clone(provider), demands }))
    }

    pub(super) fn replace(&self, trust: ClientTrust) -> Result<(), VerifierBuilderError> {
        *self.demands.write() = Demands::new(self.auth, trust, &self.provider)?;
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
fn scope(auth: ClientAuth, trust: &ClientTrust) -> [u8; 32] {
    let mut parts: Vec<[&[u8]; 3]> = trust.roots.roots.iter().map(anchor).collect();
    parts.sort_unstable();
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&[auth as u8]);
    for part in parts.iter().flatten() {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    // Not the lists: a new one that revokes nothing more need not cost all clients a handshake.
    let mut revoked: Vec<_> =
        trust.revocation_lists.iter().flat_map(|list| &list.revoked).collect();
    revoked.sort_unstable();
    revoked.dedup();
    context.update(&[u8::from(!trust.revocation_lists.is_empty())]);
    for id in revoked {
        context.update(&id.0.to_be_bytes());
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
    /// Whether the revocation lists are still valid, which only a full handshake checks.
    fn may_resume(&self) -> bool {
        let now = i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX);
        now < self.clients.demands.read().until
    }

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
        self.may_resume().then_some(())?;
        self.sessions.get(&self.key(name))
    }

    fn take(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.may_resume().then_some(())?;
        self.sessions.take(&self.key(name))
    }

    fn can_cache(&self) -> bool {
        self.sessions.can_cache()
    }
}
