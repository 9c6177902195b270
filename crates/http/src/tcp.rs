//! HTTP/1.1 and HTTP/2 over TLS over TCP, with hyper.
//!
//! Each connection is a task. Above the limit, an idle connection is closed for a new one; if there is none, the new
//! one is closed at once, so that it does not wait in the kernel.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use fulmar_broker::LogLimiter;
use fulmar_transport::proxy_protocol::Proxies;
use fulmar_transport::tls::client_name;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tracing::{debug, info, warn};

use crate::connection_slots::{ConnectionSlot, ConnectionSlots};
use crate::handshake::Handshakes;
use crate::idle::Idle;
use crate::metrics::Open;
use crate::proxy_header::client_address;
use crate::request_handler::{Client, RequestHandler};
use crate::request_smuggling::SmugglingFilter;
use crate::rest::Lingering;
use crate::stop_signal::stopped;

/// Bytes of a response that HTTP/2 keeps for a connection that takes none, per stream.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

/// Pause after a failed accept, for example when file descriptors are short.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The same if a connection was closed to make room.
pub(crate) const ROOM_PAUSE: Duration = Duration::from_millis(5);

/// Accepts until `stopping`; connections then end by themselves.
pub(crate) async fn serve(
    handler: Arc<RequestHandler>,
    listener: TcpListener,
    handshakes: Handshakes,
    proxies: Option<Arc<Proxies>>,
    stopping: watch::Receiver<bool>,
) {
    let slots = ConnectionSlots::new(handler.router.limits.max_connections);
    let (mut stop, mut pressure) = (stopping.clone(), handler.pressure.clone());
    let mut log_limiter = LogLimiter::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Ok(()) = pressure.changed() => {
                handler.shed_for_memory(&slots, &mut pressure);
                continue;
            }
            () = stopped(&mut stop) => return,
        };
        let (socket, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(times) = log_limiter.occurred(handler.router.clock.now()) {
                    warn!(%error, times, "HTTP: cannot accept connections; trying again shortly");
                }
                let pause = if slots.shed() { ROOM_PAUSE } else { ACCEPT_PAUSE };
                tokio::time::sleep(pause).await;
                continue;
            }
        };
        if proxies.as_ref().is_some_and(|proxies| !proxies.admits(address)) {
            continue;
        }
        let Some((mut slot, made_room)) = slots.acquire(address.ip()) else {
            handler.router.metrics.refused.fetch_add(1, Relaxed);
            debug!(peer = %address, "HTTP: refused: too many connections");
            continue;
        };
        handler.router.metrics.shed.fetch_add(made_room.into(), Relaxed);
        let (handler, stopping) = (Arc::clone(&handler), stopping.clone());
        let (handshakes, proxies) = (handshakes.clone(), proxies.clone());
        tokio::spawn(async move {
            let activity = slot.activity.clone();
            let proxies = proxies.as_deref();
            let connection =
                connection(&handler, socket, address, &mut slot, &handshakes, proxies, stopping);
            tokio::select! {
                () = connection => {}
                () = activity.shed() => debug!(peer = %address, "HTTP: connection closed to make room"),
            }
        });
    }
}

async fn connection(
    handler: &Arc<RequestHandler>,
    mut socket: TcpStream,
    address: SocketAddr,
    slot: &mut ConnectionSlot,
    handshakes: &Handshakes,
    proxies: Option<&Proxies>,
    mut stopping: watch::Receiver<bool>,
) {
    let _open = Open::new(&handler.router.metrics.connections_tcp);
    let deadline = Instant::now() + handler.router.limits.handshake_timeout;
    let address = match proxies {
        None => address,
        Some(proxies) => {
            let Some(client) = client_address(&mut socket, address, proxies, deadline).await else {
                return;
            };
            slot.is_of(client.ip());
            client
        }
    };
    let activity = &slot.activity;
    let stream = match timeout_at(deadline, handshakes.shake(socket)).await {
        Ok(Ok(Some(stream))) => stream,
        Ok(Ok(None)) => return debug!(peer = %address, "HTTP: an ACME server has validated a name"),
        Ok(Err(error)) => return failed(handler, address, &error),
        Err(_) => return failed(handler, address, &"timed out"),
    };
    let certificates = stream.get_ref().1.peer_certificates();
    let identity = certificates.and_then(client_name);
    let has_lines = stream.get_ref().1.alpn_protocol() != Some(b"h2");
    let stream = Idle::new(stream, handler.router.limits.idle_timeout, activity.tunnels.clone());
    let stream = Lingering::new(stream, handler.router.limits.linger, stopping.clone());
    let stream = SmugglingFilter::new(stream, activity.tunnels.clone(), has_lines);
    let client = Arc::new(Client { address, identity, activity: activity.clone() });
    let service = service_fn(|request: Request<Incoming>| {
        let (handler, client) = (Arc::clone(handler), Arc::clone(&client));
        async move { Ok::<_, Infallible>(handler.handle(request, &client, false).await) }
    });
    let builder = builder(handler);
    let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = stopped(&mut stopping) => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        debug!(peer = %address, %error, "HTTP connection ended");
    }
}

fn failed(handler: &RequestHandler, address: SocketAddr, why: &dyn std::fmt::Display) {
    handler.router.metrics.failed_handshakes.fetch_add(1, Relaxed);
    info!(peer = %address, "HTTPS: TLS handshake failed: {why}");
}

fn builder(handler: &RequestHandler) -> auto::Builder<TokioExecutor> {
    let limits = &handler.router.limits;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(limits.http1_buffer_bytes());
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_concurrent_requests)
        .max_header_list_size(limits.max_header_bytes)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .enable_connect_protocol();
    builder
}
