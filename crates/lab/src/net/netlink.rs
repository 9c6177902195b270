//! The part of rtnetlink that a host needs: links up, addresses, routes. (rtnetlink(7))
//!
//! Own code, because the existing crates have an asynchronous runtime and about a thousand message types for the four
//! messages below. A socket belongs to the namespace in which it was created, wherever its owner moves.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::net::Protocol;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

/// NETLINK_ROUTE is protocol 0.
const ROUTE: Option<Protocol> = None;

const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const NEW_ROUTE: u16 = 24;
const ERROR: u16 = 2;

const REQUEST_WITH_ANSWER: u16 = 1 | 4;
const CREATE_NEW: u16 = 0x400 | 0x200;

const HEADER: usize = 16;
const INET: u8 = 2;
const INET6: u8 = 10;
const INTERFACE_UP: u32 = 1;
/// There cannot be duplicate addresses; without detection, IPv6 addresses are usable at once.
const NO_DUPLICATE_DETECTION: u8 = 2;

/// A routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Main = 254,
    /// Searched first: routes to this host.
    Local = 255,
}

/// The type of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteKind {
    /// Out of the device.
    Unicast = 1,
    /// To this host itself.
    Local = 2,
}

/// A netlink socket.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// In the calling thread's network namespace.
    pub(crate) fn new() -> io::Result<Netlink> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, ROUTE)?;
        Ok(Netlink { socket, sequence: 0 })
    }

    /// Sets a device up, with an MTU and a queue length if given.
    pub(crate) fn set_up(
        &mut self,
        device: u32,
        mtu: Option<u32>,
        queue: Option<u32>,
    ) -> io::Result<()> {
        let mut body = vec![0u8; 4];
        body.extend_from_slice(&device.to_ne_bytes());
        body.extend_from_slice(&INTERFACE_UP.to_ne_bytes());
        body.extend_from_slice(&INTERFACE_UP.to_ne_bytes());
        for (kind, value) in [(4, mtu), (13, queue)] {
            if let Some(value) = value {
                attribute(&mut body, kind, &value.to_ne_bytes());
            }
        }
        self.request(NEW_LINK, 0, &body)
    }

    /// Adds an address to a device, alone in its network: removing it then never removes another one, as it would in
    /// a shared network.
    pub(crate) fn add_address(&mut self, device: u32, address: IpAddr) -> io::Result<()> {
        self.request(NEW_ADDRESS, CREATE_NEW, &address_body(device, address))
    }

    /// Takes an address away.
    pub(crate) fn delete_address(&mut self, device: u32, address: IpAddr) -> io::Result<()> {
        self.request(DELETE_ADDRESS, 0, &address_body(device, address))
    }

    /// Adds a route for a network to a device.
    pub(crate) fn add_route(
        &mut self,
        device: u32,
        network: IpAddr,
        prefix: u8,
        table: Table,
        kind: RouteKind,
    ) -> io::Result<()> {
        let (family, bytes) = octets(network);
        const STATIC: u8 = 4;
        let scope = match (kind, family) {
            (RouteKind::Local, _) => 254,
            (RouteKind::Unicast, INET) => 253,
            (RouteKind::Unicast, _) => 0,
        };
        let mut body = vec![family, prefix, 0, 0, table as u8, STATIC, scope, kind as u8];
        body.extend_from_slice(&[0; 4]);
        if prefix > 0 {
            attribute(&mut body, 1, &bytes);
        }
        attribute(&mut body, 4, &device.to_ne_bytes());
        self.request(NEW_ROUTE, CREATE_NEW, &body)
    }

    fn request(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.sequence += 1;
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(&(flags | REQUEST_WITH_ANSWER).to_ne_bytes());
        message.extend_from_slice(&self.sequence.to_ne_bytes());
        message.extend_from_slice(&0u32.to_ne_bytes());
        message.extend_from_slice(body);
        sendto(&self.socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut answer = [0u8; 4096];
        let (_, length) = recv(&self.socket, &mut answer[..], RecvFlags::empty())?;
        outcome(&answer[..length.min(4096)])
    }
}

/// Reads an answer: an error message with code 0 is an acknowledgement.
fn outcome(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    let code = answer.get(HEADER..HEADER + 4).and_then(|bytes| bytes.try_into().ok());
    match (kind, code.map(i32::from_ne_bytes)) {
        (Some(ERROR), Some(0)) => Ok(()),
        (Some(ERROR), Some(code)) => Err(io::Error::from_raw_os_error(-code)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "netlink answered something else")),
    }
}

fn octets(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(address) => (INET, address.octets().to_vec()),
        IpAddr::V6(address) => (INET6, address.octets().to_vec()),
    }
}

fn address_body(device: u32, address: IpAddr) -> Vec<u8> {
    let (family, bytes) = octets(address);
    let flags = if family == INET6 { NO_DUPLICATE_DETECTION } else { 0 };
    let mut body = vec![family, (bytes.len() * 8) as u8, flags, 0];
    body.extend_from_slice(&device.to_ne_bytes());
    attribute(&mut body, 2, &bytes);
    attribute(&mut body, 1, &bytes);
    body
}

/// Appends an attribute, padded to four bytes.
fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_say_their_length() {
        let mut body = Vec::new();
        attribute(&mut body, 3, b"lo\0");
        assert_eq!(body[..4], [7u16.to_ne_bytes(), 3u16.to_ne_bytes()].concat());
        assert_eq!(body[4..], *b"lo\0\0");
    }

    #[test]
    fn answers_are_read_with_care() {
        let mut answer = vec![0; 36];
        answer[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        assert!(outcome(&answer).is_ok());
        answer[16..20].copy_from_slice(&(-1i32).to_ne_bytes());
        assert_eq!(outcome(&answer).unwrap_err().raw_os_error(), Some(1));
        assert!(outcome(&answer[..10]).is_err() && outcome(&[]).is_err());
    }
}
