//! `fulmar lab batch`: transfers over transports that HTTP does not use (UDP, DTLS, plain QUIC streams), and a server
//! for them. `fulmar lab transfer` measures HTTP; the server of unencrypted objects for it is here.
//!
//! Each transfer has its own connection, if the protocol has connections. Over UDP and DTLS only requests are
//! retransmitted: a loss in the network or a small buffer makes a transfer fail, which is reported. This is a
//! measuring instrument for a lab's network: the peer is not verified.

mod datagram;
mod quic;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use fulmar_coap::dtls::Certificate;
use serde_json::json;

use super::probe::print_event;
use crate::runtime::block_on;

const EXAMPLES: &str = "\
Examples:
  fulmar lab batch serve 127.0.0.1:7000 --over udp
  fulmar lab batch get 127.0.0.1:7000 --over udp --bytes 10000 --count 55
  fulmar lab batch put 127.0.0.1:7000 --over udp --bytes 10000 --window 5744";

/// The most bytes of one transfer.
const MAX_BYTES: u64 = 16 << 20;

/// Measure transfers over UDP, DTLS or QUIC streams
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Serve transfers until stopped
    Serve(Serve),
    /// Receive from the server
    Get(Transfers),
    /// Send to the server
    Put(Transfers),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Over {
    /// Datagrams without retransmission
    Udp,
    /// Datagrams in DTLS 1.2, without retransmission
    Dtls,
    /// A stream of a QUIC connection
    Quic,
    /// Objects of HTTP/1.1 without TLS, for `fulmar lab transfer` (server only)
    Http,
}

/// Certificate and key, the same at both ends: DTLS requires one of a client, although the server does not request
/// it.
#[derive(clap::Args, Clone, Debug)]
struct Files {
    /// PEM file of the certificate for DTLS and QUIC
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// PEM file of the certificate's private key
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
struct Serve {
    /// Address to listen on
    #[arg(value_name = "ADDRESS:PORT")]
    at: SocketAddr,
    /// Transport to serve
    #[arg(long, value_enum)]
    over: Over,
    #[command(flatten)]
    files: Files,
}

#[derive(clap::Args, Debug)]
struct Transfers {
    /// Address of the server
    #[arg(value_name = "ADDRESS:PORT")]
    server: SocketAddr,
    /// Transport to use
    #[arg(long, value_enum)]
    over: Over,
    /// Bytes of each transfer
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=MAX_BYTES))]
    bytes: u64,
    /// Transfers, one after the other
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    count: u64,
    /// Bytes of the receive window or, of a datagram socket, of the receive buffer
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1024..=16 << 20))]
    window: Option<u32>,
    /// Seconds after which a transfer has failed
    #[arg(long, visible_alias = "timeout", value_name = "SECONDS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,
    /// Keep the connection from one transfer to the next (QUIC only)
    #[arg(long)]
    keep: bool,
    /// Milliseconds to wait after each transfer
    #[arg(long, value_name = "MS", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=3_600_000))]
    rest_ms: u64,
    #[command(flatten)]
    files: Files,
}

/// Parameters of a transfer.
#[derive(Clone, Copy, Debug)]
struct Job {
    server: SocketAddr,
    /// Whether the client sends.
    put: bool,
    bytes: u64,
    window: Option<u32>,
    patience: Duration,
    /// Whether the connection is kept for the next transfer.
    keep: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Serve(args) => match args.over {
            Over::Udp => datagram::serve(args.at, None),
            Over::Dtls => datagram::serve(args.at, Some(&datagram::identity(&args.files)?)),
            Over::Quic => quic::serve(args.at, &args.files),
            Over::Http => block_on(serve_objects(args.at)),
        },
        Command::Get(args) => transfers(args, false),
        Command::Put(args) => transfers(args, true),
    }
}

/// Serves the objects of `fulmar serve`, on a port of their own, until the process ends.
async fn serve_objects(at: SocketAddr) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind(at).await.with_context(|| at.to_string())?;
    println!("ready http={}", listener.local_addr()?);
    Ok(axum::serve(listener, fulmar_http::objects::router()).await?)
}

enum Client {
    Datagram(Option<Certificate>),
    Quic(quic::Client),
}

impl Client {
    fn new(args: &Transfers, job: &Job) -> anyhow::Result<Client> {
        match args.over {
            Over::Udp => Ok(Client::Datagram(None)),
            Over::Dtls => Ok(Client::Datagram(Some(datagram::identity(&args.files)?))),
            Over::Quic => Ok(Client::Quic(quic::Client::new(job)?)),
            Over::Http => {
                let what = "use `fulmar lab transfer http://…` for HTTP".to_owned();
                Err(crate::exit::Usage(what).into())
            }
        }
    }

    fn transfer(&mut self, job: &Job) -> anyhow::Result<()> {
        match self {
            Client::Datagram(identity) => datagram::transfer(job, identity.as_ref()),
            Client::Quic(client) => client.transfer(job),
        }
    }

    fn rest(&self, time: Duration) {
        match self {
            Client::Datagram(_) => std::thread::sleep(time),
            Client::Quic(client) => client.rest(time),
        }
    }
}

fn transfers(args: &Transfers, put: bool) -> anyhow::Result<()> {
    let Transfers { server, bytes, window, keep, .. } = *args;
    if keep && args.over != Over::Quic {
        return Err(crate::exit::Usage("--keep is for --over quic".to_owned()).into());
    }
    let patience = Duration::from_secs(args.patience);
    let job = Job { server, put, bytes, window, patience, keep };
    let mut client = Client::new(args, &job)?;
    let mut failed = 0;
    print_event("begin", json!({}))?;
    let begun = Instant::now();
    for _ in 0..args.count {
        let at = Instant::now();
        let done = client.transfer(&job);
        let ms = at.elapsed().as_secs_f64() * 1e3;
        match done {
            Ok(()) => print_event("transfer", json!({ "ms": ms, "bytes": bytes }))?,
            Err(error) => {
                failed += 1;
                print_event("failed", json!({ "after_ms": ms, "reason": format!("{error:#}") }))?;
            }
        }
        client.rest(Duration::from_millis(args.rest_ms));
    }
    let seconds = begun.elapsed().as_secs_f64();
    let failed_pct = 100.0 * failed as f64 / args.count as f64;
    print_event("end", json!({ "batch_s": seconds, "failed": failed, "failed_pct": failed_pct }))
}

/// A socket for `job`, with its receive buffer.
fn socket(job: &Job) -> anyhow::Result<std::net::UdpSocket> {
    let any: SocketAddr =
        if job.server.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = std::net::UdpSocket::bind(any).context("no socket")?;
    if let Some(window) = job.window {
        socket2::SockRef::from(&socket).set_recv_buffer_size(window as usize)?;
    }
    Ok(socket)
}
