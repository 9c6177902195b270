//! Logins by password, over every protocol, checked on threads of their own.
//!
//! Hashing is slow by design. Two threads do it, fed by a bounded queue ([`super::queue`]) in whose order strangers do not
//! stop honest clients: a flood of logins delays neither a worker nor a login that has succeeded before. Such
//! logins are remembered as keyed digests ([`RightLogins`](crate::right_logins)) and need no hashing when a fleet
//! reconnects; nor do names that do not exist, whose refusal comes when that of another would. A login whose client goes
//! leaves the queue.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fulmar_mqtt::ReasonCode;
use parking_lot::{Condvar, Mutex};

use crate::argon2_memory::Argon2Memory;
use crate::checker::Checker;
use crate::decision::{Decision, WaitingLogin};
use crate::external_users::ExternalPassword;
use crate::identities::IdentityTable;
use crate::password_file::PasswordFile;
use crate::queue::{LoginQueue, NextLogin};
use crate::reply_to::ReplyTo;
use crate::user::User;

/// Threads that hash, in 19 MiB each ([`super::argon2_memory`]).
const THREADS: usize = 2;

/// Time for which such a thread keeps its memory after a login. Logins that come more often need no new memory.
const KEEP_MEMORY: Duration = Duration::from_secs(10);

/// Longest password, in bytes, of a login that waits to be hashed: the queue holds 512 of them.
pub const MAX_PASSWORD_BYTES: usize = 4096;

/// Pause before a thread asks again for a login, if those that wait may not be checked yet.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Nice value of the hashing threads, which leave a busy processor to the workers.
const NICE: i32 = 5;

/// Also where there is no such user.
pub(crate) const WRONG: ReasonCode = ReasonCode::BadUserNameOrPassword;

/// A task that waits for a thread.
enum Waiting {
    Login(Login),
    /// Other work that takes as long, such as hashing a new password.
    Work(Box<dyn FnOnce() + Send>),
}

struct Login {
    user: User,
    password: Box<[u8]>,
    reply_to: ReplyTo,
}

/// Where a login that has to wait comes from.
pub struct Applicant {
    /// The client's address.
    pub address: IpAddr,
    /// Where the answer is sent.
    pub reply_to: ReplyTo,
}

/// State that the threads share.
#[derive(Default)]
struct Desk {
    checker: Checker,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: LoginQueue<Waiting>,
    /// Refusals by the time when they are due; the number makes them different.
    refusals: BTreeMap<(Instant, u64), ReplyTo>,
    refused: u64,
    closed: bool,
}

/// The next task of a thread.
enum HashTask {
    Next(NextLogin<Waiting>),
    Refuse(ReplyTo),
}

/// All logins by password, and the hashing threads, which begin with the first login and end when this is dropped.
#[derive(Default)]
pub struct Logins {
    desk: Arc<Desk>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

fulmar_text::opaque_debug!(Logins { threads });

impl Logins {
    /// Those of a password file's users, where there is one.
    #[must_use]
    pub fn new(file: Option<PasswordFile>) -> Logins {
        let logins = Logins::default();
        *logins.desk.checker.file.write() = file.map(Arc::new);
        logins
    }

    /// Adds the identity store's clients, which hide users of the file. Only the first call counts.
    pub fn add_identities(&self, identities: &Arc<IdentityTable>) {
        drop(self.desk.checker.identities.set(Arc::clone(identities)));
    }

    /// Adds external users, by name. Only the first call counts.
    pub fn add_external_users(
        &self,
        passwords: impl Fn(&str) -> Option<ExternalPassword> + Send + Sync + 'static,
    ) {
        drop(self.desk.checker.external.set(Box::new(passwords)));
    }

    /// The password file.
    pub fn file(&self) -> Option<Arc<PasswordFile>> {
        self.desk.checker.file()
    }

    /// Uses the file of `new` from now on.
    pub(crate) fn replace_file(&self, new: &Logins) {
        let file = new.file();
        *self.desk.checker.file.write() = file;
    }

    /// Whether a client with this user name has to log in, because the operator has named those who may.
    pub(crate) fn requires_login(&self, username: Option<&str>, allow_anonymous: bool) -> bool {
        let identities = self.desk.checker.identities.get();
        self.file().is_some()
            || identities.is_some_and(|table| table.requires_login(username, allow_anonymous))
    }

