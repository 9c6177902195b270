//! Credentials of devices and gateways: tokens that are valid until they are revoked.
//!
//! A token is 192 random bits after a prefix by which people, and scanners for leaked secrets, recognize it. The
//! database has its SHA-256 only: with that much randomness, a slow hash would not add protection, and a thousand
//! gateways that reconnect at once would have to wait for it. An account may have several, so that one can be
//! replaced while the other still works.

use fulmar_text::hex;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::problem::{Problem, internal};
use crate::store::accounts::CredentialRow;
use crate::text::Name;
use crate::time::Time;

/// The prefix of these tokens.
pub const TOKEN_PREFIX: &str = "fulmar_";
/// The most tokens of an account.
pub(crate) const MAX_CREDENTIALS: usize = 16;
const SECRET_BYTES: usize = 24;
const ID_BYTES: usize = 4;

/// A new token, and the row that is stored for it.
pub(crate) fn new_token(account: Name, now: Time) -> Result<(String, CredentialRow), Problem> {
    let mut random = [0; ID_BYTES + SECRET_BYTES];
    let filled = SystemRandom::new().fill(&mut random);
    filled.map_err(|_| internal(&"the system random number generator failed"))?;
    let (id, secret) = random.split_at(ID_BYTES);
    let id = hex::encode(id);
    let token = format!("{TOKEN_PREFIX}{id}_{}", hex::encode(secret));
    let digest = digest_of(&token);
    Ok((token, CredentialRow { id, account, digest, created_at: now, expires_at: None }))
}

/// The identifier in a token and the token's digest; `None` for another kind of token.
pub(crate) fn parse(token: &str) -> Option<(&str, String)> {
    let expected = TOKEN_PREFIX.len() + 2 * ID_BYTES + 1 + 2 * SECRET_BYTES;
    if token.len() != expected || !token.is_ascii() {
        return None;
    }
    let (id, _) = token.strip_prefix(TOKEN_PREFIX)?.split_once('_')?;
    Some((id, digest_of(token)))
}

/// A tag that changes with the password's hash and reveals nothing of it.
pub(crate) fn tag_of(hash: &str) -> String {
    hex::encode(digest(&SHA256, hash.as_bytes()).as_ref().get(..8).unwrap_or_default())
}

fn digest_of(token: &str) -> String {
    hex::encode(digest(&SHA256, token.as_bytes()).as_ref())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_known_by_its_digest_and_not_kept() {
        let (token, row) = new_token("gw-1".parse().unwrap(), Time(1)).unwrap();
        assert_eq!(parse(&token), Some((&*row.id, row.digest.clone())));
        let secret = token.rsplit('_').next().unwrap();
        assert!(!format!("{row:?}").contains(secret));
        let other = new_token("gw-1".parse().unwrap(), Time(1)).unwrap();
        assert_ne!((token.as_str(), &row.id), (other.0.as_str(), &other.1.id));
        for wrong in ["", "fulmar_", "eyJhbGciOiJub25lIn0.e30.", &token[..token.len() - 1]] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
