//! `POST /publish/{topic}`: publishes a message from a device that has only HTTP. The body is the payload;
//! `?retain=true` retains it. User and password are sent with the Basic scheme, a token with Bearer.
//!
//! A request is one short MQTT connection inside the process, through the same handoff as clients inside HTTP, so that
//! authentication, access rules, limits and durability are the broker's: 204 is its PUBACK at QoS 1. If the topic has
//! no subscriber, the response is 404, because the message was dropped. Requests from pages in browsers and from
//! Fulmar's webhooks are refused: otherwise any page could make a visitor's browser post here, and a user who may set a
//! webhook's address could make this server do so.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::{Extensions, HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use fulmar_broker::{ListenerPolicy, Peer, TransportKind};
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::{Connect, Publish};
use fulmar_mqtt::topic::check_name;
use fulmar_mqtt::{Packet, PacketId, Properties, QoS, ReasonCode};
use fulmar_transport::Handoff;
use serde::Deserialize;

use super::http_credentials::Credentials;
use fulmar_config::Config;
use fulmar_part::local_client;

/// Longest wait for the broker, which may be delaying publishers.
const PATIENCE: Duration = Duration::from_secs(25);
/// When to send a publication again that the broker could not accept.
const RETRY_AFTER_S: &str = "10";

/// Publishes the messages of HTTP requests; see the module.
#[derive(Clone)]
pub(super) struct HttpPublisher {
    handoff: Handoff,
    policy: Arc<ListenerPolicy>,
    /// Largest body in bytes.
    max_bytes: usize,
}

/// Answer to other parameters: a client that asks for QoS 2 must not be left to suppose that it has it.
const PARAMETERS: &str =
    "the only parameter is retain, true or false; the message is published at QoS 1\n";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
    #[serde(default)]
    retain: bool,
}

impl HttpPublisher {
    /// A publisher for the listeners `name`: it accepts anonymous clients if all of their addresses do.
    pub(super) fn new(
        handoff: Handoff,
        config: &Config,
        name: &str,
        addresses: &[SocketAddr],
    ) -> HttpPublisher {
        let open = |address: &SocketAddr| config.policy(name, *address).allow_anonymous;
        let allow_anonymous = addresses.iter().all(open);
        let policy = Arc::new(ListenerPolicy { name: name.into(), allow_anonymous });
        HttpPublisher { handoff, policy, max_bytes: config.limits.max_packet_bytes }
    }

    /// The route.
    pub(super) fn router(self) -> Router {
        Router::new().route("/publish/{*topic}", post(publish)).with_state(self)
    }
}

async fn publish(
    State(publisher): State<HttpPublisher>,
    extensions: Extensions,
    Path(topic): Path<String>,
    wish: Result<Query<Wish>, QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    if let Some(refusal) = refused(&headers) {
        return (StatusCode::FORBIDDEN, refusal).into_response();
    }
    if let Err(error) = check_name(&topic) {
        return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response();
    }
    let Ok(Query(wish)) = wish else {
        return (StatusCode::BAD_REQUEST, PARAMETERS).into_response();
    };
    let Some(credentials) = Credentials::from_headers(&headers) else {
        return (StatusCode::BAD_REQUEST, "Authorization is Basic or Bearer\n").into_response();
    };
    // Last, after the whole head is checked.
    let Ok(body) = to_bytes(body, publisher.max_bytes).await else {
        return (StatusCode::PAYLOAD_TOO_LARGE, "larger than the maximum message size\n")
            .into_response();
    };
    let unknown = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let address = extensions.get().map_or(unknown, |ConnectInfo(address)| *address);
    let peer = Peer {
        address,
        transport: TransportKind::Tcp,
        identity: None,
        listener: Arc::clone(&publisher.policy),
    };
    let hand_over = hand_over(&publisher.handoff, peer, &credentials, &topic, wish.retain, &body);
    match tokio::time::timeout(PATIENCE, hand_over).await {
        Ok(Ok(reason)) => answer(reason, wish.retain),
        Ok(Err(error)) => {
            tracing::debug!(peer = %address, %error, "a publication over HTTP broke off");
            unavailable("the broker is not available\n".to_owned())
        }
        Err(_) => {
            let text =
                "the broker could not accept it in time; nothing was acknowledged, send it again\n";
            unavailable(text.to_owned())
        }
    }
}

fn unavailable(text: String) -> Response {
    let retry_after = [(header::RETRY_AFTER, RETRY_AFTER_S)];
    (StatusCode::SERVICE_UNAVAILABLE, retry_after, text).into_response()
}

