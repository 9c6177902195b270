//! A UDP socket, and the seal of what goes through it: what files and streams, and both their ends, do with it.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::UdpSocket;

use super::seal::{Open, ReceiverSeal, Seal, SenderSeal};

/// Datagrams taken from a socket before others have their turn.
const TURN: usize = 64;

pub(super) struct Channel<S> {
    pub(super) socket: UdpSocket,
    /// Only what comes from there is taken.
    pub(super) whom: Option<IpAddr>,
    pub(super) seal: S,
}

impl<G: Open> Channel<Seal<G>> {
    /// Takes what has come, within the socket's turn.
    pub(super) fn receive(&mut self, buffer: &mut [u8], mut take: impl FnMut(SocketAddr, &[u8])) {
        for _ in 0..TURN {
            match self.socket.try_recv_from(buffer) {
                Ok((_, from)) if self.whom.is_some_and(|whom| whom != from.ip()) => {}
                Ok((length, from)) => {
                    if let Some(message) = self.seal.open(from, &mut buffer[..length]) {
                        take(from, message);
                    }
                }
                // An ICMP message makes the next call fail once.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
    }
}

impl Channel<SenderSeal> {
    /// Sends a message of a sender's.
    ///
    /// # Errors
    /// It cannot be sealed.
    pub(super) async fn send(&mut self, message: &[u8], to: SocketAddr) -> anyhow::Result<()> {
        put(&self.socket, self.seal.seal(message)?, to).await;
        Ok(())
    }
}

impl Channel<ReceiverSeal> {
    /// Sends a message of a receiver's, if it can be sealed yet.
    pub(super) async fn send(&mut self, message: &[u8], to: SocketAddr) {
        if let Some(datagram) = self.seal.seal(message) {
            put(&self.socket, datagram, to).await;
        }
    }
}

async fn put(socket: &UdpSocket, datagram: &[u8], to: SocketAddr) {
    // What the network refuses is as good as lost on the way.
    if let Err(error) = socket.send_to(datagram, to).await {
        tracing::debug!(%to, %error, "a datagram could not be sent");
    }
}
