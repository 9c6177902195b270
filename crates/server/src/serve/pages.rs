//! Serves the web app's files, which are built into the program, at all paths that do not belong to the API.
//!
//! Files are sent in the compressed form that the build made, with ETags; those with a hash in their
//! name may be cached for ever. Other paths are screens of the app and get its only page, if the client accepts
//! HTML. While nobody can use the app, `/` is the landing page (`landing_page`).

use std::io::Read as _;
use std::sync::OnceLock;

use axum::body::{Body, Bytes};
use axum::http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header,
};
use axum::response::IntoResponse as _;
use flate2::read::GzDecoder;
use fulmar_transport::authority;

use super::landing_page::{self, LandingPage};

/// One of the app's files.
pub(super) struct File {
    path: &'static str,
    /// Changes with the contents.
    tag: &'static str,
    /// Only of a file without `gzip`.
    plain: Option<&'static [u8]>,
    brotli: Option<&'static [u8]>,
    gzip: Option<&'static [u8]>,
    /// The contents of `gzip`, once a client has wanted them so: at most once, and responses share them, because any
    /// number of clients may ask for them and not read the answer.
    unpacked: OnceLock<Bytes>,
}

mod files {
    use super::File;
    include!(concat!(env!("OUT_DIR"), "/web_app.rs"));
}

/// The start page, which all paths of the app get.
const START: &str = "/index.html";
/// The broker's page.
const BROKER: &str = "/broker";
/// The build puts a hash into the names of the files below this path.
const HASHED: &str = "/assets/";
const FOR_EVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
const ASK_AGAIN: HeaderValue = HeaderValue::from_static("no-cache");

/// Whether the program was built with the web app.
#[must_use]
pub fn has_web_app() -> bool {
    !files::FILES.is_empty()
}

/// Answers requests for which the API has no route.
pub(super) async fn answer(landing: LandingPage, request: Request<Body>) -> Response<Body> {
    let path = request.uri().path();
    let file = find(files::FILES, path, request.headers());
    let for_browser = accepts_html(request.headers());
    let reason = landing.reason(has_web_app(), for_browser).filter(|_| path == "/");
    let style = path == landing_page::STYLE_PATH;
    if file.is_none() && reason.is_none() && !style {
        return not_found();
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let allow = [(header::ALLOW, "GET, HEAD")];
        return (StatusCode::METHOD_NOT_ALLOWED, allow).into_response();
    }
    match (reason, file) {
        (Some(reason), _) => send_landing_page(&landing, reason, &request),
        (None, Some(file)) if !style => send(file, &request),
        _ => landing_page::style(),
    }
}

fn send_landing_page(
    landing: &LandingPage,
    reason: landing_page::Reason,
    request: &Request<Body>,
) -> Response<Body> {
    let mut page = landing.page(reason, request, host(request).as_deref());
    protect(page.headers_mut(), request);
    page
}

