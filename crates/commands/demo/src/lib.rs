//! `fulmar demo`: a whole installation on one machine, with a bad link in it.
//!
//! `meters` makes a town (`town`), fills a data folder with it (`seed`), runs `fulmar serve` on that folder and a
//! van that drives through the town (`van`). `homes` does the same with homes, and puts a gateway in between. `cluster`
//! has three nodes, of which one dies. The
//! parts are the program's ordinary commands, run as processes of their own; what is special here is only what they
//! are given.

mod api;
mod cluster;
mod data_folder;
mod homes;
mod installation;
mod login;
mod process;
mod seed;
mod server;
mod town;
mod van;

use std::path::PathBuf;

use anyhow::Context;
use clap::Subcommand;
use fulmar_command::exit;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use data_folder::data_folder;
use login::Login;
use server::{Server, wait};
use town::Town;
use van::Van;

const EXAMPLES: &str = "\
Examples:
  fulmar demo meters                        a town of 2000 meters, and a van that drives through it
  fulmar demo meters --data ~/town          the same, kept in a folder to be continued another day
  fulmar demo homes                         twenty homes with sensors behind a gateway on a bad link
  fulmar demo cluster                       three nodes of a cluster, of which the one that serves is killed
  fulmar demo meters --link 2g-64k --loss 5%
      the van's receiver has 64 kbit/s and loses one packet in twenty

It prints what to do, such as users, their passwords and the address to open, and runs until Ctrl-C.";

const ABOUT_PAGES: &str = "\
`Radio`, `Drive-by` shows what the van receives; `office` sees it decoded under `Readings`.";

/// Run a demonstration: a whole installation on this machine
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    which: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    /// A water utility: server, web app, a town of meters and a van that receives them
    Meters(Meters),
    /// Homes with sensors: platform, web app, and a gateway behind a bad link that is down for a while
    Homes(homes::Args),
    /// A cluster: three NATS servers, three nodes, and the death of the one that serves
    Cluster(cluster::Args),
}

/// Settings of the demonstration.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
struct Meters {
    /// Number of meters in the town
    #[arg(long, value_name = "NUMBER", default_value_t = 2000,
        value_parser = clap::value_parser!(u32).range(10..=100_000))]
    meters: u32,
    /// Seed of all random decisions about the town
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Port of the web app, TCP and UDP; 0 for any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8443)]
    port: u16,
    /// Folder for all data, kept afterwards [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Link between the van and the server, one of `fulmar lab link --list`; `none` for this machine's own network
    #[arg(long, value_name = "PROFILE", default_value = "3g")]
    link: String,
    /// Packet loss of the link
    #[arg(long, value_name = "PERCENT", default_value = "2%")]
    loss: String,
}

/// Runs the demonstration. `has_web_app`: whether this program, which also runs as the server, contains the web app.
///
/// # Errors
/// A part of it cannot be started, or has failed.
pub fn run(args: &Args, has_web_app: bool) -> anyhow::Result<()> {
    let signals = Signals::new([SIGTERM, SIGINT]).context("cannot handle signals")?;
    match &args.which {
        Which::Meters(args) => meters(args, has_web_app, signals),
        Which::Homes(args) => homes::run(args, has_web_app, signals),
        Which::Cluster(args) => cluster::run(args, signals),
    }
}

fn meters(args: &Meters, has_web_app: bool, signals: Signals) -> anyhow::Result<()> {
    let (data, _folder) = &data_folder(args.data.as_deref())?;
    let (meters, seed) = seed::parameters(data, args.meters, args.seed)?;
    let town = Town::new(meters, seed);
    eprintln!("Making a town of {meters} meters in {} …", data.display());
    let seeded = seed::seed(data, &town)?;
    let mut server = Server::start(data, args.port)?;
    let van = Van::start(&town, &server.quic, data, &seeded.token, &args.link, &args.loss)?;
    let login = Login { has_web_app, port: server.port, users: &seeded.users, data };
    let about = format!("{}: {meters} meters. {}", town::NAME, van.about);
    login.announce(&about, ABOUT_PAGES, &server.ready)?;
    let outcome = wait(signals, &mut server, || {});
    // The van first: it would go on dialling.
    van.stop();
    outcome
}