    /// Whether the identity store or the file has a user of this name.
    pub fn knows(&self, user: &str) -> bool {
        let checker = &self.desk.checker;
        checker.identities.get().is_some_and(|table| table.knows(user))
            || self.file().is_some_and(|file| file.knows(user))
    }

    /// Whether a guess by SCRAM may be checked, which needs no hash here and therefore no place in the order.
    pub(crate) fn may_guess(&self, user: &str, address: IpAddr) -> bool {
        self.desk.state.lock().queue.may_guess(user, address, Instant::now())
    }

    /// Notes a login by SCRAM.
    pub(crate) fn guessed(&self, user: &str, address: IpAddr, right: bool) {
        let queue = &mut self.desk.state.lock().queue;
        if right {
            queue.trust(user, address);
        } else {
            queue.guessed(user, address, Instant::now());
        }
    }

    /// Decides at once if this login was right or wrong before, or is too long for either; otherwise later.
    pub fn check(
        &self,
        user: User,
        password: &[u8],
        applicant: impl FnOnce() -> Applicant,
    ) -> Decision {
        let checker = &self.desk.checker;
        let stored = checker.find(&user);
        if password.len() > MAX_PASSWORD_BYTES
            || checker.was_wrong(&user, password, stored.as_ref())
        {
            return Decision::Now(Err(WRONG));
        }
        let (Applicant { address, reply_to }, now) = (applicant(), Instant::now());
        let compared = checker.compare(&user, password, stored.as_ref());
        let hash = compared.is_none() && stored.is_some_and(|stored| stored.hash.is_some());
        let mut state = self.desk.state.lock();
        if let Some(Ok(admitted)) = compared
            && state.queue.may_try(user.text(), address, now)
        {
            state.queue.trust(user.text(), address);
            return Decision::Now(Ok(admitted));
        }
        drop(state);
        let login = Login { user: user.clone(), password: password.into(), reply_to };
        match self.wait(&user, address, hash, Waiting::Login(login)) {
            Some(waiting) => Decision::Later(waiting),
            None => Decision::Now(Err(ReasonCode::ServerBusy)),
        }
    }

    /// Has work done that takes as long as a hash, for a user who has logged in, unless the result is dropped before its
    /// turn. `None` if there is no room. If one of less suspect users takes its place, `work` is dropped.
    pub fn work(&self, user: &User, work: impl FnOnce() + Send + 'static) -> Option<WaitingLogin> {
        let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        self.desk.state.lock().queue.trust(user.text(), nowhere);
        self.wait(user, nowhere, true, Waiting::Work(Box::new(work)))
    }

    /// `None` if there is no room.
    fn wait(
        &self,
        user: &User,
        address: IpAddr,
        hash: bool,
        waiting: Waiting,
    ) -> Option<WaitingLogin> {
        let desk = Arc::clone(&self.desk);
        let pushed =
            desk.state.lock().queue.push(user.text(), address, hash, waiting, Instant::now());
        let (id, evicted) = pushed.ok()?;
        if let Err(error) = self.start_threads() {
            tracing::error!("cannot hash passwords: {error}");
        }
        desk.changed.notify_one();
        if let Some(evicted) = evicted {
            evicted.refuse();
        }
        Some(WaitingLogin::new(move || {
            let left = desk.state.lock().queue.remove(id, Instant::now());
            // Not under the lock: with the last login the broker may go, and with it the queue.
            drop(left);
        }))
    }

