//! From a URL to a byte stream: names, sockets, TLS, WebSocket, QUIC, and the race between QUIC and
//! TLS over TCP where UDP may be blocked.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::driver::Candidate;
use crate::error::Error;
use crate::options::{Fallback, Options};
use crate::quic::{QuicConnection, QuicDialer};
use crate::tls;
use crate::url::{BrokerUrl, Transport};
use crate::websocket::{self, Bridge};

/// Head start of QUIC before TLS over TCP is tried too. The "happy eyeballs" advice for connection attempts is 250 ms
/// (RFC 8305 section 5); QUIC is preferred, so a little more.
const HEAD_START: Duration = Duration::from_millis(300);

/// Time for one address of a name before the next is tried too (RFC 8305 section 5). A UDP port without a listener
/// does not answer, and `localhost` is `::1` first on most machines.
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// Time for which TLS over TCP is dialled first after it has won against QUIC, because networks that block UDP
/// usually keep doing so.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Factor by which a connection may exceed the time limit while packets arrive.
const MOST_LIMITS: u32 = 3;

/// Longest time for resolving the names of a silent server, and the most addresses that are tried.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_PLACES: usize = 8;

/// Longest time for closing a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The other transport, tried while a connection has not been answered yet.
pub(crate) type Rival = Pin<Box<dyn Future<Output = Result<ServerConnection, Error>> + Send>>;

type Reader = Box<dyn AsyncRead + Send + Unpin>;

/// The sending half; QUIC's knows when everything was acknowledged.
pub(crate) enum Writer {
    Plain(Box<dyn AsyncWrite + Send + Unpin>),
    Quic(quinn::SendStream),
}

/// A connection to a server: a byte stream.
pub(crate) struct ServerConnection {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    pub(crate) transport: Transport,
    pub(crate) quic: Option<QuicConnection>,
    /// Bridge of a WebSocket.
    _bridge: Option<Bridge>,
}

/// The result of dialling.
pub(crate) struct Dialled {
    pub(crate) conn: ServerConnection,
    /// Set if the connection has not been answered yet, because its first flight carries early data, and there is
    /// another transport to try.
    pub(crate) rival: Option<Rival>,
}

impl Writer {
    /// Writes some bytes, or flushes if there are none, because TLS buffers bytes until a flush. Cancelling it loses
    /// nothing.
    pub(crate) async fn push(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Writer::Plain(writer) if bytes.is_empty() => writer.flush().await.map(|()| 0),
            Writer::Plain(writer) => writer.write(bytes).await,
            Writer::Quic(_) if bytes.is_empty() => Ok(0),
            Writer::Quic(stream) => Ok(stream.write(bytes).await?),
        }
    }
}

impl ServerConnection {
    pub(crate) fn plain<S>(stream: S, transport: Transport) -> ServerConnection
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (reader, writer) = tokio::io::split(stream);
        let writer = Writer::Plain(Box::new(writer));
        ServerConnection { reader: Box::new(reader), writer, transport, quic: None, _bridge: None }
    }

    pub(crate) fn quic(
        reader: quinn::RecvStream,
        writer: quinn::SendStream,
        quic: QuicConnection,
    ) -> ServerConnection {
        let writer = Writer::Quic(writer);
        ServerConnection {
            reader: Box::new(reader),
            writer,
            transport: Transport::Quic,
            quic: Some(quic),
            _bridge: None,
        }
    }

    /// Ends the stream and, over QUIC, closes the connection: a close discards data in flight, so if everything
    /// `must_arrive`, only when the server has it, and otherwise when it is sent.
    pub(crate) async fn close(self, must_arrive: bool) {
        let close = async {
            match self.writer {
                Writer::Plain(mut writer) => drop(writer.shutdown().await),
                Writer::Quic(mut stream) => {
                    let sent = self.quic.as_ref().map(QuicConnection::datagrams_sent);
                    if stream.finish().is_ok() {
                        match (&self.quic, sent) {
                            (Some(quic), Some(sent)) if !must_arrive => quic.sends(sent).await,
                            _ => drop(stream.stopped().await),
                        }
                    }
                }
            }
            if let Some(quic) = &self.quic {
                quic.has_ticket().await;
                quic.close().await;
            }
        };
        if tokio::time::timeout(CLOSE_TIMEOUT, close).await.is_err() {
            tracing::debug!("the server did not confirm the end of the connection");
        }
    }
}

/// Makes connections for one client.
pub(crate) struct Dialer {
    options: Arc<Options>,
    tls: Option<Arc<rustls::ClientConfig>>,
    quic: Option<QuicDialer>,
    /// The address that answered last, tried first: early data goes to one address only.
    answered: Mutex<Option<IpAddr>>,
    /// Until when TLS over TCP is tried first.
    tcp_first_until: Mutex<Option<Instant>>,
}

