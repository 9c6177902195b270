//! The way to the server: HTTP/1.1 over the socket in its data folder, or over TLS with a token.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use bytes::Bytes;
use fulmar_admin::{PREFIX, SOCKET_FILE, SocketPath};
use fulmar_certs::{files, trust};
use fulmar_command::exit::Usage;
use fulmar_command::terminal;
pub(crate) use fulmar_text::percent::encode;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::server::Server;
use crate::table;

/// The longest wait for the head of a response.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same for a backup, which copies databases first.
const LONG_PATIENCE: Duration = Duration::from_secs(3600);
/// Bytes of a JSON response at most.
const MAX_RESPONSE_BYTES: usize = 64 << 20;
/// The default port of the `https` listener.
const DEFAULT_PORT: u16 = 8443;

/// A server.
pub(crate) struct Api {
    endpoint: Endpoint,
    json: bool,
}

enum Endpoint {
    /// The data folder with the socket.
    Socket(PathBuf),
    Https {
        host: String,
        port: u16,
        token: String,
        ca: Option<PathBuf>,
    },
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Api {
    pub(crate) fn new(server: &Server) -> anyhow::Result<Api> {
        let endpoint = match &server.url {
            Some(url) => https(url, server)?,
            None => Endpoint::Socket(folder(server.data.as_deref())?),
        };
        Ok(Api { endpoint, json: server.json })
    }

    /// Prints a response: as JSON if that is wanted.
    pub(crate) fn print(&self, value: &Value, print: impl FnOnce(&Value)) {
        if self.json {
            // JSON has a JSON form.
            println!("{}", terminal::json(serde_json::to_string_pretty(value).unwrap_or_default()));
        } else {
            print(value);
        }
    }

    pub(crate) fn wants_json(&self) -> bool {
        self.json
    }

    /// Prints what was done, unless JSON is wanted.
    pub(crate) fn done(&self, text: &str) {
        if !self.json {
            println!("{text}");
        }
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.send(Method::GET, path, None).await
    }

    /// A request with a JSON response; null if it has none.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let response = self.begin(method, path, body).await?;
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect();
        let body = body.await.map_err(|error| anyhow!("the response broke off: {error}"))?;
        let body = body.to_bytes();
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&body).context("the response is not JSON: is this a Fulmar server?")
    }

    /// Requests an object by its name, and prints it.
    pub(crate) async fn print_object(&self, list: &str, name: &str) -> anyhow::Result<()> {
        let object = self.get(&format!("{list}/{}", encode(name))).await?;
        self.print(&object, table::fields);
        Ok(())
    }

    /// Sends a change, and prints what is done.
    pub(crate) async fn change(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        done: &str,
    ) -> anyhow::Result<()> {
        self.send(method, path, body).await?;
        self.done(done);
        Ok(())
    }

    /// Removes an object by its name, and prints what is done.
    pub(crate) async fn remove(&self, list: &str, name: &str, done: &str) -> anyhow::Result<()> {
        self.change(Method::DELETE, &format!("{list}/{}", encode(name)), None, done).await
    }

    /// All items of a list with pages, at most `most`; `path` may have a query.
    pub(crate) async fn pages(&self, path: &str, name: &str, most: usize) -> anyhow::Result<Value> {
        let join = if path.contains('?') { '&' } else { '?' };
        let (mut items, mut cursor) = (Vec::new(), String::new());
        loop {
            let mut page = self.get(&format!("{path}{join}limit=1000{cursor}")).await?;
            if let Some(Value::Array(more)) = page.get_mut(name).map(Value::take) {
                items.extend(more);
            }
            let next = match page.get("next") {
                Some(Value::String(next)) if items.len() < most => encode(next),
                Some(Value::Number(next)) if items.len() < most => next.to_string(),
                _ => break,
            };
            cursor = format!("&cursor={next}");
        }
        items.truncate(most);
        Ok(Value::Array(items))
    }

    /// A request; the response's status is one of success.
    pub(crate) async fn begin(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Response<Incoming>> {
        self.begin_within(PATIENCE, method, path, body).await
    }

    /// The same for a request whose response begins late.
    pub(crate) async fn begin_long(
        &self,
        method: Method,
        path: &str,
    ) -> anyhow::Result<Response<Incoming>> {
        self.begin_within(LONG_PATIENCE, method, path, None).await
    }

    async fn begin_within(
        &self,
        patience: Duration,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Response<Incoming>> {
        let mut sender = self.connect().await?;
        let mut request = Request::builder().method(method).uri(format!("{PREFIX}{path}"));
        request = match &self.endpoint {
            Endpoint::Socket(_) => request.header(header::HOST, "localhost"),
            Endpoint::Https { host, port, token, .. } => request
                .header(header::HOST, format!("{host}:{port}"))
                .header(header::AUTHORIZATION, format!("Bearer {token}")),
        };
        let bytes = body.map_or_else(Bytes::new, |body| body.to_string().into());
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(bytes)).context("the request")?;
        let response = tokio::time::timeout(patience, sender.send_request(request)).await;
        let response = response.with_context(|| format!("no response in {patience:?}"))??;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(refusal(response).await)
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let stream: Box<dyn Stream> = match &self.endpoint {
            Endpoint::Socket(data) => Box::new(connect_socket(data).await?),
            Endpoint::Https { host, port, ca, .. } => {
                let connecting = connect_tls(host, *port, ca.as_deref());
                let stream = tokio::time::timeout(PATIENCE, connecting).await;
                let stream = stream.with_context(|| format!("no connection in {PATIENCE:?}"))?;
                Box::new(stream.with_context(|| format!("{host}:{port}"))?)
            }
        };
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// The error of a response that is a problem (RFC 9457).
async fn refusal(response: Response<Incoming>) -> anyhow::Error {
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
    match problem["detail"].as_str() {
        Some(detail) => anyhow!("{detail}"),
        None if status == StatusCode::NOT_FOUND => {
            anyhow!("the server has no administration API: is it Fulmar, and of this version?")
        }
        None => anyhow!("the server answered {status}"),
    }
}

async fn connect_socket(data: &Path) -> anyhow::Result<UnixStream> {
    let socket = SocketPath::in_folder(data).with_context(|| data.display().to_string())?;
    UnixStream::connect(socket.path()).await.map_err(|error| {
        let data = data.display();
        match error.kind() {
            std::io::ErrorKind::PermissionDenied => anyhow!(
                "{data}: only the user of the broker and root may use this: try sudo, or --url with a token"
            ),
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                anyhow!("no broker runs with the data folder {data}: name another with --data")
            }
            _ => anyhow!("{data}/{SOCKET_FILE}: {error}"),
        }
    })
}

/// The data folder: the given one, or the first usual one that has a socket.
fn folder(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(data) = given {
        return Ok(data.to_owned());
    }
    let usual = [fulmar_certs::default_data_dir(), PathBuf::from("/var/lib/fulmar")];
    // A folder that may not be read may have one.
    let has = |data: &&PathBuf| data.join(SOCKET_FILE).try_exists().unwrap_or(true);
    usual.iter().find(has).cloned().ok_or_else(|| {
        Usage(
            "no broker of this user runs on this machine: name its data folder with --data, or --url and --token-file"
                .to_owned(),
        )
        .into()
    })
}

fn https(url: &str, server: &Server) -> anyhow::Result<Endpoint> {
    let usage = || Usage(format!("--url {url}: expected https://HOST[:PORT]"));
    let uri: Uri = url.parse().map_err(|_| usage())?;
    let (Some("https"), Some(host)) = (uri.scheme_str(), uri.host()) else {
        return Err(usage().into());
    };
    let Some(file) = &server.token_file else {
        return Err(Usage("--url requires --token-file FILE with a token".to_owned()).into());
    };
    let token = files::read_secret_line(file)?;
    let token = token.trim().to_owned();
    let fine = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    ensure!(fine, "{}: expected one line with a token", file.display());
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = uri.port_u16().unwrap_or(DEFAULT_PORT);
    Ok(Endpoint::Https { host, port, token, ca: server.ca.clone() })
}

async fn connect_tls(
    host: &str,
    port: u16,
    ca: Option<&Path>,
) -> anyhow::Result<TlsStream<TcpStream>> {
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    let loopback = addresses.iter().all(|address| address.ip().is_loopback());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config.with_root_certificates(trust::roots(ca, loopback)?).with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).context("not a host name")?;
    let stream = TcpStream::connect(&*addresses).await?;
    let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
    connecting
        .await
        .context("TLS: if the certificate is not trusted, name the server's CA with --ca")
}
