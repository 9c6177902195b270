//! JSON Web Tokens (RFC 7519), as passwords and for enhanced authentication: fast enough to check on
//! the worker. Keys come from one file: a single key, or a JSON Web Key Set (RFC 7517).
//!
//! Each key has one algorithm and is used with no other, so that a token cannot choose how it is
//! checked. The time is the broker's, not the system's, as everywhere in the core.

use fulmar_mqtt::ReasonCode;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;

use super::{Admitted, AuthReply, GUEST_PREFIX};
use crate::time::Timestamp;

/// Longest token looked at, in bytes.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// Most keys of a set.
const MAX_KEYS: usize = 64;

/// Most keys that one token is tried with, where it does not name one: a stranger's costs the worker a
/// signature check for each.
const MAX_TRIED: usize = 4;

/// What clocks may differ by, in seconds.
const LEEWAY_S: f64 = 60.0;

/// Why token checking cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum JwtError {
    /// An algorithm this broker does not take.
    #[error("JWT algorithm {0} is not supported; use HS256, RS256, ES256, EdDSA or JWKS")]
    Algorithm(String),
    /// The key does not fit the algorithm.
    #[error("JWT key cannot be used: {0}")]
    Key(#[from] jsonwebtoken::errors::Error),
    /// The key set is not one.
    #[error("the file is not a JSON Web Key Set: {0}")]
    KeySet(#[from] serde_json::Error),
    /// The key set has no key that can be used, or too many.
    #[error("the JSON Web Key Set has {0} keys this broker can use; it accepts 1 to {MAX_KEYS}")]
    KeyCount(usize),
}

/// Checks tokens of one issuer.
pub struct JwtVerifier {
    keys: Vec<Key>,
}

struct Key {
    name: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

impl std::fmt::Debug for JwtVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JwtVerifier").field("keys", &self.keys.len()).finish()
    }
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    /// Seconds since the Unix epoch, perhaps with a fraction (RFC 7519 section 2).
    exp: f64,
    nbf: Option<f64>,
}

impl JwtVerifier {
    /// A verifier for one algorithm: `key` is the shared secret for HS256, a JSON Web Key Set for
    /// JWKS, otherwise a public key in PEM. Tokens must have `exp` and `sub`; `sub` is the user's
    /// name.
    ///
    /// # Errors
    /// The algorithm is unknown or the key does not fit.
    pub fn new(algorithm: &str, key: &[u8]) -> Result<JwtVerifier, JwtError> {
        let (algorithm, key) = match algorithm {
            "JWKS" => return JwtVerifier::from_key_set(key),
            "HS256" => (Algorithm::HS256, DecodingKey::from_secret(key)),
            "RS256" => (Algorithm::RS256, DecodingKey::from_rsa_pem(key)?),
            "ES256" => (Algorithm::ES256, DecodingKey::from_ec_pem(key)?),
            "EdDSA" => (Algorithm::EdDSA, DecodingKey::from_ed_pem(key)?),
            other => return Err(JwtError::Algorithm(other.to_owned())),
        };
        Ok(JwtVerifier { keys: vec![Key { name: None, algorithm, key }] })
    }