impl Dialer {
    pub(crate) fn new(options: Arc<Options>) -> Result<Dialer, Error> {
        let transport = options.url.transport;
        let config =
            || options.tickets.tls.clone().map_or_else(|| tls::client_config(&options), Ok);
        let config = transport.is_secure().then(config).transpose()?;
        let quic = match (&config, transport) {
            (Some(config), Transport::Quic) => Some(QuicDialer::new(config.clone(), &options)?),
            _ => None,
        };
        let tls = config.map(|mut config| {
            if transport == Transport::Wss {
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
            }
            Arc::new(config)
        });
        let (answered, tcp_first_until) = (Mutex::new(None), Mutex::new(None));
        Ok(Dialer { options, tls, quic, answered, tcp_first_until })
    }

    /// Connects within `limit`, or within a few times as long while packets arrive: a handshake over a slow path that loses
    /// them is not helped by another. `None` if there is no answer.
    pub(crate) async fn dial_within(
        self: &Arc<Self>,
        limit: Duration,
        url: &BrokerUrl,
    ) -> Option<Result<Dialled, Error>> {
        let heard = || self.quic.as_ref().is_some_and(QuicDialer::take_heard);
        heard();
        let dial = self.dial(url);
        tokio::pin!(dial);
        for _ in 0..MOST_LIMITS {
            if let Ok(done) = tokio::time::timeout(limit, &mut dial).await {
                return Some(done);
            }
            if !heard() {
                break;
            }
        }
        None
    }

    /// Connects, by QUIC and TCP in parallel if configured.
    async fn dial(self: &Arc<Self>, url: &BrokerUrl) -> Result<Dialled, Error> {
        let conn = self.dial_all(url, true).await?;
        let unanswered = conn.quic.as_ref().is_some_and(|quic| quic.early.is_some());
        let rival = unanswered.then(|| {
            let (dialer, url) = (Arc::clone(self), url.clone());
            // Without early data, so that the winner has had an answer from the server.
            let rival: Rival = Box::pin(async move {
                tokio::time::sleep(HEAD_START).await;
                dialer.dial_all(&url, false).await
            });
            rival
        });
        if !unanswered {
            self.won(conn.transport);
        }
        Ok(Dialled { conn, rival })
    }

    /// The server has answered over this transport.
    pub(crate) fn won(&self, transport: Transport) {
        let beaten = self.options.url.transport == Transport::Quic && transport == Transport::Tls;
        *lock(&self.tcp_first_until) = beaten.then(|| Instant::now() + REMEMBERED);
    }

    async fn dial_all(&self, url: &BrokerUrl, early: bool) -> Result<ServerConnection, Error> {
        let Fallback::Race { port } = self.options.fallback else {
            return self.dial_one(url, early).await;
        };
        let tcp = BrokerUrl { transport: Transport::Tls, port, ..url.clone() };
        let tcp_first = lock(&self.tcp_first_until).is_some_and(|until| Instant::now() < until);
        if tcp_first {
            return race(self.dial_one(&tcp, false), self.dial_one(url, false), HEAD_START).await;
        }
        race(self.dial_one(url, early), self.dial_one(&tcp, false), HEAD_START).await
    }

    async fn dial_one(&self, url: &BrokerUrl, early: bool) -> Result<ServerConnection, Error> {
        let fail = |reason: String| {
            let hint = hint(url, &reason);
            Error::Dial { url: url.to_string(), reason: reason + hint }
        };
        let addresses = tokio::net::lookup_host((url.host.as_str(), url.port)).await;
        let addresses = addresses.map_err(|error| fail(error.to_string()))?;
        let mut addresses: Vec<_> = addresses.collect();
        let known = *lock(&self.answered);
        // A stable sort, which otherwise keeps the resolver's order.
        addresses.sort_by_key(|address| Some(address.ip()) != known);
        let attempts = addresses.into_iter().map(async |address| {
            self.dial_address(url, address, early).await.map(|conn| (address, conn))
        });
        match staggered(attempts, NEXT_ADDRESS).await {
            Some(Ok((address, conn))) => {
                self.answered_from(address.ip());
                Ok(conn)
            }
            Some(Err(error)) => Err(fail(error)),
            None => Err(fail("the name has no address".to_owned())),
        }
    }

    /// The server has answered from this address: it is tried first from now on.
    pub(crate) fn answered_from(&self, address: IpAddr) {
        *lock(&self.answered) = Some(address);
    }

    /// The addresses of these servers, each name's in the resolver's order. Names that are not resolved in time are left
    /// out.
    pub(crate) async fn places(&self, urls: &[BrokerUrl]) -> Vec<Candidate> {
        let lookups = urls.iter().map(async |url| {
            let lookup = tokio::net::lookup_host((url.host.as_str(), url.port));
            let found = tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await.ok()?.ok()?;
            Some(found.map(|address| (url.clone(), address)).collect::<Vec<_>>())
        });
        let found = join_all(lookups).await;
        found.into_iter().flatten().flatten().take(MAX_PLACES).collect()
    }

