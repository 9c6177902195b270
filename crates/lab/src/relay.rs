//! The way from a link to the outside for `fulmar lab link -- CMD`: a gateway host that stands in for this machine
//! and, as far as this machine can reach it, for the Internet.
//!
//! When the program behind the link sends its first TCP SYN or UDP datagram to an address and port, the relay opens a
//! socket for exactly that address and port in the gateway, before the packet gets there, and passes its data on from
//! outside the namespaces: for the gateway's own address to the same port on this machine's loopback, for any other
//! address to that address. A port of the gateway without a service on this machine stays closed, as it would be
//! without a relay.
//!
//! TCP ends at the gateway: losses on the link are repaired between the program and the gateway's kernel, and the
//! service sees an unimpaired connection. UDP datagrams keep their boundaries, and each client address gets its own
//! socket, so that a server sees a client migrate. ECN marks, hop limits and ICMP are not passed on. Threads end with
//! the process.

use std::collections::HashMap;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::SockRef;

use crate::link::{DropReason, HostId};
use crate::net::Host;
use crate::observe::Observer;
use crate::units::Nanos;
use crate::wire::{PacketView, Protocol};

/// The most address and port pairs that are passed on; further ones stay closed.
const MAX_PORTS: usize = 1024;
/// The most clients of one UDP port; datagrams of further ones are lost.
const MAX_CLIENTS: usize = 4096;
/// A UDP client that has received nothing for this long is forgotten.
const UDP_IDLE: Duration = Duration::from_secs(300);
/// Bytes that the gateway's kernel holds unsent for a connection: data that it holds beyond the link's own queue
/// hides the link from the service.
const UNSENT: u32 = 16_384;
const DATAGRAM: usize = 65_536;

type Port = (Protocol, IpAddr, u16);

/// Opens ports in the gateway when they are first used.
#[derive(Debug)]
pub(crate) struct Relay {
    gateway: Arc<Host>,
    open: HashSet<Port>,
}

impl Relay {
    pub(crate) fn new(gateway: Arc<Host>) -> Relay {
        Relay { gateway, open: HashSet::new() }
    }

    fn open(&mut self, port: Port) {
        let (protocol, address, number) = port;
        if self.open.contains(&port) || self.open.len() >= MAX_PORTS {
            return;
        }
        let own = HostId::from_address(address) == Some(self.gateway.id());
        let target =
            if own { local_service(protocol, number) } else { Some((address, number).into()) };
        let Some(target) = target else { return };
        let opened = match protocol {
            Protocol::Tcp => self.open_tcp((address, number).into(), target),
            _ => self.open_udp((address, number).into(), target),
        };
        match opened {
            Ok(()) => {
                self.open.insert(port);
            }
            Err(error) => tracing::warn!(%address, port = number, %error, "not passed on"),
        }
    }

    fn open_tcp(&self, at: SocketAddr, target: SocketAddr) -> io::Result<()> {
        let listener = self.gateway.run(|| TcpListener::bind(at))??;
        thread(move || {
            while let Ok((inner, _)) = listener.accept() {
                thread(move || pass_connection(inner, target));
            }
        });
        Ok(())
    }

    fn open_udp(&self, at: SocketAddr, target: SocketAddr) -> io::Result<()> {
        let socket = Arc::new(self.gateway.run(|| UdpSocket::bind(at))??);
        thread(move || pass_datagrams(&socket, target));
        Ok(())
    }
}

impl Observer for Relay {
    fn sent(&mut self, _at: Nanos, from: HostId, packet: &[u8]) {
        if from == self.gateway.id() {
            return;
        }
        let Some(view) = PacketView::parse(packet) else { return };
        let opens = match view.protocol() {
            Protocol::Tcp => view.tcp().is_some_and(|tcp| tcp.syn && !tcp.ack),
            Protocol::Udp => true,
            _ => false,
        };
        let to = view.destination();
        let to_gateway = HostId::from_address(to).is_none_or(|host| host == self.gateway.id());
        if opens
            && to_gateway
            && !to.is_multicast()
            && let Some((_, port)) = view.ports()
        {
            self.open((view.protocol(), to, port));
        }
    }

    fn delivered(&mut self, _at: Nanos, _to: HostId, _packet: &[u8]) {}

    fn dropped(&mut self, _at: Nanos, _from: HostId, _reason: DropReason, _packet: &[u8]) {}
}

fn thread(work: impl FnOnce() + Send + 'static) {
    let started = std::thread::Builder::new().name("lab-relay".to_owned()).spawn(work);
    if let Err(error) = started {
        tracing::warn!(%error, "no thread to pass on");
    }
}

