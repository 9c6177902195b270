//! HTTP/1.1 over TCP or TLS, and HTTP/2 over TLS, with hyper.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{HeaderValue, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::HandshakeKind;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use socket2::SockRef;
use tokio::net::TcpSocket;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::target::{Route, Target, Tickets};
use super::{Answer, Args, Ask, Congestion};

/// A client that connects over TCP.
pub(super) struct Client {
    target: Target,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    pub(super) tickets: Arc<Tickets>,
    two: bool,
    congestion: Option<Congestion>,
    window: Option<u32>,
}

/// A connection over TCP.
pub(super) struct OpenConnection {
    sender: Sender,
    driver: JoinHandle<()>,
    pub(super) route: Route,
    protocol: &'static str,
    resumed: bool,
}

enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

impl Client {
    /// A client for HTTP/2 (`two`) or HTTP/1.1.
    pub(super) fn new(
        target: &Target,
        two: bool,
        remember: bool,
        args: &Args,
    ) -> anyhow::Result<Client> {
        let (congestion, window) = (args.congestion, args.window);
        let Some((tls, name)) = target.tls.clone() else {
            if remember {
                bail!(crate::exit::Usage("plain HTTP has no tickets".to_owned()));
            }
            let tickets = Tickets::none();
            return Ok(Client {
                target: target.clone(),
                tls: None,
                tickets,
                two,
                congestion,
                window,
            });
        };
        let mut tls = tls;
        tls.alpn_protocols = vec![if two { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
        let tickets = Tickets::install(&mut tls, remember);
        let tls = Some((TlsConnector::from(Arc::new(tls)), name));
        Ok(Client { target: target.clone(), tls, tickets, two, congestion, window })
    }

    pub(super) async fn connect(&self) -> anyhow::Result<OpenConnection> {
        let remote = self.target.address;
        let socket = if remote.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        if let Some(window) = self.window {
            socket.set_recv_buffer_size(window)?;
        }
        let tcp = socket.connect(remote).await.with_context(|| remote.to_string())?;
        tcp.set_nodelay(true)?;
        if let Some(congestion) = self.congestion {
            let name: &[u8] = match congestion {
                Congestion::Cubic => b"cubic",
                Congestion::Bbr => b"bbr",
                Congestion::Reno => b"reno",
            };
            SockRef::from(&tcp).set_tcp_congestion(name).context("congestion control")?;
        }
        let route = Route { local: tcp.local_addr()?.ip(), remote };
        let Some((connector, name)) = &self.tls else {
            let (sender, driver) = handshake(TokioIo::new(tcp)).await?;
            return Ok(OpenConnection {
                sender,
                driver,
                route,
                protocol: "http/1.1",
                resumed: false,
            });
        };
        let stream = connector.connect(name.clone(), tcp).await.context("TLS")?;
        let state = stream.get_ref().1;
        let resumed = state.handshake_kind() == Some(HandshakeKind::Resumed);
        let wanted: &[u8] = if self.two { b"h2" } else { b"http/1.1" };
        if self.two && state.alpn_protocol() != Some(wanted) {
            bail!("the server does not speak HTTP/2");
        }
        let io = TokioIo::new(stream);
        let (sender, driver) =
            if self.two { two(io, self.window).await? } else { handshake(io).await? };
        let protocol = if self.two { "h2" } else { "http/1.1" };
        Ok(OpenConnection { sender, driver, route, protocol, resumed })
    }
}

async fn handshake<T>(io: T) -> anyhow::Result<(Sender, JoinHandle<()>)>
where
    T: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    let (sender, connection) = http1::handshake(io).await?;
    // Errors show at the request.
    Ok((Sender::One(sender), tokio::spawn(async move { drop(connection.await) })))
}

async fn two<T>(io: T, window: Option<u32>) -> anyhow::Result<(Sender, JoinHandle<()>)>
where
    T: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    let mut builder = http2::Builder::new(TokioExecutor::new());
    if window.is_some() {
        builder.initial_stream_window_size(window).initial_connection_window_size(window);
    }
    let (sender, connection) = builder.handshake(io).await?;
    Ok((Sender::Two(sender), tokio::spawn(async move { drop(connection.await) })))
}

impl OpenConnection {
    pub(super) async fn exchange(&mut self, ask: &Ask) -> anyhow::Result<Answer> {
        let body = Bytes::from(vec![b'x'; usize::try_from(ask.post.unwrap_or(0))?]);
        let mut request = ask.request(Full::new(body));
        let answering = async {
            Ok::<_, hyper::Error>(match &mut self.sender {
                Sender::One(sender) => {
                    let host = ask.url.authority().map_or("", |authority| authority.as_str());
                    // A URL's authority is a valid header value.
                    if let Ok(host) = HeaderValue::from_str(host) {
                        request.headers_mut().insert(header::HOST, host);
                    }
                    *request.uri_mut() = ask.path();
                    sender.ready().await?;
                    sender.send_request(request).await?
                }
                Sender::Two(sender) => {
                    *request.uri_mut() = ask.url.clone();
                    sender.ready().await?;
                    sender.send_request(request).await?
                }
            })
        };
        let response = timeout(ask.patience, answering).await.context("no answer in time")??;
        let (status, headed) = (response.status(), Instant::now());
        let bytes = drain(response.into_body(), ask).await?;
        Ok(Answer { status, headed, ended: Instant::now(), bytes })
    }

    pub(super) async fn close(self) {
        drop(self.sender);
        // It closes the connection; if it cannot in time, the connection ends with the program.
        drop(timeout(super::GOODBYE, self.driver).await);
    }

    pub(super) fn figures(&self) -> Value {
        json!({ "protocol": self.protocol, "resumed": self.resumed, "early_data": false })
    }
}

async fn drain(mut body: Incoming, ask: &Ask) -> anyhow::Result<u64> {
    let mut bytes = 0;
    while let Some(frame) =
        timeout(ask.patience, body.frame()).await.context("the answer stalled")?
    {
        bytes += frame?.data_ref().map_or(0, Bytes::len) as u64;
    }
    Ok(bytes)
}