    /// Dials these addresses over QUIC; the first to be answered wins.
    pub(crate) async fn dial_places(
        &self,
        places: Vec<Candidate>,
    ) -> Result<ServerConnection, Error> {
        let attempts = places
            .into_iter()
            .map(async |(url, address)| self.dial_address(&url, address, false).await);
        let first = staggered(attempts, NEXT_ADDRESS).await;
        first.unwrap_or_else(|| Err("no address".to_owned())).map_err(Error::Lost)
    }

    async fn dial_address(
        &self,
        url: &BrokerUrl,
        address: SocketAddr,
        early: bool,
    ) -> Result<ServerConnection, String> {
        if let (Transport::Quic, Some(quic)) = (url.transport, &self.quic) {
            return quic.dial(address, &url.host, early).await;
        }
        let text = |error: std::io::Error| error.to_string();
        let tcp = TcpStream::connect(address).await.map_err(text)?;
        tcp.set_nodelay(true).map_err(text)?;
        let limit = self.options.max_packet_bytes as usize;
        let Some(tls) = self.tls.as_ref().filter(|_| url.transport.is_secure()) else {
            return match url.transport {
                Transport::Ws => self.upgrade(tcp, url, limit).await,
                _ => Ok(ServerConnection::plain(tcp, url.transport)),
            };
        };
        let name = ServerName::try_from(url.host.clone()).map_err(|error| error.to_string())?;
        let stream = TlsConnector::from(Arc::clone(tls)).connect(name, tcp).await.map_err(text)?;
        match url.transport {
            Transport::Wss => self.upgrade(stream, url, limit).await,
            _ => Ok(ServerConnection::plain(stream, url.transport)),
        }
    }

