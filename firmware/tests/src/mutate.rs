//! A server that misbehaves: quinn's, with what TLS says changed before it is encrypted, so that the client
//! gets it with valid packet protection.

use std::any::Any;
use std::sync::{Arc, Mutex};

use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{
    ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session,
    UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError};

/// What to do to the bytes of a flight.
#[derive(Clone, Copy, Debug)]
pub enum Mutation {
    /// A byte is combined with another by exclusive or.
    Flip { at: usize, with: u8 },
    /// Bytes are left out.
    Cut { at: usize, count: usize },
    /// Bytes are put in.
    Insert { at: usize, byte: u8, count: usize },
}

/// Which mutations to do to all that a server's TLS says, taken as one string of bytes, and what it said.
#[derive(Default)]
pub struct Mutations {
    pub list: Vec<Mutation>,
    pub said: Mutex<usize>,
}

impl Mutations {
    fn apply(&self, bytes: &mut Vec<u8>, from: usize) {
        let mut said = self.said.lock().expect("nobody panicked");
        let start = *said;
        *said += bytes.len() - from;
        let end = *said;
        let inside = |at: usize| (start..end).contains(&at).then(|| from + at - start);
        for mutation in &self.list {
            match *mutation {
                Mutation::Flip { at, with } => {
                    if let Some(byte) = inside(at).and_then(|at| bytes.get_mut(at)) {
                        *byte ^= with;
                    }
                }
                Mutation::Cut { at, count } => {
                    if let Some(at) = inside(at).filter(|at| *at < bytes.len()) {
                        let end = (at + count).min(bytes.len());
                        bytes.drain(at..end);
                    }
                }
                Mutation::Insert { at, byte, count } => {
                    if let Some(at) = inside(at).filter(|at| *at < bytes.len()) {
                        bytes.splice(at..at, std::iter::repeat_n(byte, count));
                    }
                }
            }
        }
    }

    /// A server that does this.
    pub fn config(self: Arc<Self>, tls: rustls::ServerConfig) -> quinn_proto::ServerConfig {
        let inner = Arc::new(QuicServerConfig::try_from(tls).expect("QUIC's suite"));
        quinn_proto::ServerConfig::with_crypto(Arc::new(Config { inner, mutations: self }))
    }
}

struct Config {
    inner: Arc<QuicServerConfig>,
    mutations: Arc<Mutations>,
}

impl ServerConfig for Config {
    fn initial_keys(&self, version: u32, id: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.inner.initial_keys(version, id)
    }

    fn retry_tag(&self, version: u32, id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.inner.retry_tag(version, id, packet)
    }

    fn start_session(
        self: Arc<Self>,
        version: u32,
        params: &TransportParameters,
    ) -> Box<dyn Session> {
        let inner = self.inner.clone().start_session(version, params);
        Box::new(Mutated { inner, mutations: self.mutations.clone() })
    }
}

struct Mutated {
    inner: Box<dyn Session>,
    mutations: Arc<Mutations>,
}

impl Session for Mutated {
    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let from = buf.len();
        let keys = self.inner.write_handshake(buf);
        self.mutations.apply(buf, from);
        keys
    }

    fn initial_keys(&self, id: &ConnectionId, side: Side) -> Keys {
        self.inner.initial_keys(id, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.inner.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.inner.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.inner.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.inner.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.inner.is_handshaking()
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        self.inner.read_handshake(buf)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.inner.transport_parameters()
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.inner.next_1rtt_keys()
    }

    fn is_valid_retry(&self, id: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.inner.is_valid_retry(id, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.inner.export_keying_material(output, label, context)
    }
}
