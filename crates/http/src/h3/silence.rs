//! How long an HTTP/3 connection may be silent before it is closed.
//!
//! The rules are those of MQTT over QUIC ([`fulmar_transport::Silence`]): the Keep Alive of a WebTransport session
//! that the broker accepted determines how long its connection may be silent, and other connections are closed after
//! `[http] idle_timeout_s`. So the server announces no idle timeout in the handshake, and this module keeps the time.
//!
//! quinn neither exposes a client's transport parameters nor sends a PING on request. [`fulmar_transport::HandshakeData`]
//! has the former; instead of the latter, the server opens and ends a unidirectional stream of a reserved type, which
//! RFC 9114 section 6.2.3 allows: clients ignore it, and their QUIC acknowledges it.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use fulmar_transport::{Silence, SilenceAction};
use quinn_proto::transport_parameters::TransportParameters;

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
            Some((at, SilenceAction::GiveUp)) if at <= now => {
                match silence.excuse_pause(now - at) {
                    true => continue,
                    false => return,
                }
            }
            Some((at, SilenceAction::Ask)) if at <= now => {
                silence.has_asked();
                ping(connection).await;
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
async fn ping(connection: &quinn::Connection) {
    let ask = async {
        let mut stream = connection.open_uni().await.ok()?;
        stream.write_all(&[RESERVED_STREAM]).await.ok()?;
        stream.finish().ok()
    };
    // A client that cannot be asked may still send something in time.
    tokio::time::timeout(ASK, ask).await.ok();
}
