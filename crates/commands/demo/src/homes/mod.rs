//! `fulmar demo homes`: broker and platform, a gateway with its own data folder, twenty simulated homes, and between
//! gateway and platform a bad link that is down for a while.
//!
//! Broker, gateway and homes are the program's ordinary commands, run as processes of their own. The link (`uplink`)
//! is the lab's model, applied to datagrams in this process, so that no rights are needed.

mod edge;
mod uplink;
mod village;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use fulmar_sensors::homes::Plan;
use signal_hook::iterator::Signals;

use super::data_folder::data_folder;
use super::login::Login;
use super::server::{Server, wait};
use edge::{Gateway, Simulation};
use uplink::{Outage, Uplink};

const EXAMPLES: &str = "\
Examples:
  fulmar demo homes                            twenty homes, four weeks of history, an outage after a minute
  fulmar demo homes --data ~/homes             the same, kept in a folder to be continued another day
  fulmar demo homes --link 2g-64k --loss 10%   a worse link between gateway and platform
  fulmar demo homes --outage 600               the link is down for ten minutes

It prints users, their passwords and the address to open, and runs until Ctrl-C.";

/// Settings of the demonstration.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Number of homes
    #[arg(long, value_name = "NUMBER", default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(4..=200))]
    homes: u32,
    /// Seed of all random decisions
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Port of the web app, TCP and UDP; 0 for any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8443)]
    port: u16,
    /// Folder for all data, kept afterwards [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Link between the gateway and the platform, one of `fulmar lab link --list`
    #[arg(long, value_name = "PROFILE", default_value = "3g")]
    link: String,
    /// Packet loss of the link
    #[arg(long, value_name = "PERCENT", default_value = "5%")]
    loss: String,
    /// Seconds between two readings of a sensor
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=3600))]
    every: u32,
    /// Days of history made beforehand
    #[arg(long, value_name = "DAYS", default_value_t = 28,
        value_parser = clap::value_parser!(u32).range(0..=366))]
    history: u32,
    /// Seconds after the start at which the link goes down
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
        value_parser = clap::value_parser!(u32).range(1..=86_400))]
    outage_after: u32,
    /// Seconds for which the link is down; 0: no outage
    #[arg(long, value_name = "SECONDS", default_value_t = 90,
        value_parser = clap::value_parser!(u32).range(0..=86_400))]
    outage: u32,
}

/// Runs the demonstration.
pub(super) fn run(args: &Args, has_web_app: bool, signals: Signals) -> anyhow::Result<()> {
    let outage = Outage { after_s: args.outage_after, for_s: args.outage };
    let link = uplink::settings(&args.link, &args.loss, outage)?;
    let (data, _folder) = &data_folder(args.data.as_deref())?;
    let plan = village::plan(data, args.homes, args.seed, args.every)?;
    eprintln!("Making {} homes with {} days of history …", plan.homes, args.history);
    let settled = village::settle(data, &plan, args.history)?;
    let mut server = Server::start(data, args.port)?;
    let started = Instant::now();
    let uplink = Uplink::start(link, &server.quic, plan.seed)?;
    let gateway = Gateway::start(data, uplink.address(), &settled.token)?;
    let homes = Simulation::start(data, &plan, &gateway.mqtt)?;
    let login = Login { has_web_app, port: server.port, users: &settled.users, data };
    announce(&server, &login, &plan, args)?;
    let outcome = wait(signals, &mut server, teller(started, outage));
    // The sensors end first: acknowledged readings are still forwarded and stored.
    drop((homes, gateway, uplink, server));
    outcome
}

fn announce(server: &Server, login: &Login<'_>, plan: &Plan, args: &Args) -> anyhow::Result<()> {
    let mut about = format!(
        "{}: {} homes behind a gateway whose link is {} and loses {}.",
        village::NAME,
        plan.homes,
        args.link,
        args.loss
    );
    if args.outage > 0 {
        about += &format!(
            "\nIn {} s the link goes down for {} s; readings taken meanwhile arrive afterwards.",
            args.outage_after, args.outage
        );
    }
    let record = login.data.join(edge::RECORD);
    let also =
        format!("Readings that the gateway accepted from sensors are in {}.", record.display());
    login.announce(&about, &also, &server.ready)
}

/// Says when the link goes down and when it is up again, once each; to be called again and again.
fn teller(started: Instant, outage: Outage) -> impl FnMut() {
    let down = Duration::from_secs(outage.after_s.into());
    let up = down + Duration::from_secs(outage.for_s.into());
    let all = [(down, "The link is down."), (up, "The link is up again.")];
    let mut due = all.into_iter().filter(move |_| outage.for_s > 0).peekable();
    move || {
        if let Some((_, text)) = due.next_if(|(at, _)| started.elapsed() >= *at) {
            eprintln!("{text}");
        }
    }
}
