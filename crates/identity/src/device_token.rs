//! Tokens of devices and gateways: valid until they are revoked.
//!
//! A token is 192 random bits after a prefix by which people, and scanners for leaked secrets, recognize it. The store
//! has its SHA-256 only: with that much randomness, a slow hash would not add protection, and a thousand gateways that
//! reconnect at once would have to wait for it. An account may have several, so that one can be replaced while the other
//! still works.

use fulmar_text::hex;
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::account::DeviceToken;
use crate::tokens::digest_of;

/// The prefix of these tokens.
pub const TOKEN_PREFIX: &str = "fulmar_";
const SECRET_BYTES: usize = 24;
const ID_BYTES: usize = 4;

/// A token that was just made.
#[derive(Debug)]
pub struct NewDeviceToken {
    /// Row for the store.
    pub row: DeviceToken,
    /// The token. Show it once.
    pub secret: String,
}

impl DeviceToken {
    /// Makes a token; `None` if the system has no randomness to give.
    pub fn generate(created_ms: i64) -> Option<NewDeviceToken> {
        let mut random = [0; ID_BYTES + SECRET_BYTES];
        SystemRandom::new().fill(&mut random).ok()?;
        let (id, secret) = random.split_at(ID_BYTES);
        let id = hex::encode(id);
        let secret = format!("{TOKEN_PREFIX}{id}_{}", hex::encode(secret));
        let digest = digest_of(&secret).into();
        Some(NewDeviceToken {
            row: DeviceToken { id: id.into(), digest, created_ms, expires_ms: None },
            secret,
        })
    }
}

/// The identifier in a device token and the token's digest; `None` for another kind of token.
pub fn parse_device_token(token: &str) -> Option<(&str, String)> {
    let expected = TOKEN_PREFIX.len() + 2 * ID_BYTES + 1 + 2 * SECRET_BYTES;
    if token.len() != expected || !token.is_ascii() {
        return None;
    }
    let (id, _) = token.strip_prefix(TOKEN_PREFIX)?.split_once('_')?;
    Some((id, digest_of(token)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_known_by_its_digest_and_not_kept() {
        let NewDeviceToken { row, secret: token } = DeviceToken::generate(1).unwrap();
        assert_eq!(parse_device_token(&token), Some((&*row.id, row.digest.to_string())));
        let secret = token.rsplit('_').next().unwrap();
        assert!(!format!("{row:?}").contains(secret));
        let other = DeviceToken::generate(1).unwrap();
        assert_ne!((&token, &row.id), (&other.secret, &other.row.id));
        for wrong in ["", "fulmar_", "eyJhbGciOiJub25lIn0.e30.", &token[..token.len() - 1]] {
            assert_eq!(parse_device_token(wrong), None, "{wrong}");
        }
    }
}
