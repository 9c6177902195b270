//! What makes a process a node of a cluster: the connection, the cluster's name in the data folder, and its own record,
//! by which a second node of the same name is noticed.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use fulmar_certs::{files, trust};
use fulmar_cluster_nats::{Connection, Control, Error, LogStream, REPLICAS, Settings, Snapshots};
use rustls::ClientConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};

use crate::exit::Usage;
use fulmar_config::{Cluster, set};

/// Roles in a node's record.
pub(super) const SERVING: &str = "serving";
pub(super) const STANDING_BY: &str = "standing by";
/// Names the cluster, in the data folder.
const FILE: &str = "cluster.json";
/// Time between two changes of a node's own record.
const BEAT: Duration = Duration::from_secs(1);
/// A record of this name that changes within this time is another node's.
const OTHER: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(200);

/// Everything of a cluster that is in NATS.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) log: LogStream,
    pub(super) control: Control,
    pub(super) snapshots: Snapshots,
}

/// Replicas of what is created.
pub(super) fn replicas(cluster: &Cluster) -> usize {
    if cluster.development { 1 } else { REPLICAS }
}

/// Connects to the servers, and checks them.
pub(super) fn connect(cluster: &Cluster, what: &str) -> Result<Connection, anyhow::Error> {
    let credentials = set(&cluster.credentials_file);
    if let Some(file) = credentials {
        files::check_secret(file).context("[cluster] credentials_file")?;
    }
    let settings = Settings {
        servers: cluster.servers.clone(),
        credentials: credentials.map(Path::to_owned),
        tls: Some(tls(cluster)?),
        name: format!("fulmar {what} {}", cluster.node),
    };
    let connection = Connection::open(&settings)?;
    check_credentials(cluster, &connection)?;
    Ok(connection)
}

/// Credentials that the servers do not require keep nobody out. What they do not say is whether they verify clients'
/// certificates.
fn check_credentials(cluster: &Cluster, connection: &Connection) -> Result<(), Usage> {
    match cluster.guarded_server() {
        Some(_) if !connection.requires_credentials() && set(&cluster.cert).is_none() => {
            Err(Usage(format!(
                "the NATS server {} requires no credentials, so anyone who reaches it can read and change all that the \
                 cluster has: configure users there (authorization, accounts or operator). If clients without credentials \
                 have an account of their own (no_auth_user), or on a network you trust: [cluster] allow_anonymous = \
                 \"always\"",
                connection.server()
            )))
        }
        _ => Ok(()),
    }
}

fn tls(cluster: &Cluster) -> anyhow::Result<ClientConfig> {
    let roots = trust::roots(set(&cluster.ca_file), false).context("[cluster] ca_file")?;
    let config = ClientConfig::builder_with_provider(default_provider().into());
    let config = config.with_safe_default_protocol_versions()?.with_root_certificates(roots);
    let (Some(cert), Some(key)) = (set(&cluster.cert), set(&cluster.key)) else {
        return Ok(config.with_no_client_auth());
    };
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(cert).with_context(|| at("cert", cert))?.collect();
    let chain = chain.with_context(|| at("cert", cert))?;
    let key_der = files::read_key(key).context("[cluster] key")?;
    config.with_client_auth_cert(chain, key_der).with_context(|| at("cert", cert))
}

fn at(key: &str, file: &Path) -> String {
    format!("[cluster] {key} {}", file.display())
}

impl Shared {
    /// Opens what a cluster has in NATS.
    ///
    /// # Errors
    /// There is none, or another program's; or NATS does not answer.
    pub(super) fn open(connection: &Connection, cluster: &Cluster) -> Result<Shared, Error> {
        let log = LogStream::open(connection, cluster.development)?;
        let control = Control::open(connection, replicas(cluster))?;
        let snapshots = Snapshots::open(connection, replicas(cluster))?;
        Ok(Shared { log, control, snapshots })
    }
}

/// Cluster to which a data folder belongs.
#[derive(Deserialize, Serialize)]
struct Membership {
    cluster: String,
}

/// Checks that this data folder belongs to the cluster, or to none yet.
///
/// # Errors
/// It belongs to another one.
pub(super) fn check_folder(data: &Path, cluster: &str) -> anyhow::Result<()> {
    let file = data.join(FILE);
    let text = match std::fs::read(&file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        read => read.with_context(|| file.display().to_string())?,
    };
    let found: Membership =
        serde_json::from_slice(&text).with_context(|| file.display().to_string())?;
    if found.cluster == cluster {
        return Ok(());
    }
    Err(Usage(format!(
        "this data folder belongs to cluster {}, and the servers in [cluster] have cluster {cluster}: correct \
         [cluster] servers or credentials_file, or use another data folder with [server] data_dir",
        found.cluster
    ))
    .into())
}

/// Whether the data folder is one of a cluster's node.
pub(super) fn is_member(data: &Path) -> bool {
    data.join(FILE).is_file()
}

/// Notes in the data folder that it belongs to the cluster.
pub(super) fn join(data: &Path, cluster: &str) -> anyhow::Result<()> {
    let text = serde_json::to_string(&Membership { cluster: cluster.to_owned() })?;
    fulmar_certs::files::write(&data.join(FILE), text.as_bytes(), true)?;
    Ok(())
}

