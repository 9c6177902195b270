//! QUIC: an endpoint for each connection, the control stream, 0-RTT, moving to a new socket.
//!
//! Conventions of today's MQTT-over-QUIC servers: ALPN `mqtt`, the first bidirectional stream is
//! the control stream. Tickets are in the configuration, which all connections of a client share;
//! they end with the process (see `tls`).

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fulmar_congestion::Congestion;
use fulmar_congestion::copies::{Copied, Copies, SharedCopies, share};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    ClientConfig, Connecting, Connection, Endpoint, EndpointConfig, IdleTimeout, TokenStore,
    TokioRuntime, TransportConfig, VarInt,
};
use quinn_proto::RandomConnectionIdGenerator;
use tokio::sync::mpsc;

use crate::dial::ServerConnection;
use crate::error::Error;
use crate::network;
use crate::options::Options;
use crate::search::{Observed, Unanswered};
use crate::socket::{MAX_WAITING_EVENTS, Socket, SocketEvent, Wiring};
use crate::tickets::{Losses, RoundTrip};

/// Bytes that may be sent and not acknowledged. More does not help on slow links, and would delay later data.
const SEND_WINDOW_BYTES: u64 = 256 * 1024;

/// Bytes the server may send before they are read.
const RECEIVE_WINDOW_BYTES: u32 = 1 << 20;

/// The idle timeout in keep-alive intervals, and its limits: a connection survives 60 s in which nothing or only
/// half of the packets arrives. To connect again would cost more, and would fail in that time as well.
const IDLE_INTERVALS: u32 = 6;
const IDLE_TIMEOUT: [Duration; 2] = [Duration::from_secs(8), Duration::from_secs(75)];

/// Maximum number of checks whether the close of a connection has been sent, and the time between two of them.
const MOST_TURNS: u32 = 50;
const TURN: Duration = Duration::from_millis(1);

/// Refusals (ICMP port unreachable) in a row that end a connection. A single one may come from a server that is being
/// replaced by its successor on the same port.
const REFUSALS: u32 = 2;

/// Dials; its TLS configuration has the tickets.
pub(crate) struct QuicDialer {
    config: ClientConfig,
    keep_alive: Duration,
    congestion: Congestion,
    /// Small datagrams are sent again where packets are lost.
    copies: bool,
    round_trip: RoundTrip,
    losses: Losses,
    /// Other clients use the tickets, too.
    shares_tickets: bool,
    /// A connection that is being made has received something.
    heard: Arc<AtomicBool>,
}

/// The part of a connection that only QUIC has.
pub(crate) struct QuicConnection {
    pub(crate) connection: Connection,
    endpoint: Endpoint,
    /// The server's address.
    pub(crate) remote: SocketAddr,
    /// The address from which datagrams are sent.
    local: IpAddr,
    events: mpsc::Receiver<SocketEvent>,
    wiring: Wiring,
    /// Resolves to whether the server accepted the early data, if there was any.
    pub(crate) early: Option<quinn::ZeroRttAccepted>,
    /// Nothing has been received from the server.
    pub(crate) unanswered: bool,
    /// Number of times the connection has moved to another socket and received packets there.
    pub(crate) migrations: u32,
    /// Number of times it has moved to another address of the server.
    pub(crate) server_moves: u32,
    silence: Silence,
    round_trip: RoundTrip,
    losses: Losses,
    shares_tickets: bool,
}

impl Drop for QuicConnection {
    fn drop(&mut self) {
        // Before the first acknowledgement there is only an assumed round-trip time.
        if self.connection.stats().frame_rx.acks > 0 {
            self.round_trip.store(self.connection.rtt());
            if let Some(copies) = &self.wiring.copies {
                self.losses.store(self.local, Instant::now(), share(copies).loss());
            }
        }
    }
}

/// Whether anything was received since the last packet was sent.
#[derive(Default)]
struct Silence {
    /// Frames received, and datagrams sent when the last was received.
    received: u64,
    sent: u64,
    /// Successive checks at which something had been sent and nothing received.
    looks: u32,
}

/// A change of a connection's network path.
#[derive(Debug)]
pub(crate) enum Change {
    /// A packet was received on the new socket.
    Migrated(SocketAddr),
    /// The server's port is closed.
    Gone,
    /// The path may have changed: see [`QuicConnection::follow`].
    Doubt,
    /// The server does not answer.
    Silent,
}

impl QuicDialer {
    pub(crate) fn new(
        mut tls: rustls::ClientConfig,
        options: &Options,
    ) -> Result<QuicDialer, Error> {
        tls.alpn_protocols = vec![b"mqtt".to_vec()];
        tls.enable_early_data = true;
        let crypto = QuicClientConfig::try_from(tls)
            .map_err(|error| Error::Options(format!("TLS for QUIC: {error}")))?;
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.token_store(Arc::clone(&options.tickets.tokens) as Arc<dyn TokenStore>);
        Ok(QuicDialer {
            config,
            keep_alive: options.quic_keep_alive,
            congestion: options.congestion,
            copies: options.copies,
            round_trip: options.tickets.round_trip.clone(),
            losses: options.tickets.losses.clone(),
            shares_tickets: options.tickets.tls.is_some(),
            heard: Arc::default(),
        })
    }

