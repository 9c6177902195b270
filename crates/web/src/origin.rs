//! Which pages may open MQTT connections: those of this server, and those the operator named.
//!
//! Browsers let any page open WebSocket and WebTransport connections to any host and only say whose page it
//! is (`Origin`, RFC 6454); refusing is the server's part (RFC 6455 section 10.2). Without it a page from
//! anywhere could use a broker on its reader's own machine. Clients that are no browsers send no origin.

use std::net::IpAddr;

use http::uri::Authority;
use http::{HeaderMap, Request, header};

/// In the list of origins: any.
const ANY: &str = "*";

const HTTPS_PORT: u16 = 443;

/// Pages that may connect.
#[derive(Clone, Debug)]
pub(crate) struct Origins {
    allowed: Vec<String>,
    /// Where this server's own pages are.
    ports: Vec<u16>,
}

impl Origins {
    /// This server's own pages, on any of `ports`, and those of the origins `allowed`.
    pub(crate) fn new(allowed: &[String], ports: Vec<u16>) -> Origins {
        Origins { allowed: allowed.to_vec(), ports }
    }

    /// The origin that is not let in; `None` when the request may go on.
    pub(crate) fn refused<'a, B>(&self, request: &'a Request<B>) -> Option<&'a str> {
        let origin = request.headers().get(header::ORIGIN)?;
        let Ok(origin) = origin.to_str() else { return Some("unreadable") };
        let listed = |allowed: &String| allowed == ANY || allowed.eq_ignore_ascii_case(origin);
        let own = || is_own(origin, authority(request)?, &self.ports);
        let admitted = self.allowed.iter().any(listed) || own().is_some();
        (!admitted).then_some(origin)
    }
}

/// Host and port the client asked for.
fn authority<B>(request: &Request<B>) -> Option<Authority> {
    let of = |headers: &HeaderMap| headers.get(header::HOST)?.to_str().ok()?.parse().ok();
    request.uri().authority().cloned().or_else(|| of(request.headers()))
}

fn is_own(origin: &str, asked: Authority, ports: &[u16]) -> Option<()> {
    let of: Authority = origin.strip_prefix("https://")?.parse().ok()?;
    let port = |authority: &Authority| authority.port_u16().unwrap_or(HTTPS_PORT);
    let same_host = of.host().eq_ignore_ascii_case(asked.host())
        || is_loopback(of.host()) && is_loopback(asked.host());
    let same_port = port(&of) == port(&asked) || ports.contains(&port(&of));
    (same_host && same_port).then_some(())
}

/// This machine by any of its names for itself, which are one to whoever sits at it.
fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn admitted(origin: &str, host: &str, allowed: &[&str]) -> bool {
        let allowed: Vec<String> = allowed.iter().map(|&origin| origin.to_owned()).collect();
        let origins = Origins::new(&allowed, vec![8443]);
        let by_header =
            Request::builder().uri("/mqtt").header("host", host).header("origin", origin);
        let by_header = origins.refused(&by_header.body(()).unwrap()).is_none();
        let uri = format!("https://{host}/mqtt");
        let by_uri = Request::builder().uri(uri).header("origin", origin).body(()).unwrap();
        assert_eq!(by_header, origins.refused(&by_uri).is_none(), "{origin} {host}");
        by_header
    }

    #[test]
    fn own_pages_are_let_in_and_others_are_not() {
        for (origin, host, expected) in [
            ("https://meters.example", "meters.example", true),
            ("https://Meters.example:443", "meters.example", true),
            ("https://meters.example:8443", "meters.example:8443", true),
            // Pages of the https listener at the WebTransport listener.
            ("https://meters.example:8443", "meters.example:8444", true),
            ("https://localhost:8443", "127.0.0.1:8444", true),
            ("https://[::1]:8443", "localhost:8443", true),
            ("https://meters.example:9000", "meters.example:8443", false),
            ("http://meters.example:8443", "meters.example:8443", false),
            ("https://evil.example:8443", "meters.example:8443", false),
            ("https://meters.example.evil.example", "meters.example", false),
            ("https://evil.example:8443", "localhost:8443", false),
            ("http://localhost:8443", "localhost:8443", false),
            ("null", "localhost:8443", false),
            ("", "localhost:8443", false),
        ] {
            assert_eq!(admitted(origin, host, &[]), expected, "{origin} at {host}");
        }
    }

    #[test]
    fn the_operator_may_name_others() {
        let allowed = ["https://dashboard.example"];
        assert!(admitted("https://dashboard.example", "broker.example", &allowed));
        assert!(!admitted("https://dashboard.example:444", "broker.example", &allowed));
        assert!(admitted("null", "broker.example", &["*"]));
    }

    #[test]
    fn clients_that_are_no_browsers_name_none() {
        let request = Request::builder().uri("/mqtt").header("host", "localhost").body(()).unwrap();
        assert!(Origins::new(&[], vec![]).refused(&request).is_none());
        let binary =
            Request::builder().uri("/mqtt").header("origin", &b"\xff"[..]).body(()).unwrap();
        assert!(Origins::new(&[], vec![]).refused(&binary).is_some());
    }
}
