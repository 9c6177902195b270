//! What is stored of passwords: an argon2 hash, and a verifier for SCRAM if that is wanted.

use std::sync::atomic::{AtomicU32, Ordering};

use fulmar_broker::auth::{self, PasswordError};
use fulmar_scram::Verifier;
use ring::digest;

use crate::entities::{Client, PasswordHash, ScramVerifier};

/// Stored forms of a password.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredPassword {
    /// For passwords that clients send.
    pub hash: PasswordHash,
    /// For SCRAM.
    pub scram: Option<ScramVerifier>,
}

/// A password whose hash is all that is known.
impl From<PasswordHash> for StoredPassword {
    fn from(hash: PasswordHash) -> StoredPassword {
        StoredPassword { hash, scram: None }
    }
}

/// Makes what is stored of passwords. Without iterations, no verifiers for SCRAM.
#[derive(Debug, Default)]
pub struct PasswordHasher(AtomicU32);

impl PasswordHasher {
    /// With this many iterations of SCRAM's verifiers; `None` for none.
    pub fn new(scram_iterations: Option<u32>) -> PasswordHasher {
        PasswordHasher(scram_iterations.unwrap_or(0).into())
    }

    /// Changes the number of iterations for passwords from now on.
    pub fn set_scram_iterations(&self, scram_iterations: Option<u32>) {
        self.0.store(scram_iterations.unwrap_or(0), Ordering::Relaxed);
    }

    /// Hashes a password. Takes tens of milliseconds on purpose, and hundreds with SCRAM.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub fn hash(&self, password: &[u8]) -> Result<StoredPassword, PasswordError> {
        let hash = hash_password(password)?;
        let scram = match self.0.load(Ordering::Relaxed) {
            0 => None,
            iterations => {
                let verifier = Verifier::new(password, iterations);
                let verifier = verifier.map_err(|error| PasswordError::Hash(error.to_string()))?;
                Some(ScramVerifier(verifier.to_string().into()))
            }
        };
        Ok(StoredPassword { hash, scram })
    }
}

impl Client {
    /// The client with this password, and no other.
    pub fn with_password(self, password: Option<StoredPassword>) -> Client {
        let (hash, scram) = password.map(|stored| (stored.hash, stored.scram)).unzip();
        Client { password: hash, replaced: None, scram: scram.flatten(), ..self }
    }
}

/// Hashes a password with argon2. Takes tens of milliseconds on purpose.
pub(crate) fn hash_password(password: &[u8]) -> Result<PasswordHash, PasswordError> {
    auth::hash_password(password).map(|hash| PasswordHash(hash.into()))
}

impl PasswordHash {
    /// Identifier of the password that stays when its hash is replaced.
    pub(crate) fn digest(&self) -> Box<str> {
        let digest = digest::digest(&digest::SHA256, self.0.as_bytes());
        fulmar_text::hex::encode(digest.as_ref()).into()
    }
}
