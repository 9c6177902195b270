//! The password file: `user:hash` lines, which may have hashes of mosquitto ([`super::stored_hash`]).
//!
//! At the first successful login, argon2 replaces such a hash, not in the file, which is the operator's, but where
//! [`HashReplacements`] keeps it.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use argon2::Argon2;
use argon2::password_hash::PasswordHasher as _;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};

use crate::logins::MAX_PASSWORD_BYTES;
use crate::stored_hash::{HashError, StoredHash};
use crate::user::{User, UserNameError};

/// Beginning of the credentials of the file's users; a digest of the line and the name follow.
const CREDENTIAL: &str = "file:";

/// Why a password file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PasswordError {
    /// It cannot be read.
    #[error("cannot read password file {path}: {source}{}", creation(.source, .path))]
    Read {
        /// Path of the file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A line is not `user:hash`.
    #[error("{path}:{line}: {error}; lines are USER:HASH, and `fulmar passwd USER` makes one")]
    Line {
        /// Path of the file.
        path: String,
        /// Number of the line, from 1.
        line: usize,
        /// The fault of its hash.
        error: HashError,
    },
    /// A line's user cannot be one.
    #[error("{path}:{line}: {error}")]
    Name {
        /// Path of the file.
        path: String,
        /// Number of the line, from 1.
        line: usize,
        /// Why not.
        error: UserNameError,
    },
    /// A password cannot be hashed.
    #[error("cannot hash the password: {0}")]
    Hash(String),
}

/// Advice to create the file, if it is missing.
fn creation(error: &std::io::Error, path: &str) -> String {
    if error.kind() == std::io::ErrorKind::NotFound {
        format!("; create it with `fulmar passwd USER --file {path}`")
    } else {
        String::new()
    }
}

/// Hashes a password for a line of the file.
///
/// # Errors
/// It has more than 4,096 bytes, or the system has no randomness to give.
pub fn hash_password(password: &[u8]) -> Result<String, PasswordError> {
    if password.len() > MAX_PASSWORD_BYTES {
        return Err(PasswordError::Hash(format!("it has more than {MAX_PASSWORD_BYTES} bytes")));
    }
    let hash = Argon2::default().hash_password(password);
    hash.map(|hash| hash.to_string()).map_err(|error| PasswordError::Hash(error.to_string()))
}

/// Where the argon2 hashes are kept that replace hashes of mosquitto.
pub trait HashReplacements: fmt::Debug + Send + Sync {
    /// The argon2 hash of the user whose hash in the password file is `outdated`.
    fn find(&self, user: &str, outdated: &str) -> Option<String>;

    /// Keeps `argon2` for this user, as long as the password file has `outdated`. May wait for the disk.
    fn replace_hash(&self, user: &str, outdated: &str, argon2: &str);
}

/// A user of the file.
struct Line {
    /// The hash as the file has it.
    text: String,
    hash: StoredHash,
}

/// A loaded password file.
#[derive(Default)]
pub struct PasswordFile {
    users: HashMap<Box<str>, Line>,
    /// Hashes that replace those of the file.
    replaced: Mutex<HashMap<Box<str>, StoredHash>>,
    replacements: OnceLock<Arc<dyn HashReplacements>>,
}

fulmar_text::opaque_debug!(PasswordFile { replacements });

