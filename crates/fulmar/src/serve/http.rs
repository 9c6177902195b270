//! The operator's HTTP port: Prometheus metrics and health.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use fulmar_broker::{Broker, TransportKind};
use tokio::sync::watch;

/// The running HTTP port, on a thread of its own.
pub(super) struct Http {
    bound: Vec<SocketAddr>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Http {
    pub(super) fn start(addresses: &[SocketAddr], broker: Arc<Broker>) -> anyhow::Result<Http> {
        let (stop, stopped) = watch::channel(false);
        if addresses.is_empty() {
            return Ok(Http { bound: Vec::new(), stop, thread: None });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut listeners = Vec::new();
        for address in addresses {
            let listener = runtime.block_on(tokio::net::TcpListener::bind(address));
            listeners.push(listener.with_context(|| {
                format!(
                    "cannot listen on {address} for http; set another one with [listeners] http"
                )
            })?);
        }
        let bound = listeners.iter().map(|listener| Ok(listener.local_addr()?));
        let bound = bound.collect::<anyhow::Result<_>>()?;
        let router = axum::Router::new()
            .route("/metrics", get(metrics))
            .route("/health/live", get(|| async { "ok\n" }))
            .route("/health/ready", get(ready))
            .with_state(broker);
        let serve = async move {
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
        };
        let thread = std::thread::Builder::new()
            .name("fulmar-http".into())
            .spawn(move || runtime.block_on(serve))?;
        Ok(Http { bound, stop, thread: Some(thread) })
    }

    pub(super) fn bound(&self) -> &[SocketAddr] {
        &self.bound
    }

    pub(super) fn stop(self) {
        // A scrape under way is not waited for: the process is about to end.
        self.stop.send_replace(true);
        drop(self.thread);
    }
}

async fn ready(State(broker): State<Arc<Broker>>) -> (StatusCode, String) {
    match broker.storage().failure() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(failure) => (StatusCode::SERVICE_UNAVAILABLE, format!("storage: {failure}\n")),
    }
}

/// Prometheus' text format.
async fn metrics(State(broker): State<Arc<Broker>>) -> String {
    render(&broker)
}

fn render(broker: &Broker) -> String {
    let mut text = String::new();
    let mut gauge = |name: &str, help: &str, value: u64| {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "# HELP fulmar_{name} {help}\n# TYPE fulmar_{name} gauge\nfulmar_{name} {value}"
        );
    };
    let (retained, retained_bytes) = broker.retained_totals();
    gauge("sessions", "Sessions, connected or not", broker.sessions() as u64);
    gauge("subscriptions", "Subscriptions of all sessions", broker.subscriptions() as u64);
    gauge("retained_messages", "Retained messages", retained as u64);
    gauge("retained_bytes", "Bytes of retained messages", retained_bytes as u64);
    gauge("storage_backlog", "Operations not yet durable", broker.storage().backlog() as u64);
    let metrics = broker.metrics();
    for (name, kind, help, value) in metrics.totals() {
        let _ = writeln!(
            text,
            "# HELP fulmar_{name}_total {help}\n# TYPE fulmar_{name}_total {kind}\n\
             fulmar_{name}_total {value}"
        );
    }
    let _ = writeln!(
        text,
        "# HELP fulmar_connections Connections open now\n# TYPE fulmar_connections gauge"
    );
    for kind in TransportKind::ALL {
        let open = metrics.sum(|shard| &shard.connections[kind.index()]);
        let _ = writeln!(text, "fulmar_connections{{transport=\"{kind}\"}} {open}");
    }
    text
}
