//! Binds one socket per worker to one address; the kernel distributes connections among them (SO_REUSEPORT).
//!
//! SO_REUSEPORT has a trap: a second broker on the same port would start without an error and
//! take half of the clients; and for UDP port 0 Linux may choose a port that another broker of the
//! same user shares. The first socket is therefore bound without it, which succeeds only with a
//! port that no other socket has; later sockets share its port.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tracing::warn;

use crate::quic::steering;

/// Connections the kernel keeps for a listener that has not yet accepted them; a burst of devices
/// coming back after a power cut should not meet resets. The kernel's own `somaxconn` caps it.
const BACKLOG: i32 = 4096;

/// UDP buffers asked of the kernel, in bytes: a burst of all clients must fit.
const UDP_BUFFER_BYTES: usize = 4 * 1024 * 1024;

/// A socket that listens on an address, non-blocking, without SO_REUSEPORT.
///
/// # Errors
/// The system refuses it.
pub fn listening_socket(address: SocketAddr, datagrams: bool) -> io::Result<OwnedFd> {
    let mut sockets = bind(address, 1, if datagrams { Type::DGRAM } else { Type::STREAM })?;
    if !datagrams {
        sockets[0].set_tcp_nodelay(true)?;
        sockets[0].listen(BACKLOG)?;
    }
    Ok(sockets.remove(0).into())
}

/// Size of a UDP listener's receive buffer in the kernel: the bytes that listeners ask for, and the bytes that
/// they get.
///
/// # Errors
/// The system refuses a socket.
pub fn receive_buffer() -> io::Result<(usize, usize)> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    // What cannot be set shows in what is granted.
    let _ = socket.set_recv_buffer_size(UDP_BUFFER_BYTES);
    // Linux reports twice what was asked for, because half of it is for its own records (socket(7)).
    let granted = socket.recv_buffer_size()? / if cfg!(target_os = "linux") { 2 } else { 1 };
    Ok((UDP_BUFFER_BYTES, granted))
}

/// `count` listening sockets on `address`, non-blocking.
///
/// TCP_NODELAY is set here because accepted sockets inherit it, which saves a system call each.
pub(crate) fn bind_tcp(address: SocketAddr, count: usize) -> io::Result<Vec<TcpListener>> {
    bind(address, count, Type::STREAM)?
        .into_iter()
        .map(|socket| {
            socket.set_tcp_nodelay(true)?;
            socket.listen(BACKLOG)?;
            Ok(socket.into())
        })
        .collect()
}

/// `count` datagram sockets on `address`, non-blocking, in the order of the workers.
///
/// The kernel steers each datagram to the worker its connection ID names; where it cannot, there is
/// one socket and one worker. In a cluster, connection IDs also name the node.
pub(crate) fn bind_udp(
    address: SocketAddr,
    count: usize,
    in_cluster: bool,
) -> io::Result<Vec<UdpSocket>> {
    let count = count.min(steering::MAX_WORKERS);
    let mut sockets = bind(address, count, Type::DGRAM)?;
    for socket in &sockets {
        // Best effort: the kernel may give less, which costs speed, not correctness.
        let _ = socket.set_recv_buffer_size(UDP_BUFFER_BYTES);
        let _ = socket.set_send_buffer_size(UDP_BUFFER_BYTES);
    }
    if count > 1
        && let Err(error) = steering::attach(&sockets[0], count, in_cluster)
    {
        warn!(%error, "QUIC uses one worker: this kernel cannot steer packets by connection ID");
        sockets.truncate(1);
    }
    Ok(sockets.into_iter().map(UdpSocket::from).collect())
}

fn bind(address: SocketAddr, count: usize, kind: Type) -> io::Result<Vec<Socket>> {
    let first = open(address, kind)?;
    first.bind(&SockAddr::from(address))?;
    let bound = first.local_addr()?;
    if count > 1 {
        first.set_reuse_port(true)?;
    }
    let mut sockets = vec![first];
    for _ in 1..count {
        let socket = open(address, kind)?;
        socket.set_reuse_port(true)?;
        socket.bind(&bound)?;
        sockets.push(socket);
    }
    Ok(sockets)
}

fn open(address: SocketAddr, kind: Type) -> io::Result<Socket> {
    let protocol = if kind == Type::STREAM { Protocol::TCP } else { Protocol::UDP };
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    if address.is_ipv6() {
        // Both families on one port are two listeners; a dual-stack one would be in their way.
        socket.set_only_v6(true)?;
    }
    // A stream socket may take over connections in TIME_WAIT, never a listening one; a datagram
    // socket might take over a port in use.
    socket.set_reuse_address(kind == Type::STREAM)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::net::{Ipv4Addr, TcpStream};

    const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    #[test]
    fn workers_share_the_port_the_first_one_got() {
        for ports in [
            bind_tcp(ANY, 3).unwrap().iter().map(|s| s.local_addr().unwrap()).collect::<Vec<_>>(),
            bind_udp(ANY, 3, false)
                .unwrap()
                .iter()
                .map(|s| s.local_addr().unwrap())
                .collect::<Vec<_>>(),
        ] {
            assert_ne!(ports[0].port(), 0);
            assert!(ports.iter().all(|port| *port == ports[0]));
        }
    }

    #[test]
    fn an_address_in_use_is_refused_although_ports_are_shared() {
        let tcp = bind_tcp(ANY, 2).unwrap();
        let error = bind_tcp(tcp[0].local_addr().unwrap(), 2).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let udp = bind_udp(ANY, 2, false).unwrap();
        let error = bind_udp(udp[0].local_addr().unwrap(), 2, false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_port_the_system_chose_is_nobody_elses() {
        // 200 at once in 28,000 ports: one round in two has a chance meeting where it can happen.
        for kind in [Type::DGRAM, Type::STREAM] {
            for _ in 0..12 {
                let brokers: Vec<_> = (0..200).map(|_| bind(ANY, 2, kind).unwrap()).collect();
                let port = |sockets: &Vec<Socket>| {
                    sockets[0].local_addr().unwrap().as_socket().unwrap().port()
                };
                let different: HashSet<u16> = brokers.iter().map(port).collect();
                assert_eq!(different.len(), brokers.len());
            }
        }
    }

    #[test]
    fn accepted_sockets_inherit_nodelay() {
        let listener = bind_tcp(ANY, 1).unwrap().remove(0);
        listener.set_nonblocking(false).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(listener.accept().unwrap().0.nodelay().unwrap());
    }
}
