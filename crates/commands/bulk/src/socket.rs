//! Turns an address on the command line into a UDP socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::num::NonZeroU32;
use std::str::FromStr;

use anyhow::Context;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::net::UdpSocket;

use crate::exit::Usage;

/// NORM's port.
const PORT: u16 = 6003;
/// The kernel's buffer for datagrams that arrive during hashing or writing; the kernel may grant less.
const BUFFER_BYTES: usize = 4 << 20;

/// The interface for multicast: IPv4 identifies interfaces by an address, IPv6 by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interface {
    Address(Ipv4Addr),
    Index(NonZeroU32),
}

impl FromStr for Interface {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Interface, Self::Err> {
        if let Ok(address) = text.parse() {
            return Ok(Interface::Address(address));
        }
        let is_name = !text.is_empty() && !text.contains('/') && !text.starts_with('.');
        let named = || std::fs::read_to_string(format!("/sys/class/net/{text}/ifindex")).ok();
        let index = is_name.then(named).flatten().and_then(|index| index.trim().parse().ok());
        index.map(Interface::Index).ok_or("no IPv4 address, and no interface of this machine")
    }
}

/// An interface in the form of IPv4's options.
fn by_address(interface: Option<Interface>) -> io::Result<Ipv4Addr> {
    match interface {
        None => Ok(Ipv4Addr::UNSPECIFIED),
        Some(Interface::Address(address)) => Ok(address),
        Some(Interface::Index(_)) => {
            Err(io::Error::other("an IPv4 group needs an interface's address"))
        }
    }
}

/// An interface in the form of IPv6's options; 0 is any.
fn by_index(interface: Option<Interface>) -> io::Result<u32> {
    match interface {
        None => Ok(0),
        Some(Interface::Index(index)) => Ok(index.get()),
        Some(Interface::Address(_)) => {
            Err(io::Error::other("an IPv6 group needs an interface's name"))
        }
    }
}

/// Whether a group is of an interface or a link, of which a machine may have several.
const fn is_of_a_link(group: Ipv6Addr) -> bool {
    matches!(group.segments()[0] & 0xFF0F, 0xFF01 | 0xFF02)
}

/// Reads `host:port`, or a host alone for the usual port.
pub(super) fn address(text: &str) -> anyhow::Result<SocketAddr> {
    let unusable = || Usage(format!("{text}: use an address such as 192.0.2.7:{PORT}"));
    let found = match text.parse::<IpAddr>() {
        Ok(ip) => Some(SocketAddr::new(ip, PORT)),
        Err(_) if text.contains('%') => Some(with_zone(text).ok_or_else(unusable)?),
        Err(_) if text.contains(':') => text.to_socket_addrs().map_err(|_| unusable())?.next(),
        Err(_) => (text, PORT).to_socket_addrs().map_err(|_| unusable())?.next(),
    };
    found.ok_or_else(|| unusable().into())
}

/// A link-local address of IPv6, with the interface through which it is reached: `[fe80::1%eth0]:9`, or without a port.
fn with_zone(text: &str) -> Option<SocketAddr> {
    let (address, rest) = text.split_once('%')?;
    let (zone, port) = match rest.split_once("]:") {
        Some((zone, port)) => (zone, port.parse().ok()?),
        None => (rest.trim_end_matches(']'), PORT),
    };
    let zone = match zone.parse() {
        Ok(index) => index,
        Err(_) => by_index(zone.parse().ok()).ok().filter(|index| *index > 0)?,
    };
    let ip = address.trim_start_matches('[').parse().ok()?;
    Some(SocketAddrV6::new(ip, port, 0, zone).into())
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
    // Both may be refused.
    let _ = socket.set_recv_buffer_size(BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(BUFFER_BYTES / 8);
    Ok(socket)
}

/// All addresses of this family, at a port.
pub(crate) fn unspecified(family: SocketAddr, port: u16) -> SocketAddr {
    match family {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, port).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, port).into(),
    }
}

