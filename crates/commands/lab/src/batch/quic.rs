//! Transfers over QUIC: a stream each, and a connection each unless connections are kept. The client's stream begins
//! with the request (1: send this many bytes, 2: this many bytes follow) and the number of bytes (8 bytes, big
//! endian).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use fulmar_client::Options;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    Connection, Endpoint, EndpointConfig, IdleTimeout, TokioRuntime, TransportConfig, VarInt,
};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::{Files, Job};
use crate::exit::Usage;
use crate::runtime::block_on;

const ALPN: &[u8] = b"fulmar-lab-batch";
const GET: u8 = 1;
const PUT: u8 = 2;
const REQUEST: usize = 9;
/// Bytes written at once.
const PART: usize = 16 * 1024;
/// Time to close; it is not measured.
const GOODBYE: Duration = Duration::from_millis(200);
/// Difference between the idle timeout and that of a transfer.
const MARGIN: Duration = Duration::from_secs(10);

/// A client; each transfer has a new connection, unless the connection is kept.
pub(super) struct Client {
    runtime: Runtime,
    config: quinn::ClientConfig,
    kept: Option<OpenConnection>,
}

/// A socket, and the connection once there is one.
struct OpenConnection {
    endpoint: Endpoint,
    connection: Option<Connection>,
}

impl Client {
    pub(super) fn new(job: &Job) -> anyhow::Result<Client> {
        let mut options = Options::new("mqtts://server")?;
        options.trust = fulmar_client::Trust::Insecure;
        let mut tls = options.tls_config()?;
        tls.alpn_protocols = vec![ALPN.to_vec()];
        tls.resumption = rustls::client::Resumption::disabled();
        let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        let mut transport = TransportConfig::default();
        if let Some(window) = job.window {
            let window = VarInt::from_u32(window);
            transport.stream_receive_window(window).receive_window(window);
        }
        transport.max_idle_timeout(Some(IdleTimeout::try_from(job.patience + MARGIN)?));
        config.transport_config(Arc::new(transport));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start the runtime")?;
        Ok(Client { runtime, config, kept: None })
    }

    /// Waits for some time while the kept connection is served.
    pub(super) fn rest(&self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }

    pub(super) fn transfer(&mut self, job: &Job) -> anyhow::Result<()> {
        let kept = self.kept.take();
        let (done, conn) = self.runtime.block_on(async {
            let mut conn = kept.map_or_else(|| OpenConnection::new(job), Ok)?;
            let done = timeout(job.patience, conn.transfer(&self.config, job)).await;
            if !job.keep {
                conn.end().await;
                return anyhow::Ok((done, None));
            }
            Ok((done, Some(conn)))
        })?;
        self.kept = conn;
        done.context("timeout")?
    }
}

impl OpenConnection {
    fn new(job: &Job) -> anyhow::Result<OpenConnection> {
        let socket = super::socket(job)?;
        let runtime = Arc::new(TokioRuntime);
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, runtime)?;
        Ok(OpenConnection { endpoint, connection: None })
    }

    async fn transfer(&mut self, config: &quinn::ClientConfig, job: &Job) -> anyhow::Result<()> {
        let connection = match &self.connection {
            Some(connection) => connection,
            None => {
                let connecting =
                    self.endpoint.connect_with(config.clone(), job.server, "server")?;
                self.connection.insert(connecting.await?)
            }
        };
        let (mut send, mut receive) = connection.open_bi().await?;
        let mut request = vec![if job.put { PUT } else { GET }];
        request.extend(job.bytes.to_be_bytes());
        send.write_all(&request).await?;
        if job.put {
            write(&mut send, job.bytes).await?;
        }
        send.finish()?;
        let expected = if job.put { 1 } else { job.bytes };
        let got = drain(&mut receive).await?;
        if got != expected {
            bail!("{got} bytes arrived instead of {expected}");
        }
        Ok(())
    }

    async fn end(self) {
        self.endpoint.close(VarInt::from_u32(0), b"");
        drop(timeout(GOODBYE, self.endpoint.wait_idle()).await);
    }
}

async fn write(send: &mut quinn::SendStream, mut left: u64) -> anyhow::Result<()> {
    let part = [b'x'; PART];
    while left > 0 {
        let now = left.min(PART as u64);
        send.write_all(&part[..now as usize]).await?;
        left -= now;
    }
    Ok(())
}

/// Reads a stream to its end; returns the number of bytes.
async fn drain(receive: &mut quinn::RecvStream) -> anyhow::Result<u64> {
    let (mut bytes, mut buffer) = (0, vec![0; PART]);
    while let Some(read) = receive.read(&mut buffer).await? {
        bytes += read as u64;
    }
    Ok(bytes)
}

/// Serves transfers until the process ends.
pub(super) fn serve(at: SocketAddr, files: &Files) -> anyhow::Result<()> {
    let (Some(cert), Some(key)) = (&files.cert, &files.key) else {
        return Err(Usage("QUIC needs --cert and --key".to_owned()).into());
    };
    let chain = fulmar_certs::files::read_chain(cert)?;
    let key = fulmar_certs::files::read_key(key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        // A root is not sent, because the client must trust it already.
        .with_single_cert(chain[..1].to_vec(), key)?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto = QuicServerConfig::try_from(Arc::new(tls))?;
    let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    block_on(async {
        let endpoint = Endpoint::server(config, at).with_context(|| at.to_string())?;
        println!("ready quic={}", endpoint.local_addr()?);
        while let Some(incoming) = endpoint.accept().await {
            // The client reports its errors.
            tokio::spawn(async { drop(answer(incoming).await) });
        }
        Ok(())
    })
}

async fn answer(incoming: quinn::Incoming) -> anyhow::Result<()> {
    let connection = incoming.await?;
    loop {
        let (send, receive) = connection.accept_bi().await?;
        serve_stream(send, receive).await?;
    }
}

async fn serve_stream(
    mut send: quinn::SendStream,
    mut receive: quinn::RecvStream,
) -> anyhow::Result<()> {
    let mut request = [0; REQUEST];
    receive.read_exact(&mut request).await?;
    let [kind, bytes @ ..] = request;
    let bytes = u64::from_be_bytes(bytes);
    match kind {
        GET if bytes <= super::MAX_BYTES => write(&mut send, bytes).await?,
        PUT if drain(&mut receive).await? == bytes => send.write_all(b"!").await?,
        _ => bail!("not a request"),
    }
    Ok(send.finish()?)
}
