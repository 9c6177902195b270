//! Checks whether the listeners' addresses can be bound, and which process holds those that cannot.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use fulmar_transport::StartError;

use super::finding::Finding;
use super::processes::Process;
use fulmar_config::{Config, Listeners};
use fulmar_part::where_to_change;

/// A socket that the server would bind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Socket {
    name: &'static str,
    address: SocketAddr,
    datagrams: bool,
    /// Skipped if it is in use.
    optional: bool,
}

impl Socket {
    /// True if at most one of the two can be bound.
    fn excludes(&self, other: &Socket) -> bool {
        let (a, b) = (self.address, other.address);
        // An IPv6 listener serves IPv6 only.
        let family = a.is_ipv4() == b.is_ipv4();
        let host = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
        self.datagrams == other.datagrams && a.port() == b.port() && family && host
    }
}

/// Every socket of a server with this configuration, in the order of the start.
pub(crate) fn sockets(config: &Config) -> Vec<Socket> {
    let mut all = Vec::new();
    let mut add = |name: &'static str, addresses: &[SocketAddr], datagrams: &[bool]| {
        for &address in addresses {
            all.extend(datagrams.iter().map(|&datagrams| Socket {
                name,
                address,
                datagrams,
                optional: name.starts_with("coap") && Listeners::is_coap_default(address),
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
    for (name, addresses) in config.listeners.coap_listeners() {
        let used = addresses.iter().copied().filter(|&address| !is_off(config, name, address));
        add(name, &used.collect::<Vec<_>>(), &[true]);
    }
    add("mqtt_sn", &config.listeners.mqtt_sn, &[true]);
    add("http", &config.listeners.http, &[false]);
    all
}

/// True if nothing listens there, although the address is the default: no client could use it.
fn is_off(config: &Config, name: &str, address: SocketAddr) -> bool {
    name == "coap" && !config.policy(name, address).allow_anonymous
}

pub(super) fn check(config: &Config, server: Option<&Process>) -> Vec<Finding> {
    // Together, as at the start.
    let mut bound = Vec::new();
    let try_next = |socket| socket_finding(socket, &mut bound, server);
    let mut findings: Vec<Finding> = sockets(config).into_iter().map(try_next).collect();
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

/// Those that are bound, and those that the running server has.
type Bound = Vec<(Socket, Option<OwnedFd>)>;

fn socket_finding(socket: Socket, bound: &mut Bound, server: Option<&Process>) -> Finding {
    let Socket { name, address, datagrams, optional } = socket;
    let check = format!("listener {name}");
    let error = match fulmar_transport::listening_socket(address, datagrams) {
        Ok(listening) => {
            bound.push((socket, Some(listening)));
            return Finding::ok(check, address.to_string());
        }
        Err(error) => error,
    };
    let change = where_to_change(name);
    if error.kind() != ErrorKind::AddrInUse {
        let error = StartError::Bind { address, source: error };
        return Finding::problem(check, error.to_string(), format!("set {change}"));
    }
    if let Some((other, _)) = bound.iter().find(|(other, _)| socket.excludes(other)) {
        let text =
            format!("{address} is also the address of listener {}: {}", other.name, other.address);
        return taken(check, text, optional, format!("set another port: {change}"));
    }
    let holder = Process::listening_on(address, datagrams);
    let protocol = if datagrams { "UDP" } else { "TCP" };
    match &holder {
        Some(holder) if server == Some(holder) => {
            bound.push((socket, None));
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    /// Returns the findings about these listeners and no others, where PORT is one that is free.
    fn found(listeners: &str) -> Vec<(Level, String)> {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port().to_string();
        drop(socket);
        let defaults = ["mqtt", "mqtts", "ws", "quic", "https", "http", "coap", "coaps"];
        let off = defaults.iter().filter(|name| !listeners.contains(&format!("{name} =")));
        let off: String = off.map(|name| format!("{name} = []\n")).collect();
        let toml = format!("[auth]\nallow_anonymous = \"always\"\n[listeners]\n{off}{listeners}");
        let config = Config::from_toml(&toml.replace("PORT", &port)).unwrap();
        let findings = check(&config, None).into_iter();
        let bad = findings.filter(|finding| finding.level != Level::Ok);
        bad.map(|finding| (finding.level, finding.text.replace(&port, "PORT"))).collect()
    }

    #[test]
    fn listeners_are_tried_together() {
        let twice = found("mqtt = [\"127.0.0.1:PORT\"]\nws = [\"127.0.0.1:PORT\"]\n");
        let text = "127.0.0.1:PORT is also the address of listener mqtt: 127.0.0.1:PORT";
        assert_eq!(twice, [(Level::Problem, text.to_owned())]);
        let all = found("mqtt = [\"0.0.0.0:PORT\"]\nws = [\"127.0.0.1:PORT\"]\n");
        let text = "127.0.0.1:PORT is also the address of listener mqtt: 0.0.0.0:PORT";
        assert_eq!(all, [(Level::Problem, text.to_owned())]);
        // TCP and UDP, and the two families, have ports of their own.
        let beside = "mqtt = [\"0.0.0.0:PORT\", \"[::]:PORT\"]\nquic = [\"127.0.0.1:PORT\"]\n";
        assert_eq!(found(beside), []);
    }

    #[test]
    fn a_default_listener_gives_way_to_another_of_the_configuration() {
        let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let quic = Socket { name: "quic", address: free, datagrams: true, optional: false };
        let coap = Socket { name: "coap", optional: true, ..quic };
        let mut bound = Vec::new();
        assert_eq!(socket_finding(quic, &mut bound, None).level, Level::Ok);
        let finding = socket_finding(coap, &mut bound, None);
        assert_eq!(finding.level, Level::Warning);
        let text = format!("{free} is also the address of listener quic: {free}");
        assert!(finding.text.starts_with(&text), "{finding:?}");
    }

    #[test]
    fn a_port_that_is_taken_is_a_problem_except_for_its_own_server() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let wanted = Socket { name: "mqtt", address, datagrams: false, optional: false };
        let check = |socket, server| socket_finding(socket, &mut Vec::new(), server);
        let finding = check(wanted, None);
        assert_eq!(finding.level, Level::Problem);
        assert!(finding.text.contains(&format!("{address} (TCP) is in use by")), "{finding:?}");
        assert!(finding.next.unwrap().contains("FULMAR_LISTENERS__MQTT"));
        let holder = Process::listening_on(address, false);
        assert_eq!(check(wanted, holder.as_ref()).level, Level::Ok);
        let optional = Socket { optional: true, ..wanted };
        assert_eq!(check(optional, None).level, Level::Warning);
        drop(socket);
        assert_eq!(check(wanted, None).level, Level::Ok);
    }
}