/// Passes a TCP connection on, both ways, until both have ended. A service that refuses, or breaks
/// off, resets the client.
fn pass_connection(inner: TcpStream, target: SocketAddr) {
    let reset = |stream: &TcpStream| {
        let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
    };
    let Ok(outer) = TcpStream::connect(target) else { return reset(&inner) };
    let _ = (inner.set_nodelay(true), outer.set_nodelay(true));
    let _ = SockRef::from(&inner).set_tcp_notsent_lowat(UNSENT);
    let pass = |from: &TcpStream, to: &TcpStream| match io::copy(&mut &*from, &mut &*to) {
        Ok(_) => drop(to.shutdown(Shutdown::Write)),
        Err(_) => {
            reset(&inner);
            reset(&outer);
            let _ = (inner.shutdown(Shutdown::Both), outer.shutdown(Shutdown::Both));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| pass(&inner, &outer));
        pass(&outer, &inner);
    });
}

/// Passes datagrams on: to the service through a socket for each client, and back.
fn pass_datagrams(inner: &Arc<UdpSocket>, target: SocketAddr) {
    let clients = Arc::new(Mutex::new(HashMap::<SocketAddr, Arc<UdpSocket>>::new()));
    let mut buffer = vec![0; DATAGRAM];
    loop {
        // An ICMP error about an earlier datagram is no reason to stop.
        let Ok((length, client)) = inner.recv_from(&mut buffer) else { continue };
        let mut known = clients.lock().unwrap_or_else(PoisonError::into_inner);
        let outer = match known.get(&client) {
            Some(outer) => Arc::clone(outer),
            None if known.len() >= MAX_CLIENTS => continue,
            None => match outer_socket(target) {
                Ok(outer) => {
                    let outer = Arc::new(outer);
                    known.insert(client, Arc::clone(&outer));
                    let (inner, outer_too, clients) =
                        (Arc::clone(inner), Arc::clone(&outer), Arc::clone(&clients));
                    thread(move || {
                        pass_back(&outer_too, &inner, client);
                        clients.lock().unwrap_or_else(PoisonError::into_inner).remove(&client);
                    });
                    outer
                }
                Err(error) => {
                    tracing::warn!(%target, %error, "datagram not passed on");
                    continue;
                }
            },
        };
        drop(known);
        let _ = outer.send(&buffer[..length]);
    }
}

fn outer_socket(target: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(target)?;
    socket.set_read_timeout(Some(UDP_IDLE))?;
    Ok(socket)
}

fn pass_back(outer: &UdpSocket, inner: &UdpSocket, client: SocketAddr) {
    let mut buffer = vec![0; DATAGRAM];
    loop {
        match outer.recv(&mut buffer) {
            Ok(length) => drop(inner.send_to(&buffer[..length], client)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_) => return,
        }
    }
}

/// The address on this machine's loopback of a service on a port, if there is one.
fn local_service(protocol: Protocol, port: u16) -> Option<SocketAddr> {
    let name = if protocol == Protocol::Tcp { "tcp" } else { "udp" };
    let table = |name: &str| {
        fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default()
    };
    let v4 = table(name);
    let v6 = table(&format!("{name}6"));
    let is_tcp = protocol == Protocol::Tcp;
    let v4_listens =
        ["0100007F", "00000000"].into_iter().any(|own| listens(&v4, own, port, is_tcp));
    let any_v6 = listens(&v6, &"0".repeat(32), port, is_tcp);
    let own_v6 = listens(&v6, &format!("{}01000000", "0".repeat(24)), port, is_tcp);
    if v4_listens {
        Some((Ipv4Addr::LOCALHOST, port).into())
    } else if any_v6 || own_v6 {
        Some((Ipv6Addr::LOCALHOST, port).into())
    } else {
        None
    }
}

/// Whether one of the kernel's socket tables (proc_pid_net(5)) has a listener on address and port.
fn listens(table: &str, address: &str, port: u16, is_tcp: bool) -> bool {
    const LISTENING: &str = "0A";
    const UNCONNECTED: &str = "07";
    let wanted = format!("{address}:{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace();
        fields.nth(1) == Some(wanted.as_str())
            && fields.nth(1) == Some(if is_tcp { LISTENING } else { UNCONNECTED })
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn services_of_this_machine_are_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(local_service(Protocol::Tcp, port), listener.local_addr().ok());
        let socket = UdpSocket::bind("[::1]:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert_eq!(local_service(Protocol::Udp, port), socket.local_addr().ok());
        drop(socket);
        assert_eq!(local_service(Protocol::Udp, port), None);
    }

    #[test]
    fn a_connected_socket_is_no_listener() {
        let table = "  sl  local_address rem_address   st\n\
                     0: 0100007F:0050 0100007F:9999 01 0\n\
                     1: 0100007F:0051 00000000:0000 0A 0\n";
        assert!(!listens(table, "0100007F", 80, true));
        assert!(listens(table, "0100007F", 81, true));
    }
}
