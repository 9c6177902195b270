//! HTTP/3 over QUIC, by quinn and h3, and WebTransport inside it.
//!
//! This module accepts and serves QUIC connections; `request` handles their streams, `session` WebTransport, `silence`
//! the idle timeout, `receive_limit` the limits that h3 lacks, `pieces` which connections give way when memory runs short,
//! `pseudo_headers` the order of a request's fields, and
//! `amplification_limit` how much may be sent to addresses that are not validated. `fulmar-transport` has MQTT directly over
//! QUIC, at another port and with another ALPN protocol.

pub(crate) mod amplification_limit;
pub(crate) mod pieces;
mod pseudo_headers;
mod receive_limit;
mod request;
mod session;
pub(crate) mod silence;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use bytes::Bytes;
use fulmar_broker::PeerIdentity;
use fulmar_transport::tls::client_name;
use fulmar_transport::{HandshakeData, HandshakePressure};
use parking_lot::Mutex;
use quinn::{Incoming, VarInt};
use quinn_proto::transport_parameters::TransportParameters;
use rustls::pki_types::CertificateDer;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tracing::{debug, info};

use crate::config::EndpointConfig;
use crate::connection_slots::{Activity, ConnectionSlots};
use crate::metrics::Open;
use crate::request_handler::{Client, RequestHandler};
use crate::stop_signal::stopped;
use amplification_limit::AmplificationLimit;
use session::Sessions;

/// Concurrent handshakes above which the server validates addresses with Retry (RFC 9000 section 8.1.2).
const RETRY_ABOVE: usize = 256;

/// Unidirectional streams that a client may have open: control, two of QPACK, and those for greasing.
const MAX_UNI_STREAMS: u32 = 16;

/// Flow-control windows of a stream and of a connection.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;

/// The connection's window until a request has a valid token, or an MQTT client has logged in: a client without an account
/// can leave this much in gaps, which nobody reads. At a round-trip time of 100 ms it allows 2.6 Mbit/s.
const STRANGERS_WINDOW_BYTES: u32 = 32 * 1024;

/// Bytes of responses per connection that are buffered until they are acknowledged.
const SEND_WINDOW_BYTES: u64 = 1024 * 1024;

/// The same for clients without an account. At a round-trip time of 100 ms it allows 20 Mbit/s.
const STRANGERS_SEND_WINDOW_BYTES: u64 = 256 * 1024;

/// The same until the handshake is complete, for clients whose address is not validated. They may be sent three times
/// the bytes received from them (RFC 9000 section 8.1). If responses, which they cannot decrypt yet, used that up, a lost
/// handshake packet could not be retransmitted, and quinn's client stops asking for it.
const UNVALIDATED_WINDOW_BYTES: u64 = 1500;

/// Buffer for datagrams, which WebTransport requires and MQTT does not use. Datagrams beyond it are dropped.
const DATAGRAM_BYTES: usize = 4 * 1024;

/// WebTransport sessions per connection that the server announces; each also takes a request stream.
const MAX_SESSIONS: u64 = 16;

/// H3_NO_ERROR, H3_INTERNAL_ERROR and H3_EXCESSIVE_LOAD (RFC 9114 section 8.1).
const NO_ERROR: VarInt = VarInt::from_u32(0x100);
const INTERNAL_ERROR: VarInt = VarInt::from_u32(0x102);
const EXCESSIVE_LOAD: VarInt = VarInt::from_u32(0x107);

/// QUIC's settings. Without `mtu_discovery` datagrams stay at 1200 bytes, which pass everywhere: trying larger
/// ones costs each connection four, 5.5 KB each way and 0.7 s of a link of 64 kbit/s, to save 0.7 %.
pub(crate) fn transport(config: &EndpointConfig) -> quinn::TransportConfig {
    let limits = &config.limits;
    let mut transport = quinn::TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(limits.max_concurrent_requests.into())
        .max_concurrent_uni_streams(MAX_UNI_STREAMS.into())
        .stream_receive_window(STREAM_WINDOW_BYTES.into())
        .receive_window(STRANGERS_WINDOW_BYTES.into())
        .send_window(STRANGERS_SEND_WINDOW_BYTES)
        .datagram_receive_buffer_size(Some(DATAGRAM_BYTES))
        .mtu_discovery_config(config.mtu_discovery.then(quinn::MtuDiscoveryConfig::default))
        .congestion_controller_factory(config.congestion.factory())
        // Which timeout holds depends on what the connection carries (`silence`).
        .max_idle_timeout(None);
    transport
}

