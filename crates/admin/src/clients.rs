//! Connected clients: a list with statistics of their paths, one client, and disconnecting it.

use fulmar_broker::{ClientConnection, CloseOrder, TransportStats, Waiting};

use crate::page::{self, Slice};
use crate::pass::loss;
use crate::prelude::*;
use crate::store::now_ms;

/// Filter of clients.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ClientQuery {
    /// Only clients whose identifier begins with this.
    client: Option<String>,
    /// Only clients of this user; empty for anonymous clients.
    user: Option<String>,
    /// Only clients with this transport, such as `quic`.
    transport: Option<String>,
    /// Only clients for which at least this number of messages are queued.
    queued: Option<usize>,
}

impl ClientQuery {
    fn includes(&self, client: &ClientConnection) -> bool {
        let user = client.user.as_deref().unwrap_or_default();
        self.client.as_ref().is_none_or(|start| client.client.starts_with(start.as_str()))
            && self.user.as_ref().is_none_or(|wanted| wanted == user)
            && self.transport.as_ref().is_none_or(|wanted| wanted == client.transport)
            && self.queued.is_none_or(|least| client.queued_messages >= least)
    }
}

/// A page of clients, in the order in which their sessions began.
#[derive(Serialize, ToSchema)]
pub(crate) struct Clients {
    clients: Vec<Client>,
    /// The next page's `cursor`; absent on the last page. A page may have fewer clients than `limit` and a next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
}

fulmar_text::mirrors! {
    /// A connected client.
    #[derive(Serialize, ToSchema)]
    pub(crate) struct Client (from: ClientConnection) {
        /// The client identifier.
        client: String = from.client.into(),
        /// The user; absent for an anonymous client.
        #[serde(skip_serializing_if = "Option::is_none")]
        user: Option<String> = from.user.map(Into::into),
        /// Present address.
        #[schema(example = "192.0.2.7:50123")]
        address: String = from.address.to_string(),
        /// `tcp`, `tls`, `ws`, `wss`, `quic`, `webtransport`, `coap`, `coaps` or `mqtt-sn`.
        transport: &'static str = from.transport,
        /// When it connected, in milliseconds since the Unix epoch.
        since_ms: u64 = from.since_ms,
        /// Subscriptions.
        subscriptions: usize = from.subscriptions,
        /// Messages in its queue and in flight.
        queued_messages: usize = from.queued_messages,
        /// Bytes of those in its queue.
        queued_bytes: usize = from.queued_bytes,
        /// The wait while the broker reads nothing from it; absent otherwise.
        #[serde(skip_serializing_if = "Option::is_none")]
        waiting: Option<Wait> = from.waiting.map(Wait::from),
        /// Statistics of its path; only over QUIC.
        #[serde(skip_serializing_if = "Option::is_none")]
        path: Option<PathStatistics> = from.stats.map(PathStatistics::from),
    }

    /// A client's wait.
    #[derive(Serialize, ToSchema)]
    struct Wait (wait: Waiting) {
        /// `rate`, `window`, `storage`, `stall`, `internal_session`, `fan_out` or `large_messages`.
        cause: &'static str = wait.cause.name(),
        /// The cause in words.
        description: &'static str = wait.cause.description(),
        /// When it began, in milliseconds since the Unix epoch.
        since_ms: u64 = wait.since_ms,
        /// The age in milliseconds.
        age_ms: u64 = now_ms().cast_unsigned().saturating_sub(wait.since_ms),
    }

    /// Statistics of a client's path. Counts are since it connected.
    #[derive(Serialize, ToSchema)]
    struct PathStatistics (stats: TransportStats) {
        /// When this was measured, in milliseconds since the Unix epoch.
        measured_ms: u64 = stats.measured_ms,
        /// Smoothed round-trip time in microseconds.
        rtt_us: u64 = stats.rtt_us,
        /// Share of sent packets that were lost, 0 to 1.
        loss: f64 = loss(&stats),
        /// Packets sent.
        sent_packets: u64 = stats.sent_packets,
        /// Packets lost.
        lost_packets: u64 = stats.lost_packets,
        /// Bytes sent.
        sent_bytes: u64 = stats.sent_bytes,
        /// Bytes received.
        received_bytes: u64 = stats.received_bytes,
        /// Datagrams sent twice because the path loses packets.
        copies: u64 = stats.copies,
        /// Congestion window in bytes.
        cwnd_bytes: u64 = stats.cwnd_bytes,
        /// Largest datagram that the path carries, in bytes.
        mtu_bytes: u16 = stats.mtu_bytes,
        /// Times the congestion window was reduced.
        congestion_events: u64 = stats.congestion_events,
        /// Streams open now.
        streams: u32 = stats.streams,
        /// Times the client's address changed.
        migrations: u32 = stats.migrations,
        /// Whether it resumed with 0-RTT data.
        early_data: bool = stats.early_data,
    }
}

/// Connected clients
#[utoipa::path(get, path = "/clients", params(PageQuery, ClientQuery), responses((status = 200, body = Clients)))]
pub(crate) async fn list(
    Viewer(app, _): Viewer,
    Paged { page, wanted }: Paged<ClientQuery>,
) -> Result<Json<Clients>> {
    let slice =
        |after: &u64| Slice::from_items(app.broker.connections(*after, SLICE), |one| one.place);
    let show = |client: ClientConnection| wanted.includes(&client).then(|| Client::from(client));
    let from = page.cursor()?.unwrap_or(0);
    let (clients, next) = page::fill(page.limit()?, from, slice, |one| one.place, show).await;
    Ok(Json(Clients { clients, next }))
}

fn not_connected(client: &str) -> Problem {
    Problem::not_found(format!(
        "no client {client:?} is connected; GET /clients, or fulmar ctl clients list, lists those that are"
    ))
}

/// One connected client
#[utoipa::path(get, path = "/clients/{client}", params(("client" = String, Path, description = "Client identifier, percent-encoded")), responses((status = 200, body = Client)))]
pub(crate) async fn show(Viewer(app, _): Viewer, Name(client): Name) -> Result<Json<Client>> {
    let found = app.broker.connection_of(&client).ok_or_else(|| not_connected(&client))?;
    Ok(Json(Client::from(found)))
}

/// Disconnect a client
///
/// With reason code 0x98 (Administrative action). It may connect again at once: a ban prevents that. Its will is
/// published as after any connection that the broker closes, and its session stays.
#[utoipa::path(delete, path = "/clients/{client}", params(("client" = String, Path, description = "Client identifier, percent-encoded")), responses((status = 204, description = "It gets disconnected")))]
pub(crate) async fn disconnect(
    Operator(app, caller): Operator,
    Name(client): Name,
) -> Result<StatusCode> {
    let found = app.broker.connection_of(&client).ok_or_else(|| not_connected(&client))?;
    let detail = json!({ "user": found.user, "address": found.address.to_string() });
    let change = Change { caller, action: "client.disconnect", object: client.clone(), detail };
    let work = async {
        let done = app.broker.disconnect(&client, CloseOrder::Administrative);
        if done { Ok(()) } else { Err(not_connected(&client)) }
    };
    app.change(change, work).await?;
    Ok(StatusCode::NO_CONTENT)
}
