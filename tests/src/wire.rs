//! The smallest client: packets as bytes over plain TCP, for what a well-behaved client library would
//! not do.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};

use crate::PATIENCE;

/// A TCP connection on which MQTT 5.0 is spoken by hand.
#[derive(Debug)]
pub struct Wire(TcpStream);

/// A string or binary field: its length in two bytes, then itself.
///
/// # Panics
/// It is too long for that.
#[must_use]
pub fn field(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    let mut field = u16::try_from(bytes.len()).unwrap().to_be_bytes().to_vec();
    field.extend(bytes);
    field
}

/// A packet of fewer than 16,384 bytes.
#[must_use]
pub fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let (low, high) = (body.len() % 128, body.len() / 128);
    let mut packet = vec![first, low as u8];
    if high > 0 {
        packet[1] |= 0x80;
        packet.push(high as u8);
    }
    packet.extend(body);
    packet
}

/// CONNECT with a clean session and no keep alive.
#[must_use]
pub fn connect(client_id: &str) -> Vec<u8> {
    packet(0x10, &[field("MQTT"), vec![5, 2, 0, 0, 0], field(client_id)].concat())
}

impl Wire {
    /// A connection on which nothing has been said.
    ///
    /// # Panics
    /// Nobody listens there.
    #[must_use]
    pub fn dial(address: SocketAddr) -> Wire {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Wire(stream)
    }

    /// The same from this address, on whose network there may be nobody else.
    ///
    /// # Panics
    /// Nobody listens there, or the address is not this machine's.
    #[must_use]
    pub fn dial_from(source: Ipv4Addr, address: SocketAddr) -> Wire {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
        socket.connect(&address.into()).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Wire(stream)
    }

    /// A connected client with a clean session.
    ///
    /// # Panics
    /// It is not let in.
    #[must_use]
    pub fn connect(address: SocketAddr, client_id: &str) -> Wire {
        let mut wire = Wire::dial(address);
        wire.send(&connect(client_id));
        let (first, body) = wire.read().expect("the broker closes instead of CONNACK");
        assert_eq!((first, body[1]), (0x20, 0), "CONNACK with success");
        wire
    }

    /// Sends bytes; whether the broker still takes them is seen by reading.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
    }

    /// The next packet: its first byte and what follows the length. `None` when the broker has closed.
    ///
    /// # Panics
    /// Nothing comes within [`PATIENCE`], or half a packet and then the end.
    pub fn read(&mut self) -> Option<(u8, Vec<u8>)> {
        let first = self.byte()?;
        let (mut len, mut shift) = (0, 0);
        loop {
            let digit = self.byte().expect("the end within a packet");
            len |= usize::from(digit & 0x7f) << shift;
            shift += 7;
            if digit & 0x80 == 0 {
                break;
            }
        }
        let mut body = vec![0; len];
        self.0.read_exact(&mut body).unwrap();
        Some((first, body))
    }

    fn byte(&mut self) -> Option<u8> {
        let mut byte = [0];
        match self.0.read(&mut byte) {
            Ok(0) => None,
            Ok(_) => Some(byte[0]),
            // Closed while something of ours was unread.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
            Err(error) => panic!("nothing comes: {error}"),
        }
    }

    /// Sends PINGREQ and expects its answer next.
    ///
    /// # Panics
    /// Something else comes.
    pub fn ping(&mut self) {
        self.send(&[0xc0, 0]);
        assert_eq!(self.read(), Some((0xd0, Vec::new())), "PINGRESP");
    }
}
