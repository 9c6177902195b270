//! Passwords: a file of `user:hash` lines, checked on threads of its own.
//!
//! Hashing is slow by design. Two threads do it, fed by a bounded queue ([`super::queue`]) in whose order strangers do not
//! stop honest clients: a flood of logins delays neither a worker nor a login that has succeeded before. Such
//! logins are remembered as keyed digests ([`RightLogins`]) and need no hashing when a fleet reconnects; nor do names that
//! do not exist, whose refusal comes when that of another would. A login whose connection ends leaves the queue.
//!
//! The file may have hashes of mosquitto ([`super::stored_hash`]). At the first successful login, the thread replaces
//! such a hash by argon2, not in the file, which is the operator's, but where [`HashReplacements`] keeps it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use argon2::Argon2;
use argon2::password_hash::PasswordHasher as _;
use fulmar_mqtt::ReasonCode;
use parking_lot::{Condvar, Mutex};
use ring::digest::{SHA256, digest};

use crate::admitted::{Admitted, AuthReply};
use crate::argon2_memory::Argon2Memory;
use crate::decision::{Decision, WaitingLogin};
use crate::identities::{IdentityTable, credential};
use crate::queue::{LoginQueue, NextLogin};
use crate::recent_set::RecentSet;
use crate::reply_to::ReplyTo;
use crate::right_logins::RightLogins;
use crate::stored_hash::{HashError, StoredHash};
use crate::user::{User, UserNameError};

/// Threads that hash, in 19 MiB each ([`super::argon2_memory`]).
const THREADS: usize = 2;

/// How long such a thread keeps its memory after a login. Logins that come more often need no new memory.
const KEEP_MEMORY: Duration = Duration::from_secs(10);

/// Longest password, in bytes, of a login that waits to be hashed: the queue holds 512 of them.
pub const MAX_PASSWORD_BYTES: usize = 4096;

/// How long a thread waits before it asks again for a login, if those that wait may not be checked yet.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// How much less the hashing threads ask of a busy processor than the workers (nice value).
const NICE: i32 = 5;

/// How the credentials of the file's users begin; a digest of the line and the name follow.
const FILE_CREDENTIAL: &str = "file:";

/// Also where there is no such user.
const WRONG: ReasonCode = ReasonCode::BadUserNameOrPassword;

/// The password of nobody.
const DECOY: &[u8] = b"nobody has this password";

/// Wrong logins remembered: a device that repeats its mistake costs one hash.
const REMEMBERED_WRONG: usize = 4096;

/// Why a password file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PasswordError {
    /// It cannot be read.
    #[error("cannot read password file {path}: {source}{}", creation(.source, .path))]
    Read {
        /// Which file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A line is not `user:hash`.
    #[error("{path}:{line}: {error}; lines are USER:HASH, and `fulmar passwd USER` makes one")]
    Line {
        /// Which file.
        path: String,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with its hash.
        error: HashError,
    },
    /// A line's user cannot be one.
    #[error("{path}:{line}: {error}")]
    Name {
        /// Which file.
        path: String,
        /// Which line, from 1.
        line: usize,
        /// Why not.
        error: UserNameError,
    },
    /// A password cannot be hashed.
    #[error("cannot hash the password: {0}")]
    Hash(String),
}

/// How to create the file, if it is missing.
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

struct Login {
    user: User,
    password: Box<[u8]>,
    reply_to: ReplyTo,
}

/// Where a login that has to wait comes from.
pub struct Applicant {
    /// Its address.
    pub address: IpAddr,
    /// Where the answer is sent.
    pub reply_to: ReplyTo,
}

/// Where the argon2 hashes are kept that replace hashes of mosquitto.
pub trait HashReplacements: fmt::Debug + Send + Sync {
    /// The argon2 hash of the user whose hash in the password file is `outdated`.
    fn find(&self, user: &str, outdated: &str) -> Option<String>;

    /// Keeps `argon2` for this user, as long as the password file has `outdated`. May wait for the disk.
    fn keep(&self, user: &str, outdated: &str, argon2: &str);
}

/// A user of the file.
struct Line {
    /// As the file has it.
    text: String,
    hash: StoredHash,
}

