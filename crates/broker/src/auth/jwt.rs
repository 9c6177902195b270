//! JSON Web Tokens (RFC 7519) as passwords: fast enough to check on the worker.

use fulmar_mqtt::ReasonCode;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde::Deserialize;

use super::AuthReply;

/// Longest token looked at, in bytes.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// Why token checking cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum JwtError {
    /// An algorithm this broker does not take.
    #[error("JWT algorithm {0} is not supported; use HS256, RS256, ES256 or EdDSA")]
    Algorithm(String),
    /// The key does not fit the algorithm.
    #[error("JWT key cannot be used: {0}")]
    Key(#[from] jsonwebtoken::errors::Error),
}

/// Checks tokens of one issuer.
pub struct JwtVerifier {
    key: DecodingKey,
    validation: Validation,
}

impl std::fmt::Debug for JwtVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JwtVerifier").finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
}

impl JwtVerifier {
    /// A verifier for one algorithm: `key` is the shared secret for HS256, otherwise a public key
    /// in PEM. Tokens must have `exp` and `sub`; `sub` is the user's name.
    ///
    /// # Errors
    /// The algorithm is unknown or the key does not fit.
    pub fn new(algorithm: &str, key: &[u8]) -> Result<JwtVerifier, JwtError> {
        let (algorithm, key) = match algorithm {
            "HS256" => (Algorithm::HS256, DecodingKey::from_secret(key)),
            "RS256" => (Algorithm::RS256, DecodingKey::from_rsa_pem(key)?),
            "ES256" => (Algorithm::ES256, DecodingKey::from_ec_pem(key)?),
            "EdDSA" => (Algorithm::EdDSA, DecodingKey::from_ed_pem(key)?),
            other => return Err(JwtError::Algorithm(other.to_owned())),
        };
        let mut validation = Validation::new(algorithm);
        validation.set_required_spec_claims(&["exp", "sub"]);
        validation.validate_nbf = true;
        validation.validate_aud = false;
        Ok(JwtVerifier { key, validation })
    }

    /// Checks a token; a user name given beside it must be the token's.
    pub(super) fn verify(&self, token: &str, username: Option<&str>) -> AuthReply {
        let claims = decode::<Claims>(token, &self.key, &self.validation)
            .map_err(|_| ReasonCode::BadUserNameOrPassword)?
            .claims;
        match username {
            Some(name) if !name.is_empty() && name != claims.sub => {
                Err(ReasonCode::BadUserNameOrPassword)
            }
            _ => Ok(Some(claims.sub.into())),
        }
    }
}

/// The password as text if it has the shape of a token: three parts of base64url.
pub(super) fn looks_like_token(password: &[u8]) -> Option<&str> {
    if password.len() > MAX_TOKEN_BYTES || !password.starts_with(b"ey") {
        return None;
    }
    let text = std::str::from_utf8(password).ok()?;
    (text.split('.').count() == 3).then_some(text)
}
