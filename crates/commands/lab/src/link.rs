//! `fulmar lab link`: a program behind a bad link, or two joined by one.
//!
//! The options for the link come from the link model's own list of settings.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use clap::builder::NonEmptyStringValueParser;
use clap::error::Error as ClapError;
use clap::{Arg, ArgAction, ArgMatches, FromArgMatches};
use fulmar_lab::exec::{Options, run_behind_link, run_pair};
use fulmar_lab::link::{LinkConfig, SETTINGS};
use fulmar_lab::{Error, profile};

use crate::exit::{Status, Usage};

const EXAMPLES: &str = "\
Examples:
  fulmar lab link --profile 2g-64k --loss 5% -- curl -O http://198.18.1.2:8000/map.zip
      fetch from a web server on this machine's port 8000 over 2G with loss
  fulmar lab link --delay 150ms --down.rate 1M --pcap trace.pcapng -- bash
      a shell on a slow line; everything in it that uses the network does so over the link
  fulmar lab link --profile satellite-geo --between 'iperf3 -s -1' 'iperf3 -c $LAB_PEER'
      two programs at the two ends of a satellite link

At 198.18.1.2 (and 2001:2:0:1::2) a program behind the link reaches this machine's own services, even
those that listen on loopback only; other addresses work as usual. A name server on a loopback
address (such as 127.0.0.53) cannot be reached: use addresses, or another name server. $LAB_SELF and
$LAB_PEER contain the program's own address and the other end's.

Each setting of the link applies to both directions; --up.NAME sets it from the program (the first of
two) and --down.NAME towards it. The same --seed loses the same packets of each flow. The exit code
is the program's. A summary is printed on standard error.";

/// Run a program behind a bad link, or two joined by one
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    settings: Settings,
    /// Seed of all random decisions
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Write the packets that passed to a capture file for Wireshark
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Write which packets of each flow the emulator chose to lose, corrupt, duplicate or hold back:
    /// the same ones for the same seed
    #[arg(long, value_name = "FILE")]
    decisions: Option<PathBuf>,
    /// Print the summary as one line of JSON
    #[arg(long)]
    json: bool,
    /// Write the summary to a file instead of standard error
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Join two programs, given as lines for the shell; the run ends with the second
    #[arg(long, num_args = 2, value_names = ["FIRST", "SECOND"], conflicts_with = "command")]
    between: Vec<String>,
    /// List the named links and the sources of their figures
    #[arg(long, conflicts_with_all = ["between", "command"])]
    list: bool,
    /// The program and its arguments
    #[arg(last = true, required_unless_present_any = ["between", "list"])]
    command: Vec<OsString>,
}

/// The link's settings: names and values, general ones before those of a direction.
#[derive(Debug)]
struct Settings(Vec<(String, String)>);

const PREFIXES: [&str; 3] = ["", "up.", "down."];

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Settings, ClapError> {
        let mut settings = Vec::new();
        // The profile comes first: it sets everything, and the others override it.
        let profile = SETTINGS.iter().filter(|(name, _)| *name == "profile");
        let others = SETTINGS.iter().filter(|(name, _)| *name != "profile");
        for prefix in PREFIXES {
            for (name, _) in profile.clone().chain(others.clone()) {
                let name = format!("{prefix}{name}");
                if let Ok(Some(value)) = matches.try_get_one::<String>(&name) {
                    settings.push((name, value.clone()));
                }
            }
        }
        Ok(Settings(settings))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), ClapError> {
        *self = Settings::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Settings {
    fn augment_args(mut command: clap::Command) -> clap::Command {
        for (name, help) in SETTINGS {
            let option = |prefix: &str| {
                let name = format!("{prefix}{name}");
                Arg::new(name.clone())
                    .long(name)
                    .value_name("VALUE")
                    .value_parser(NonEmptyStringValueParser::new())
                    .action(ArgAction::Set)
                    .help_heading("Link")
            };
            command = command.arg(option("").help(*help));
            if *name != "profile" {
                command = command.arg(option("up.").hide(true)).arg(option("down.").hide(true));
            }
        }
        command
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Settings::augment_args(command)
    }
}

/// Runs the program or programs, and prints the summary.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if args.list {
        return list();
    }
    let options = options(args)?;
    let outcome = match &args.between[..] {
        [first, second] => run_pair(&options, shell(first), shell(second)),
        _ => {
            let (program, arguments) = args.command.split_first().context("no program")?;
            let mut command = Command::new(program);
            command.args(arguments);
            run_behind_link(&options, command)
        }
    };
    let (status, summary) = outcome.map_err(|error| match error {
        Error::Config(_) => anyhow::Error::from(Usage(error.to_string())),
        error => error.into(),
    })?;
    let text = if args.json { serde_json::to_string(&summary)? } else { summary.to_string() };
    match &args.summary {
        Some(path) => {
            fs::write(path, text + "\n").with_context(|| path.display().to_string())?;
        }
        None => eprintln!("{text}"),
    }
    match code(status) {
        0 => Ok(()),
        code => Err(Status(code).into()),
    }
}

fn options(args: &Args) -> anyhow::Result<Options> {
    let mut link = LinkConfig::default();
    for (name, value) in &args.settings.0 {
        link.set(name, value).map_err(|error| Usage(format!("--{error}")))?;
    }
    link.check().map_err(|error| Usage(format!("--{error}")))?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).context("signals")?;
    }
    let (capture, decisions) = (args.pcap.clone(), args.decisions.clone());
    Ok(Options { link, seed: args.seed, capture, decisions, interrupted })
}

fn shell(line: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(line);
    command
}

/// The exit code for a status, as in shells.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

fn list() -> anyhow::Result<()> {
    for profile in profile::load_all()? {
        println!("{}: {}", profile.name, profile.summary);
        let settings: Vec<_> =
            profile.settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
        if !settings.is_empty() {
            println!("    {}", settings.join(", "));
        }
        println!("    {}\n", profile.source);
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn settings(line: &[&str]) -> Vec<(String, String)> {
        let line = ["link"].iter().chain(line).chain(&["--", "true"]);
        Line::try_parse_from(line).unwrap().args.settings.0
    }

    #[test]
    fn the_particular_refines_the_general_whatever_their_order() {
        let given = settings(&["--up.loss", "9%", "--loss", "1%", "--profile", "lte"]);
        let names: Vec<_> = given.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["profile", "loss", "up.loss"]);
    }

    #[test]
    fn a_programs_end_becomes_an_exit_code() {
        assert_eq!(code(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
    }

    #[test]
    fn a_program_is_needed() {
        assert!(Line::try_parse_from(["link", "--loss", "1%"]).is_err());
        assert!(Line::try_parse_from(["link", "--between", "a", "--", "b"]).is_err());
        assert!(Line::try_parse_from(["link", "--between", "a", "b"]).is_ok());
    }
}
