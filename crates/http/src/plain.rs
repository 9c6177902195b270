//! HTTP/1.1 without TLS for an operator's own port: the same checks and limits as the endpoint's, on a thread of its
//! own.
//!
//! Every client that reaches the port may send requests, so connections are few and short-lived, and idle ones make
//! room for new ones.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use fulmar_broker::LogLimiter;
use fulmar_transport::Clock;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{debug, error, warn};

use crate::bind::bind_tcp;
use crate::bodies::BodyBudget;
use crate::config::Limits;
use crate::connection_slots::{ConnectionSlot, ConnectionSlots};
use crate::endpoint::{MAX_BLOCKING_THREADS, StartError};
use crate::host_header;
use crate::idle::Idle;
use crate::limited_router::LimitedRouter;
use crate::metrics::Metrics;
use crate::request_smuggling::SmugglingFilter;
use crate::stop_signal::stopped;
use crate::tcp::{ACCEPT_PAUSE, ROOM_PAUSE};

/// The longest life of a connection, even with keep-alive; Prometheus connects again.
const LIFE: Duration = Duration::from_secs(60);

/// A running port; dropping it ends it at once, with the requests in progress.
#[derive(Debug)]
pub struct Plain {
    bound: Vec<SocketAddr>,
    stopping: watch::Sender<bool>,
    ending: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Plain {
    /// Binds `addresses` and serves `router` there; without addresses there is no thread.
    ///
    /// # Errors
    /// Names the address that cannot be bound.
    pub fn start(
        addresses: &[SocketAddr],
        limits: &Limits,
        bodies: &BodyBudget,
        router: axum::Router,
    ) -> Result<Plain, StartError> {
        let (stopping, stopped) = watch::channel(false);
        let (ending, ended) = watch::channel(false);
        if addresses.is_empty() {
            return Ok(Plain { bound: Vec::new(), stopping, ending, thread: None });
        }
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(MAX_BLOCKING_THREADS).build()?;
        let (mut listeners, mut bound) = (Vec::new(), Vec::new());
        for &address in addresses {
            let failed = |source| StartError::Bind { address, source };
            let listener = bind_tcp(address).map_err(failed)?;
            bound.push(listener.local_addr()?);
            let _entered = runtime.enter();
            listeners.push(TcpListener::from_std(listener)?);
        }
        let router = Arc::new(LimitedRouter {
            router,
            limits: limits.clone(),
            bodies: bodies.clone(),
            knows: None,
            metrics: Arc::new(Metrics::default()),
            clock: Clock::start(),
            refusals: Mutex::default(),
        });
        let serving = serve(router, listeners, stopped, ended);
        let thread = std::thread::Builder::new().name("fulmar-http".into());
        let thread = thread.spawn(move || runtime.block_on(serving))?;
        Ok(Plain { bound, stopping, ending, thread: Some(thread) })
    }

    /// Where it is bound.
    pub fn bound(&self) -> &[SocketAddr] {
        &self.bound
    }

    /// Accepts no more connections; requests in progress continue.
    pub fn stop_accepting(&self) {
        self.stopping.send_replace(true);
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.stopping.send_replace(true);
        self.ending.send_replace(true);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            error!("the HTTP port's thread panicked");
        }
    }
}

async fn serve(
    router: Arc<LimitedRouter>,
    listeners: Vec<TcpListener>,
    stopping: watch::Receiver<bool>,
    mut ended: watch::Receiver<bool>,
) {
    let mut tasks = JoinSet::new();
    for listener in listeners {
        tasks.spawn(accept(Arc::clone(&router), listener, stopping.clone()));
    }
    // The runtime's end cancels what is left then.
    stopped(&mut ended).await;
}

/// Accepts until `stopping`, then waits for the open connections.
async fn accept(
    router: Arc<LimitedRouter>,
    listener: TcpListener,
    stopping: watch::Receiver<bool>,
) {
    let slots = ConnectionSlots::new(router.limits.max_connections);
    let (mut stop, mut log_limiter) = (stopping.clone(), LogLimiter::default());
    let mut open = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = open.join_next(), if !open.is_empty() => continue,
            () = stopped(&mut stop) => break,
        };
        let (socket, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(times) = log_limiter.occurred(router.clock.now()) {
                    warn!(%error, times, "HTTP port: cannot accept");
                }
                let pause = if slots.shed() { ROOM_PAUSE } else { ACCEPT_PAUSE };
                tokio::time::sleep(pause).await;
                continue;
            }
        };
        match slots.acquire(address.ip()) {
            Some((slot, made_room)) => {
                router.metrics.shed.fetch_add(made_room.into(), Relaxed);
                let (router, stopping) = (Arc::clone(&router), stopping.clone());
                open.spawn(connection(router, socket, address, slot, stopping));
            }
            None => debug!(peer = %address, "HTTP port: refused: too many connections"),
        }
    }
    drop(listener);
    while open.join_next().await.is_some() {}
}

async fn connection(
    router: Arc<LimitedRouter>,
    socket: TcpStream,
    address: SocketAddr,
    slot: ConnectionSlot,
    mut stopping: watch::Receiver<bool>,
) {
    let (activity, limits) = (&slot.activity, &router.limits);
    let stream = Idle::new(socket, limits.idle_timeout, activity.tunnels.clone());
    let stream = SmugglingFilter::new(stream, activity.tunnels.clone(), true);
    let service = service_fn(|request: Request<Incoming>| {
        let router = &router;
        async move {
            let response = match host_header::refuse_ambiguous(&request) {
                Some(response) => response,
                None => router.call(request, address, activity).await,
            };
            Ok::<_, Infallible>(response)
        }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(limits.http1_buffer_bytes())
        .serve_connection(TokioIo::new(stream), service);
    let (mut serving, life) = (std::pin::pin!(serving), tokio::time::sleep(LIFE));
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = life => return debug!(peer = %address, "HTTP port: connection reached its age limit"),
        () = activity.shed() => return debug!(peer = %address, "HTTP port: closed to make room"),
        () = stopped(&mut stopping) => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        debug!(peer = %address, %error, "HTTP port: a connection ended");
    }
}