    /// Starts the threads, unless they run.
    fn start_threads(&self) -> std::io::Result<()> {
        let mut threads = self.threads.lock();
        for _ in threads.len()..THREADS {
            let desk = Arc::clone(&self.desk);
            let thread = std::thread::Builder::new().name("fulmar-passwords".into());
            threads.push(thread.spawn(move || desk.serve())?);
        }
        Ok(())
    }
}

impl Drop for Logins {
    /// Logins in the queue are refused for now: hashing them first would delay the thread that ends the broker.
    fn drop(&mut self) {
        let mut state = self.desk.state.lock();
        state.closed = true;
        let left: Vec<_> = state.queue.drain().collect();
        let refused = std::mem::take(&mut state.refusals);
        drop(state);
        self.desk.changed.notify_all();
        left.into_iter().for_each(Waiting::refuse);
        refused.into_values().for_each(|reply_to| reply_to.send(Err(WRONG)));
        for thread in self.threads.get_mut().drain(..) {
            // The last login can be what kept the broker, and with it this.
            let itself = thread.thread().id() == std::thread::current().id();
            if !itself && thread.join().is_err() {
                tracing::error!("a password thread panicked");
            }
        }
    }
}

impl Waiting {
    fn refuse(self) {
        match self {
            Waiting::Login(login) => login.reply_to.send(Err(ReasonCode::ServerBusy)),
            Waiting::Work(work) => drop(work),
        }
    }
}

impl Desk {
    /// Checks and refuses logins until all of them end.
    fn serve(&self) {
        #[cfg(target_os = "linux")]
        if let Err(error) = rustix::process::nice(NICE) {
            tracing::debug!(%error, "password threads run at the workers' priority");
        }
        let (mut memory, mut used) = (Argon2Memory::default(), Instant::now());
        while let Some(task) = self.next(&mut memory, used) {
            match task {
                HashTask::Refuse(reply_to) => reply_to.send(Err(WRONG)),
                HashTask::Next(next) => {
                    let hashed = self.check(next, &mut memory);
                    used = if hashed { Instant::now() } else { used };
                }
            }
        }
    }

    /// Checks a login; whether it was hashed.
    fn check(&self, next: NextLogin<Waiting>, memory: &mut Argon2Memory) -> bool {
        let NextLogin { login, hash, ticket } = next;
        let begun = Instant::now();
        let Login { user, password, reply_to } = match login {
            Waiting::Login(login) => login,
            Waiting::Work(work) => {
                work();
                let (now, queue) = (Instant::now(), &mut self.state.lock().queue);
                queue.hash_took(now - begun, now);
                queue.right(&ticket, now);
                return false;
            }
        };
        let (reply, hashed) = self.checker.check(&user, &password, hash, memory);
        let now = Instant::now();
        let mut state = self.state.lock();
        if hashed {
            state.queue.hash_took(now - begun, now);
        }
        if reply.is_ok() {
            state.queue.right(&ticket, now);
            drop(state);
            reply_to.send(reply);
            self.checker.replace_outdated(&user, &password);
            return hashed;
        }
        if state.closed {
            // Nobody sends a refusal at its time any more.
            drop(state);
            reply_to.send(reply);
            return hashed;
        }
        let due = state.queue.refusal_due(&ticket, hashed, now);
        state.refused += 1;
        let number = state.refused;
        state.refusals.insert((due, number), reply_to);
        drop(state);
        // This thread may have something to hash when it is due.
        self.changed.notify_one();
        hashed
    }

    /// Waits for something to do; `None` at the end. Releases the memory when nothing has been hashed for long.
    fn next(&self, memory: &mut Argon2Memory, used: Instant) -> Option<HashTask> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            let now = Instant::now();
            let refusal = state.refusals.first_key_value().map(|(&(due, _), _)| due);
            if refusal.is_some_and(|due| due <= now)
                && let Some((_, reply_to)) = state.refusals.pop_first()
            {
                return Some(HashTask::Refuse(reply_to));
            }
            if let Some(next) = state.queue.pop(now) {
                return Some(HashTask::Next(next));
            }
            if memory.is_held() && now >= used + KEEP_MEMORY {
                memory.release();
            }
            let ask_again = (!state.queue.is_empty()).then(|| now + ASK_AGAIN);
            let release = memory.is_held().then(|| used + KEEP_MEMORY);
            match [refusal, ask_again, release].into_iter().flatten().min() {
                Some(until) => drop(self.changed.wait_until(&mut state, until)),
                None => self.changed.wait(&mut state),
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::HashMap;
    use std::sync::mpsc;

    use super::*;
    use crate::admitted::AuthReply;
    use crate::password_file::{HashReplacements, hash_password};

    const FROM: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));

    fn named(name: &str) -> User {
        User::named(name).unwrap()
    }

    fn ann() -> Logins {
        Logins::new(Some(PasswordFile::with_users(&[("ann", &hash_password(b"secret").unwrap())])))
    }

