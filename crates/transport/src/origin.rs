//! Which pages may open MQTT connections: those of this server, and those the operator named.
//!
//! Browsers let any page open WebSocket and WebTransport connections to any host and only say whose page it
//! is (`Origin`, RFC 6454); refusing is the server's part (RFC 6455 section 10.2). Without it a page from
//! anywhere could use a broker on its reader's own machine. Clients that are no browsers send no origin.
//!
//! One rule for all listeners: the `ws` and `wss` listeners here, and those of HTTP.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use fulmar_broker::LogLimiter;
use parking_lot::Mutex;
use tungstenite::http::uri::Authority;
use tungstenite::http::{HeaderMap, Request, Uri, header};

use crate::clock::Clock;

/// In the list of origins: any.
const ANY: &str = "*";

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// Pages that may connect.
#[derive(Debug)]
pub struct Origins {
    allowed: Vec<String>,
    /// Where this server's own pages are.
    own_ports: OnceLock<Vec<u16>>,
    clock: Clock,
    refused: AtomicU64,
    /// Limits the log lines about refused origins.
    log_limiter: Mutex<LogLimiter>,
}

impl Default for Origins {
    fn default() -> Self {
        Origins::new(&[])
    }
}

impl Origins {
    /// This server's own pages, and those of the origins `allowed`; `*` for any.
    pub fn new(allowed: &[String]) -> Origins {
        Origins {
            allowed: allowed.to_vec(),
            own_ports: OnceLock::new(),
            clock: Clock::start(),
            refused: AtomicU64::new(0),
            log_limiter: Mutex::default(),
        }
    }

    /// Says at which ports this server has pages of its own; the first call counts. Before, there are none.
    pub fn set_own_ports(&self, ports: Vec<u16>) {
        drop(self.own_ports.set(ports));
    }

    /// MQTT connections refused to pages.
    pub fn refused_total(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Whether the page that wants an MQTT connection may have it; those that may not are counted and
    /// logged.
    pub fn admits<B>(&self, request: &Request<B>, peer: SocketAddr) -> bool {
        let Some(origin) = self.refused(request) else { return true };
        self.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(times) = self.log_limiter.lock().occurred(self.clock.now()) {
            tracing::warn!(
                %peer, origin, host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()), times,
                "MQTT refused to a page of another origin than the host; add it to [http] allowed_origins to accept it, or, \
                 behind a proxy, have the proxy pass on the Host header"
            );
        }
        false
    }

    /// The same for a request that came without TLS. A page from this very address and port has the scheme
    /// `http`, and so have libraries that send an origin without being a browser (paho's). On this machine
    /// only its own names count: a name that an attacker points here is as good an origin as any (DNS
    /// rebinding).
    pub fn admits_plain<B>(&self, request: &Request<B>, peer: SocketAddr) -> bool {
        is_same(request, peer).is_some() || self.admits(request, peer)
    }

    /// The origin that is not let in; `None` when the request may go on.
    fn refused<'a, B>(&self, request: &'a Request<B>) -> Option<&'a str> {
        let origin = request.headers().get(header::ORIGIN)?;
        let Ok(origin) = origin.to_str() else { return Some("unreadable") };
        let listed = |allowed: &String| allowed == ANY || allowed.eq_ignore_ascii_case(origin);
        let ports = self.own_ports.get().map_or(&[][..], Vec::as_slice);
        let own = || is_own(origin, authority(request.uri(), request.headers())?, ports);
        let admitted = self.allowed.iter().any(listed) || own().is_some();
        (!admitted).then_some(origin)
    }
}

/// Host and port that a request names, if any; browsers always name a host.
pub fn authority(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    let of = || headers.get(header::HOST)?.to_str().ok()?.parse().ok();
    uri.authority().cloned().or_else(of)
}

fn is_own(origin: &str, asked: Authority, ports: &[u16]) -> Option<()> {
    let of: Authority = origin.strip_prefix("https://")?.parse().ok()?;
    let port = |authority: &Authority| authority.port_u16().unwrap_or(HTTPS_PORT);
    let same_host = of.host().eq_ignore_ascii_case(asked.host())
        || is_loopback(of.host()) && is_loopback(asked.host());
    let same_port = port(&of) == port(&asked) || ports.contains(&port(&of));
    (same_host && same_port).then_some(())
}

/// Whether a request without TLS names its own address as the origin.
fn is_same<B>(request: &Request<B>, peer: SocketAddr) -> Option<()> {
    let origin = request.headers().get(header::ORIGIN)?.to_str().ok()?;
    let of: Authority = origin.strip_prefix("http://")?.parse().ok()?;
    let asked = authority(request.uri(), request.headers())?;
    let port = |authority: &Authority| authority.port_u16().unwrap_or(HTTP_PORT);
    let same = of.host().eq_ignore_ascii_case(asked.host()) && port(&of) == port(&asked);
    (same && (!peer.ip().to_canonical().is_loopback() || is_loopback(asked.host()))).then_some(())
}

/// Whether a host is one of this machine's names for itself, which are equivalent for a local user.
pub fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost") || bare.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn admitted(origin: &str, host: &str, allowed: &[&str]) -> bool {
        let allowed: Vec<String> = allowed.iter().map(|&origin| origin.to_owned()).collect();
        let origins = Origins::new(&allowed);
        origins.set_own_ports(vec![8443]);
        let by_header =
            Request::builder().uri("/mqtt").header("host", host).header("origin", origin);
        let by_header = origins.refused(&by_header.body(()).unwrap()).is_none();
        let uri = format!("https://{host}/mqtt");
        let by_uri = Request::builder().uri(uri).header("origin", origin).body(()).unwrap();
        assert_eq!(by_header, origins.refused(&by_uri).is_none(), "{origin} {host}");
        by_header
    }

    #[test]
    fn without_tls_the_address_itself_is_an_origin() {
        let origins = Origins::default();
        let admitted = |origin: &str, host: &str, peer: [u8; 4]| {
            let asked =
                Request::builder().uri("/mqtt").header("host", host).header("origin", origin);
            origins.admits_plain(&asked.body(()).unwrap(), (peer, 1000).into())
        };
        assert!(admitted("http://localhost:8083", "localhost:8083", [127, 0, 0, 1]));
        assert!(admitted("http://127.0.0.1:8083", "127.0.0.1:8083", [127, 0, 0, 1]));
        assert!(admitted("http://broker.example:8083", "broker.example:8083", [192, 0, 2, 1]));
        assert!(!admitted("http://evil.example:8083", "evil.example:8083", [127, 0, 0, 1]));
        assert!(!admitted("http://evil.example", "broker.example", [192, 0, 2, 1]));
        assert!(!admitted("http://broker.example:80", "broker.example:8083", [192, 0, 2, 1]));
    }

    #[test]
    fn refusals_are_counted() {
        let origins = Origins::new(&["https://dashboard.example".to_owned()]);
        for origin in ["https://dashboard.example", "https://evil.example", "null"] {
            let asked = Request::builder().uri("/mqtt").header("origin", origin).body(()).unwrap();
            origins.admits(&asked, ([127, 0, 0, 1], 1000).into());
        }
        assert_eq!(origins.refused_total(), 2);
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
        assert!(Origins::default().refused(&request).is_none());
        let binary =
            Request::builder().uri("/mqtt").header("origin", &b"\xff"[..]).body(()).unwrap();
        assert!(Origins::default().refused(&binary).is_some());
    }
}
