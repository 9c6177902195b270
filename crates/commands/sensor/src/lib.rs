//! `fulmar sensor`: publishes readings to MQTT, from standard input, from sensors that Linux drives, or simulated.
//!
//! `fulmar_sensors` parses lines and simulates homes; here are only files, clocks and the connection.

mod kernel;
mod lines;
mod publish;
mod read;
mod simulate;

use clap::Subcommand;
use fulmar_command::exit;

const EXAMPLES: &str = "\
Examples:
  my-probe | fulmar sensor read mqtt://localhost        what a program prints, such as: attic radon 85
  fulmar sensor read mqtt://localhost --iio             sensors that Linux drives, such as a DHT11
  fulmar sensor simulate                                prints the readings of twenty homes
  fulmar sensor simulate mqtt://localhost               the same, published
  fulmar sensor read --help                             the form of lines, topics, what is published

Each reading is a message at QoS 1 on sensor/DEVICE/QUANTITY.";

/// Publish readings of sensors, or simulate them
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Publish readings from standard input or from this machine's own sensors
    Read(Box<read::Args>),
    /// Simulate homes with sensors
    Simulate(Box<simulate::Args>),
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Read(args) => read::run(*args),
        Command::Simulate(args) => simulate::run(*args),
    }
}