impl PasswordFile {
    /// Loads a file: one `user:hash` per line; `#` begins a comment.
    ///
    /// # Errors
    /// It cannot be read, or a line is malformed.
    pub fn load(path: &Path) -> Result<PasswordFile, PasswordError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| PasswordError::Read { path: shown.clone(), source })?;
        let mut file = PasswordFile::default();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |error| PasswordError::Line { path: shown.clone(), line: at + 1, error };
            let (user, text) = line.split_once(':').ok_or_else(|| wrong(HashError::Form))?;
            User::check_name(user).map_err(|error| {
                let (path, line) = (shown.clone(), at + 1);
                PasswordError::Name { path, line, error }
            })?;
            let hash = StoredHash::parse(text).map_err(wrong)?;
            file.users.insert(user.into(), Line { text: text.to_owned(), hash });
        }
        Ok(file)
    }

    /// Has hashes of mosquitto replaced by those that are kept there, and keeps new ones there. Only the first call
    /// counts. Without it, they are replaced until the file is loaded again.
    pub fn replace_outdated(&self, replacements: Arc<dyn HashReplacements>) {
        let outdated = self.users.iter().filter(|(_, user)| user.hash.is_outdated());
        let found = outdated.filter_map(|(name, user)| {
            let argon2 = StoredHash::parse(&replacements.find(name, &user.text)?).ok()?;
            Some((name.clone(), argon2))
        });
        self.replaced.lock().extend(found);
        drop(self.replacements.set(replacements));
    }

    /// Whether it has a line of this user.
    pub(crate) fn knows(&self, user: &str) -> bool {
        self.users.contains_key(user)
    }

    /// A user's hash, or the one that replaces it.
    pub(crate) fn hash(&self, user: &str) -> Option<StoredHash> {
        let line = self.users.get(user)?;
        Some(self.replaced.lock().get(user).unwrap_or(&line.hash).clone())
    }

    /// Fingerprint of a user's line, by which a login is known for as long as the line stays. It is stored with wills, so
    /// later programs must make the same of the same line.
    pub(crate) fn credential(&self, user: &str) -> Option<Box<str>> {
        let digest = digest(&SHA256, self.users.get(user)?.text.as_bytes());
        let first = digest.as_ref().first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
        Some(format!("{CREDENTIAL}{first:x}:{user}").into())
    }

    /// The hash in a user's line, if it is to be replaced by argon2.
    pub(crate) fn outdated(&self, user: &str) -> Option<String> {
        let line = self.users.get(user).filter(|line| line.hash.is_outdated())?;
        (!self.replaced.lock().contains_key(user)).then(|| line.text.clone())
    }

    /// Replaces the hash in a user's line.
    pub(crate) fn replace(&self, user: &str, outdated: &str, argon2: String) {
        if let Some(replacements) = self.replacements.get() {
            replacements.replace_hash(user, outdated, &argon2);
        }
        self.replaced.lock().insert(user.into(), StoredHash::Argon2(argon2));
    }

    /// Whether the user of a line still has it; `None` if the credential is not one of a file.
    pub(crate) fn is_good(file: Option<&PasswordFile>, credential: &str) -> Option<bool> {
        let (_, user) = credential.strip_prefix(CREDENTIAL)?.split_once(':')?;
        Some(file.and_then(|file| file.credential(user)).is_some_and(|own| *own == *credential))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    impl PasswordFile {
        /// One with these users and hashes.
        pub(crate) fn with_users(users: &[(&str, &str)]) -> PasswordFile {
            let line =
                |text: &str| Line { text: text.to_owned(), hash: StoredHash::parse(text).unwrap() };
            let users = users.iter().map(|(name, text)| ((*name).into(), line(text)));
            PasswordFile { users: users.collect(), ..PasswordFile::default() }
        }
    }

    #[test]
    fn the_credential_of_a_line_is_the_same_in_every_program() {
        let text = "$7$101$c2FsdA==$aGFzaA==".to_owned();
        let line = Line { text, hash: StoredHash::Argon2(String::new()) };
        let users = [("ann".into(), line)].into();
        let file = PasswordFile { users, ..PasswordFile::default() };
        assert_eq!(file.credential("ann").as_deref(), Some("file:eef9e31f9ed13774:ann"));
    }

    #[test]
    fn a_bad_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("passwords");
        std::fs::write(&path, "# users\nann:plaintext\n").unwrap();
        let error = PasswordFile::load(&path).unwrap_err();
        assert!(error.to_string().contains("passwords:2:"), "{error}");
    }
}
