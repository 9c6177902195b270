//! The command line's top: global options, the list of commands, and help that teaches.
//!
//! Each command's own options live with the command.

use clap::{Parser, Subcommand};

use crate::logging::LogArgs;
use crate::{bench, bulk, cert, demo, lab, meter, passwd, platform, pubsub, sensor, serve};

const EXAMPLES: &str = "\
Examples:
  fulmar serve                                           start a broker on this machine
  fulmar sub quic://localhost -t 'plant/#' -v            see what is published, over QUIC
  fulmar pub mqtt://localhost -t plant/temp -m 21.5      publish one message, over TCP
  fulmar sub --help                                      every option of a command, with examples

Exit codes: 0 success, 1 failure, 2 wrong usage or configuration.";

/// MQTT for bad networks: a broker that is QUIC-first, and its clients.
#[derive(Debug, Parser)]
#[command(name = "fulmar", version, after_help = EXAMPLES, arg_required_else_help = true)]
#[command(max_term_width = 100, subcommand_required = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the broker
    Serve(serve::Args),
    /// Publish messages
    Pub(pubsub::PubArgs),
    /// Subscribe and print what arrives
    Sub(pubsub::SubArgs),
    /// Send files over a bad link, to one receiver or a group
    Send(bulk::SendArgs),
    /// Receive files that are sent so
    Receive(bulk::ReceiveArgs),
    /// Roll out a file to a group of devices in stages
    Rollout(bulk::RolloutArgs),
    /// Measure a broker with many clients
    Bench(bench::Args),
    /// Measure transports on bad links
    Lab(lab::Args),
    /// Read meters by wireless M-Bus
    Meter(meter::Args),
    /// Feed readings of sensors into MQTT, or simulate them
    Sensor(sensor::Args),
    /// Users of the platform: who may log in, and as what
    User(platform::UserArgs),
    /// Twins of the platform: a utility's installation each
    Twin(platform::TwinArgs),
    /// Run a demonstration
    Demo(demo::Args),
    /// Make a development CA and certificates
    Cert(cert::Args),
    /// Make a line of the password file
    Passwd(passwd::Args),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_teaches_by_example() {
        for command in Cli::command().get_subcommands_mut() {
            let name = command.get_name().to_owned();
            let help = command.render_long_help().to_string();
            assert!(help.contains("Examples:"), "fulmar {name} --help has no examples");
            assert!(help.contains(&format!("  fulmar {name}")), "fulmar {name} --help: none runs");
        }
    }
}
