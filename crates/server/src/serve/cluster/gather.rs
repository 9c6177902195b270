//! Asks NATS now and then for what a node's metrics need, and what the node does not learn otherwise.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fulmar_cluster_nats::Error;

use super::membership::{self, NodeRecord};
use fulmar_part::cluster_status::{self, ClusterStatus, GONE_S, Role};
use fulmar_part::thread::Thread;

/// Time between two rounds.
const PAUSE: Duration = Duration::from_secs(5);

/// Starts it; it ends when what is returned is dropped.
pub(super) fn start(
    shared: &membership::Shared,
    status: &Arc<ClusterStatus>,
) -> std::io::Result<Thread> {
    let (shared, status) = (shared.clone(), Arc::clone(status));
    Thread::blocking("fulmar-cluster", move |stopped| {
        loop {
            let found =
                read_status(&shared).inspect_err(|error| tracing::debug!(%error, "cluster"));
            status.set_shared(shared.log.connection().is_connected(), found.ok());
            if !stopped.pause(PAUSE) {
                return;
            }
        }
    })
}

fn read_status(shared: &membership::Shared) -> Result<cluster_status::Shared, Error> {
    let state = shared.log.state()?;
    let newest = shared.snapshots.list()?.into_iter().next();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let nodes = membership::nodes(&shared.control)?.into_iter().map(|known| {
        let NodeRecord { address, position, version, role, at, .. } = known.record;
        let role = match role.as_str() {
            _ if now.saturating_sub(at) > GONE_S => Role::Gone,
            membership::SERVING => Role::Serves,
            _ => Role::StandsBy,
        };
        cluster_status::Node { name: known.name, address, role, position, version }
    });
    Ok(cluster_status::Shared {
        last: state.last,
        log_bytes: state.bytes,
        log_replicas: state.current,
        snapshot_at: newest.and_then(|snapshot| snapshot.stored_at),
        nodes: nodes.collect(),
    })
}