/// Accepts connections until `stopping`; existing ones continue until their requests are answered.
pub(crate) async fn serve(
    handler: Arc<RequestHandler>,
    endpoint: quinn::Endpoint,
    amplification_limit: AmplificationLimit,
    stopping: watch::Receiver<bool>,
) {
    let slots = ConnectionSlots::new(handler.router.limits.max_connections);
    let handshakes = Arc::new(Semaphore::new(RETRY_ABOVE));
    let pressure = Arc::new(Mutex::new(HandshakePressure::default()));
    let (mut stop, mut memory) = (stopping.clone(), handler.pressure.clone());
    loop {
        let incoming = tokio::select! {
            incoming = endpoint.accept() => incoming,
            Ok(()) = memory.changed() => {
                handler.shed_for_memory(&slots, &mut memory);
                continue;
            }
            () = stopped(&mut stop) => return refuse_rest(&endpoint).await,
        };
        let Some(incoming) = incoming else { return };
        if slots.is_full() && !incoming.remote_address_validated() {
            // An address that may be forged does not close other connections.
            incoming.retry().ok();
            continue;
        }
        let Some((slot, made_room)) = slots.acquire(incoming.remote_address().ip()) else {
            handler.router.metrics.refused.fetch_add(1, Relaxed);
            debug!(peer = %incoming.remote_address(), "HTTP/3: refused: too many connections");
            incoming.refuse();
            continue;
        };
        let handshake = Arc::clone(&handshakes).try_acquire_owned();
        let now = Instant::now();
        if incoming.remote_address_validated() {
            amplification_limit.validate(incoming.remote_address());
            pressure.lock().proven(now);
        } else if handshake.is_err() || pressure.lock().is_high(now) {
            pressure.lock().asked_for_proof(now);
            // It is allowed; the error would only return `incoming`.
            incoming.retry().ok();
            continue;
        }
        handler.router.metrics.shed.fetch_add(made_room.into(), Relaxed);
        let pressure = Arc::clone(&pressure);
        let (handler, stopping) = (Arc::clone(&handler), stopping.clone());
        tokio::spawn(async move {
            let _open = Open::new(&handler.router.metrics.connections_quic);
            let (peer, activity) = (incoming.remote_address(), &slot.activity);
            tokio::select! {
                ended = connection(&handler, incoming, activity, handshake, pressure, stopping) => {
                    if let Err(error) = ended {
                        debug!(%peer, "HTTP/3 connection ended: {error}");
                    }
                }
                () = activity.shed() => debug!(%peer, "HTTP/3: connection closed to make room"),
            }
        });
    }
}

async fn refuse_rest(endpoint: &quinn::Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        incoming.refuse();
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn connection<T: Send + 'static>(
    handler: &Arc<RequestHandler>,
    incoming: Incoming,
    activity: &Activity,
    handshake: T,
    pressure: Arc<Mutex<HandshakePressure>>,
    stopping: watch::Receiver<bool>,
) -> Result<(), Failure> {
    let address = incoming.remote_address();
    let is_validated = incoming.remote_address_validated();
    let begun = tokio::time::timeout(handler.router.limits.handshake_timeout, begin(incoming));
    let (connection, complete, parameters) =
        match begun.await.map_err(Failure::from).and_then(|r| r) {
            Ok(begun) => begun,
            Err(error) => {
                handler.router.metrics.failed_handshakes.fetch_add(1, Relaxed);
                pressure.lock().failed(Instant::now());
                info!(peer = %address, "HTTP/3: TLS handshake failed: {error}");
                return Err(error);
            }
        };
    if !is_validated {
        connection.set_send_window(UNVALIDATED_WINDOW_BYTES);
    }
    let (completed, is_complete) = watch::channel(false);
    let is_wide = Arc::new(AtomicBool::new(false));
    let wide = Arc::clone(&is_wide);
    let limit = handler.router.limits.handshake_timeout;
    let (watched, counted) = (connection.clone(), Arc::clone(handler));
    tokio::spawn(async move {
        // It resolves to whether early data was accepted, despite quinn's documentation, and also ends when the
        // connection is lost.
        let in_time = tokio::time::timeout(limit, complete).await.is_ok();
        if in_time && watched.close_reason().is_none() {
            completed.send_replace(true);
            let is_wide = wide.load(Relaxed);
            watched.set_send_window(if is_wide {
                SEND_WINDOW_BYTES
            } else {
                STRANGERS_SEND_WINDOW_BYTES
            });
        } else {
            counted.router.metrics.failed_handshakes.fetch_add(1, Relaxed);
            pressure.lock().failed(Instant::now());
            let why = watched.close_reason().map_or("timed out".into(), |why| why.to_string());
            info!(peer = %address, "HTTP/3: TLS handshake failed: {why}");
            watched.close(INTERNAL_ERROR, b"the handshake took too long");
        }
        drop(handshake);
    });
    let client = Client { address, identity: identity(&connection), activity: activity.clone() };
    run(handler, connection, client, is_complete, parameters, is_wide, stopping).await
}

