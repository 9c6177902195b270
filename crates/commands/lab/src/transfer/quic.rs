//! HTTP/3 with quinn and h3. Each connection has its own socket on any address, so that packets leave from the
//! machine's present address: the connection migrates with the next packet.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::{Buf as _, Bytes};
use h3::client::SendRequest;
use http::header;
use quinn::congestion::{BbrConfig, ControllerFactory, CubicConfig, NewRenoConfig};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    Endpoint, EndpointConfig, IdleTimeout, TokioRuntime, TransportConfig, VarInt, ZeroRttAccepted,
};
use quinn_proto::RandomConnectionIdGenerator;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::target::{Route, Target, Tickets};
use super::{Answer, Args, Ask, Congestion};

/// Silence after which a connection is lost; a request's timeout is mostly shorter.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Bytes the server may send before they are read, as hyper's HTTP/2 client allows.
const STREAM_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 5 * 1024 * 1024;

/// Size of the parts in which a body is sent.
const PART_BYTES: usize = 16 * 1024;

/// H3_NO_ERROR (RFC 9114 section 8.1).
const NO_ERROR: VarInt = VarInt::from_u32(0x100);

/// A stream of reserved type 0x21, and a packet of padding.
const RESERVED_STREAM: [u8; 1100] = {
    let mut stream = [0; 1100];
    stream[0] = 0x21;
    stream
};

/// A client that connects over QUIC.
pub(super) struct Client {
    config: quinn::ClientConfig,
    address: SocketAddr,
    name: String,
    pub(super) tickets: Arc<Tickets>,
}

/// A connection over QUIC.
pub(super) struct OpenConnection {
    endpoint: Endpoint,
    route: Route,
    connection: quinn::Connection,
    sender: SendRequest<h3_quinn::OpenStreams, Bytes>,
    driver: JoinHandle<()>,
    /// Resolves to whether the server accepted the early data; `None` after that.
    accepting: Option<ZeroRttAccepted>,
    early_data: bool,
}

impl Client {
    pub(super) fn new(target: &Target, remember: bool, args: &Args) -> anyhow::Result<Client> {
        let Some((mut tls, name)) = target.tls.clone() else {
            bail!(crate::exit::Usage("HTTP/3 needs https://".to_owned()));
        };
        tls.alpn_protocols = vec![b"h3".to_vec()];
        tls.enable_early_data = remember;
        let tickets = Tickets::install(&mut tls, remember);
        let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        let mut transport = TransportConfig::default();
        let window = |usual| VarInt::from_u32(args.window.unwrap_or(usual));
        transport
            .stream_receive_window(window(STREAM_WINDOW_BYTES))
            .receive_window(window(CONNECTION_WINDOW_BYTES))
            // Trying larger datagrams would cost more on a slow link than they save.
            .mtu_discovery_config(None)
            .max_idle_timeout(Some(IdleTimeout::try_from(IDLE_TIMEOUT)?));
        transport.congestion_controller_factory(args.congestion.map_or_else(ours, factory));
        config.transport_config(Arc::new(transport));
        let name = name.to_str().into_owned();
        Ok(Client { config, address: target.address, name, tickets })
    }

    /// Connects; with a ticket, before the server has answered.
    pub(super) async fn connect(&self) -> anyhow::Result<OpenConnection> {
        let any: IpAddr = if self.address.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
        let (socket, route) = (UdpSocket::bind((any, 0))?, Route::to(self.address)?);
        let mut config = EndpointConfig::default();
        // The socket belongs to this connection alone: packets to it need no connection ID, eight bytes less each.
        config.cid_generator(|| Box::new(RandomConnectionIdGenerator::new(0)));
        let endpoint = Endpoint::new(config, None, socket, Arc::new(TokioRuntime))?;
        let connecting = endpoint.connect_with(self.config.clone(), self.address, &self.name)?;
        let (connection, accepting) = match connecting.into_0rtt() {
            Ok((connection, accepted)) => (connection, Some(accepted)),
            Err(connecting) => (connecting.await?, None),
        };
        let mut builder = h3::client::builder();
        // Grease is for detecting broken servers; here it would only be bytes.
        builder.send_grease(false);
        let quic = h3_quinn::Connection::new(connection.clone());
        let (mut driver, sender) = builder.build(quic).await.context("HTTP/3")?;
        let driver = tokio::spawn(async move {
            // Errors show at the request.
            drop(std::future::poll_fn(|cx| driver.poll_close(cx)).await);
        });
        Ok(OpenConnection {
            endpoint,
            route,
            connection,
            sender,
            driver,
            accepting,
            early_data: false,
        })
    }
}

