//! `fulmar demo`: a whole installation on one machine, with a bad link in it.
//!
//! `meters` makes a town (`town`), fills a data folder with it (`seed`), runs `fulmar serve` on that folder and a
//! van that drives through the town (`van`). The parts are the program's ordinary commands, run as processes of
//! their own; what is special here is only what they are given.

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
  fulmar demo meters --link 2g-64k --loss 5%
      the van's receiver has 64 kbit/s and loses one packet in twenty

It prints users, their passwords and the address to open, and runs until Ctrl-C.";

/// Run a demonstration: a whole installation on this machine
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    which: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    /// A water utility: server, web app, a town of meters and a van that receives them
    Meters(Meters),
}

/// What the demonstration is made with.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
struct Meters {
    /// How many meters the town has
    #[arg(long, value_name = "NUMBER", default_value_t = 2000,
        value_parser = clap::value_parser!(u32).range(10..=100_000))]
    meters: u32,
    /// Number that all random decisions about the town come from
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Port of the web app, TCP and UDP; 0 for any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8443)]
    port: u16,
    /// Folder for all data, kept afterwards; otherwise a temporary one
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Link between the van and the server, one of `fulmar lab list`; `none` for this machine's own
    #[arg(long, value_name = "PROFILE", default_value = "3g")]
    link: String,
    /// How much the link loses
    #[arg(long, value_name = "PERCENT", default_value = "2%")]
    loss: String,
}

/// How often it is looked whether the server still runs.
const LOOK: Duration = Duration::from_millis(100);

/// Runs the demonstration.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Which::Meters(args) = &args.which;
    let signals = Signals::new([SIGTERM, SIGINT]).context("cannot take signals")?;
    let temporary = match &args.data {
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("fulmar-demo-").tempdir()?),
    };
    let data = match (&args.data, &temporary) {
        (Some(data), _) => data.as_path(),
        (None, Some(temporary)) => temporary.path(),
        (None, None) => bail!("no folder for the data"),
    };
    files::make_private_dir(data)?;
    let (meters, seed) = seed::parameters(data, args.meters, args.seed)?;
    let town = Town::new(meters, seed);
    eprintln!("Making a town of {meters} meters in {} …", data.display());
    let seeded = seed::seed(data, &town)?;
    let mut server = Server::start(data, args.port)?;
    let van = Van::start(&town, &server.quic, data, &seeded.van_token, (&args.link, &args.loss))?;
    announce(&server, &seeded, &van, meters, data)?;
    let outcome = wait(signals, &mut server);
    // The van first: it would go on dialling.
    van.stop();
    server.stop();
    outcome
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
        let password = user.password.as_deref().unwrap_or("(as it was)");
        writeln!(out, "  {:8} {password:16} {}", user.name, user.about)?;
    }
    writeln!(
        out,
        "\nThe browser does not know the certificate's authority: let it go on all the same, or install\n{}\n\
         `Radio`, `Drive-by` shows what the van hears; `office` sees it decoded at `Readings`. Ctrl-C ends it.\n",
        data.join("ca").join("ca.pem").display()
    )?;
    writeln!(out, "{}", server.ready)?;
    Ok(out.flush()?)
}

/// Until a signal comes, or the server ends by itself.
fn wait(mut signals: Signals, server: &mut Server) -> anyhow::Result<()> {
    while signals.pending().next().is_none() {
        if let Some(status) = server.process.try_wait()? {
            bail!("the server ended: {status}");
        }
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
             webtransport = {free}\nhttp = {free}\n\n[tls]\nnames = [\"{GATEWAY}\"]\n\n[log]\nlevel = \"warn\"\n"
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
        let mut ready = String::new();
        if let Some(out) = process.stdout.take() {
            BufReader::new(out).read_line(&mut ready)?;
        }
        let ready = ready.trim_end().to_owned();
        let address = |name: &str| {
            let of = |word: &str| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned());
            ready.split(' ').find_map(of)
        };
        let (Some(https), Some(quic)) = (address("https"), address("quic")) else {
            let status = process.wait()?;
            bail!("the server did not start: {status}");
        };
        let port = https.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(port);
        Ok(Server { process, ready, port, quic })
    }

    fn stop(mut self) {
        end(&mut self.process);
    }
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
