//! Where webhooks may reach: addresses that anybody on the Internet can reach, and what the operator lists.
//!
//! Whoever manages a twin chooses webhooks' addresses, and the server asks there in its own place: on its own
//! machine and network there are services that trust it (RFC 6890 has those networks). Whoever connects asks
//! here with the address it connects to, so that a name cannot mean one thing here and another there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What webhooks may reach beside public addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookReach(Vec<Listed>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    host: Host,
    /// `None` for any.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    /// Addresses whose first so many bits are these.
    Network(IpAddr, u32),
    /// A name, whatever its addresses are.
    Name(String),
}

/// What cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?}: expected an address, a network or a host's name, such as \"127.0.0.1:8080\", \"10.0.0.0/8\" or \
     \"hooks.internal\""
)]
pub struct NotListable(String);

impl WebhookReach {
    /// What the operator lists: addresses, networks (`ADDRESS/BITS`) and hosts' names, each with or without a
    /// port.
    ///
    /// # Errors
    /// One of them is none of these.
    pub fn new<T: AsRef<str>>(listed: &[T]) -> Result<WebhookReach, NotListable> {
        let listed = listed.iter().map(|entry| {
            let entry = entry.as_ref();
            Listed::parse(entry).ok_or_else(|| NotListable(entry.to_owned()))
        });
        listed.collect::<Result<_, _>>().map(WebhookReach)
    }

    /// Whether a connection may be made to this address, which `host` was found to have.
    #[must_use]
    pub fn admits(&self, host: &str, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        is_public(ip)
            || self.0.iter().any(|listed| {
                listed.port.is_none_or(|port| port == address.port())
                    && match &listed.host {
                        Host::Network(network, bits) => is_within(ip, *network, *bits),
                        Host::Name(name) => name.eq_ignore_ascii_case(host),
                    }
            })
    }

    /// Whether what a URL names as its host can be reached, as far as that can be told without looking it up.
    pub(crate) fn may_admit(&self, host: &str, port: u16) -> bool {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        match bare.parse() {
            Ok(ip) => self.admits(host, SocketAddr::new(ip, port)),
            Err(_) if is_this_machine(bare) => {
                [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)]
                    .into_iter()
                    .any(|ip| self.admits(host, SocketAddr::new(ip, port)))
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

impl Listed {
    fn parse(text: &str) -> Option<Listed> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Some(Listed { port: Some(address.port()), ..Listed::at(address.ip(), None)? });
        }
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse() {
            return Listed::at(address, None);
        }
        if let Some((address, bits)) = text.split_once('/') {
            return Listed::at(address.parse().ok()?, Some(bits.parse().ok()?));
        }
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => (name, Some(port.parse().ok()?)),
            None => (text, None),
        };
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        // A mistyped address is no name.
        let is_name = name.bytes().all(good) && name.bytes().any(|byte| byte.is_ascii_alphabetic());
        is_name.then(|| Listed { host: Host::Name(name.to_owned()), port })
    }

    fn at(address: IpAddr, bits: Option<u32>) -> Option<Listed> {
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        (bits <= most).then_some(Listed { host: Host::Network(address, bits), port: None })
    }
}

fn is_within(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let apart = address.to_bits() ^ network.to_bits();
            apart.leading_zeros() >= bits
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let apart = address.to_bits() ^ network.to_bits();
            apart.leading_zeros() >= bits
        }
        _ => false,
    }
}

/// Networks of IPv4 that are not everybody's (IANA's registry of special-purpose addresses).
const SPECIAL_V4: [(Ipv4Addr, u32); 15] = [
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

/// The same within the part of IPv6 that is given out (2000::/3); everything outside it is special: tunnels and
/// other addresses that hold an IPv4 one, and documentation.
const SPECIAL_V6: [(Ipv6Addr, u32); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];
const GIVEN_OUT_V6: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);
/// How networks with IPv6 alone reach IPv4 (RFC 6052): its last 32 bits are the address.
const NAT64: (Ipv6Addr, u32) = (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);

/// Whether anybody on the Internet can reach this address, written in its shortest form.
fn is_public(address: IpAddr) -> bool {
    let within = |(network, bits): (Ipv6Addr, u32)| is_within(address, network.into(), bits);
    match address {
        IpAddr::V4(_) => {
            !SPECIAL_V4.iter().any(|(network, bits)| is_within(address, (*network).into(), *bits))
        }
        IpAddr::V6(v6) if within(NAT64) => {
            let [.., a, b, c, d] = v6.octets();
            is_public(Ipv4Addr::new(a, b, c, d).into())
        }
        IpAddr::V6(_) => within(GIVEN_OUT_V6) && !SPECIAL_V6.into_iter().any(within),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn admits(reach: &WebhookReach, host: &str, address: &str) -> bool {
        reach.admits(host, address.parse().unwrap())
    }

    #[test]
    fn only_public_addresses_are_reached() {
        let reach = WebhookReach::default();
        for public in [
            "1.1.1.1",
            "93.184.215.14",
            "[2606:4700::1111]",
            "[64:ff9b::1.1.1.1]",
            "[::ffff:1.1.1.1]",
        ] {
            assert!(admits(&reach, "a.example", &format!("{public}:443")), "{public}");
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
            assert!(!admits(&reach, "a.example", &format!("{own}:443")), "{own}");
        }
    }

    #[test]
    fn the_operator_lists_others() {
        let reach = WebhookReach::new(&[
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
            assert_eq!(admits(&reach, host, address), expected, "{host} {address}");
        }
        for wrong in
            ["", "10.0.0.0/33", "10.0.0", "a b", "http://a/", "a:port", "300.1.1.1", "10.0.0.0/x"]
        {
            assert!(WebhookReach::new(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_a_url_says_is_refused_at_once() {
        let (none, own) = (WebhookReach::default(), WebhookReach::new(&["127.0.0.1:80"]).unwrap());
        for host in ["127.0.0.1", "[::1]", "localhost", "LOCALHOST.", "a.localhost", "10.0.0.1"] {
            assert!(!none.may_admit(host, 80), "{host}");
        }
        assert!(none.may_admit("hooks.example", 443));
        assert!(own.may_admit("localhost", 80) && own.may_admit("127.0.0.1", 80));
        assert!(!own.may_admit("localhost", 81));
    }
}
