//! The log: one subscriber for the whole program, to standard error, as text or JSON lines.
//!
//! Standard output belongs to results: the `ready` line, received messages, reports.

use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tracing::Subscriber;
use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, reload};

use crate::exit::Usage;
use crate::field_limit::FieldLimit;
use crate::flood::Flood;
use crate::log_queue::LogQueue;

pub use crate::log_queue::{LastLines, dropped_lines};

/// Options every command takes.
#[derive(Args, Debug)]
pub struct LogArgs {
    /// Messages to log: error, warn, info, debug or trace, or a filter like fulmar_broker=debug
    #[arg(long, global = true, value_name = "FILTER", env = "FULMAR_LOG", help_heading = "Log")]
    log_level: Option<String>,
    /// Format of the log, which goes to standard error
    #[arg(long, global = true, value_enum, value_name = "FORMAT", help_heading = "Log")]
    log_format: Option<Format>,
}

/// Format of log lines.
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
    start_with(args, level, format, std::io::stderr)
}

/// Starts the log of a server, which never waits for standard error. The last lines are written when the result is
/// dropped.
///
/// # Errors
/// The filter cannot be read, or the system has no thread left.
pub fn start_queued(
    args: &LogArgs,
    level: &str,
    format: Option<Format>,
) -> anyhow::Result<LastLines> {
    let report = |lines| tracing::warn!(lines, "log lines were dropped: standard error was full");
    // Not by way of `stderr`, whose lock would be held while it accepts nothing.
    let stderr = File::from(std::io::stderr().as_fd().try_clone_to_owned()?);
    let queue = LogQueue::start(stderr, report)?;
    let writer = queue.clone();
    start_with(args, level, format, move || writer.clone())?;
    Ok(LastLines(queue))
}

fn start_with(
    args: &LogArgs,
    level: &str,
    format: Option<Format>,
    writer: impl for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let from_env = std::env::var("RUST_LOG").ok();
    let filter = args.log_level.as_deref().or(from_env.as_deref()).unwrap_or(level);
    let filter = targets(filter).map_err(|error| {
        Usage(format!("log filter {filter:?}: {error}; try `info` or `info,fulmar_broker=debug`"))
    })?;
    let (filter, handle) = reload::Layer::new(filter);
    let format = args.log_format.or(format).unwrap_or(Format::Text);
    let lines = lines(format, std::io::stderr().is_terminal(), writer);
    let log = tracing_subscriber::registry().with(filter).with(Flood::default()).with(lines);
    log.try_init().map_err(|error| anyhow!("cannot start the log: {error}"))?;
    let _ = FILTER.set(handle);
    Ok(())
}

/// The layer that writes lines; `colours` are for a terminal.
pub(crate) fn lines<S, W>(
    format: Format,
    colours: bool,
    writer: W,
) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    match format {
        Format::Text => Box::new(lines.with_ansi(colours).map_event_format(FieldLimit)),
        Format::Json => Box::new(lines.json().flatten_event(true).map_event_format(FieldLimit)),
    }
}

/// The program's filter; none before the log has started.
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Returns the log's present filter; `None` if [`start`] has not started the log.
pub fn filter() -> Option<String> {
    FILTER.get()?.with_current(ToString::to_string).ok()
}

/// Logs something else from now on.
///
/// # Errors
/// The filter cannot be read, or the log has not been started.
pub fn set_filter(filter: &str) -> Result<(), String> {
    let wrong = |why: &dyn std::fmt::Display| {
        format!("{filter:?}: {why}; try `debug` or `info,fulmar_broker=debug`")
    };
    let handle = FILTER.get().ok_or("this program has no log")?;
    // A level with a typing error would be a target, and the log silent.
    let is_level = |part: &str| part.parse::<LevelFilter>().is_ok();
    let mut parts = filter.split(',').map(str::trim).filter(|part| !part.is_empty());
    if let Some(part) = parts.find(|part| !part.contains('=') && !is_level(part)) {
        return Err(wrong(&format_args!("{part} is not a level")));
    }
    let parsed = targets(filter).map_err(|error| wrong(&error))?;
    handle.reload(parsed).map_err(|error| error.to_string())
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
