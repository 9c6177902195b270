//! One TLS connection without buffers of its own: records are taken from the worker's read buffer
//! and written straight into the bytes to send.
//!
//! rustls' unbuffered interface is used because the buffered one keeps 4 KiB for reading in every
//! connection, idle or not, and copies what is written once more. Early data is refused over TCP:
//! nothing here could tell a replay (QUIC has its own rules for it).

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{Error, ServerConfig};

/// Largest plaintext of a record (RFC 8446 section 5.1).
const RECORD_BYTES: usize = 16 * 1024;

/// What a record adds to its plaintext: header, type, tag and, in TLS 1.2, explicit nonce; rounded up.
const RECORD_OVERHEAD_BYTES: usize = 64;

/// Most incomplete ciphertext kept, in bytes: a handshake message (rustls takes up to 64 KiB) and
/// a record.
pub(crate) const MAX_RAW_BYTES: usize = 84 * 1024;

/// The server's side of a TLS connection.
pub(crate) struct TlsSession {
    conn: UnbufferedServerConnection,
    /// Ciphertext of an incomplete record or handshake message.
    raw: Vec<u8>,
    established: bool,
}

/// What a piece of ciphertext brought, apart from plaintext.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The handshake is done; the peer may be asked for by name and be written to.
    pub(crate) established: bool,
    /// The peer has sent close_notify.
    pub(crate) peer_closed: bool,
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSession").field("established", &self.established).finish_non_exhaustive()
    }
}

impl TlsSession {
    pub(crate) fn new(config: Arc<ServerConfig>) -> Result<TlsSession, Error> {
        let conn = UnbufferedServerConnection::new(config)?;
        Ok(TlsSession { conn, raw: Vec::new(), established: false })
    }

    /// Ciphertext to put before what is read next.
    pub(crate) fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// Memory held for incomplete records, in bytes.
    pub(crate) fn held(&self) -> usize {
        self.raw.capacity()
    }

    /// The certificate the peer has shown and proven, end entity first.
    pub(crate) fn peer_certificates(&self) -> Option<&[CertificateDer<'static>]> {
        self.conn.peer_certificates()
    }

    /// Takes ciphertext (beginning with [`TlsSession::raw`]), appends plaintext to `plain` and what
    /// is to be sent to `out`, an alert also in case of an error.
    ///
    /// # Errors
    /// What rustls says of a peer that violates TLS; the connection is then good for nothing but
    /// sending `out`.
    pub(crate) fn receive(
        &mut self,
        input: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Progress, Error> {
        let mut used = 0;
        let mut peer_closed = false;
        let result = loop {
            match step(&mut self.conn, &mut input[used..], plain, out) {
                Ok((discard, step)) => {
                    used += discard;
                    match step {
                        Step::More => {}
                        Step::PeerClosed => peer_closed = true,
                        Step::Dry { established } => {
                            self.established |= established;
                            break Ok(());
                        }
                    }
                }
                Err(error) => break Err(error),
            }
        };
        match result {
            Ok(()) => {
                self.raw.clear();
                let rest = input.get(used..).unwrap_or_default();
                if rest.is_empty() {
                    self.raw = Vec::new();
                } else {
                    self.raw.extend_from_slice(rest);
                }
                Ok(Progress { established: self.established, peer_closed })
            }
            Err(error) => {
                // rustls has queued an alert; it comes out before the error is told again.
                while let Ok((_, Step::More)) = step(&mut self.conn, &mut [], plain, out) {}
                Err(error)
            }
        }
    }

    /// Appends `plain`, encrypted, to `out`.
    ///
    /// # Errors
    /// The handshake is not done, or the key's limit is reached.
    pub(crate) fn encrypt(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        let records = plain.len() / RECORD_BYTES + 1;
        let room = plain.len() + records * RECORD_OVERHEAD_BYTES;
        self.write(out, room, |traffic, room| traffic.encrypt(plain, room))
    }

    /// Appends close_notify to `out`, when there is a session to close.
    pub(crate) fn close(&mut self, out: &mut Vec<u8>) {
        // Without it the peer sees a truncated stream, as it would if this could not be sent.
        let _ = self.write(out, RECORD_OVERHEAD_BYTES, |t, room| t.queue_close_notify(room));
    }

    fn write(
        &mut self,
        out: &mut Vec<u8>,
        room: usize,
        write: impl FnOnce(&mut WriteTraffic<'_>, &mut [u8]) -> Result<usize, EncryptError>,
    ) -> Result<(), Error> {
        loop {
            let UnbufferedStatus { discard, state } = self.conn.process_tls_records(&mut self.raw);
            match state? {
                ConnectionState::WriteTraffic(mut traffic) => {
                    let start = out.len();
                    out.resize(start + room, 0);
                    let written = write(&mut traffic, &mut out[start..]);
                    out.truncate(start + written.as_ref().map_or(0, |n| *n));
                    self.raw.drain(..discard);
                    return written.map(drop).map_err(|e| Error::General(e.to_string()));
                }
                ConnectionState::EncodeTlsData(mut data) => encode(|room| data.encode(room), out)?,
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::PeerClosed => {}
                _ => return Err(Error::HandshakeNotComplete),
            }
            self.raw.drain(..discard);
        }
    }
}

type WriteTraffic<'c> = rustls::unbuffered::WriteTraffic<'c, rustls::server::ServerConnectionData>;

enum Step {
    /// Call again.
    More,
    PeerClosed,
    /// Nothing to be had without more input.
    Dry {
        established: bool,
    },
}

fn step(
    conn: &mut UnbufferedServerConnection,
    input: &mut [u8],
    plain: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(usize, Step), Error> {
    let UnbufferedStatus { mut discard, state } = conn.process_tls_records(input);
    let step = match state? {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                let record = record?;
                discard += record.discard;
                plain.extend_from_slice(record.payload);
            }
            Step::More
        }
        ConnectionState::EncodeTlsData(mut data) => {
            encode(|room| data.encode(room), out)?;
            Step::More
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Step::More
        }
        ConnectionState::PeerClosed => Step::PeerClosed,
        ConnectionState::BlockedHandshake => Step::Dry { established: false },
        ConnectionState::WriteTraffic(_) | ConnectionState::Closed => {
            Step::Dry { established: true }
        }
        _ => return Err(Error::General("early data is not taken over TCP".into())),
    };
    Ok((discard, step))
}

fn encode(
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let start = out.len();
    loop {
        let result = encode(&mut out[start..]);
        match result {
            Ok(written) => {
                out.truncate(start + written);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(e)) => out.resize(start + e.required_size, 0),
            Err(e @ EncodeError::AlreadyEncoded) => return Err(Error::General(e.to_string())),
        }
    }
}
