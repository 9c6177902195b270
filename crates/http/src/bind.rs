//! Binding TCP and UDP to the same address and port, so that `Alt-Svc` can name it.
//!
//! Nothing is shared between processes (no SO_REUSEPORT): a second server on the port is an error.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};

use fulmar_transport::listening_socket;

/// Ports tried when any will do: TCP's choice may be taken for UDP.
const ATTEMPTS: usize = 32;

/// Both sockets, non-blocking.
pub(crate) fn bind(address: SocketAddr) -> io::Result<(TcpListener, UdpSocket)> {
    let mut attempts = if address.port() == 0 { ATTEMPTS } else { 1 };
    loop {
        attempts -= 1;
        let tcp = bind_tcp(address)?;
        match bind_udp(tcp.local_addr()?) {
            Ok(udp) => return Ok((tcp, udp)),
            Err(error) if attempts > 0 && error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
}

/// A TCP socket alone, non-blocking.
pub(crate) fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    listening_socket(address, false).map(TcpListener::from)
}

/// A UDP socket alone, non-blocking.
pub(crate) fn bind_udp(address: SocketAddr) -> io::Result<UdpSocket> {
    listening_socket(address, true).map(UdpSocket::from)
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