    /// Checks a login as a thread does; whether it was hashed, too.
    fn check_with(logins: &Logins, user: &str, password: &[u8], hash: bool) -> (AuthReply, bool) {
        logins.desk.checker.check(&named(user), password, hash, &mut Argon2Memory::default())
    }

    fn check(logins: &Logins, user: &str, password: &[u8]) -> AuthReply {
        check_with(logins, user, password, true).0
    }

    fn compare(logins: &Logins, user: &str, password: &[u8]) -> Option<AuthReply> {
        let (checker, user) = (&logins.desk.checker, named(user));
        checker.compare(&user, password, checker.find(&user).as_ref())
    }

    #[test]
    fn right_and_wrong_passwords() {
        let logins = ann();
        let refused = Err(WRONG);
        assert_eq!(check(&logins, "ann", b"wrong"), refused);
        assert_eq!(compare(&logins, "ann", b"secret"), None);
        let right = check(&logins, "ann", b"secret");
        assert_eq!(right.as_ref().unwrap().user, Some(named("ann")));
        assert_eq!(check(&logins, "bob", b"secret"), refused);
        assert_eq!(check(&logins, "bob", crate::checker::DECOY), refused);
        assert_eq!(compare(&logins, "ann", b"secret"), Some(right.clone()));
        assert_eq!(compare(&logins, "ann", b"other"), Some(refused.clone()));
        let was_wrong = |user, password: &[u8]| {
            let (checker, user) = (&logins.desk.checker, named(user));
            checker.was_wrong(&user, password, checker.find(&user).as_ref())
        };
        assert!(was_wrong("ann", b"wrong") && was_wrong("bob", b"secret"));
        assert!(!was_wrong("ann", b"secret") && !was_wrong("ann", b"other"));
        // Now that it is known, nothing has to be hashed.
        assert_eq!(check_with(&logins, "ann", b"secret", false), (right, false));
        assert_eq!(check_with(&logins, "ann", b"more", false), (refused.clone(), false));
        assert_eq!(check_with(&logins, "bob", b"more", false), (refused, false));
    }

    #[test]
    fn a_new_file_knows_the_logins_of_users_whose_lines_are_the_same() {
        let line = &*hash_password(b"secret").unwrap();
        let logins = Logins::new(Some(PasswordFile::with_users(
            &["ann", "bob", "eve"].map(|it| (it, line)),
        )));
        for user in ["ann", "bob", "eve"] {
            check(&logins, user, b"secret").unwrap();
        }
        let changed = hash_password(b"changed").unwrap();
        let new = Logins::new(Some(PasswordFile::with_users(&[("ann", line), ("bob", &changed)])));
        logins.replace_file(&new);
        let known = |user| compare(&logins, user, b"secret").is_some();
        assert!(known("ann") && !known("bob") && !known("eve"));
    }

    #[derive(Debug, Default)]
    struct ReplacementMap(Mutex<HashMap<(String, String), String>>);

    impl HashReplacements for ReplacementMap {
        fn find(&self, user: &str, outdated: &str) -> Option<String> {
            self.0.lock().get(&(user.to_owned(), outdated.to_owned())).cloned()
        }