/// The congestion control that all other Fulmar clients have.
fn ours() -> Arc<dyn ControllerFactory + Send + Sync> {
    fulmar_congestion::Congestion::default().factory()
}

fn factory(congestion: Congestion) -> Arc<dyn ControllerFactory + Send + Sync> {
    match congestion {
        Congestion::Cubic => Arc::new(CubicConfig::default()),
        Congestion::Bbr => Arc::new(BbrConfig::default()),
        Congestion::Reno => Arc::new(NewRenoConfig::default()),
    }
}

/// Informs the server when this machine has another address. A client that only receives would not send anything from
/// there, and the server would keep sending to the old address.
pub(super) struct Follower {
    endpoint: Endpoint,
    connection: quinn::Connection,
    route: Route,
}

impl Follower {
    /// Returns the reason when no socket can be created.
    pub(super) async fn follow(mut self) -> anyhow::Error {
        loop {
            self.route.changed().await;
            if let Err(error) = self.move_once().await {
                return error.context("cannot move");
            }
        }
    }

    async fn move_once(&mut self) -> anyhow::Result<()> {
        self.route = Route::to(self.route.remote)?;
        self.endpoint.rebind(UdpSocket::bind((self.route.local, 0))?)?;
        // Until it has validated the new address, the server may send it three times the bytes received from there
        // (RFC 9000 section 9.3). If the server's first challenge is lost, for example because the queue towards the
        // old address is full, a PING alone would not allow another challenge; a stream of a reserved type, which
        // servers ignore (RFC 9114 section 6.2.3), does.
        let mut stream = self.connection.open_uni().await?;
        stream.write_all(&RESERVED_STREAM).await?;
        Ok(stream.finish()?)
    }
}

impl OpenConnection {
    pub(super) fn follower(&self) -> Follower {
        let (endpoint, connection) = (self.endpoint.clone(), self.connection.clone());
        Follower { endpoint, connection, route: self.route }
    }

    pub(super) async fn exchange(&mut self, ask: &Ask) -> anyhow::Result<Answer> {
        let mut request = ask.request(());
        *request.uri_mut() = ask.url.clone();
        if let Some(bytes) = ask.post {
            request.headers_mut().insert(header::CONTENT_LENGTH, bytes.into());
        }
        let sending = timeout(ask.patience, self.sender.send_request(request));
        let mut stream = sending.await.context("the request stalled")??;
        let body = Bytes::from(vec![b'x'; usize::try_from(ask.post.unwrap_or(0))?]);
        for start in (0..body.len()).step_by(PART_BYTES) {
            let part = body.slice(start..body.len().min(start + PART_BYTES));
            let sent = timeout(ask.patience, stream.send_data(part)).await;
            if sent.context("the request stalled")?.is_err() {
                // The server does not read all of it; its response says why.
                break;
            }
        }
        // As above.
        stream.finish().await.ok();
        let response = timeout(ask.patience, stream.recv_response()).await;
        let response = response.context("no answer in time")??;
        let (headed, mut bytes) = (Instant::now(), 0);
        while let Some(data) =
            timeout(ask.patience, stream.recv_data()).await.context("the answer stalled")??
        {
            bytes += data.remaining() as u64;
        }
        let ended = Instant::now();
        if let Some(accepting) = self.accepting.take() {
            self.early_data = accepting.await;
        }
        Ok(Answer { status: response.status(), headed, ended, bytes })
    }

    pub(super) async fn close(self) {
        drop(self.sender);
        self.connection.close(NO_ERROR, b"");
        drop(timeout(super::GOODBYE, self.endpoint.wait_idle()).await);
        self.driver.abort();
    }

    pub(super) fn figures(&self) -> Value {
        let stats = self.connection.stats();
        json!({
            "protocol": "h3",
            "early_data": self.early_data,
            "rtt_ms": super::ms(self.connection.rtt()),
            "lost_packets": stats.path.lost_packets,
            "datagram_bytes": stats.path.current_mtu,
        })
    }
}
