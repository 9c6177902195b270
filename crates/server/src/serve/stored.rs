//! The broker's storage, and the state that it has restored.

use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};

use anyhow::Context as _;
use fulmar_broker::storage::{NoStorage, Restored, Storage};
use fulmar_broker::{Broker, BrokerConfig, Timestamp};
use fulmar_mirror::{Clocks, Reading};
use fulmar_store::SqliteStorage;
use fulmar_transport::Clock;

use fulmar_config::Config;
use fulmar_part::Part;
use fulmar_part::cluster_status::ClusterStatus;
use fulmar_part::internal_sessions::InternalSessions;
use fulmar_part::shared_rows::SharedRows;

/// A node's copy of the database behind its claim, and the log that it continues.
#[cfg(feature = "cluster")]
pub(super) struct TakenOver {
    pub(super) follower: fulmar_store::Follower,
    /// The process that has made the claim.
    pub(super) incarnation: u64,
    pub(super) journal: Box<dyn fulmar_store::journal::Journal>,
    /// Becomes true when the log refuses a record, or this node must give way for another reason.
    pub(super) refused: Arc<std::sync::atomic::AtomicBool>,
    /// Address of the node that serves instead.
    pub(super) lost: fulmar_part::shared_rows::LossReason,
    pub(super) status: Arc<ClusterStatus>,
}

/// Returns the status of the node's cluster.
#[cfg(feature = "cluster")]
pub(super) fn cluster_status(taken_over: Option<&TakenOver>) -> Option<Arc<ClusterStatus>> {
    taken_over.map(|taken_over| Arc::clone(&taken_over.status))
}

#[cfg(not(feature = "cluster"))]
pub(super) fn cluster_status(_: Option<&TakenOver>) -> Option<Arc<ClusterStatus>> {
    None
}

/// Never exists.
#[cfg(not(feature = "cluster"))]
pub(super) type TakenOver = std::convert::Infallible;

/// The restored state, the storage, and what wakes the broker after commits.
pub(super) struct Stored {
    store: Option<Arc<SqliteStorage>>,
    storage: Arc<dyn Storage>,
    restored: Restored,
    /// Rows that the nodes of a cluster share besides the broker's state.
    shared: Option<SharedRows>,
    /// Set once there is a broker; before that nothing is committed.
    wake: Arc<OnceLock<Weak<Broker>>>,
}

impl Stored {
    /// Opens the data folder's, or continues with what a node of a cluster has taken over.
    pub(super) fn open(
        config: &Config,
        data: &Path,
        taken_over: Option<TakenOver>,
        clock: Clock,
    ) -> anyhow::Result<Stored> {
        let wake = Arc::new(OnceLock::<Weak<Broker>>::new());
        if !config.storage.enabled {
            let (storage, restored) = (Arc::new(NoStorage), Restored::default());
            return Ok(Stored { store: None, storage, restored, shared: None, wake });
        }
        let for_store = Arc::clone(&wake);
        let committed = move || {
            if let Some(broker) = for_store.get().and_then(Weak::upgrade) {
                broker.storage_committed();
            }
        };
        let path = data.join("broker.db");
        let mut options = config.storage.options(config.store_part());
        options.clocks = Some(Clocks::new(move || Reading::now(clock.now().0)));
        let committed = Box::new(committed);
        let (store, restored, shared): (_, _, Option<SharedRows>) = match taken_over {
            None => {
                let (store, restored) = SqliteStorage::open(&path, &options, committed)?;
                (store, restored, None)
            }
            #[cfg(feature = "cluster")]
            Some(taken_over) => take_over(taken_over, committed)?,
            #[cfg(not(feature = "cluster"))]
            Some(never) => match never {},
        };
        let store = Arc::new(store);
        if let Some(shared) = &shared {
            shared.set_store(&store);
        }
        Ok(Stored { store: Some(Arc::clone(&store)), storage: store, restored, shared, wake })
    }

    /// Takes the rows that the nodes of a cluster share besides the broker's state; `None` without a cluster.
    pub(super) fn take_shared(&mut self) -> Option<SharedRows> {
        self.shared.take()
    }

    /// The restored state.
    pub(super) fn restored(&self) -> &Restored {
        &self.restored
    }

    /// Adds the internal sessions, and returns their client identifiers.
    pub(super) fn add_internal_sessions(&mut self, parts: &[Box<dyn Part>]) -> Vec<Box<str>> {
        let (storage, restored) = (&*self.storage, &mut self.restored);
        let mut sessions = InternalSessions { storage, restored, client_ids: Vec::new() };
        parts.iter().for_each(|part| part.add_internal_sessions(&mut sessions));
        sessions.client_ids
    }

    /// A broker with this state, and the storage.
    pub(super) fn into_broker(
        self,
        config: BrokerConfig,
        now: Timestamp,
    ) -> anyhow::Result<(Option<Arc<SqliteStorage>>, Arc<Broker>)> {
        let broker = Broker::new(config, self.storage, self.restored, now);
        self.wake.set(Arc::downgrade(&broker)).ok().context("storage was given two brokers")?;
        Ok((self.store, broker))
    }
}

/// Makes the copy the storage, and reads what else the nodes share.
#[cfg(feature = "cluster")]
fn take_over(
    taken_over: TakenOver,
    committed: Box<dyn Fn() + Send>,
) -> anyhow::Result<(SqliteStorage, Restored, Option<SharedRows>)> {
    let TakenOver { mut follower, incarnation, journal, refused, lost, .. } = taken_over;
    let mut rows = std::collections::HashMap::new();
    for database in fulmar_part::shared_rows::Database::SMALL {
        rows.insert(database, follower.rows(database as u8)?);
    }
    let (store, restored) = follower.take_over(incarnation, journal, committed)?;
    Ok((store, restored, Some(SharedRows::new(rows, lost, refused))))
}
