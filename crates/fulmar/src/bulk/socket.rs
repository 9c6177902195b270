//! What an address on the command line means as a UDP socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use anyhow::Context;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::net::UdpSocket;

use crate::exit::Usage;

/// NORM's port.
const PORT: u16 = 6003;
/// What waits in the kernel while we hash or write; it gives less if it may not give so much.
const BUFFER_BYTES: usize = 4 << 20;

/// Reads `host:port`, or a host alone for the usual port.
pub(super) fn address(text: &str) -> anyhow::Result<SocketAddr> {
    let unusable = || Usage(format!("{text}: use an address such as 192.0.2.7:{PORT}"));
    let found = match text.parse::<IpAddr>() {
        Ok(ip) => Some(SocketAddr::new(ip, PORT)),
        Err(_) if text.contains(':') => text.to_socket_addrs().map_err(|_| unusable())?.next(),
        Err(_) => (text, PORT).to_socket_addrs().map_err(|_| unusable())?.next(),
    };
    found.ok_or_else(|| unusable().into())
}

/// The host of an address, as a certificate names it.
pub(super) fn host(text: &str) -> &str {
    if text.parse::<IpAddr>().is_ok() {
        return text;
    }
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn socket(family: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(family), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    // Both are wishes.
    let _ = socket.set_recv_buffer_size(BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(BUFFER_BYTES / 8);
    Ok(socket)
}

fn any(family: SocketAddr, port: u16) -> SocketAddr {
    match family {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, port).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, port).into(),
    }
}

/// A socket to send to `to` from.
pub(super) fn to(
    to: SocketAddr,
    interface: Option<Ipv4Addr>,
    hops: u32,
) -> anyhow::Result<UdpSocket> {
    let make = || {
        let socket = socket(to)?;
        if to.ip().is_multicast() {
            if to.is_ipv4() {
                socket.set_multicast_ttl_v4(hops)?;
                socket.set_multicast_if_v4(&interface.unwrap_or(Ipv4Addr::UNSPECIFIED))?;
            } else {
                socket.set_multicast_hops_v6(hops)?;
            }
        }
        socket.bind(&SockAddr::from(any(to, 0)))?;
        UdpSocket::from_std(socket.into())
    };
    make().with_context(|| format!("cannot send to {to}"))
}

/// A socket that hears what is sent to `from`, and whom alone to believe: if `from` is no address of this
/// machine, it is the sender's.
pub(super) fn from(
    from: SocketAddr,
    interface: Option<Ipv4Addr>,
) -> anyhow::Result<(UdpSocket, Option<IpAddr>)> {
    let make = || {
        let socket = socket(from)?;
        if !from.ip().is_multicast() {
            let bound = socket.bind(&SockAddr::from(from));
            let foreign =
                bound.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable);
            if foreign {
                socket.bind(&SockAddr::from(any(from, from.port())))?;
            } else {
                bound?;
            }
            return Ok((UdpSocket::from_std(socket.into())?, foreign.then_some(from.ip())));
        }
        // Several receivers of a group may be on one machine.
        socket.set_reuse_address(true)?;
        socket.bind(&SockAddr::from(from))?;
        match from.ip() {
            IpAddr::V4(group) => {
                socket.join_multicast_v4(&group, &interface.unwrap_or(Ipv4Addr::UNSPECIFIED))?;
            }
            IpAddr::V6(group) => socket.join_multicast_v6(&group, 0)?,
        }
        Ok((UdpSocket::from_std(socket.into())?, None))
    };
    make()
        .map_err(|error: io::Error| anyhow::Error::from(error))
        .with_context(|| format!("cannot listen on {from}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_port_may_be_left_out() {
        assert_eq!(address("192.0.2.7").unwrap(), "192.0.2.7:6003".parse().unwrap());
        assert_eq!(address("192.0.2.7:9").unwrap(), "192.0.2.7:9".parse().unwrap());
        assert_eq!(address("[::1]:9").unwrap(), "[::1]:9".parse().unwrap());
        assert_eq!(address("::1").unwrap(), "[::1]:6003".parse().unwrap());
        assert_eq!(address("localhost").unwrap().port(), 6003);
        for (text, name) in
            [("192.0.2.7:9", "192.0.2.7"), ("[::1]:9", "::1"), ("::1", "::1"), ("a:9", "a")]
        {
            assert_eq!(host(text), name);
        }
        assert!(address("192.0.2.7:x").unwrap_err().is::<Usage>());
    }

    #[tokio::test]
    async fn a_foreign_address_is_the_senders() {
        let (_, whom) = from("192.0.2.7:0".parse().unwrap(), None).unwrap();
        assert_eq!(whom, Some("192.0.2.7".parse().unwrap()));
        let (_, whom) = from("127.0.0.1:0".parse().unwrap(), None).unwrap();
        assert_eq!(whom, None);
    }
}
