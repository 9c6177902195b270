//! The command line's top: global options, the list of commands, and help that teaches.
//!
//! Each command's own options live with the command.

use clap::{Parser, Subcommand};
use fulmar_command::logging::LogArgs;

use crate::{
    accounts, bench, bulk, cert, cluster, ctl, demo, health, import, lab, manual, meter, passwd,
    pubsub, sensor, serve, sink,
};

const EXAMPLES: &str = "\
Examples:
  fulmar serve                                           start a broker on this machine
  fulmar sub quic://localhost -t 'plant/#' -v            see what is published, over QUIC
  fulmar pub mqtt://localhost -t plant/temp -m 21.5      publish one message, over TCP
  fulmar sub --help                                      every option of a command, with examples

Exit codes: 0 success, 1 failure, 2 wrong usage or configuration.";

/// MQTT for bad networks: a QUIC-first broker, and its clients.
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
    #[command(aliases = ["start", "run", "broker"])]
    Serve(serve::Args),
    /// Examine a machine and a configuration, or the path to a broker
    Doctor(serve::doctor::Args),
    /// Publish messages
    #[command(alias = "publish")]
    Pub(pubsub::PubArgs),
    /// Subscribe and print what arrives
    #[command(alias = "subscribe")]
    Sub(pubsub::SubArgs),
    /// Send files over a bad link, to one receiver or a group
    #[cfg_attr(not(feature = "bulk"), command(hide = true))]
    Send(bulk::SendArgs),
    /// Receive files sent with `fulmar send`
    #[cfg_attr(not(feature = "bulk"), command(hide = true))]
    Receive(bulk::ReceiveArgs),
    /// Roll out a file to a group of devices in stages
    #[cfg_attr(not(feature = "bulk"), command(hide = true))]
    Rollout(bulk::RolloutArgs),
    /// Measure a broker with many clients
    #[cfg_attr(not(feature = "bench"), command(hide = true))]
    Bench(bench::Args),
    /// Measure transports on bad links
    #[cfg_attr(not(feature = "lab"), command(hide = true))]
    Lab(lab::Args),
    /// Read meters by wireless M-Bus
    #[cfg_attr(not(feature = "meter"), command(hide = true))]
    Meter(meter::Args),
    /// Publish readings of sensors, or simulate them
    #[cfg_attr(not(feature = "sensor"), command(hide = true))]
    Sensor(sensor::Args),
    /// Try a sink's mapping, list its dead letters or write them again
    #[cfg_attr(not(feature = "sinks"), command(hide = true))]
    Sink(sink::Args),
    /// Operate a running broker: look at its clients, disconnect them
    #[cfg_attr(not(feature = "admin"), command(hide = true))]
    Ctl(ctl::Args),
    /// Print who changed what
    #[cfg_attr(not(feature = "admin"), command(hide = true))]
    Audit(ctl::AuditArgs),
    /// Run several brokers with one state: create, show, drain a node
    #[cfg_attr(not(feature = "cluster"), command(hide = true))]
    Cluster(cluster::ClusterArgs),
    /// Manage users of the platform and their roles
    #[cfg_attr(not(feature = "platform"), command(hide = true))]
    User(accounts::UserArgs),
    /// Manage twins (tenants) of the platform
    #[cfg_attr(not(feature = "platform"), command(hide = true))]
    Twin(accounts::TwinArgs),
    /// Run a demonstration
    #[cfg_attr(not(feature = "demo"), command(hide = true))]
    Demo(demo::Args),
    /// Create a development CA and certificates
    Cert(cert::Args),
    /// Add or remove a user of the password file, or change a password
    Passwd(passwd::Args),
    /// Translate another broker's configuration
    #[cfg_attr(not(feature = "import"), command(hide = true))]
    Import(import::Args),
    /// Ask whether a broker is healthy
    Health(health::Args),
    /// Print completions for a shell
    Completions(manual::CompletionArgs),
    /// Write manual pages
    Man(manual::ManArgs),
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_disabled_command_accepts_any_arguments() {
        for hidden in Cli::command().get_subcommands().filter(|command| command.is_hide_set()) {
            let name = hidden.get_name();
            for arguments in [&[][..], &["--help"], &["a", "-x", "--", "b"]] {
                let line = ["fulmar", name].into_iter().chain(arguments.iter().copied());
                assert!(Cli::try_parse_from(line).is_ok(), "fulmar {name} {arguments:?}");
            }
        }
    }

    #[test]
    fn every_command_teaches_by_example() {
        for command in Cli::command().get_subcommands_mut().filter(|command| !command.is_hide_set())
        {
            let name = command.get_name().to_owned();
            let help = command.render_long_help().to_string();
            assert!(help.contains("Examples:"), "fulmar {name} --help has no examples");
            assert!(help.contains(&format!("  fulmar {name}")), "fulmar {name} --help: none runs");
        }
    }
}
