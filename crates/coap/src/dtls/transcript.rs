//! A handshake's messages as they were on the wire, if dimpl has other ones. This cryptography changes the messages
//! before they are hashed, signed and verified, in the same way in which the datagrams were changed.
//!
//! If the two changes differed, the handshake would fail; it would never be weaker.

use dimpl::CryptoError;
use dimpl::crypto::{
    Buf, CryptoProvider, HashAlgorithm, HashContext, HashProvider, KeyProvider, SignatureAlgorithm,
    SignatureVerifier, SigningKey, rust_crypto,
};

/// The changed messages, if a change is necessary.
type Change = fn(&[u8]) -> Option<Vec<u8>>;

/// dimpl's own cryptography, over changed messages.
#[derive(Debug)]
pub(super) struct Changed(pub(super) Change);

impl Changed {
    /// For a client, which hashes and signs.
    pub(super) fn client(&'static self) -> CryptoProvider {
        CryptoProvider {
            hash_provider: self,
            key_provider: self,
            ..rust_crypto::default_provider()
        }
    }

    /// For a server, which hashes and verifies. It does not sign messages.
    pub(super) fn server(&'static self) -> CryptoProvider {
        CryptoProvider {
            hash_provider: self,
            signature_verification: self,
            ..rust_crypto::default_provider()
        }
    }
}

impl HashProvider for Changed {
    fn create_hash(&self, algorithm: HashAlgorithm) -> Box<dyn HashContext> {
        let inner = rust_crypto::default_provider().hash_provider.create_hash(algorithm);
        Box::new(Hash { inner, change: Some(self.0) })
    }
}

impl KeyProvider for Changed {
    fn load_private_key(&self, key: &[u8]) -> Result<Box<dyn SigningKey>, CryptoError> {
        let inner = rust_crypto::default_provider().key_provider.load_private_key(key)?;
        Ok(Box::new(Key { inner, change: self.0 }))
    }
}

impl SignatureVerifier for Changed {
    fn verify_signature(
        &self,
        certificate: &[u8],
        data: &[u8],
        signature: &[u8],
        hash: HashAlgorithm,
        algorithm: SignatureAlgorithm,
    ) -> Result<(), CryptoError> {
        let changed = (self.0)(data);
        let data = changed.as_deref().unwrap_or(data);
        let inner = rust_crypto::default_provider().signature_verification;
        inner.verify_signature(certificate, data, signature, hash, algorithm)
    }
}

#[derive(Debug)]
struct Hash {
    inner: Box<dyn HashContext>,
    /// Until the first messages have arrived.
    change: Option<Change>,
}

impl HashContext for Hash {
    fn update(&mut self, data: &[u8]) {
        let changed = self.change.take().and_then(|change| change(data));
        self.inner.update(changed.as_deref().unwrap_or(data));
    }

    fn clone_and_finalize(&self, out: &mut Buf) {
        self.inner.clone_and_finalize(out);
    }
}

#[derive(Debug)]
struct Key {
    inner: Box<dyn SigningKey>,
    change: Change,
}

impl SigningKey for Key {
    fn sign(
        &mut self,
        data: &[u8],
        algorithm: HashAlgorithm,
        out: &mut Buf,
    ) -> Result<(), CryptoError> {
        let changed = (self.change)(data);
        self.inner.sign(changed.as_deref().unwrap_or(data), algorithm, out)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.inner.algorithm()
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        self.inner.hash_algorithm()
    }

    fn supported_hash_algorithms(&self) -> &[HashAlgorithm] {
        self.inner.supported_hash_algorithms()
    }
}
