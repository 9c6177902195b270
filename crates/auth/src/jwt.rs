//! JSON Web Tokens (RFC 7519), as passwords and for enhanced authentication: fast enough to check on
//! the worker. Keys come from one file: a single key, or a JSON Web Key Set (RFC 7517).
//!
//! Each key has one algorithm and is used with no other, so that a token cannot choose how it is
//! checked. The time is the broker's, not the system's, as everywhere in the core.

use serde::{Deserialize, Deserializer};

use crate::admitted::Admitted;
use crate::jws::{Jwk, Key, KeyError, Token};
use crate::time::Timestamp;
use crate::user::{User, UserNameError};

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

/// Why a token is refused, for the log: never the signature, and of the claims only those of a token that is signed.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("it is no JSON Web Token, or exceeds {MAX_TOKEN_BYTES} bytes")]
    Malformed,
    #[error("its header has extensions that must be understood (crit)")]
    Extensions,
    #[error("no key is for its algorithm (alg) {0}")]
    Algorithm(String),
    #[error("no key of its algorithm has its key identifier (kid) {0}")]
    UnknownKey(String),
    #[error("its signature is wrong")]
    Signature,
    #[error("its claims lack sub or exp, or one has the wrong type")]
    Claims,
    #[error("it expired {ago_s} s ago, at {exp} (exp)")]
    Expired { ago_s: u64, exp: f64 },
    #[error("it is not valid before {nbf} (nbf), in {in_s} s")]
    NotYet { in_s: u64, nbf: f64 },
    #[error("its user (sub) cannot be one: {0}")]
    User(#[from] UserNameError),
    #[error("its user (sub) {0} is not the one that the client names")]
    OtherUser(String),
    #[error(
        "it is for {0} (aud), and [auth] jwt_audience does not say that this broker is one of them"
    )]
    Audience(String),
    #[error("it does not say for whom it is (aud), and [auth] jwt_audience requires that")]
    NoAudience,
    #[error("it is from the issuer (iss) {0}, and [auth] jwt_issuer requires another")]
    Issuer(String),
    #[error("it names no issuer (iss), and [auth] jwt_issuer requires one")]
    NoIssuer,
}

/// Checks tokens of one issuer.
pub struct JwtVerifier {
    keys: Vec<NamedKey>,
    /// What tokens may call this broker. Without any, only tokens that are for nobody in particular are accepted.
    audiences: Vec<String>,
    issuer: Option<String>,
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
    #[serde(default, deserialize_with = "present")]
    aud: Option<Audience>,
    #[serde(default, deserialize_with = "present")]
    iss: Option<String>,
}

/// RFC 7519 section 4.1.3.
#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

impl Audience {
    fn names(&self) -> &[String] {
        match self {
            Audience::One(name) => std::slice::from_ref(name),
            Audience::Several(names) => names,
        }
    }
}

/// A claim that is there has its type: `null` does not mean that it is absent.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    claim: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(claim).map(Some)
}

