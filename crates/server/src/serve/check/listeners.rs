//! Checks whether the listeners' addresses can be bound, and which process holds those that cannot.

use std::io::ErrorKind;
use std::net::SocketAddr;

use fulmar_transport::StartError;

use super::finding::Finding;
use super::processes::Process;
use crate::config::{Config, Listeners};
use crate::serve::listeners::where_to_change;

/// A socket that the server would bind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Socket {
    name: &'static str,
    address: SocketAddr,
    datagrams: bool,
    /// Skipped if it is in use.
    optional: bool,
}

/// Every socket of a server with this configuration.
pub(crate) fn sockets(config: &Config) -> Vec<Socket> {
    let mut all = Vec::new();
    let mut add = |name: &'static str, addresses: &[SocketAddr], datagrams: &[bool]| {
        for &address in addresses {
            all.extend(datagrams.iter().map(|&datagrams| Socket {
                name,
                address,
                datagrams,
                optional: false,
            }));
        }
    };
    for (name, addresses) in config.listeners.mqtt_listeners() {
        add(
            name,
            addresses,
            match name {
                "quic" | "webtransport" => &[true],
                // HTTP/3 on the same port.
                "https" => &[false, true],
                _ => &[false],
            },
        );
    }
    add("http", &config.listeners.http, &[false]);
    add("mqtt_sn", &config.listeners.mqtt_sn, &[true]);
    for (name, addresses) in config.listeners.coap_listeners() {
        let used = addresses.iter().filter(|&&address| !is_off(config, name, address));
        all.extend(used.map(|&address| Socket {
            name,
            address,
            datagrams: true,
            optional: Listeners::is_coap_default(address),
        }));
    }
    all
}

/// True if nothing listens there, although the address is the default: no client could use it.
fn is_off(config: &Config, name: &str, address: SocketAddr) -> bool {
    name == "coap" && !config.policy(name, address).allow_anonymous
}

pub(super) fn check(config: &Config, server: Option<&Process>) -> Vec<Finding> {
    let sockets = sockets(config);
    let conflicts = conflicts(&sockets);
    let bound = sockets.iter().map(|socket| socket_finding(socket, server));
    let mut findings: Vec<Finding> = conflicts.into_iter().chain(bound).collect();
    for (name, addresses) in config.listeners.coap_listeners() {
        let off = addresses.iter().filter(|&&address| is_off(config, name, address));
        findings.extend(off.map(|address| {
            let text = format!("off at {address}: anonymous clients are not allowed");
            Finding::ok(format!("listener {name}"), text)
        }));
    }
    // Of the same listener, once: `https` has two sockets per address.
    findings.dedup();
    findings
}

fn socket_finding(socket: &Socket, server: Option<&Process>) -> Finding {
    let Socket { name, address, datagrams, optional } = *socket;
    let check = format!("listener {name}");
    let Err(error) = fulmar_transport::can_listen(address, datagrams) else {
        return Finding::ok(check, address.to_string());
    };
    let StartError::Bind { source, .. } = &error else {
        return Finding::error(check, &error.into());
    };
    let change = where_to_change(name);
    if source.kind() != ErrorKind::AddrInUse {
        return Finding::problem(check, error.to_string(), format!("set {change}"));
    }
    let holder = Process::listening_on(address, datagrams);
    let protocol = if datagrams { "UDP" } else { "TCP" };
    match &holder {
        Some(holder) if server == Some(holder) => {
            Finding::ok(check, format!("{address} is in use by {holder} until the restart"))
        }
        Some(holder) => {
            let text = format!("{address} ({protocol}) is in use by {holder}");
            taken(check, text, optional, format!("stop that program, or set {change}"))
        }
        None => {
            let text = format!("{address} ({protocol}) is in use by another program");
            let flags = if datagrams { "-ulnp" } else { "-tlnp" };
            let next = format!(
                "`sudo ss {flags} 'sport = :{}'` shows which program it is: stop it, or set {change}",
                address.port()
            );
            taken(check, text, optional, next)
        }
    }
}

fn taken(check: String, text: String, optional: bool, next: String) -> Finding {
    match optional {
        true => Finding::warning(
            check,
            format!("{text}; the server starts without this listener"),
            next,
        ),
        false => Finding::problem(check, text, next),
    }
}

/// Addresses of the configuration that exclude each other.
fn conflicts(sockets: &[Socket]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (number, one) in sockets.iter().enumerate() {
        for other in &sockets[..number] {
            let (a, b) = (one.address, other.address);
            // An IPv6 listener serves IPv6 only.
            let family = a.is_ipv4() == b.is_ipv4();
            let host = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
            let same = a.port() == b.port() && a.port() != 0 && family && host;
            if same && one.datagrams == other.datagrams {
                found.push(Finding::problem(
                    format!("listener {}", one.name),
                    format!("{a} is also the address of listener {}: {b}", other.name),
                    format!("set another port: {}", where_to_change(one.name)),
                ));
            }
        }
    }
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    fn texts(toml: &str) -> Vec<String> {
        let config = Config::from_toml(toml).unwrap();
        conflicts(&sockets(&config)).into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn listeners_at_one_address_are_found() {
        assert!(texts("").is_empty());
        let twice = texts("[listeners]\nws = [\"127.0.0.1:1883\"]\n");
        assert_eq!(twice, ["127.0.0.1:1883 is also the address of listener mqtt: 127.0.0.1:1883"]);
        let all = "[auth]\nallow_anonymous = \"always\"\n[listeners]\nmqtt = [\"0.0.0.0:7\"]\n";
        assert_eq!(texts(&format!("{all}ws = [\"127.0.0.1:7\"]\n")).len(), 1);
        // TCP and UDP, and the two families, have ports of their own.
        assert!(texts(&format!("{all}quic = [\"127.0.0.1:7\"]\nws = [\"[::1]:7\"]\n")).is_empty());
    }

    #[test]
    fn a_port_that_is_taken_is_a_problem_except_for_its_own_server() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let wanted = Socket { name: "mqtt", address, datagrams: false, optional: false };
        let finding = socket_finding(&wanted, None);
        assert_eq!(finding.level, Level::Problem);
        assert!(finding.text.contains(&format!("{address} (TCP) is in use by")), "{finding:?}");
        assert!(finding.next.unwrap().contains("FULMAR_LISTENERS__MQTT"));
        let holder = Process::listening_on(address, false);
        assert_eq!(socket_finding(&wanted, holder.as_ref()).level, Level::Ok);
        let optional = Socket { optional: true, ..wanted };
        assert_eq!(socket_finding(&optional, None).level, Level::Warning);
        drop(socket);
        assert_eq!(socket_finding(&wanted, None).level, Level::Ok);
    }
}