    /// Keys of a set that are of no use here, such as those for encryption, are passed over.
    fn from_key_set(text: &[u8]) -> Result<JwtVerifier, JwtError> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<serde_json::Value>,
        }
        let set: Set = serde_json::from_slice(text)?;
        let readable = set.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok());
        let set = JwkSet { keys: readable.collect() };
        let usable = set.keys.iter().filter_map(|jwk| Some((jwk, algorithm_of(jwk)?)));
        let keys: Vec<Key> = usable
            .map(|(jwk, algorithm)| {
                let key = DecodingKey::from_jwk(jwk)?;
                Ok(Key { name: jwk.common.key_id.clone(), algorithm, key })
            })
            .collect::<Result<_, JwtError>>()?;
        match keys.len() {
            1..=MAX_KEYS => Ok(JwtVerifier { keys }),
            count => Err(JwtError::KeyCount(count)),
        }
    }

    /// Checks a token; a user name given beside it must be the token's.
    pub(super) fn verify(&self, token: &str, username: Option<&str>, now: Timestamp) -> AuthReply {
        let refused = ReasonCode::BadUserNameOrPassword;
        if token.len() > MAX_TOKEN_BYTES {
            return Err(refused);
        }
        let header = decode_header(token).map_err(|_| refused)?;
        let named = |key: &&Key| match (&key.name, &header.kid) {
            (Some(name), Some(wanted)) => name == wanted,
            _ => true,
        };
        let fitting = self.keys.iter().filter(|key| key.algorithm == header.alg).filter(named);
        let mut tried = fitting.take(MAX_TRIED).map(|key| key.claims(token));
        let claims = tried.find_map(Result::ok).ok_or(refused)?;
        let seconds = now.0 as f64 / 1000.0;
        let expires = claims.exp + LEEWAY_S;
        let good = seconds < expires
            && claims.nbf.is_none_or(|from| from <= seconds + LEEWAY_S)
            && !claims.sub.is_empty()
            && !claims.sub.starts_with(GUEST_PREFIX)
            && username.is_none_or(|name| name.is_empty() || name == claims.sub);
        if !good {
            return Err(refused);
        }
        // A float above the range becomes the largest integer: never.
        let until = Timestamp((expires * 1000.0) as u64);
        Ok(Admitted { username: Some(claims.sub.into()), until, ticket: None })
    }
}

impl Key {
    fn claims(&self, token: &str) -> Result<Claims, jsonwebtoken::errors::Error> {
        let mut validation = Validation::new(self.algorithm);
        // Looked at by the caller, with the broker's clock.
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_aud = false;
        Ok(decode::<Claims>(token, &self.key, &validation)?.claims)
    }
}

/// The one algorithm a key of a set is for; `None` if it is for none of ours.
fn algorithm_of(jwk: &Jwk) -> Option<Algorithm> {
    let by_kind = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => Algorithm::RS256,
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            Algorithm::ES256
        }
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            Algorithm::EdDSA
        }
        AlgorithmParameters::OctetKey(_) => Algorithm::HS256,
        _ => return None,
    };
    let stated = match jwk.common.key_algorithm {
        None => by_kind,
        Some(KeyAlgorithm::RS256) => Algorithm::RS256,
        Some(KeyAlgorithm::ES256) => Algorithm::ES256,
        Some(KeyAlgorithm::EdDSA) => Algorithm::EdDSA,
        Some(KeyAlgorithm::HS256) => Algorithm::HS256,
        Some(_) => return None,
    };
    (stated == by_kind).then_some(by_kind)
}