        fn replace_hash(&self, user: &str, outdated: &str, argon2: &str) {
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

    fn bob(text: &str, kept: &Arc<ReplacementMap>) -> Logins {
        let file = PasswordFile::with_users(&[("bob", text)]);
        file.replace_outdated(Arc::clone(kept) as Arc<dyn HashReplacements>);
        Logins::new(Some(file))
    }

    #[test]
    fn a_hash_of_mosquitto_is_replaced_after_the_first_login_until_the_file_has_another() {
        let kept = Arc::new(ReplacementMap::default());
        let old = mosquittos(b"secret");
        let logins = bob(&old, &kept);
        let refused = Err(WRONG);
        assert_eq!(check(&logins, "bob", b"wrong"), refused);
        // As of a login that was right before the file was read again.
        logins.desk.checker.replace_outdated(&named("bob"), b"before");
        assert_eq!(kept.find("bob", &old), None);
        for _ in 0..2 {
            assert!(check(&logins, "bob", b"secret").is_ok());
            logins.desk.checker.replace_outdated(&named("bob"), b"secret");
        }
        let argon2 = kept.find("bob", &old).unwrap();
        assert!(argon2.starts_with("$argon2id$"), "{argon2}");
        // Without the old hash's help.
        let again = bob(&old, &kept);
        assert!(!again.desk.checker.find(&named("bob")).unwrap().hash.unwrap().is_outdated());
        assert!(check(&again, "bob", b"secret").is_ok());
        assert_eq!(check(&again, "bob", b"wrong"), refused);
        let changed = bob(&mosquittos(b"changed"), &kept);
        assert_eq!(check(&changed, "bob", b"secret"), refused);
        assert!(check(&changed, "bob", b"changed").is_ok());
    }

    #[test]
    fn an_external_user_is_no_user_of_the_file_with_its_name() {
        let logins = ann();
        let hash = hash_password(b"other").unwrap();
        logins.add_external_users(move |name| {
            let (hash, credential) = (Some(hash.clone()), format!("one:{name}").into());
            (name == "ann").then_some(ExternalPassword { hash, credential })
        });
        let check = |user: &User, password: &[u8]| {
            logins.desk.checker.check(user, password, true, &mut Argon2Memory::default()).0
        };
        let (external, unknown) = (User::external("ann").unwrap(), User::external("bob").unwrap());
        let admitted = check(&external, b"other").unwrap();
        assert_eq!(admitted.user.as_ref(), Some(&external));
        assert_eq!(admitted.credential.as_deref(), Some("one:ann"));
        check(&named("ann"), b"secret").unwrap();
        for (user, password) in
            [(external, b"secret"), (named("ann"), b"other!"), (unknown, b"other!")]
        {
            assert_eq!(check(&user, password), Err(WRONG));
        }
    }

    /// An answer, and the login that waits for it.
    fn begin(
        logins: &Logins,
        user: &User,
        password: &[u8],
    ) -> (mpsc::Receiver<AuthReply>, Decision) {
        let (send, answer) = mpsc::channel();
        let reply_to = ReplyTo::new(move |reply| drop(send.send(reply)));
        (answer, logins.check(user.clone(), password, || Applicant { address: FROM, reply_to }))
    }

    #[test]
    fn a_right_login_whose_client_leaves_while_it_is_hashed_is_no_guess() {
        let logins = Logins::default();
        let (hash, logged_in) = (mosquittos(b"secret"), std::sync::atomic::AtomicU32::default());
        // Another credential each time, so that it is not known to be right.
        logins.add_external_users(move |_| {
            let number = logged_in.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Some(ExternalPassword {
                hash: Some(hash.clone()),
                credential: number.to_string().into(),
            })
        });
        let ann = User::external("ann").unwrap();
        // More than a name has guesses.
        for _ in 0..20 {
            let (answer, decision) = begin(&logins, &ann, b"secret");
            while !logins.desk.state.lock().queue.is_empty() {
                std::thread::yield_now();
            }
            drop(decision);
            assert!(answer.recv().unwrap().is_ok());
        }
        let queue = &mut logins.desk.state.lock().queue;
        assert!(queue.may_try(ann.text(), ELSEWHERE, Instant::now()));
    }

    #[test]
    fn work_whose_client_is_gone_keeps_its_thread_and_who_waits_leaves() {
        let logins = ann();
        let (begun, begins) = mpsc::channel();
        let ends: Vec<mpsc::Sender<()>> = (0..THREADS)
            .map(|number| {
                let (end, ends) = mpsc::channel();
                let begun = begun.clone();
                let work = logins.work(&named(&format!("user{number}")), move || {
                    begun.send(()).unwrap();
                    let _end = ends.recv();
                });
                begins.recv().unwrap();
                drop(work.unwrap());
                end
            })
            .collect();
        let (answer, waiting) = begin(&logins, &named("ann"), b"secret");
        assert!(matches!(waiting, Decision::Later(_)));
        assert!(!logins.desk.state.lock().queue.is_empty(), "all threads still work");
        drop(waiting);
        assert!(logins.desk.state.lock().queue.is_empty());
        assert!(answer.recv().is_err());
        let (answer, waiting) = begin(&logins, &named("ann"), b"secret");
        drop(ends);
        assert!(answer.recv().unwrap().is_ok());
        drop(waiting);
    }
}
