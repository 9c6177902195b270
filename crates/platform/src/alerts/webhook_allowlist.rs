//! Addresses to which webhooks may connect: public ones, and those that the operator allows (`webhook_allow`).
//!
//! A twin's manager chooses the webhooks' URLs, but the server sends the requests, and services on its own machine and
//! network trust it (server-side request forgery; RFC 6890 lists those networks). Every address is checked right before
//! the connection, so that a host name cannot resolve to one address for the check and another for the connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fulmar_text::network::is_within;

/// Addresses and hosts to which webhooks may connect besides public addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookAllowlist(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    host: Host,
    /// `None` for any.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    /// Addresses with this prefix, and the prefix's length in bits.
    Network(IpAddr, u8),
    /// A host name, with any address.
    Name(String),
}

/// An entry that is neither an address, a network nor a host name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?}: expected an address, a network or a host's name, such as \"127.0.0.1:8080\", \"10.0.0.0/8\" or \
     \"hooks.internal\""
)]
pub struct InvalidAllowlistEntry(String);

impl WebhookAllowlist {
    /// Parses the operator's entries: addresses, networks (`ADDRESS/BITS`) and host names, with or without a port.
    ///
    /// # Errors
    /// An entry is none of these.
    pub fn new<T: AsRef<str>>(entries: &[T]) -> Result<WebhookAllowlist, InvalidAllowlistEntry> {
        let entries = entries.iter().map(|entry| {
            let entry = entry.as_ref();
            Entry::parse(entry).ok_or_else(|| InvalidAllowlistEntry(entry.to_owned()))
        });
        entries.collect::<Result<_, _>>().map(WebhookAllowlist)
    }

    /// Whether webhooks may connect to this address, to which `host` was resolved.
    pub fn allows(&self, host: &str, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        is_public(ip)
            || self.0.iter().any(|entry| {
                entry.port.is_none_or(|port| port == address.port())
                    && match &entry.host {
                        Host::Network(network, bits) => is_within(ip, *network, *bits),
                        Host::Name(name) => name.eq_ignore_ascii_case(host),
                    }
            })
    }

    /// Whether a URL's host may be allowed, as far as is known without resolving it.
    pub(crate) fn may_allow(&self, host: &str, port: u16) -> bool {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        match bare.parse() {
            Ok(ip) => self.allows(host, SocketAddr::new(ip, port)),
            Err(_) if is_this_machine(bare) => {
                [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)]
                    .into_iter()
                    .any(|ip| self.allows(host, SocketAddr::new(ip, port)))
            }
            Err(_) => true,
        }
    }
}

/// Names that mean loopback everywhere (RFC 6761 section 6.3).
fn is_this_machine(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

impl Entry {
    fn parse(text: &str) -> Option<Entry> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Some(Entry { port: Some(address.port()), ..Entry::at(address.ip(), None)? });
        }
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse() {
            return Entry::at(address, None);
        }
        if let Some((address, bits)) = text.split_once('/') {
            return Entry::at(address.parse().ok()?, Some(bits.parse().ok()?));
        }
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => (name, Some(port.parse().ok()?)),
            None => (text, None),
        };
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        // A mistyped address is not a name.
        let is_name = name.bytes().all(good) && name.bytes().any(|byte| byte.is_ascii_alphabetic());
        is_name.then(|| Entry { host: Host::Name(name.to_owned()), port })
    }

    fn at(address: IpAddr, bits: Option<u8>) -> Option<Entry> {
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        (bits <= most).then_some(Entry { host: Host::Network(address, bits), port: None })
    }
}

/// IPv4 networks that are not public (IANA's registry of special-purpose addresses).
const SPECIAL_V4: [(Ipv4Addr, u8); 15] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// The same within the allocated part of IPv6 (2000::/3): tunnels and other addresses that contain an IPv4 address, and
/// documentation. Everything outside that part is special.
const SPECIAL_V6: [(Ipv6Addr, u8); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];
const ALLOCATED_V6: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);
/// Prefix by which IPv6-only networks reach IPv4 (RFC 6052): the last 32 bits are the IPv4 address.
const NAT64: (Ipv6Addr, u8) = (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);

