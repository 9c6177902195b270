//! The page at `/` while there is no app to open. It shows which program answers, where clients connect, and where
//! metrics, health and the documentation are.
//!
//! It is shown with a platform that has no users yet, because nobody could log in, and by a program built without the
//! app. Without a platform, the app is the broker's page, and clients that are no browsers get this page. Anybody can see the page, so it lists only
//! listeners that the client can reach, and none of those on loopback addresses to clients on other machines.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, HeaderValue, Request, Response, header};
use axum::response::{Html, IntoResponse as _};

use super::status;
use fulmar_part::Core;

/// Path of the style sheet: the page's content security policy allows no style inside the page.
pub(super) const STYLE_PATH: &str = "/greeting.css";

const STYLE: &str = "\
:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif; background: #fff; color: #1b1f24 }
a { color: #0550ae }
@media (prefers-color-scheme: dark) { :root { background: #14171b; color: #e6e9ed } a { color: #79b8ff } }
body { max-width: 44rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #8886; overflow-wrap: anywhere }
";

/// Listeners by name, and how their addresses are written: before the host, behind the port.
const KINDS: [(&str, &str, &str); 11] = [
    ("quic", "quic://", ""),
    ("mqtts", "mqtts://", ""),
    ("mqtt", "mqtt://", ""),
    ("wss", "wss://", "/mqtt"),
    ("ws", "ws://", "/mqtt"),
    ("https", "https://", "/"),
    ("webtransport", "https://", "/mqtt (WebTransport)"),
    ("coaps", "coaps://", "/ps/"),
    ("coap", "coap://", "/ps/"),
    ("mqtt_sn", "", " (UDP)"),
    ("http", "http://", "/"),
];

/// All listeners, once they are bound.
pub(super) type Listeners = Arc<OnceLock<Vec<(&'static str, SocketAddr)>>>;

/// Why there is no app to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    NoPlatform,
    NoUsers,
    NotBuilt,
}

/// Creates the page.
#[derive(Clone)]
pub(super) struct LandingPage {
    /// True if the platform has users; `None` without a platform.
    has_users: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    listeners: Listeners,
}

impl LandingPage {
    pub(super) fn new(core: &Core) -> LandingPage {
        LandingPage {
            has_users: core.offers.has_users.clone(),
            listeners: Arc::clone(&core.listeners),
        }
    }

    /// Why `/` is not the app now; `None` if it is. `built` is true if the program contains the app, `for_browser` if the
    /// client is one. Without a platform, the app is the broker's page, of which curl would show nothing.
    pub(super) fn reason(&self, built: bool, for_browser: bool) -> Option<Reason> {
        match &self.has_users {
            None if built && for_browser && cfg!(feature = "admin") => None,
            None => Some(Reason::NoPlatform),
            Some(_) if !built => Some(Reason::NotBuilt),
            Some(has_users) => (!has_users()).then_some(Reason::NoUsers),
        }
    }

    /// The page for the client that sent `request`, with `host` as this server's name.
    pub(super) fn page(
        &self,
        reason: Reason,
        request: &Request<Body>,
        host: Option<&str>,
    ) -> Response<Body> {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let near = peer.is_some_and(|ConnectInfo(peer)| peer.ip().is_loopback());
        let bound = self.listeners.get().map_or(&[][..], Vec::as_slice);
        let protocol = status::name(request.version());
        let page = write(reason, protocol, host.unwrap_or("localhost"), reachable(bound, near));
        let headers = [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];
        (headers, Html(page)).into_response()
    }
}

pub(super) fn style() -> Response<Body> {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/css; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    (headers, STYLE).into_response()
}

type Kind = &'static (&'static str, &'static str, &'static str);

/// Listeners that can be reached from this machine (`near`) or from another, in the order of [`KINDS`].
fn reachable(bound: &[(&'static str, SocketAddr)], near: bool) -> Vec<(Kind, u16)> {
    let of_kind = |kind: Kind| {
        let found = bound.iter().filter(move |(name, _)| *name == kind.0);
        let found = found.filter(move |(_, address)| near || !address.ip().is_loopback());
        found.map(move |(_, address)| (kind, address.port()))
    };
    let mut all: Vec<_> = KINDS.iter().flat_map(of_kind).collect();
    // One port may be bound at several addresses.
    all.dedup_by_key(|(kind, port)| (kind.0, *port));
    all
}

/// `host` must be safe in HTML.
fn write(reason: Reason, protocol: &str, host: &str, reachable: Vec<(Kind, u16)>) -> String {
    let role = match reason {
        Reason::NoPlatform => {
            "This is an MQTT broker. It runs without the platform for meters and homes. In a browser, \
             this address is the broker's page, if the program was built with it."
        }
        Reason::NoUsers => {
            "This is an MQTT broker. <a href=/broker>The broker's page</a> shows it; <code>fulmar ctl users add NAME \
             --role administrator</code> on the broker's machine makes somebody who may change it. The platform for \
             meters and homes has no users yet: once <code>fulmar user add NAME --admin</code> has made the first \
             one, this address is the platform's app."
        }
        Reason::NotBuilt => {
            "This is an MQTT broker. The program was built without the web app. With Node.js 18 or later \
             and npm, <code>make web</code> builds it, and the next build of the program carries it."
        }
    };
    let mut rows = String::new();
    let mut operator = None;
    for ((name, before, behind), port) in reachable {
        // Writing to a string cannot fail.
        let _ = writeln!(
            rows,
            "<tr><th scope=row><code>{name}</code><td>{before}{host}:{port}{behind}"
        );
        operator = if *name == "http" { Some(port) } else { operator };
    }
    let watching = match operator {
        Some(port) => {
            let link = |path: &str| format!("<a href=\"http://{host}:{port}{path}\">{path}</a>");
            format!(
                "Metrics are at {}, health at {} and {}, clients at {}.",
                link("/metrics"),
                link("/health/live"),
                link("/health/ready"),
                link("/connections")
            )
        }
        None => {
            "Metrics, health and the list of clients are at the <code>http</code> listener, which \
                 cannot be reached from your address: ask on the broker's machine, usually at \
                 <code>http://127.0.0.1:14568/metrics</code>."
                .to_owned()
        }
    };
    format!(
        "<!doctype html>\n<html lang=en><meta charset=utf-8><title>Fulmar</title>\n\
         <meta name=viewport content=\"width=device-width\">\n\
         <link rel=stylesheet href={STYLE_PATH}>\n<main>\n<h1>Fulmar {}</h1>\n<p>{role}\n\
         <h2>Listeners</h2>\n<table>\n<tr><th scope=col>Listener<th scope=col>Address\n{rows}</table>\n\
         <h2>Watching it</h2>\n<p>{watching}\n\
         <p><a href=\"/api/v1/status\">/api/v1/status</a> has name, version and uptime as JSON. This page \
         came over {protocol}.\n\
         <h2>Documentation</h2>\n<p><code>fulmar serve --help</code> shows how to run the broker; \
         <code>docs/guide.md</code> in its source explains how to operate it.\n</main>\n",
        status::VERSION
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_lists_no_listener_that_its_reader_cannot_reach() {
        let bound = [
            ("mqtt", ([127, 0, 0, 1], 1883).into()),
            ("quic", ([0, 0, 0, 0], 14567).into()),
            ("quic", ([10, 0, 0, 1], 14567).into()),
            ("http", ([127, 0, 0, 1], 14568).into()),
        ];
        let names = |near| -> Vec<_> {
            reachable(&bound, near).into_iter().map(|(kind, port)| (kind.0, port)).collect()
        };
        assert_eq!(names(false), [("quic", 14567)]);
        assert_eq!(names(true), [("quic", 14567), ("mqtt", 1883), ("http", 14568)]);
        let page = write(Reason::NoPlatform, "HTTP/3", "broker", reachable(&bound, false));
        assert!(page.contains("quic://broker:14567") && !page.contains("broker:14568"), "{page}");
    }
}