/// A connection that can carry requests, before the end of its handshake.
type StartedConnection = (quinn::Connection, quinn::ZeroRttAccepted, Option<TransportParameters>);

/// Accepts a connection, and returns it as soon as it can carry requests.
async fn begin(incoming: Incoming) -> Result<StartedConnection, Failure> {
    let mut connecting = incoming.accept()?;
    // Without waiting for the ClientHello, one in four of Chromium's first connections hung.
    let data = connecting.handshake_data().await?.downcast::<HandshakeData>();
    let parameters = data.ok().and_then(|data| data.parameters);
    let early = connecting.into_0rtt();
    let (connection, complete) =
        early.map_err(|_| Failure::from("the server side of QUIC can always be early"))?;
    Ok((connection, complete, parameters))
}

fn identity(connection: &quinn::Connection) -> Option<PeerIdentity> {
    let certificates = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>();
    client_name(&certificates.ok()?)
}

/// State that the streams of a connection share.
pub(crate) struct Shared {
    handler: Arc<RequestHandler>,
    client: Client,
    /// The QUIC connection itself, whose address may change.
    connection: quinn::Connection,
    /// Whether the handshake is complete: from then on, requests cannot be replays.
    complete: watch::Receiver<bool>,
    sessions: Sessions,
    /// The connection has the windows of a client with an account.
    is_wide: Arc<AtomicBool>,
}

impl Shared {
    /// Opens the connection's windows if a request with these headers has a valid token.
    fn widen_for(&self, headers: &http::HeaderMap) {
        let knows = self.handler.router.knows.as_ref();
        if !self.is_wide.load(Relaxed)
            && knows.is_some_and(|knows| knows.account(headers).is_some())
        {
            self.widen();
        }
    }

    /// The client has logged in: opens the connection's windows.
    fn widen(&self) {
        if !self.is_wide.swap(true, Relaxed) {
            self.connection.set_receive_window(CONNECTION_WINDOW_BYTES.into());
            // Before that, the address may be forged; the end of the handshake opens the window.
            if *self.complete.borrow() {
                self.connection.set_send_window(SEND_WINDOW_BYTES);
            }
        }
    }

    /// The client, at the address it has now.
    fn client(&self) -> Client {
        let address: SocketAddr = self.connection.remote_address();
        Client { address, ..self.client.clone() }
    }
}

async fn run(
    handler: &Arc<RequestHandler>,
    connection: quinn::Connection,
    client: Client,
    complete: watch::Receiver<bool>,
    parameters: Option<TransportParameters>,
    is_wide: Arc<AtomicBool>,
    mut stopping: watch::Receiver<bool>,
) -> Result<(), Failure> {
    let limits = &handler.router.limits;
    let (limited, last_accepted) = receive_limit::Connection::new(
        connection.clone(),
        u64::from(limits.max_header_bytes) + 64,
        handler.router.bodies.clone(),
        client.activity.clone(),
    );
    let mut builder = h3::server::builder();
    builder
        .max_field_section_size(limits.max_header_bytes.into())
        .enable_extended_connect(true)
        .enable_webtransport(true)
        .enable_datagram(true)
        .max_webtransport_sessions(MAX_SESSIONS);
    let mut http = builder.build::<_, Bytes>(limited).await?;
    let shared = Arc::new(Shared {
        handler: Arc::clone(handler),
        client,
        connection: connection.clone(),
        complete,
        sessions: Sessions::default(),
        is_wide,
    });
    let silent = silence::keep_time(&shared, limits.idle_timeout, parameters);
    let too_many = pieces::too_many(&connection, handler.pressure.clone());
    tokio::pin!(silent, too_many);
    let mut told = false;
    // Requests are counted here: h3 would wait for WebTransport streams, whose end it does not see.
    let mut open = JoinSet::new();
    while !told || !open.is_empty() {
        let accepted = tokio::select! {
            accepted = http.accept() => accepted?,
            _ = open.join_next(), if !open.is_empty() => continue,
            () = &mut silent => break,
            () = &mut too_many => {
                handler.router.metrics.shed.fetch_add(1, Relaxed);
                let peer = connection.remote_address();
                info!(%peer, "HTTP/3 connection closed: memory is short, and this client has sent very many pieces of streams");
                connection.close(EXCESSIVE_LOAD, b"too many pieces");
                break;
            }
            () = stopped(&mut stopping), if !told => {
                told = true;
                http.shutdown(0).await?;
                continue;
            }
        };
        let (Some(resolver), Some(limit)) = (accepted, last_accepted.last()) else { break };
        open.spawn(request::serve(Arc::clone(&shared), resolver, limit));
    }
    connection.close(NO_ERROR, b"");
    Ok(())
}
