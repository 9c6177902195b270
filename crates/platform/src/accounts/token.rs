//! Tokens: JSON Web Tokens (RFC 7519) signed with HMAC-SHA-256 under a secret of this installation.
//!
//! A token names its account and expiry, and has an identifier. It is valid while the account cache has that
//! identifier; a token whose identifier is missing was revoked.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fulmar_mirror::Shared;
use fulmar_text::hex;
use ring::digest::{SHA256, digest};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use subtle::ConstantTimeEq as _;

use crate::error::Error;
use crate::store::sql::DatabaseError;
use crate::values::*;

/// Name of the file in the data folder with the secret.
pub const KEY_FILE: &str = "platform.key";
/// The issuer, which distinguishes these tokens from those of the operator's own issuer.
const ISSUER: &str = "fulmar-platform";
/// The longest token that is parsed, in bytes.
const MAX_TOKEN_BYTES: usize = 1024;
const SECRET_BYTES: usize = 32;
/// The header of every token: the only algorithm that is used and accepted.
pub(crate) const HEADER: &str = r#"{"typ":"JWT","alg":"HS256"}"#;
const VOUCHING: &[u8] = b"fulmar: who published";
const NAMING: &[u8] = b"fulmar: identifiers of readings";

/// A session that a login begins.
#[derive(Clone, Debug)]
pub(crate) struct NewSession {
    pub(crate) id: String,
    pub(crate) account: Name,
    pub(crate) issued_at: Time,
    pub(crate) expires_at: Time,
}

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    iss: String,
    sub: Name,
    jti: String,
    iat: i64,
    exp: i64,
}

/// Signs and checks tokens.
pub(crate) struct Signer {
    /// The key for tokens.
    signing: hmac::Key,
    /// Derived from the secret without revealing it.
    installation: String,
    vouching: hmac::Key,
    naming: hmac::Key,
}

fulmar_text::opaque_debug!(Signer);

impl Signer {
    /// With the secret in a file, which is created with mode 0600 if necessary.
    pub(crate) fn open(path: &Path) -> Result<Signer, Error> {
        Ok(Signer::new(&secret_in(path)?))
    }

    /// With the secret that the nodes of a cluster share. If they have none yet, it is that of the file.
    pub(crate) fn open_shared(path: &Path, shared: &Shared) -> Result<Signer, Error> {
        let key = KEY_FILE.as_bytes();
        if let Some((_, secret)) = shared.rows.iter().find(|(name, _)| name == key) {
            return Ok(Signer::new(secret));
        }
        let secret = secret_in(path)?;
        let change = (key.into(), Some(secret.as_slice().into()));
        shared.with.share(vec![change]).map_err(DatabaseError::from)?;
        Ok(Signer::new(&secret))
    }

    pub(crate) fn new(secret: &[u8]) -> Signer {
        let signing = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let digest = digest(&SHA256, secret);
        let installation = hex::encode(&digest.as_ref()[..8]);
        // Separate keys, so that no signature of one kind is valid as another.
        let own = |purpose| {
            let key = hmac::sign(&signing, purpose);
            hmac::Key::new(hmac::HMAC_SHA256, key.as_ref())
        };
        let (vouching, naming) = (own(VOUCHING), own(NAMING));
        Signer { signing, installation, vouching, naming }
    }

    /// A name of this installation that cannot be guessed without its secret.
    pub(crate) fn installation(&self) -> &str {
        &self.installation
    }

    /// The key of identifiers that only this installation can make.
    pub(crate) fn naming(&self) -> hmac::Key {
        self.naming.clone()
    }

    /// A voucher that this user published this message, which nobody else can create: `USER:HEX`.
    pub(crate) fn vouch(&self, user: &str, topic: &str, payload: &[u8]) -> String {
        let signature = statement(&self.vouching, user, topic, payload);
        format!("{user}:{}", hex::encode(signature.as_ref()))
    }

