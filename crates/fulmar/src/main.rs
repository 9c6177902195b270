//! The `fulmar` program: picks the command, runs it, turns its outcome into an exit code.
//!
//! Exit codes are a contract with scripts: 0 success, 1 failure, 2 wrong usage, be it of the
//! command line or of the configuration. No command's own work is done here.

mod bench;
mod bulk;
mod cert;
mod cli;
mod config;
mod demo;
mod exit;
mod lab;
mod logging;
mod meter;
mod passwd;
mod platform;
mod pubsub;
mod runtime;
mod sensor;
mod serve;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let Cli { log, command } = Cli::parse();
    let outcome = match command {
        Command::Serve(args) => serve::run(&args, &log),
        Command::Pub(args) => with_log(&log, || pubsub::publish(args)),
        Command::Sub(args) => with_log(&log, || pubsub::subscribe(args)),
        Command::Send(args) => with_log(&log, || bulk::send(&args)),
        Command::Receive(args) => with_log(&log, || bulk::receive(&args)),
        Command::Rollout(args) => with_log(&log, || bulk::rollout(&args)),
        Command::Bench(args) => with_log(&log, || bench::run(args)),
        Command::Lab(args) => with_log(&log, || lab::run(args)),
        Command::Meter(args) => with_log(&log, || meter::run(&args)),
        Command::Sensor(args) => with_log(&log, || sensor::run(args)),
        Command::Demo(args) => with_log(&log, || demo::run(&args)),
        Command::Passwd(args) => with_log(&log, || passwd::run(&args)),
        Command::User(args) => with_log(&log, || platform::user(&args)),
        Command::Twin(args) => with_log(&log, || platform::twin(&args)),
        Command::Cert(args) => with_log(&log, || cert::run(args)),
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
