//! `fulmar sink`: what a sink would write for a message, and its dead letters. The server may run or not.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use fulmar_command::exit::Usage;
use fulmar_command::terminal;
use fulmar_config::{Config, Sink};
use fulmar_sink::{DeadLetters, Letter};

const EXAMPLES: &str = "\
Examples:
  fulmar sink try history --config fulmar.toml --topic plant/mill/climate --payload '{\"temperature\": 21.5}'
                                             print the row or record that would be written
  fulmar sink dead history --config fulmar.toml    list the messages that did not fit, with the reason
  fulmar sink retry history --config fulmar.toml   write them again, after the mapping was corrected

docs/sinks.md explains the settings of sinks.";

/// Bytes of a payload from standard input.
const MAX_PAYLOAD_BYTES: u64 = 256 << 20;

/// Try a sink's mapping, list its dead letters or write them again
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print the row or record that a sink would write for a message
    Try {
        #[command(flatten)]
        sink: Named,
        /// Topic of the message
        #[arg(long, short)]
        topic: String,
        /// Payload of the message [default: read from standard input]
        #[arg(long, short)]
        payload: Option<String>,
    },
    /// List dead letters, one JSON object per line; payloads are in base64
    Dead(#[command(flatten)] Named),
    /// Write dead letters to the target again; those that still do not fit stay
    Retry(#[command(flatten)] Named),
}

#[derive(clap::Args, Debug)]
struct Named {
    /// NAME of `[sinks.NAME]`
    name: String,
    /// Configuration file of the server
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data folder of the server [default: [server] data_dir of the configuration, else ~/.local/share/fulmar]
    #[arg(long, value_name = "DIR", env = "FULMAR_DATA")]
    data: Option<PathBuf>,
}

impl Named {
    /// The settings of the sink, and the data folder.
    fn load(&self) -> anyhow::Result<(Sink, PathBuf)> {
        let mut config = Config::load(self.config.as_deref())?;
        let data = self.data.clone().unwrap_or_else(|| config.data_dir());
        let sink = config.sinks.remove(&self.name).ok_or_else(|| {
            Usage(format!(
                "the configuration has no [sinks.{}]; name its file with --config",
                self.name
            ))
        })?;
        Ok((sink, data))
    }
}

/// Runs the command.
///
/// # Errors
/// There is no such sink, the message does not fit, or the target accepts nothing.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::Try { sink, topic, payload } => {
            let payload = match payload {
                Some(text) => text.clone().into_bytes(),
                None => {
                    let mut payload = Vec::new();
                    std::io::stdin().take(MAX_PAYLOAD_BYTES).read_to_end(&mut payload)?;
                    payload
                }
            };
            let (id, at) = ("EXAMPLE-1".to_owned(), "2026-01-01T00:00:00.000Z".to_owned());
            let letter = Letter { id, at, topic: topic.clone(), payload };
            print!("{}", fulmar_sink::try_message(&sink.load()?.0, &letter)?);
        }
        Action::Dead(named) => {
            let (sink, data) = named.load()?;
            let file = DeadLetters::new(&data, &named.name, sink.dead_letter_max_bytes);
            let path = || format!("{}: is the data folder right (--data)?", file.path().display());
            for letter in file.read().with_context(path)? {
                println!("{}", terminal::json(serde_json::to_string(&letter)?));
            }
        }
        Action::Retry(named) => {
            let (sink, data) = named.load()?;
            let (written, left) = fulmar_sink::retry(&sink, &named.name, &data)?;
            println!("{written} written, {left} still do not fit");
            anyhow::ensure!(
                left == 0,
                "correct the mapping or the target: `fulmar sink dead` says why"
            );
        }
    }
    Ok(())
}
