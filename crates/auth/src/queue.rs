//! Logins that wait to be checked, in an order in which strangers do not stop honest ones.
//!
//! Checking a password costs tens of milliseconds, and any client can cause it, from any number of networks. So:
//!
//! - **What need not be hashed is not**: names that do not exist, and passwords of users whose right one is known
//!   ([`super::right_logins`]). Such logins keep their place in the order and are refused when a thread would have begun
//!   with them, so that the time until then shows nothing. They occupy no thread.
//! - **Good before comes first**: a user from a network from which that user has logged in.
//! - **Then those under least pressure.** Logins that were not right count against their name, their network, and the wider
//!   network around it ([`Sketch`]). A login is as suspect as the better of its name and its wider network, because
//!   attackers use both again and again, and a new login of an honest user only one of them that is under attack.
//! - **Guesses have a limit per name over all networks**: beyond it, a name's logins wait for the next guess, and the least
//!   suspect gets it. Networks that were good before are not concerned, so that nobody locks a user out.
//!
//! No I/O, no threads; time is passed in.

use std::cmp::Ordering;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::recent_set::RecentSet;
use crate::sketch::Sketch;
use fulmar_text::network::site;

/// Waiting logins.
const MAX_WAITING: usize = 512;

/// Wrong guesses of a name's password at once. As half of them are forgotten after [`super::sketch::HALF_LIFE`], one more
/// is possible every two seconds.
const MAX_GUESSES: f32 = 15.0;

/// Wrong logins of a user from a network that was good before, until that counts for nothing.
const MAX_MISTAKES: f32 = 5.0;

/// Wrong logins from a wider network that are nothing unusual.
const MAX_CLEAN: f32 = 4.0;

/// Users and networks of good logins that are remembered.
const MAX_GOOD: usize = 16_384;

/// The earliest that a refusal is sent after its login has come; later where [`HASHES_IN_A_ROW`] take longer.
const LEAST_REFUSAL: Duration = Duration::from_millis(500);

/// Hashes that wait for each other when all [`MAX_GUESSES`] at a name come at once, on two threads.
const HASHES_IN_A_ROW: u32 = 8;

/// Age that the measured time of a hash may reach before a login is hashed only to measure it.
const MEASURE_EVERY: Duration = Duration::from_secs(1);

/// When the ranks of all waiting logins are computed again: after this time, or this many new logins.
const RANKED_FOR: Duration = Duration::from_millis(50);
const RANKED_FOR_LOGINS: u32 = 16;

/// Identifies a login in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueId(u64);

/// Whose a login claims to be, and from where: keyed hashes.
#[derive(Clone, Copy, Debug)]
struct Claim {
    name: u64,
    site: u64,
    /// User and network.
    pair: u64,
    /// The wider network: the first half of an IPv4 address, the first quarter of an IPv6 address.
    wide: u64,
}

/// Degree to which a login is suspect; the least suspect comes first.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rank {
    stranger: bool,
    /// The lesser sum of name and wider network, rounded.
    least: f32,
    /// The sum of both and of the network.
    all: f32,
}

#[derive(Debug)]
struct Waiting<T> {
    id: QueueId,
    claim: Claim,
    arrived: Instant,
    hash: bool,
    login: T,
    rank: Rank,
    /// Whether it has one of the guesses of its name, or needs none.
    may_try: bool,
    /// Whether it may be the next: its name had a guess when ranks were computed last.
    open: bool,
}

/// History of names and networks.
#[derive(Debug)]
struct Standing {
    keys: RandomState,
    /// Logins that were not right, or not yet.
    attempts: Sketch,
    /// Number of these that were checked, per name.
    guesses: Sketch,
    good: RecentSet<u64>,
    /// Attempts of users from networks that were good: nobody else can make these more.
    mistakes: Sketch,
    /// Time that the last hash took.
    hash: Duration,
    /// When it ended, or another one began.
    measured: Option<Instant>,
}

/// Logins that wait to be checked; see the module.
#[derive(Debug)]
pub struct LoginQueue<T> {
    waiting: Vec<Waiting<T>>,
    standing: Standing,
    last_id: u64,
    ranked_at: Option<Instant>,
    /// New logins since then.
    unranked: u32,
}

/// A login whose turn has come. Its [`Ticket`] belongs to [`LoginQueue::right`] or [`LoginQueue::refusal_due`].
#[derive(Debug)]
pub struct NextLogin<T> {
    /// The login.
    pub login: T,
    /// Whether something has to be hashed, be it only because the time is to be measured.
    pub hash: bool,
    /// For its result.
    pub ticket: Ticket,
}

