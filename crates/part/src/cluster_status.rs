//! What a node of a cluster knows about itself and the others, for metrics. It is noted where it happens; what only NATS
//! knows is asked for now and then (`cluster/gather.rs`).

use std::time::{Duration, Instant, SystemTime};

use fulmar_text::metrics::{Kind, Metrics, Number as _};
use parking_lot::Mutex;

/// A node that has not written its record for so long is gone.
pub const GONE_S: u64 = 10;

/// State of the cluster in NATS.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// The last record of the log.
    pub last: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Servers that have all of it, the leader included.
    pub log_replicas: usize,
    /// When the newest snapshot was stored.
    pub snapshot_at: Option<SystemTime>,
    /// All nodes that have a record.
    pub nodes: Vec<Node>,
}

/// Another node, or this one.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Name in `[cluster] node`.
    pub name: String,
    /// Address for clients.
    pub address: String,
    /// Role in the cluster.
    pub role: Role,
    /// The last record that it has.
    pub position: u64,
    /// Version of its program.
    pub version: String,
}

/// State of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Clients are at this node.
    Serves,
    /// Follows the log, to take over.
    StandsBy,
    /// Has written no record for a while.
    #[default]
    Gone,
}

#[derive(Debug, Default)]
struct State {
    serves: bool,
    /// The node that serves; empty if none does.
    serving: String,
    /// The last record that this node has.
    position: u64,
    connected: bool,
    /// State that NATS answered last.
    shared: Option<Shared>,
    lease_until: Option<Instant>,
    renewals: u64,
    renewals_failed: u64,
    appends: u64,
    append_time: Duration,
    last_append: Duration,
    take_overs: u64,
}

/// Status of one node, for as long as its process runs.
#[derive(Debug, Default)]
pub struct ClusterStatus {
    node: String,
    state: Mutex<State>,
}

impl ClusterStatus {
    /// Status of the node with this name.
    pub fn new(node: &str) -> ClusterStatus {
        ClusterStatus { node: node.to_owned(), ..ClusterStatus::default() }
    }

    /// This node serves, or does no more.
    pub fn set_serves(&self, serves: bool) {
        let mut state = self.state.lock();
        state.take_overs += u64::from(serves && !state.serves);
        state.serves = serves;
        if serves {
            state.serving.clone_from(&self.node);
        } else {
            state.lease_until = None;
        }
    }

    /// The node that serves, as this one sees it while it stands by; empty for none.
    pub fn set_serving(&self, node: &str) {
        let mut state = self.state.lock();
        if state.serving != node {
            node.clone_into(&mut state.serving);
        }
    }

    /// This node has the log up to here.
    pub fn set_position(&self, number: u64) {
        self.state.lock().position = number;
    }

    /// The lease was renewed, and lasts until then.
    pub fn renewed(&self, until: Instant) {
        let mut state = self.state.lock();
        state.renewals += 1;
        state.lease_until = Some(until);
    }

    /// An attempt to renew it was not answered.
    pub fn not_renewed(&self) {
        self.state.lock().renewals_failed += 1;
    }

    /// A record was appended to the log.
    pub fn appended(&self, number: u64, took: Duration) {
        let mut state = self.state.lock();
        state.position = number;
        state.appends += 1;
        state.append_time += took;
        state.last_append = took;
    }

    /// Whether another node stands by, as far as is known.
    pub fn others_stand_by(&self) -> bool {
        let state = self.state.lock();
        let stands_by = |other: &Node| other.role == Role::StandsBy && other.name != self.node;
        state.shared.as_ref().is_none_or(|shared| shared.nodes.iter().any(stands_by))
    }

    /// Stores the state in NATS; `None` if it has not answered.
    pub fn set_shared(&self, connected: bool, shared: Option<Shared>) {
        let mut state = self.state.lock();
        state.connected = connected && shared.is_some();
        state.shared = shared.or_else(|| state.shared.take());
    }
}

