//! Passwords of a file's users and of the identity store's, compared with what was right before or hashed.
//!
//! It waits for nobody: [`super::password`] has the threads that call it.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use ring::digest::{SHA256, digest};

use crate::admitted::{Admitted, AuthReply};
use crate::argon2_memory::Argon2Memory;
use crate::identities::{IdentityTable, credential};
use crate::password::{WRONG, hash_password};
use crate::recent_set::RecentSet;
use crate::right_logins::RightLogins;
use crate::stored_hash::StoredHash;
use crate::user::User;

/// Beginning of the credentials of the file's users; a digest of the line and the name follow.
pub(crate) const FILE_CREDENTIAL: &str = "file:";

pub(crate) const DECOY: &[u8] = b"nobody has this password";

/// Wrong logins remembered: a device that repeats its mistake costs one hash.
const REMEMBERED_WRONG: usize = 4096;

/// Where the argon2 hashes are kept that replace hashes of mosquitto.
pub trait HashReplacements: fmt::Debug + Send + Sync {
    /// The argon2 hash of the user whose hash in the password file is `outdated`.
    fn find(&self, user: &str, outdated: &str) -> Option<String>;

    /// Keeps `argon2` for this user, as long as the password file has `outdated`. May wait for the disk.
    fn replace_hash(&self, user: &str, outdated: &str, argon2: &str);
}

/// A user of the file.
pub(crate) struct Line {
    /// The hash as the file has it.
    pub(crate) text: String,
    pub(crate) hash: StoredHash,
}

/// The users of a file and of the identity store, and the logins remembered.
pub(crate) struct Checker {
    pub(crate) users: HashMap<Box<str>, Line>,
    /// Clients of the identity store, which hide users of the file.
    pub(crate) identities: OnceLock<Arc<IdentityTable>>,
    /// Hashed for unknown users too, so that the time taken does not reveal which users exist.
    pub(crate) decoy: OnceLock<StoredHash>,
    pub(crate) right: RightLogins,
    pub(crate) memory: Mutex<Memory>,
    pub(crate) replacements: OnceLock<Arc<dyn HashReplacements>>,
}

/// The newest wrong logins, as digests with a key of the process, and hashes that replace those of the file.
pub(crate) struct Memory {
    key: RandomState,
    wrong: RecentSet<u64>,
    pub(crate) replaced: HashMap<Box<str>, StoredHash>,
}

/// Fingerprint of a user's line in the password file, by which a login is known for as long as the line stays. It is
/// stored with wills, so later programs must make the same of the same line.
pub(crate) fn file_credential(user: &str, line: &Line) -> Box<str> {
    let digest = digest(&SHA256, line.text.as_bytes());
    let first = digest.as_ref().first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
    format!("{FILE_CREDENTIAL}{first:x}:{user}").into()
}

impl Checker {
    pub(crate) fn new(users: HashMap<Box<str>, Line>) -> Checker {
        let memory = Memory {
            key: RandomState::new(),
            wrong: RecentSet::new(REMEMBERED_WRONG),
            replaced: HashMap::new(),
        };
        Checker {
            users,
            identities: OnceLock::new(),
            decoy: OnceLock::new(),
            right: RightLogins::default(),
            memory: Mutex::new(memory),
            replacements: OnceLock::new(),
        }
    }

    /// Compares a password without hashing it; `None` if nothing is known of it. `revision` is that of a client of the
    /// identity store.
    pub(crate) fn compare(
        &self,
        user: &User,
        password: &[u8],
        revision: Option<u64>,
    ) -> Option<AuthReply> {
        let name = user.text();
        let right = match revision {
            Some(revision) => self.right.compare(name, password, revision),
            None => self.right.compare(name, password, &*self.users.get(name)?.text),
        };
        Some(if right? { Ok(self.admitted(user, revision)) } else { Err(WRONG) })
    }

    /// True if there is a password of this user that could be right.
    pub(crate) fn has_password(&self, user: &str) -> bool {
        let identity = self.identities.get().and_then(|table| table.find(user));
        identity.map_or_else(|| self.users.contains_key(user), |(hash, _)| hash.is_some())
    }

    /// True if this login was wrong shortly before.
    pub(crate) fn was_wrong(&self, user: &str, password: &[u8]) -> bool {
        let revision = self.revision(user);
        let memory = self.memory.lock();
        memory.wrong.contains(&memory.digest(user, password, revision))
    }