    /// Whether a connection that is being made has received something since this was last asked.
    pub(crate) fn take_heard(&self) -> bool {
        self.heard.swap(false, Ordering::Relaxed)
    }

    fn transport(&self, copies: Option<&SharedCopies>) -> Result<TransportConfig, String> {
        let control = match copies {
            Some(copies) => self.congestion.factory_watched_by(copies),
            None => self.congestion.factory(),
        };
        let idle = (self.keep_alive * IDLE_INTERVALS).clamp(IDLE_TIMEOUT[0], IDLE_TIMEOUT[1]);
        let idle = IdleTimeout::try_from(idle).map_err(|error| error.to_string())?;
        let mut transport = TransportConfig::default();
        transport
            .send_window(SEND_WINDOW_BYTES)
            .stream_receive_window(VarInt::from_u32(RECEIVE_WINDOW_BYTES))
            .receive_window(VarInt::from_u32(RECEIVE_WINDOW_BYTES))
            // Most clients send little, and datagrams of 1200 bytes pass everywhere. Trying larger ones would take
            // eight per connection, 6 KB each way: seconds of a slow link.
            .mtu_discovery_config(None)
            .congestion_controller_factory(control)
            .max_concurrent_bidi_streams(VarInt::from_u32(0))
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .max_idle_timeout(Some(idle))
            .initial_rtt(self.round_trip.to_begin_with())
            .keep_alive_interval(Some(self.keep_alive));
        Ok(transport)
    }

    /// Connects and opens the control stream; in the first flight, before an answer of the server, if there is a
    /// ticket and `early` allows it.
    pub(crate) async fn dial(
        &self,
        remote: SocketAddr,
        host: &str,
        early: bool,
    ) -> Result<ServerConnection, String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        let (tell, mut events) = mpsc::channel(MAX_WAITING_EVENTS);
        let now = Instant::now();
        let copies = self.copies.then(|| Arc::new(Mutex::new(Copies::new(now, 0.0))));
        let (heard, unanswered) = (Arc::clone(&self.heard), Arc::new(Unanswered::new(now, remote)));
        let wiring = Wiring { named: remote, events: tell, heard, unanswered, copies };
        let socket = Socket::new(remote, false, wiring.clone()).map_err(|error| text(&error))?;
        let copies = wiring.copies.as_ref();
        let mut config = EndpointConfig::default();
        // Its socket belongs to this connection alone, so packets to it need no connection ID: eight bytes less each,
        // and no NEW_CONNECTION_ID frames.
        config.cid_generator(|| Box::new(RandomConnectionIdGenerator::new(0)));
        let runtime = Arc::new(TokioRuntime);
        let endpoint = Endpoint::new_with_abstract_socket(config, None, socket, runtime);
        let endpoint = endpoint.map_err(|error| text(&error))?;
        let local = endpoint.local_addr().map_err(|error| text(&error))?.ip();
        if let Some(copies) = copies {
            *share(copies) = Copies::new(now, self.losses.to_expect(local, now));
        }
        let mut quic = self.config.clone();
        quic.transport_config(Arc::new(self.transport(copies)?));
        let connecting = endpoint.connect_with(quic, remote, host).map_err(|error| text(&error))?;
        let (connection, early) = match if early { connecting.into_0rtt() } else { Err(connecting) }
        {
            Ok((connection, accepted)) => (connection, Some(accepted)),
            Err(connecting) => (answered(connecting, &mut events).await?, None),
        };
        let conn = QuicConnection {
            connection,
            endpoint,
            remote,
            local,
            events,
            wiring,
            unanswered: early.is_some(),
            early,
            migrations: 0,
            server_moves: 0,
            silence: Silence::default(),
            round_trip: self.round_trip.clone(),
            losses: self.losses.clone(),
            shares_tickets: self.shares_tickets,
        };
        conn.open().await
    }
}

/// The handshake; ends at once if the port is closed.
async fn answered(
    connecting: Connecting,
    events: &mut mpsc::Receiver<SocketEvent>,
) -> Result<Connection, String> {
    tokio::pin!(connecting);
    loop {
        tokio::select! {
            connected = &mut connecting => return connected.map_err(|error| error.to_string()),
            Some(told) = events.recv() => {
                if matches!(told, SocketEvent::Refused(_)) {
                    return Err("connection refused: the UDP port is closed".to_owned());
                }
            }
        }
    }
}

impl QuicConnection {
    /// Opens the control stream.
    pub(crate) async fn open(self) -> Result<ServerConnection, String> {
        let (send, receive) = self.connection.open_bi().await.map_err(|error| error.to_string())?;
        Ok(ServerConnection::quic(receive, send, self))
    }