/// Why a request with these headers may not publish. Browsers send the page's origin (`Origin`, `Sec-Fetch-Site`), and
/// Fulmar's webhooks identify themselves: a URL that another person chose must not cause a publication.
fn refused(headers: &HeaderMap) -> Option<&'static str> {
    if headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site") {
        return Some("pages may not publish here; use MQTT over WebSocket\n");
    }
    let is_webhook = headers.contains_key("x-fulmar-delivery");
    is_webhook.then_some("webhooks may not publish here\n")
}

/// Connects, publishes at QoS 1, and returns the broker's answer.
pub(super) async fn hand_over(
    handoff: &Handoff,
    peer: Peer,
    credentials: &Credentials,
    topic: &str,
    retain: bool,
    payload: &[u8],
) -> std::io::Result<ReasonCode> {
    let connect = Connect {
        username: credentials.username.as_deref(),
        password: credentials.password.as_deref(),
        ..local_client::anonymous_session(Properties::NONE)
    };
    let (sender, mut receiver) = local_client::open(handoff, peer, &connect)?;
    // The broker may not read it for as long as an outage lasts, and the publisher does not wait that long.
    let unless_answered = sender.cut();
    sender.publish(&Publish {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain,
        topic,
        packet_id: Some(PacketId::FIRST),
        properties: Properties::NONE,
        payload,
    });
    while receiver.fill().await? {
        while let Some(packet) = receiver.next_packet()? {
            match packet {
                Packet::Connack(connack) if connack.reason.is_error() => {
                    return Ok(unknown(connack.reason));
                }
                Packet::Disconnect(disconnect) => return Ok(disconnect.reason),
                Packet::Ack(AckKind::Puback, ack) => {
                    let reason = ack.reason;
                    sender.disconnect(ReasonCode::Success, Properties::NONE);
                    // DISCONNECT is still to be written.
                    unless_answered.disarm();
                    return Ok(reason);
                }
                _ => {}
            }
        }
    }
    Err(std::io::ErrorKind::ConnectionAborted.into())
}

/// A refusal of CONNECT. Clients without credentials where anonymous ones are not let in are "not
/// authorized" there; HTTP's 403 would not ask for credentials.
fn unknown(reason: ReasonCode) -> ReasonCode {
    match reason {
        ReasonCode::NotAuthorized => ReasonCode::BadUserNameOrPassword,
        other => other,
    }
}

fn answer(reason: ReasonCode, retained: bool) -> Response {
    use ReasonCode as R;
    let (status, text) = match reason {
        R::Success => return StatusCode::NO_CONTENT.into_response(),
        R::NoMatchingSubscribers if retained => return StatusCode::NO_CONTENT.into_response(),
        R::NoMatchingSubscribers => {
            (StatusCode::NOT_FOUND, "no subscriber for this topic; nothing was stored")
        }
        R::BadUserNameOrPassword => {
            let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"fulmar\"")];
            let text = "wrong user name, password or token\n";
            return (StatusCode::UNAUTHORIZED, challenge, text).into_response();
        }
        R::NotAuthorized => (StatusCode::FORBIDDEN, "not allowed to publish to this topic"),
        R::PacketTooLarge => {
            (StatusCode::PAYLOAD_TOO_LARGE, "larger than the maximum message size")
        }
        R::TopicNameInvalid => (StatusCode::BAD_REQUEST, "not a valid topic name to publish to"),
        R::ImplementationSpecificError => {
            let text = "storage fails: the message may not have been stored; send it again\n";
            return unavailable(text.to_owned());
        }
        _ => return unavailable(format!("the broker refused it: {reason}\n")),
    };
    (status, format!("{text}\n")).into_response()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_webhooks_are_turned_away() {
        let refused = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            super::refused(&headers).is_some()
        };
        assert!(refused("origin", "null") && refused("origin", "https://localhost"));
        assert!(refused("sec-fetch-site", "cross-site"));
        assert!(refused("x-fulmar-delivery", "7"));
        assert!(!refused("content-type", "application/json"));
    }

    #[test]
    fn two_hundreds_are_for_what_is_kept() {
        for (reason, retained, status) in [
            (ReasonCode::Success, false, 204),
            (ReasonCode::NoMatchingSubscribers, false, 404),
            (ReasonCode::NoMatchingSubscribers, true, 204),
            (ReasonCode::BadUserNameOrPassword, false, 401),
            (ReasonCode::NotAuthorized, false, 403),
            (ReasonCode::PacketTooLarge, false, 413),
            (ReasonCode::QuotaExceeded, false, 503),
            (ReasonCode::ImplementationSpecificError, true, 503),
        ] {
            let answer = answer(reason, retained);
            assert_eq!(answer.status().as_u16(), status, "{reason}");
            assert_eq!(answer.headers().contains_key(header::RETRY_AFTER), status == 503);
        }
        let anonymous = unknown(ReasonCode::NotAuthorized);
        assert_eq!(answer(anonymous, false).status().as_u16(), 401);
    }
}
