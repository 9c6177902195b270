//! The congestion controls that a user can choose.

use std::sync::Arc;

use quinn_proto::congestion::{BbrConfig, ControllerFactory};

use crate::copies::{SharedCopies, watched};
use crate::delay_aware_cubic::DelayAwareCubicFactory;
use crate::quic::DelayBasedFactory;

/// The initial window: the largest that RFC 9002 section 7.2 allows, and TCP's of RFC 6928, though these datagrams are
/// smaller.
pub(crate) const INITIAL_WINDOW_BYTES: u64 = 14_720;

/// The congestion control of a QUIC path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Congestion {
    /// CUBIC (RFC 9438) that does not fill deep queues before its first loss. Every loss reduces the window.
    #[default]
    Cubic,
    /// quinn's BBR of the first version, which takes more than its share beside others on shallow queues.
    Bbr,
    /// [`DelayBased`](crate::DelayBased): follows delay, and losses only above the path's baseline loss rate.
    Adaptive,
}

impl Congestion {
    /// The argument of `TransportConfig::congestion_controller_factory`. Each path of each connection has its own
    /// controller, so a new path starts anew.
    pub fn factory(self) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self {
            Congestion::Cubic => Arc::new(DelayAwareCubicFactory::new()),
            Congestion::Bbr => Arc::new(BbrConfig::default()),
            Congestion::Adaptive => Arc::new(DelayBasedFactory),
        }
    }

    /// The same for a single connection, with controllers that report to `copies` what becomes of its packets.
    pub fn factory_watched_by(
        self,
        copies: &SharedCopies,
    ) -> Arc<dyn ControllerFactory + Send + Sync> {
        watched(self.factory(), Arc::clone(copies))
    }
}