    /// The user who published this message, if there is a valid voucher.
    pub(crate) fn vouched<'a>(
        &self,
        voucher: &'a str,
        topic: &str,
        payload: &[u8],
    ) -> Option<&'a str> {
        let (user, digits) = voucher.rsplit_once(':')?;
        let signature = hex::decode(digits)?;
        let expected = statement(&self.vouching, user, topic, payload);
        // In constant time.
        bool::from(expected.as_ref().ct_eq(&signature)).then_some(user)
    }

    /// The token of a session.
    pub(crate) fn sign(&self, session: &NewSession) -> Result<String> {
        let claims = Claims {
            iss: ISSUER.to_owned(),
            sub: session.account.clone(),
            jti: session.id.clone(),
            iat: session.issued_at.0 / SECOND_MS,
            exp: session.expires_at.0 / SECOND_MS,
        };
        let claims = serde_json::to_string(&claims).map_err(|error| internal(&error))?;
        let signed = [HEADER, &claims].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
        let signature = hmac::sign(&self.signing, signed.as_bytes());
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// A token's session and its latest expiry; `None` if the token is not one of this installation or has expired.
    pub(crate) fn check(&self, token: &str, now: Time) -> Option<(String, Time)> {
        if token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let bytes = |part| URL_SAFE_NO_PAD.decode(part).ok();
        hmac::verify(&self.signing, signed.as_bytes(), &bytes(signature)?).ok()?;
        let claims: Claims = serde_json::from_slice(&bytes(claims)?).ok()?;
        if bytes(header)? != HEADER.as_bytes() || claims.iss != ISSUER {
            return None;
        }
        let until = Time(claims.exp.checked_mul(SECOND_MS)?);
        (now < until).then_some((claims.jti, until))
    }
}

/// The secret in a file, which is created with mode 0600 if necessary.
fn secret_in(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Secret { path: path.display().to_string(), source };
    match std::fs::read(path) {
        Ok(secret) if secret.len() == SECRET_BYTES => Ok(secret),
        Ok(_) => {
            let damaged = std::io::Error::other("not 32 bytes; remove it to create another");
            Err(failed(damaged))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            make_secret(path).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Signs that this user published this message. The length of each part comes first, so that different statements have
/// different bytes.
fn statement(key: &hmac::Key, user: &str, topic: &str, payload: &[u8]) -> hmac::Tag {
    let mut context = hmac::Context::with_key(key);
    for part in [user.as_bytes(), topic.as_bytes(), payload] {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    context.sign()
}

fn make_secret(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut secret = vec![0; SECRET_BYTES];
    let random = SystemRandom::new().fill(&mut secret);
    random.map_err(|_| std::io::Error::other("the system random number generator failed"))?;
    let new = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = new?;
    file.write_all(&secret)?;
    file.sync_all()?;
    Ok(secret)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn session() -> NewSession {
        let (issued_at, expires_at) = (Time(1_000_000), Time(2_000_000));
        NewSession { id: "one".into(), account: "ann".parse().unwrap(), issued_at, expires_at }
    }

    #[test]
    fn a_token_is_good_until_it_expires_and_under_its_own_secret_only() {
        let signer = Signer::new(b"secret");
        let token = signer.sign(&session()).unwrap();
        assert_eq!(signer.check(&token, Time(1_999_999)), Some(("one".into(), Time(2_000_000))));
        assert_eq!(signer.check(&token, Time(2_000_000)), None);
        assert_eq!(Signer::new(b"another").check(&token, Time(1_000_000)), None);
        let unsigned = format!("eyJhbGciOiJub25lIn0.{}.", token.split('.').nth(1).unwrap());
        assert_eq!(signer.check(&unsigned, Time(1_000_000)), None);
    }

    #[test]
    fn only_the_installation_vouches() {
        let (signer, other) = (Signer::new(b"secret"), Signer::new(b"another"));
        let voucher = signer.vouch("ann", "t", b"x");
        assert_eq!(signer.vouched(&voucher, "t", b"x"), Some("ann"));
        assert_eq!(other.vouched(&voucher, "t", b"x"), None);
        assert_eq!(signer.vouched(&voucher, "t", b"y"), None);
        assert_eq!(signer.vouched(&voucher, "u", b"x"), None);
        assert_eq!(signer.vouched(&voucher.replace("ann", "bob"), "t", b"x"), None);
        for wrong in ["", "ann", "ann:", "ann:é1", "ann:0"] {
            assert_eq!(signer.vouched(wrong, "t", b"x"), None);
        }
    }

    #[test]
    fn the_secret_is_kept_and_for_the_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("platform.key");
        let token = Signer::open(&path).unwrap().sign(&session()).unwrap();
        assert!(Signer::open(&path).unwrap().check(&token, Time(1_000_000)).is_some());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "short").unwrap();
        assert!(Signer::open(&path).is_err());
    }
}