    /// Ends the connection, and waits until the close has been sent. That it is repeated to a server that goes on sending
    /// (RFC 9000 section 10.2.1) is not worth three timeouts: all data has arrived.
    pub(crate) async fn close(&self) {
        if self.connection.close_reason().is_some() {
            return;
        }
        let before = self.datagrams_sent();
        self.connection.close(VarInt::from_u32(0), b"");
        self.sends(before).await;
    }

    /// Datagrams sent so far.
    pub(crate) fn datagrams_sent(&self) -> u64 {
        self.connection.stats().udp_tx.datagrams
    }

    /// Waits for the ticket of the next connection, if there may be one that uses it. The server sends it when it has the end
    /// of the handshake, with HANDSHAKE_DONE: a round trip after the answer to early data.
    pub(crate) async fn has_ticket(&self) {
        while self.shares_tickets
            && self.connection.stats().frame_rx.handshake_done == 0
            && self.connection.close_reason().is_none()
        {
            tokio::time::sleep(TURN).await;
        }
    }

    /// Waits until more than this number of datagrams are sent: the task of the connection does so in its next turn.
    pub(crate) async fn sends(&self, before: u64) {
        for _ in 0..MOST_TURNS {
            if self.datagrams_sent() > before {
                return;
            }
            tokio::time::sleep(TURN).await;
        }
    }

    /// The next change that its socket detects. Cancelling it loses nothing.
    pub(crate) async fn changed(&mut self) -> Change {
        loop {
            match self.events.recv().await {
                Some(SocketEvent::Moved(address)) => {
                    self.migrations += 1;
                    return Change::Migrated(address);
                }
                Some(SocketEvent::Refused(times)) if times >= REFUSALS || self.unanswered => {
                    return Change::Gone;
                }
                Some(SocketEvent::Refused(_)) => {}
                Some(SocketEvent::Unreachable) => return Change::Doubt,
                Some(SocketEvent::Silent) => return Change::Silent,
                // This connection holds a sender itself.
                None => std::future::pending().await,
            }
        }
    }

    /// Moves to a new socket if the kernel would use another address now.
    pub(crate) fn follow(&mut self) {
        // Without a route there is no address to move to; the next change may bring one.
        if network::source(self.remote).is_ok_and(|source| source != self.local) {
            self.rebind();
        }
    }

    /// Copies that were sent, see [`Options::copies`].
    pub(crate) fn copied(&self) -> Copied {
        self.wiring.copies.as_ref().map_or_else(Copied::default, |copies| share(copies).copied())
    }

    /// To be called every few seconds: moves once when the server stays silent although it was sent
    /// something, as behind a NAT that has forgotten the connection.
    pub(crate) fn check_path(&mut self) {
        let (sent, received) = (self.datagrams_sent(), self.frames());
        if received != self.silence.received {
            self.silence = Silence { received, sent, looks: 0 };
        } else if sent > self.silence.sent {
            self.silence.looks += 1;
            if self.silence.looks == 1 {
                // Perhaps something is received, from another server.
                self.doubt();
            }
            // The first check may fall between a datagram and its answer.
            if self.silence.looks == 2 {
                tracing::debug!("the server is silent; trying another socket");
                self.rebind();
            }
        }
        self.follow();
    }

    /// The state of the connection for the search for its server.
    pub(crate) fn observed(&self) -> Observed {
        let now = Instant::now();
        Observed {
            now,
            silence: self.wiring.unanswered.silence(now, self.frames()),
            round_trip: self.connection.rtt(),
            acks: self.connection.stats().frame_rx.acks,
            is_late: self.wiring.unanswered.is_late(),
        }
    }

    /// Frames received: what only the server can have sent, unlike datagrams.
    fn frames(&self) -> u64 {
        let received = self.connection.stats().frame_rx;
        received.acks + received.stream + received.ping
    }

    /// Asks for proof that the server is at the other end.
    pub(crate) fn doubt(&self) {
        self.wiring.unanswered.doubt(self.frames());
    }

    /// Moves to a new socket; the connection follows by migration.
    pub(crate) fn rebind(&mut self) {
        if let Err(error) = self.move_to(self.remote) {
            tracing::warn!(%error, "cannot move to a new socket");
        }
    }

    /// Moves to a new socket that sends to `remote`, where the server has to have the keys of this connection.
    pub(crate) fn move_to(&mut self, remote: SocketAddr) -> std::io::Result<()> {
        let socket = Socket::new(remote, true, self.wiring.clone())?;
        self.wiring.unanswered.moved_to(remote);
        self.endpoint.rebind_abstract(socket)?;
        (self.local, self.remote) = (self.endpoint.local_addr()?.ip(), remote);
        if let Some(copies) = &self.wiring.copies {
            share(copies).forget(Instant::now());
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "quic_tests.rs"]
pub(crate) mod tests;
