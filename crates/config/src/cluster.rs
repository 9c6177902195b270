//! Section `[cluster]`: the NATS servers that several nodes share, and what is different at each node.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use fulmar_transport::ServerId;
use serde::{Deserialize, Serialize};

use super::document::Config;
use super::sections::{Anonymous, Auto, Enabled, Listeners, set};
use fulmar_text::Usage;

/// Shortest `[storage] stall_timeout_s`: NATS elects a leader within 9 s, and a node gives way after 30 s without it.
const MIN_STALL_S: u32 = 40;
/// Longest name of a node.
const MAX_NODE: usize = 64;
/// Schemes of URLs in `addresses`: those of the listeners that clients can be redirected to.
const SCHEMES: [&str; 5] = ["mqtt", "mqtts", "ws", "wss", "quic"];

/// Behaviour of a node that stands by towards clients.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standby {
    /// It does not listen, so that their connections are refused at once.
    #[default]
    Refuse,
    /// It answers with the address of the node that serves.
    Redirect,
}

/// A node of a cluster.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// Addresses of NATS servers; empty: no cluster.
    pub servers: Vec<String>,
    /// NATS servers that may be without credentials.
    pub allow_anonymous: Anonymous,
    /// A credentials file of NATS; empty for none.
    pub credentials_file: PathBuf,
    /// PEM file of the CAs that sign the servers' certificates; empty: the system's.
    pub ca_file: PathBuf,
    /// Client certificate and key; empty for none.
    pub cert: PathBuf,
    pub key: PathBuf,
    /// This node's name, which no other node has.
    pub node: String,
    /// The address at which clients reach this node; what other nodes show.
    pub address: String,
    /// URLs of listeners that clients reach elsewhere than at that host and their own port.
    pub addresses: Vec<String>,
    /// Behaviour towards clients while the node stands by.
    pub standby: Standby,
    /// The node's server ID in QUIC's connection IDs; empty for one made of the cluster's and the node's names.
    pub quic_server_id: String,
    /// The same, once the cluster is known.
    #[serde(skip)]
    pub server_id: Option<ServerId>,
    /// Addresses of the servers' monitoring ports.
    pub monitoring: Vec<String>,
    /// Whether one server without replicas is enough.
    pub development: bool,
}

impl Cluster {
    /// Whether this is a node of a cluster.
    pub fn is_on(&self) -> bool {
        !self.servers.is_empty()
    }

    /// The first server that must require credentials.
    pub fn guarded_server(&self) -> Option<&str> {
        let must = |server: &&String| match self.allow_anonymous {
            Anonymous::Always => false,
            Anonymous::Loopback => !is_loopback(server),
            Anonymous::Never => true,
        };
        self.servers.iter().find(must).map(String::as_str)
    }

    /// Where clients reach this node with these listeners: a URL per transport.
    pub fn urls(&self, listeners: &Listeners) -> Vec<String> {
        let (host, port) = host_and_port(&self.address);
        let mut urls = self.addresses.clone();
        for (name, addresses) in listeners.mqtt_listeners() {
            let own = addresses.first().map(|address| address.port());
            let port = if name == "mqtt" { port.or(own) } else { own };
            let port = port.filter(|port| *port != 0 && own.is_some());
            if let Some(port) = port
                && !host.is_empty()
                && SCHEMES.contains(&name)
                && !self.addresses.iter().any(|url| scheme(url) == Some(name))
            {
                urls.push(format!("{name}://{host}:{port}"));
            }
        }
        urls
    }

    /// The hosts by which clients know this node.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        let hosts = self.addresses.iter().chain([&self.address]).map(|address| host(address));
        hosts.filter(|host| !host.is_empty())
    }

    /// The node's server ID, in the cluster of this name.
    pub fn server_id_in(&self, cluster: &str) -> ServerId {
        // The check has refused what is none.
        let set = self.quic_server_id.parse().ok();
        set.unwrap_or_else(|| ServerId::of_node(cluster, &self.node))
    }

    /// The files that it names, with their keys.
    pub fn files(&self) -> [(String, &Path); 4] {
        [
            ("[cluster] credentials_file".to_owned(), &*self.credentials_file),
            ("[cluster] ca_file".to_owned(), &self.ca_file),
            ("[cluster] cert".to_owned(), &self.cert),
            ("[cluster] key".to_owned(), &self.key),
        ]
    }
}

/// The host of `HOST[:PORT]`, and the port. IPv6 addresses have brackets.
fn host_and_port(address: &str) -> (&str, Option<u16>) {
    let parts = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    match parts.map(|(host, port)| (host, port.parse().ok())) {
        Some((host, Some(port))) => (host, Some(port)),
        _ => (address, None),
    }
}

fn scheme(url: &str) -> Option<&str> {
    url.split_once("://").map(|(scheme, _)| scheme)
}

/// The host of `[SCHEME://]HOST[:PORT]`, without a user, who may come with a password.
fn host(server: &str) -> &str {
    let authority = server.split_once("://").map_or(server, |(_, rest)| rest);
    let authority = authority.rsplit_once('@').map_or(authority, |(_, rest)| rest);
    host_and_port(authority).0
}

