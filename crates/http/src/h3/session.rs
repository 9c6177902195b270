//! WebTransport sessions (draft-ietf-webtrans-http3-02, which browsers implement): MQTT over QUIC for pages.
//!
//! A session at `/mqtt` is one MQTT connection; its first bidirectional stream carries it, like the
//! control stream of MQTT over QUIC. Further streams are refused, datagrams dropped. A connection may have
//! several sessions and ordinary requests beside them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fulmar_broker::{Peer, TransportKind};
use fulmar_transport::{AllowedSilence, Framing, ws};
use h3::quic::{RecvStream as _, SendStream as _};
use h3::server::RequestStream;
use h3::stream::BufRecvStream;
use h3::webtransport::SessionId;
use http::{HeaderValue, Request, Response, StatusCode};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tracing::debug;

use super::request::Stream;
use super::{Failure, Shared};
use crate::pump::pump;

/// The error for a stream whose session is unknown (WEBTRANSPORT_BUFFERED_STREAM_REJECTED).
const STREAM_REJECTED: u64 = 0x3994_bd84;

/// Announces the draft to browsers; some refuse the session without it.
const DRAFT: (&str, HeaderValue) =
    ("sec-webtransport-http3-draft", HeaderValue::from_static("draft02"));

type HeaderStream = BufRecvStream<Stream, Bytes>;

/// The sessions of a connection, by the stream of their request.
#[derive(Default)]
pub(super) struct Sessions {
    /// Receives the first stream of each session; `None` after that.
    waiting: Mutex<HashMap<SessionId, Option<oneshot::Sender<HeaderStream>>>>,
    /// Notified when a session begins.
    begun: Notify,
    /// Time for which the client of each session that carries MQTT may be silent.
    silences: Mutex<HashMap<SessionId, Arc<AllowedSilence>>>,
}

impl Sessions {
    /// The longest silence that a session's Keep Alive allows; `None` if none has one.
    pub(super) fn allowed_silence(&self) -> Option<Duration> {
        self.silences.lock().values().filter_map(|silence| silence.get()).max()
    }

    /// Takes the receiver of the stream; the outer `None` means that there is no such session.
    fn claim(&self, id: SessionId) -> Option<Option<oneshot::Sender<HeaderStream>>> {
        self.waiting.lock().get_mut(&id).map(Option::take)
    }
}

/// Responds to the request for a session, and carries its MQTT until either side ends it.
pub(super) async fn begin(
    shared: &Arc<Shared>,
    request: &Request<()>,
    mut stream: RequestStream<Stream, Bytes>,
) -> Result<(), Failure> {
    // A session changes the broker's state, so it waits for the end of the handshake, which proves that it is not a
    // replay.
    let mut complete = shared.complete.clone();
    complete.wait_for(|complete| *complete).await?;
    let status = if request.uri().path() != ws::PATHS[0] {
        StatusCode::NOT_FOUND
    } else if !shared.handler.allows_origin(request, &shared.client()) {
        StatusCode::FORBIDDEN
    } else {
        StatusCode::OK
    };
    // h3's own conversion returns the stream's index, which is right for the first stream only.
    let id = SessionId::try_from(stream.id().into_inner())
        .map_err(|_| "the stream's number is not valid in QUIC")?;
    let (sender, first) = oneshot::channel();
    if status == StatusCode::OK {
        shared.sessions.waiting.lock().insert(id, Some(sender));
        shared.sessions.begun.notify_waiters();
    }
    let carried = carry(shared, &mut stream, id, status, first).await;
    shared.sessions.waiting.lock().remove(&id);
    shared.sessions.silences.lock().remove(&id);
    carried
}

async fn carry(
    shared: &Shared,
    stream: &mut RequestStream<Stream, Bytes>,
    id: SessionId,
    status: StatusCode,
    first: oneshot::Receiver<HeaderStream>,
) -> Result<(), Failure> {
    let (handler, client) = (&shared.handler, shared.client());
    let mut response = Response::new(());
    *response.status_mut() = status;
    response.headers_mut().insert(DRAFT.0, DRAFT.1);
    handler.router.metrics.answered(http::Version::HTTP_3, status);
    debug!(peer = %client.address, status = status.as_u16(), "WebTransport session");
    stream.send_response(response).await?;
    if status != StatusCode::OK {
        return Ok(stream.finish().await?);
    }
    let _tunnel = client.activity.tunnels.open();
    let mqtt = async {
        let outer = tokio::time::timeout(handler.router.limits.handshake_timeout, first).await??;
        let peer = Peer {
            address: client.address,
            transport: TransportKind::WebTransport,
            identity: client.identity.clone(),
            listener: Arc::clone(&handler.policy),
        };
        let (inner, silence) = handler.handoff.open_watched(peer, Framing::Bytes)?;
        shared.sessions.silences.lock().insert(id, silence);
        Ok::<_, Failure>(pump(outer, inner, handler.router.limits.linger).await?)
    };
    let result = tokio::select! {
        result = mqtt => result,
        ended = closed(stream) => ended,
    };
    // The end of this stream is the end of the session.
    stream.finish().await.ok();
    result
}

/// Waits for the client to end the session; earlier capsules are ignored.
async fn closed(stream: &mut RequestStream<Stream, Bytes>) -> Result<(), Failure> {
    while stream.recv_data().await?.is_some() {}
    Ok(())
}

/// Passes a stream to its session.
pub(super) async fn stream(
    shared: &Shared,
    id: SessionId,
    mut stream: HeaderStream,
) -> Result<(), Failure> {
    let sessions = &shared.sessions;
    // The stream may have overtaken the request for its session.
    let claimed = tokio::time::timeout(shared.handler.router.limits.handshake_timeout, async {
        loop {
            let begun = sessions.begun.notified();
            if let Some(claimed) = sessions.claim(id) {
                return claimed;
            }
            begun.await;
        }
    });
    let refused = match claimed.await {
        Ok(Some(waiting)) => match waiting.send(stream) {
            Ok(()) => return Ok(()),
            Err(unwanted) => {
                stream = unwanted;
                "its session has ended"
            }
        },
        Ok(None) => "MQTT over WebTransport has one stream",
        Err(_) => "its session does not exist",
    };
    stream.stop_sending(STREAM_REJECTED);
    stream.reset(STREAM_REJECTED);
    Err(refused.into())
}
