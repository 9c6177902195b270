//! Connections: plain TCP, and QUIC with certificates.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use fulmar_certs::authority::{Authority, local_names};
use fulmar_certs::{AUTHORITY_FOLDER, default_data_dir, files, trust};
use fulmar_client::{Congestion, CopyingEndpoint, Options, Trust};
use quinn::congestion::{ControllerFactory, CubicConfig};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{Endpoint, IdleTimeout, TransportConfig, VarInt};
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::exit::Usage;
use crate::socket::unspecified;

/// The application protocol.
const PROTOCOL: &[u8] = b"fulmar-bulk";
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// A transfer survives 60 s without a link.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// The receive window: data after a gap waits until the gap is filled, which takes several round trips with much
/// loss. quinn holds up to 1,024 pieces of a stream with gaps between them, and closes a connection with more; this
/// window has 874 at a loss rate of a half.
const WINDOW_BYTES: u32 = 4 << 20;

/// Transport that carries the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Via {
    /// NORM: datagrams with repairs
    #[default]
    Norm,
    /// QUIC, with certificates
    Quic,
    /// TCP, without any protection
    Tcp,
}

/// The congestion control of a sender over QUIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Control {
    /// Follows delay, and does not mistake random loss for congestion
    #[default]
    Adaptive,
    /// CUBIC as in quinn, for comparison
    Cubic,
}

impl Control {
    fn factory(self) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self {
            Control::Cubic => Arc::new(CubicConfig::default()),
            Control::Adaptive => Congestion::Adaptive.factory(),
        }
    }
}

/// Certificates: of QUIC, and of a broker in a roll-out.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct TlsArgs {
    /// PEM file of trusted CAs [default: the local development CA and the system's]. Without it, a receiver over
    /// QUIC accepts any sender
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    cafile: Option<PathBuf>,
    /// PEM file of the certificate chain [default for a receiver over QUIC: one from the development CA]
    #[arg(long, value_name = "FILE", requires = "cert_key", help_heading = "TLS")]
    cert: Option<PathBuf>,
    /// PEM file of the certificate's private key
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = "TLS")]
    cert_key: Option<PathBuf>,
}

impl TlsArgs {
    /// The files of the CAs, and of the certificate and its key.
    pub(crate) fn files(&self) -> (Option<PathBuf>, Option<(PathBuf, PathBuf)>) {
        (self.cafile.clone(), self.cert.clone().zip(self.cert_key.clone()))
    }

    /// For a server that requires no client certificates.
    pub(super) fn without_authorities(&self) -> TlsArgs {
        TlsArgs { cafile: None, ..self.clone() }
    }
}

/// Both directions of a connection, and values that must live as long.
pub(super) struct Channel {
    pub(super) read: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
    pub(super) write: Box<dyn AsyncWrite + Send + Unpin>,
    quic: Option<(Endpoint, quinn::Connection)>,
}

impl Channel {
    fn tcp(stream: TcpStream) -> Channel {
        let (read, write) = stream.into_split();
        Channel { read: BufReader::new(Box::new(read)), write: Box::new(write), quic: None }
    }

    fn quic(
        endpoint: Endpoint,
        connection: quinn::Connection,
        write: quinn::SendStream,
        read: quinn::RecvStream,
    ) -> Channel {
        let quic = Some((endpoint, connection));
        Channel { read: BufReader::new(Box::new(read)), write: Box::new(write), quic }
    }

    /// Ends the connection after the other side has received everything.
    pub(super) async fn close(self) {
        if let Some((endpoint, connection)) = self.quic {
            connection.close(0u32.into(), b"");
            endpoint.wait_idle().await;
        }
    }

    /// Waits until the other side ends the connection, so that the last bytes are not lost.
    pub(super) async fn closed(self) {
        if let Some((_, connection)) = self.quic {
            connection.closed().await;
        }
    }
}

/// A certificate was not accepted: trying again would be useless.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Untrusted(String);

/// Maps a failed handshake to a mistake with certificates, if it is one: TLS alerts 42 to 49, except 80, and 116 (RFC
/// 8446, section 6.2), as QUIC's errors 0x100 to 0x1ff.
fn untrusted(name: &str, error: quinn::ConnectionError) -> anyhow::Error {
    let code = match &error {
        quinn::ConnectionError::TransportError(error) => u64::from(error.code),
        quinn::ConnectionError::ConnectionClosed(close) => u64::from(close.error_code),
        _ => 0,
    };
    match code {
        0x12a..=0x131 | 0x174 => Untrusted(format!(
            "TLS with {name}: {error}; see --cafile, --cert and --cert-key, and send to a name in \
             the receiver's certificate"
        ))
        .into(),
        _ => error.into(),
    }
}

