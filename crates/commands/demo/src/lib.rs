//! `fulmar demo`: a whole installation on one machine, with a bad link in it.
//!
//! `meters` makes a town (`town`), fills a data folder with it (`seed`), runs `fulmar serve` on that folder and a
//! van that drives through the town (`van`). `homes` does the same with homes, and puts a gateway in between. The
//! parts are the program's ordinary commands, run as processes of their own; what is special here is only what they
//! are given.

mod api;
mod homes;
mod seed;
mod town;
mod van;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use clap::Subcommand;
use fulmar_certs::files;
use fulmar_command::exit;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use seed::Seeded;
use town::Town;
use van::{GATEWAY, Van};

const EXAMPLES: &str = "\
Examples:
  fulmar demo meters                        a town of 2000 meters, and a van that drives through it
  fulmar demo meters --data ~/town          the same, kept in a folder to be continued another day
  fulmar demo homes                         twenty homes with sensors behind a gateway on a bad link
  fulmar demo meters --link 2g-64k --loss 5%
      the van's receiver has 64 kbit/s and loses one packet in twenty

It prints users, their passwords and the address to open, and runs until Ctrl-C.";

/// Run a demonstration: a whole installation on this machine
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    which: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    /// A water utility: server, web app, a town of meters and a van that receives them
    Meters(Meters),
    /// Homes with sensors: platform, web app, and a gateway behind a bad link that is down for a while
    Homes(homes::Args),
}

/// What the demonstration is made with.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
struct Meters {
    /// Number of meters in the town
    #[arg(long, value_name = "NUMBER", default_value_t = 2000,
        value_parser = clap::value_parser!(u32).range(10..=100_000))]
    meters: u32,
    /// Seed of all random decisions about the town
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Port of the web app, TCP and UDP; 0 for any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8443)]
    port: u16,
    /// Folder for all data, kept afterwards [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Link between the van and the server, one of `fulmar lab link --list`; `none` for this machine's own network
    #[arg(long, value_name = "PROFILE", default_value = "3g")]
    link: String,
    /// Packet loss of the link
    #[arg(long, value_name = "PERCENT", default_value = "2%")]
    loss: String,
}

/// How often it is looked whether the server still runs.
const LOOK: Duration = Duration::from_millis(100);

/// Runs the demonstration.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let signals = Signals::new([SIGTERM, SIGINT]).context("cannot handle signals")?;
    match &args.which {
        Which::Meters(args) => meters(args, signals),
        Which::Homes(args) => homes::run(args, signals),
    }
}

fn meters(args: &Meters, signals: Signals) -> anyhow::Result<()> {
    let folder = data_folder(args.data.as_deref())?;
    let data = folder.path();
    files::make_private_dir(data)?;
    let (meters, seed) = seed::parameters(data, args.meters, args.seed)?;
    let town = Town::new(meters, seed);
    eprintln!("Making a town of {meters} meters in {} …", data.display());
    let seeded = seed::seed(data, &town)?;
    let mut server = Server::start(data, args.port)?;
    let van = Van::start(&town, &server.quic, data, &seeded.van_token, (&args.link, &args.loss))?;
    announce(&server, &seeded, &van, meters, data)?;
    let outcome = wait(signals, &mut server, || {});
    // The van first: it would go on dialling.
    van.stop();
    server.stop();
    outcome
}

/// Where the data is: a folder that is kept, or one that goes when this is dropped.
enum DataFolder {
    Kept(PathBuf),
    Temporary(tempfile::TempDir),
}

impl DataFolder {
    fn path(&self) -> &Path {
        match self {
            DataFolder::Kept(path) => path,
            DataFolder::Temporary(folder) => folder.path(),
        }
    }
}

fn data_folder(given: Option<&Path>) -> anyhow::Result<DataFolder> {
    Ok(match given {
        Some(path) => DataFolder::Kept(path.to_owned()),
        None => DataFolder::Temporary(tempfile::Builder::new().prefix("fulmar-demo-").tempdir()?),
    })
}

