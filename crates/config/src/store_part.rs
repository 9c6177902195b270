//! What the broker's store gets of `[limits] disk`.
//!
//! Outboxes and dead letters have limits of their own, which are taken off first. Of the rest, the store gets a part,
//! for its database and its write-ahead log. `[storage] max_bytes` replaces that part. Sessions and waiting messages are
//! refused, per user and with 0x97, before the store is full: their accounts in memory ([`super::memory`]) have at most
//! half of its size, since SQLite may take twice the space of their content.

use fulmar_broker::Account;

use super::disk::LEAST;
use super::document::Config;
use super::memory::Parts;

/// Shares of the store in percent, beside a platform that has its database in the same folder, and without.
const STORE_BESIDE_PLATFORM: u64 = 50;
const STORE_ALONE: u64 = 80;
/// The same in a cluster with a platform, whose rows are in the store besides.
const STORE_OF_CLUSTER: u64 = 40;

/// Shares of the store in percent that sessions and messages may have, as counted in memory.
const SESSIONS: u64 = 15;
const MESSAGES: u64 = 30;

/// The share of the store in percent that the write-ahead log may have before it is copied back, and a page's bytes.
const LOG: u64 = 10;
const PAGE_BYTES: u64 = 4096;

/// Part of the budget that the store may use, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorePart {
    /// The database, without its log.
    pub database: u64,
    /// Pages in the log at which it is copied back.
    pub log_pages: u64,
    sessions: usize,
    messages: usize,
}

impl StorePart {
    fn numbered(store: u64) -> StorePart {
        let percent = |share: u64| store / 100 * share;
        let count = |share: u64| usize::try_from(percent(share)).unwrap_or(usize::MAX);
        StorePart {
            database: store - percent(LOG),
            log_pages: (percent(LOG) / PAGE_BYTES).min(fulmar_store::Options::default().log_pages),
            sessions: count(SESSIONS),
            messages: count(MESSAGES),
        }
    }

    /// A database of the size that the operator has set.
    fn set(database: u64) -> StorePart {
        let log_pages = fulmar_store::Options::default().log_pages;
        StorePart { database, log_pages, sessions: usize::MAX, messages: usize::MAX }
    }

    /// The accounts in memory, lowered to what the store has room for.
    pub fn lower(&self, mut parts: Parts) -> Parts {
        let lowered = [(Account::Sessions, self.sessions), (Account::Messages, self.messages)];
        for (account, most) in lowered {
            parts.broker = parts.broker.with(account, parts.broker.limit(account).min(most));
        }
        // Within the account for messages.
        parts.retained = parts.retained.min(self.messages / 3);
        parts
    }
}

impl Config {
    /// The store's part; `None` without a store.
    pub fn store_part(&self) -> Option<StorePart> {
        if !self.storage.enabled {
            return None;
        }
        let mut part = if self.storage.max_bytes > 0 {
            StorePart::set(self.storage.max_bytes)
        } else {
            // Checked when the configuration was read.
            let budget = self.limits.disk.bytes(&self.data_dir()).unwrap_or(u64::MAX);
            StorePart::numbered(self.store_bytes_of(budget))
        };
        part.database = part.database.saturating_add(self.shared_platform_bytes());
        Some(part)
    }

    /// Bytes of the platform's rows in the store: in a cluster it has them for the other nodes.
    fn shared_platform_bytes(&self) -> u64 {
        #[cfg(feature = "platform")]
        if self.has_shared_platform() {
            return self.platform_part().database;
        }
        0
    }

    fn has_shared_platform(&self) -> bool {
        self.cluster.is_on() && self.has_platform() && self.platform.database.0.is_empty()
    }

    /// Bytes that the store's file may have; `None` without a store.
    pub fn store_file_limit(&self) -> Option<u64> {
        self.store_part().map(|part| part.database)
    }

    /// Bytes that outboxes and dead letters may have together; `None` without an upstream broker.
    pub fn outboxes_limit(&self) -> Option<u64> {
        let taken = u64::MAX - self.without_outboxes(u64::MAX);
        (taken > 0).then_some(taken)
    }

    /// Returns the part of the budget that outboxes and dead letters leave, in bytes.
    pub fn without_outboxes(&self, budget: u64) -> u64 {
        let upstreams = self.upstreams().filter(|upstream| upstream.is_on());
        let theirs = upstreams.map(|upstream| {
            let letters = upstream.dead_letters().map_or(0, |(_, bytes)| bytes.saturating_mul(2));
            upstream.outbox.max_bytes.saturating_add(letters)
        });
        budget.saturating_sub(theirs.fold(0, u64::saturating_add))
    }

    fn store_bytes_of(&self, budget: u64) -> u64 {
        let platform = !self.listeners.https.is_empty() && self.platform.database.0.is_empty();
        let share = match platform {
            _ if self.has_shared_platform() => STORE_OF_CLUSTER,
            true => STORE_BESIDE_PLATFORM,
            false => STORE_ALONE,
        };
        (self.without_outboxes(budget) / 100 * share).max(LEAST / 2)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn part(text: &str) -> Option<StorePart> {
        Config::from_toml(text).unwrap().store_part()
    }

    #[test]
    fn the_store_has_what_outboxes_and_the_platform_leave() {
        let database = |text: &str| part(text).unwrap().database;
        assert_eq!(database("[limits]\ndisk = \"1GB\"\n"), 450_000_000);
        let alone = "[limits]\ndisk = \"1GB\"\n[listeners]\nhttps = []\n";
        assert_eq!(database(alone), 720_000_000);
        let branch = "[limits]\ndisk = \"1GB\"\n[listeners]\nhttps = []\n[upstream]\nurl = \"quic://h\"\n[upstream.outbox]\nmax_bytes = 500000000\n[[upstream.up]]\nfilter = \"#\"\n";
        assert_eq!(database(branch), 360_000_000);
        #[cfg(all(feature = "cluster", feature = "platform"))]
        {
            let cluster = "[limits]\ndisk = \"1GB\"\n[cluster]\nservers = [\"nats://127.0.0.1\"]\nnode = \"a\"\n[platform]\nenabled = true\n";
            let platform = Config::from_toml(cluster).unwrap().platform_part().database;
            assert_eq!((database(cluster), platform), (360_000_000 + platform, 187_500_000));
        }
        let set = "[limits]\ndisk = \"1GB\"\n[storage]\nmax_bytes = 100000000\n";
        assert_eq!(database(set), 100_000_000);
        assert_eq!(part("[limits]\ndisk = \"1GB\"\n[storage]\nenabled = false\n"), None);
    }

    #[test]
    fn what_is_stored_is_refused_before_the_store_is_full() {
        let disk = part("[limits]\ndisk = \"64MB\"\n").unwrap();
        let parts = disk.lower(Parts::divide(8_000_000_000));
        let counted =
            (parts.broker.limit(Account::Sessions) + parts.broker.limit(Account::Messages)) as u64;
        assert!(2 * counted <= disk.database + disk.log_pages * PAGE_BYTES, "{counted}");
        assert!(parts.retained < parts.broker.limit(Account::Messages) / 2);
        let ample = part("[limits]\ndisk = \"100GB\"\n").unwrap();
        assert_eq!(ample.lower(Parts::divide(512_000_000)), Parts::divide(512_000_000));
    }
}
