//! What can go wrong when a server starts; later errors concern one connection and are logged.

use std::io;
use std::net::SocketAddr;

/// A server could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An address could not be bound.
    #[error("cannot listen on {address}{}", advice(source))]
    Bind {
        /// The address as configured.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// The number of workers is zero or more than the broker was made for.
    #[error("{workers} workers are configured, but there must be at least 1")]
    Workers {
        /// The number configured.
        workers: usize,
    },
    /// TLS for QUIC cannot be set up.
    #[error(transparent)]
    Tls(#[from] crate::tls::TlsError),
    /// A worker could not be set up.
    #[error("cannot start a worker: {0}")]
    Worker(#[from] io::Error),
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            " (another program listens there: stop it or configure another port)"
        }
        io::ErrorKind::PermissionDenied => {
            " (ports below 1024 need the capability CAP_NET_BIND_SERVICE)"
        }
        io::ErrorKind::AddrNotAvailable => " (no interface of this machine has that address)",
        _ => "",
    }
}