struct Checker {
    users: HashMap<Box<str>, Line>,
    /// Clients of the identity store, which hide users of the file.
    identities: OnceLock<Arc<IdentityTable>>,
    /// Hashed for unknown users too, so that the time taken does not reveal which users exist.
    decoy: OnceLock<StoredHash>,
    right: RightLogins,
    memory: Mutex<Memory>,
    replacements: OnceLock<Arc<dyn HashReplacements>>,
}

/// The newest wrong logins, as digests with a key of the process, and hashes that replace those of the file.
struct Memory {
    key: RandomState,
    wrong: RecentSet<u64>,
    replaced: HashMap<Box<str>, StoredHash>,
}

/// What the threads share.
struct Desk {
    checker: Checker,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    queue: LoginQueue<Login>,
    /// Refusals by the time when they are due; the number makes them different.
    refusals: BTreeMap<(Instant, u64), ReplyTo>,
    refused: u64,
    closed: bool,
}

/// What a thread does next.
enum Work {
    Check(NextLogin<Login>),
    Refuse(ReplyTo),
}

/// A loaded password file and its hashing threads, which end when this is dropped.
pub struct PasswordFile {
    desk: Arc<Desk>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Whether there is a file, be it empty.
    is_file: bool,
}

fulmar_text::opaque_debug!(PasswordFile { is_file });