/// What to do now, on standard output; the ready line last, for scripts that wait for it.
fn announce(
    server: &Server,
    seeded: &Seeded,
    van: &Van,
    meters: u32,
    data: &Path,
) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}: {meters} meters. {}", town::NAME, van.about)?;
    writeln!(out, "\nOpen https://localhost:{}/ and log in as one of", server.port)?;
    for user in &seeded.users {
        let password = user.password.as_deref().unwrap_or("(set before)");
        writeln!(out, "  {:8} {password:16} {}", user.name, user.about)?;
    }
    if seeded.users.iter().any(|user| user.password.is_none()) {
        writeln!(out, "{}", new_password(data))?;
    }
    writeln!(
        out,
        "\nThe browser does not know the certificate's CA: continue despite its warning, or \
         install\n{}\n\
         `Radio`, `Drive-by` shows what the van receives; `office` sees it decoded under \
         `Readings`. Ctrl-C ends it.\n",
        data.join("ca").join("ca.pem").display()
    )?;
    writeln!(out, "{}", server.ready)?;
    Ok(out.flush()?)
}

/// How to get in when the passwords of an earlier start are gone.
fn new_password(data: &Path) -> String {
    format!(
        "Passwords were printed when the folder was made. To set a new one:\n  fulmar user passwd NAME --data {}",
        data.display()
    )
}

/// Until a signal comes, or the server ends by itself; `look` is called now and then.
fn wait(mut signals: Signals, server: &mut Server, mut look: impl FnMut()) -> anyhow::Result<()> {
    while signals.pending().next().is_none() {
        if let Some(status) = server.process.try_wait()? {
            bail!("the server ended: {status}");
        }
        look();
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// `fulmar serve` as a process of its own.
struct Server {
    process: Child,
    ready: String,
    port: u16,
    /// Where MQTT over QUIC is.
    quic: String,
}

impl Server {
    fn start(data: &Path, port: u16) -> anyhow::Result<Server> {
        let config = data.join("demo.toml");
        let free = r#"["127.0.0.1:0"]"#;
        let pages = addresses(port)?;
        let text = format!(
            "[listeners]\nmqtt = []\nmqtts = []\nws = []\nquic = {free}\nhttps = {pages}\n\
             webtransport = {free}\nhttp = {free}\ncoap = []\ncoaps = []\n\n[tls]\nnames = [\"{GATEWAY}\"]\n\n[log]\nlevel = \"warn\"\n"
        );
        files::write(&config, text.as_bytes(), false)?;
        let mut process = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg("--config")
            .arg(&config)
            .arg("--data")
            .arg(data)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the server")?;
        let ready = ready(&mut process, "the server")?;
        let (Some(https), Some(quic)) = (ready.address("https"), ready.address("quic")) else {
            end(&mut process);
            bail!("the server does not listen");
        };
        let port = https.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(port);
        let quic = quic.to_owned();
        Ok(Server { process, ready: ready.0, port, quic })
    }

    fn stop(mut self) {
        end(&mut self.process);
    }
}

/// The line with which `fulmar serve` says where it listens.
struct Ready(String);

impl Ready {
    fn address(&self, listener: &str) -> Option<&str> {
        let mut words = self.0.split(' ').filter_map(|word| word.split_once('='));
        words.find(|(name, _)| *name == listener).map(|(_, address)| address)
    }
}

/// Waits until a process that was started says that it is ready.
///
/// # Errors
/// It ended.
fn ready(process: &mut Child, what: &str) -> anyhow::Result<Ready> {
    let mut line = String::new();
    if let Some(out) = process.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    if line.starts_with("ready ") {
        return Ok(Ready(line.trim_end().to_owned()));
    }
    let status = process.wait()?;
    bail!("{what} did not start: {status}");
}

/// As JSON has it.
fn rfc3339(time: SystemTime) -> String {
    OffsetDateTime::from(time).format(&Rfc3339).unwrap_or_default()
}

/// Both of this machine's loopback addresses where it has IPv6, which browsers try first for `localhost`.
fn addresses(port: u16) -> anyhow::Result<String> {
    let at =
        |ip: IpAddr, port| TcpListener::bind((ip, port)).and_then(|socket| socket.local_addr());
    let port = match port {
        // One that is free now; should another program take it before the server does, that says so.
        0 => at(Ipv4Addr::LOCALHOST.into(), 0).context("no port is free")?.port(),
        port => port,
    };
    let both = at(Ipv6Addr::LOCALHOST.into(), port).is_ok();
    let six = if both { format!(", \"[::1]:{port}\"") } else { String::new() };
    Ok(format!("[\"127.0.0.1:{port}\"{six}]"))
}

/// Asks a process to end, and waits.
fn end(process: &mut Child) {
    if let Some(pid) = Pid::from_raw(process.id().cast_signed()) {
        // It may have ended by itself.
        kill_process(pid, Signal::TERM).ok();
    }
    process.wait().ok();
}
