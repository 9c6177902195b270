//! Sessions, connected or not: a list, one with its subscriptions and flows, and deleting it.

use std::time::Duration;

use fulmar_broker::{NotDeleted, SessionSummary};

use crate::page::{self, Slice};
use crate::prelude::*;

/// Subscriptions of one session that are shown.
const MAX_SUBSCRIPTIONS: usize = 1000;
/// Interval and number of checks whether a session has ended.
const CHECK: Duration = Duration::from_millis(10);
const CHECKS: u32 = 500;

/// Filter of sessions.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SessionQuery {
    /// Only sessions of this user; empty for anonymous clients.
    user: Option<String>,
    /// Only sessions whose client is connected, or is not.
    connected: Option<bool>,
    /// Only sessions with at least this number of messages in their queues.
    queued: Option<usize>,
}

impl SessionQuery {
    fn includes(&self, session: &SessionSummary) -> bool {
        let user = session.user.as_deref().unwrap_or_default();
        self.user.as_ref().is_none_or(|wanted| wanted == user)
            && self.connected.is_none_or(|wanted| wanted == session.connected)
            && self.queued.is_none_or(|least| session.queued_messages >= least)
    }
}

/// A page of sessions, by client identifier.
#[derive(Serialize, ToSchema)]
pub(crate) struct Sessions {
    sessions: Vec<Session>,
    /// The next page's `cursor`; absent on the last page. A page may have fewer sessions than `limit` and a next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

fulmar_text::mirrors! {
    /// A session.
    #[derive(Serialize, ToSchema)]
    pub(crate) struct Session (from: SessionSummary) {
        /// The client identifier.
        client: String = from.client.into(),
        /// The owner; absent for an anonymous client.
        #[serde(skip_serializing_if = "Option::is_none")]
        user: Option<String> = from.user.map(Into::into),
        /// Whether its client is connected.
        connected: bool = from.connected,
        /// Whether it is stored.
        durable: bool = from.durable,
        /// Whether it is the gateway's or the platform's, and cannot be deleted.
        internal: bool = from.internal,
        /// Version of MQTT: 4 (3.1.1) or 5.
        version: u8 = from.version,
        /// Seconds that it outlives its connection; 4294967295 for ever.
        expiry_interval_s: u32 = from.expiry_interval_s,
        /// When it expires, in milliseconds since the Unix epoch; absent while its client is connected.
        #[serde(skip_serializing_if = "Option::is_none")]
        expires_ms: Option<u64> = from.expires.map(|at| at.0),
        /// Subscriptions.
        subscriptions: usize = from.subscriptions,
        /// Messages in its queues.
        queued_messages: usize = from.queued_messages,
        /// Bytes of those.
        queued_bytes: usize = from.queued_bytes,
        /// Messages sent and not yet acknowledged.
        in_flight: usize = from.in_flight,
        /// The topic of its will.
        #[serde(skip_serializing_if = "Option::is_none")]
        will_topic: Option<String> = from.will_topic.map(Into::into),
    }
}

/// A session with its subscriptions and flows.
#[derive(Serialize, ToSchema)]
pub(crate) struct Details {
    #[serde(flatten)]
    session: Session,
    /// Subscriptions by filter; at most 1,000, and 256 KiB of them.
    filters: Vec<Subscription>,
    /// Flows.
    flows: Vec<Flow>,
}

/// A subscription.
#[derive(Serialize, ToSchema)]
struct Subscription {
    /// The topic filter, with `$share` if it is shared.
    filter: String,
    /// The maximum QoS.
    qos: u8,
    /// Whether the client gets no publications of its own.
    no_local: bool,
    /// The flow on which it delivers; 0 is the control flow.
    flow: u64,
}

/// A flow: the control stream's, or a data stream's.
#[derive(Serialize, ToSchema)]
struct Flow {
    /// Number; 0 is the control flow.
    flow: u64,
    /// Messages in its queue.
    queued_messages: usize,
    /// Messages sent and not yet acknowledged.
    in_flight: usize,
}

/// Sessions, connected or not
#[utoipa::path(get, path = "/sessions", params(PageQuery, SessionQuery), responses((status = 200, body = Sessions)))]
pub(crate) async fn list(
    Viewer(app, _): Viewer,
    Paged { page, wanted }: Paged<SessionQuery>,
) -> Result<Json<Sessions>> {
    let cursor = |session: &SessionSummary| session.client.to_string();
    let slice = |after: &String| Slice::from_items(app.broker.session_list(after, SLICE), cursor);
    let show = |session: SessionSummary| wanted.includes(&session).then(|| Session::from(session));
    let from = page.cursor()?.unwrap_or_default();
    let (sessions, next) = page::fill(page.limit()?, from, slice, cursor, show).await;
    Ok(Json(Sessions { sessions, next }))
}

fn unknown(client: &str) -> Problem {
    Problem::not_found(format!(
        "there is no session of a client {client:?}; GET /sessions, or fulmar ctl sessions list, lists them"
    ))
}

/// One session with its subscriptions and flows
#[utoipa::path(get, path = "/sessions/{client}", params(("client" = String, Path, description = "Client identifier, percent-encoded")), responses((status = 200, body = Details)))]
pub(crate) async fn show(Viewer(app, _): Viewer, Name(client): Name) -> Result<Json<Details>> {
    let found = app.broker.session_details(&client, MAX_SUBSCRIPTIONS);
    let found = found.ok_or_else(|| unknown(&client))?;
    let filters = found.subscriptions.into_iter().map(|own| Subscription {
        filter: own.filter.into(),
        qos: own.qos,
        no_local: own.no_local,
        flow: own.flow,
    });
    let flows = found.flows.into_iter().map(|flow| Flow {
        flow: flow.flow,
        queued_messages: flow.queued_messages,
        in_flight: flow.in_flight,
    });
    Ok(Json(Details {
        session: Session::from(found.summary),
        filters: page::fitting(filters),
        flows: flows.collect(),
    }))
}

/// Delete a session
///
/// As if it had expired: its client is disconnected (0x98), its will is published, and its queue is lost.
#[utoipa::path(delete, path = "/sessions/{client}", params(("client" = String, Path, description = "Client identifier, percent-encoded")), responses((status = 204, description = "It has ended")))]
pub(crate) async fn delete(
    Operator(app, caller): Operator,
    Name(client): Name,
) -> Result<StatusCode> {
    let found = app.broker.session_details(&client, 0).ok_or_else(|| unknown(&client))?.summary;
    let detail = json!({ "user": found.user, "queued_messages": found.queued_messages, "subscriptions": found.subscriptions });
    let change = Change { caller, action: "session.delete", object: client.clone(), detail };
    app.change(change, end(&app, &client)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn end(app: &App, client: &str) -> Result<()> {
    let number = app.broker.delete_session(client).map_err(|not| match not {
        NotDeleted::Unknown => unknown(client),
        NotDeleted::Internal => Problem::conflict(
            "this session belongs to the gateway, the platform or a sink, which would lose messages: remove that from \
             the configuration and restart the server first",
        ),
    })?;
    for _ in 0..CHECKS {
        if !app.broker.has_session(client, number) {
            return Ok(());
        }
        tokio::time::sleep(CHECK).await;
    }
    Err(Problem::unavailable("the session has not ended yet: try again"))
}