/// Whether this canonical address is public.
fn is_public(address: IpAddr) -> bool {
    let within = |(network, bits): (Ipv6Addr, u8)| is_within(address, network.into(), bits);
    match address {
        IpAddr::V4(_) => {
            !SPECIAL_V4.iter().any(|(network, bits)| is_within(address, (*network).into(), *bits))
        }
        IpAddr::V6(v6) if within(NAT64) => {
            let [.., a, b, c, d] = v6.octets();
            is_public(Ipv4Addr::new(a, b, c, d).into())
        }
        IpAddr::V6(_) => within(ALLOCATED_V6) && !SPECIAL_V6.into_iter().any(within),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn allows(allowlist: &WebhookAllowlist, host: &str, address: &str) -> bool {
        allowlist.allows(host, address.parse().unwrap())
    }

    #[test]
    fn only_public_addresses_are_allowed() {
        let allowlist = WebhookAllowlist::default();
        for public in [
            "1.1.1.1",
            "93.184.215.14",
            "[2606:4700::1111]",
            "[64:ff9b::1.1.1.1]",
            "[::ffff:1.1.1.1]",
        ] {
            assert!(allows(&allowlist, "a.example", &format!("{public}:443")), "{public}");
        }
        for own in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "[::1]",
            "[::]",
            "[fe80::1]",
            "[fc00::1]",
            "[fd12::1]",
            "[ff02::1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:10.0.0.1]",
            "[::127.0.0.1]",
            "[64:ff9b::127.0.0.1]",
            "[64:ff9b::10.0.0.1]",
            "[64:ff9b:1::1]",
            "[2002:7f00:1::]",
            "[2001::1]",
            "[2001:db8::1]",
            "[fec0::1]",
        ] {
            assert!(!allows(&allowlist, "a.example", &format!("{own}:443")), "{own}");
        }
    }

    #[test]
    fn the_operator_allows_others() {
        let allowlist = WebhookAllowlist::new(&[
            "10.0.0.0/8",
            "127.0.0.1:8080",
            "[fd00::1]:443",
            "::1",
            "hooks.internal",
        ])
        .unwrap();
        for (host, address, expected) in [
            ("x", "10.255.0.1:443", true),
            ("x", "11.0.0.0:443", true),
            ("x", "127.0.0.1:8080", true),
            ("x", "[::ffff:127.0.0.1]:8080", true),
            ("x", "127.0.0.1:8081", false),
            ("x", "[fd00::1]:443", true),
            ("x", "[fd00::2]:443", false),
            ("x", "[::1]:9", true),
            ("Hooks.internal", "192.168.0.1:9", true),
            ("hooks.internal.evil.example", "192.168.0.1:9", false),
        ] {
            assert_eq!(allows(&allowlist, host, address), expected, "{host} {address}");
        }
        for wrong in
            ["", "10.0.0.0/33", "10.0.0", "a b", "http://a/", "a:port", "300.1.1.1", "10.0.0.0/x"]
        {
            assert!(WebhookAllowlist::new(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_private_address_in_a_url_is_refused_at_once() {
        let (none, own) =
            (WebhookAllowlist::default(), WebhookAllowlist::new(&["127.0.0.1:80"]).unwrap());
        for host in ["127.0.0.1", "[::1]", "localhost", "LOCALHOST.", "a.localhost", "10.0.0.1"] {
            assert!(!none.may_allow(host, 80), "{host}");
        }
        assert!(none.may_allow("hooks.example", 443));
        assert!(own.may_allow("localhost", 80) && own.may_allow("127.0.0.1", 80));
        assert!(!own.may_allow("localhost", 81));
    }
}
