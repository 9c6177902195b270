//! The operator's HTTP port: `/metrics` for Prometheus, `/health/live` and `/health/ready`, and
//! `/connections` with every client; `/` has links to them.
//!
//! It is not for users: it has no authentication, and listens on loopback by default. Because any client that can reach
//! it gets answers, connections are few and short-lived (`fulmar_http::Plain`).

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use anyhow::Context;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use fulmar_broker::Broker;
use fulmar_http::{AnswerSpace, BodyBudget, Plain};
use fulmar_store::SqliteStorage;
use fulmar_transport::Handoff;
use fulmar_transport::proxy_protocol::Proxies;
use fulmar_transport::tickets::Tickets;
use parking_lot::Mutex;

use super::auth_http;
use super::cluster_status::ClusterStatus;
use super::coap;
use super::gateway::GatewayStatus;
use super::http_publish::HttpPublisher;
use super::listeners::where_to_change;
use super::mqttsn;
use super::otlp;
use super::platform::Platform;
use crate::config::Config;

mod connections;
mod disk;
pub(super) mod hosts;
mod machine;
mod metrics;

pub(super) use disk::DiskUse;
pub(super) use machine::Machine;

/// The page at `/`.
const PAGES: &str = "\
/metrics             statistics for Prometheus
/connections         all clients as JSON; /connections/CLIENT for one
/health/live         whether the process runs and its workers serve clients
/health/ready        whether the broker can store messages
/health/upstream     what upstream brokers refuse, if there are any
/publish/TOPIC       POST publishes the body
";

/// Connections at once to one address.
const CONNECTIONS: usize = 256;

/// Time in which a worker that works ends a turn, also on a machine that is busy with other things. Less than the 5 s for
/// which `fulmar health` waits.
const TURN_PATIENCE: Duration = Duration::from_secs(4);

/// The parts of the program whose state the port shows.
#[derive(Clone)]
pub(super) struct Operated {
    pub(super) broker: Arc<Broker>,
    /// `None` when storage is off.
    pub(super) store: Option<Arc<SqliteStorage>>,
    pub(super) tickets: Arc<Tickets>,
    pub(super) web: Arc<fulmar_http::Metrics>,
    pub(super) proxies: Arc<Proxies>,
    /// Seconds since the Unix epoch; 0 without revocation lists.
    pub(super) crl_next_update: Arc<AtomicI64>,
    pub(super) auth_http: Arc<auth_http::Counts>,
    /// `None` where there is no `[upstream]`.
    pub(super) gateway: Option<GatewayStatus>,
    /// `None` where there is no `coap` or `coaps` listener.
    pub(super) coap: Option<Arc<coap::Statistics>>,
    /// `None` where there is no `mqtt_sn` listener.
    pub(super) mqtt_sn: Option<Arc<Mutex<mqttsn::Statistics>>>,
    pub(super) publisher: HttpPublisher,
    /// Of clients of both APIs, and of `/connections`.
    pub(super) answers: AnswerSpace,
    /// `None` when it is off.
    pub(super) platform: Option<Platform>,
    pub(super) machine: Machine,
    pub(super) disk: DiskUse,
    /// `None` where there is no `[otlp] endpoint`.
    pub(super) otlp: Option<Arc<otlp::Counts>>,
    /// `None` where there is no `[cluster]`.
    pub(super) cluster: Option<Arc<ClusterStatus>>,
    pub(super) workers: Handoff,
}

/// `/metrics` of a node that stands by.
#[cfg(feature = "cluster")]
pub(super) fn standby_metrics(cluster: &ClusterStatus) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::render_standby(cluster))
}

impl Operated {
    /// What renders the page of `/metrics`, for others than this port.
    pub(super) fn render(&self) -> impl Fn() -> String + Send + 'static {
        let state = self.clone();
        move || metrics::render(&state)
    }
}

/// Binds the `http` addresses and answers there.
///
/// # Errors
/// An address cannot be bound; the error names it.
pub(super) fn start(
    config: &Config,
    bodies: &BodyBudget,
    state: Operated,
) -> anyhow::Result<Plain> {
    let publisher = state.publisher.clone().router();
    let router = axum::Router::new()
        .route("/", get(|| async { PAGES }))
        .route("/metrics", get(metrics))
        .route("/connections", get(connections::list))
        .route("/connections/{client}", get(connections::one))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .route("/health/upstream", get(upstream))
        .with_state(state)
        .merge(publisher)
        .fallback(|| async { (StatusCode::NOT_FOUND, "no such page; / lists them\n") });
    let limits = fulmar_http::Limits {
        max_connections: CONNECTIONS,
        max_body_bytes: config.limits.max_packet_bytes,
        ..config.http.limits(&config.limits, config.memory())
    };
    let router = hosts::only_known(router, config);
    let started = Plain::start(&config.listeners.http, &limits, bodies, router);
    started.with_context(|| where_to_change("http"))
}

/// Asks each worker: one that waits for something serves no client, though the process runs.
async fn live(State(state): State<Operated>) -> (StatusCode, String) {
    let silent = tokio::task::spawn_blocking(move || state.workers.silent_worker(TURN_PATIENCE));
    match silent.await {
        Ok(None) => (StatusCode::OK, "ok\n".to_owned()),
        Ok(Some(worker)) => {
            let text = format!("worker {worker} does not answer\n");
            (StatusCode::SERVICE_UNAVAILABLE, text)
        }
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

/// Whether the broker can store messages: not if the disk fails.
async fn ready(State(state): State<Operated>) -> (StatusCode, String) {
    match state.broker.storage_problem() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(failure) => (StatusCode::SERVICE_UNAVAILABLE, format!("storage: {failure}\n")),
    }
}

/// Whether the upstream brokers accept all of the gateway's messages.
async fn upstream(State(state): State<Operated>) -> (StatusCode, String) {
    let Some(gateway) = &state.gateway else {
        return (StatusCode::NOT_FOUND, "there is no [upstream]\n".to_owned());
    };
    match gateway.health() {
        (true, text) => (StatusCode::OK, text),
        (false, text) => (StatusCode::SERVICE_UNAVAILABLE, text),
    }
}

async fn metrics(State(state): State<Operated>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::render(&state))
}
