//! A TLS configuration that adds what quinn-proto lacks: the client's transport parameters, and packets smaller than the
//! path's MTU, for addresses that may be sent little. quinn-proto fills each packet with what it has, and pads a
//! PATH_CHALLENGE to 1200 bytes also where the anti-amplification limit forbids that (RFC 9000 section 8.2.1).
//!
//! A packet's frames have the room that its authentication tag leaves. So while a packet is built, the tag can be said to
//! be longer than it is; the packet ends with the true tag, and the bytes behind it are not sent.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{
    CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig,
    Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{Connection, ConnectionId, Side, TransportError};

/// The bytes by which the packets of one connection end before their datagrams do.
#[derive(Clone, Debug, Default)]
pub(super) struct UnusedBytes(Arc<AtomicUsize>);

impl UnusedBytes {
    /// That of a connection whose configuration is an [`ExtendedTls`].
    pub(super) fn find(connection: &Connection) -> Option<UnusedBytes> {
        let data = connection.crypto_session().handshake_data()?;
        data.downcast::<HandshakeData>().ok().map(|data| data.unused)
    }

    /// For packets that are built from now on.
    pub(super) fn set(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The handshake data of connections whose configuration is an [`ExtendedTls`].
#[derive(Debug)]
pub struct HandshakeData {
    /// The client's transport parameters.
    pub parameters: Option<TransportParameters>,
    unused: UnusedBytes,
}

/// A TLS configuration whose `handshake_data` is [`HandshakeData`].
pub struct ExtendedTls(Arc<QuicServerConfig>);

impl ExtendedTls {
    /// Extends `tls`.
    pub fn new(tls: QuicServerConfig) -> ExtendedTls {
        ExtendedTls(Arc::new(tls))
    }
}

fulmar_text::opaque_debug!(ExtendedTls);

impl ServerConfig for ExtendedTls {
    fn initial_keys(&self, version: u32, id: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        ServerConfig::initial_keys(&*self.0, version, id)
    }

    fn retry_tag(&self, version: u32, id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.0.retry_tag(version, id, packet)
    }

    fn start_session(
        self: Arc<Self>,
        version: u32,
        parameters: &TransportParameters,
    ) -> Box<dyn Session> {
        let session = Arc::clone(&self.0).start_session(version, parameters);
        Box::new(ExtendedSession { session, unused: UnusedBytes::default() })
    }
}

struct ExtendedSession {
    session: Box<dyn Session>,
    unused: UnusedBytes,
}

impl ExtendedSession {
    fn sized(&self, key: Box<dyn PacketKey>) -> Box<dyn PacketKey> {
        Box::new(ResizableKey { key, unused: self.unused.clone() })
    }
}

impl Session for ExtendedSession {
    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.session.handshake_data()?;
        let parameters = self.session.transport_parameters().ok().flatten();
        Some(Box::new(HandshakeData { parameters, unused: self.unused.clone() }))
    }

    fn initial_keys(&self, id: &ConnectionId, side: Side) -> Keys {
        self.session.initial_keys(id, side)
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.session.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.session.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.session.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        self.session.read_handshake(bytes)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.session.transport_parameters()
    }

    fn write_handshake(&mut self, bytes: &mut Vec<u8>) -> Option<Keys> {
        let Keys { header, packet } = self.session.write_handshake(bytes)?;
        let packet = KeyPair { local: self.sized(packet.local), remote: packet.remote };
        Some(Keys { header, packet })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let KeyPair { local, remote } = self.session.next_1rtt_keys()?;
        Some(KeyPair { local: self.sized(local), remote })
    }

    fn is_valid_retry(&self, id: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.session.is_valid_retry(id, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.session.export_keying_material(output, label, context)
    }
}

struct ResizableKey {
    key: Box<dyn PacketKey>,
    unused: UnusedBytes,
}

impl PacketKey for ResizableKey {
    fn encrypt(&self, packet: u64, buffer: &mut [u8], header_length: usize) {
        let end = buffer.len().saturating_sub(self.unused.get());
        self.key.encrypt(packet, &mut buffer[..end], header_length);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.key.decrypt(packet, header, payload)
    }

    fn tag_len(&self) -> usize {
        self.key.tag_len() + self.unused.get()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.key.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.key.integrity_limit()
    }
}
