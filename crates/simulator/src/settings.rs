//! How the broker of a world is set up, and what the transport knows of its clients.

use std::sync::Arc;

use fulmar_broker::auth::AccessControl;
use fulmar_broker::{Limits, ListenerPolicy, Peer, TransportKind};

/// Setup of the broker, each time that it starts.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    /// Client identifiers of internal sessions.
    pub(crate) internal: Vec<Box<str>>,
    /// Seconds between two publications of `$SYS`; 0 for never.
    pub(crate) sys_interval_s: u32,
    pub(crate) access_control: Arc<dyn Fn() -> AccessControl + Send + Sync>,
}

impl Settings {
    /// Everybody may do everything.
    pub(crate) fn open(limits: Limits, internal: Vec<Box<str>>) -> Settings {
        let access_control = Arc::new(AccessControl::default);
        Settings { limits, internal, sys_interval_s: 0, access_control }
    }
}

/// A client of which the transport knows nothing.
pub(crate) fn peer(quic: bool) -> Peer {
    Peer {
        address: ([127, 0, 0, 1], 1000).into(),
        transport: if quic { TransportKind::Quic } else { TransportKind::Tcp },
        identity: None,
        listener: Arc::new(ListenerPolicy { name: "sim".into(), allow_anonymous: true }),
    }
}
