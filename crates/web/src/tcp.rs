//! HTTP/1.1 and HTTP/2 over TLS over TCP, by hyper.
//!
//! A connection is a task; above the limit new ones are closed at once, so that those waiting in the
//! kernel do not wait for nothing.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use fulmar_broker::Recurring;
use fulmar_transport::tls::client_name;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tracing::{debug, warn};

use crate::answer::{Client, Site};
use crate::endpoint::stopped;
use crate::handshake::Handshakes;
use crate::idle::{Idle, Tunnels};
use crate::metrics::Open;
use crate::rest::Lingering;

/// Rest after a failed accept, as when file descriptors are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Least size of the buffer for an HTTP/1.1 request's headers that hyper takes, in bytes.
const MIN_BUFFER_BYTES: usize = 8 * 1024;

/// Accepts until `stopping`; connections end by themselves soon after.
pub(crate) async fn serve(
    site: Arc<Site>,
    listener: TcpListener,
    handshakes: Handshakes,
    stopping: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(site.limits.max_connections));
    let mut stop = stopping.clone();
    let mut trouble = Recurring::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stop) => return,
        };
        let (socket, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(times) = trouble.again(site.clock.now()) {
                    warn!(%error, times, "HTTP: cannot accept connections; trying again shortly");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            site.metrics.refused.fetch_add(1, Relaxed);
            debug!(peer = %address, "HTTP: refused: too many connections");
            continue;
        };
        let (site, handshakes, stopping) =
            (Arc::clone(&site), handshakes.clone(), stopping.clone());
        tokio::spawn(async move {
            connection(&site, socket, address, &handshakes, stopping).await;
            drop(place);
        });
    }
}

async fn connection(
    site: &Arc<Site>,
    socket: TcpStream,
    address: SocketAddr,
    handshakes: &Handshakes,
    mut stopping: watch::Receiver<bool>,
) {
    let _open = Open::new(&site.metrics.connections_tcp);
    let handshake = tokio::time::timeout(site.limits.handshake_timeout, handshakes.shake(socket));
    let stream = match handshake.await {
        Ok(Ok(Some(stream))) => stream,
        Ok(Ok(None)) => return debug!(peer = %address, "HTTP: an ACME server has validated a name"),
        Ok(Err(error)) => return failed(site, address, &error),
        Err(_) => return failed(site, address, &"timed out"),
    };
    let certificates = stream.get_ref().1.peer_certificates();
    let identity = certificates.and_then(<[_]>::first).and_then(client_name);
    let tunnels = Tunnels::default();
    let stream = Idle::new(stream, site.limits.idle_timeout, tunnels.clone());
    let stream = Lingering::new(stream, site.limits.linger, stopping.clone());
    let client = Arc::new(Client { address, identity, tunnels });
    let service = service_fn(|request: Request<Incoming>| {
        let (site, client) = (Arc::clone(site), Arc::clone(&client));
        async move { Ok::<_, Infallible>(site.answer(request, &client, false).await) }
    });
    let builder = builder(site);
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

fn failed(site: &Site, address: SocketAddr, why: &dyn std::fmt::Display) {
    site.metrics.failed_handshakes.fetch_add(1, Relaxed);
    debug!(peer = %address, "HTTP: TLS failed: {why}");
}

fn builder(site: &Site) -> auto::Builder<TokioExecutor> {
    let limits = &site.limits;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size((limits.max_header_bytes as usize).max(MIN_BUFFER_BYTES));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_concurrent_requests)
        .max_header_list_size(limits.max_header_bytes)
        .enable_connect_protocol();
    builder
}