impl PasswordFile {
    /// Loads a file: one `user:hash` per line; `#` begins a comment.
    ///
    /// # Errors
    /// It cannot be read, or a line is malformed.
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
            let wrong = |error| PasswordError::Line { path: shown.clone(), line: at + 1, error };
            let (user, text) = line.split_once(':').ok_or_else(|| wrong(HashError::Form))?;
            User::check_name(user).map_err(|error| {
                let (path, line) = (shown.clone(), at + 1);
                PasswordError::Name { path, line, error }
            })?;
            let hash = StoredHash::parse(text).map_err(wrong)?;
            users.insert(user.into(), Line { text: text.to_owned(), hash });
        }
        PasswordFile::start(users)
    }

    /// One without a file, for the identity store's clients. Its threads begin with the first login.
    #[must_use]
    pub fn without_file() -> PasswordFile {
        PasswordFile::new(HashMap::new(), false)
    }

    /// Adds the identity store's clients, which hide users of the file. Only the first call counts.
    pub fn add_identities(&self, identities: &Arc<IdentityTable>) {
        drop(self.desk.checker.identities.set(Arc::clone(identities)));
    }

    /// Whether a client with this user name has to log in, because the operator has named those who may.
    pub(crate) fn requires_login(&self, username: Option<&str>, allow_anonymous: bool) -> bool {
        let identities = self.desk.checker.identities.get();
        self.is_file
            || identities.is_some_and(|table| table.requires_login(username, allow_anonymous))
    }

    /// The hash in a user's line.
    pub fn hash_in_file(&self, user: &str) -> Option<&str> {
        self.desk.checker.users.get(user).map(|line| &*line.text)
    }

    fn new(users: HashMap<Box<str>, Line>, is_file: bool) -> PasswordFile {
        let checker = Checker {
            users,
            identities: OnceLock::new(),
            decoy: OnceLock::new(),
            right: RightLogins::default(),
            memory: Mutex::new(Memory {
                key: RandomState::new(),
                wrong: RecentSet::new(REMEMBERED_WRONG),
                replaced: HashMap::new(),
            }),
            replacements: OnceLock::new(),
        };
        let desk = Desk { checker, waiting: Mutex::default(), changed: Condvar::new() };
        PasswordFile { desk: Arc::new(desk), threads: Mutex::default(), is_file }
    }

    fn start(users: HashMap<Box<str>, Line>) -> Result<PasswordFile, PasswordError> {
        let decoy = StoredHash::Argon2(hash_password(DECOY)?);
        let file = PasswordFile::new(users, true);
        drop(file.desk.checker.decoy.set(decoy));
        file.start_threads()?;
        Ok(file)
    }

    /// Starts the threads, unless they run.
    fn start_threads(&self) -> Result<(), PasswordError> {
        let mut threads = self.threads.lock();
        for _ in threads.len()..THREADS {
            let desk = Arc::clone(&self.desk);
            let thread = std::thread::Builder::new().name("fulmar-passwords".into());
            let thread = thread.spawn(move || desk.serve());
            threads.push(thread.map_err(|error| PasswordError::Hash(error.to_string()))?);
        }
        Ok(())
    }

    /// Has hashes of mosquitto replaced by those that are kept there, and keeps new ones there. Only the first call
    /// counts. Without it, they are replaced until the file is loaded again.
    pub fn replace_outdated(&self, replacements: Arc<dyn HashReplacements>) {
        let checker = &self.desk.checker;
        let outdated = checker.users.iter().filter(|(_, user)| user.hash.is_outdated());
        let found = outdated.filter_map(|(name, user)| {
            let argon2 = StoredHash::parse(&replacements.find(name, &user.text)?).ok()?;
            Some((name.clone(), argon2))
        });
        let found: HashMap<_, _> = found.collect();
        checker.memory.lock().replaced.extend(found);
        drop(checker.replacements.set(replacements));
    }

    /// Whether the identity store or the file has a user of this name.
    pub(crate) fn knows(&self, user: &str) -> bool {
        let checker = &self.desk.checker;
        checker.is_stored(user) || checker.users.contains_key(user)
    }

    /// Whether a guess by SCRAM may be checked, which needs no hash here and therefore no place in the order.
    pub(crate) fn may_guess(&self, user: &str, address: IpAddr) -> bool {
        self.desk.waiting.lock().queue.may_guess(user, address, Instant::now())
    }

    /// Notes a login by SCRAM.
    pub(crate) fn guessed(&self, user: &str, address: IpAddr, right: bool) {
        let mut waiting = self.desk.waiting.lock();
        if right {
            waiting.queue.trust(user, address);
        } else {
            waiting.queue.guessed(user, address, Instant::now());
        }
    }

    /// Takes over from the file this one replaces which logins were right, which count where the user's line is the
    /// same, and what is known of names and networks.
    pub(crate) fn remember(&self, before: &PasswordFile) {
        self.desk.checker.right.inherit(&before.desk.checker.right);
        let before = before.desk.waiting.lock();
        self.desk.waiting.lock().queue.inherit(&before.queue);
    }

    /// Decides at once if this login was right or wrong before, or is too long for either; otherwise later.
    pub(crate) fn check(
        &self,
        user: User,
        password: &[u8],
        applicant: impl FnOnce() -> Applicant,
    ) -> Decision {
        let (desk, name) = (&self.desk, user.text());
        if password.len() > MAX_PASSWORD_BYTES || desk.checker.was_wrong(name, password) {
            return Decision::Now(Err(WRONG));
        }
        let (Applicant { address, reply_to }, now) = (applicant(), Instant::now());
        let compared = desk.checker.compare(&user, password, desk.checker.revision(name));
        let hash = compared.is_none() && desk.checker.has_password(name);
        let mut waiting = desk.waiting.lock();
        if let Some(Ok(admitted)) = compared
            && waiting.queue.may_try(name, address, now)
        {
            waiting.queue.trust(name, address);
            return Decision::Now(Ok(admitted));
        }
        let login = Login { user: user.clone(), password: password.into(), reply_to };
        let pushed = waiting.queue.push((name, address), hash, login, now);
        drop(waiting);
        let Ok((id, evicted)) = pushed else {
            return Decision::Now(Err(ReasonCode::ServerBusy));
        };
        if let Err(error) = self.start_threads() {
            tracing::error!("{error}");
        }
        desk.changed.notify_one();
        if let Some(evicted) = evicted {
            evicted.reply_to.send(Err(ReasonCode::ServerBusy));
        }
        let desk = Arc::clone(desk);
        Decision::Later(WaitingLogin::new(move || {
            let login = desk.waiting.lock().queue.remove(id, Instant::now());
            // Not under the lock: with the last login the broker may go, and with it the queue.
            drop(login);
        }))
    }
}

