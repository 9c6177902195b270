//! Endpoints for programs that speak a protocol of their own over QUIC, whose first flights and small datagrams are sent
//! again where packets are lost, as those of a [`Client`](crate::Client) are; see `fulmar_congestion::copies`.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Instant;

use fulmar_congestion::copies::{Copied, Copies, SharedCopies, share, watched};
use quinn::congestion::ControllerFactory;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Endpoint, EndpointConfig, Runtime, TokioRuntime, UdpPoller};

use crate::socket::repeats::{Repeats, Resend};

/// An endpoint for one connection of a client.
#[derive(Debug)]
pub struct CopyingEndpoint {
    /// quinn's part.
    pub endpoint: Endpoint,
    copies: SharedCopies,
}

impl CopyingEndpoint {
    /// An endpoint at a local address. Needs a Tokio runtime.
    ///
    /// # Errors
    /// The system's, for the socket.
    pub fn new(local: SocketAddr) -> io::Result<CopyingEndpoint> {
        let copies = Arc::new(Mutex::new(Copies::new(Instant::now(), 0.0)));
        let runtime = Arc::new(TokioRuntime);
        let inner = runtime.wrap_udp_socket(UdpSocket::bind(local)?)?;
        let socket = Arc::new_cyclic(|own: &std::sync::Weak<Socket>| Socket {
            inner,
            repeats: Repeats::new(Arc::clone(&copies), own.clone(), true),
        });
        let config = EndpointConfig::default();
        let endpoint = Endpoint::new_with_abstract_socket(config, None, socket, runtime)?;
        Ok(CopyingEndpoint { endpoint, copies })
    }

    /// The congestion control to connect with: the given one, which then reports what is lost.
    #[must_use]
    pub fn watched(
        &self,
        control: Arc<dyn ControllerFactory + Send + Sync>,
    ) -> Arc<dyn ControllerFactory + Send + Sync> {
        watched(control, Arc::clone(&self.copies))
    }

    /// Copies that were sent.
    #[must_use]
    pub fn copied(&self) -> Copied {
        share(&self.copies).copied()
    }
}

/// quinn's socket, and the datagrams that are sent again.
struct Socket {
    inner: Arc<dyn AsyncUdpSocket>,
    repeats: Repeats,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Resend for Socket {
    fn repeats(&self) -> Option<&Repeats> {
        Some(&self.repeats)
    }

    fn resend(&self, copy: &Transmit<'_>) -> bool {
        self.inner.try_send(copy).is_ok()
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.inner.try_send(transmit)?;
        self.repeats.sent(transmit);
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let received = self.inner.poll_recv(context, buffers, meta);
        if let Poll::Ready(Ok(_)) = received {
            self.repeats.heard();
        }
        received
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use quinn::congestion::CubicConfig;
    use quinn::crypto::rustls::QuicClientConfig;
    use tokio::time::timeout;

    use super::*;
    use crate::options::{Options, Trust};

    const PATIENCE: Duration = Duration::from_secs(20);

    /// These are copies: quinn numbers what it sends again anew.
    #[tokio::test]
    async fn a_first_flight_is_sent_again_where_packets_are_lost() {
        let peer = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let copying = CopyingEndpoint::new("127.0.0.1:0".parse().unwrap()).unwrap();
        *share(&copying.copies) = Copies::new(Instant::now(), 0.2);
        let mut options = Options::new("quic://localhost").unwrap();
        options.trust = Trust::Insecure;
        let crypto = QuicClientConfig::try_from(options.tls_config().unwrap()).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(crypto));
        let remote = peer.local_addr().unwrap();
        let _connecting = copying.endpoint.connect_with(config, remote, "localhost").unwrap();
        let (mut first, mut other) = ([0; 2000], [0; 2000]);
        let length = timeout(PATIENCE, peer.recv(&mut first)).await.unwrap().unwrap();
        let mut copies = 0;
        while copies < 2 {
            let received = timeout(PATIENCE, peer.recv(&mut other)).await.unwrap().unwrap();
            copies += usize::from(first[..length] == other[..received]);
        }
    }

    #[tokio::test]
    async fn the_congestion_control_reports_losses() {
        let copying = CopyingEndpoint::new("127.0.0.1:0".parse().unwrap()).unwrap();
        let now = Instant::now();
        let factory = copying.watched(Arc::new(CubicConfig::default()));
        let mut control = factory.build(now, 1200);
        control.on_congestion_event(now, now, false, 1200);
        assert!(share(&copying.copies).loss() > 0.0);
        assert_eq!(copying.copied(), Copied::default());
    }
}
