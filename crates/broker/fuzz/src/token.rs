//! JSON Web Tokens as passwords: what a stranger sends is refused, and what the issuer's key signed is accepted for no other
//! user and no longer than it says.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fulmar_broker::Timestamp;
use fulmar_broker::auth::Admitted;
use ring::hmac;
use serde_json::Value;

use crate::jwt::{JwtVerifier, looks_like_token};

const SECRET: &[u8] = b"a secret of the issuer, 32 bytes";
const NOW: Timestamp = Timestamp(1_800_000_000_000);
/// How much clocks may differ.
const LEEWAY_MS: f64 = 60_000.0;

/// Two lines: a header and claims, which the issuer signs; and all of it as a token and as a key set.
pub fn token(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let verifier = JwtVerifier::new("HS256", SECRET).expect("a secret");
    assert!(verifier.verify(text, None, NOW).is_err(), "nobody signed {text:?}");
    let looks_so = looks_like_token(data).is_some();
    assert_eq!(looks_so, text.starts_with("ey") && text.matches('.').count() == 2);
    // Such a set can have keys that anybody can sign with; it must only be read.
    drop(JwtVerifier::new("JWKS", data));
    let (header, claims) = text.split_once('\n').unwrap_or((r#"{"alg":"HS256"}"#, text));
    let signed = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), signed.as_bytes());
    let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag));
    let Ok(Admitted { user, until, credential: None }) = verifier.verify(&token, None, NOW) else {
        return;
    };
    let user = user.expect("a token has a user");
    let user = user.operators().expect("never the program, nor an external user");
    assert!(!user.is_empty());
    assert!(until > NOW, "{claims}");
    // A header that names another algorithm, or extensions, is none of this issuer's.
    let header: Value = serde_json::from_str(header).unwrap_or_default();
    assert!(!header.is_object() || header["alg"] == "HS256", "{header}");
    assert!(header.get("crit").is_none_or(Value::is_null), "{header}");
    if let Ok(Value::Object(claims)) = serde_json::from_str(claims) {
        assert!(!claims.contains_key("aud"), "it is for somebody else: {claims:?}");
        let expires = claims["exp"].as_f64().unwrap_or_default() * 1000.0 + LEEWAY_MS;
        let expires = expires.min(u64::MAX as f64);
        assert!((until.0 as f64 - expires).abs() <= 1.0 + expires * 1e-9, "{until:?}");
    }
    assert!(verifier.verify(&token, Some(user), NOW).is_ok());
    assert!(verifier.verify(&token, Some(&format!("{user}x")), NOW).is_err());
    let (signed, tag) = token.rsplit_once('.').expect("three parts");
    assert!(verifier.verify(&format!("{signed}A.{tag}"), None, NOW).is_err());
    let another =
        JwtVerifier::new("HS256", b"another secret than the issuer has").expect("a secret");
    assert!(another.verify(&token, None, NOW).is_err());
}
