//! The operator's HTTP port: `/metrics` for Prometheus, `/health/live` and `/health/ready`, and
//! `/connections` with the state of QUIC clients' paths.
//!
//! Not for users: it has no authentication, which is why it listens on loopback unless told
//! otherwise. Whoever can reach it may ask, so connections are few and short-lived.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use fulmar_broker::Broker;
use fulmar_platform::Platform;
use fulmar_store::SqliteStorage;
use fulmar_transport::tickets::Tickets;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::listeners::where_to_change;
use super::mqttsn;
use super::publish::Door;
use super::upstream::Figures;

mod bounded;
mod connections;
mod metrics;

use bounded::Bounded;

/// What the port tells of.
#[derive(Clone)]
pub(super) struct Operated {
    pub(super) broker: Arc<Broker>,
    /// `None` when storage is off.
    pub(super) store: Option<Arc<SqliteStorage>>,
    pub(super) tickets: Arc<Tickets>,
    pub(super) web: Arc<fulmar_web::Metrics>,
    /// `None` where there is no `[upstream]`.
    pub(super) gateway: Option<Arc<Figures>>,
    /// `None` where there is no `mqtt_sn` listener.
    pub(super) mqtt_sn: Option<Arc<Mutex<mqttsn::Figures>>>,
    pub(super) door: Door,
    /// `None` when it is off.
    pub(super) platform: Option<Platform>,
}

/// The running HTTP port, on a thread of its own.
pub(super) struct Http {
    bound: Vec<SocketAddr>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Http {
    /// Binds `addresses` and answers there; with none there is no thread.
    pub(super) fn start(addresses: &[SocketAddr], state: Operated) -> anyhow::Result<Http> {
        let (stop, stopped) = watch::channel(false);
        if addresses.is_empty() {
            return Ok(Http { bound: Vec::new(), stop, thread: None });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (mut listeners, mut bound) = (Vec::new(), Vec::new());
        for address in addresses {
            let listener = runtime.block_on(tokio::net::TcpListener::bind(address));
            let listener = listener
                .with_context(|| format!("cannot listen on {address}"))
                .with_context(|| where_to_change("http"))?;
            bound.push(listener.local_addr()?);
            listeners.push(Bounded::new(listener));
        }
        let serve = serve(listeners, state, stopped);
        let thread = std::thread::Builder::new()
            .name("fulmar-http".into())
            .spawn(move || runtime.block_on(serve))?;
        Ok(Http { bound, stop, thread: Some(thread) })
    }

    /// Where it is bound.
    pub(super) fn bound(&self) -> &[SocketAddr] {
        &self.bound
    }

    /// Accepts no more, so that a health check sees that this broker is going.
    pub(super) fn stop(self) {
        // A scrape under way is not waited for: the process is about to end.
        self.stop.send_replace(true);
        drop(self.thread);
    }
}

async fn serve(listeners: Vec<Bounded>, state: Operated, stopped: watch::Receiver<bool>) {
    let door = state.door.clone().router();
    let router = axum::Router::new()
        .route("/metrics", get(metrics))
        .route("/connections", get(connections::list))
        .route("/connections/{client}", get(connections::one))
        .route("/health/live", get(|| async { "ok\n" }))
        .route("/health/ready", get(ready))
        .with_state(state)
        .merge(door);
    let mut tasks = tokio::task::JoinSet::new();
    for listener in listeners {
        let mut stopped = stopped.clone();
        let until = async move { drop(stopped.wait_for(|stop| *stop).await) };
        let server = axum::serve(listener, router.clone()).with_graceful_shutdown(until);
        tasks.spawn(async move { server.await });
    }
    while let Some(result) = tasks.join_next().await {
        if let Ok(Err(error)) = result {
            tracing::error!("HTTP port: {error}");
        }
    }
}

/// Whether the broker keeps its promises: with a disk that fails it cannot.
async fn ready(State(state): State<Operated>) -> (StatusCode, String) {
    match state.broker.storage().failure() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(failure) => (StatusCode::SERVICE_UNAVAILABLE, format!("storage: {failure}\n")),
    }
}

async fn metrics(State(state): State<Operated>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::render(&state))
}
