//! The congestion controls that a user can choose from.

use std::sync::Arc;

use quinn_proto::congestion::{BbrConfig, ControllerFactory};

use crate::copies::{SharedCopies, watched};
use crate::patient::Patient;
use crate::quic::Adaptive;

/// Bytes in flight at the beginning: the most that RFC 9002 section 7.2 allows, and what TCP has by RFC 6928, though
/// our datagrams are smaller.
pub(crate) const INITIAL_WINDOW_BYTES: u64 = 14_720;

/// How much may be in flight on a path of QUIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// CUBIC (RFC 9438) that does not fill deep queues before its first loss. Every loss makes it slower.
    #[default]
    Cubic,
    /// quinn's BBR of the first version, which takes more than its share beside others on shallow queues.
    Bbr,
    /// [`Roadwise`](crate::Roadwise): follows delay, and losses only as far as they exceed what the path usually loses.
    Adaptive,
}

impl Congestion {
    /// What `TransportConfig::congestion_controller_factory` takes. Each path of each connection has a controller of
    /// its own, so that a path that changes begins anew.
    #[must_use]
    pub fn factory(self) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self {
            Congestion::Cubic => Arc::new(Patient::new()),
            Congestion::Bbr => Arc::new(BbrConfig::default()),
            Congestion::Adaptive => Arc::new(Adaptive),
        }
    }

    /// The same for a single connection, with controllers that report to `copies` what becomes of its packets.
    #[must_use]
    pub fn factory_watched_by(
        self,
        copies: &SharedCopies,
    ) -> Arc<dyn ControllerFactory + Send + Sync> {
        watched(self.factory(), Arc::clone(copies))
    }
}