/// Connects to a receiver.
pub(super) async fn dial(
    via: Via,
    name: &str,
    to: SocketAddr,
    tls: &TlsArgs,
    control: Control,
) -> anyhow::Result<Channel> {
    if via == Via::Tcp {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        return Ok(Channel::tcp(stream));
    }
    // The last datagrams of a file, and small files, do not wait for a timer where packets are lost.
    let copying = CopyingEndpoint::new(unspecified(to, 0))?;
    let mut config = client_config(name, tls)?;
    let mut transport = transport()?;
    transport.congestion_controller_factory(copying.watched(control.factory()));
    config.transport_config(Arc::new(transport));
    let connecting = copying.endpoint.connect_with(config, to, name)?;
    let connection = connecting.await.map_err(|error| untrusted(name, error))?;
    let (write, read) = connection.open_bi().await?;
    Ok(Channel::quic(copying.endpoint, connection, write, read))
}

fn transport() -> anyhow::Result<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.keep_alive_interval(Some(KEEP_ALIVE));
    transport
        .max_idle_timeout(Some(IdleTimeout::try_from(IDLE_TIMEOUT)?))
        .stream_receive_window(VarInt::from_u32(WINDOW_BYTES))
        .receive_window(VarInt::from_u32(2 * WINDOW_BYTES))
        .send_window(4 * u64::from(WINDOW_BYTES));
    Ok(transport)
}

/// Checks what a sender needs before it starts.
pub(super) fn client_config(name: &str, tls: &TlsArgs) -> anyhow::Result<quinn::ClientConfig> {
    let host = if name.contains(':') { format!("[{name}]") } else { name.to_owned() };
    let mut options = Options::new(&format!("quic://{host}"))?;
    if let Some(file) = &tls.cafile {
        options.trust = Trust::CaFile(file.clone());
    }
    options.certificate = tls.cert.clone().zip(tls.cert_key.clone());
    let mut crypto = options.tls_config().map_err(|error| Usage(error.to_string()))?;
    crypto.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(crypto)?)))
}

/// Accepts connections.
pub(super) enum Listener {
    Tcp(TcpListener),
    Quic(Endpoint),
}

/// An incoming connection before its handshake.
pub(super) enum Arrival {
    Tcp(TcpStream),
    Quic(Endpoint, Box<quinn::Incoming>),
}

impl Listener {
    pub(super) async fn bind(via: Via, at: SocketAddr, tls: &TlsArgs) -> anyhow::Result<Listener> {
        let what = || format!("cannot listen on {at}");
        if via == Via::Tcp {
            return Ok(Listener::Tcp(TcpListener::bind(at).await.with_context(what)?));
        }
        let config = server_config(tls)?;
        Ok(Listener::Quic(Endpoint::server(config, at).with_context(what)?))
    }

    pub(super) fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(match self {
            Listener::Tcp(listener) => listener.local_addr()?,
            Listener::Quic(endpoint) => endpoint.local_addr()?,
        })
    }

    pub(super) async fn accept(&self) -> anyhow::Result<(Arrival, SocketAddr)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                Ok((Arrival::Tcp(stream), from))
            }
            Listener::Quic(endpoint) => {
                let incoming = endpoint.accept().await.context("the endpoint is closed")?;
                let from = incoming.remote_address();
                Ok((Arrival::Quic(endpoint.clone(), Box::new(incoming)), from))
            }
        }
    }
}

impl Arrival {
    pub(super) async fn open(self) -> anyhow::Result<Channel> {
        match self {
            Arrival::Tcp(stream) => Ok(Channel::tcp(stream)),
            Arrival::Quic(endpoint, incoming) => {
                let connection = incoming.accept()?.await?;
                let (write, read) = connection.accept_bi().await?;
                Ok(Channel::quic(endpoint, connection, write, read))
            }
        }
    }
}

fn server_config(tls: &TlsArgs) -> anyhow::Result<quinn::ServerConfig> {
    let (chain, key) = match (&tls.cert, &tls.cert_key) {
        (Some(chain), Some(key)) => (chain.clone(), key.clone()),
        _ => Authority::open(&default_data_dir().join(AUTHORITY_FOLDER))?
            .server_files(&local_names())?,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?;
    let builder = match &tls.cafile {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let roots = Arc::new(trust::roots_of(file)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build()?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut crypto =
        builder.with_single_cert(files::read_chain(&chain)?, files::read_key(&key)?)?;
    crypto.alpn_protocols = vec![PROTOCOL.to_vec()];
    let crypto = QuicServerConfig::try_from(crypto)?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    let mut transport = transport()?;
    transport.congestion_controller_factory(Control::default().factory());
    config.transport_config(Arc::new(transport));
    Ok(config)
}