/// Text of a token for the log: on one line, and not long.
fn shown(text: &str) -> String {
    const MAX_CHARACTERS: usize = 64;
    let cut: String = text.chars().take(MAX_CHARACTERS).collect();
    format!("{cut:?}{}", if cut.len() < text.len() { "…" } else { "" })
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
        Ok(JwtVerifier::with_keys(vec![NamedKey { name: None, key }]))
    }

    fn with_keys(keys: Vec<NamedKey>) -> JwtVerifier {
        JwtVerifier { keys, audiences: Vec::new(), issuer: None }
    }

    /// Requires that tokens are for one of these (`aud`); without any, tokens that are for somebody are refused.
    #[must_use]
    pub fn for_audiences(self, audiences: Vec<String>) -> JwtVerifier {
        JwtVerifier { audiences, ..self }
    }

    /// Requires that tokens are from this issuer (`iss`), if one is given.
    #[must_use]
    pub fn requiring_issuer(self, issuer: Option<String>) -> JwtVerifier {
        JwtVerifier { issuer, ..self }
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
            1..=MAX_KEYS => Ok(JwtVerifier::with_keys(keys)),
            count => Err(JwtError::KeyCount(count)),
        }
    }

    /// Checks a token; a user name given beside it must be the token's.
    pub(crate) fn verify(
        &self,
        token: &str,
        username: Option<&str>,
        now: Timestamp,
    ) -> Result<Admitted, TokenError> {
        let token = (token.len() <= MAX_TOKEN_BYTES).then(|| Token::read(token)).flatten();
        let token = token.ok_or(TokenError::Malformed)?;
        if token.has_extensions() {
            return Err(TokenError::Extensions);
        }
        self.check_signature(&token)?;
        let claims: Claims = token.claims().ok_or(TokenError::Claims)?;
        self.check_parties(&claims)?;
        let seconds = now.0 as f64 / 1000.0;
        let expires = claims.exp + LEEWAY_S;
        if seconds >= expires {
            return Err(TokenError::Expired {
                ago_s: (seconds - claims.exp) as u64,
                exp: claims.exp,
            });
        }
        if let Some(nbf) = claims.nbf.filter(|nbf| *nbf > seconds + LEEWAY_S) {
            return Err(TokenError::NotYet { in_s: (nbf - seconds) as u64, nbf });
        }
        if username.is_some_and(|name| !name.is_empty() && name != claims.sub) {
            return Err(TokenError::OtherUser(shown(&claims.sub)));
        }
        // A float above the range becomes the largest integer: never.
        let until = Timestamp((expires * 1000.0) as u64);
        let user = Some(User::named(&claims.sub)?);
        Ok(Admitted { user, until, credential: None })
    }

    fn check_signature(&self, token: &Token<'_>) -> Result<(), TokenError> {
        let fits = |key: &&NamedKey| key.key.algorithm() == token.header.alg;
        let named = |key: &&NamedKey| match (&key.name, &token.header.kid) {
            (Some(name), Some(wanted)) => name == wanted,
            _ => true,
        };
        if !self.keys.iter().any(|key| fits(&key)) {
            return Err(TokenError::Algorithm(shown(&token.header.alg)));
        }
        let mut tried = self.keys.iter().filter(fits).filter(named).take(MAX_TRIED).peekable();
        if tried.peek().is_none() {
            let kid = token.header.kid.as_deref().unwrap_or_default();
            return Err(TokenError::UnknownKey(shown(kid)));
        }
        let signed = tried.any(|key| token.is_signed_by(&key.key));
        if signed { Ok(()) } else { Err(TokenError::Signature) }
    }

    /// Checks for whom it is and who issued it (RFC 7519 sections 4.1.3 and 4.1.1).
    fn check_parties(&self, claims: &Claims) -> Result<(), TokenError> {
        match &claims.aud {
            None if self.audiences.is_empty() => {}
            None => return Err(TokenError::NoAudience),
            Some(aud) if aud.names().iter().any(|name| self.audiences.contains(name)) => {}
            Some(aud) => return Err(TokenError::Audience(shown(&aud.names().join(", ")))),
        }
        match (&self.issuer, &claims.iss) {
            (None, _) => Ok(()),
            (Some(_), None) => Err(TokenError::NoIssuer),
            (Some(wanted), Some(iss)) if wanted == iss => Ok(()),
            (Some(_), Some(iss)) => Err(TokenError::Issuer(shown(iss))),
        }
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
    use crate::jws::hs256;
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
    fn a_refusal_says_why_and_never_shows_the_token() {
        let verifier = JwtVerifier::new("HS256", SECRET).unwrap();
        let why = |token: &str| verifier.verify(token, None, NOW).unwrap_err().to_string();
        let signed = |header, claims, secret: &[u8]| hs256(&header, &claims, secret);
        let (header, good) = (json!({"alg": "HS256"}), json!({"sub": "ann", "exp": 1100}));
        let forged = signed(header.clone(), good.clone(), b"guess");
        for (token, expected) in [
            ("eyJ.a.b".to_owned(), "no JSON Web Token"),
            (forged.clone(), "signature is wrong"),
            (signed(json!({"alg": "none\n"}), good.clone(), SECRET), r#"(alg) "none\n""#),
            (signed(header.clone(), json!({"sub": "ann"}), SECRET), "lack sub or exp"),
            (
                signed(header.clone(), json!({"sub": "ann", "exp": 900}), SECRET),
                "expired 100 s ago, at 900",
            ),
            (
                signed(header.clone(), json!({"sub": "ann", "exp": 1100, "nbf": 1070}), SECRET),
                "not valid before 1070 (nbf), in 70 s",
            ),
            (
                signed(header.clone(), json!({"sub": "ann", "exp": 1100, "aud": "x"}), SECRET),
                r#"it is for "x" (aud), and [auth] jwt_audience"#,
            ),
        ] {
            let why = why(&token);
            assert!(why.contains(expected), "{why}");
            let signature = token.rsplit_once('.').unwrap().1;
            assert!(signature.len() < 9 || !why.contains(signature), "{why}");
        }
        let set = json!({"keys": [{"kty": "oct", "kid": "a", "k": octets(&[b'1'; 32])}]});
        let verifier = JwtVerifier::new("JWKS", set.to_string().as_bytes()).unwrap();
        let long = token(Some(&"z".repeat(1000)), b"first", &good);
        let why = verifier.verify(&long, None, NOW).unwrap_err().to_string();
        assert!(why.contains("(kid) \"zzz") && why.len() < 200, "{why}");
    }

    #[test]
    fn rfc7519_4_1_3_a_token_for_somebody_else_is_refused() {
        let with = |audiences: &[&str], issuer: Option<&str>| {
            let audiences = audiences.iter().map(|&name| name.to_owned()).collect();
            let verifier = JwtVerifier::new("HS256", SECRET).unwrap();
            verifier.for_audiences(audiences).requiring_issuer(issuer.map(Into::into))
        };
        let check = |verifier: &JwtVerifier, more: serde_json::Value| {
            let mut claims = json!({"sub": "ann", "exp": 1100});
            claims.as_object_mut().unwrap().append(&mut more.as_object().unwrap().clone());
            verifier.verify(&token(None, SECRET, &claims), None, NOW).map(drop)
        };
        let any = with(&[], None);
        assert!(check(&any, json!({})).is_ok() && check(&any, json!({"iss": "them"})).is_ok());
        for aud in [json!("web"), json!(["web"]), json!(""), json!([])] {
            let refused = check(&any, json!({"aud": aud}));
            assert!(matches!(refused, Err(TokenError::Audience(_))), "{aud}: {refused:?}");
        }
        for aud in [json!(null), json!(7), json!([7])] {
            assert_eq!(check(&any, json!({"aud": aud})), Err(TokenError::Claims), "{aud}");
        }
        let ours = with(&["mqtt", "broker"], Some("us"));
        let us = |aud| check(&ours, json!({"aud": aud, "iss": "us"}));
        assert!(us(json!("mqtt")).is_ok() && us(json!(["web", "broker"])).is_ok());
        // RFC 7519 section 4.1.3: names are compared as they are.
        for aud in [json!("web"), json!("MQTT"), json!("mqtt "), json!(["web", "mqtt,broker"])] {
            let refused = us(aud.clone());
            assert!(matches!(refused, Err(TokenError::Audience(_))), "{aud}: {refused:?}");
        }
        assert_eq!(check(&ours, json!({"iss": "us"})), Err(TokenError::NoAudience));
        assert_eq!(check(&ours, json!({"aud": "mqtt"})), Err(TokenError::NoIssuer));
        assert_eq!(
            check(&ours, json!({"aud": "mqtt", "iss": "them"})),
            Err(TokenError::Issuer("\"them\"".into()))
        );
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
            assert!(seen.is_err(), "{claims}");
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