    async fn upgrade<S>(
        &self,
        stream: S,
        url: &BrokerUrl,
        limit: usize,
    ) -> Result<ServerConnection, String>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let opened = websocket::connect(stream, &url.to_string(), limit).await;
        let (stream, bridge) = opened.map_err(|error| error.to_string())?;
        Ok(ServerConnection {
            _bridge: Some(bridge),
            ..ServerConnection::plain(stream, url.transport)
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // The locked values are plain and always consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first to succeed; `second` starts after `head_start`, or at once if `first` fails. If both fail, the error is
/// that of `first`, the preferred one.
async fn race<T, E>(
    first: impl Future<Output = Result<T, E>>,
    second: impl Future<Output = Result<T, E>>,
    head_start: Duration,
) -> Result<T, E> {
    tokio::pin!(first, second);
    let failed = tokio::select! {
        biased;
        done = &mut first => match done {
            Ok(conn) => return Ok(conn),
            Err(error) => Some(error),
        },
        () = tokio::time::sleep(head_start) => None,
    };
    if let Some(error) = failed {
        return second.await.map_err(|_| error);
    }
    tokio::select! {
        biased;
        done = &mut first => match done {
            Ok(conn) => Ok(conn),
            Err(error) => second.await.map_err(|_| error),
        },
        done = &mut second => match done {
            Ok(conn) => Ok(conn),
            Err(_) => first.await,
        },
    }
}

/// The first of several attempts to succeed. Each starts `gap` after the one before, or as soon as one fails. Returns
/// the last error if all fail, `None` if there are none.
async fn staggered<T, E, F: Future<Output = Result<T, E>>>(
    attempts: impl Iterator<Item = F>,
    gap: Duration,
) -> Option<Result<T, E>> {
    let mut attempts = attempts.peekable();
    let mut running = FuturesUnordered::new();
    let mut last = None;
    loop {
        running.extend(attempts.next());
        tokio::select! {
            biased;
            done = running.next() => match done {
                Some(Err(error)) => last = Some(Err(error)),
                Some(done) => return Some(done),
                None => return last,
            },
            () = tokio::time::sleep(gap), if attempts.peek().is_some() => {}
        }
    }
}

/// Description of a server's objection to the client's certificate: alerts of TLS by names, over QUIC by numbers.
pub(crate) fn certificate_hint(reason: &str) -> Option<&'static str> {
    // Over QUIC, the alert has the same number if this side refuses the server's certificate.
    let is_servers = !reason.contains("invalid peer certificate");
    let about = |words: &[&str]| is_servers && words.iter().any(|word| reason.contains(word));
    if about(&["CertificateRequired", "handshake failed: error 116"]) {
        return Some("; the broker requires a client certificate: give --cert and --key");
    }
    about(&["alert: UnknownCA", "handshake failed: error 48"])
        .then_some("; the broker does not trust the CA of the client's certificate (--cert)")
}

/// A hint what to try next.
fn hint(url: &BrokerUrl, reason: &str) -> &'static str {
    let about = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    if let Some(hint) = certificate_hint(reason) {
        hint
    } else if about(&["any known protocol", "NoApplicationProtocol", "error 120"]) {
        "; is that a port for MQTT over this transport?"
    } else if about(&["UnknownIssuer", "UnknownCA", "unknown CA", "BadSignature"]) {
        "; give the server's CA with --cafile"
    } else if about(&["NotValidForName", "not valid for name"]) {
        "; use a name in the broker's certificate; if this one is missing there, add it to [tls] names on the \
         broker"
    } else if about(&["refused"]) {
        "; is a broker listening there?"
    } else if about(&["InvalidContentType", "handshake eof"]) {
        "; is that a port for TLS?"
    } else if about(&["Handshake not finished"]) {
        "; is that a port for WebSocket?"
    } else if url.transport == Transport::Quic && about(&["timed out"]) {
        "; if UDP is blocked, try --fallback or mqtts://; or the link is slow or loses packets"
    } else {
        ""
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    use rustls::CertificateError;
    use rustls::pki_types::ServerName;

    #[test]
    fn a_certificate_for_another_name_says_where_names_are_set() {
        let url: BrokerUrl = "mqtts://broker.lan".parse().unwrap();
        let error = CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("broker.lan").unwrap(),
            presented: vec!["DnsName(\"localhost\")".to_owned()],
        };
        for error in [error, CertificateError::NotValidForName] {
            let error = rustls::Error::InvalidCertificate(error).to_string();
            let hint = hint(&url, &error);
            assert!(hint.ends_with("add it to [tls] names on the broker"), "{error}{hint}");
        }
    }

    #[test]
    fn an_unknown_ca_of_the_server_is_not_one_of_the_client() {
        let url: BrokerUrl = "quic://broker.lan".parse().unwrap();
        let ours =
            "the cryptographic handshake failed: error 48: invalid peer certificate: UnknownIssuer";
        assert_eq!(hint(&url, ours), "; give the server's CA with --cafile");
        let theirs = "aborted by peer: the cryptographic handshake failed: error 48";
        assert!(hint(&url, theirs).contains("the client's certificate (--cert)"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_preferred_way_has_a_head_start_and_the_other_a_chance() {
        let slow = |delay, value: Result<u8, u8>| async move {
            tokio::time::sleep(Duration::from_millis(delay)).await;
            value
        };
        let race = |a, b| super::race(a, b, HEAD_START);
        assert_eq!(race(slow(200, Ok(1)), slow(0, Ok(2))).await, Ok(1));
        assert_eq!(race(slow(900, Ok(1)), slow(100, Ok(2))).await, Ok(2));
        assert_eq!(race(slow(350, Ok(1)), slow(100, Ok(2))).await, Ok(1));
        assert_eq!(race(slow(10, Err(1)), slow(0, Ok(2))).await, Ok(2));
        assert_eq!(race(slow(10, Err(1)), slow(0, Err(2))).await, Err(1));
        assert_eq!(race(slow(900, Err(1)), slow(0, Err(2))).await, Err(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_address_does_not_hold_up_the_next() {
        // Address 0 never answers, odd ones refuse at once, even ones accept.
        let dial = |address: u8| async move {
            match address {
                0 => pending().await,
                _ if address % 2 == 1 => Err(address),
                _ => Ok(address),
            }
        };
        let cases: [(&[u8], _, u32); 5] = [
            (&[2, 4], Some(Ok(2)), 0),
            (&[1, 2], Some(Ok(2)), 0),
            (&[0, 2], Some(Ok(2)), 1),
            (&[0, 1, 0, 4], Some(Ok(4)), 2),
            (&[1, 3], Some(Err(3)), 0),
        ];
        for (addresses, outcome, gaps) in cases {
            let start = tokio::time::Instant::now();
            let attempts = addresses.iter().map(|address| dial(*address));
            assert_eq!(staggered(attempts, NEXT_ADDRESS).await, outcome, "{addresses:?}");
            assert_eq!(start.elapsed(), NEXT_ADDRESS * gaps, "{addresses:?}");
        }
        let none: [std::future::Ready<Result<u8, u8>>; 0] = [];
        assert_eq!(staggered(none.into_iter(), NEXT_ADDRESS).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn blocked_udp_does_not_hold_up_the_fallback() {
        let blocked = pending::<Result<u8, u8>>();
        let start = tokio::time::Instant::now();
        assert_eq!(race(blocked, ready(Ok(2)), HEAD_START).await, Ok(2));
        assert_eq!(start.elapsed(), HEAD_START);
    }
}
