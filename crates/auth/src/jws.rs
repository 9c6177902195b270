//! JSON Web Signatures in their compact form (RFC 7515) under the algorithms that issuers of tokens use (RFC 7518
//! section 3.1, RFC 8037): keys are read, and signatures checked by ring. What the claims say is not looked at here.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_PKCS1_RSAENCRYPTION, OID_SIG_ED25519,
};
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::SubjectPublicKeyInfo;

/// Octets of a point of P-256 that is not compressed (SEC 1 section 2.3.3), and of each of its coordinates.
const POINT_BYTES: usize = 65;
const COORDINATE_BYTES: usize = 32;
/// Octets of a public key of Ed25519 (RFC 8032 section 5.1.5).
const ED25519_BYTES: usize = 32;

/// Octets of the shortest secret for HS256 (RFC 7518 section 3.2).
const MIN_SECRET_BYTES: usize = 32;

/// Why a key cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The secret can be guessed from a token.
    #[error(
        "a secret for HS256 must have at least {MIN_SECRET_BYTES} bytes (RFC 7518 section 3.2): \
         `openssl rand -hex 32` makes one"
    )]
    Short,
    /// There is no public key in the file.
    #[error("the file has no public key and no certificate in PEM")]
    Pem,
    /// The file has a key of another kind.
    #[error("the public key is not one for this algorithm")]
    Kind,
    /// What is in the key set is no key of the kind it says.
    #[error("a key of the set is not what its kty and crv say")]
    Set,
}

/// What checks signatures; its kind fixes the algorithm.
pub(crate) enum Key {
    Hs256(hmac::Key),
    /// In DER (RFC 8017 appendix A.1.1).
    Rs256(Vec<u8>),
    /// As a key set has it: modulus and exponent, big-endian.
    Rs256Parts(RsaPublicKeyComponents<Vec<u8>>),
    Es256([u8; POINT_BYTES]),
    EdDsa([u8; ED25519_BYTES]),
}

/// What a token says of itself (RFC 7515 section 4.1).
#[derive(Deserialize)]
pub(crate) struct Header {
    pub(crate) alg: String,
    pub(crate) kid: Option<String>,
    /// Extensions that must be understood; none is.
    crit: Option<IgnoredAny>,
}

/// A token, taken apart.
pub(crate) struct Token<'a> {
    pub(crate) header: Header,
    /// The signature is of this.
    signed: &'a str,
    claims: &'a str,
    signature: Vec<u8>,
}

/// A key of a set (RFC 7517 section 4, RFC 7518 section 6, RFC 8037 section 2).
#[derive(Deserialize)]
pub(crate) struct Jwk {
    kty: String,
    pub(crate) kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
    k: Option<String>,
}

impl<'a> Token<'a> {
    /// `None` if it is not one: three parts in base64url of which the first is a header.
    pub(crate) fn read(text: &'a str) -> Option<Token<'a>> {
        let (signed, signature) = text.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let header: Header = part(header)?;
        Some(Token { header, signed, claims, signature: bytes(signature)? })
    }

    /// Whether there are extensions that must be understood (RFC 7515 section 4.1.11).
    pub(crate) fn has_extensions(&self) -> bool {
        self.header.crit.is_some()
    }

    /// Whether this key signed it.
    pub(crate) fn is_signed_by(&self, key: &Key) -> bool {
        key.algorithm() == self.header.alg && key.signed(self.signed.as_bytes(), &self.signature)
    }

    /// What is claimed, which counts only in a token that is signed. `None` if it is something else.
    pub(crate) fn claims<T: DeserializeOwned>(&self) -> Option<T> {
        part(self.claims)
    }
}

impl Key {
    /// For HS256.
    pub(crate) fn secret(secret: &[u8]) -> Result<Key, KeyError> {
        if secret.len() < MIN_SECRET_BYTES {
            return Err(KeyError::Short);
        }
        Ok(Key::Hs256(hmac::Key::new(hmac::HMAC_SHA256, secret)))
    }

    /// Whether who has it can make tokens.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Key::Hs256(_))
    }

    /// For RS256: a public key in PEM, in the form of any key, in RSA's own or in a certificate.
    pub(crate) fn rsa(pem: &[u8]) -> Result<Key, KeyError> {
        public_key(pem, |found| match found {
            Found::Rsa(key) => Some(Key::Rs256(key.to_vec())),
            Found::Any(info) if info.algorithm.algorithm == OID_PKCS1_RSAENCRYPTION => {
                Some(Key::Rs256(info.subject_public_key.data.to_vec()))
            }
            Found::Any(_) => None,
        })
    }

    /// For ES256: a public key of P-256 in PEM, or a certificate.
    pub(crate) fn p256(pem: &[u8]) -> Result<Key, KeyError> {
        public_key(pem, |found| {
            let Found::Any(info) = found else { return None };
            let curve = info.algorithm.parameters.as_ref()?.as_oid().ok()?;
            let fits =
                info.algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY && curve == OID_EC_P256;
            let point = info.subject_public_key.data.as_ref().try_into().ok()?;
            fits.then_some(Key::Es256(point))
        })
    }