/// Whether a server is on this machine.
fn is_loopback(server: &str) -> bool {
    let host = host(server).trim_start_matches('[').trim_end_matches(']');
    let address = host.parse::<IpAddr>().ok();
    host == "localhost" || address.is_some_and(|address| address.to_canonical().is_loopback())
}

fn check_credentials(cluster: &Cluster) -> Result<(), Usage> {
    let has_credentials = set(&cluster.credentials_file).or(set(&cluster.cert)).is_some();
    match cluster.guarded_server().filter(|_| !has_credentials) {
        None => Ok(()),
        Some(server) => Err(Usage(format!(
            "[cluster] servers, {}: without credentials, anyone who reaches this NATS server can read and change all \
             that the cluster has: messages, users and their rules. Let NATS require credentials, and set \
             credentials_file, or cert and key; or, on a network you trust, [cluster] allow_anonymous = \"always\"",
            host(server)
        ))),
    }
}

/// Whether a text can be in a Server Reference: `HOST` or `HOST:PORT`, IPv6 addresses in brackets.
fn is_authority(text: &str) -> bool {
    let authority = text.parse::<http::uri::Authority>().ok();
    authority.is_some_and(|it| !it.host().is_empty() && !it.as_str().contains('@'))
}

fn check_addresses(cluster: &Cluster) -> Result<(), Usage> {
    let (address, urls) = (&cluster.address, &cluster.addresses);
    if !address.is_empty() && !is_authority(address) {
        return Err(Usage(format!(
            "[cluster] address = {address:?}: write HOST or HOST:PORT, such as n1.example:1883"
        )));
    }
    for url in urls {
        let parts = url.split_once("://");
        let port = parts.and_then(|(_, authority)| host_and_port(authority).1);
        if !parts.is_some_and(|(name, at)| SCHEMES.contains(&name) && is_authority(at))
            || port.is_none()
        {
            return Err(Usage(format!(
                "[cluster] addresses = {url:?}: write the URL of a listener, such as mqtts://n1.example:8883 or \
                 quic://n1.example:443"
            )));
        }
    }
    if cluster.standby == Standby::Redirect && address.is_empty() && urls.is_empty() {
        return Err(Usage(
            "[cluster] standby = \"redirect\" needs address: where clients reach this node when it serves".to_owned(),
        ));
    }
    Ok(())
}

/// Checks the section, and that nothing is configured whose state would stay on one machine.
pub(crate) fn check(config: &Config) -> Result<(), Usage> {
    let cluster = &config.cluster;
    if !cluster.is_on() {
        return Ok(());
    }
    let wrong = |text: String| Err(Usage(text));
    let node = &cluster.node;
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if node.is_empty() || node.len() > MAX_NODE || !node.bytes().all(letters) {
        return wrong(format!(
            "[cluster] node = {node:?}: give each node a name of its own, of letters, digits, - and _ (at most \
             {MAX_NODE})"
        ));
    }
    for server in &cluster.servers {
        if !["nats://", "tls://"].iter().any(|scheme| server.starts_with(scheme)) {
            return wrong(format!(
                "[cluster] servers = {server:?}: write nats://HOST[:PORT], or tls://HOST[:PORT]"
            ));
        }
    }
    for address in &cluster.monitoring {
        let uri = address.parse::<http::Uri>().ok();
        if !uri.is_some_and(|uri| uri.scheme_str() == Some("http") && uri.host().is_some()) {
            return wrong(format!("[cluster] monitoring = {address:?}: write http://HOST:8222"));
        }
    }
    check_credentials(cluster)?;
    check_addresses(cluster)?;
    let id = &cluster.quic_server_id;
    if !id.is_empty()
        && let Err(error) = id.parse::<ServerId>()
    {
        return wrong(format!("[cluster] quic_server_id = {id:?}: {error}"));
    }
    if set(&cluster.cert).is_some() != set(&cluster.key).is_some() {
        return wrong("[cluster] cert and key go together: set both, or neither".to_owned());
    }
    if !config.storage.enabled {
        return wrong("[cluster] needs [storage] enabled = true".to_owned());
    }
    Ok(())
}

impl Config {
    /// Changes defaults for a cluster: a platform only if it is set, and clients wait for NATS until the node gives
    /// way, which takes 30 s, instead of being refused.
    pub fn adapt_to_cluster(&mut self) {
        if !self.cluster.is_on() {
            return;
        }
        self.storage.stall_timeout_s = self.storage.stall_timeout_s.max(MIN_STALL_S);
        if self.platform.enabled == Enabled::By(Auto::Auto) {
            self.platform.enabled = Enabled::Set(false);
        }
    }
}

#[cfg(all(test, not(feature = "cluster")))]
#[allow(clippy::unwrap_used)]
mod tests_without {
    use super::*;

    #[test]
    fn a_program_that_cannot_be_a_node_refuses_to_be_one() {
        let text = "[cluster]\nservers = [\"nats://127.0.0.1:4222\"]\nnode = \"a\"\n";
        let error = Config::from_toml(text).unwrap_err().to_string();
        assert!(error.contains("without the feature `cluster`"), "{error}");
    }
}

#[cfg(all(test, feature = "cluster"))]
#[allow(clippy::unwrap_used)]
#[path = "cluster_tests.rs"]
mod tests;
