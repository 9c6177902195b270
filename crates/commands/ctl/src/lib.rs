//! `fulmar ctl`: operates a running broker by its administration API.
//!
//! `api` reaches the server, by the socket in its data folder or by HTTPS; each other file has the commands of one
//! subject; `table` prints.

mod api;
mod audit;
mod backup;
mod bans;
mod clients;
mod duration;
mod groups;
mod inspect;
mod list;
mod server;
mod sessions;
mod status;
mod table;
mod users;

use std::path::PathBuf;

use api::Api;
pub use audit::{AuditArgs, audit};
use fulmar_command::runtime;
use server::Server;

const EXAMPLES: &str = "\
Examples:
  fulmar ctl status                            whether it is well, and if not, why; with --json, all numbers
  fulmar ctl clients list --transport quic     who is connected over QUIC, with round-trip time and loss
  fulmar ctl clients show meter-17
  fulmar ctl clients disconnect meter-17
  fulmar ctl clients ban --network 192.0.2.0/24 --for 24h --reason flood
  fulmar ctl sessions list --disconnected --queued 1000
  fulmar ctl retained delete plant/old
  fulmar ctl explain publish plant/temp --client meter-17
  fulmar ctl tap 'plant/#' --for 10m
  fulmar ctl log debug --for 10m
  fulmar ctl roles allow sensors publish 'sensors/%u/#'
  fulmar ctl tokens add grafana --role viewer --for 90d --file grafana.token
  fulmar ctl backup broker.tar
  fulmar ctl restore broker.tar --data /var/lib/fulmar
  fulmar ctl --url https://broker:8443 --token-file token clients list --json

On the broker's machine, as the user of the broker or root, no token is needed: --data names the broker's data folder.";

/// Operate a running broker
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    server: Server,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Whether the broker is well, and if not, why: clients, messages, refusals, memory, disk, certificates
    Status,
    /// Connected clients
    #[command(subcommand)]
    Clients(clients::Command),
    /// Sessions, connected or not
    #[command(subcommand)]
    Sessions(sessions::Command),
    /// Retained messages
    #[command(subcommand)]
    Retained(sessions::Retained),
    /// Users of the broker, and their roles in administration
    #[command(subcommand)]
    Users(users::Command),
    /// Groups of users, which have the group's roles
    #[command(subcommand)]
    Groups(groups::Groups),
    /// Roles: access rules for topics
    #[command(subcommand)]
    Roles(groups::Roles),
    /// API tokens
    #[command(subcommand)]
    Tokens(users::Tokens),
    /// Why a client may or may not publish, subscribe or receive
    Explain(inspect::ExplainArgs),
    /// Print what is published to a topic filter, live
    Tap(inspect::TapArgs),
    /// Write a backup of everything into a file, while the broker runs
    Backup {
        /// File, which must not exist
        file: PathBuf,
    },
    /// Restore a backup into a data folder that does not exist or is empty; needs no broker
    Restore {
        /// File of `fulmar ctl backup`
        file: PathBuf,
    },
    /// Show what the broker logs, or log something else for a time
    Log(inspect::LogArgs),
}

/// Runs the command.
///
/// # Errors
/// The server cannot be reached or refuses; the error has its reason.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Command::Restore { file } = &args.command {
        return backup::restore(file, args.server.data.as_deref());
    }
    runtime::block_on(async {
        let api = Api::new(&args.server)?;
        match &args.command {
            Command::Status => status::run(&api).await,
            Command::Clients(command) => clients::run(&api, command).await,
            Command::Sessions(command) => sessions::run(&api, command).await,
            Command::Retained(command) => sessions::retained(&api, command).await,
            Command::Users(command) => users::run(&api, command).await,
            Command::Groups(command) => groups::groups(&api, command).await,
            Command::Roles(command) => groups::roles(&api, command).await,
            Command::Tokens(command) => users::tokens(&api, command).await,
            Command::Explain(args) => inspect::explain(&api, args).await,
            Command::Tap(args) => inspect::tap(&api, args).await,
            Command::Backup { file } => backup::run(&api, file).await,
            // Done above: it needs no server.
            Command::Restore { .. } => Ok(()),
            Command::Log(args) => inspect::log(&api, args).await,
        }
    })
}
