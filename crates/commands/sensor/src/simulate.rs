//! `fulmar sensor simulate`: a village of homes, printed or published as time passes.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::error::Error as ClapError;
use clap::{ArgMatches, FromArgMatches};
use fulmar_sensors::homes::{Fault, MAX_HOMES, Measured, Plan, Village};
use fulmar_sensors::{Reading, instant};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::publish::{Publisher, watch};
use super::read::now_ms;
use crate::exit::Usage;
use fulmar_command_pubsub::{Connection, block_on};

const EXAMPLES: &str = "\
Examples:
  fulmar sensor simulate                                     twenty homes in real time
  fulmar sensor simulate mqtt://localhost --every 10         published to sensor/DEVICE/QUANTITY
  fulmar sensor simulate --pace 0 --from 2026-01-05T00:00:00Z --days 7 --json > week.jsonl
      a week at once, as fast as possible
  fulmar sensor simulate | fulmar sensor read mqtt://localhost

The same --homes, --seed and --from give the same readings. The output is what `fulmar sensor read`
accepts. In three of twenty homes, sensors fail now and then; in one, the flue is blocked every ninth
evening; a few stand on radon-rich ground.";

/// Interval at which readings that have become due are printed, in real time.
const TICK: Duration = Duration::from_millis(100);
/// Longest time that is simulated at once when nothing waits, in ms.
const AT_ONCE_MS: u64 = 3_600_000;

const DAY_MS: f64 = 86_400_000.0;

/// Simulate homes with sensors
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    broker: MaybeBroker,
    /// Topic to which device and quantity are appended
    #[arg(short, long, default_value = "sensor")]
    topic: String,
    /// Number of homes
    #[arg(long, value_name = "NUMBER", default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_HOMES)))]
    homes: u32,
    /// Seed of all random decisions
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Seconds between two readings of a device
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
        value_parser = clap::value_parser!(u32).range(1..=86_400))]
    every: u32,
    /// Start of the simulated time, such as 2026-01-05T00:00:00Z [default: now]
    #[arg(long, value_name = "TIME", value_parser = time)]
    from: Option<u64>,
    /// Exit after this number of simulated days; 0: no end
    #[arg(long, value_name = "DAYS", default_value_t = 0.0, value_parser = positive)]
    days: f64,
    /// Speed of time: 1 is real time, 0 as fast as possible
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = positive)]
    pace: f64,
    /// Print JSON objects instead of words
    #[arg(long)]
    json: bool,
    /// Write each reading that the broker has acknowledged to a file: one JSON object per line
    #[arg(long, value_name = "FILE", requires = "url")]
    record: Option<PathBuf>,
}

/// Where to publish, if anywhere: the options of a connection whose URL may be left out.
#[derive(Debug)]
struct MaybeBroker(Option<Connection>);

