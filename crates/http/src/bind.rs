//! Binding TCP and UDP to the same address and port, so that `Alt-Svc` can name it.
//!
//! Nothing is shared between processes (no SO_REUSEPORT): a second server on the port is an error.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Connections the kernel keeps until they are accepted.
const BACKLOG: i32 = 1024;

/// Ports tried when any will do: TCP's choice may be taken for UDP.
const ATTEMPTS: usize = 32;

/// Both sockets, non-blocking.
pub(crate) fn bind(address: SocketAddr) -> io::Result<(TcpListener, UdpSocket)> {
    let mut attempts = if address.port() == 0 { ATTEMPTS } else { 1 };
    loop {
        attempts -= 1;
        let tcp = open(address, Type::STREAM, Protocol::TCP)?;
        tcp.listen(BACKLOG)?;
        tcp.set_tcp_nodelay(true)?;
        let tcp = TcpListener::from(tcp);
        match open(tcp.local_addr()?, Type::DGRAM, Protocol::UDP) {
            Ok(udp) => return Ok((tcp, udp.into())),
            Err(error) if attempts > 0 && error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
}

/// A TCP socket alone, non-blocking.
pub(crate) fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let tcp = open(address, Type::STREAM, Protocol::TCP)?;
    tcp.listen(BACKLOG)?;
    Ok(tcp.into())
}

/// A UDP socket alone, non-blocking.
pub(crate) fn bind_udp(address: SocketAddr) -> io::Result<UdpSocket> {
    Ok(open(address, Type::DGRAM, Protocol::UDP)?.into())
}

fn open(address: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // For TCP: connections in TIME_WAIT do not keep a restarted server from its port. For UDP it would
    // let two servers share one.
    socket.set_reuse_address(kind == Type::STREAM)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(address))?;
    Ok(socket)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn both_get_one_port_and_nobody_else_does() {
        let (tcp, udp) = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = tcp.local_addr().unwrap();
        assert_eq!(address, udp.local_addr().unwrap());
        assert_eq!(bind(address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(tcp);
        assert_eq!(bind(address).unwrap_err().kind(), io::ErrorKind::AddrInUse, "UDP is taken");
    }

    #[test]
    fn both_families_listen_on_one_port() {
        // Another program may have the port in the other family.
        let is_possible = (0..20).any(|_| {
            let Ok(six) = bind_tcp("[::]:0".parse().unwrap()) else { return false };
            bind_tcp(([0; 4], six.local_addr().unwrap().port()).into()).is_ok()
        });
        assert_eq!(is_possible, TcpListener::bind("[::1]:0").is_ok());
    }
}
