//! One budget for the memory that clients can make the broker keep.
//!
//! Limits per packet, session and connection do not bound their sum. Everything that stays because of a client
//! therefore counts in an [`Account`], and for an owner: a user, or all clients without a user at one address. While an
//! account is less than half full, owners get what they ask for. Above that, an owner may have as much as is still
//! free: one greedy owner gets half of the account, n greedy owners get 1/(n+1) each, and room remains for the others
//! ("dynamic thresholds", Choudhury and Hahne, 1998). The last eighth is for those that have less than [`FLOOR`], so
//! that no number of greedy owners can take everything, and no number of modest ones more than the account.
//!
//! A message's content is counted once, however many receivers it waits for, so that the account shows what is really
//! in use; for owners, each receiver's copy counts in full.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fulmar_auth::User;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::quota::Payer;

/// What an owner may have in some accounts as long as they are not full ([`Account::floor`]).
const FLOOR: usize = 16 * 1024;

/// The part of an account, one in this many, in which owners get no more than that.
const RESERVE: usize = 8;

/// Encoded packets of one flow that are not counted; below this, counting would cost more than it is worth.
pub(crate) const FREE_OUTPUT: usize = 16 * 1024;

/// Purpose of memory, with the consequence when its owner has no room left for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// Sessions, their subscriptions, flows and wills; further ones get 0x97 (Quota exceeded).
    Sessions,
    /// Messages that wait for receivers or for their acknowledgements, and retained messages. A queue counts as full; a
    /// publication that nobody has taken because of that gets 0x97.
    Messages,
    /// Encoded packets that receivers are slow to accept: outboxes are small.
    Output,
    /// Topic aliases that clients have set: a client that sets more is disconnected with 0x97.
    Aliases,
    /// Data that clients may send over QUIC before it is processed, beyond what every connection may: windows are small.
    Input,
    /// Long CONNECTs, and exchanges of SCRAM, whose sender is not known yet: they get 0x97.
    Logins,
    /// Connections themselves, from when they are accepted: they are closed before any MQTT byte.
    Connections,
}

fulmar_text::names!(
    Account:
    Sessions = "sessions",
    Messages = "messages",
    Output = "output",
    Aliases = "aliases",
    Input = "input",
    Logins = "logins",
    Connections = "connections",
);

impl Account {
    /// What every owner may have as long as the account is not full. Nothing of what strangers use, who may have any
    /// number of addresses.
    fn floor(self) -> usize {
        match self {
            Account::Sessions | Account::Messages | Account::Output | Account::Aliases => FLOOR,
            Account::Input | Account::Logins | Account::Connections => 0,
        }
    }

    /// What those that have more may share.
    fn shared(self, limit: usize) -> usize {
        if self.floor() == 0 { limit } else { limit - limit / RESERVE }
    }
}

/// The size of each account in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits([usize; Account::ALL.len()]);

impl MemoryLimits {
    /// No limits.
    pub const NONE: MemoryLimits = MemoryLimits([usize::MAX; Account::ALL.len()]);

    /// These limits, with another one for this account.
    #[must_use]
    pub fn with(mut self, account: Account, bytes: usize) -> MemoryLimits {
        self.0[account as usize] = bytes;
        self
    }

    /// The size of one account.
    #[must_use]
    pub fn of(&self, account: Account) -> usize {
        self.0[account as usize]
    }
}

/// The accounts of a broker.
#[derive(Debug)]
pub(crate) struct Memory {
    accounts: Arc<Accounts>,
    owners: Mutex<FxHashMap<Payer, Arc<MemoryOwner>>>,
    /// Of the program's own sessions, which are counted and never refused.
    program: Arc<MemoryOwner>,
}

/// What is in use over all owners.
#[derive(Debug)]
pub(crate) struct Accounts {
    used: [AtomicUsize; Account::ALL.len()],
    limits: MemoryLimits,
}

impl Accounts {
    fn of(&self, account: Account) -> &AtomicUsize {
        &self.used[account as usize]
    }

    /// Bytes in use.
    pub(crate) fn used(&self, account: Account) -> usize {
        self.of(account).load(Ordering::Relaxed)
    }