/// A login's identity for the queue at its end.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    claim: Claim,
    arrived: Instant,
}

impl<T> Default for LoginQueue<T> {
    fn default() -> Self {
        let standing = Standing {
            keys: RandomState::new(),
            attempts: Sketch::default(),
            guesses: Sketch::default(),
            good: RecentSet::new(MAX_GOOD),
            mistakes: Sketch::default(),
            hash: Duration::ZERO,
            measured: None,
        };
        LoginQueue { waiting: Vec::new(), standing, last_id: 0, ranked_at: None, unranked: 0 }
    }
}

impl<T> LoginQueue<T> {
    /// Queues a login of `user` from this address, which needs a hash or not. Returns the login evicted to make room, if
    /// any.
    ///
    /// # Errors
    /// There is no room for one that suspect; returns it.
    pub fn push(
        &mut self,
        user: &str,
        address: IpAddr,
        hash: bool,
        login: T,
        now: Instant,
    ) -> Result<(QueueId, Option<T>), T> {
        let claim = self.standing.claim(user, address);
        let may_try = self.may_try_now(&claim, now);
        self.standing.count(&claim, 1.0, now);
        self.unranked += 1;
        let rank = self.standing.rank(&claim, now);
        let mut evicted = None;
        if self.waiting.len() >= MAX_WAITING {
            self.rank_again(now);
            let worst = self.waiting.iter().enumerate().max_by(|(_, a), (_, b)| a.cmp(b));
            match worst.filter(|(_, worst)| rank.cmp(&worst.rank).is_lt()) {
                Some((at, _)) => evicted = Some(self.leave(at, now)),
                None => return Err(login),
            }
        }
        if may_try {
            self.standing.guesses.add(claim.name, 1.0, now);
        }
        self.last_id += 1;
        let (id, arrived) = (QueueId(self.last_id), now);
        // One that waits for a guess must not get it before those that wait longer are looked at again.
        let open = may_try;
        let waiting = Waiting { id, claim, arrived, hash, login, rank, may_try, open };
        self.waiting.push(waiting);
        Ok((id, evicted))
    }

    /// Takes the login whose turn it is. `None` may mean that those that wait have to wait longer.
    pub fn pop(&mut self, now: Instant) -> Option<NextLogin<T>> {
        self.rank_again(now);
        loop {
            let open = self.waiting.iter().enumerate().filter(|(_, login)| login.open);
            let (at, first) = open.min_by(|(_, a), (_, b)| a.cmp(b))?;
            if !first.may_try {
                let claim = first.claim;
                if !self.standing.may_try(&claim, now) {
                    let same = |login: &&mut Waiting<T>| login.claim.name == claim.name;
                    self.waiting
                        .iter_mut()
                        .filter(same)
                        .for_each(|login| login.open = login.may_try);
                    continue;
                }
                self.standing.guesses.add(claim.name, 1.0, now);
            }
            let Waiting { claim, arrived, hash, login, .. } = self.waiting.swap_remove(at);
            let measured = self.standing.measured.is_some_and(|at| now < at + MEASURE_EVERY);
            let (ticket, hash) = (Ticket { claim, arrived }, hash || !measured);
            if hash {
                self.standing.measured = Some(now);
            }
            return Some(NextLogin { login, hash, ticket });
        }
    }

    /// Removes a login whose client has gone.
    pub fn remove(&mut self, id: QueueId, now: Instant) -> Option<T> {
        let at = self.waiting.iter().position(|login| login.id == id)?;
        Some(self.leave(at, now))
    }

    /// Takes out a login that is not checked: it gives its guess back.
    fn leave(&mut self, at: usize, now: Instant) -> T {
        let Waiting { claim, may_try, login, .. } = self.waiting.swap_remove(at);
        if may_try {
            self.standing.guesses.add(claim.name, -1.0, now);
        }
        login
    }

