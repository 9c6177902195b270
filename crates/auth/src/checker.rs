//! Passwords of a file's users, of the identity store's and of external users, compared with what was right before or
//! hashed.
//!
//! It waits for nobody: [`super::logins`] has the threads that call it.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use crate::admitted::{Admitted, AuthReply};
use crate::argon2_memory::Argon2Memory;
use crate::external_users::{ExternalPassword, ExternalPasswords};
use crate::identities::{IdentityTable, credential};
use crate::logins::WRONG;
use crate::password_file::{PasswordFile, hash_password};
use crate::recent_set::RecentSet;
use crate::right_logins::RightLogins;
use crate::stored_hash::StoredHash;
use crate::user::{User, Vouched};

pub(crate) const DECOY: &[u8] = b"nobody has this password";

/// Wrong logins remembered: a device that repeats its mistake costs one hash.
const REMEMBERED_WRONG: usize = 4096;

/// The users of a file, of the identity store and external ones, and the logins remembered.
#[derive(Default)]
pub(crate) struct Checker {
    pub(crate) file: RwLock<Option<Arc<PasswordFile>>>,
    /// Clients of the identity store, which hide users of the file.
    pub(crate) identities: OnceLock<Arc<IdentityTable>>,
    pub(crate) external: OnceLock<ExternalPasswords>,
    /// Hashed for unknown users too, so that the time taken does not reveal which users exist.
    decoy: OnceLock<StoredHash>,
    pub(crate) right: RightLogins,
    wrong: Mutex<WrongLogins>,
}

/// The newest wrong logins, as digests with a key of the process.
struct WrongLogins {
    key: RandomState,
    digests: RecentSet<u64>,
}

impl Default for WrongLogins {
    fn default() -> WrongLogins {
        WrongLogins { key: RandomState::new(), digests: RecentSet::new(REMEMBERED_WRONG) }
    }
}

/// A user's password as it is stored.
pub(crate) struct StoredPassword {
    /// Without one, no password is right.
    pub(crate) hash: Option<StoredHash>,
    /// Credential of a login with it, which changes with the password.
    pub(crate) credential: Box<str>,
}

impl Checker {
    /// The password of a user as it is now; `None` if there is no such user.
    pub(crate) fn find(&self, user: &User) -> Option<StoredPassword> {
        match user.vouched() {
            Vouched::Program => None,
            Vouched::External(name) => {
                let ExternalPassword { hash, credential } = self.external.get()?(name)?;
                let hash = hash.and_then(|hash| StoredHash::parse(&hash).ok());
                Some(StoredPassword { hash, credential })
            }
            Vouched::Named(name) => {
                if let Some((hash, revision)) = self.identities.get().and_then(|it| it.find(name)) {
                    return Some(StoredPassword { hash, credential: credential(revision, name) });
                }
                let file = self.file();
                let file = file.as_ref()?;
                Some(StoredPassword { hash: file.hash(name), credential: file.credential(name)? })
            }
        }
    }

    pub(crate) fn file(&self) -> Option<Arc<PasswordFile>> {
        self.file.read().clone()
    }

    /// Compares a password without hashing it; `None` if nothing is known of it.
    pub(crate) fn compare(
        &self,
        user: &User,
        password: &[u8],
        stored: Option<&StoredPassword>,
    ) -> Option<AuthReply> {
        let credential = &stored?.credential;
        let right = self.right.compare(user.text(), password, credential)?;
        Some(if right { Ok(admitted(user, credential)) } else { Err(WRONG) })
    }

    /// True if this login was wrong shortly before.
    pub(crate) fn was_wrong(
        &self,
        user: &User,
        password: &[u8],
        stored: Option<&StoredPassword>,
    ) -> bool {
        let wrong = self.wrong.lock();
        wrong.digests.contains(&wrong.digest(user, password, stored))
    }

    /// Checks a login, and whether it had to be hashed. With `hash`, something is hashed unless the login is right.
    pub(crate) fn check(
        &self,
        user: &User,
        password: &[u8],
        hash: bool,
        argon2: &mut Argon2Memory,
    ) -> (AuthReply, bool) {
        // Once: what is wrong for a user as it was may be right for the one that it has become meanwhile.
        let stored = self.find(user);
        // Another client of the user may have shown it meanwhile.
        let compared = self.compare(user, password, stored.as_ref());
        if let Some(Ok(admitted)) = compared {
            return (Ok(admitted), false);
        }
        let known = stored.as_ref().and_then(|stored| stored.hash.as_ref());
        let known = known.filter(|_| compared.is_none());
        let hash = hash || known.is_some();
        let is_right = known.is_some_and(|known| known.matches(password, argon2));
        // mosquitto's hashes take a fraction of the time.
        if hash && !is_right && known.is_none_or(StoredHash::is_outdated) {
            self.decoy().matches(password, argon2);
        }
        let Some(StoredPassword { credential, .. }) = stored.as_ref().filter(|_| is_right) else {
            let mut wrong = self.wrong.lock();
            let digest = wrong.digest(user, password, stored.as_ref());
            wrong.digests.insert(digest);
            return (Err(WRONG), hash);
        };
        self.right.add(user.text(), password, credential);
        (Ok(admitted(user, credential)), true)
    }

    fn decoy(&self) -> &StoredHash {
        let hashed = || StoredHash::Argon2(hash_password(DECOY).unwrap_or_default());
        self.decoy.get_or_init(hashed)
    }

    /// Replaces the hash of a user who has shown this password, if it is one of mosquitto's. The identity store follows
    /// on a thread of its own.
    pub(crate) fn replace_outdated(&self, user: &User, password: &[u8]) {
        let Some(name) = user.operators() else { return };
        let table = self.identities.get().filter(|table| table.knows(name));
        let file = self.file().filter(|_| table.is_none());
        let outdated = match table.and_then(|table| table.find(name)) {
            Some((hash, _)) => hash.filter(StoredHash::is_outdated).map(|hash| hash.text()),
            None => file.as_ref().and_then(|file| file.outdated(name)),
        };
        // A new file, or a changed client, may have another password meanwhile.
        let is_this = |outdated: &String| {
            let hash = StoredHash::parse(outdated);
            hash.is_ok_and(|hash| hash.matches(password, &mut Argon2Memory::default()))
        };
        let Some(outdated) = outdated.filter(is_this) else { return };
        let argon2 = match hash_password(password) {
            Ok(argon2) => argon2,
            Err(error) => {
                return tracing::warn!(user = name, "cannot replace a hash of mosquitto: {error}");
            }
        };
        if let Some(replacements) = table.and_then(|table| table.replacements()) {
            replacements.replace_hash(name, &outdated, &argon2);
        }
        if let Some(file) = file {
            file.replace(name, &outdated, argon2);
        }
    }
}

fn admitted(user: &User, credential: &str) -> Admitted {
    Admitted { credential: Some(credential.into()), ..Admitted::for_good(Some(user.clone())) }
}

impl WrongLogins {
    fn digest(&self, user: &User, password: &[u8], stored: Option<&StoredPassword>) -> u64 {
        let credential = stored.map(|stored| &stored.credential);
        self.key.hash_one((user.text(), password, credential))
    }
}