    /// A message's content is kept from now on.
    pub(crate) fn add_content(&self, bytes: usize) {
        self.of(Account::Messages).fetch_add(bytes, Ordering::Relaxed);
    }

    /// Nobody keeps it any longer.
    pub(crate) fn remove_content(&self, bytes: usize) {
        self.of(Account::Messages).fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What one owner has.
#[derive(Debug)]
pub(crate) struct MemoryOwner {
    accounts: Arc<Accounts>,
    used: [AtomicUsize; Account::ALL.len()],
    retained: RetainedUse,
    unlimited: bool,
}

/// An owner's retained messages; their limits are their own ([`crate::retained`]).
#[derive(Debug, Default)]
pub(crate) struct RetainedUse {
    messages: AtomicUsize,
    bytes: AtomicUsize,
}

impl RetainedUse {
    /// How many there are.
    pub(crate) fn messages(&self) -> usize {
        self.messages.load(Ordering::Relaxed)
    }

    /// Their size.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Another one of this size.
    pub(crate) fn add(&self, bytes: usize) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// One fewer.
    pub(crate) fn remove(&self, bytes: usize) {
        self.messages.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl MemoryOwner {
    fn new(accounts: &Arc<Accounts>, unlimited: bool) -> Arc<MemoryOwner> {
        Arc::new(MemoryOwner {
            accounts: Arc::clone(accounts),
            used: Default::default(),
            retained: RetainedUse::default(),
            unlimited,
        })
    }

    /// As many of these bytes as it may have more.
    pub(crate) fn room_for(&self, account: Account, wanted: usize) -> usize {
        if self.has_room(account, wanted) {
            return wanted;
        }
        let (used, limit) = (self.accounts.used(account), self.accounts.limits.of(account));
        let own = self.used[account as usize].load(Ordering::Relaxed);
        account.shared(limit).saturating_sub(used).saturating_sub(own).min(wanted)
    }

    /// Whether it may have this many bytes more.
    pub(crate) fn has_room(&self, account: Account, more: usize) -> bool {
        let (used, limit) = (self.accounts.used(account), self.accounts.limits.of(account));
        if used.saturating_add(more) <= limit / 2 || self.unlimited {
            return true;
        }
        let own = self.used[account as usize].load(Ordering::Relaxed).saturating_add(more);
        let is_modest = own <= account.floor() && used.saturating_add(more) <= limit;
        is_modest || own <= account.shared(limit).saturating_sub(used)
    }

    /// Whether it is the program, whose own sessions are never refused.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.unlimited
    }

    /// Its retained messages.
    pub(crate) fn retained(&self) -> &RetainedUse {
        &self.retained
    }

    fn add(&self, account: Account, bytes: usize, overall: usize) {
        self.used[account as usize].fetch_add(bytes, Ordering::Relaxed);
        self.accounts.of(account).fetch_add(overall, Ordering::Relaxed);
    }

    fn remove(&self, account: Account, bytes: usize, overall: usize) {
        self.used[account as usize].fetch_sub(bytes, Ordering::Relaxed);
        self.accounts.of(account).fetch_sub(overall, Ordering::Relaxed);
    }
}

impl Memory {
    pub(crate) fn new(limits: MemoryLimits) -> Memory {
        let accounts = Arc::new(Accounts { used: Default::default(), limits });
        let program = MemoryOwner::new(&accounts, true);
        Memory { accounts, owners: Mutex::default(), program }
    }

    pub(crate) fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    /// Bytes in use and the limit.
    pub(crate) fn totals(&self, account: Account) -> (usize, usize) {
        (self.accounts.used(account), self.accounts.limits.of(account))
    }

    /// The owner of what a client of `user` at this address keeps; see [`fulmar_text::network::site`].
    pub(crate) fn owner(&self, user: Option<&User>, site: IpAddr) -> Arc<MemoryOwner> {
        let Some(payer) = Payer::of(user, site) else { return Arc::clone(&self.program) };
        let mut owners = self.owners.lock();
        Arc::clone(owners.entry(payer).or_insert_with(|| MemoryOwner::new(&self.accounts, false)))
    }

    /// Forgets owners that have nothing.
    pub(crate) fn sweep(&self) {
        let mut owners = self.owners.lock();
        owners.retain(|_, owner| Arc::strong_count(owner) > 1);
        if owners.capacity() > 64 + 4 * owners.len() {
            owners.shrink_to_fit();
        }
    }

    #[cfg(test)]
    fn owners(&self) -> usize {
        self.owners.lock().len()
    }
}

/// Bytes that an owner has in an account until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    owner: Arc<MemoryOwner>,
    account: Account,
    bytes: usize,
}

impl Charge {
    /// None yet.
    pub(crate) fn new(owner: Arc<MemoryOwner>, account: Account) -> Charge {
        Charge { owner, account, bytes: 0 }
    }

    pub(crate) fn owner(&self) -> &Arc<MemoryOwner> {
        &self.owner
    }

    /// Whether there is room for this many bytes more.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.owner.has_room(self.account, more)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// It is this many bytes from now on.
    pub(crate) fn set(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.owner.add(self.account, bytes - self.bytes, bytes - self.bytes);
        } else {
            self.owner.remove(self.account, self.bytes - bytes, self.bytes - bytes);
        }
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.owner.remove(self.account, self.bytes, self.bytes);
    }
}

/// What a part of the program outside the broker keeps because of a client, until this is dropped.
#[derive(Debug)]
pub struct MemoryShare(#[allow(dead_code, reason = "counts until it is dropped")] Charge);

impl MemoryShare {
    /// `None` if the owner has no room for these bytes.
    pub(crate) fn take(
        owner: Arc<MemoryOwner>,
        account: Account,
        bytes: usize,
    ) -> Option<MemoryShare> {
        let mut charge = Charge::new(owner, account);
        charge.has_room(bytes).then(|| {
            charge.set(bytes);
            MemoryShare(charge)
        })
    }
}

/// A receiver's copy of a message, which counts in full for the owner, and overall only for what the copy itself takes.
#[derive(Debug)]
pub(crate) struct Kept {
    owner: Arc<MemoryOwner>,
    content: u32,
    own: u32,
}

impl Kept {
    /// A copy that takes `own` bytes beside the shared content of `content` bytes.
    pub(crate) fn new(owner: &Arc<MemoryOwner>, content: usize, own: usize) -> Kept {
        let limited = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let (content, own) = (limited(content), limited(own));
        owner.add(Account::Messages, content as usize + own as usize, own as usize);
        Kept { owner: Arc::clone(owner), content, own }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let (content, own) = (self.content as usize, self.own as usize);
        self.owner.remove(Account::Messages, content + own, own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
    const MAX: usize = 64 * 1024 * 1024;

    fn memory() -> Memory {
        Memory::new(MemoryLimits::NONE.with(Account::Sessions, MAX))
    }

    fn charge(memory: &Memory, user: Option<&str>, site: IpAddr) -> Charge {
        let user = user.map(User::from_text);
        Charge::new(memory.owner(user.as_ref(), site), Account::Sessions)
    }

    /// Takes as much as it gets, in small parts.
    fn fill(charge: &mut Charge) -> usize {
        while charge.bytes() < 2 * MAX && charge.has_room(1024) {
            charge.set(charge.bytes() + 1024);
        }
        charge.bytes()
    }

    #[test]
    fn greedy_owners_get_equal_parts_and_leave_one_for_others() {
        for greedy in [1, 2, 3, 7] {
            let memory = memory();
            let names: Vec<_> = (0..greedy).map(|number| format!("eve-{number}")).collect();
            let mut charges: Vec<_> =
                names.iter().map(|name| charge(&memory, Some(name), HERE)).collect();
            // In turn, as they would at the same time.
            for round in 1..=MAX / 4096 {
                for charge in &mut charges {
                    if charge.has_room(4096) {
                        charge.set(round * 4096);
                    }
                }
            }
            let share = (MAX / 2).min((MAX - MAX / RESERVE) / (greedy + 1)).max(MAX / 2 / greedy);
            for charge in &charges {
                assert!(
                    charge.bytes().abs_diff(share) <= share / 10,
                    "{greedy}: {}",
                    charge.bytes()
                );
            }
            let mut honest = charge(&memory, Some("ann"), HERE);
            assert!(fill(&mut honest) >= share / 3, "{greedy}");
            assert!(memory.totals(Account::Sessions).0 <= MAX);
        }
    }

    #[test]
    fn one_user_is_one_owner_wherever_its_clients_are_and_others_are_by_address() {
        let memory = memory();
        let mut first = charge(&memory, Some("eve"), HERE);
        assert!(fill(&mut first) <= MAX / 2);
        assert!(!charge(&memory, Some("eve"), THERE).has_room(FLOOR));
        let mut anonymous = charge(&memory, None, HERE);
        fill(&mut anonymous);
        assert!(!charge(&memory, None, HERE).has_room(FLOOR));
        assert!(charge(&memory, None, THERE).has_room(FLOOR));
    }

    #[test]
    fn an_owner_with_nothing_gets_the_floor_beside_greedy_ones_and_the_program_everything() {
        let memory = memory();
        let names: Vec<_> = (0..1000).map(|number| format!("eve-{number}")).collect();
        let mut greedy: Vec<_> =
            names.iter().map(|name| charge(&memory, Some(name), HERE)).collect();
        for round in 1..=MAX / 1024 {
            for charge in &mut greedy {
                if charge.has_room(1024) {
                    charge.set(round * 1024);
                }
            }
        }
        let honest = (0..300).map(|number| {
            let mut honest = charge(&memory, Some(&format!("ann-{number}")), HERE);
            assert!(fill(&mut honest) >= FLOOR, "{number}");
            honest
        });
        let honest: Vec<_> = honest.collect();
        assert!(memory.totals(Account::Sessions).0 <= MAX, "{}", honest.len());
        let program = User::program();
        assert!(charge(&memory, Some(program.text()), HERE).has_room(MAX));
    }

    #[test]
    fn many_owners_that_have_little_do_not_exceed_the_account() {
        let memory = memory();
        let many = 4 * MAX / FLOOR;
        let owners = (0..many).map(|number| {
            let mut owner = charge(&memory, Some(&format!("device-{number}")), HERE);
            fill(&mut owner);
            owner
        });
        let owners: Vec<_> = owners.collect();
        let used = memory.totals(Account::Sessions).0;
        assert!(used <= MAX && used > MAX - FLOOR, "{used}");
        assert_eq!(owners.iter().map(Charge::bytes).sum::<usize>(), used);
    }

    #[test]
    fn strangers_with_many_addresses_do_not_exceed_the_account() {
        let memory = Memory::new(MemoryLimits::NONE.with(Account::Connections, MAX));
        let take = |address: u32, bytes| {
            let owner = memory.owner(None, IpAddr::V4(address.into()));
            MemoryShare::take(owner, Account::Connections, bytes)
        };
        let shares: Vec<_> = (0..100_000).filter_map(|address| take(address, 4096)).collect();
        let used = memory.totals(Account::Connections).0;
        assert!(used <= MAX && used > MAX - 3 * 4096, "{used}");
        drop(shares);
        assert_eq!(memory.totals(Account::Connections).0, 0);
        // One address has half of it.
        let shares: Vec<_> = (0..100_000).map_while(|_| take(1, 4096)).collect();
        assert_eq!(shares.len() * 4096, MAX / 2);
        assert!(take(2, 4096).is_some());
    }

    #[test]
    fn nothing_is_left_behind() {
        let memory = Memory::new(
            MemoryLimits::NONE.with(Account::Sessions, MAX).with(Account::Messages, MAX),
        );
        let mut session = charge(&memory, Some("eve"), HERE);
        session.set(5000);
        session.set(3000);
        let copies: Vec<_> = (0..3).map(|_| Kept::new(session.owner(), 1000, 100)).collect();
        assert_eq!(memory.totals(Account::Sessions).0, 3000);
        assert_eq!(memory.totals(Account::Messages).0, 300, "the content is counted apart");
        memory.sweep();
        assert_eq!(memory.owners(), 1);
        drop((session, copies));
        assert_eq!(memory.totals(Account::Sessions).0, 0);
        assert_eq!(memory.totals(Account::Messages).0, 0);
        memory.sweep();
        assert_eq!(memory.owners(), 0);
    }
}
