//! `fulmar meter`: wireless M-Bus at the command line.
//!
//! Telegrams are decoded by `fulmar_wmbus`; here are only files, serial ports and what a person reads.

mod decode;
mod keys;
mod port;
mod show;
mod simulate;

use clap::Subcommand;
use fulmar_command::exit;

const EXAMPLES: &str = "\
Examples:
  fulmar meter decode --keys keys.toml telegrams.txt           decode a file of telegrams
  rtl_sdr -f 868.625M -s 1600000 - | rtl_wmbus -s | fulmar meter decode --keys keys.toml
                                                               decode what an RTL-SDR stick receives
  fulmar meter simulate | fulmar meter decode                  a drive past simulated meters
  fulmar meter decode --help                                   inputs, keys, what is printed";

/// Read meters by wireless M-Bus
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Decode telegrams
    Decode(decode::Args),
    /// Simulate a drive past a town of meters
    Simulate(simulate::Args),
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Decode(args) => decode::run(args),
        Command::Simulate(args) => simulate::run(args),
    }
}

/// Whether the reader of standard output has ended.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    use std::io::{Error, ErrorKind};
    error.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
