//! One TLS connection without buffers of its own: records are taken from the worker's read buffer
//! and written straight into the bytes to send.
//!
//! rustls' unbuffered interface is used because the buffered one keeps 4 KiB for reading per connection, idle or not,
//! and copies written data once more. Early data is refused over TCP, because a replay could not be detected (QUIC
//! has its own rules for it).

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{Error, ServerConfig};

/// Largest plaintext of a record (RFC 8446 section 5.1).
const RECORD_BYTES: usize = 16 * 1024;

/// Bytes that a record adds to its plaintext: header, type, tag and, in TLS 1.2, explicit nonce; rounded up.
const RECORD_OVERHEAD_BYTES: usize = 64;

/// Maximum size of incomplete ciphertext kept, in bytes: a handshake message (rustls takes up to 64 KiB) and
/// a record.
pub(crate) const MAX_RAW_BYTES: usize = 84 * 1024;

/// The server's side of a TLS connection.
pub(crate) struct TlsSession {
    conn: UnbufferedServerConnection,
    /// Ciphertext of an incomplete record or handshake message.
    raw: Vec<u8>,
    established: bool,
    /// Good for nothing any more. rustls must not be asked again: it may hold on to messages by
    /// their place in input that is gone, and panics then.
    failed: bool,
}

/// Effects of a piece of ciphertext, apart from plaintext.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The handshake is done; the peer may be asked for by name and be written to.
    pub(crate) established: bool,
    /// The peer has sent close_notify.
    pub(crate) peer_closed: bool,
}

fulmar_text::opaque_debug!(TlsSession { established });

impl TlsSession {
    pub(crate) fn new(config: Arc<ServerConfig>) -> Result<TlsSession, Error> {
        let conn = UnbufferedServerConnection::new(config)?;
        Ok(TlsSession { conn, raw: Vec::new(), established: false, failed: false })
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

    /// Takes ciphertext (beginning with [`TlsSession::raw`]), appends plaintext to `plain` and what is to be sent to
    /// `out`, an alert also in case of an error. After an error, the connection is good for nothing but sending `out`.
    pub(crate) fn receive(
        &mut self,
        input: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Progress, Error> {
        if self.failed {
            return Err(Error::HandshakeNotComplete);
        }
        let mut used = 0;
        let mut peer_closed = false;
        let result = loop {
            let (discard, step) = step(&mut self.conn, &mut input[used..], plain, out);
            used += discard;
            match step {
                Ok(Step::More) => {}
                Ok(Step::PeerClosed) => peer_closed = true,
                Ok(Step::Dry { established }) => {
                    self.established |= established;
                    break Ok(());
                }
                Err(error) => break Err(error),
            }
        };
        if let Err(error) = result {
            // rustls has queued an alert, and gives it out before it looks at any input.
            while self.conn.wants_write()
                && matches!(step(&mut self.conn, &mut [], plain, out), (_, Ok(Step::More)))
            {
            }
            self.raw = Vec::new();
            self.failed = true;
            return Err(error);
        }
        self.raw.clear();
        let rest = input.get(used..).unwrap_or_default();
        if rest.is_empty() {
            self.raw = Vec::new();
        } else {
            self.raw.extend_from_slice(rest);
        }
        Ok(Progress { established: self.established, peer_closed })
    }

    /// Appends `plain`, encrypted, to `out`. Fails before the handshake is done, and at the key's limit.
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
        if self.failed {
            return Err(Error::HandshakeNotComplete);
        }
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

/// Lets rustls take one step; says how much of the input is done with, also in case of an error.
fn step(
    conn: &mut UnbufferedServerConnection,
    input: &mut [u8],
    plain: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> (usize, Result<Step, Error>) {
    let UnbufferedStatus { mut discard, state } = conn.process_tls_records(input);
    let step = match state {
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    discard += record.discard;
                    plain.extend_from_slice(record.payload);
                }
                Some(Err(error)) => break Err(error),
                None => break Ok(Step::More),
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            encode(|room| data.encode(room), out).map(|()| Step::More)
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Ok(Step::More)
        }
        Ok(ConnectionState::PeerClosed) => Ok(Step::PeerClosed),
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::Dry { established: false }),
        Ok(ConnectionState::WriteTraffic(_) | ConnectionState::Closed) => {
            Ok(Step::Dry { established: true })
        }
        Ok(_) => Err(Error::General("early data is not accepted over TCP".into())),
        Err(error) => Err(error),
    };
    (discard, step)
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustls::pki_types::PrivateKeyDer;

    fn config() -> Arc<ServerConfig> {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder().with_no_client_auth();
        Arc::new(config.with_single_cert(vec![made.cert.der().clone()], key).unwrap())
    }

    /// The first flight of a client that would be let in.
    fn hello() -> Vec<u8> {
        let roots = rustls::RootCertStore::empty();
        let config = rustls::ClientConfig::builder().with_root_certificates(roots);
        let config = Arc::new(config.with_no_client_auth());
        let mut client =
            rustls::ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
        let mut flight = Vec::new();
        client.write_tls(&mut flight).unwrap();
        flight
    }

    /// Records as strangers might send them: mostly of handshake messages, several in one or one in
    /// several, some damaged.
    fn records() -> impl Strategy<Value = Vec<u8>> {
        let message =
            (0..30u8, prop::collection::vec(any::<u8>(), 0..20)).prop_map(|(kind, body)| {
                [&[kind, 0, 0, u8::try_from(body.len()).unwrap()], &body[..]].concat()
            });
        let content = prop_oneof![
            3 => prop::collection::vec(message, 1..4).prop_map(|messages| messages.concat()),
            1 => prop::collection::vec(any::<u8>(), 0..40),
            1 => Just(hello()[5..].to_vec()),
        ];
        let kind = prop_oneof![4 => Just(22u8), 1 => 18..26u8];
        let record = (kind, content).prop_map(|(kind, content)| {
            let len = u16::try_from(content.len()).unwrap().to_be_bytes();
            [&[kind, 3, 3], &len[..], &content].concat()
        });
        prop::collection::vec(record, 1..4).prop_map(|records| records.concat())
    }

    proptest! {
        #[test]
        fn no_flight_of_a_stranger_is_more_than_an_error(
            flight in records(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        ) {
            let mut tls = TlsSession::new(config()).unwrap();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(flight.len())).collect();
            cuts.push(flight.len());
            cuts.sort_unstable();
            let (mut from, mut failed) = (0, false);
            let (mut plain, mut out) = (Vec::new(), Vec::new());
            for to in cuts {
                let mut input = [tls.raw(), &flight[from..to]].concat();
                let result = tls.receive(&mut input, &mut plain, &mut out);
                prop_assert!(!failed || result.is_err(), "it is over after an error");
                failed |= result.is_err();
                from = to;
            }
            tls.close(&mut out);
            prop_assert!(plain.is_empty());
        }
    }
}
