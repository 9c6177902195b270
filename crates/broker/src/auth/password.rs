//! Passwords: a file of `user:argon2-hash` lines, checked on a thread of its own.
//!
//! Hashing is slow by design. One thread does it, fed by a bounded queue: a flood of logins makes
//! logins slow and then refuses them (Server busy) but never holds up a worker. What was right once
//! is remembered as a keyed digest, so that a fleet that reconnects does not pay again.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use argon2::password_hash::rand_core::OsRng;
use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Argon2, Params};
use fulmar_mqtt::ReasonCode;
use parking_lot::Mutex;

use super::{Admitted, AuthReply, ReplyTo};

/// Logins waiting for the hashing thread; more are told that the server is busy.
const WAITING_LOGINS: usize = 1024;

/// Successful logins remembered.
const REMEMBERED: usize = 100_000;

/// Why a password file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PasswordError {
    /// It cannot be read.
    #[error("cannot read password file {path}: {source}")]
    Read {
        /// Which file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A line is not `user:hash`.
    #[error(
        "{path}:{line}: expected USER:HASH with an argon2 hash; \
         make one with `fulmar passwd USER`"
    )]
    Line {
        /// Which file.
        path: String,
        /// Which line, from 1.
        line: usize,
    },
    /// A password cannot be hashed.
    #[error("cannot hash the password: {0}")]
    Hash(String),
}

/// Hashes a password for a line of the file.
///
/// # Errors
/// The system has no randomness to give.
pub fn hash_password(password: &[u8]) -> Result<String, PasswordError> {
    let salt = SaltString::generate(&mut OsRng);
    let hash = Argon2::default().hash_password(password, &salt);
    hash.map(|hash| hash.to_string()).map_err(|error| PasswordError::Hash(error.to_string()))
}

struct Login {
    user: Box<str>,
    password: Box<[u8]>,
    reply_to: ReplyTo,
}

struct Checker {
    users: HashMap<Box<str>, String>,
    /// Hashed for unknown users too, so that the time taken does not tell who exists.
    decoy: String,
    right: Mutex<HashMap<Box<str>, u64>>,
    digest: [RandomState; 2],
}

/// A loaded password file and its hashing thread, which ends when this is dropped.
pub struct PasswordFile {
    checker: Arc<Checker>,
    queue: Option<SyncSender<Login>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for PasswordFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PasswordFile").field("users", &self.checker.users.len()).finish()
    }
}

impl PasswordFile {
    /// Loads a file: one `user:hash` a line, `#` begins a comment.
    ///
    /// # Errors
    /// It cannot be read, or a line is not as it should be.
    pub fn load(path: &Path) -> Result<PasswordFile, PasswordError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| PasswordError::Read { path: shown.clone(), source })?;
        let mut users = HashMap::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let parsed = line
                .split_once(':')
                .filter(|(user, hash)| !user.is_empty() && PasswordHash::new(hash).is_ok());
            let Some((user, hash)) = parsed else {
                return Err(PasswordError::Line { path: shown, line: at + 1 });
            };
            users.insert(user.into(), hash.to_owned());
        }
        PasswordFile::start(users)
    }

    fn start(users: HashMap<Box<str>, String>) -> Result<PasswordFile, PasswordError> {
        let checker = Arc::new(Checker {
            users,
            decoy: hash_password(b"nobody has this password")?,
            right: Mutex::default(),
            digest: [RandomState::new(), RandomState::new()],
        });
        let (queue, logins) = sync_channel::<Login>(WAITING_LOGINS);
        let worker = Arc::clone(&checker);
        let thread = std::thread::Builder::new().name("fulmar-passwords".into()).spawn(move || {
            for login in logins {
                login.reply_to.send(worker.check(&login.user, &login.password));
            }
        });
        let thread = thread.map_err(|error| PasswordError::Hash(error.to_string()))?;
        Ok(PasswordFile { checker, queue: Some(queue), thread: Some(thread) })
    }

    /// Decides at once if this login was right before, otherwise later.
    pub(super) fn check(
        &self,
        user: &str,
        password: &[u8],
        reply_to: impl FnOnce() -> ReplyTo,
    ) -> Option<AuthReply> {
        if self.checker.was_right(user, password) {
            return Some(Ok(Admitted::for_good(Some(user))));
        }
        let login = Login { user: user.into(), password: password.into(), reply_to: reply_to() };
        match self.queue.as_ref().map(|queue| queue.try_send(login)) {
            Some(Ok(())) => None,
            Some(Err(TrySendError::Full(_))) => Some(Err(ReasonCode::ServerBusy)),
            Some(Err(TrySendError::Disconnected(_))) | None => {
                Some(Err(ReasonCode::ServerUnavailable))
            }
        }
    }
}

impl Drop for PasswordFile {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the password thread panicked");
        }
    }
}

impl Checker {
    /// 64 bits of two independently keyed hashes of user and password. The keys are random and
    /// never leave the process, so the table is of no use to anyone who could read it.
    fn digest(&self, user: &str, password: &[u8]) -> u64 {
        let [a, b] = &self.digest;
        a.hash_one((user, password)) ^ b.hash_one((password, user)).rotate_left(32)
    }

    fn was_right(&self, user: &str, password: &[u8]) -> bool {
        self.right.lock().get(user) == Some(&self.digest(user, password))
    }

    fn check(&self, user: &str, password: &[u8]) -> AuthReply {
        let stored = self.users.get(user);
        let text = stored.unwrap_or(&self.decoy);
        let argon2 =
            Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, Params::default());
        let matches = PasswordHash::new(text)
            .is_ok_and(|hash| argon2.verify_password(password, &hash).is_ok());
        if stored.is_none() || !matches {
            return Err(ReasonCode::BadUserNameOrPassword);
        }
        let mut right = self.right.lock();
        if right.len() >= REMEMBERED {
            right.clear();
        }
        right.insert(user.into(), self.digest(user, password));
        Ok(Admitted::for_good(Some(user)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn right_and_wrong_passwords() {
        let users = [("ann".into(), hash_password(b"secret").unwrap())];
        let file = PasswordFile::start(users.into_iter().collect()).unwrap();
        let checker = &file.checker;
        assert_eq!(checker.check("ann", b"secret"), Ok(Admitted::for_good(Some("ann"))));
        let refused = Err(ReasonCode::BadUserNameOrPassword);
        assert_eq!(checker.check("ann", b"wrong"), refused);
        assert_eq!(checker.check("bob", b"secret"), refused);
        assert_eq!(checker.check("bob", b"nobody has this password"), refused);
        assert!(checker.was_right("ann", b"secret"));
        assert!(!checker.was_right("ann", b"wrong"));
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