    /// For EdDSA: a public key of Ed25519 in PEM, or a certificate.
    pub(crate) fn ed25519(pem: &[u8]) -> Result<Key, KeyError> {
        public_key(pem, |found| {
            let Found::Any(info) = found else { return None };
            let key = info.subject_public_key.data.as_ref().try_into().ok()?;
            (info.algorithm.algorithm == OID_SIG_ED25519).then_some(Key::EdDsa(key))
        })
    }

    /// The algorithm (RFC 7518 section 3.1) that this key is for, and no other.
    pub(crate) fn algorithm(&self) -> &'static str {
        match self {
            Key::Hs256(_) => "HS256",
            Key::Rs256(_) | Key::Rs256Parts(_) => "RS256",
            Key::Es256(_) => "ES256",
            Key::EdDsa(_) => "EdDSA",
        }
    }

    fn signed(&self, text: &[u8], signature: &[u8]) -> bool {
        let rsa = &RSA_PKCS1_2048_8192_SHA256;
        let checked = match self {
            Key::Hs256(secret) => hmac::verify(secret, text, signature),
            Key::Rs256(key) => UnparsedPublicKey::new(rsa, key).verify(text, signature),
            Key::Rs256Parts(key) => key.verify(rsa, text, signature),
            Key::Es256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(text, signature)
            }
            Key::EdDsa(key) => UnparsedPublicKey::new(&ED25519, key).verify(text, signature),
        };
        checked.is_ok()
    }
}

impl Jwk {
    /// `None` if it is for something else: another purpose, algorithm or curve.
    pub(crate) fn key(&self) -> Option<Result<Key, KeyError>> {
        if self.purpose.as_ref().is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let algorithm = match (self.kty.as_str(), self.crv.as_deref()) {
            ("oct", _) => "HS256",
            ("RSA", _) => "RS256",
            ("EC", Some("P-256")) => "ES256",
            ("OKP", Some("Ed25519")) => "EdDSA",
            _ => return None,
        };
        if self.alg.as_ref().is_some_and(|stated| stated != algorithm) {
            return None;
        }
        let key = match algorithm {
            "HS256" => octets(&self.k).map(|secret| Key::secret(&secret)),
            "RS256" => self.rsa().map(Ok),
            "ES256" => self.p256().map(Ok),
            _ => octets(&self.x).and_then(|key| key.try_into().ok()).map(|key| Ok(Key::EdDsa(key))),
        };
        Some(key.unwrap_or(Err(KeyError::Set)))
    }

    fn rsa(&self) -> Option<Key> {
        Some(Key::Rs256Parts(RsaPublicKeyComponents { n: octets(&self.n)?, e: octets(&self.e)? }))
    }

    fn p256(&self) -> Option<Key> {
        let (x, y) = (octets(&self.x)?, octets(&self.y)?);
        let whole = x.len() == COORDINATE_BYTES && y.len() == COORDINATE_BYTES;
        // 4: not compressed.
        whole.then(|| [&[4], &x[..], &y].concat().try_into().ok().map(Key::Es256))?
    }
}

/// A public key as PEM has it.
enum Found<'a> {
    /// RFC 5280 section 4.1.2.7.
    Any(&'a SubjectPublicKeyInfo<'a>),
    /// RSA's own form (RFC 8017 appendix A.1.1), in DER.
    Rsa(&'a [u8]),
}

/// The first public key of a PEM file (RFC 7468), if it is one of those that are looked for.
fn public_key(pem: &[u8], wanted: impl FnOnce(Found<'_>) -> Option<Key>) -> Result<Key, KeyError> {
    for section in Pem::iter_from_buffer(pem) {
        let section = section.map_err(|_| KeyError::Pem)?;
        let key = match section.label.as_str() {
            "PUBLIC KEY" => {
                let info = SubjectPublicKeyInfo::from_der(&section.contents);
                wanted(Found::Any(&info.map_err(|_| KeyError::Kind)?.1))
            }
            "CERTIFICATE" => {
                let certificate = section.parse_x509().map_err(|_| KeyError::Kind)?;
                wanted(Found::Any(&certificate.tbs_certificate.subject_pki))
            }
            "RSA PUBLIC KEY" => wanted(Found::Rsa(&section.contents)),
            _ => continue,
        };
        return key.ok_or(KeyError::Kind);
    }
    Err(KeyError::Pem)
}

fn octets(member: &Option<String>) -> Option<Vec<u8>> {
    bytes(member.as_deref()?)
}

fn bytes(base64url: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(base64url).ok()
}

fn part<T: DeserializeOwned>(base64url: &str) -> Option<T> {
    serde_json::from_slice(&bytes(base64url)?).ok()
}

/// A token as an issuer with a shared secret makes it, for tests.
#[cfg(test)]
pub(crate) fn hs256(
    header: &serde_json::Value,
    claims: &serde_json::Value,
    secret: &[u8],
) -> String {
    let part = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(header), part(claims));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}