impl Drop for PasswordFile {
    /// Logins in the queue are refused for now: hashing them first would delay the thread that replaces the file.
    fn drop(&mut self) {
        let mut waiting = self.desk.waiting.lock();
        waiting.closed = true;
        let left: Vec<_> = waiting.queue.drain().collect();
        let refused = std::mem::take(&mut waiting.refusals);
        drop(waiting);
        self.desk.changed.notify_all();
        left.into_iter().for_each(|login| login.reply_to.send(Err(ReasonCode::ServerBusy)));
        refused.into_values().for_each(|reply_to| reply_to.send(Err(WRONG)));
        for thread in self.threads.get_mut().drain(..) {
            // The last login can be what kept the broker, and with it this file.
            let itself = thread.thread().id() == std::thread::current().id();
            if !itself && thread.join().is_err() {
                tracing::error!("a password thread panicked");
            }
        }
    }
}

impl Desk {
    /// What a thread does until the file is dropped.
    fn serve(&self) {
        #[cfg(target_os = "linux")]
        if let Err(error) = rustix::process::nice(NICE) {
            tracing::debug!(%error, "password threads run at the workers' priority");
        }
        let (mut memory, mut used) = (Argon2Memory::default(), Instant::now());
        while let Some(work) = self.next(&mut memory, used) {
            match work {
                Work::Refuse(reply_to) => reply_to.send(Err(WRONG)),
                Work::Check(next) => {
                    let hashed = self.check(next, &mut memory);
                    used = if hashed { Instant::now() } else { used };
                }
            }
        }
    }

    /// Checks a login; whether it was hashed.
    fn check(&self, next: NextLogin<Login>, memory: &mut Argon2Memory) -> bool {
        let NextLogin { login: Login { user, password, reply_to }, hash, ticket } = next;
        let begun = Instant::now();
        let (reply, hashed) = self.checker.check(&user, &password, hash, memory);
        let now = Instant::now();
        let mut waiting = self.waiting.lock();
        if hashed {
            waiting.queue.hash_took(now - begun, now);
        }
        if reply.is_ok() {
            waiting.queue.right(&ticket, now);
            drop(waiting);
            reply_to.send(reply);
            self.checker.replace_outdated(user.text(), &password);
            return hashed;
        }
        if waiting.closed {
            // Nobody sends a refusal at its time any more.
            drop(waiting);
            reply_to.send(reply);
            return hashed;
        }
        let due = waiting.queue.refusal_due(&ticket, hashed, now);
        waiting.refused += 1;
        let number = waiting.refused;
        waiting.refusals.insert((due, number), reply_to);
        drop(waiting);
        // This thread may have something to hash when it is due.
        self.changed.notify_one();
        hashed
    }

    /// Waits for something to do; `None` when the file is dropped. Releases the memory when nothing has been hashed for
    /// long.
    fn next(&self, memory: &mut Argon2Memory, used: Instant) -> Option<Work> {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.closed {
                return None;
            }
            let now = Instant::now();
            let refusal = waiting.refusals.first_key_value().map(|(&(due, _), _)| due);
            if refusal.is_some_and(|due| due <= now)
                && let Some((_, reply_to)) = waiting.refusals.pop_first()
            {
                return Some(Work::Refuse(reply_to));
            }
            if let Some(next) = waiting.queue.pop(now) {
                return Some(Work::Check(next));
            }
            if memory.is_held() && now >= used + KEEP_MEMORY {
                memory.release();
            }
            let ask_again = (!waiting.queue.is_empty()).then(|| now + ASK_AGAIN);
            let release = memory.is_held().then(|| used + KEEP_MEMORY);
            match [refusal, ask_again, release].into_iter().flatten().min() {
                Some(until) => drop(self.changed.wait_until(&mut waiting, until)),
                None => self.changed.wait(&mut waiting),
            }
        }
    }
}

/// Fingerprint of a user's line in the password file, by which a login is known for as long as the line stays. It is stored
/// with wills, so later programs must make the same of the same line.
fn file_credential(user: &str, line: &Line) -> Box<str> {
    let digest = digest(&SHA256, line.text.as_bytes());
    let first = digest.as_ref().first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
    format!("{FILE_CREDENTIAL}{first:x}:{user}").into()
}