    /// Checks a login, and whether it had to be hashed. With `hash`, something is hashed unless the login is right.
    pub(crate) fn check(
        &self,
        user: &User,
        password: &[u8],
        hash: bool,
        argon2: &mut Argon2Memory,
    ) -> (AuthReply, bool) {
        let name = user.text();
        // Once: what is wrong for a client as it was may be right for the one that it has become meanwhile.
        let identity = self.identities.get().and_then(|table| table.find(name));
        let revision = identity.as_ref().map(|(_, revision)| *revision);
        // Another client of the user may have shown it meanwhile.
        let compared = self.compare(user, password, revision);
        if let Some(Ok(admitted)) = compared {
            return (Ok(admitted), false);
        }
        let of_file = || {
            let stored = self.users.get(name)?;
            let memory = self.memory.lock();
            Some(memory.replaced.get(name).unwrap_or(&stored.hash).clone())
        };
        let stored = identity.map_or_else(of_file, |(hash, _)| hash);
        let stored = stored.filter(|_| compared.is_none());
        if stored.is_none() && !hash {
            self.memory.lock().remember_wrong(name, password, revision);
            return (Err(WRONG), false);
        }
        let decoy = self.decoy();
        let matches = stored.as_ref().unwrap_or(decoy).matches(password, argon2);
        if !matches && stored.as_ref().is_some_and(StoredHash::is_outdated) {
            // mosquitto's hashes take a fraction of the time.
            decoy.matches(password, argon2);
        }
        if stored.is_none() || !matches {
            self.memory.lock().remember_wrong(name, password, revision);
            return (Err(WRONG), true);
        }
        match (revision, self.users.get(name)) {
            (Some(revision), _) => self.right.add(name, password, revision),
            (None, Some(stored)) => self.right.add(name, password, &*stored.text),
            (None, None) => {}
        }
        (Ok(self.admitted(user, revision)), true)
    }

    pub(crate) fn admitted(&self, user: &User, revision: Option<u64>) -> Admitted {
        let name = user.text();
        let of_file = || self.users.get(name).map(|line| file_credential(name, line));
        let credential = revision.map(|revision| credential(revision, name)).or_else(of_file);
        Admitted { credential, ..Admitted::for_good(Some(user.clone())) }
    }

    fn decoy(&self) -> &StoredHash {
        let hashed = || StoredHash::Argon2(hash_password(DECOY).unwrap_or_default());
        self.decoy.get_or_init(hashed)
    }

    pub(crate) fn is_stored(&self, user: &str) -> bool {
        self.identities.get().is_some_and(|table| table.knows(user))
    }

    /// The revision of a client of the identity store.
    pub(crate) fn revision(&self, user: &str) -> Option<u64> {
        self.identities.get().and_then(|table| table.revision(user))
    }

    /// Replaces the hash of a user who has shown this password, if it is one of mosquitto's. The identity store follows
    /// on a thread of its own.
    pub(crate) fn replace_outdated(&self, user: &str, password: &[u8]) {
        let table = self.identities.get().filter(|table| table.knows(user));
        let (outdated, replacements) = if let Some(table) = table {
            let hash = table.find(user).and_then(|(hash, _)| hash).filter(StoredHash::is_outdated);
            let Some(replacements) = table.replacements() else { return };
            (hash.map(|hash| hash.text()), Some(replacements))
        } else {
            let line = self.users.get(user).filter(|line| line.hash.is_outdated());
            let line = line.filter(|_| !self.memory.lock().replaced.contains_key(user));
            (line.map(|line| line.text.clone()), self.replacements.get())
        };
        let Some(outdated) = outdated else { return };
        let argon2 = match hash_password(password) {
            Ok(argon2) => argon2,
            Err(error) => {
                return tracing::warn!(user, "cannot replace a hash of mosquitto: {error}");
            }
        };
        if let Some(replacements) = replacements {
            replacements.replace_hash(user, &outdated, &argon2);
        }
        if table.is_none() {
            self.memory.lock().replaced.insert(user.into(), StoredHash::Argon2(argon2));
        }
    }
}

impl Memory {
    fn digest(&self, user: &str, password: &[u8], revision: Option<u64>) -> u64 {
        self.key.hash_one((user, password, revision))
    }

    fn remember_wrong(&mut self, user: &str, password: &[u8], revision: Option<u64>) {
        self.wrong.insert(self.digest(user, password, revision));
    }
}
