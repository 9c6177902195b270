//! `GET /api/v1/config`: what a web page has to know before its user has logged in, above all the MQTT endpoints.
//!
//! The WebSocket endpoint is the server that the page came from. The WebTransport endpoint is a `webtransport` listener
//! if the client can reach one; the page then trusts the listener's certificate by the hashes in the response.
//! Otherwise it is the address of the page itself, whose certificate must be one that the browser trusts.
//!
//! Browsers try IPv6 first for `localhost` and try WebTransport only once, so pages at `localhost` get an IP address
//! instead.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fulmar_http::Bound;
use fulmar_transport::{authority, is_loopback};
use serde_json::{Value, json};

use fulmar_part::webtransport_certificate::Hashes;

/// The contents of the response.
#[derive(Clone)]
pub(super) struct PageConfig {
    /// Addresses of the `webtransport` listeners.
    webtransport: Arc<[SocketAddr]>,
    hashes: Hashes,
    /// Describes the running demonstration; null if there is none.
    demo: Arc<Value>,
    /// Without one, the app is the broker's page.
    has_platform: bool,
}

impl PageConfig {
    pub(super) fn new(
        bound: &Bound,
        hashes: Hashes,
        demo: Value,
        has_platform: bool,
    ) -> PageConfig {
        PageConfig {
            webtransport: bound.webtransport.as_slice().into(),
            hashes,
            demo: Arc::new(demo),
            has_platform,
        }
    }

    /// Serves the response.
    pub(super) fn router(self) -> Router {
        Router::new().route("/api/v1/config", get(config)).with_state(self)
    }

    /// The WebTransport URL and certificate hashes for a page that a client at `peer` requested from `authority`.
    fn webtransport(&self, authority: &Authority, peer: IpAddr) -> (String, Vec<String>) {
        let near = |address: &&SocketAddr| peer.is_loopback() || !address.ip().is_loopback();
        let listener = self.webtransport.iter().find(near);
        let Some(listener) = listener else {
            return (format!("https://{authority}/mqtt"), Vec::new());
        };
        // The same host otherwise, so that the page's origin is recognised as this server's own.
        let host = match listener.ip() {
            _ if !is_loopback(authority.host()) => authority.host().to_owned(),
            ip if ip.is_unspecified() && ip.is_ipv4() => Ipv4Addr::LOCALHOST.to_string(),
            ip if ip.is_unspecified() => format!("[{}]", Ipv6Addr::LOCALHOST),
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        let hashes = self.hashes.now().iter().map(|hash| STANDARD.encode(hash)).collect();
        (format!("https://{host}:{}/mqtt", listener.port()), hashes)
    }
}

async fn config(
    State(page): State<PageConfig>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let Some(authority) = authority(&uri, &headers) else {
        return (StatusCode::BAD_REQUEST, "the request names no host\n").into_response();
    };
    let (url, certificate_hashes) = page.webtransport(&authority, peer.ip().to_canonical());
    let config = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "title": "Fulmar",
        "mqtt": {
            "webtransport": { "url": url, "certificate_hashes": certificate_hashes },
            "websocket": { "url": format!("wss://{authority}/mqtt") },
        },
        "demo": *page.demo,
        "platform": page.has_platform,
    });
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (headers, config.to_string()).into_response()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn endpoint(listeners: &[&str], authority: &str, peer: &str) -> (String, usize) {
        let webtransport = listeners.iter().map(|address| address.parse().unwrap()).collect();
        let bound = Bound { https: Vec::new(), webtransport };
        let page =
            PageConfig::new(&bound, Hashes::from_digests([[1; 32], [2; 32]]), Value::Null, true);
        let (url, hashes) = page.webtransport(&authority.parse().unwrap(), peer.parse().unwrap());
        (url, hashes.len())
    }

    #[test]
    fn pages_get_an_endpoint_that_they_can_reach() {
        let local = ["127.0.0.1:8444"];
        for (listeners, authority, peer, url, hashes) in [
            (&local[..], "localhost:8443", "127.0.0.1", "https://127.0.0.1:8444/mqtt", 2),
            (&local[..], "app.test:8443", "127.0.0.1", "https://app.test:8444/mqtt", 2),
            // Only for this machine, and the page is not on it.
            (&local[..], "m.example", "192.0.2.9", "https://m.example/mqtt", 0),
            (&["0.0.0.0:8444"], "m.example:8443", "192.0.2.9", "https://m.example:8444/mqtt", 2),
            (&["0.0.0.0:8444"], "localhost:8443", "127.0.0.1", "https://127.0.0.1:8444/mqtt", 2),
            (&["[::]:8444"], "localhost:8443", "::1", "https://[::1]:8444/mqtt", 2),
            (&["192.0.2.1:1"], "m.example:8443", "192.0.2.9", "https://m.example:1/mqtt", 2),
            (&[], "m.example:8443", "192.0.2.9", "https://m.example:8443/mqtt", 0),
        ] {
            assert_eq!(
                endpoint(listeners, authority, peer),
                (url.to_owned(), hashes),
                "{authority}"
            );
        }
    }
}
