//! Errors, each with what to do next.

use std::time::Duration;

use crate::log::Record;

/// Why something in JetStream could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting, or a file that it names.
    #[error("{0}")]
    Settings(String),
    /// No server can be reached, or it refuses the connection.
    #[error("no NATS server of {servers} can be used: {detail}; is nats-server running there?")]
    Connect {
        /// The configured servers.
        servers: String,
        /// Error of the last attempt.
        detail: String,
    },
    /// The servers know no such user.
    #[error(
        "the NATS servers {servers} refuse the credentials ({detail}): set [cluster] credentials_file to a file of a \
         user of their account, as `nsc generate creds` writes it"
    )]
    Credentials {
        /// The configured servers.
        servers: String,
        /// Answer of one of them.
        detail: String,
    },
    /// No server's certificate can be trusted, or they do not trust this client's.
    #[error(
        "TLS with the NATS servers {servers} failed ({detail}): [cluster] ca_file must have the CA of their \
         certificates, these must have the names in [cluster] servers, and servers that verify clients need [cluster] \
         cert and key"
    )]
    Tls {
        /// The configured servers.
        servers: String,
        /// The reason.
        detail: String,
    },
    /// The server has no JetStream.
    #[error(
        "the NATS server {0} has no JetStream for this account: enable it there (a `jetstream` block in \
         nats-server.conf, and `jetstream: enabled` in the account)"
    )]
    NoJetStream(String),
    /// The server is too old.
    #[error("the NATS server {server} has version {version}; {min} or later is needed: upgrade it")]
    TooOld {
        /// Name of the server.
        server: String,
        /// Version of the server.
        version: String,
        /// The oldest that is good enough.
        min: &'static str,
    },
    /// A record does not fit into a message.
    #[error(
        "the NATS server {server} accepts messages of {found} bytes; set `max_payload` to at least {needed} there"
    )]
    SmallMessages {
        /// Name of the server.
        server: String,
        /// The server's `max_payload` in bytes.
        found: usize,
        /// Bytes that a record needs.
        needed: usize,
    },
    /// There is no log yet.
    #[error(
        "there is no cluster on these NATS servers yet: run `fulmar cluster init` on one node first"
    )]
    NoCluster,
    /// There is a log already.
    #[error(
        "these NATS servers have the cluster {0} already: start `fulmar serve` to join it; for another cluster, use other \
         NATS servers or another NATS account"
    )]
    Exists(String),
    /// The stream was not made by a Fulmar that this one understands.
    #[error("{0}")]
    Foreign(String),
    /// The log begins later.
    #[error(
        "the log begins with record {first}; {wanted} was removed: start from a newer snapshot"
    )]
    Removed {
        /// Number of the requested record.
        wanted: u64,
        /// Number of the first record that the log has.
        first: u64,
    },
    /// A record is missing in the middle.
    #[error(
        "the log is damaged: record {wanted} is missing, and {found} is there; stop all nodes, then \
         run fulmar cluster restore"
    )]
    Missing {
        /// Number of the requested record.
        wanted: u64,
        /// Number of the record found instead.
        found: u64,
    },
    /// JetStream did not answer in time.
    #[error("{what}: no answer from NATS within {} s", .limit.as_secs_f32())]
    TimedOut {
        /// Operation that was requested.
        what: &'static str,
        /// Time limit that has passed.
        limit: Duration,
    },
    /// Anything else that JetStream reports.
    #[error("{what}: {detail}")]
    JetStream {
        /// Operation that was requested.
        what: &'static str,
        /// JetStream's error text.
        detail: String,
    },
    /// A snapshot's contents are not what was stored.
    #[error("snapshot {0} is damaged: its checksum is wrong")]
    Damaged(String),
    /// The caller has ended it early.
    #[error("{what} was given up")]
    GivenUp {
        /// Operation that was given up.
        what: &'static str,
    },
    /// A file on this machine.
    #[error("{0}: {1}")]
    File(String, std::io::Error),
}

impl Error {
    pub(crate) fn new(what: &'static str, error: &dyn std::fmt::Display) -> Error {
        Error::JetStream { what, detail: error.to_string() }
    }
}

/// Why a record is not known to be in the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// It may be there or not: append the same record again.
    #[error("{0}")]
    Unknown(String),
    /// Another message has its place, for good.
    #[error("the log has something else at record {}", .0.number)]
    Displaced(Record),
    /// It has no place, for good.
    #[error("{0}")]
    Refused(String),
}
