//! Addresses of brokers: `SCHEME://HOST[:PORT][/PATH]`, or a list `SCHEME://HOST[:PORT],HOST[:PORT]…[/PATH]`. User and password are options, not part of an address, so
//! that they do not get into logs and process lists.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::error::Error;

/// A transport of MQTT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Plain TCP, `mqtt://`.
    Tcp,
    /// TLS over TCP, `mqtts://`.
    Tls,
    /// QUIC, `quic://`.
    Quic,
    /// WebSocket, `ws://`.
    Ws,
    /// WebSocket over TLS, `wss://`.
    Wss,
}

impl Transport {
    const ALL: [(Transport, &'static str, u16); 5] = [
        (Transport::Tcp, "mqtt", 1883),
        (Transport::Tls, "mqtts", 8883),
        (Transport::Quic, "quic", 14567),
        (Transport::Ws, "ws", 8083),
        (Transport::Wss, "wss", 8443),
    ];

    fn entry(self) -> &'static (Transport, &'static str, u16) {
        // The table is in the order of the variants; a test compares them.
        &Transport::ALL[self as usize]
    }

    /// The URL scheme.
    #[must_use]
    pub fn scheme(self) -> &'static str {
        self.entry().1
    }

    /// The port used when a URL names none.
    #[must_use]
    pub fn default_port(self) -> u16 {
        self.entry().2
    }

    /// Whether the bytes are encrypted.
    #[must_use]
    pub fn is_secure(self) -> bool {
        matches!(self, Transport::Tls | Transport::Quic | Transport::Wss)
    }
}

/// A broker's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerUrl {
    /// The transport.
    pub transport: Transport,
    /// Name or address, an IPv6 address without brackets.
    pub host: String,
    /// TCP or UDP port.
    pub port: u16,
    /// Path of the WebSocket, with its slash; `/mqtt` unless given.
    pub path: String,
}

/// The most addresses of a list.
const MAX_ADDRESSES: usize = 16;

impl BrokerUrl {
    /// The addresses of a list, `SCHEME://HOST[:PORT],HOST[:PORT]…`: the nodes of one cluster.
    ///
    /// # Errors
    /// One is not an address of a broker, or there are more than 16.
    pub fn list(text: &str) -> Result<Vec<BrokerUrl>, Error> {
        let whole = |reason| Error::Url { url: without_password(text), reason };
        let Some((scheme, rest)) = text.split_once("://") else { return Ok(vec![text.parse()?]) };
        if rest.contains("://") {
            return Err(whole("write the scheme of a list once, before its first host"));
        }
        let (hosts, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let list: Vec<_> = hosts.split(',').take(MAX_ADDRESSES + 1).collect();
        if list.len() > MAX_ADDRESSES {
            return Err(whole("a list has at most 16 addresses"));
        }
        list.into_iter().map(|host| format!("{scheme}://{host}{path}").parse()).collect()
    }

    /// Whether the host is this machine.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.host.eq_ignore_ascii_case("localhost")
            || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// Host and port in the form of a URL.
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.transport.scheme(), self.authority())?;
        match self.transport {
            Transport::Ws | Transport::Wss => f.write_str(&self.path),
            _ => Ok(()),
        }
    }
}

impl FromStr for BrokerUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<BrokerUrl, Error> {
        parse(text).map_err(|reason| Error::Url { url: without_password(text), reason })
    }
}

/// Text before the last @ may contain a password.
fn without_password(text: &str) -> String {
    text.rsplit_once('@').map_or(text.to_owned(), |(_, rest)| format!("…@{rest}"))
}

