//! `fulmar lab transfer`: an HTTP client that reports how long requests take, for experiments.
//!
//! A request's time begins before its connection is made, unless that is kept (`--connection kept`), and ends with
//! the last byte of its response. One JSON object per event goes to standard output, as with `fulmar lab probe`; a
//! transfer that was started again is one transfer, with `attempts` above 1.
//!
//! This module has the options, the order of events and the statistics; `target` has addresses and certificates,
//! `tcp` HTTP/1.1 and HTTP/2, `quic` HTTP/3. Any server will do; `fulmar serve` has objects of any size if `[lab]
//! objects` is set.

mod quic;
mod target;
mod tcp;

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::message::Connection;
use super::probe::{TlsArgs, print_event};
use crate::runtime::block_on;
use target::{Route, Target};

const EXAMPLES: &str = "\
Examples:
  fulmar lab transfer https://server:8443/lab/objects/7000 --http 3 --insecure
  fulmar lab transfer https://server:8443/lab/objects/7000 --http 3 --insecure --connection returning
      by a returning client: 0-RTT
  fulmar lab transfer https://server:8443/lab/objects --post 10000 --http 2 --insecure --count 5";

/// The content type of bodies.
const OPAQUE: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Time to close the connection; it is not measured.
const GOODBYE: Duration = Duration::from_secs(1);

/// Measure how long HTTP requests take, as JSON lines
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// URL to request: http:// (HTTP/1.1 only) or https:// HOST[:PORT]/PATH
    url: String,
    /// Version of HTTP
    #[arg(long, value_enum, default_value = "2")]
    http: Version,
    /// Send this number of bytes with POST, instead of a GET
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(..=64 << 20))]
    post: Option<u64>,
    /// Header of the requests, such as 'accept-encoding: gzip'; may be given more than once
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = parse_header)]
    header: Vec<(HeaderName, HeaderValue)>,
    /// Connection for each transfer
    #[arg(long, value_enum, default_value = "new")]
    connection: Connection,
    /// Path to request first, to get a connection to keep or a ticket to return with
    #[arg(long, value_name = "PATH", default_value = "/lab/objects/1")]
    first: String,
    /// Transfers, one after the other
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    count: u64,
    /// Milliseconds to wait before each transfer except the first
    #[arg(long, value_name = "MS", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=3_600_000))]
    rest_ms: u64,
    /// Seconds without data after which a transfer is started again
    #[arg(long, visible_alias = "timeout", value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    patience: f64,
    /// Number of attempts before a transfer counts as failed
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100))]
    attempts: u64,
    /// Watch this machine's address, as browsers do: when it changes, start again at once over TCP, and over HTTP/3
    /// notify the server, which may not notice otherwise
    #[arg(long)]
    notice: bool,
    /// Congestion control of what this client sends: cubic, bbr or reno
    #[arg(long, value_enum)]
    congestion: Option<Congestion>,
    /// Bytes the server may send before they are read: receive buffer of TCP, windows of HTTP/2
    /// and QUIC
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1024..=16 << 20))]
    window: Option<u32>,
    #[command(flatten)]
    tls: TlsArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Version {
    #[value(name = "1.1")]
    Http1,
    #[value(name = "2")]
    Http2,
    #[value(name = "3")]
    Http3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Congestion {
    Cubic,
    Bbr,
    Reno,
}

fn parse_header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("use NAME: VALUE")?;
    let wrong = |error: &dyn std::fmt::Display| error.to_string();
    let name = name.trim().parse().map_err(|error| wrong(&error))?;
    let mut value: HeaderValue = value.trim().parse().map_err(|error| wrong(&error))?;
    // It may be a token.
    value.set_sensitive(true);
    Ok((name, value))
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "use a number of seconds".to_owned())?;
    if (0.01..=3600.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("use 0.01 to 3600".to_owned())
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    block_on(transfers(args))
}

/// The request, and its timeout.
#[derive(Clone, Debug)]
struct Ask {
    url: http::Uri,
    post: Option<u64>,
    headers: HeaderMap,
    patience: Duration,
}

