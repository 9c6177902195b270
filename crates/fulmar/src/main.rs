//! The `fulmar` program: picks the command, runs it, turns its outcome into an exit code.
//!
//! Exit codes are a contract with scripts: 0 success, 1 failure, 2 wrong usage, be it of the
//! command line or of the configuration. No command's own work is done here.

mod cert;
mod cli;
#[cfg(not(all(
    feature = "admin",
    feature = "bench",
    feature = "bulk",
    feature = "cluster",
    feature = "demo",
    feature = "import",
    feature = "lab",
    feature = "meter",
    feature = "platform",
    feature = "sensor",
    feature = "sinks"
)))]
mod disabled_commands;
mod health;
mod help;
mod manual;
#[cfg(any(target_env = "musl", test))]
mod memcmp;
// Only with all commands, because disabled commands accept any arguments.
#[cfg(all(
    test,
    feature = "admin",
    feature = "bench",
    feature = "bulk",
    feature = "demo",
    feature = "import",
    feature = "lab",
    feature = "meter",
    feature = "platform",
    feature = "sensor",
    feature = "sinks"
))]
mod pages_tests;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};
use fulmar_command::{exit, logging};
#[cfg(feature = "bench")]
use fulmar_command_bench as bench;
#[cfg(feature = "bulk")]
use fulmar_command_bulk as bulk;
#[cfg(feature = "admin")]
use fulmar_command_ctl as ctl;
#[cfg(feature = "demo")]
use fulmar_command_demo as demo;
#[cfg(feature = "import")]
use fulmar_command_import as import;
#[cfg(feature = "lab")]
use fulmar_command_lab as lab;
#[cfg(feature = "meter")]
use fulmar_command_meter as meter;
use fulmar_command_pubsub as pubsub;
#[cfg(feature = "sensor")]
use fulmar_command_sensor as sensor;
#[cfg(feature = "sinks")]
use fulmar_command_sink as sink;
#[cfg(feature = "platform")]
use fulmar_command_user::accounts;
use fulmar_command_user::passwd;
#[cfg(feature = "cluster")]
use fulmar_server as cluster;
use fulmar_server as serve;

use crate::cli::{Cli, Command};
#[cfg(not(feature = "platform"))]
use crate::disabled_commands::accounts;
#[cfg(not(feature = "bench"))]
use crate::disabled_commands::bench;
#[cfg(not(feature = "bulk"))]
use crate::disabled_commands::bulk;
#[cfg(not(feature = "cluster"))]
use crate::disabled_commands::cluster;
#[cfg(not(feature = "admin"))]
use crate::disabled_commands::ctl;
#[cfg(not(feature = "demo"))]
use crate::disabled_commands::demo;
#[cfg(not(feature = "import"))]
use crate::disabled_commands::import;
#[cfg(not(feature = "lab"))]
use crate::disabled_commands::lab;
#[cfg(not(feature = "meter"))]
use crate::disabled_commands::meter;
#[cfg(not(feature = "sensor"))]
use crate::disabled_commands::sensor;
#[cfg(not(feature = "sinks"))]
use crate::disabled_commands::sink;

// musl's allocator has one lock for all threads, and the workers would wait for it. What is written in C has this one, too
// (mimalloc's feature `override`).
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    exit::end_with_the_reader();
    let words: Vec<_> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(usage) = pubsub::mosquitto_host(&words) {
        return exit::code(Err(usage.into()));
    }
    let mut line = help::grouped(help::laid_out(Cli::command()));
    let parsed = Cli::from_arg_matches_mut(&mut line.get_matches_mut());
    let Cli { log, command } = parsed.unwrap_or_else(|error| error.format(&mut line).exit());
    let outcome = match command {
        Command::Serve(args) => serve::run(&args, &log),
        Command::Doctor(args) => with_log(&log, || serve::doctor::run(&args)),
        Command::Pub(args) => with_log(&log, || pubsub::publish(args)),
        Command::Sub(args) => with_log(&log, || pubsub::subscribe(args)),
        Command::Send(args) => with_log(&log, || bulk::send(&args)),
        Command::Receive(args) => with_log(&log, || bulk::receive(&args)),
        Command::Rollout(args) => with_log(&log, || bulk::rollout(&args)),
        Command::Bench(args) => with_log(&log, || bench::run(args)),
        Command::Lab(args) => with_log(&log, || lab::run(args)),
        Command::Meter(args) => with_log(&log, || meter::run(&args)),
        Command::Sensor(args) => with_log(&log, || sensor::run(args)),
        #[cfg(feature = "demo")]
        Command::Demo(args) => with_log(&log, || demo::run(&args, serve::has_web_app())),
        #[cfg(not(feature = "demo"))]
        Command::Demo(args) => with_log(&log, || demo::run(&args)),
        Command::Passwd(args) => with_log(&log, || passwd::run(&args)),
        Command::User(args) => with_log(&log, || accounts::user(&args)),
        Command::Twin(args) => with_log(&log, || accounts::twin(&args)),
        Command::Cluster(args) => with_log(&log, || cluster::cluster_command(&args)),
        Command::Sink(args) => with_log(&log, || sink::run(&args)),
        Command::Ctl(args) => with_log(&log, || ctl::run(&args)),
        Command::Audit(args) => with_log(&log, || ctl::audit(&args)),
        Command::Import(args) => with_log(&log, || import::run(&args)),
        Command::Cert(args) => with_log(&log, || cert::run(args)),
        Command::Health(args) => with_log(&log, || health::run(&args)),
        Command::Completions(args) => with_log(&log, || manual::completions(&args, Cli::command())),
        Command::Man(args) => with_log(&log, || manual::man(&args, line)),
    };
    exit::code(outcome)
}

/// For the commands without a configuration file: only what goes wrong is logged unless asked.
fn with_log(
    log: &logging::LogArgs,
    run: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    logging::start(log, "warn", None)?;
    run()
}