    /// Whether no login waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// All waiting logins, unordered.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.waiting.drain(..).map(|waiting| waiting.login)
    }

    /// Whether a password may be compared now with what is known of this user. If it is wrong,
    /// [`LoginQueue::push`] follows, which counts the guess.
    #[must_use]
    pub fn may_try(&self, user: &str, address: IpAddr, now: Instant) -> bool {
        self.may_try_now(&self.standing.claim(user, address), now)
    }

    /// Whether there is a guess left, and no other login waits for one of the same name.
    fn may_try_now(&self, claim: &Claim, now: Instant) -> bool {
        let waits = |login: &Waiting<T>| !login.may_try && login.claim.name == claim.name;
        self.standing.trusts(claim, now)
            || (self.standing.may_try(claim, now) && !self.waiting.iter().any(waits))
    }

    /// Whether a guess may be checked that cannot wait: also beyond the limit, if hardly any login from the wider network
    /// was wrong.
    pub(crate) fn may_guess(&self, user: &str, address: IpAddr, now: Instant) -> bool {
        let claim = self.standing.claim(user, address);
        self.standing.may_try(&claim, now)
            || self.standing.attempts.get(claim.wide, now) < MAX_CLEAN
    }

    /// Counts a wrong guess that had no place here.
    pub(crate) fn guessed(&mut self, user: &str, address: IpAddr, now: Instant) {
        let claim = self.standing.claim(user, address);
        self.standing.count(&claim, 1.0, now);
        self.standing.guesses.add(claim.name, 1.0, now);
    }

    /// Notes that this user has logged in from there.
    pub fn trust(&mut self, user: &str, address: IpAddr) {
        let pair = self.standing.claim(user, address).pair;
        self.standing.good.insert(pair);
    }

    /// A login was right.
    pub fn right(&mut self, ticket: &Ticket, now: Instant) {
        self.undecided(ticket, now);
        self.standing.good.insert(ticket.claim.pair);
    }

    /// A login was neither right nor wrong, and is no guess.
    pub fn undecided(&mut self, ticket: &Ticket, now: Instant) {
        self.standing.count(&ticket.claim, -1.0, now);
        self.standing.guesses.add(ticket.claim.name, -1.0, now);
    }

    /// Notes what a hash has taken.
    pub fn hash_took(&mut self, time: Duration, now: Instant) {
        (self.standing.hash, self.standing.measured) = (time, Some(now));
    }

    /// When the refusal of a login is to be sent that was hashed, or would be now.
    #[must_use]
    pub fn refusal_due(&self, ticket: &Ticket, hashed: bool, now: Instant) -> Instant {
        let checked = if hashed { now } else { now + self.standing.hash };
        checked.max(ticket.arrived + LEAST_REFUSAL.max(HASHES_IN_A_ROW * self.standing.hash))
    }

    fn rank_again(&mut self, now: Instant) {
        let recent = self.ranked_at.is_some_and(|at| now < at + RANKED_FOR);
        if recent && self.unranked < RANKED_FOR_LOGINS {
            return;
        }
        (self.ranked_at, self.unranked) = (Some(now), 0);
        for login in &mut self.waiting {
            login.rank = self.standing.rank(&login.claim, now);
            login.open = login.may_try || self.standing.may_try(&login.claim, now);
        }
    }
}

impl<T> Waiting<T> {
    /// The one that is to be checked first is less.
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank.cmp(&other.rank).then(self.id.0.cmp(&other.id.0))
    }
}

impl Rank {
    fn cmp(&self, other: &Rank) -> Ordering {
        let strangers = self.stranger.cmp(&other.stranger);
        strangers.then(self.least.total_cmp(&other.least)).then(self.all.total_cmp(&other.all))
    }
}

impl Standing {
    fn claim(&self, user: &str, address: IpAddr) -> Claim {
        let site = site(address);
        let wide = match site {
            IpAddr::V4(v4) => u128::from(v4.to_bits() >> 16),
            IpAddr::V6(v6) => 1 << 64 | v6.to_bits() >> 96,
        };
        Claim {
            name: self.keys.hash_one(("name", user)),
            site: self.keys.hash_one(("site", site)),
            pair: self.keys.hash_one(("pair", user, site)),
            wide: self.keys.hash_one(("wide", wide)),
        }
    }

    fn count(&mut self, claim: &Claim, amount: f32, now: Instant) {
        for key in [claim.name, claim.site, claim.wide] {
            self.attempts.add(key, amount, now);
        }
        if self.good.contains(&claim.pair) {
            self.mistakes.add(claim.pair, amount, now);
        }
    }

    /// Whether this user has logged in from there before, and has not made many mistakes since.
    fn trusts(&self, claim: &Claim, now: Instant) -> bool {
        self.good.contains(&claim.pair) && self.mistakes.get(claim.pair, now) <= MAX_MISTAKES
    }

    fn may_try(&self, claim: &Claim, now: Instant) -> bool {
        self.guesses.get(claim.name, now) < MAX_GUESSES || self.trusts(claim, now)
    }

    fn rank(&self, claim: &Claim, now: Instant) -> Rank {
        let [name, site, wide] =
            [claim.name, claim.site, claim.wide].map(|key| self.attempts.get(key, now));
        let stranger = !self.trusts(claim, now);
        Rank { stranger, least: name.min(wide).round(), all: name + site + wide }
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
