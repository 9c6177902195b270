//! The log: one subscriber for the whole program, to standard error, as text or JSON lines.
//!
//! Standard output belongs to results: the `ready` line, received messages, reports.

use std::io::IsTerminal;

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::exit::Usage;
use crate::flood::Flood;

/// Options every command takes.
#[derive(Args, Debug)]
pub struct LogArgs {
    /// What to log: error, warn, info, debug or trace, or a filter like fulmar_broker=debug
    #[arg(long, global = true, value_name = "FILTER", env = "FULMAR_LOG", help_heading = "Log")]
    log_level: Option<String>,
    /// How to write the log, which goes to standard error
    #[arg(long, global = true, value_enum, value_name = "FORMAT", help_heading = "Log")]
    log_format: Option<Format>,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people
    Text,
    /// One JSON object per line, for collectors
    Json,
}

/// Starts the log. `level` and `format` hold where neither option nor environment (FULMAR_LOG,
/// RUST_LOG) says otherwise.
///
/// # Errors
/// The filter cannot be read.
pub fn start(args: &LogArgs, level: &str, format: Option<Format>) -> anyhow::Result<()> {
    let from_env = std::env::var("RUST_LOG").ok();
    let filter = args.log_level.as_deref().or(from_env.as_deref()).unwrap_or(level);
    let filter = targets(filter).map_err(|error| {
        Usage(format!("log filter {filter:?}: {error}; try `info` or `info,fulmar_broker=debug`"))
    })?;
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let log = tracing_subscriber::registry().with(filter).with(Flood::default());
    let started = match args.log_format.or(format).unwrap_or(Format::Text) {
        Format::Text => log.with(lines.with_ansi(std::io::stderr().is_terminal())).try_init(),
        Format::Json => log.with(lines.json().flatten_event(true)).try_init(),
    };
    started.map_err(|error| anyhow!("cannot start the log: {error}"))
}

/// Levels by target. Not tracing's `EnvFilter`, which brings an engine for regular expressions to match what spans
/// hold: there are no spans here.
fn targets(filter: &str) -> Result<Targets, ParseError> {
    let parts: Vec<&str> =
        filter.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    parts.join(",").parse()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn levels_hold_for_all_or_for_a_target() {
        let filter = targets(" info, fulmar_broker=debug,").unwrap();
        assert!(filter.would_enable("fulmar_broker::session", &Level::DEBUG));
        assert!(!filter.would_enable("fulmar_transport", &Level::DEBUG));
        assert!(filter.would_enable("fulmar_transport", &Level::INFO));
        assert!(targets("fulmar_broker=loud").is_err());
        assert!(targets("").unwrap().would_enable("fulmar_broker", &Level::ERROR));
    }
}
