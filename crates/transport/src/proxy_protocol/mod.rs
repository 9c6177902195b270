//! Proxies in front of TCP listeners that pass on their clients' addresses (PROXY protocol, version 2).
//!
//! A listener behind proxies accepts connections from their networks only, and each begins with a header. A header can
//! claim any address, so the networks have to be configured. Not for UDP.

mod header;
mod networks;

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

use fulmar_broker::LogLimiter;
use parking_lot::Mutex;

pub use header::{Header, HeaderError, HeaderReader, MAX_KEPT_BYTES};
pub use networks::{Network, NetworkError};

use crate::clock::Clock;

/// The proxies that may connect, and how many connections were refused.
#[derive(Debug)]
pub struct Proxies {
    networks: Vec<Network>,
    clock: Clock,
    refused: AtomicU64,
    /// Limits the log lines about refused connections.
    log_limiter: Mutex<LogLimiter>,
}

impl Proxies {
    /// Proxies with addresses in these networks.
    pub fn new(networks: Vec<Network>) -> Proxies {
        let (clock, log_limiter) = (Clock::start(), Mutex::default());
        Proxies { networks, clock, refused: AtomicU64::new(0), log_limiter }
    }

    /// Whether a connection from `peer` may begin; a refused one is counted and logged.
    pub fn admits(&self, peer: SocketAddr) -> bool {
        let admitted = self.trusts(peer.ip());
        if !admitted {
            self.refuse(peer, &"its address is not in [proxy_protocol] from");
        }
        admitted
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address))
    }

    /// Counts and logs a connection that was refused because of its header.
    pub fn refuse(&self, peer: SocketAddr, why: &dyn Display) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(times) = self.log_limiter.lock().occurred(self.clock.now()) {
            tracing::warn!(%peer, times, "connection refused at a listener behind a proxy: {why}");
        }
    }

    /// Connections refused so far.
    pub fn refused_total(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}
