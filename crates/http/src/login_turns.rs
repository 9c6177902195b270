//! Which login over HTTP is checked next: passwords are hashed two at a time, in the order of
//! [`fulmar_broker::auth::LoginQueue`], and not at all where [`RightLogins`] or a name that does not exist decides.
//!
//! A place is owned by the work itself, so that work whose request was cancelled still counts; a request that is cancelled
//! before its turn leaves the queue.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmar_broker::auth::{LoginQueue, QueueId, RightLogins, Ticket};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Concurrent hashes, in 19 MiB each.
const MAX_AT_ONCE: usize = 2;
/// Longest wait of a login for its turn.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// Time until waiting logins that may not be checked yet are considered again.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// A login by password.
#[derive(Clone, Copy)]
pub struct PasswordLogin<'a> {
    /// The user's name.
    pub user: &'a str,
    /// The password that is to be checked.
    pub password: &'a str,
    /// Where the client is.
    pub from: IpAddr,
    /// The server's record of the user's password, or a value that changes with it; `None` if no password can be right.
    pub stored: Option<&'a str>,
}

// Never the password.
fulmar_text::opaque_debug!(PasswordLogin<'_> { user });

/// Too many logins wait, or the server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowded;

/// The logins of one set of users. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct LoginTurns(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    right: RightLogins,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: LoginQueue<oneshot::Sender<Slot>>,
    hashing: usize,
}

/// Permission to hash or to decide, returned when dropped.
#[derive(Debug)]
struct Slot {
    turns: LoginTurns,
    ticket: Ticket,
    hash: bool,
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.hash {
            self.turns.0.state.lock().hashing -= 1;
            self.turns.start_waiting_logins();
        }
    }
}

/// A place in the queue, freed when dropped.
struct QueuedLogin<'a>(&'a LoginTurns, QueueId);

impl Drop for QueuedLogin<'_> {
    fn drop(&mut self) {
        let left = self.0.0.state.lock().queue.remove(self.1, Instant::now());
        drop(left);
    }
}

/// A login whose turn has come.
#[derive(Debug)]
pub struct LoginTurn<'a> {
    login: PasswordLogin<'a>,
    /// `None` if the login is known to be right.
    slot: Option<Slot>,
    compared: Option<bool>,
    hashed: Option<bool>,
}

impl LoginTurns {
    /// Whether this login is known to be right, without waiting.
    pub fn is_right(&self, login: &PasswordLogin<'_>) -> bool {
        let PasswordLogin { user, from, .. } = *login;
        if self.compare(login) != Some(true) {
            return false;
        }
        let mut state = self.0.state.lock();
        let may_try = state.queue.may_try(user, from, Instant::now());
        if may_try {
            state.queue.trust(user, from);
        }
        may_try
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// There is no room, or it took too long.
    pub async fn turn<'a>(&self, login: PasswordLogin<'a>) -> Result<LoginTurn<'a>, Crowded> {
        if self.is_right(&login) {
            return Ok(LoginTurn { login, slot: None, compared: Some(true), hashed: None });
        }
        let hash = login.stored.is_some() && self.compare(&login).is_none();
        let slot = self.slot(login.user, login.from, hash).await?;
        // Another client of the user may have shown it meanwhile.
        let compared = self.compare(&login);
        Ok(LoginTurn { login, slot: Some(slot), compared, hashed: None })
    }

    /// Hashes for a user who has logged in, such as a new password.
    ///
    /// # Errors
    /// As for [`LoginTurns::turn`].
    pub async fn hash<T, W>(&self, user: &str, work: W) -> Result<T, Crowded>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        self.0.state.lock().queue.trust(user, nowhere);
        let slot = self.slot(user, nowhere, true).await?;
        Ok(slot.run(work, |_| true).await?.1)
    }

    fn compare(&self, login: &PasswordLogin<'_>) -> Option<bool> {
        self.0.right.compare(login.user, login.password.as_bytes(), login.stored?)
    }

    async fn slot(&self, user: &str, address: IpAddr, hash: bool) -> Result<Slot, Crowded> {
        let begun = Instant::now();
        let (sender, mut mine) = oneshot::channel();
        let pushed = self.0.state.lock().queue.push(user, address, hash, sender, begun);
        // One that is evicted is notified because its sender is dropped.
        let (id, evicted) = pushed.map_err(|_| Crowded)?;
        drop(evicted);
        let _place = QueuedLogin(self, id);
        while begun.elapsed() < MAX_WAIT {
            self.start_waiting_logins();
            if let Ok(slot) = tokio::time::timeout(ASK_AGAIN, &mut mine).await {
                return slot.map_err(|_| Crowded);
            }
        }
        Err(Crowded)
    }

    /// Gives turns to logins, as long as there is a thread for the next one.
    fn start_waiting_logins(&self) {
        loop {
            let mut state = self.0.state.lock();
            if state.hashing >= MAX_AT_ONCE {
                return;
            }
            let Some(next) = state.queue.pop(Instant::now()) else { return };
            state.hashing += usize::from(next.hash);
            drop(state);
            let slot = Slot { turns: self.clone(), ticket: next.ticket, hash: next.hash };
            // If its request is cancelled at this moment, the slot is dropped and passed on.
            drop(next.login.send(slot));
        }
    }
}

