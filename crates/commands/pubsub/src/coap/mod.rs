//! `fulmar pub` and `fulmar sub` over CoAP: topics are resources below `/ps` (`fulmar_coap::topics`), or where
//! the URL says.

mod publish;
mod speaker;
mod subscribe;
mod trust;
mod wire;

use anyhow::{Context as _, bail};
use fulmar_coap::{Response, code, topics};

use crate::exit::Usage;

pub(super) use publish::{Job, publish};
pub use speaker::Speaker;
pub(super) use subscribe::subscribe;
pub(super) use trust::TrustArgs;

/// A parsed URL: `coap://HOST[:PORT][/PATH]`, `coaps://…`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Url {
    secure: bool,
    host: String,
    port: u16,
    /// Segments that topics are below.
    root: Vec<String>,
}

/// Whether it is a CoAP URL.
pub fn is_coap(url: &str) -> bool {
    ["coap://", "coaps://"].iter().any(|scheme| url.to_ascii_lowercase().starts_with(scheme))
}

/// Whether it is one with DTLS.
pub fn is_secure(url: &str) -> bool {
    url.to_ascii_lowercase().starts_with("coaps://")
}

impl Url {
    /// Parses a URL.
    pub(super) fn parse(text: &str) -> anyhow::Result<Url> {
        let wrong = |why: &str| Usage(format!("{text}: {why}; write coap://HOST[:PORT][/PATH]"));
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("no scheme"))?;
        let secure = scheme.eq_ignore_ascii_case("coaps");
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(wrong("give the user with -u").into());
        }
        if path.contains(['?', '#']) {
            return Err(wrong("a query is not supported").into());
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => {
                (host, Some(port.parse().map_err(|_| wrong("the port is not a number"))?))
            }
            _ => (authority, None),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(wrong("no host").into());
        }
        let root: Vec<String> =
            path.split('/').filter(|segment| !segment.is_empty()).map(str::to_owned).collect();
        let root = if root.is_empty() { vec![topics::ROOT.to_owned()] } else { root };
        let port = port.unwrap_or(if secure { 5684 } else { 5683 });
        Ok(Url { secure, host: host.to_owned(), port, root })
    }

    /// The path of a topic.
    fn path(&self, topic: &str) -> anyhow::Result<Vec<String>> {
        let wrong = |why: &str| Usage(format!("-t {topic:?}: {why}"));
        if topic.contains(['+', '#']) {
            return Err(wrong("CoAP has no wildcards: name one topic").into());
        }
        fulmar_mqtt::topic::check_name(topic).map_err(|error| wrong(&error.to_string()))?;
        let path: Vec<String> =
            self.root.iter().cloned().chain(topic.split('/').map(str::to_owned)).collect();
        if path.iter().any(|segment| segment.len() > 255) {
            return Err(wrong("a level is longer than 255 bytes, the limit of CoAP").into());
        }
        Ok(path)
    }
}

/// An error response as an error, which names the topic.
fn check(topic: &str, response: &Response) -> anyhow::Result<()> {
    if code::is_success(response.code) {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&response.payload);
    // What a server says is shown as one line without control characters.
    let text: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
    let code = code::text(response.code);
    match text.is_empty() {
        true => bail!("topic {topic:?}: the server answered {code}"),
        false => bail!("topic {topic:?}: the server answered {code}: {text}"),
    }
}

/// The first address of a host.
async fn resolve(url: &Url) -> anyhow::Result<std::net::SocketAddr> {
    let target = (url.host.as_str(), url.port);
    let mut found = tokio::net::lookup_host(target).await.with_context(|| url.host.clone())?;
    found.next().with_context(|| format!("{} has no address", url.host))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn url(text: &str) -> (bool, String, u16, String) {
        let url = Url::parse(text).unwrap();
        (url.secure, url.host, url.port, url.root.join("/"))
    }

    #[test]
    fn urls_are_taken_apart() {
        let of = |secure, host: &str, port, root: &str| (secure, host.into(), port, root.into());
        assert_eq!(url("coap://broker"), of(false, "broker", 5683, "ps"));
        assert_eq!(url("COAPS://broker/"), of(true, "broker", 5684, "ps"));
        assert_eq!(url("coap://[::1]:7000"), of(false, "::1", 7000, "ps"));
        assert_eq!(url("coap://[::1]"), of(false, "::1", 5683, "ps"));
        assert_eq!(url("coap://h:1/a/b"), of(false, "h", 1, "a/b"));
        for bad in ["coap://", "coap://h:x", "coap://me@h", "coap://h/a?b"] {
            assert!(Url::parse(bad).unwrap_err().is::<Usage>(), "{bad}");
        }
    }

    #[test]
    fn topics_are_paths() {
        let url = Url::parse("coap://h").unwrap();
        assert_eq!(url.path("a/b").unwrap(), ["ps", "a", "b"]);
        assert!(url.path("a/+").is_err());
        assert!(url.path(&"x".repeat(256)).is_err());
    }
}
