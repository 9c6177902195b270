//! API tokens: random, shown once, and kept as a digest.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fulmar_text::hex;
use ring::digest;
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::entities::{AdministrationRole, ApiToken};

/// Beginning of every API token, so that secret scanners find one that was published.
pub const API_TOKEN_PREFIX: &str = "fulmarapi_";
const RANDOM_BYTES: usize = 32;
/// Longer ones are none.
const MAX_TOKEN_BYTES: usize = 128;

/// A token that was just made.
#[derive(Debug)]
pub struct NewToken {
    /// Row for the store: the argument of [`crate::Command::CreateToken`].
    pub row: ApiToken,
    /// The token. Show it once.
    pub secret: String,
}

impl ApiToken {
    /// Makes a token; `None` if the system has no randomness to give.
    pub fn generate(
        name: &str,
        role: AdministrationRole,
        created_ms: u64,
        expires_ms: Option<u64>,
    ) -> Option<NewToken> {
        let mut random = [0; RANDOM_BYTES];
        SystemRandom::new().fill(&mut random).ok()?;
        let secret = format!("{API_TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(random));
        let digest = digest_of(&secret).into();
        Some(NewToken {
            row: ApiToken { name: name.into(), digest, role, created_ms, expires_ms },
            secret,
        })
    }
}

/// The digest of what may be a token; `None` if it has not the form of one. A plain digest is enough: tokens are random.
pub(crate) fn digest_if_token(text: &str) -> Option<String> {
    let is_token = text.starts_with(API_TOKEN_PREFIX) && text.len() <= MAX_TOKEN_BYTES;
    is_token.then(|| digest_of(text))
}

pub(crate) fn digest_of(token: &str) -> String {
    hex::encode(digest::digest(&digest::SHA256, token.as_bytes()).as_ref())
}
