//! The operator's HTTP port: `/metrics` for Prometheus, `/health/live` and `/health/ready`, and
//! `/connections` with every client; `/` has links to them.
//!
//! It is not for users: it has no authentication, and listens on loopback by default. Because any client that can reach
//! it gets answers, connections are few and short-lived (`fulmar_http::Plain`).

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use fulmar_broker::Broker;
use fulmar_http::{AnswerSpace, BodyBudget, Plain};
use fulmar_text::metrics::Metrics;
use fulmar_transport::Handoff;

use super::http_publish::HttpPublisher;
#[cfg(feature = "cluster")]
use fulmar_part::cluster_status::ClusterStatus;
use fulmar_part::where_to_change;
use fulmar_part::{Core, Sources};
use fulmar_part::{Health, Upstreams};

mod connections;
pub(super) mod hosts;
mod metrics;

pub(super) use metrics::core as core_metrics;

/// Prometheus' text format.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The page at `/`.
const PAGES: &str = "\
/metrics             statistics for Prometheus
/connections         all clients as JSON; /connections/CLIENT for one
/health/live         whether the process runs and its workers serve clients
/health/ready        whether the broker can store messages
/health/upstream     what upstream brokers refuse, if there are any
/health/sinks        whether the targets of sinks accept messages, if there are any
/publish/TOPIC       POST publishes the body
";

/// Connections at once to one address.
const CONNECTIONS: usize = 256;

/// Time in which a worker that works ends a turn, also on a machine that is busy with other things. Less than the 5 s for
/// which `fulmar health` waits.
const TURN_PATIENCE: Duration = Duration::from_secs(4);

/// Shared state of the operators' port.
#[derive(Clone)]
struct Operated {
    broker: Arc<Broker>,
    /// `None` where there is no `[upstream]`.
    gateway: Option<Arc<dyn Upstreams>>,
    /// `None` where there are no `[sinks]`.
    sinks: Option<Health>,
    /// Memory for answers to clients of both APIs, and of `/connections`.
    answers: AnswerSpace,
    workers: Handoff,
    sources: Sources,
}

/// `/metrics` of a node that stands by.
#[cfg(feature = "cluster")]
pub(super) fn standby_metrics(cluster: &ClusterStatus) -> impl IntoResponse + use<> {
    page(&metrics::standby(cluster))
}

/// Binds the `http` addresses and answers there.
pub(super) fn start(core: &Core, bodies: &BodyBudget) -> anyhow::Result<Plain> {
    let config = &core.config;
    let addresses = &config.listeners.http;
    let publisher = HttpPublisher::new(core.handoff.clone(), config, "http", addresses);
    let state = Operated {
        broker: Arc::clone(&core.broker),
        gateway: core.offers.gateway.clone(),
        sinks: core.offers.sinks.clone(),
        answers: core.answers.clone(),
        workers: core.handoff.clone(),
        sources: core.sources.clone(),
    };
    let router = axum::Router::new()
        .route("/", get(|| async { PAGES }))
        .route("/metrics", get(metrics_page))
        .route("/connections", get(connections::list))
        .route("/connections/{client}", get(connections::show_one))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .route("/health/upstream", get(upstream))
        .route("/health/sinks", get(sinks))
        .with_state(state)
        .merge(publisher.router())
        .fallback(|| async { (StatusCode::NOT_FOUND, "no such page; / lists them\n") });
    let limits = fulmar_http::Limits {
        max_connections: CONNECTIONS,
        max_body_bytes: config.limits.max_packet_bytes,
        ..config.http.limits(&config.limits, config.memory())
    };
    let router = hosts::only_known(router, config);
    let started = Plain::start(addresses, &limits, bodies, router);
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
    answer("[upstream]", state.gateway.as_ref().map(|gateway| gateway.health()))
}

/// Whether the targets of sinks accept messages.
async fn sinks(State(state): State<Operated>) -> (StatusCode, String) {
    answer("[sinks]", state.sinks.as_ref().map(|health| health()))
}

fn answer(section: &str, health: Option<(bool, String)>) -> (StatusCode, String) {
    match health {
        None => (StatusCode::NOT_FOUND, format!("there is no {section}\n")),
        Some((true, text)) => (StatusCode::OK, text),
        Some((false, text)) => (StatusCode::SERVICE_UNAVAILABLE, text),
    }
}

async fn metrics_page(State(state): State<Operated>) -> impl IntoResponse {
    page(&state.sources.collect())
}

fn page(metrics: &Metrics) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics.prometheus())
}
