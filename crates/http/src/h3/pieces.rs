//! Connections that give way while the process' memory is short ([`has_suspicious_pieces`]).

use std::sync::Arc;
use std::time::Duration;

use fulmar_broker::{MemoryGauge, MemoryPressure};
use fulmar_transport::has_suspicious_pieces;
use tokio::sync::watch;

/// Time between two looks at what was seen of the process' memory.
const LOOK: Duration = Duration::from_millis(250);

/// Has all connections look at themselves each time that too much was seen.
pub(crate) async fn watch(gauge: Arc<MemoryGauge>, connections: watch::Sender<MemoryPressure>) {
    let mut seen = 0;
    loop {
        tokio::time::sleep(LOOK).await;
        let pressure = gauge.pressure_since(&mut seen);
        if pressure > MemoryPressure::None {
            connections.send_replace(pressure);
        }
    }
}

/// Returns when the connection is to be closed because its client has sent very many pieces of streams.
pub(super) async fn too_many(
    connection: &quinn::Connection,
    mut pressure: watch::Receiver<MemoryPressure>,
) {
    while pressure.changed().await.is_ok() {
        let (seen, stats) = (*pressure.borrow_and_update(), connection.stats());
        // An HTTP/3 connection has several streams.
        if has_suspicious_pieces(seen, stats.frame_rx.stream, stats.udp_rx.datagrams, usize::MAX) {
            return;
        }
    }
    // The endpoint ends.
    std::future::pending().await
}