/// The password as text if it has the shape of a token: three parts of base64url.
pub(super) fn looks_like_token(password: &[u8]) -> Option<&str> {
    if password.len() > MAX_TOKEN_BYTES || !password.starts_with(b"ey") {
        return None;
    }
    let text = std::str::from_utf8(password).ok()?;
    (text.split('.').count() == 3).then_some(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::json;

    const NOW: Timestamp = Timestamp(1_000_000);

    fn token(kid: Option<&str>, secret: &[u8], claims: &serde_json::Value) -> String {
        let header = Header { kid: kid.map(str::to_owned), ..Header::new(Algorithm::HS256) };
        encode(&header, claims, &EncodingKey::from_secret(secret)).unwrap()
    }

    #[test]
    fn time_and_name_are_checked() {
        let verifier = JwtVerifier::new("HS256", b"secret").unwrap();
        let check = |claims, name| verifier.verify(&token(None, b"secret", &claims), name, NOW);
        let until = Timestamp(1_160_000);
        let ann = Ok(Admitted { username: Some("ann".into()), until, ticket: None });
        assert_eq!(check(json!({"sub": "ann", "exp": 1100}), None), ann);
        assert_eq!(check(json!({"sub": "ann", "exp": 1100.0, "nbf": 1050}), Some("ann")), ann);
        for (claims, name) in [
            (json!({"sub": "ann", "exp": 940}), None),
            (json!({"sub": "ann", "exp": 1100, "nbf": 1061}), None),
            (json!({"sub": "ann", "exp": 1100}), Some("bob")),
            (json!({"sub": "", "exp": 1100}), None),
            (json!({"sub": "ann"}), None),
            (json!({"exp": 1100}), None),
        ] {
            let seen = check(claims.clone(), name);
            assert_eq!(seen, Err(ReasonCode::BadUserNameOrPassword), "{claims}");
        }
        let forged = token(None, b"guess", &json!({"sub": "ann", "exp": 1100}));
        assert!(verifier.verify(&forged, None, NOW).is_err());
    }

    #[test]
    fn a_key_set_chooses_by_name_and_never_by_the_tokens_algorithm() {
        // "first" and "other" in base64url; the third is an RSA key for encryption, the fourth of a
        // kind nobody knows.
        let set = json!({"keys": [
            {"kty": "oct", "kid": "a", "alg": "HS256", "k": "Zmlyc3Q"},
            {"kty": "oct", "kid": "b", "k": "b3RoZXI"},
            {"kty": "RSA", "kid": "c", "alg": "RSA-OAEP", "n": "AQAB", "e": "AQAB"},
            {"kty": "new"},
        ]});
        let verifier = JwtVerifier::new("JWKS", set.to_string().as_bytes()).unwrap();
        assert_eq!(verifier.keys.len(), 2);
        let claims = json!({"sub": "ann", "exp": 1100});
        let good =
            |kid, secret: &[u8]| verifier.verify(&token(kid, secret, &claims), None, NOW).is_ok();
        assert!(good(Some("a"), b"first") && good(Some("b"), b"other") && good(None, b"other"));
        assert!(!good(Some("a"), b"other") && !good(Some("z"), b"first") && !good(None, b"AQAB"));
        let empty = JwtVerifier::new("JWKS", br#"{"keys": []}"#);
        assert!(matches!(empty, Err(JwtError::KeyCount(0))));
        assert!(matches!(JwtVerifier::new("JWKS", b"secret"), Err(JwtError::KeySet(_))));
    }

    #[test]
    fn a_token_that_names_no_key_is_tried_with_a_few() {
        // One letter each, in base64url.
        let secrets: Vec<u8> = (0..20).map(|number| b'a' + number).collect();
        let base64 = |byte: u8| {
            let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
            [byte >> 2, byte << 4 & 0x3f].map(|at| char::from(digits[usize::from(at)]))
        };
        let key = |secret: &u8| {
            let k: String = base64(*secret).iter().collect();
            json!({"kty": "oct", "kid": char::from(*secret).to_string(), "k": k})
        };
        let set = json!({"keys": secrets.iter().map(key).collect::<Vec<_>>()});
        let verifier = JwtVerifier::new("JWKS", set.to_string().as_bytes()).unwrap();
        let claims = json!({"sub": "ann", "exp": 1100});
        for (place, secret) in secrets.iter().enumerate() {
            let name = char::from(*secret).to_string();
            let good = |kid| verifier.verify(&token(kid, &[*secret], &claims), None, NOW).is_ok();
            assert!(good(Some(&name)), "{place}");
            assert_eq!(good(None), place < MAX_TRIED, "{place}");
        }
    }

    #[test]
    fn public_keys_of_every_kind_fit() {
        // RFC 8037 appendix A (Ed25519) and RFC 7517 appendix A.1 (P-256).
        let set = json!({"keys": [
            {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
            {"kty": "EC", "crv": "P-256",
             "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
             "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"},
        ]});
        let verifier = JwtVerifier::new("JWKS", set.to_string().as_bytes()).unwrap();
        let algorithms: Vec<_> = verifier.keys.iter().map(|key| key.algorithm).collect();
        assert_eq!(algorithms, [Algorithm::EdDSA, Algorithm::ES256]);
        // RFC 8037 appendix A.4: signed, but no claims.
        let token = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0Jzl\
                     nLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
        assert!(verifier.verify(token, None, NOW).is_err());
    }
}
