//! How long an HTTP/3 connection may be silent before it is closed.
//!
//! The rules are those of MQTT over QUIC ([`fulmar_transport::Silence`]): the Keep Alive of a WebTransport session
//! that the broker accepted determines how long its connection may be silent, and other connections are closed after
//! `[http] idle_timeout_s`. So the server announces no idle timeout in the handshake, and this module keeps the time.
//!
//! quinn neither exposes a client's transport parameters nor sends a PING on request. [`Attentive`] reads the former;
//! instead of the latter, the server opens and ends a unidirectional stream of a reserved type, which RFC 9114
//! section 6.2.3 allows: clients ignore it, and their QUIC acknowledges it.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use fulmar_transport::{Due, Silence};
use quinn::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{
    ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session,
    UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError};

use super::Shared;

/// A reserved stream type (0x1f * N + 0x21, RFC 9114 section 6.2.3).
const RESERVED_STREAM: u8 = 0x21;

/// If a client grants no stream for this long, it cannot be asked for an acknowledgement.
const ASK: Duration = Duration::from_secs(1);

/// The idle timeout of clients that have not shown a token or logged in: a client that has vanished says no more over QUIC
/// than one that waits.
const STRANGERS_SILENCE: Duration = Duration::from_secs(40);

/// Logged-in MQTT clients that have sent this much get the connection's full window.
const WIDE_FROM_BYTES: u64 = super::STRANGERS_WINDOW_BYTES as u64 / 2;

/// Returns when nothing was received for longer than the client's sessions allow, or, without a Keep Alive, for
/// `limit`, or less from strangers.
pub(super) async fn keep_time(
    shared: &Shared,
    limit: Duration,
    parameters: Option<TransportParameters>,
) {
    let connection = &shared.connection;
    let strangers = limit.min(STRANGERS_SILENCE);
    let mut silence = Silence::new(Instant::now(), strangers);
    if let Some(parameters) = &parameters {
        silence.learn(parameters);
    }
    let mut seen = 0;
    loop {
        let now = Instant::now();
        let received = connection.stats().udp_rx;
        if received.datagrams != seen {
            seen = received.datagrams;
            silence.heard(now);
        }
        let allowed = shared.sessions.allowed_silence();
        if allowed.is_some() && received.bytes > WIDE_FROM_BYTES {
            // The broker has accepted a client, and it sends a lot. Announcing the window wakes those that do not.
            shared.widen();
        }
        silence.set_limit(if shared.is_wide.load(Relaxed) { limit } else { strangers });
        let next = silence.next(allowed, connection.rtt());
        match next {
            Some((at, Due::GiveUp)) if at <= now => match silence.excuse_pause(now - at) {
                true => continue,
                false => return,
            },
            Some((at, Due::Ask)) if at <= now => {
                silence.has_asked();
                ask(connection).await;
                continue;
            }
            _ => {}
        }
        // There is no notification of received packets, or of changes of a session's Keep Alive.
        let look = now + silence.look_every();
        let at = next.map_or(look, |(at, _)| at.min(look));
        tokio::time::sleep_until(at.into()).await;
    }
}

/// Makes the client acknowledge a packet.
async fn ask(connection: &quinn::Connection) {
    let ask = async {
        let mut stream = connection.open_uni().await.ok()?;
        stream.write_all(&[RESERVED_STREAM]).await.ok()?;
        stream.finish().ok()
    };
    // A client that cannot be asked may still send something in time.
    tokio::time::timeout(ASK, ask).await.ok();
}

/// The transport parameters that [`Attentive`] has put in place of the handshake data.
pub(super) fn parameters(handshake_data: Box<dyn Any>) -> Option<TransportParameters> {
    handshake_data.downcast::<Option<TransportParameters>>().ok().and_then(|parameters| *parameters)
}

/// A TLS configuration whose `handshake_data` is the client's transport parameters: `Option<TransportParameters>`.
pub(crate) struct Attentive(Arc<QuicServerConfig>);

impl Attentive {
    pub(crate) fn new(tls: QuicServerConfig) -> Attentive {
        Attentive(Arc::new(tls))
    }
}

impl ServerConfig for Attentive {
    fn initial_keys(&self, version: u32, id: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        ServerConfig::initial_keys(&*self.0, version, id)
    }

    fn retry_tag(&self, version: u32, id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.0.retry_tag(version, id, packet)
    }

    fn start_session(
        self: Arc<Self>,
        version: u32,
        parameters: &TransportParameters,
    ) -> Box<dyn Session> {
        Box::new(Listening(Arc::clone(&self.0).start_session(version, parameters)))
    }
}

struct Listening(Box<dyn Session>);

impl Session for Listening {
    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.0.handshake_data()?;
        Some(Box::new(self.0.transport_parameters().ok().flatten()))
    }

    fn initial_keys(&self, id: &ConnectionId, side: Side) -> Keys {
        self.0.initial_keys(id, side)
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.0.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.0.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.0.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        self.0.read_handshake(bytes)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.0.transport_parameters()
    }

    fn write_handshake(&mut self, bytes: &mut Vec<u8>) -> Option<Keys> {
        self.0.write_handshake(bytes)
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.0.next_1rtt_keys()
    }

    fn is_valid_retry(&self, id: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.0.is_valid_retry(id, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.0.export_keying_material(output, label, context)
    }
}