/// Whether the user of a line of the file still has it; `None` if the credential is not one of a file.
pub(crate) fn is_good(file: Option<&PasswordFile>, credential: &str) -> Option<bool> {
    let (_, user) = credential.strip_prefix(FILE_CREDENTIAL)?.split_once(':')?;
    let line = file.and_then(|file| file.desk.checker.users.get(user));
    Some(line.is_some_and(|line| *file_credential(user, line) == *credential))
}

impl Checker {
    /// Compares a password without hashing it; `None` if nothing is known of it. `revision` is that of a client of the
    /// identity store.
    fn compare(&self, user: &User, password: &[u8], revision: Option<u64>) -> Option<AuthReply> {
        let name = user.text();
        let right = match revision {
            Some(revision) => self.right.compare(name, password, revision),
            None => self.right.compare(name, password, &*self.users.get(name)?.text),
        };
        Some(if right? { Ok(self.admitted(user, revision)) } else { Err(WRONG) })
    }

    /// Whether there is a password of this user that could be right.
    fn has_password(&self, user: &str) -> bool {
        let identity = self.identities.get().and_then(|table| table.find(user));
        identity.map_or_else(|| self.users.contains_key(user), |(hash, _)| hash.is_some())
    }

    /// Whether this login was wrong shortly before.
    fn was_wrong(&self, user: &str, password: &[u8]) -> bool {
        let revision = self.revision(user);
        let memory = self.memory.lock();
        memory.wrong.contains(&memory.digest(user, password, revision))
    }

