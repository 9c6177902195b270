//! Databases beside the broker's whose rows the nodes of a cluster share: a change is in the cluster's log before it is in
//! effect, and a node that takes over begins with all rows.
//!
//! The rows are part of the broker's own database behind the log, and so of its snapshots; each part of the server has
//! them in a file of its own besides, which is made anew when this node takes over. The platform's is too large for that:
//! it follows the rows while its node stands by.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use fulmar_broker::storage::Storage as _;
use fulmar_mirror::{NotShared, RowChange, Rows, Share, Shared};
use fulmar_store::{FOLLOWED, SqliteStorage};
use parking_lot::Mutex;

/// Why a node serves no more, if it knows.
pub type LossReason = Arc<Mutex<Option<String>>>;

/// A database; the numbers are in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Database {
    /// Clients, groups and roles.
    Identities = 0,
    /// Bans and the log of changes.
    Administration = 1,
    /// All outboxes; keys begin with the upstream broker's label and a zero.
    Outbox = 2,
    /// Small files of the data folder, by name.
    Files = 3,
    /// The platform's, in SQLite. Each node has a copy that follows it.
    Platform = FOLLOWED,
}

impl Database {
    /// Those that a node which takes over reads.
    pub const SMALL: [Database; 4] =
        [Database::Identities, Database::Administration, Database::Outbox, Database::Files];
}

/// Databases that this node shares, for the parts of the server that have them.
pub struct SharedRows {
    rows: HashMap<Database, Rows>,
    link: Arc<Link>,
}

/// The way to the log.
struct Link {
    store: OnceLock<Weak<SqliteStorage>>,
    lost: LossReason,
    /// Makes the node give way.
    ends: Arc<AtomicBool>,
}

impl SharedRows {
    /// All rows as they were when this node took over. It ends by itself when `ends` is set.
    pub fn new(
        rows: HashMap<Database, Rows>,
        lost: LossReason,
        ends: Arc<AtomicBool>,
    ) -> SharedRows {
        SharedRows { rows, link: Arc::new(Link { store: OnceLock::new(), lost, ends }) }
    }

    /// From here on, rows can be changed.
    pub fn set_store(&self, store: &Arc<SqliteStorage>) {
        drop(self.link.store.set(Arc::downgrade(store)));
    }

    /// The rows of a database, once, and how to change them.
    pub fn take_rows(&mut self, database: Database) -> Shared {
        let rows = self.rows.remove(&database).unwrap_or_default();
        self.shared(database, Vec::new(), rows)
    }

    /// Returns the channel that shares changes of a database that follows the rows.
    pub fn follow(&self, database: Database) -> Arc<dyn Share> {
        self.shared(database, Vec::new(), Rows::new()).with
    }

    /// The rows of the outbox with this label.
    pub fn outbox(&self, label: &str) -> Shared {
        let prefix = outbox_prefix(label);
        let all = self.rows.get(&Database::Outbox);
        let rows = all.map(|rows| without_prefix(rows, &prefix)).unwrap_or_default();
        self.shared(Database::Outbox, prefix, rows)
    }

    fn shared(&self, database: Database, prefix: Vec<u8>, rows: Rows) -> Shared {
        let link = Arc::clone(&self.link);
        Shared { rows, with: Arc::new(Sharer { database, prefix, link }) }
    }
}

/// Before the keys of an outbox's rows. A label has no zero.
pub fn outbox_prefix(label: &str) -> Vec<u8> {
    [label.as_bytes(), &[0]].concat()
}

/// Those of all rows whose keys begin with `prefix`, with the rest of their keys.
pub fn without_prefix(rows: &Rows, prefix: &[u8]) -> Rows {
    let own = |(key, value): &(Vec<u8>, Vec<u8>)| {
        key.strip_prefix(prefix).map(|key| (key.to_vec(), value.clone()))
    };
    rows.iter().filter_map(own).collect()
}

struct Sharer {
    database: Database,
    /// Before all keys.
    prefix: Vec<u8>,
    link: Arc<Link>,
}

fulmar_text::opaque_debug!(Sharer { database });

impl Share for Sharer {
    fn share(&self, changes: Vec<RowChange>) -> Result<u64, NotShared> {
        let with_prefix = |(key, value): RowChange| ([&self.prefix, &*key].concat().into(), value);
        let changes = changes.into_iter().map(with_prefix).collect();
        let store = self.link.store.get().and_then(Weak::upgrade);
        let store = store.ok_or_else(|| NotShared("the server ends".to_owned()))?;
        store.share(self.database as u8, changes).map_err(|error| {
            let lost = self.link.lost.lock().clone();
            let who =
                lost.unwrap_or_else(|| "`fulmar cluster status` shows which node does".to_owned());
            NotShared(format!("{error} ({who})"))
        })
    }

    fn serves(&self) -> bool {
        let store = self.link.store.get().and_then(Weak::upgrade);
        store.is_some_and(|store| store.may_acknowledge())
    }

    fn stored(&self, number: u64) {
        if let Some(store) = self.link.store.get().and_then(Weak::upgrade) {
            store.stored(self.database as u8, number);
        }
    }

    fn lags_behind(&self, why: &str) {
        tracing::error!(database = ?self.database, error = why, "a change is in the cluster's log and not in this node's file");
        self.link.ends.store(true, Ordering::Release);
    }
}