impl Ask {
    /// The request, but for where it goes.
    fn request<B>(&self, body: B) -> Request<B> {
        let mut request = Request::new(body);
        if self.post.is_some() {
            *request.method_mut() = Method::POST;
            request.headers_mut().insert(header::CONTENT_TYPE, OPAQUE);
        }
        request.headers_mut().extend(self.headers.clone());
        request
    }

    /// The URL without scheme and host, as in a request of HTTP/1.1.
    fn path(&self) -> http::Uri {
        let path = self.url.path_and_query().cloned();
        path.map_or_else(http::Uri::default, http::Uri::from)
    }
}

/// The result of a request.
#[derive(Debug)]
struct Answer {
    status: http::StatusCode,
    /// When the headers had arrived.
    headed: Instant,
    /// When everything had arrived.
    ended: Instant,
    /// Bytes of the body.
    bytes: u64,
}

/// A client with its state: tickets, tokens.
enum Client {
    Tcp(Box<tcp::Client>),
    Quic(quic::Client),
}

enum OpenConnection {
    Tcp(tcp::OpenConnection),
    Quic(Box<quic::OpenConnection>),
}

impl Client {
    fn new(args: &Args, target: &Target) -> anyhow::Result<Client> {
        // A client that is to be new each time must not keep any state.
        let remember = args.connection == Connection::Returning;
        Ok(match args.http {
            Version::Http3 => Client::Quic(quic::Client::new(target, remember, args)?),
            version => {
                let two = version == Version::Http2;
                Client::Tcp(Box::new(tcp::Client::new(target, two, remember, args)?))
            }
        })
    }

    async fn connect(&self) -> anyhow::Result<OpenConnection> {
        Ok(match self {
            Client::Tcp(client) => OpenConnection::Tcp(client.connect().await?),
            Client::Quic(client) => OpenConnection::Quic(Box::new(client.connect().await?)),
        })
    }

    /// Waits until the client has what it needs to be recognized.
    async fn remembered(&self) {
        match self {
            Client::Tcp(client) => client.tickets.arrived().await,
            Client::Quic(client) => client.tickets.arrived().await,
        }
    }
}

/// Fate of a connection when this machine's address changes.
enum Mobility {
    /// It is useless.
    Bound(Route),
    /// The same, after the server has received a packet from there.
    Follows(quic::Follower),
}

impl Mobility {
    /// Returns the reason when the connection has become useless.
    async fn end(self) -> anyhow::Error {
        match self {
            Mobility::Bound(route) => {
                route.changed().await;
                anyhow!("this machine's address changed")
            }
            Mobility::Follows(follower) => follower.follow().await,
        }
    }
}

impl OpenConnection {
    async fn exchange(&mut self, ask: &Ask) -> anyhow::Result<Answer> {
        match self {
            OpenConnection::Tcp(conn) => conn.exchange(ask).await,
            OpenConnection::Quic(conn) => conn.exchange(ask).await,
        }
    }

    /// Returns the client's behaviour when this machine's address changes.
    fn mobility(&self) -> Mobility {
        match self {
            OpenConnection::Tcp(conn) => Mobility::Bound(conn.route),
            OpenConnection::Quic(conn) => Mobility::Follows(conn.follower()),
        }
    }

    async fn close(self) {
        match self {
            OpenConnection::Tcp(conn) => conn.close().await,
            OpenConnection::Quic(conn) => conn.close().await,
        }
    }

    /// Statistics of the connection.
    fn figures(&self) -> Value {
        match self {
            OpenConnection::Tcp(conn) => conn.figures(),
            OpenConnection::Quic(conn) => conn.figures(),
        }
    }
}