/// The file at a path; the start page for paths of the app.
fn find(files: &'static [File], path: &str, headers: &HeaderMap) -> Option<&'static File> {
    let at = |path: &str| files.iter().find(|file| file.path == path);
    at(path).or_else(|| at(START).filter(|_| path == "/" || is_screen(path, headers)))
}

/// True if a browser requests a page, at a path that is not one of files or of the API. The log shows people the broker's,
/// which they may ask for with anything.
fn is_screen(path: &str, headers: &HeaderMap) -> bool {
    if path == BROKER {
        return true;
    }
    let other = ["/api/", HASHED].iter().any(|start| path.starts_with(start));
    !other && accepts_html(headers)
}

/// Whether a client names HTML among what it accepts, as browsers do and curl does not.
fn accepts_html(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

fn send(file: &'static File, request: &Request<Body>) -> Response<Body> {
    let (encoding, packed) = choose(file, request.headers());
    let tag = format!("\"{}-{}\"", file.tag, encoding.unwrap_or("plain"));
    let mut headers = HeaderMap::new();
    let keep = if file.path.starts_with(HASHED) { FOR_EVER } else { ASK_AGAIN };
    headers.insert(header::CACHE_CONTROL, keep);
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind(file.path)));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Digits and letters only: always a valid header value.
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    if file.path == START {
        protect(&mut headers, request);
    }
    if is_known(request.headers(), &tag) {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    if let Some(encoding) = encoding {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    let bytes = packed.map_or_else(|| plain(file), Bytes::from_static);
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
    let body = match *request.method() {
        Method::HEAD => Body::empty(),
        _ => Body::from(bytes),
    };
    (headers, body).into_response()
}

/// The shortest form of a file that the browser accepts: its name and its bytes, which the uncompressed form does not
/// have yet ([`plain`]).
fn choose(
    file: &'static File,
    headers: &HeaderMap,
) -> (Option<&'static str>, Option<&'static [u8]>) {
    let takes = |name| fulmar_http::accepts(name, headers);
    match (file.brotli, file.gzip) {
        (Some(bytes), _) if takes("br") => (Some("br"), Some(bytes)),
        (_, Some(bytes)) if takes("gzip") => (Some("gzip"), Some(bytes)),
        _ => (None, None),
    }
}

/// The uncompressed form, for clients such as curl; browsers accept compression.
fn plain(file: &'static File) -> Bytes {
    let Some(gzip) = file.gzip else { return Bytes::from_static(file.plain.unwrap_or_default()) };
    let unpack = || {
        let mut bytes = Vec::new();
        // Created by the build, so it is complete.
        let read = GzDecoder::new(gzip).read_to_end(&mut bytes);
        read.map_or_else(|_| Bytes::new(), |_| bytes.into())
    };
    file.unpacked.get_or_init(unpack).clone()
}

/// RFC 9110, section 13.1.2; weak tags of the same name count.
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    headers.get_all(header::IF_NONE_MATCH).iter().any(|value| {
        let tags = value.to_str().unwrap_or_default();
        tags.split(',').any(|one| {
            matches!(one.trim().trim_start_matches("W/"), "*")
                || one.trim().trim_start_matches("W/") == tag
        })
    })
}

/// Sets the content security policy and other headers. The page may connect to this server only, at any port, because
/// MQTT over WebTransport may have another port.
fn protect(headers: &mut HeaderMap, request: &Request<Body>) {
    let own = own_addresses(request);
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; \
         font-src 'self'; connect-src 'self'{own}; worker-src 'self'; manifest-src 'self'; \
         base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    );
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(
        HeaderName::from_static("permissions-policy"),
        HeaderValue::from_static("geolocation=(self), camera=(self), serial=(self), microphone=()"),
    );
}

/// This server's addresses as sources in a policy, each after a space; `localhost` has several.
fn own_addresses(request: &Request<Body>) -> String {
    let Some(host) = host(request) else { return String::new() };
    let hosts: &[&str] = match host.as_str() {
        "localhost" | "127.0.0.1" => &["localhost", "127.0.0.1"],
        // A policy cannot name an IPv6 address.
        literal if literal.starts_with('[') => return " https: wss:".to_owned(),
        name => &[name],
    };
    hosts.iter().map(|host| format!(" https://{host}:* wss://{host}:*")).collect()
}

/// The name that the browser uses for this server, if a policy can contain it.
fn host(request: &Request<Body>) -> Option<String> {
    let authority = authority(request.uri(), request.headers())?;
    let host = authority.host();
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b".-[]:".contains(&byte);
    (!host.is_empty() && host.bytes().all(fine)).then(|| host.to_owned())
}

fn kind(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("json" | "geojson") => "application/json",
        Some("webmanifest") => "application/manifest+json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("woff2") => "font/woff2",
        _ => "application/octet-stream",
    }
}

