//! The head of a request: a list's query, and the cookie of a browser's session.

use std::time::Duration;

use axum::extract::FromRequestParts;
use futures_util::FutureExt as _;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, header};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::page::{Everything, MAX_LIMIT, Paged};
use crate::web_sessions::{check_origin, cookie, set_cookie};

/// A list's filter, as lists have them.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Filter {
    user: Option<String>,
    connected: Option<bool>,
}

/// Lines: the target, then headers.
pub fn request(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let Some(mut parts) = lines.next().and_then(parts) else { return };
    for line in lines {
        let mut pair = line.splitn(2, |byte| *byte == b':');
        let name = pair.next().and_then(|name| HeaderName::from_bytes(name).ok());
        let value = pair.next().and_then(|value| HeaderValue::from_bytes(value.trim_ascii()).ok());
        if let (Some(name), Some(value)) = (name, value) {
            parts.headers.append(name, value);
        }
    }
    query(&mut parts);
    session(&parts);
}

fn parts(target: &[u8]) -> Option<Parts> {
    let request = Request::builder().uri(target).body(()).ok()?;
    Some(request.into_parts().0)
}

/// Nothing in a query is passed over.
fn query(parts: &mut Parts) {
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let pairs = || query.split('&').filter(|pair| !pair.is_empty());
    if let Some(Paged { page, wanted: Everything {} }) = paged(parts) {
        assert!(pairs().all(|pair| pair.starts_with("limit=") || pair.starts_with("cursor=")));
        let limit = page.limit();
        assert!(
            limit.is_ok_and(|limit| (1..=MAX_LIMIT).contains(&limit)) || query.contains("limit=")
        );
        let has_number = page.cursor::<u64>().is_ok_and(|number| number.is_some());
        assert!(!has_number || query.contains("cursor="), "{query}");
    }
    if let Some(Paged { wanted, .. }) = paged::<Filter>(parts) {
        // Each of four names at most once.
        assert!(pairs().count() <= 4, "{query}");
        assert!(wanted.connected.is_none() || query.contains('='), "{query}");
    }
}

fn paged<T: DeserializeOwned>(parts: &mut Parts) -> Option<Paged<T>> {
    let paged = Paged::from_request_parts(parts, &App).now_or_never();
    paged.expect("nothing to wait for").ok()
}

/// The cookie is one of those that the browser has sent, and another can be set.
fn session(parts: &Parts) {
    let sent = parts.headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let sent: Vec<&str> = sent.collect();
    if let Some(secret) = cookie(parts) {
        assert!(!secret.contains(';') && sent.iter().any(|line| line.contains(&secret)));
        assert!(sent.iter().any(|line| line.contains("__Host-fulmar-")), "{sent:?}");
    }
    let line = set_cookie(parts, "secret", Duration::from_secs(60)).expect("a name with a port");
    let line = line.to_str().expect("text");
    let [name, ..] = line.split("; ").collect::<Vec<_>>()[..] else { panic!("{line}") };
    let port = name.strip_prefix("__Host-fulmar-").and_then(|rest| rest.strip_suffix("=secret"));
    assert!(port.is_some_and(|port| port.parse::<u16>().is_ok()), "{line}");
    assert_eq!(line.matches(';').count(), 5, "{line}");
    // As a browser sends it back.
    let pair = HeaderValue::from_str(name).expect("text");
    let mut again = Request::new(()).into_parts().0;
    again.uri = parts.uri.clone();
    again.headers = parts.headers.clone();
    again.headers.insert(header::COOKIE, pair);
    assert_eq!(cookie(&again).as_deref(), Some("secret"));
    let is_foreign = parts.headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site");
    assert!(!is_foreign || check_origin(&parts.headers).is_err());
}