async fn transfers(args: &Args) -> anyhow::Result<()> {
    let target = Target::new(args).await?;
    let ask = Ask {
        url: target.url.clone(),
        post: args.post,
        headers: args.header.iter().cloned().collect(),
        patience: Duration::from_secs_f64(args.patience),
    };
    let rest = Duration::from_millis(args.rest_ms);
    let mut client = Client::new(args, &target)?;
    let mut kept = None;
    if args.connection != Connection::New {
        let first = Ask { url: target.with_path(&args.first)?, post: None, ..ask.clone() };
        let mut conn = connect(&client, &first).await.context("the first connection")?;
        succeed(conn.exchange(&first).await.context("the first request")?)?;
        print_event("first", conn.figures())?;
        if args.connection == Connection::Kept {
            kept = Some(conn);
        } else {
            leave(&client, &ask, conn).await?;
        }
        sleep(rest).await;
    }
    for number in 0..args.count {
        if number > 0 {
            sleep(rest).await;
            if args.connection == Connection::New {
                client = Client::new(args, &target)?;
            }
        }
        let conn = transfer(args, &client, &ask, kept.take()).await?;
        match args.connection {
            Connection::Kept => kept = Some(conn),
            Connection::Returning => leave(&client, &ask, conn).await?,
            Connection::New => conn.close().await,
        }
    }
    if let Some(conn) = kept {
        conn.close().await;
    }
    print_event("end", json!({}))
}

/// Ends a connection to whose server the client is to return. Without its ticket, the client would be a new one.
async fn leave(client: &Client, ask: &Ask, conn: OpenConnection) -> anyhow::Result<()> {
    timeout(ask.patience, client.remembered()).await.context("no ticket arrived")?;
    conn.close().await;
    Ok(())
}

async fn connect(client: &Client, ask: &Ask) -> anyhow::Result<OpenConnection> {
    timeout(ask.patience, client.connect()).await.context("no connection in time")?
}

/// Measures one transfer and prints the results. Returns the connection on which it ended.
async fn transfer(
    args: &Args,
    client: &Client,
    ask: &Ask,
    mut kept: Option<OpenConnection>,
) -> anyhow::Result<OpenConnection> {
    print_event("begin", json!({}))?;
    let begun = Instant::now();
    let mut attempts = 0;
    loop {
        attempts += 1;
        match attempt(args, client, ask, kept.take()).await {
            Ok((conn, connected, answer)) => {
                let mut figures = json!({
                    "ms": ms(answer.ended - begun),
                    "connect_ms": connected.map(|at| ms(at - begun)),
                    "answer_ms": ms(answer.headed - begun),
                    "bytes": answer.bytes,
                    "sent": ask.post.unwrap_or(0),
                    "attempts": attempts,
                });
                merge(&mut figures, conn.figures());
                print_event("transfer", figures)?;
                return Ok(conn);
            }
            Err(error) if attempts == args.attempts => return Err(error),
            Err(error) => print_event("again", json!({ "reason": format!("{error:#}") }))?,
        }
    }
}

/// One attempt over `conn` or a new connection; returns the time at which that was made.
async fn attempt(
    args: &Args,
    client: &Client,
    ask: &Ask,
    conn: Option<OpenConnection>,
) -> anyhow::Result<(OpenConnection, Option<Instant>, Answer)> {
    let (mut conn, connected) = match conn {
        Some(conn) => (conn, None),
        None => (connect(client, ask).await?, Some(Instant::now())),
    };
    let mobility = args.notice.then(|| conn.mobility());
    let moved = async {
        match mobility {
            Some(mobility) => mobility.end().await,
            None => std::future::pending().await,
        }
    };
    let answer = tokio::select! {
        answer = answer(&mut conn, ask) => succeed(answer?)?,
        error = moved => return Err(error),
    };
    Ok((conn, connected, answer))
}

/// The answer to a request, which is sent again where the server wants it after the handshake (RFC 8470 section 5.2).
async fn answer(conn: &mut OpenConnection, ask: &Ask) -> anyhow::Result<Answer> {
    match conn.exchange(ask).await? {
        early if early.status == http::StatusCode::TOO_EARLY => conn.exchange(ask).await,
        answer => Ok(answer),
    }
}

fn merge(into: &mut Value, more: Value) {
    if let (Some(into), Value::Object(more)) = (into.as_object_mut(), more) {
        into.extend(more);
    }
}

fn succeed(answer: Answer) -> anyhow::Result<Answer> {
    if !answer.status.is_success() {
        bail!("the server answered {}", answer.status);
    }
    Ok(answer)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
