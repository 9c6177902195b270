//! `fulmar lab`: experiments over bad links. The lab crate does the work; this crate has the options and the
//! terminal's output.

mod batch;
mod carrier;
mod copy;
mod experiment_files;
mod fleet;
mod lines;
mod link;
mod list;
mod message;
mod new;
mod probe;
mod report;
mod run;
mod slow;
mod transfer;
mod udp;

use std::path::PathBuf;

use anyhow::Context;

use fulmar_command::{exit, runtime};

const EXAMPLES: &str = "\
Examples:
  fulmar lab list                     list experiments
  fulmar lab run mqtt-quic            run one and write its report to results/mqtt-quic
  fulmar lab report results/mqtt-quic
                                      write the report again
  fulmar lab new mine.toml            write an example experiment to change
  fulmar lab link --profile 2g-64k --loss 5% -- fulmar sub quic://198.18.1.2 -t '#' --insecure
                                      run a program behind a bad link";

/// Measure transports on bad links
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Run a program behind a bad link, or two joined by one
    Link(Box<link::Args>),
    /// List experiments
    List(list::Args),
    /// Show an experiment's conditions, measures, and the number of its samples
    Show(list::Show),
    /// Write an example experiment to change and run
    New(new::Args),
    /// Run experiments and report on them
    Run(run::Args),
    /// Write the report on a folder of results
    Report(report::Args),
    /// Connect, publish and receive, and report the time of each event
    Probe(probe::Args),
    /// Request objects over HTTP/1.1, 2 or 3 and report how long each takes
    Transfer(transfer::Args),
    /// Publish MQTT messages one after the other and report how long each takes
    Message(message::Args),
    /// Send numbered datagrams at a rate, or receive them and report delay, loss and rate
    Udp(udp::Args),
    /// Copy a file over TCP or QUIC, create one, or compare two
    Copy(copy::Args),
    /// Send timed lines over a stream, or report how late each arrives
    Lines(lines::Args),
    /// Measure transfers over UDP, DTLS or QUIC streams
    Batch(batch::Args),
    /// Run a program on a share of the processor, and report what it used
    Slow(slow::Args),
    /// Run many publishing clients and report their statistics
    Fleet(fleet::Args),
}

/// Runs the command.
///
/// # Errors
/// Wrong experiment files, folders that cannot be used, or a run without a single good sample.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Link(args) => link::run(&args),
        Command::List(args) => list::run(&args),
        Command::Show(args) => list::print_experiment(&args),
        Command::New(args) => new::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Transfer(args) => transfer::run(&args),
        Command::Message(args) => message::run(&args),
        Command::Udp(args) => udp::run(&args),
        Command::Copy(args) => copy::run(&args),
        Command::Lines(args) => lines::run(&args),
        Command::Batch(args) => batch::run(&args),
        Command::Slow(args) => slow::run(&args),
        Command::Fleet(args) => fleet::run(args),
    }
}

/// The path of this program, for roles that use it.
fn own_path() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own file")
}