/// A socket for sending to `to`.
pub(super) fn to(
    to: SocketAddr,
    interface: Option<Interface>,
    hops: u32,
) -> anyhow::Result<UdpSocket> {
    let make = || {
        let socket = socket(to)?;
        if to.ip().is_multicast() {
            if to.is_ipv4() {
                socket.set_multicast_ttl_v4(hops)?;
                socket.set_multicast_if_v4(&by_address(interface)?)?;
            } else {
                socket.set_multicast_hops_v6(hops)?;
                let index = by_index(interface)?;
                let zone = if let SocketAddr::V6(to) = to { to.scope_id() } else { 0 };
                socket.set_multicast_if_v6(if index == 0 { zone } else { index })?;
            }
        }
        socket.bind(&SockAddr::from(unspecified(to, 0)))?;
        UdpSocket::from_std(socket.into())
    };
    make().with_context(|| format!("cannot send to {to}"))
}

/// A socket that receives datagrams sent to `from`, and the only sender to accept: if `from` is not an address of
/// this machine, it is the sender's.
pub(super) fn from(
    from: SocketAddr,
    interface: Option<Interface>,
) -> anyhow::Result<(UdpSocket, Option<IpAddr>)> {
    let make = || {
        let socket = socket(from)?;
        if !from.ip().is_multicast() {
            let bound = socket.bind(&SockAddr::from(from));
            let foreign =
                bound.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable);
            if foreign {
                socket.bind(&SockAddr::from(unspecified(from, from.port())))?;
            } else {
                bound?;
            }
            return Ok((UdpSocket::from_std(socket.into())?, foreign.then_some(from.ip())));
        }
        // Several receivers of a group may run on one machine.
        socket.set_reuse_address(true)?;
        match from {
            SocketAddr::V4(group) => {
                socket.bind(&SockAddr::from(group))?;
                socket.join_multicast_v4(group.ip(), &by_address(interface)?)?;
            }
            SocketAddr::V6(mut group) => {
                if interface.is_some() {
                    group.set_scope_id(by_index(interface)?);
                }
                if is_of_a_link(*group.ip()) && group.scope_id() == 0 {
                    return Err(io::Error::other("a group of a link needs --interface NAME"));
                }
                socket.bind(&SockAddr::from(group))?;
                socket.join_multicast_v6(group.ip(), group.scope_id())?;
            }
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
        for text in ["192.0.2.7:x", "[fe80::1%no-such-interface]:9", "fe80::1%", "x%lo"] {
            assert!(address(text).unwrap_err().is::<Usage>(), "{text}");
        }
        let SocketAddr::V6(local) = address("[fe80::1%lo]:9").unwrap() else { panic!("IPv6") };
        assert_eq!((local.port(), local.scope_id()), (9, 1));
        assert_eq!(address("fe80::1%1").unwrap(), address("[fe80::1%lo]:6003").unwrap());
    }

    #[tokio::test]
    async fn a_group_of_a_link_has_an_interface() {
        let lo = "lo".parse().ok();
        for group in ["[ff02::4242]:0", "[ff12::4242]:0"] {
            let group = group.parse().unwrap();
            from(group, lo).unwrap();
            let error = format!("{:#}", from(group, None).unwrap_err());
            assert!(error.contains("--interface"), "{error}");
        }
        from(address("[ff02::4242%lo]:0").unwrap(), None).unwrap();
    }

    #[test]
    fn an_interface_is_an_address_or_a_name() {
        let address = "192.0.2.7".parse::<Interface>().unwrap();
        assert_eq!(address, Interface::Address([192, 0, 2, 7].into()));
        for text in ["", "::1", "../lo", "no-such-interface"] {
            assert!(text.parse::<Interface>().is_err(), "{text:?}");
        }
        assert!(by_index(Some(address)).is_err(), "what IPv6 cannot use is refused");
        let index = Interface::Index(NonZeroU32::MIN);
        assert_eq!((by_index(Some(index)).unwrap(), by_index(None).unwrap()), (1, 0));
        assert!(by_address(Some(index)).is_err());
    }

    #[tokio::test]
    async fn a_foreign_address_is_the_senders() {
        let (_, whom) = from("192.0.2.7:0".parse().unwrap(), None).unwrap();
        assert_eq!(whom, Some("192.0.2.7".parse().unwrap()));
        let (_, whom) = from("127.0.0.1:0".parse().unwrap(), None).unwrap();
        assert_eq!(whom, None);
    }
}