    /// Checks a login, and whether it had to be hashed. With `hash`, something is hashed unless the login is right.
    fn check(
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

    fn admitted(&self, user: &User, revision: Option<u64>) -> Admitted {
        let name = user.text();
        let of_file = || self.users.get(name).map(|line| file_credential(name, line));
        let credential = revision.map(|revision| credential(revision, name)).or_else(of_file);
        Admitted { credential, ..Admitted::for_good(Some(user.clone())) }
    }

    fn decoy(&self) -> &StoredHash {
        let hashed = || StoredHash::Argon2(hash_password(DECOY).unwrap_or_default());
        self.decoy.get_or_init(hashed)
    }

    fn is_stored(&self, user: &str) -> bool {
        self.identities.get().is_some_and(|table| table.knows(user))
    }

    /// The revision of a client of the identity store.
    fn revision(&self, user: &str) -> Option<u64> {
        self.identities.get().and_then(|table| table.revision(user))
    }

    /// Replaces the hash of a user who has shown this password, if it is one of mosquitto's. The identity store follows on
    /// a thread of its own.
    fn replace_outdated(&self, user: &str, password: &[u8]) {
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
            replacements.keep(user, &outdated, &argon2);
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn named(name: &str) -> User {
        User::named(name).unwrap()
    }

    fn user(text: &str) -> Line {
        Line { text: text.to_owned(), hash: StoredHash::parse(text).unwrap() }
    }

    fn ann() -> PasswordFile {
        let users = [("ann".into(), user(&hash_password(b"secret").unwrap()))];
        PasswordFile::start(users.into_iter().collect()).unwrap()
    }

    /// As a thread checks a login.
    fn check(file: &PasswordFile, user: &str, password: &[u8]) -> AuthReply {
        let checker = &file.desk.checker;
        checker.check(&named(user), password, true, &mut Argon2Memory::default()).0
    }

    #[test]
    fn right_and_wrong_passwords() {
        let file = ann();
        let checker = &file.desk.checker;
        let (right, refused) = (Ok(checker.admitted(&named("ann"), None)), Err(WRONG));
        assert_eq!(check(&file, "ann", b"wrong"), refused);
        assert_eq!(checker.compare(&named("ann"), b"secret", None), None);
        assert_eq!(check(&file, "ann", b"secret"), right);
        assert_eq!(check(&file, "bob", b"secret"), refused);
        assert_eq!(check(&file, "bob", DECOY), refused);
        assert_eq!(checker.compare(&named("ann"), b"secret", None), Some(right.clone()));
        assert_eq!(checker.compare(&named("ann"), b"other", None), Some(refused.clone()));
        assert!(checker.was_wrong("ann", b"wrong") && checker.was_wrong("bob", b"secret"));
        assert!(!checker.was_wrong("ann", b"secret") && !checker.was_wrong("ann", b"other"));
        // Now that it is known, nothing has to be hashed.
        let without = |user, password: &[u8]| {
            checker.check(&named(user), password, false, &mut Argon2Memory::default())
        };
        assert_eq!(without("ann", b"secret"), (right, false));
        assert_eq!(without("ann", b"more"), (refused.clone(), false));
        assert_eq!(without("bob", b"more"), (refused, false));
    }

    #[test]
    fn the_credential_of_a_line_is_the_same_in_every_program() {
        let text = "$7$101$c2FsdA==$aGFzaA==".to_owned();
        let line = Line { text, hash: StoredHash::Argon2(String::new()) };
        assert_eq!(&*file_credential("ann", &line), "file:eef9e31f9ed13774:ann");
    }

    #[test]
    fn a_new_file_knows_the_logins_of_users_whose_lines_are_the_same() {
        let line = hash_password(b"secret").unwrap();
        let file = |users: &[(&str, &String)]| {
            let users = users.iter().map(|(name, line)| ((*name).into(), user(line)));
            PasswordFile::start(users.collect()).unwrap()
        };
        let old = file(&[("ann", &line), ("bob", &line), ("eve", &line)]);
        for user in ["ann", "bob", "eve"] {
            check(&old, user, b"secret").unwrap();
        }
        let changed = hash_password(b"changed").unwrap();
        let new = file(&[("ann", &line), ("bob", &changed)]);
        new.remember(&old);
        let known = |user| new.desk.checker.compare(&named(user), b"secret", None).is_some();
        assert!(known("ann") && !known("bob") && !known("eve"));
    }

    #[derive(Debug, Default)]
    struct Kept(Mutex<HashMap<(String, String), String>>);

    impl HashReplacements for Kept {
        fn find(&self, user: &str, outdated: &str) -> Option<String> {
            self.0.lock().get(&(user.to_owned(), outdated.to_owned())).cloned()
        }

        fn keep(&self, user: &str, outdated: &str, argon2: &str) {
            let key = (user.to_owned(), outdated.to_owned());
            assert!(self.0.lock().insert(key, argon2.to_owned()).is_none(), "replaced twice");
        }
    }

    /// In the form of mosquitto before 2.0.
    fn mosquittos(password: &[u8]) -> String {
        let mut context = ring::digest::Context::new(&ring::digest::SHA512);
        context.update(password);
        context.update(b"salt");
        let encoded = |bytes: &[u8]| {
            base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes)
        };
        format!("$6${}${}", encoded(b"salt"), encoded(context.finish().as_ref()))
    }

    fn bob(text: &str, kept: &Arc<Kept>) -> PasswordFile {
        let users = [("bob".into(), user(text))];
        let file = PasswordFile::start(users.into_iter().collect()).unwrap();
        file.replace_outdated(Arc::clone(kept) as Arc<dyn HashReplacements>);
        file
    }

    #[test]
    fn a_hash_of_mosquitto_is_replaced_after_the_first_login_until_the_file_has_another() {
        let kept = Arc::new(Kept::default());
        let old = mosquittos(b"secret");
        let file = bob(&old, &kept);
        let checker = &file.desk.checker;
        let refused = Err(WRONG);
        assert_eq!(check(&file, "bob", b"wrong"), refused);
        for _ in 0..2 {
            assert!(check(&file, "bob", b"secret").is_ok());
            checker.replace_outdated("bob", b"secret");
        }
        let argon2 = kept.find("bob", &old).unwrap();
        assert!(argon2.starts_with("$argon2id$"), "{argon2}");
        // Without the old hash's help.
        let again = bob(&old, &kept);
        assert!(!again.desk.checker.memory.lock().replaced["bob"].is_outdated());
        assert!(check(&again, "bob", b"secret").is_ok());
        assert_eq!(check(&again, "bob", b"wrong"), refused);
        let changed = bob(&mosquittos(b"changed"), &kept);
        assert_eq!(check(&changed, "bob", b"secret"), refused);
        assert!(check(&changed, "bob", b"changed").is_ok());
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
