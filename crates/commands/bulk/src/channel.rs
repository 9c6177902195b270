//! A UDP socket with encryption, for files and streams, senders and receivers.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use tokio::net::UdpSocket;

use super::encryption::{
    ChannelEncryption, Decrypt, ReceiverChannelEncryption, SenderChannelEncryption,
};

/// Datagrams received in one call, so that other work is not delayed.
const TURN: usize = 64;

pub(super) struct Channel<S> {
    pub(super) socket: UdpSocket,
    /// Only datagrams from this address are accepted.
    pub(super) whom: Option<IpAddr>,
    pub(super) encryption: S,
}

impl<G: Decrypt> Channel<ChannelEncryption<G>> {
    /// Receives the waiting datagrams, up to the socket's limit per call.
    pub(super) fn receive(&mut self, buffer: &mut [u8], mut take: impl FnMut(SocketAddr, &[u8])) {
        for _ in 0..TURN {
            match self.socket.try_recv_from(buffer) {
                Ok((_, from)) if self.whom.is_some_and(|whom| whom != from.ip()) => {}
                Ok((length, from)) => {
                    if let Some(message) = self.encryption.decrypt(from, &mut buffer[..length]) {
                        take(from, message);
                    }
                }
                // An ICMP error makes the next call fail once.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
    }

    /// Whether a datagram has arrived that was not received yet. The system is asked, because the runtime learns of a
    /// datagram only when it next waits.
    pub(super) fn has_waiting(&self) -> bool {
        let Ok(socket) = self.socket.as_fd().try_clone_to_owned() else { return false };
        std::net::UdpSocket::from(socket).peek_from(&mut [0]).is_ok()
    }
}

impl Channel<SenderChannelEncryption> {
    /// Sends a sender's message.
    pub(super) async fn send(&mut self, message: &[u8], to: SocketAddr) -> anyhow::Result<()> {
        send_datagram(&self.socket, self.encryption.encrypt(message)?, to).await;
        Ok(())
    }
}

impl Channel<ReceiverChannelEncryption> {
    /// Sends a receiver's message, if it can be encrypted yet.
    pub(super) async fn send(&mut self, message: &[u8], to: SocketAddr) {
        if let Some(datagram) = self.encryption.encrypt(message) {
            send_datagram(&self.socket, datagram, to).await;
        }
    }
}

async fn send_datagram(socket: &UdpSocket, datagram: &[u8], to: SocketAddr) {
    // A datagram that the network refuses counts as lost.
    if let Err(error) = socket.send_to(datagram, to).await {
        tracing::debug!(%to, %error, "a datagram could not be sent");
    }
}