impl Slot {
    /// Works on a thread for what blocks, and notes there whether the login was right: its client may be gone by then.
    async fn run<T, W, R>(self, work: W, is_right: R) -> Result<(Slot, T), Crowded>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
        R: FnOnce(&T) -> bool + Send + 'static,
    {
        let done = tokio::task::spawn_blocking(move || {
            let begun = Instant::now();
            let done = work();
            let now = Instant::now();
            let mut state = self.turns.0.state.lock();
            state.queue.hash_took(now - begun, now);
            if is_right(&done) {
                state.queue.right(&self.ticket, now);
            }
            drop(state);
            (self, done)
        });
        done.await.map_err(|_| Crowded)
    }
}

impl LoginTurn<'_> {
    /// Whether something has to be hashed, be it for the time it takes: then [`LoginTurn::hash`] follows.
    pub fn needs_hash(&self) -> bool {
        let hash = self.slot.as_ref().is_some_and(|slot| slot.hash);
        hash && self.compared != Some(true)
    }

    /// Hashes; `verify` returns whether the password is right, and takes the same time if there is none.
    ///
    /// # Errors
    /// The server ends.
    pub async fn hash<V>(mut self, verify: V) -> Result<Self, Crowded>
    where
        V: FnOnce() -> bool + Send + 'static,
    {
        if let Some(slot) = self.slot.take() {
            // Otherwise, it is hashed only for the time it takes.
            let decides = self.compared.is_none() && self.login.stored.is_some();
            let (slot, right) = slot.run(verify, move |right| decides && *right).await?;
            (self.slot, self.hashed) = (Some(slot), Some(right));
        }
        Ok(self)
    }

    /// Whether the login is right. A refusal comes when that of any other login would.
    pub async fn end(mut self) -> bool {
        let PasswordLogin { user, password, stored, .. } = self.login;
        let Some(slot) = self.slot.take() else { return true };
        let right = self.compared.unwrap_or(self.hashed == Some(true)) && stored.is_some();
        let (turns, now) = (slot.turns.clone(), Instant::now());
        let due = {
            let mut state = turns.0.state.lock();
            if right && self.hashed.is_none() {
                state.queue.right(&slot.ticket, now);
            }
            state.queue.refusal_due(&slot.ticket, self.hashed.is_some(), now)
        };
        drop(slot);
        if !right {
            tokio::time::sleep_until(due.into()).await;
        } else if let (Some(stored), None) = (stored, self.compared) {
            turns.0.right.add(user, password.as_bytes(), stored);
        }
        right
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const FROM: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

    fn login<'a>(user: &'a str, password: &'a str, stored: Option<&'a str>) -> PasswordLogin<'a> {
        PasswordLogin { user, password, from: FROM, stored }
    }

    /// Checks a login, and whether something was hashed.
    async fn check(turns: &LoginTurns, login: PasswordLogin<'_>) -> (bool, bool) {
        let right = login.stored == Some(login.password);
        let mut turn = turns.turn(login).await.unwrap();
        let hashed = turn.needs_hash();
        if hashed {
            turn = turn.hash(move || right).await.unwrap();
        }
        (turn.end().await, hashed)
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    #[test]
    fn only_what_is_not_known_is_hashed() {
        let turns = LoginTurns::default();
        runtime().block_on(async {
            let (right, wrong) = (login("ann", "a", Some("a")), login("ann", "b", Some("a")));
            assert_eq!(check(&turns, wrong).await, (false, true));
            assert!(!turns.is_right(&right));
            assert_eq!(check(&turns, right).await, (true, true));
            assert!(turns.is_right(&right));
            assert_eq!(check(&turns, right).await, (true, false));
            turns.0.state.lock().queue.hash_took(Duration::ZERO, Instant::now());
            assert_eq!(check(&turns, wrong).await, (false, false));
            turns.0.state.lock().queue.hash_took(Duration::ZERO, Instant::now());
            assert_eq!(check(&turns, login("nobody", "b", None)).await, (false, false));
            // Another password.
            assert_eq!(check(&turns, login("ann", "b", Some("b"))).await, (true, true));
            assert!(check(&turns, right).await.0);
        });
        assert_eq!(turns.0.state.lock().hashing, 0);
    }

    #[test]
    fn a_right_login_whose_client_leaves_while_it_is_hashed_is_no_guess() {
        let turns = LoginTurns::default();
        runtime().block_on(async {
            // More than a name has guesses.
            for _ in 0..20 {
                let turn = turns.turn(login("ann", "a", Some("a"))).await.unwrap();
                let mut hash = Box::pin(turn.hash(|| true));
                // So that the work begins.
                drop(tokio::time::timeout(Duration::ZERO, &mut hash).await);
                drop(hash);
                while turns.0.state.lock().hashing > 0 {
                    tokio::task::yield_now().await;
                }
            }
        });
        let elsewhere = [198, 51, 100, 1].into();
        assert!(turns.0.state.lock().queue.may_try("ann", elsewhere, Instant::now()));
    }

    #[test]
    fn work_whose_request_is_gone_keeps_its_slot_and_who_waits_leaves() {
        let (turns, runtime) = (LoginTurns::default(), runtime());
        let running = Arc::<AtomicUsize>::default();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let ends = Arc::new(std::sync::Mutex::new(ends));
        runtime.block_on(async {
            for number in 0..MAX_AT_ONCE {
                let ends = ends.clone();
                let request = tokio::spawn({
                    let (turns, running) = (turns.clone(), running.clone());
                    async move {
                        let user = format!("user{number}");
                        let work = move || {
                            running.fetch_add(1, Ordering::SeqCst);
                            let _end = ends.lock().unwrap().recv();
                        };
                        turns.hash(&user, work).await
                    }
                });
                while turns.0.state.lock().hashing <= number {
                    tokio::task::yield_now().await;
                }
                // So that the work has begun.
                while running.load(Ordering::SeqCst) <= number {
                    tokio::task::yield_now().await;
                }
                request.abort();
                assert!(request.await.unwrap_err().is_cancelled());
            }
            assert_eq!(turns.0.state.lock().hashing, MAX_AT_ONCE, "they still run");
            let mut waits = Box::pin(turns.turn(login("ann", "a", Some("a"))));
            let patience = Duration::from_millis(1);
            assert!(tokio::time::timeout(patience, &mut waits).await.is_err());
            assert!(!turns.0.state.lock().queue.is_empty());
            drop(waits);
            assert!(turns.0.state.lock().queue.is_empty());
            drop(end);
            assert!(turns.turn(login("ann", "a", Some("a"))).await.unwrap().needs_hash());
        });
    }
}