/// Notes that it belongs to none any more.
pub(super) fn forget(data: &Path) -> anyhow::Result<()> {
    let file = data.join(FILE);
    std::fs::remove_file(&file).with_context(|| file.display().to_string())
}

/// A node's own record.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct NodeRecord {
    /// Incarnation of the process.
    pub(super) incarnation: u64,
    /// Where clients reach it.
    pub(super) address: String,
    /// Server ID in QUIC's connection IDs; empty from older versions.
    #[serde(default)]
    pub(super) server_id: String,
    /// The version of the program.
    pub(super) version: String,
    /// `serving` or `standing by`.
    pub(super) role: String,
    /// The last record of the log that it has.
    pub(super) position: u64,
    /// Seconds since the Unix epoch, by the node's clock; for people.
    pub(super) at: u64,
}

/// The key of a node's record.
pub(super) fn key(node: &str) -> String {
    format!("node.{node}")
}

/// A node's record as it is in the cluster.
pub(super) struct StoredNode {
    /// The node's name.
    pub(super) name: String,
    /// The record's revision.
    revision: u64,
    pub(super) record: NodeRecord,
}

/// The records of all nodes, by name.
pub(super) fn nodes(control: &Control) -> Result<Vec<StoredNode>, Error> {
    let (prefix, mut found) = (key(""), Vec::new());
    for key in control.keys(&prefix)? {
        // It may have been removed meanwhile.
        let Some(entry) = control.get(&key)? else { continue };
        let record = serde_json::from_slice(&entry.value).unwrap_or_default();
        let name = key.strip_prefix(&prefix).unwrap_or_default().to_owned();
        found.push(StoredNode { name, revision: entry.revision, record });
    }
    Ok(found)
}

/// Keeps a node's record up to date.
#[derive(Debug)]
pub(super) struct Beat {
    control: Control,
    key: String,
    record: NodeRecord,
    due_at: Instant,
}

impl Beat {
    /// Checks that no other node has this name or this server ID, and begins.
    ///
    /// # Errors
    /// Another process renews such a record.
    pub(super) fn begin(
        control: &Control,
        cluster: &Cluster,
        incarnation: u64,
    ) -> anyhow::Result<Beat> {
        let key = key(&cluster.node);
        let record = NodeRecord {
            incarnation,
            address: cluster.address.clone(),
            server_id: cluster.server_id.map_or_else(String::new, |id| id.to_string()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..NodeRecord::default()
        };
        let same_id = |other: &NodeRecord| {
            !record.server_id.is_empty() && other.server_id == record.server_id
        };
        let mut others = nodes(control)?;
        others.retain(|other| other.name == cluster.node || same_id(&other.record));
        let end = Instant::now() + OTHER;
        // Of a node that has ended, or of one that runs: that one changes it.
        while !others.is_empty() && Instant::now() < end {
            std::thread::sleep(LOOK);
            for other in &others {
                let now = control.get(&self::key(&other.name))?;
                if now.is_some_and(|entry| entry.revision != other.revision) {
                    return Err(taken(cluster, other).into());
                }
            }
        }
        Ok(Beat { control: control.clone(), key, record, due_at: Instant::now() })
    }

    /// Writes the record, if it is time.
    pub(super) fn go_on(&mut self, role: &str, position: u64) {
        if Instant::now() < self.due_at && self.record.role == role {
            return;
        }
        self.record.role = role.to_owned();
        self.record.position = position;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        self.record.at = now.map_or(0, |now| now.as_secs());
        let bytes = serde_json::to_vec(&self.record).unwrap_or_default();
        if let Err(error) = self.control.overwrite(&self.key, &bytes) {
            tracing::debug!(%error, "node's record not written");
        }
        self.due_at = Instant::now() + BEAT;
    }

    /// Removes the record.
    pub(super) fn end(self) {
        if let Err(error) = self.control.remove(&self.key) {
            tracing::debug!(%error, "node's record not removed");
        }
    }
}

/// Error for another node that runs with this one's name, or with its server ID.
fn taken(cluster: &Cluster, other: &StoredNode) -> Usage {
    let (name, record) = (&other.name, &other.record);
    let at = match record.address.as_str() {
        "" => String::new(),
        address => format!(" at {address}"),
    };
    Usage(if *name == cluster.node {
        format!(
            "another node of the cluster is named {name:?} and runs{at}: give this one another name with [cluster] node"
        )
    } else {
        let id = &record.server_id;
        format!(
            "the node {name:?}, which runs{at}, has the same server ID {id} in QUIC's connection IDs: give this one \
             another with [cluster] quic_server_id, or leave that out"
        )
    })
}

/// A folder for files that are large and not needed after a crash, in the data folder.
pub(super) fn scratch(data: &Path) -> anyhow::Result<PathBuf> {
    let folder = data.join("cluster-tmp");
    if let Err(error) = std::fs::remove_dir_all(&folder)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error).with_context(|| folder.display().to_string());
    }
    fulmar_certs::files::make_private_dir(&folder)?;
    Ok(folder)
}

/// A line on standard output, for people and scripts.
pub(super) fn print_line(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("standard output")
}
