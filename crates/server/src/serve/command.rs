//! `fulmar serve`: a [`Server`] in a process of its own, with what belongs to a process: arguments, environment, log,
//! signals, the service manager, memory, and the `ready` line on standard output.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::check::{
    self,
    finding::{Finding, Report},
};
use super::listeners;
use super::memory::{self, Memory};
use super::notify::{self, Watchdog};
use super::server::Server;
use crate::exit;
use crate::logging::{self, LogArgs};
use fulmar_config::{Config, LogFormat};

const EXAMPLES: &str = "\
Examples:
  fulmar serve                             on loopback, with a development CA of its own
  fulmar serve --data /var/lib/fulmar      state and certificates in this folder
  fulmar serve --config fulmar.toml        settings from the file; every key: fulmar.example.toml
  fulmar serve --config fulmar.toml --check
                                           what is wrong with them, without starting a broker
  FULMAR_LISTENERS__MQTT='[\"127.0.0.1:0\"]' fulmar serve
                                           one key from the environment";

/// Run the broker
///
/// Without a configuration file it listens on loopback only, lets anonymous clients in there, and
/// makes a development certificate in its data folder, which `fulmar pub` and `fulmar sub` on this
/// machine find by themselves.
/// The line `ready mqtt=ADDRESS …` on standard output reports that every listener is bound; the log goes to standard
/// error. SIGTERM and SIGINT drain and exit 0; SIGHUP reloads certificates, client CAs, passwords and access rules.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Configuration file (TOML). Without one, defaults apply and only this machine can connect
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder for sessions, messages and certificates [default: [server] data_dir of the
    /// configuration, else ~/.local/share/fulmar]
    #[arg(long, value_name = "DIR", env = "FULMAR_DATA")]
    data: Option<PathBuf>,
    /// Check the configuration, the files that it names, the data folder and the listeners' addresses, print what is
    /// wrong, and exit with the code with which the broker would end. Changes nothing
    #[arg(long)]
    check: bool,
    /// Append the secrets of connections over TLS and QUIC to this file, so that Wireshark decrypts a capture
    #[arg(long, value_name = "FILE")]
    keylog: Option<PathBuf>,
    /// Also where clients of other machines can connect
    #[arg(long, requires = "keylog")]
    keylog_remote: bool,
}

impl Args {
    /// The configuration from file, environment and arguments, as it is now.
    fn config(&self) -> anyhow::Result<Config> {
        let config = Config::load(self.config.as_deref())?;
        let config = match &self.data {
            Some(data) => config.with_data_dir(data),
            None => config,
        };
        match &self.keylog {
            Some(file) => config.with_key_log(file, self.keylog_remote),
            None => Ok(config),
        }
    }
}

/// Runs a server until SIGTERM or SIGINT.
///
/// # Errors
/// The server cannot start, or storage could not write everything when it stopped.
pub fn run(args: &Args, log: &LogArgs) -> anyhow::Result<()> {
    if args.check {
        return check_only(args, log);
    }
    let config = args.config()?;
    memory::keep_large_off_the_heap(config.is_gateway());
    let format = match config.log.format {
        LogFormat::Text => logging::Format::Text,
        LogFormat::Json => logging::Format::Json,
    };
    let _last_lines = logging::start_queued(log, &config.log.level, Some(format))?;
    for (file, key) in args.config.iter().flat_map(|file| {
        let keys = Config::world_readable_secrets(file).into_iter();
        keys.map(move |key| (file.display(), key))
    }) {
        tracing::warn!(%file,
            "every user of this machine can read {key} in this file: run chmod 640 on it");
    }
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot handle signals")?;
    #[cfg(feature = "cluster")]
    if config.cluster.is_on() {
        let mut signals = signals;
        return super::cluster::run(config, &mut signals, &|server| reload(args, server));
    }
    let limit = config.memory_limit();
    let server = Server::start(config)?;
    let memory = Memory::start(server.broker()?, limit)?;
    announce(&listeners::ready_line(server.bound()))?;
    if let Some(file) = server.first_administrator() {
        show_first_login(file)?;
    }
    notify::ready();
    let watchdog = Watchdog::start()?;
    watchdog.watch(server.workers());
    wait(signals, args, &server);
    notify::stopping();
    drop(memory);
    server.stop()
}

/// `--check`.
fn check_only(args: &Args, log: &LogArgs) -> anyhow::Result<()> {
    logging::start(log, "error", None)?;
    let report = match args.config() {
        Ok(config) => check::check(&config, args.config.as_deref()),
        Err(error) => Report(vec![Finding::error("configuration", &error)]),
    };
    report.print(false)
}

/// Text on standard output: the one line for scripts that wait for it; for a person on a terminal also more.
pub(super) fn announce(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("standard output")
}

/// Prints the first login once on a terminal; otherwise, as under a service manager, logs the path of its file.
fn show_first_login(file: &Path) -> anyhow::Result<()> {
    if !std::io::stdout().is_terminal() {
        tracing::warn!(file = %file.display(),
            "first start: this file has the name and the password of the first administrator; log in, then remove it");
        return Ok(());
    }
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    announce(text.trim_end())?;
    std::fs::remove_file(file).with_context(|| file.display().to_string())
}

/// Returns when the program is to stop.
fn wait(mut signals: Signals, args: &Args, server: &Server) {
    for signal in signals.forever() {
        if signal != SIGHUP {
            return;
        }
        reload(args, server);
    }
}

/// SIGHUP: reads everything again, and logs the result.
fn reload(args: &Args, server: &Server) {
    server.retry();
    match args.config().and_then(|config| server.reload(&config)) {
        Ok(waiting) => {
            tracing::info!("certificates, client CAs, passwords and access rules reloaded");
            if !waiting.is_empty() {
                tracing::warn!("changed, takes effect after a restart: {}", waiting.join(", "));
            }
        }
        Err(error) => tracing::error!(
            "reload failed, nothing changed; fix this and send SIGHUP again: {}",
            exit::explain(&error)
        ),
    }
}
