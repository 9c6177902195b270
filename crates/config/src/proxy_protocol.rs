//! `[proxy_protocol]`: proxies in front of TCP listeners that pass on their clients' addresses.

use std::net::SocketAddr;

use fulmar_transport::proxy_protocol::{Network, Proxies};
use serde::{Deserialize, Serialize};

use super::Config;
use super::sections::{Anonymous, Listeners};
use fulmar_text::Usage;

/// The listeners over TCP. QUIC and other protocols over UDP have no such header.
const TCP: [&str; 5] = ["mqtt", "mqtts", "ws", "wss", "https"];

/// Listeners behind proxies, and the addresses of these proxies.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProxyProtocol {
    /// Names of listeners, or single addresses of theirs.
    pub listeners: Vec<String>,
    /// The proxies' networks.
    pub from: Vec<String>,
}

impl ProxyProtocol {
    /// Whether clients of the listener `name` at `address` connect through proxies.
    pub fn covers(&self, name: &str, address: SocketAddr) -> bool {
        let is_it = |entry: &String| {
            entry == name || entry.parse::<SocketAddr>().is_ok_and(|one| one == address)
        };
        TCP.contains(&name) && self.listeners.iter().any(is_it)
    }

    /// The proxies, which all listeners behind proxies share.
    ///
    /// # Errors
    /// An entry names no network.
    pub fn proxies(&self) -> Result<Proxies, Usage> {
        let parsed = self.from.iter().map(|network| network.parse::<Network>());
        let networks = parsed.collect::<Result<_, _>>();
        Ok(Proxies::new(
            networks.map_err(|error| Usage(format!("[proxy_protocol] from: {error}")))?,
        ))
    }

    /// Checks each entry.
    ///
    /// # Errors
    /// One names no listener over TCP or no network, or one of the lists is missing.
    pub fn check(&self, listeners: &Listeners) -> Result<(), Usage> {
        let wrong = |text: String| Err(Usage(format!("[proxy_protocol] {text}")));
        self.proxies()?;
        if self.listeners.is_empty() != self.from.is_empty() {
            return wrong(
                "listeners and from go together: set from to the networks of your proxies, such as [\"10.0.0.0/8\"], and \
                 listeners to those behind them, such as [\"mqtts\"]"
                    .to_owned(),
            );
        }
        let bound = listeners.mqtt_listeners();
        let over_tcp = || bound.iter().filter(|(name, _)| TCP.contains(name));
        for entry in &self.listeners {
            let address = entry.parse::<SocketAddr>().ok();
            let is_one = |(name, addresses): &(&str, &[SocketAddr])| {
                name == entry || address.is_some_and(|one| addresses.contains(&one))
            };
            if !over_tcp().any(is_one) {
                return wrong(format!(
                    "listeners: {entry:?} is not a listener over TCP; write mqtt, mqtts, ws, wss, https, or an \
                     address of one as in [listeners] (QUIC and other UDP listeners have no PROXY protocol)"
                ));
            }
        }
        Ok(())
    }
}

impl Config {
    /// Whether the listener `name` at `address` accepts anonymous clients. Behind a proxy, a listener on loopback has
    /// clients on other machines.
    pub fn allows_anonymous(&self, name: &str, address: SocketAddr) -> bool {
        match self.auth.allow_anonymous {
            Anonymous::Loopback if self.proxy_protocol.covers(name, address) => false,
            policy => policy.at(address),
        }
    }

    /// Whether clients on other machines can connect to the listener `name` at `address`.
    pub fn is_reachable(&self, name: &str, address: SocketAddr) -> bool {
        !address.ip().is_loopback() || self.proxy_protocol.covers(name, address)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn with(listeners: &[&str], from: &[&str]) -> Config {
        let text = |list: &[&str]| list.iter().map(|&entry| entry.to_owned()).collect();
        let proxy_protocol = ProxyProtocol { listeners: text(listeners), from: text(from) };
        Config { proxy_protocol, ..Config::default() }
    }

    fn error(listeners: &[&str], from: &[&str]) -> String {
        let config = with(listeners, from);
        config.proxy_protocol.check(&config.listeners).unwrap_err().to_string()
    }

    #[test]
    fn entries_are_listeners_over_tcp_and_networks() {
        for listeners in [&["mqtts", "https"][..], &["127.0.0.1:1883"]] {
            let config = with(listeners, &["10.0.0.0/8", "::1"]);
            config.proxy_protocol.check(&config.listeners).unwrap();
        }
        assert!(error(&["mqtts"], &[]).contains("go together"));
        assert!(error(&[], &["10.0.0.0/8"]).contains("go together"));
        assert!(error(&["mqtts"], &["10.0.0.1/8"]).contains("is not a network"));
        // 14567 is that of QUIC.
        for entry in ["quic", "coap", "http", "127.0.0.1:14567", "127.0.0.1:1", "tls"] {
            assert!(error(&[entry], &["::1"]).contains("over TCP"), "{entry}");
        }
    }

    #[test]
    fn behind_a_proxy_loopback_is_no_proof_of_being_local() {
        let local = "127.0.0.1:1883".parse().unwrap();
        let config = with(&["mqtt"], &["127.0.0.1"]);
        assert!(!config.allows_anonymous("mqtt", local) && config.is_reachable("mqtt", local));
        assert!(config.allows_anonymous("ws", local) && !config.is_reachable("ws", local));
        let one = with(&["127.0.0.1:1883"], &["127.0.0.1"]);
        assert!(!one.allows_anonymous("mqtt", local) && one.allows_anonymous("quic", local));
    }
}