fn not_found() -> Response<Body> {
    let kind = [(header::CONTENT_TYPE, "application/problem+json")];
    let body = r#"{"type":"about:blank","title":"Not found","status":404,"detail":"There is nothing at this address."}"#;
    (StatusCode::NOT_FOUND, kind, body).into_response()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// "plain", by gzip -n.
    const PLAIN_GZIP: &[u8] =
        b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x2b\xc8\x49\xcc\xcc\x03\0\xcf\x62\x20\x19\x05\0\0\0";

    static APP: [File; 2] = [
        File {
            path: "/assets/a-1.js",
            tag: "01",
            plain: None,
            brotli: Some(b"br"),
            gzip: Some(PLAIN_GZIP),
            unpacked: OnceLock::new(),
        },
        File {
            path: START,
            tag: "02",
            plain: Some(b"<!doctype html>"),
            brotli: None,
            gzip: None,
            unpacked: OnceLock::new(),
        },
    ];

    fn request(path: &str, headers: &[(&str, &str)]) -> Request<Body> {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    fn path_of(path: &str, accept: &str) -> Option<&'static str> {
        let request = request(path, &[("accept", accept)]);
        find(&APP, request.uri().path(), request.headers()).map(|file| file.path)
    }

    #[test]
    fn screens_get_the_page_and_files_and_the_api_do_not() {
        let browser = "text/html,application/xhtml+xml,*/*;q=0.8";
        assert_eq!(path_of("/", "*/*"), Some(START));
        assert_eq!(path_of("/meters/1", browser), Some(START));
        assert_eq!(path_of("/meters/1", "application/json"), None);
        assert_eq!(path_of("/api/v1/nothing", browser), None);
        assert_eq!(path_of("/assets/gone.js", browser), None);
        assert_eq!(path_of("/assets/a-1.js", "*/*"), Some("/assets/a-1.js"));
    }

    #[test]
    fn the_shortest_form_that_is_taken_is_sent() {
        let choice =
            |accepted| choose(&APP[0], request("/", &[("accept-encoding", accepted)]).headers()).0;
        assert_eq!(choice("gzip, deflate, br, zstd"), Some("br"));
        assert_eq!(choice("gzip;q=1.0, br;q=0"), Some("gzip"));
        assert_eq!(choice("identity"), None);
        assert_eq!(plain(&APP[0]), "plain");
        assert_eq!(plain(&APP[1]), "<!doctype html>");
        assert_eq!(choose(&APP[1], request("/", &[("accept-encoding", "br")]).headers()).0, None);
    }

    #[test]
    fn what_is_known_is_not_sent_again_and_hashed_names_are_kept() {
        let response = send(&APP[0], &request("/assets/a-1.js", &[("accept-encoding", "br")]));
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()[header::CACHE_CONTROL], FOR_EVER);
        assert_eq!(response.headers()[header::CONTENT_ENCODING], "br");
        let tag = response.headers()[header::ETAG].to_str().unwrap();
        let asked = [("accept-encoding", "br"), ("if-none-match", tag)];
        let again = send(&APP[0], &request("/assets/a-1.js", &asked));
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        // Another form has another tag.
        let plain = send(&APP[0], &request("/assets/a-1.js", &[("if-none-match", tag)]));
        assert_eq!(plain.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn a_file_is_unpacked_once_and_only_when_it_is_sent() {
        static FILES: [File; 1] = [File {
            path: "/assets/b-2.js",
            tag: "03",
            plain: None,
            brotli: None,
            gzip: Some(PLAIN_GZIP),
            unpacked: OnceLock::new(),
        }];
        let file = &FILES[0];
        let known = send(file, &request(file.path, &[("if-none-match", "\"03-plain\"")]));
        assert_eq!(known.status(), StatusCode::NOT_MODIFIED);
        assert!(file.unpacked.get().is_none());
        let (one, other) =
            (send(file, &request(file.path, &[])), send(file, &request(file.path, &[])));
        let one = axum::body::to_bytes(one.into_body(), 100).await.unwrap();
        let other = axum::body::to_bytes(other.into_body(), 100).await.unwrap();
        assert_eq!((&*one, one.as_ptr()), (&b"plain"[..], other.as_ptr()));
    }

    #[test]
    fn the_page_may_talk_to_its_own_host_only() {
        let policy = |host| {
            let response = send(&APP[1], &request("/", &[("host", host)]));
            response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned()
        };
        assert!(
            policy("meters.example:8443")
                .contains("connect-src 'self' https://meters.example:* wss://")
        );
        assert!(policy("localhost:8443").contains(" https://127.0.0.1:* wss://127.0.0.1:*;"));
        assert!(policy("[::1]:8443").contains("connect-src 'self' https: wss:;"));
        assert!(policy("x;script-src *").contains("connect-src 'self';"));
    }
}
