//! `fulmar bench`: a load generator for any MQTT 3.1.1 broker.
//!
//! It is neutral (plain packets, no knowledge of the broker) and lighter than the broker: one thread, packets encoded
//! once, no allocation per message. Connections and time are always limited. Read in the order of data: `plan` (the
//! clients), `load` (their packets), `tcp` and `quic` (the transports), `run` (the phases), `report`.

mod load;
mod plan;
mod process;
mod progress;
mod quic;
mod report;
mod run;
mod tcp;
mod wait;
mod wire;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Subcommand;
use fulmar_mqtt::QoS;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use fulmar_client::{Options, Trust};
use fulmar_command::exit;

use crate::exit::Usage;
use load::Load;
use plan::{Plan, Scenario};
use process::Processes;
use progress::Progress;
use run::{Driver, Run, Settings};

/// Files that the generator needs besides one per connection.
const SPARE_FILES: u64 = 64;

const EXAMPLES: &str = "\
Examples:
  fulmar bench pairs mqtt://localhost             50 publishers to 50 subscribers, flat out
  fulmar bench pairs mqtt://localhost --qos 1 --pid $(pidof mosquitto)
  fulmar bench fan-in mqtt://localhost --json     latency at 5,000 messages per second
  fulmar bench conns mqtt://localhost -n 10000 --pid 4711";

/// Measure a broker with many clients
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    scenario: ScenarioArgs,
}

#[derive(Subcommand, Debug)]
enum ScenarioArgs {
    /// Open idle connections: connections per second, memory of each (with --pid)
    Conns {
        /// Connections to open
        #[arg(short = 'n', long, default_value_t = 10_000, value_parser = number(1..=500_000))]
        count: u64,
        #[command(flatten)]
        common: Common,
    },
    /// Each publisher to its own subscriber, flat out
    Pairs {
        /// Number of publishers, and of subscribers
        #[arg(short = 'n', long, default_value_t = 50, value_parser = number(1..=100_000))]
        count: u64,
        #[command(flatten)]
        common: Common,
    },
    /// Many publishers to few subscribers at a fixed rate: latency
    FanIn {
        /// Publishing connections
        #[arg(long, default_value_t = 500, value_parser = number(1..=100_000))]
        publishers: u64,
        /// Subscribers; each gets its share of the publishers
        #[arg(long, default_value_t = 5, value_parser = number(1..=10_000))]
        subscribers: u64,
        /// Messages per second, all publishers together
        #[arg(long, default_value_t = 5_000, value_parser = number(1..=10_000_000))]
        rate: u64,
        #[command(flatten)]
        common: Common,
    },
    /// One publisher to many subscribers, flat out
    FanOut {
        /// Subscribers
        #[arg(long, default_value_t = 500, value_parser = number(1..=100_000))]
        subscribers: u64,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(clap::Args, Debug)]
struct Common {
    /// The broker: mqtt://HOST:PORT or quic://HOST:PORT
    url: String,
    /// Seconds to measure
    #[arg(long, default_value_t = 5, value_parser = number(1..=3_600))]
    seconds: u64,
    /// Seconds of traffic before measuring
    #[arg(long, default_value_t = 1, value_parser = number(0..=600))]
    warm_up: u64,
    /// Quality of service of publishes and subscriptions [default: 1 for fan-in, else 0]
    #[arg(short, long, value_parser = number(0..=2))]
    qos: Option<u64>,
    /// Payload bytes; the first eight are a time stamp
    #[arg(long, default_value_t = 64, value_parser = number(8..=1_048_576))]
    payload: u64,
    /// Messages per write (flat-out scenarios)
    #[arg(long, default_value_t = 16, value_parser = number(1..=1_024))]
    burst: u64,
    /// Messages in flight per publisher (flat-out scenarios); at least the burst [default: 256;
    /// 32 for fan-out; 16 with QoS 2, where brokers commonly accept no more than 20]
    #[arg(long, value_parser = number(1..=60_000))]
    window: Option<u64>,
    /// Connect with persistent sessions, which a durable broker stores; they remain after the run
    #[arg(long)]
    persistent: bool,
    /// Process of the broker, to measure its CPU time and memory; repeat for several
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// Streams per QUIC connection to spread topics over, including the control stream
    #[arg(long, default_value_t = 1, value_parser = number(1..=64))]
    streams: u64,
    /// PEM file of trusted CAs, for quic://
    #[arg(long, value_name = "FILE")]
    cafile: Option<PathBuf>,
    /// Do not verify the broker's certificate, for quic://
    #[arg(long, conflicts_with = "cafile")]
    insecure: bool,
    /// User name to log in with
    #[arg(short, long, requires = "password")]
    user: Option<String>,
    /// Password of the user
    #[arg(short = 'P', long, requires = "user", env = "FULMAR_PASSWORD", hide_env_values = true)]
    password: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn number(range: std::ops::RangeInclusive<u64>) -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(range)
}

impl ScenarioArgs {
    fn split(self) -> (Scenario, Common) {
        match self {
            ScenarioArgs::Conns { count, common } => {
                (Scenario::Conns { count: count as usize }, common)
            }
            ScenarioArgs::Pairs { count, common } => {
                (Scenario::Pairs { count: count as usize }, common)
            }
            ScenarioArgs::FanIn { publishers, subscribers, rate, common } => {
                let (publishers, subscribers) = (publishers as usize, subscribers as usize);
                (Scenario::FanIn { publishers, subscribers, rate: rate as f64 }, common)
            }
            ScenarioArgs::FanOut { subscribers, common } => {
                (Scenario::FanOut { subscribers: subscribers as usize }, common)
            }
        }
    }
}

impl Common {
    fn plan(&self, scenario: Scenario) -> anyhow::Result<Plan> {
        let qos = match (self.qos, scenario) {
            (Some(qos), _) => QoS::try_from(qos as u8)?,
            (None, Scenario::FanIn { .. }) => QoS::AtLeastOnce,
            (None, _) => QoS::AtMostOnce,
        };
        let window = self.window.unwrap_or(match (qos, scenario) {
            (QoS::ExactlyOnce, _) => 16,
            (_, Scenario::FanOut { .. }) => 32,
            _ => 256,
        });
        if self.streams > 1 && !self.url.starts_with("quic://") {
            bail!(Usage("--streams is for quic:// only".to_owned()));
        }
        if self.burst > window {
            bail!(Usage(format!("--window {window} is smaller than --burst {}", self.burst)));
        }
        Ok(Plan {
            scenario,
            qos,
            payload_bytes: self.payload as usize,
            burst: self.burst as usize,
            window,
            streams: self.streams as usize,
            persistent: self.persistent,
        })
    }
}

/// Runs a scenario and prints its report.
///
/// # Errors
/// Wrong arguments, a broker that can't be reached or refuses, or too few file descriptors.
pub fn run(args: Args) -> anyhow::Result<()> {
    let (scenario, common) = args.scenario.split();
    let plan = common.plan(scenario)?;
    raise_file_limit(plan.connections() as u64 + SPARE_FILES)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second signal ends the process at once.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let driver = driver(&common)?;
    let login = common.user.clone().zip(common.password.clone());
    let load = Load::new(plan, format!("bench/{}", std::process::id()), login)?;
    let settings = Settings {
        warm_up: Duration::from_secs(common.warm_up),
        measure: Duration::from_secs(common.seconds),
        broker: Processes::new(&common.pid)?,
    };
    let progress = Progress::new(common.json);
    let next_tick = Instant::now();
    let report = Run { load, driver, settings, progress, stop: &stop, next_tick }.run()?;
    if common.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{report}");
    }
    Ok(())
}