impl ClusterStatus {
    /// Reports everything.
    pub fn report(&self, to: &mut Metrics) {
        let state = self.state.lock();
        let mut gauge = |name, help, value| to.gauge(&format!("cluster_{name}"), help, value);
        let flag = |is: bool| is.to_f64();
        let number = |number: u64| number.to_f64();
        let now = Instant::now();
        let remaining = state
            .lease_until
            .map_or(0.0, |until| until.saturating_duration_since(now).as_secs_f64());
        gauge("serves", "1 while this node serves, 0 while it stands by", flag(state.serves));
        gauge("nats_connected", "1 while NATS answers this node", flag(state.connected));
        let help = "The last record of the log that this node has";
        gauge("position_records", help, number(state.position));
        gauge(
            "lease_remaining_seconds",
            "How long this node may acknowledge without another renewal of its lease; 0 while it stands by",
            remaining,
        );
        gauge("last_append_seconds", "The last one's time", state.last_append.as_secs_f64());
        if let Some(shared) = &state.shared {
            let help = "The last record of the log, a few seconds ago";
            gauge("log_last_records", help, number(shared.last));
            let behind = shared.last.saturating_sub(state.position);
            let help = "Records of the log that this node does not have yet, about";
            gauge("behind_records", help, if state.serves { 0.0 } else { number(behind) });
            gauge("log_bytes", "Length of the log", number(shared.log_bytes));
            let help = "NATS servers that have all of the log";
            gauge("log_replicas", help, number(shared.log_replicas as u64));
            gauge("standby_nodes", "Nodes that stand by", number(shared.standing_by()));
            let age = shared.snapshot_at.and_then(|at| SystemTime::now().duration_since(at).ok());
            if let Some(age) = age {
                gauge("snapshot_age_seconds", "Age of the newest snapshot", age.as_secs_f64());
            }
        }
        let help =
            "1, with the name of the node that serves as this one sees it; empty while none does";
        let family = to.family(Kind::Gauge, "cluster_serving_node", help);
        family.add(&[("node", &state.serving)], 1_u8);
        let mut counter =
            |name, help, value| to.counter(&format!("cluster_{name}_total"), help, value);
        counter("take_overs", "Times this node began to serve", number(state.take_overs));
        counter("lease_renewals", "Renewals of the lease", number(state.renewals));
        let help = "Attempts to renew the lease without an answer from NATS";
        counter("lease_renewals_failed", help, number(state.renewals_failed));
        let help = "Records appended to the log by this node";
        counter("appends", help, number(state.appends));
        let help = "Time that these took until NATS had them on the disks of a majority";
        counter("append_seconds", help, state.append_time.as_secs_f64());
    }
}

impl Shared {
    fn standing_by(&self) -> u64 {
        self.nodes.iter().filter(|node| node.role == Role::StandsBy).count() as u64
    }
}

#[cfg(feature = "admin")]
impl ClusterStatus {
    /// For the broker's page.
    pub fn shown(&self) -> fulmar_admin::Cluster {
        let state = self.state.lock();
        let shared = state.shared.clone().unwrap_or_default();
        let now = Instant::now();
        let lease = state.lease_until.map(|until| until.saturating_duration_since(now));
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let since_1970 = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).ok();
        fulmar_admin::Cluster {
            node: self.node.clone(),
            nodes: shared.nodes.into_iter().map(Node::shown).collect(),
            is_connected: state.connected,
            lease_ms: lease.map_or(0, ms),
            position: state.position,
            log_bytes: shared.log_bytes,
            log_replicas: shared.log_replicas,
            append_us: u64::try_from(state.last_append.as_micros()).unwrap_or(u64::MAX),
            snapshot_ms: shared.snapshot_at.and_then(since_1970).map(ms),
        }
    }
}

#[cfg(feature = "admin")]
impl Node {
    fn shown(self) -> fulmar_admin::ClusterNode {
        let Node { name, address, role, position, version } = self;
        let (role, position) = match role {
            Role::Serves => ("serving", None),
            Role::StandsBy => ("standing by", Some(position)),
            Role::Gone => ("gone", Some(position)),
        };
        fulmar_admin::ClusterNode { name, address, role: role.to_owned(), position, version }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "cluster_status_tests.rs"]
mod tests;
