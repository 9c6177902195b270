//! JSON Web Tokens (RFC 7519), as passwords and for enhanced authentication: fast enough to check on
//! the worker. Keys come from one file: a single key, or a JSON Web Key Set (RFC 7517).
//!
//! Each key has one algorithm and is used with no other, so that a token cannot choose how it is
//! checked. The time is the broker's, not the system's, as everywhere in the core.

use fulmar_mqtt::ReasonCode;
use serde::Deserialize;

use super::admitted::{Admitted, AuthReply};
use super::jws::{Jwk, Key, KeyError, Token};
use crate::time::Timestamp;
use crate::user::User;

/// Longest token looked at, in bytes.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// Maximum number of keys in a set.
const MAX_KEYS: usize = 64;

/// Maximum number of keys tried for a token that names none: each costs the worker a signature check, also for a client
/// without a valid token.
const MAX_TRIED: usize = 4;

/// How much clocks may differ, in seconds.
const LEEWAY_S: f64 = 60.0;

/// Why token checking cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum JwtError {
    /// An algorithm this broker does not take.
    #[error("JWT algorithm {0} is not supported; use HS256, RS256, ES256, EdDSA or JWKS")]
    Algorithm(String),
    /// The key does not fit the algorithm.
    #[error("JWT key cannot be used: {0}")]
    Key(#[from] KeyError),
    /// The key set is not one.
    #[error("the file is not a JSON Web Key Set: {0}")]
    KeySet(#[from] serde_json::Error),
    /// The key set has no key that can be used, or too many.
    #[error("the JSON Web Key Set has {0} keys this broker can use; it accepts 1 to {MAX_KEYS}")]
    KeyCount(usize),
}

/// Checks tokens of one issuer.
pub struct JwtVerifier {
    keys: Vec<NamedKey>,
}

struct NamedKey {
    name: Option<String>,
    key: Key,
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
        let key = match algorithm {
            "JWKS" => return JwtVerifier::from_key_set(key),
            "HS256" => Key::secret(key)?,
            "RS256" => Key::rsa(key)?,
            "ES256" => Key::p256(key)?,
            "EdDSA" => Key::ed25519(key)?,
            other => return Err(JwtError::Algorithm(other.to_owned())),
        };
        Ok(JwtVerifier { keys: vec![NamedKey { name: None, key }] })
    }

    /// Whether who reads the keys can make tokens.
    #[must_use]
    pub fn has_shared_key(&self) -> bool {
        self.keys.iter().any(|key| key.key.is_shared())
    }

    /// Keys of a set that are of no use here, such as those for encryption, are passed over.
    fn from_key_set(text: &[u8]) -> Result<JwtVerifier, JwtError> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<serde_json::Value>,
        }
        let set: Set = serde_json::from_slice(text)?;
        let readable = set.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok());
        let usable = readable.filter_map(|jwk: Jwk| Some((jwk.key()?, jwk.kid)));
        let keys: Vec<NamedKey> = usable
            .map(|(key, name)| Ok(NamedKey { name, key: key? }))
            .collect::<Result<_, JwtError>>()?;
        match keys.len() {
            1..=MAX_KEYS => Ok(JwtVerifier { keys }),
            count => Err(JwtError::KeyCount(count)),
        }
    }

    /// Checks a token; a user name given beside it must be the token's.
    pub(crate) fn verify(&self, token: &str, username: Option<&str>, now: Timestamp) -> AuthReply {
        let refused = ReasonCode::BadUserNameOrPassword;
        if token.len() > MAX_TOKEN_BYTES {
            return Err(refused);
        }
        let token = Token::read(token).ok_or(refused)?;
        let named = |key: &&NamedKey| match (&key.name, &token.header.kid) {
            (Some(name), Some(wanted)) => name == wanted,
            _ => true,
        };
        let fitting =
            self.keys.iter().filter(|key| key.key.algorithm() == token.header.alg).filter(named);
        let mut tried = fitting.take(MAX_TRIED).map(|key| token.claims::<Claims>(&key.key));
        let claims = tried.find_map(|claims| claims).ok_or(refused)?;
        let seconds = now.0 as f64 / 1000.0;
        let expires = claims.exp + LEEWAY_S;
        let good = seconds < expires
            && claims.nbf.is_none_or(|from| from <= seconds + LEEWAY_S)
            && username.is_none_or(|name| name.is_empty() || name == claims.sub);
        if !good {
            return Err(refused);
        }
        // A float above the range becomes the largest integer: never.
        let until = Timestamp((expires * 1000.0) as u64);
        let user = Some(User::named(&claims.sub).map_err(|_| refused)?);
        Ok(Admitted { user, until, credential: None })
    }
}

