//! The broker as a whole, and the caller.
//!
//! The overview is computed at most once per second, however many pages and programs request it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use fulmar_broker::{Account, TransportKind};

use crate::caller::{Onlooker, Role};
use crate::health::Health;
use crate::history::{self, Columns};
use crate::pass::Quality;
use crate::prelude::*;
use crate::server::ServerState;

/// Time for which an overview is used.
const FRESH: Duration = Duration::from_millis(900);

/// The caller of this request.
#[derive(Serialize, ToSchema)]
pub(crate) struct Me {
    /// The user; `local:UID` for a user of the server's machine.
    name: String,
    /// Role.
    role: Role,
}

/// A part of `[limits] memory`, and what clients make the broker keep in it.
#[derive(Serialize, ToSchema)]
struct Budget {
    /// `sessions`, `messages`, `output`, `aliases`, `input`, `logins` or `connections`.
    account: &'static str,
    /// Bytes used.
    used_bytes: usize,
    /// Size in bytes.
    limit_bytes: usize,
}

/// The broker's state.
#[derive(Serialize, ToSchema)]
pub(crate) struct Overview {
    /// The time of the broker's machine, in milliseconds since the Unix epoch.
    now_ms: i64,
    /// The program's version.
    version: &'static str,
    /// When the broker started, in milliseconds since the Unix epoch.
    started_ms: u64,
    /// Whether the server wants attention, and why.
    health: Health,
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
    /// Operations that are not yet durable.
    storage_backlog: usize,
    /// Why the broker cannot store messages now; absent if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    storage_problem: Option<String>,
    /// Budgets of memory.
    memory: Vec<Budget>,
    /// Quality of the clients' connections. With more than 2,000, this is the result of a pass over all of them, a part
    /// of which is made with each request.
    quality: Quality,
    /// The rest of the server.
    server: ServerState,
}

impl App {
    async fn overview(&self) -> Bytes {
        let mut state = self.overview.0.lock().await;
        if let Some((at, bytes)) = &state.last
            && at.elapsed() < FRESH
        {
            return bytes.clone();
        }
        state.pass.continue_with(&self.broker, self.now_ms()).await;
        // Strings and numbers: it has a JSON form.
        let bytes = serde_json::to_vec(&self.compute(state.pass.quality())).unwrap_or_default();
        let bytes = Bytes::from(bytes);
        state.last = Some((Instant::now(), bytes.clone()));
        bytes
    }

    /// Adds to the history, without end.
    pub(crate) async fn keep_history(&self) {
        let mut times = tokio::time::interval(history::EVERY);
        times.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            times.tick().await;
            self.history.lock().record(&self.broker, self.now_ms());
        }
    }

    fn compute(&self, quality: Quality) -> Overview {
        let broker = &self.broker;
        let (retained_messages, retained_bytes) = broker.retained_totals();
        let metrics = broker.metrics();
        let open = |kind: TransportKind| metrics.sum(|shard| &shard.connections[kind.index()]);
        let connections = TransportKind::ALL.into_iter().map(|kind| (kind.name(), open(kind)));
        let connections = connections.filter(|(_, open)| *open > 0).collect();
        let counters = metrics.totals().into_iter().filter(|(_, kind, ..)| *kind == "counter");
        let counters = counters.map(|(name, _, value)| (name, value)).collect();
        let memory = Account::ALL.into_iter().map(|account| {
            let (used_bytes, limit_bytes) = broker.memory_totals(account);
            Budget { account: account.name(), used_bytes, limit_bytes }
        });
        let (memory, server): (Vec<Budget>, _) = (memory.collect(), self.server.state());
        let storage_problem = broker.storage_problem();
        let of_memory = memory
            .iter()
            .map(|one| ("memory", one.account, one.used_bytes as u64, one.limit_bytes as u64));
        let of_disk = server
            .disk
            .iter()
            .filter_map(|one| Some(("disk", one.account, one.used_bytes, one.limit_bytes?)));
        let budgets = of_memory.chain(of_disk);
        let health = Health::new(
            self.now_ms().cast_unsigned(),
            storage_problem.as_deref(),
            &server,
            budgets,
        );
        Overview {
            now_ms: self.now_ms(),
            version: self.version,
            started_ms: broker.started().0,
            health,
            sessions: broker.sessions(),
            connections,
            subscriptions: broker.subscriptions(),
            counters,
            retained_messages,
            retained_bytes,
            storage_backlog: broker.storage().backlog(),
            storage_problem,
            memory,
            quality,
            server,
        }
    }
}

/// The caller's name and role
#[utoipa::path(get, path = "/me", responses((status = 200, body = Me)))]
pub(crate) async fn me(Viewer(_, caller): Viewer) -> Json<Me> {
    Json(Me { name: caller.name, role: caller.role })
}

/// The broker's state
///
/// At most a second old, and the same for all who request it.
#[utoipa::path(get, path = "/overview", responses((status = 200, body = Overview)))]
pub(crate) async fn show(Onlooker(app): Onlooker) -> Response {
    let body = app.overview().await;
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// The last hour
///
/// An entry every five seconds; none for the time before the broker started.
#[utoipa::path(get, path = "/history", responses((status = 200, body = Columns)))]
pub(crate) async fn show_history(Onlooker(app): Onlooker) -> Json<Columns> {
    Json(app.history.lock().columns())
}
