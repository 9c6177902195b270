//! What the API needs of the rest of the server.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use fulmar_mqtt::QoS;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use utoipa::ToSchema;

/// A result that comes later; the error is a sentence.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

/// A message that a tap sees.
#[derive(Debug)]
pub struct Tapped {
    /// The topic.
    pub topic: String,
    /// The payload, of which a tap shows the beginning.
    pub payload: Vec<u8>,
    /// Bytes that the whole payload had.
    pub payload_bytes: usize,
    /// The publisher's QoS.
    pub qos: QoS,
    /// Whether it was retained before the tap began.
    pub retain: bool,
    /// Messages dropped since the one before, because the tap was too slow.
    pub dropped: u64,
    /// Part of what may wait for the tap ([`TapRoom`]).
    pub room: OwnedSemaphorePermit,
}

impl Tapped {
    /// Bytes of a payload that are shown.
    pub const MAX_PAYLOAD_BYTES: usize = 64 << 10;
}

/// Bytes that may wait for a tap's reader.
#[derive(Debug)]
pub struct TapRoom(Arc<Semaphore>);

impl Default for TapRoom {
    fn default() -> TapRoom {
        TapRoom(Arc::new(Semaphore::new(TapRoom::BYTES)))
    }
}

impl TapRoom {
    const BYTES: usize = 4 << 20;

    /// Reserves this number of bytes until the result is dropped; `None` if they are not free.
    pub fn try_reserve(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
    }
}

/// An upstream broker of the gateway, and its outbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Upstream {
    /// NAME of `[upstreams.NAME]`; absent for `[upstream]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Transport of the connection; absent while there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<&'static str>,
    /// Since when there is none, in milliseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_since_ms: Option<u64>,
    /// Why the last attempt to connect has failed, or the connection ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_reason: Option<String>,
    /// Messages in the outbox.
    pub queued_messages: u64,
    /// Their size in bytes.
    pub queued_bytes: u64,
    /// When the oldest of them arrived, in milliseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_ms: Option<u64>,
    /// Messages that the upstream broker has acknowledged, since the start.
    pub sent: u64,
    /// Messages from upstream, since the start.
    pub received: u64,
    /// Messages dropped: outbox full, too old, expired or refused.
    pub dropped: u64,
    /// Times the connection's address has changed, since the start.
    pub migrations: u64,
    /// Connections made with 0-RTT, since the start.
    pub early_data: u64,
    /// Smoothed round-trip time in microseconds; only over QUIC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<u64>,
    /// Messages that the upstream broker refuses, or why the outbox cannot be written; empty if all is well.
    pub problem: String,
}

/// A certificate that the server presents, or a list that it uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Certificate {
    /// Purpose in words.
    pub name: &'static str,
    /// When it expires, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
    /// Whether the server replaces it by itself.
    pub is_renewed: bool,
    /// Whether the server replaces it when it starts or reloads, in its last 30 days.
    pub renewed_at_reload: bool,
}

/// A node of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ClusterNode {
    /// Name.
    pub name: String,
    /// Where clients reach it; empty if that is not configured.
    pub address: String,
    /// `serving`, `standing by` or `gone`.
    pub role: String,
    /// The last record of the log that it has; absent for the node that serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Program's version.
    pub version: String,
}

/// The cluster, as the node that serves sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Cluster {
    /// The node that answers, which serves.
    pub node: String,
    /// All nodes, as of a few seconds ago.
    pub nodes: Vec<ClusterNode>,
    /// Whether NATS answers.
    pub is_connected: bool,
    /// Time for which this node may acknowledge without another renewal of its lease, in milliseconds.
    pub lease_ms: u64,
    /// The last record of the log.
    pub position: u64,
    /// Length of the log.
    pub log_bytes: u64,
    /// NATS servers that have all of it.
    pub log_replicas: usize,
    /// Time that the last record took until NATS had it, in microseconds.
    pub append_us: u64,
    /// When the newest snapshot was stored, in milliseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_ms: Option<u64>,
}

/// A bound listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Listener {
    /// Name in `[listeners]`.
    pub name: &'static str,
    /// Address and port.
    pub address: String,
}

/// A part of what the data folder takes, and of `[limits] disk`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct DiskAccount {
    /// `store`, `outboxes`, `platform`, `other`, or `photos`, which are in the platform's database.
    pub account: &'static str,
    /// Bytes used.
    pub used_bytes: u64,
    /// Size in bytes, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
}

/// The rest of the server as operators see it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct ServerState {
    /// Listeners with their addresses.
    pub listeners: Vec<Listener>,
    /// Upstream brokers; empty without a gateway.
    pub upstreams: Vec<Upstream>,
    /// The cluster of which this server is a node; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,
    /// Certificates, and lists of revoked ones.
    pub certificates: Vec<Certificate>,
    /// Disk space of the data folder, by account.
    pub disk: Vec<DiskAccount>,
    /// Bytes free in the data folder's file system, if the system reports them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_free_bytes: Option<u64>,
    /// Bytes of the process's resident memory, if the system reports them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident_bytes: Option<u64>,
    /// Seconds of processor time that the process has used.
    pub processor_s: f64,
}

/// The rest of the server.
pub trait Server: Send + Sync {
    /// Removes a topic's retained message as a client would: durable when this returns. Subscribers get the empty
    /// message that MQTT defines for this.
    fn clear_retained<'a>(&'a self, topic: &'a str) -> Later<'a, ()>;

    /// Subscribes to a filter with the rights of the program, until the receiver is dropped. Retained messages come
    /// first.
    ///
    /// # Errors
    /// A sentence.
    fn tap(&self, filter: &str, buffer: usize) -> Result<mpsc::Receiver<Tapped>, String>;

    /// Filter of the log, such as `info,fulmar_broker=debug`; `None` if the server has no log of its own.
    fn log_filter(&self) -> Option<String>;

    /// Changes that.
    ///
    /// # Errors
    /// It is no filter, or there is no log.
    fn set_log_filter(&self, filter: &str) -> Result<(), String>;

    /// Whether the disk has room for those copies.
    ///
    /// # Errors
    /// A sentence: it has not.
    fn room_for_copies(&self) -> Result<(), String>;

    /// Writes consistent copies of everything that the server needs into an empty folder, and returns what it left out,
    /// in words. Takes its time.
    ///
    /// # Errors
    /// A sentence.
    fn copy_to(&self, folder: &Path) -> Result<Vec<String>, String>;

    /// State of the server for operators, from memory or by a few system calls.
    fn state(&self) -> ServerState;

    /// True if clients may connect without a login at any listener.
    fn admits_anonymous(&self) -> bool;

    /// Where the rule of this number is, counted from 0, in words.
    fn place_of_rule(&self, number: usize) -> String;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_tap_is_bounded_by_bytes() {
        let room = TapRoom::default();
        let taken: Vec<_> =
            (0..1_000).map_while(|_| room.try_reserve(Tapped::MAX_PAYLOAD_BYTES)).collect();
        assert_eq!(taken.len() * Tapped::MAX_PAYLOAD_BYTES, TapRoom::BYTES);
        drop(taken);
        assert!(room.try_reserve(1).is_some());
    }
}