/// The password as text if it has the shape of a token: three parts of base64url.
pub(crate) fn looks_like_token(password: &[u8]) -> Option<&str> {
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
    use crate::auth::jws::hs256;
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::json;

    const NOW: Timestamp = Timestamp(1_000_000);
    const SECRET: &[u8] = b"a secret of the issuer, 32 bytes";

    /// A secret as a key set has it.
    fn octets(secret: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode(secret)
    }

    fn token(kid: Option<&str>, secret: &[u8], claims: &serde_json::Value) -> String {
        hs256(&json!({"typ": "JWT", "alg": "HS256", "kid": kid}), claims, secret)
    }

    #[test]
    fn time_and_name_are_checked() {
        let verifier = JwtVerifier::new("HS256", SECRET).unwrap();
        let check = |claims, name| verifier.verify(&token(None, SECRET, &claims), name, NOW);
        let until = Timestamp(1_160_000);
        let ann = Ok(Admitted { user: User::named("ann").ok(), until, credential: None });
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
        // The third is an RSA key for encryption, the fourth of an unknown kind.
        let [first, other] = [[b'1'; 32], [b'2'; 32]];
        let set = json!({"keys": [
            {"kty": "oct", "kid": "a", "alg": "HS256", "k": octets(&first)},
            {"kty": "oct", "kid": "b", "k": octets(&other)},
            {"kty": "RSA", "kid": "c", "alg": "RSA-OAEP", "n": "AQAB", "e": "AQAB"},
            {"kty": "new"},
        ]});
        let verifier = JwtVerifier::new("JWKS", set.to_string().as_bytes()).unwrap();
        assert_eq!(verifier.keys.len(), 2);
        let claims = json!({"sub": "ann", "exp": 1100});
        let good =
            |kid, secret: &[u8]| verifier.verify(&token(kid, secret, &claims), None, NOW).is_ok();
        assert!(good(Some("a"), &first) && good(Some("b"), &other) && good(None, &other));
        assert!(!good(Some("a"), &other) && !good(Some("z"), &first) && !good(None, b"AQAB"));
        let empty = JwtVerifier::new("JWKS", br#"{"keys": []}"#);
        assert!(matches!(empty, Err(JwtError::KeyCount(0))));
        assert!(matches!(JwtVerifier::new("JWKS", b"secret"), Err(JwtError::KeySet(_))));
    }

    #[test]
    fn a_token_that_names_no_key_is_tried_with_a_few() {
        let secrets: Vec<u8> = (0..20).map(|number| b'a' + number).collect();
        let key = |letter: &u8| json!({"kty": "oct", "kid": char::from(*letter).to_string(), "k": octets(&[*letter; 32])});
        let set = json!({"keys": secrets.iter().map(key).collect::<Vec<_>>()});
        let verifier = JwtVerifier::new("JWKS", set.to_string().as_bytes()).unwrap();
        let claims = json!({"sub": "ann", "exp": 1100});
        for (place, secret) in secrets.iter().enumerate() {
            let name = char::from(*secret).to_string();
            let good =
                |kid| verifier.verify(&token(kid, &[*secret; 32], &claims), None, NOW).is_ok();
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
        let algorithms: Vec<_> = verifier.keys.iter().map(|key| key.key.algorithm()).collect();
        assert_eq!(algorithms, ["EdDSA", "ES256"]);
        // RFC 8037 appendix A.4: signed, but no claims.
        let token = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0Jzl\
                     nLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
        assert!(verifier.verify(token, None, NOW).is_err());
    }

    /// A key as openssl wrote it, or a token for `ann` until 1100 that openssl signed with one.
    macro_rules! file {
        ($name:literal) => {
            include_str!(concat!("keys/", $name)).trim_end()
        };
    }

    #[test]
    fn a_public_key_checks_what_its_owner_signed_and_nothing_else() {
        let tokens = [file!("rsa.jwt"), file!("p256.jwt"), file!("ed25519.jwt")];
        let keys = [
            ("RS256", file!("rsa.pem"), 0),
            ("RS256", file!("rsa-own.pem"), 0),
            ("RS256", file!("rsa-certificate.pem"), 0),
            ("ES256", file!("p256.pem"), 1),
            ("EdDSA", file!("ed25519.pem"), 2),
        ];
        for (algorithm, key, own) in keys {
            let verifier = JwtVerifier::new(algorithm, key.as_bytes()).unwrap();
            for (place, token) in tokens.iter().enumerate() {
                assert_eq!(verifier.verify(token, None, NOW).is_ok(), place == own, "{algorithm}");
            }
            // Another user's claims under the same signature.
            let mut parts: Vec<&str> = tokens[own].split('.').collect();
            parts[1] = "eyJzdWIiOiJib2IiLCJleHAiOjExMDB9";
            assert!(verifier.verify(&parts.join("."), None, NOW).is_err());
            // The key's text is public: signatures made with it are invalid.
            let claims = json!({"sub": "ann", "exp": 1100});
            let forged = hs256(&json!({"alg": "HS256"}), &claims, key.as_bytes());
            assert!(verifier.verify(&forged, None, NOW).is_err());
        }
        let kinds = [
            ("RS256", file!("p256.pem")),
            ("ES256", file!("p384.pem")),
            ("EdDSA", file!("rsa.pem")),
        ];
        for (algorithm, key) in kinds {
            let wrong = JwtVerifier::new(algorithm, key.as_bytes());
            assert!(matches!(wrong, Err(JwtError::Key(KeyError::Kind))), "{algorithm}");
        }
        let none = JwtVerifier::new("RS256", b"a secret");
        assert!(matches!(none, Err(JwtError::Key(KeyError::Pem))));
        // RFC 7518 section 3.2.
        for short in [&b""[..], b"x", &SECRET[1..]] {
            let short = JwtVerifier::new("HS256", short);
            assert!(matches!(short, Err(JwtError::Key(KeyError::Short))));
        }
    }

    #[test]
    fn rfc7515_4_1_11_an_extension_that_must_be_understood_is_refused() {
        let verifier = JwtVerifier::new("HS256", SECRET).unwrap();
        let good = |header| {
            let claims = json!({"sub": "ann", "exp": 1100});
            verifier.verify(&hs256(&header, &claims, SECRET), None, NOW).is_ok()
        };
        assert!(good(json!({"alg": "HS256", "x5t": "of no matter"})));
        assert!(!good(json!({"alg": "HS256", "crit": ["b64"], "b64": true})));
        assert!(!good(json!({"alg": "none"})) && !good(json!({})));
    }

    #[test]
    fn rfc7517_4_2_keys_for_encryption_are_passed_over() {
        let [first, other] = [[b'1'; 32], [b'2'; 32]];
        let set = json!({"keys": [
            {"kty": "oct", "kid": "a", "use": "enc", "k": octets(&first)},
            {"kty": "oct", "kid": "b", "use": "sig", "k": octets(&other)},
        ]});
        let verifier = JwtVerifier::new("JWKS", set.to_string().as_bytes()).unwrap();
        assert_eq!(verifier.keys.len(), 1);
        let broken = json!({"keys": [{"kty": "EC", "crv": "P-256", "x": "AQAB", "y": "AQAB"}]});
        let broken = JwtVerifier::new("JWKS", broken.to_string().as_bytes());
        assert!(matches!(broken, Err(JwtError::Key(KeyError::Set))));
    }
}
