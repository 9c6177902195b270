//! Answers to an ACME server that validates names over TLS (RFC 8737).
//!
//! With a TLS configuration of its own, because the validating server has no client certificate, even if clients need
//! one.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Context as _;
use fulmar_certs::issued;
use fulmar_http::ACME_ALPN;
use parking_lot::Mutex;
use rustls::crypto::ring::default_provider;
use rustls::server::{ClientHello, ResolvesServerCert, ServerConfig};
use rustls::sign::CertifiedKey;

/// The challenge certificates by name, while an order is open.
#[derive(Debug, Default)]
pub(super) struct Challenges(Mutex<HashMap<String, Arc<CertifiedKey>>>);

impl Challenges {
    /// For the `https` listener.
    pub(super) fn tls(self: &Arc<Challenges>) -> anyhow::Result<Arc<ServerConfig>> {
        let mut tls = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .context("TLS for ACME's challenges")?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(self) as _);
        tls.alpn_protocols = vec![ACME_ALPN.to_vec()];
        Ok(Arc::new(tls))
    }

    /// Answers for `name` from now on; `digest` is the SHA-256 of the key authorization.
    pub(super) fn answer(&self, name: &str, digest: &[u8]) -> anyhow::Result<()> {
        let digest = digest.try_into().context("SHA-256 has 32 bytes")?;
        let (certificate, key) = issued::challenge(name, digest)?;
        // Not `from_der`, which refuses a certificate with a critical extension that it does not know.
        let key = default_provider().key_provider.load_private_key(key)?;
        let shown = CertifiedKey::new(vec![certificate], key);
        self.0.lock().insert(name.to_ascii_lowercase(), Arc::new(shown));
        Ok(())
    }

    /// Ends answering.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

impl ResolvesServerCert for Challenges {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        // rustls has converted the name to lower case.
        self.0.lock().get(hello.server_name()?).cloned()
    }
}
