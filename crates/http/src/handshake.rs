//! TLS handshakes over TCP: those of HTTP clients, and those of ACME servers that validate a name.
//!
//! An ACME server offers its own ALPN protocol (RFC 8737 section 3), and its connection ends with the handshake. The
//! caller sets timeouts.

use std::io;
use std::sync::Arc;

use rustls::server::{Acceptor, ClientHello};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::{ACME_ALPN, EndpointConfig};

/// Protocols offered over TCP, the preferred one first.
const TCP_ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The TLS configurations for TCP.
#[derive(Clone)]
pub(crate) struct Handshakes {
    http: Arc<rustls::ServerConfig>,
    challenges: Option<Arc<rustls::ServerConfig>>,
}

impl Handshakes {
    pub(crate) fn new(config: &EndpointConfig) -> Handshakes {
        let mut http = (*config.tls.tcp).clone();
        http.alpn_protocols = TCP_ALPN.map(<[u8]>::to_vec).to_vec();
        Handshakes { http: Arc::new(http), challenges: config.challenges.clone() }
    }

    /// A stream for HTTP; `None` after an ACME server's handshake.
    pub(crate) async fn shake(
        &self,
        socket: TcpStream,
    ) -> io::Result<Option<TlsStream<TcpStream>>> {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), socket).await?;
        let challenges = self.challenges.as_ref().filter(|_| validates(&hello.client_hello()));
        let Some(challenges) = challenges else {
            return hello.into_stream(Arc::clone(&self.http)).await.map(Some);
        };
        let mut stream = hello.into_stream(Arc::clone(challenges)).await?;
        stream.shutdown().await?;
        Ok(None)
    }
}

fn validates(hello: &ClientHello<'_>) -> bool {
    hello
        .alpn()
        .is_some_and(|mut offered| offered.next() == Some(ACME_ALPN) && offered.next().is_none())
}
