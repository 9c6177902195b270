//! Ports that `fulmar serve` has unless it is told otherwise. No test has one: `make run` beside the tests does.

use std::net::SocketAddr;
use std::sync::LazyLock;

const EXAMPLE: &str = include_str!("../../fulmar.example.toml");

/// Every listener of the example configuration, which has the defaults, with its ports; none where it is off or the
/// system chooses.
///
/// # Panics
/// The example is not as it was.
#[must_use]
pub fn default_listeners() -> Vec<(&'static str, Vec<u16>)> {
    let lines = EXAMPLE.lines().skip_while(|line| *line != "[listeners]").skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    let settings = lines.filter(|line| !line.starts_with('#'));
    let listeners = settings.filter_map(|line| line.split_once(" = [")).map(|(name, addresses)| {
        let addresses = addresses.trim_end_matches(']').split(", ");
        let addresses =
            addresses.map(|text| text.trim_matches('"')).filter(|text| !text.is_empty());
        let ports = addresses.map(|text| text.parse::<SocketAddr>().unwrap().port());
        let mut ports: Vec<_> = ports.filter(|port| *port != 0).collect();
        // Of both families.
        ports.dedup();
        (name, ports)
    });
    let listeners: Vec<_> = listeners.collect();
    assert!(listeners.len() > 8 && listeners[0].1.len() == 1, "{listeners:?}");
    listeners
}

static DEFAULTS: LazyLock<Vec<u16>> =
    LazyLock::new(|| default_listeners().into_iter().flat_map(|(_, ports)| ports).collect());

/// Whether a line has the number of a default port, or the address of a server without a port.
///
/// # Panics
/// The example is not as it was.
#[must_use]
pub fn names_a_default_port(line: &str) -> bool {
    let of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let of_host = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let without_port = |(at, _): (usize, &str)| {
        let scheme = line[..at].rsplit(|c| !of_word(c)).next().unwrap_or_default();
        let rest = &line[at + 3..];
        let end = rest.find(|c| !of_host(c)).unwrap_or(rest.len());
        let is_ours = ["mqtt", "mqtts", "ws", "wss", "quic", "coap", "coaps"].contains(&scheme);
        is_ours && end > 0 && !rest[end..].starts_with(':')
    };
    line.split(|c| !of_word(c)).any(|word| word.parse().is_ok_and(|port| DEFAULTS.contains(&port)))
        || line.match_indices("://").any(without_port)
}

/// Fails if a program of a test has a default port.
pub(crate) fn check(bound: &[(String, SocketAddr)]) {
    for (name, address) in bound {
        let port = address.port();
        assert!(!DEFAULTS.contains(&port), "a test's {name} has a default port: {address}");
    }
}
