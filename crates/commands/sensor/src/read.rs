//! `fulmar sensor read`.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use fulmar_sensors::iio::DIRECTORY;
use fulmar_sensors::line;
use tokio::time::{MissedTickBehavior, interval};

use super::kernel::Kernel;
use super::lines;
use super::publish::{Publisher, watch};
use fulmar_command_pubsub::{Connection, block_on};

const EXAMPLES: &str = "\
Examples:
  my-probe | fulmar sensor read mqtt://localhost
  echo 'attic radon 85' | fulmar sensor read mqtt://localhost
  fulmar sensor read mqtt://localhost --iio --name attic --every 60
      a DHT11 becomes the device attic-dht11-0, with temperature and humidity
  fulmar sensor read quic://broker -u home -P - -t fulmar/rural/sensor < readings

A line is one of
  DEVICE QUANTITY VALUE [TIME]        attic temperature 21.5 2026-11-21T17:30:00Z
  one JSON object                     {\"device\":\"attic\",\"quantity\":\"radon\",\"value\":85,\"at\":\"…\"}
  one with several quantities         {\"device\":\"attic\",\"temperature\":21.5,\"co2\":640}
Empty lines and lines that begin with # are skipped. A reading without a time gets the time of its
arrival. Any other line is reported on standard error and skipped; the exit code is then 1.

Each reading is published at QoS 1 to TOPIC/DEVICE/QUANTITY: {\"value\":21.5,\"at\":\"…\",\"unit\":\"°C\"}.
While the broker is unreachable, up to 256 readings wait; then standard input is not read further.";

/// Publish readings from standard input or from this machine's own sensors
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Topic to which device and quantity are appended
    #[arg(short, long, default_value = "sensor")]
    topic: String,
    /// Read the sensors that Linux drives (Industrial I/O) instead of standard input; another folder
    /// than /sys/bus/iio/devices with --iio=DIR
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = DIRECTORY)]
    #[arg(require_equals = true)]
    iio: Option<PathBuf>,
    /// Seconds between two readings of a sensor
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "iio")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=86_400))]
    every: u32,
    /// Prefix of the sensors' names, such as the room
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true,
        requires = "iio"
    )]
    name: String,
    /// Number of times to read the sensors, then exit; 0: no end
    #[arg(long, value_name = "COUNT", default_value_t = 0, requires = "iio")]
    count: u64,
}

/// Publishes.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    block_on(publish(args))
}

async fn publish(args: Args) -> anyhow::Result<()> {
    let kernel = args.iio.as_deref().map(|path| Kernel::find(path, &args.name)).transpose()?;
    let prepared = args.connection.prepare(kernel.is_none())?;
    let (publisher, events) = Publisher::new(prepared.options, &args.topic)?;
    let work = async {
        match kernel {
            Some(kernel) => of_kernel(publisher, &kernel, &args).await,
            None => of_lines(publisher).await,
        }
    };
    tokio::select! {
        done = work => done,
        failed = watch(events) => Err(failed),
    }
}

async fn of_kernel(
    mut publisher: Publisher<()>,
    kernel: &Kernel,
    args: &Args,
) -> anyhow::Result<()> {
    let mut due = interval(Duration::from_secs(args.every.into()));
    // After a suspended night one reading is enough.
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut times = 0;
    while args.count == 0 || times < args.count {
        tokio::select! {
            _ = due.tick() => {
                times += 1;
                for reading in kernel.read(now_ms()) {
                    publisher.send(reading, ()).await?;
                }
            }
            taken = publisher.next(), if publisher.is_busy() => { taken?; }
        }
    }
    publisher.end().await?;
    Ok(())
}

async fn of_lines(mut publisher: Publisher<()>) -> anyhow::Result<()> {
    let mut input = tokio::io::BufReader::new(tokio::io::stdin());
    let (mut text, mut number, mut bad) = (Vec::new(), 0u64, 0u64);
    while lines::next(&mut input, &mut text).await.context("standard input")? {
        number += 1;
        let (readings, wrong) =
            line::parse(&text).unwrap_or_else(|error| (Vec::new(), vec![error]));
        bad += u64::from(!wrong.is_empty());
        for error in wrong {
            eprintln!("fulmar: line {number}: {error}");
        }
        for mut reading in readings {
            reading.at_ms.get_or_insert_with(now_ms);
            publisher.send(reading, ()).await?;
        }
    }
    publisher.end().await?;
    if bad > 0 {
        bail!("{bad} of {number} lines were not readings, or not wholly");
    }
    Ok(())
}

/// Since 1970, ms.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