impl FromArgMatches for MaybeBroker {
    fn from_arg_matches(matches: &ArgMatches) -> Result<MaybeBroker, ClapError> {
        let is_given = matches.contains_id("url");
        let connection = is_given.then(|| Connection::from_arg_matches(matches));
        connection.transpose().map(MaybeBroker)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), ClapError> {
        *self = MaybeBroker::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for MaybeBroker {
    fn augment_args(command: clap::Command) -> clap::Command {
        Connection::augment_args(command).mut_arg("url", |url| {
            url.required(false)
                .help("Broker to publish to, as in fulmar pub; without one, readings are printed")
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        MaybeBroker::augment_args(command)
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if factor.is_finite() && factor >= 0.0 { Ok(factor) } else { Err("0 or more".to_owned()) }
}

fn time(text: &str) -> Result<u64, String> {
    let at = OffsetDateTime::parse(text, &Rfc3339)
        .map_err(|_| "use a time such as 2026-01-05T00:00:00Z".to_owned())?;
    u64::try_from(at.unix_timestamp_nanos() / 1_000_000).map_err(|_| "from 1970 on".to_owned())
}

/// Simulates.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    if args.pace == 0.0 && args.days == 0.0 {
        return Err(Usage("--pace 0 needs --days, otherwise it would never end".into()).into());
    }
    let mut passing = Passing::new(&args);
    match &args.broker.0 {
        Some(connection) => block_on(published(&mut passing, connection, &args)),
        None => match printed(&mut passing, args.json) {
            // The reader of standard output has ended.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            outcome => Ok(outcome?),
        },
    }
}

/// The village, and time passing in it.
struct Passing {
    village: Village,
    from_ms: u64,
    end_ms: u64,
    pace: f64,
    at_ms: u64,
    started: Instant,
}

impl Passing {
    fn new(args: &Args) -> Passing {
        let plan = Plan { homes: args.homes, seed: args.seed, every_s: args.every };
        let from_ms = args.from.unwrap_or_else(now_ms);
        let end_ms = if args.days == 0.0 {
            u64::MAX
        } else {
            from_ms.saturating_add((args.days * DAY_MS) as u64)
        };
        let village = Village::new(&plan, from_ms);
        Passing {
            village,
            from_ms,
            end_ms,
            pace: args.pace,
            at_ms: from_ms,
            started: Instant::now(),
        }
    }

    /// Returns the measurements since the last call; `None` at the end.
    fn next(&mut self) -> Option<Vec<Measured>> {
        if self.at_ms >= self.end_ms {
            return None;
        }
        let until_ms = if self.pace == 0.0 {
            self.at_ms.saturating_add(AT_ONCE_MS)
        } else {
            let passed_ms = self.started.elapsed().as_secs_f64() * 1000.0 * self.pace;
            self.from_ms.saturating_add(passed_ms as u64)
        };
        self.at_ms = until_ms.clamp(self.at_ms, self.end_ms);
        Some(self.village.advance(self.at_ms))
    }

    fn is_waiting(&self) -> bool {
        self.pace > 0.0
    }
}

fn printed(passing: &mut Passing, as_json: bool) -> std::io::Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    while let Some(all) = passing.next() {
        for Measured { reading, fault, .. } in all {
            if as_json {
                writeln!(out, "{}", object(&reading, fault))?;
            } else {
                let Reading { device, quantity, value, .. } = &reading;
                writeln!(out, "{device} {quantity} {value} {}", at(&reading))?;
            }
        }
        out.flush()?;
        if passing.is_waiting() {
            std::thread::sleep(TICK);
        }
    }
    Ok(())
}

async fn published(
    passing: &mut Passing,
    connection: &Connection,
    args: &Args,
) -> anyhow::Result<()> {
    let prepared = connection.prepare(false)?;
    let record = args.record.as_ref().map(|path| {
        File::create(path).map(BufWriter::new).with_context(|| path.display().to_string())
    });
    let mut record = Record(record.transpose()?);
    let (publisher, events) = Publisher::new(prepared.options, &args.topic)?;
    tokio::select! {
        done = publish(passing, publisher, &mut record) => done,
        failed = watch(events) => Err(failed),
    }
}

async fn publish(
    passing: &mut Passing,
    mut publisher: Publisher<Option<Fault>>,
    record: &mut Record,
) -> anyhow::Result<()> {
    while let Some(all) = passing.next() {
        for Measured { reading, fault, .. } in all {
            let taken = publisher.send(reading, fault).await?;
            record.write(taken)?;
        }
        while publisher.is_busy() {
            record.write(publisher.next().await?)?;
        }
        record.flush()?;
        if passing.is_waiting() {
            tokio::time::sleep(TICK).await;
        }
    }
    publisher.end().await?;
    Ok(())
}

/// The file of what the broker has taken.
struct Record(Option<BufWriter<File>>);

impl Record {
    fn write(&mut self, taken: Option<(Reading, Option<Fault>)>) -> anyhow::Result<()> {
        if let (Some(file), Some((reading, fault))) = (&mut self.0, taken) {
            writeln!(file, "{}", object(&reading, fault)).context("--record")?;
        }
        Ok(())
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        self.0.as_mut().map_or(Ok(()), Write::flush).context("--record")
    }
}

fn at(reading: &Reading) -> String {
    instant(reading.at_ms.unwrap_or_default())
}

fn object(reading: &Reading, fault: Option<Fault>) -> Value {
    let mut object = json!({
        "device": reading.device,
        "quantity": reading.quantity,
        "value": reading.value,
        "at": at(reading),
    });
    if let Some(fault) = fault {
        object["fault"] = match fault {
            Fault::Stuck => "stuck",
            Fault::Silent => "silent",
            Fault::Spike => "spike",
        }
        .into();
    }
    object
}