fn driver(common: &Common) -> anyhow::Result<Box<dyn Driver>> {
    let url = &common.url;
    match url.split_once("://") {
        Some(("mqtt", rest)) => Ok(Box::new(tcp::Tcp::new(resolve(rest, 1883)?)?)),
        Some(("quic", rest)) => {
            let broker = resolve(rest, 14567)?;
            Ok(Box::new(quic::Quic::new(broker, host(rest).to_owned(), tls(common)?)?))
        }
        _ => bail!(Usage(format!(
            "{url}: the load generator speaks mqtt://HOST:PORT and quic://HOST:PORT"
        ))),
    }
}

/// TLS for QUIC, with ALPN `mqtt`. `--insecure` exists because a load generator sends nothing worth protecting, and a peer's
/// test certificate is signed by no trusted CA. The handshake's signature is still checked: its cost is part of what is
/// measured.
fn tls(common: &Common) -> anyhow::Result<rustls::ClientConfig> {
    let mut options = Options::new(&common.url)?;
    options.trust = match &common.cafile {
        _ if common.insecure => Trust::Insecure,
        Some(file) => Trust::CaFile(file.clone()),
        None => bail!(Usage(
            "quic:// needs --cafile FILE, or --insecure to accept any certificate".to_owned()
        )),
    };
    let mut config = options.tls_config()?;
    config.alpn_protocols = vec![b"mqtt".to_vec()];
    Ok(config)
}

/// The host of HOST, HOST:PORT, [ADDRESS] or [ADDRESS]:PORT.
fn host(authority: &str) -> &str {
    let authority = authority.trim_end_matches('/');
    let host =
        authority.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
    host.map_or(authority, |(host, _)| host).trim_matches(['[', ']'])
}

/// HOST or HOST:PORT, to its first address.
fn resolve(authority: &str, default_port: u16) -> anyhow::Result<SocketAddr> {
    let authority = authority.trim_end_matches('/');
    let port = match authority.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            port.parse().with_context(|| format!("{authority}: {port} is not a port number"))?
        }
        _ => default_port,
    };
    (host(authority), port)
        .to_socket_addrs()
        .with_context(|| format!("cannot resolve {authority}"))?
        .next()
        .with_context(|| format!("{authority} has no address"))
}

/// Raises the soft limit of open files, and as root the hard one.
fn raise_file_limit(wanted: u64) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let maximum = limit.maximum.map(|maximum| maximum.max(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).with_context(|| {
        format!(
            "{wanted} open files are needed; raise the limit (ulimit -n) or use fewer connections"
        )
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_optional() {
        let address = |text: &str| resolve(text, 1883).unwrap().to_string();
        assert_eq!(address("127.0.0.1"), "127.0.0.1:1883");
        assert_eq!(address("127.0.0.1:2000/"), "127.0.0.1:2000");
        assert_eq!(address("[::1]"), "[::1]:1883");
        assert_eq!(address("[::1]:99"), "[::1]:99");
        assert_eq!(address("::1"), "[::1]:1883");
        assert!(resolve("127.0.0.1:http", 1883).is_err());
    }
}
