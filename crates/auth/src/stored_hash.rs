//! The forms in which a password file has a password: argon2, as Fulmar writes it, and the two salted forms of
//! SHA-512 that mosquitto writes.
//!
//! `$7$ITERATIONS$SALT$HASH` is PBKDF2 with HMAC-SHA-512 (`mosquitto_passwd` since 2.0, and the dynamic security
//! plugin). `$6$SALT$HASH` is SHA-512 of the password and the salt (before 2.0); it has nothing to do with crypt(3)'s
//! `$6$`. Salt and hash are base64.

use std::num::NonZeroU32;

use argon2::password_hash::phc::PasswordHash;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, pbkdf2};

use crate::argon2_memory::Argon2Memory;

/// Most iterations of PBKDF2 in a password file: about a second of a processor for each login. mosquitto's default is
/// 101, OWASP's advice 210,000.
pub const MAX_PBKDF2_ITERATIONS: u32 = 1_000_000;

/// Longest salt; mosquitto's have 12 bytes.
const MAX_SALT_BYTES: usize = 256;

/// A parsed hash.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StoredHash {
    /// In PHC string format.
    Argon2(String),
    /// `$7$`.
    Pbkdf2 { iterations: NonZeroU32, salted: Salted },
    /// `$6$`.
    SaltedSha512(Salted),
}

/// A salt, and the result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Salted {
    salt: Box<[u8]>,
    hash: Box<[u8]>,
}

/// Why a hash cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HashError {
    /// It has none of the known forms.
    #[error("expected an argon2 hash, or one of mosquitto's that begin with $6$ or $7$")]
    Form,
    /// Verifying it would take too long.
    #[error(
        "{0} iterations; at most {MAX_PBKDF2_ITERATIONS} are accepted: set the user's password again"
    )]
    Iterations(u32),
}

/// Checks that a hash can stand in a password file.
///
/// # Errors
/// It has none of the known forms, or too many iterations.
pub fn check_hash(text: &str) -> Result<(), HashError> {
    StoredHash::parse(text).map(drop)
}

impl StoredHash {
    pub(crate) fn parse(text: &str) -> Result<StoredHash, HashError> {
        if let Some(rest) = text.strip_prefix("$7$") {
            let (iterations, rest) = rest.split_once('$').ok_or(HashError::Form)?;
            let iterations: NonZeroU32 = iterations.parse().map_err(|_| HashError::Form)?;
            if iterations.get() > MAX_PBKDF2_ITERATIONS {
                return Err(HashError::Iterations(iterations.get()));
            }
            return Ok(StoredHash::Pbkdf2 { iterations, salted: Salted::parse(rest)? });
        }
        if let Some(rest) = text.strip_prefix("$6$") {
            return Ok(StoredHash::SaltedSha512(Salted::parse(rest)?));
        }
        PasswordHash::new(text).map_err(|_| HashError::Form)?;
        Ok(StoredHash::Argon2(text.to_owned()))
    }

    /// The hash as the file or the store has it.
    pub(crate) fn text(&self) -> String {
        let salted = |Salted { salt, hash }: &Salted| {
            format!("{}${}", STANDARD.encode(salt), STANDARD.encode(hash))
        };
        match self {
            StoredHash::Argon2(text) => text.clone(),
            StoredHash::Pbkdf2 { iterations, salted: it } => {
                format!("$7${iterations}${}", salted(it))
            }
            StoredHash::SaltedSha512(it) => format!("$6${}", salted(it)),
        }
    }

    /// Whether it is to be replaced by argon2.
    pub(crate) fn is_outdated(&self) -> bool {
        !matches!(self, StoredHash::Argon2(_))
    }

    /// Whether this is the password's hash; argon2 uses `memory`.
    pub(crate) fn matches(&self, password: &[u8], memory: &mut Argon2Memory) -> bool {
        match self {
            StoredHash::Argon2(text) => memory.matches(password, text),
            StoredHash::Pbkdf2 { iterations, salted: Salted { salt, hash } } => {
                let algorithm = pbkdf2::PBKDF2_HMAC_SHA512;
                pbkdf2::verify(algorithm, *iterations, salt, password, hash).is_ok()
            }
            StoredHash::SaltedSha512(Salted { salt, hash }) => {
                let mut context = digest::Context::new(&digest::SHA512);
                context.update(password);
                context.update(salt);
                same(context.finish().as_ref(), hash)
            }
        }
    }
}

impl Salted {
    /// `SALT$HASH`.
    fn parse(text: &str) -> Result<Salted, HashError> {
        let (salt, hash) = text.split_once('$').ok_or(HashError::Form)?;
        let decoded = |text: &str| STANDARD.decode(text).map_err(|_| HashError::Form);
        let (salt, hash) = (decoded(salt)?, decoded(hash)?);
        let sizes =
            (1..=MAX_SALT_BYTES).contains(&salt.len()) && hash.len() == digest::SHA512_OUTPUT_LEN;
        if sizes {
            Ok(Salted { salt: salt.into(), hash: hash.into() })
        } else {
            Err(HashError::Form)
        }
    }
}

/// Compares without an early end, so that the time taken does not depend on where they differ.
fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    // Made with Debian's `mosquitto_passwd -b FILE ann secret` (2.0.11), the second with `-H sha512`.
    const PBKDF2: &str = "$7$101$1w15DL2FI1iUqQ2o$u5ln/qHjWWKMSJzJguGB+B+3ElTo+nZ6Yn83Ig7ME4gsuOJGjIPfrC9BcJ9dGxg8URJ5NOCTDMTqWpzrUQyhRw==";
    const SHA512: &str = "$6$j6qFWTVTKQFhgFSs$yg4ZYIlMrOHjTAWN2pYg0S9Ly7WLvQE815fRCdFppn9RsvVPxdootlys6edoDi8l4+MNFuz28UeKAUhtH+6Dvg==";

    #[test]
    fn mosquittos_hashes_are_verified() {
        for text in [PBKDF2, SHA512] {
            let hash = StoredHash::parse(text).unwrap();
            assert!(hash.is_outdated());
            assert_eq!(hash.text(), text);
            let matches = |password| hash.matches(password, &mut Argon2Memory::default());
            assert!(matches(b"secret"), "{text}");
            assert!(!matches(b"Secret") && !matches(b""), "{text}");
        }
    }

    #[test]
    fn malformed_hashes_are_refused() {
        let salt = STANDARD.encode([1; 12]);
        let hash = STANDARD.encode([2; 64]);
        check_hash(&format!("$7$1000000${salt}${hash}")).unwrap();
        let long = format!("$7$1000001${salt}${hash}");
        assert_eq!(check_hash(&long), Err(HashError::Iterations(1_000_001)));
        let short = STANDARD.encode([2; 63]);
        let large = STANDARD.encode([1; 257]);
        for text in [
            format!("$7$0${salt}${hash}"),
            format!("$7$-1${salt}${hash}"),
            format!("$7$4294967296${salt}${hash}"),
            format!("$7$101${salt}${short}"),
            format!("$7$101${large}${hash}"),
            format!("$7$101$${hash}"),
            format!("$7$101${salt}"),
            format!("$7$101${salt}$!"),
            format!("$6${salt}"),
            format!("$6${salt}${hash}$"),
            "$6$".to_owned(),
            "$5$a$b".to_owned(),
            "plain".to_owned(),
            String::new(),
        ] {
            assert_eq!(check_hash(&text), Err(HashError::Form), "{text}");
        }
    }
}
