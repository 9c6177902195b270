//! `fulmar doctor`: examines a configuration, this machine and paths to brokers, and prints what is wrong and what to
//! type.
//!
//! What is known is gathered in `facts`, `access`, `path` and `tcp`, which read the system; what it means is decided by
//! pure functions in `machine`, `access`, `path` and `tcp`. The configuration is examined as by `fulmar serve --check`.
//! The only effects are a temporary file in the data folder, whose writing is timed, and connections to the brokers
//! examined.

mod access;
mod facts;
mod machine;
mod path;
mod tcp;

use std::path::PathBuf;

use fulmar_client::{Options, Transport};
use fulmar_command::runtime::block_on;

use self::facts::Facts;
use super::check::finding::{Finding, Report};
use super::check::{self, data};
use crate::exit::Usage;
use fulmar_config::Config;

const EXAMPLES: &str = "\
Examples:
  fulmar doctor                                this machine, for a broker without a configuration file
  sudo fulmar doctor -c /etc/fulmar/fulmar.toml
                                               machine and configuration; as root, it also checks the service's user
  fulmar doctor quic://broker.example          whether UDP, and so QUIC, reaches that broker
  fulmar doctor mqtts://broker.example         whether TCP reaches it, its certificate is trusted, and MQTT answers
  fulmar doctor --json                         the same findings for programs

Exit codes: 0 no problem (there may be warnings), 1 problems, 2 wrong usage or configuration.";

/// Examine a machine and a configuration, or the path to a broker
///
/// Prints a line for each finding: ok, warning or PROBLEM, and below it what to do.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Examine the path to this broker: SCHEME://HOST[:PORT] with quic, mqtt, mqtts, ws, wss or https
    url: Option<String>,
    /// Configuration file of the server
    #[arg(long, short, value_name = "FILE", conflicts_with = "url")]
    config: Option<PathBuf>,
    /// Data folder of the server
    #[arg(long, value_name = "DIR", env = "FULMAR_DATA")]
    data: Option<PathBuf>,
    /// CA that signed the broker's certificate, PEM [default: the development CA of this machine and
    /// the system's CAs]
    #[arg(long, value_name = "FILE", requires = "url")]
    cafile: Option<PathBuf>,
    /// TCP port of TLS at that broker, where clients connect if UDP is blocked
    #[arg(long, value_name = "PORT", default_value_t = 8883)]
    fallback_port: u16,
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
}

/// Runs `fulmar doctor`.
///
/// # Errors
/// [`Status`](crate::exit::Status) if there is a problem.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let report = match &args.url {
        Some(url) => Report(path_to(url, args)?),
        None => machine(args)?,
    };
    report.print(args.json)
}

fn path_to(url: &str, args: &Args) -> anyhow::Result<Vec<Finding>> {
    // MQTT is at an HTTPS port as well, as WebSocket.
    let mqtt = match url.split_at_checked("https".len()) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => format!("wss{rest}"),
        _ => url.to_owned(),
    };
    let mut options = Options::new(&mqtt).map_err(|error| Usage(error.to_string()))?;
    if let Some(file) = &args.cafile {
        options.trust = fulmar_client::Trust::CaFile(file.clone());
    }
    let mut findings = Vec::new();
    // Each address of a list by itself.
    for url in std::iter::once(options.url.clone()).chain(options.others.clone()) {
        let options = Options { url, others: Vec::new(), ..options.clone() };
        findings.extend(match options.url.transport {
            Transport::Quic => block_on(path::examine(options, args.fallback_port))?,
            _ => block_on(tcp::examine(options))?,
        });
    }
    Ok(findings)
}

fn machine(args: &Args) -> anyhow::Result<Report> {
    let config = match Config::load(args.config.as_deref()) {
        Ok(config) => config,
        // Without a configuration, nothing is known of what the machine has to offer.
        Err(error) => return Ok(Report(vec![Finding::error("configuration", &error)])),
    };
    let config = match &args.data {
        Some(folder) => config.with_data_dir(folder),
        None => config,
    };
    let Report(mut findings) = check::check(&config, args.config.as_deref());
    let folder = config.data_dir();
    let server = data::server_of(&folder);
    findings.extend(machine::findings(&Facts::gather(&config, server.as_ref())));
    findings.extend(access::check(&config, args.config.as_deref(), &folder));
    let running = server.is_some();
    findings.extend(block_on(path::examine_own(&config, running))?);
    Ok(Report(findings))
}