fn parse(text: &str) -> Result<BrokerUrl, &'static str> {
    let (scheme, rest) = text.split_once("://").ok_or("the scheme is missing")?;
    let scheme = scheme.to_ascii_lowercase();
    // As Paho's clients write them.
    let scheme = match &*scheme {
        "tcp" => "mqtt",
        "ssl" | "tls" => "mqtts",
        scheme => scheme,
    };
    let known = Transport::ALL.iter().find(|(_, name, _)| scheme == *name);
    let (transport, _, default_port) = *known.ok_or("unknown scheme")?;
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let web = matches!(transport, Transport::Ws | Transport::Wss);
    if !web && !matches!(path, "" | "/") {
        return Err("only WebSocket URLs have a path");
    }
    if authority.contains(',') {
        return Err("one address is needed here, not a list");
    }
    if authority.contains('@') {
        return Err("user and password are options (-u, -P), not part of the URL");
    }
    if authority.bytes().chain(path.bytes()).any(|byte| byte <= b' ' || byte == 0x7F) {
        return Err("it contains blanks or control characters");
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(inner) => {
            let (host, after) = inner.split_once(']').ok_or("a [ has no matching ]")?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| "not an IPv6 address in brackets")?;
            let port = match after {
                "" => None,
                after => Some(after.strip_prefix(':').ok_or("after ] only :PORT may follow")?),
            };
            (host, port)
        }
        None => match authority.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err("put the IPv6 address in brackets");
            }
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() {
        return Err("the host is missing");
    }
    let port = match port {
        None => default_port,
        Some(port) => {
            port.parse().ok().filter(|port| *port != 0).ok_or("the port is not 1–65535")?
        }
    };
    let path = if matches!(path, "" | "/") { "/mqtt" } else { path };
    Ok(BrokerUrl { transport, host: host.to_owned(), port, path: path.to_owned() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn schemes_have_their_ports() {
        for (transport, scheme, port) in Transport::ALL {
            let url: BrokerUrl = format!("{scheme}://h").parse().unwrap();
            assert_eq!((url.transport, url.port), (transport, port));
            assert_eq!(transport.scheme(), scheme);
        }
        for (alias, url) in
            [("tcp", "mqtt://h:1883"), ("ssl", "mqtts://h:8883"), ("TLS", "mqtts://h:8883")]
        {
            assert_eq!(format!("{alias}://h").parse::<BrokerUrl>().unwrap().to_string(), url);
        }
    }

    #[test]
    fn urls_print_as_they_parse() {
        for text in ["mqtt://a:1", "quic://[::1]:14567", "wss://h:443/x/y", "ws://h:8083/mqtt"] {
            assert_eq!(text.parse::<BrokerUrl>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn invalid_urls_are_errors_that_show_no_password() {
        for bad in
            ["h", "http://h", "mqtt://", "mqtt://h:0", "mqtt://::1", "mqtt://h/x", "ws://[1]"]
        {
            assert!(bad.parse::<BrokerUrl>().is_err(), "{bad}");
        }
        let error = "mqtt://me:secret@h".parse::<BrokerUrl>().unwrap_err().to_string();
        assert!(!error.contains("secret") && error.contains("-u"), "{error}");
    }

    #[test]
    fn a_list_has_one_scheme_and_one_path() {
        let list = |text| {
            BrokerUrl::list(text)
                .map(|list| list.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(list("mqtts://a").unwrap(), ["mqtts://a:8883"]);
        assert_eq!(
            list("quic://a:1,[::1]:2,c").unwrap(),
            ["quic://a:1", "quic://[::1]:2", "quic://c:14567"]
        );
        assert_eq!(list("ws://a,b:9/x").unwrap(), ["ws://a:8083/x", "ws://b:9/x"]);
        let many = format!("mqtt://a{}", ",a".repeat(16));
        for bad in ["a,b", "mqtt://a,", "mqtt://,a", "mqtt://a,mqtt://b", "mqtt://a,b:0", &many] {
            assert!(list(bad).is_err(), "{bad}");
        }
        assert!("mqtt://a,b".parse::<BrokerUrl>().is_err());
        let error = list("mqtt://a,me:secret@b").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn loopback_is_known_by_name_and_address() {
        for (host, local) in
            [("localhost", true), ("127.0.0.9", true), ("[::1]", true), ("h", false)]
        {
            let url: BrokerUrl = format!("quic://{host}").parse().unwrap();
            assert_eq!(url.is_loopback(), local, "{host}");
        }
    }
}
