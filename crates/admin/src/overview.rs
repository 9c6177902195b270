//! The broker as a whole, and the caller.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use fulmar_broker::TransportKind;
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::caller::{Role, Viewer};

/// The caller of this request.
#[derive(Serialize, ToSchema)]
pub(crate) struct Me {
    /// The user; `local:UID` for a user of the server's machine.
    name: String,
    /// Its role.
    role: Role,
}

/// The broker's state.
#[derive(Serialize, ToSchema)]
pub(crate) struct Overview {
    /// The program's version.
    version: &'static str,
    /// When the broker started, in milliseconds since the Unix epoch.
    started_ms: u64,
    /// Sessions, connected or not.
    sessions: usize,
    /// Connections open now, per transport.
    connections: BTreeMap<&'static str, u64>,
    /// Subscriptions.
    subscriptions: usize,
    /// Counters since the broker started, with the names of the metrics: their differences are rates.
    counters: BTreeMap<&'static str, u64>,
    /// Retained messages.
    retained_messages: usize,
    /// Bytes that retained messages count for.
    retained_bytes: usize,
    /// Why the broker cannot store messages now; absent if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    storage_problem: Option<String>,
}

/// The caller's name and role
#[utoipa::path(get, path = "/me", responses((status = 200, body = Me)))]
pub(crate) async fn me(caller: Viewer) -> Json<Me> {
    Json(Me { name: caller.name, role: caller.role })
}

/// The broker's state
#[utoipa::path(get, path = "/overview", responses((status = 200, body = Overview)))]
pub(crate) async fn show(State(app): State<App>, _: Viewer) -> Json<Overview> {
    let broker = &app.broker;
    let (retained_messages, retained_bytes) = broker.retained_totals();
    let metrics = broker.metrics();
    let open = |kind: TransportKind| metrics.sum(|shard| &shard.connections[kind.index()]);
    let connections = TransportKind::ALL.into_iter().map(|kind| (kind.name(), open(kind)));
    let connections = connections.filter(|(_, open)| *open > 0).collect();
    let counters = metrics.totals().into_iter().filter(|(_, kind, ..)| *kind == "counter");
    let counters = counters.map(|(name, _, _, value)| (name, value)).collect();
    Json(Overview {
        version: app.version,
        started_ms: broker.started().0,
        sessions: broker.sessions(),
        connections,
        subscriptions: broker.subscriptions(),
        counters,
        retained_messages,
        retained_bytes,
        storage_problem: broker.storage_problem(),
    })
}
