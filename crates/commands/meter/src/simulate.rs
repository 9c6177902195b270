//! `fulmar meter simulate`: a van's drive past a town of meters, as lines of rtl_wmbus.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use fulmar_certs::files;
use fulmar_wmbus::simulate::{Drive, Reception};
use serde_json::json;

use super::is_broken_pipe;

const EXAMPLES: &str = "\
Examples:
  fulmar meter simulate --write-keys keys.toml
  fulmar meter simulate --truth truth.jsonl | fulmar meter decode --keys keys.toml
      3000 meters, received in the order in which a van passes them, decoded with their keys
  fulmar meter simulate --meters 100 --seed 7 --pace 1
      a small town in real time

The same --meters and --seed give the same drive and the same keys. About two in three meters
encrypt by security mode 5, others by mode 7 or in the extended link layer, and a few not at all.
Telegrams that noise damaged are marked by the receiver (second field 0). The level is dBm + 150.";

/// Simulate a drive past a town of meters
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number of meters in the town
    #[arg(long, value_name = "NUMBER", default_value_t = 3000,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    meters: u32,
    /// Seed of all random decisions
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Write the meters' keys to a file for `decode`, and do nothing else
    #[arg(long, value_name = "FILE")]
    write_keys: Option<PathBuf>,
    /// Write the true values of each telegram to a file: one JSON object per line
    #[arg(long, value_name = "FILE")]
    truth: Option<PathBuf>,
    /// Speed of time: 1 is real time, 0 as fast as possible
    #[arg(long, value_name = "FACTOR", default_value_t = 0.0, value_parser = pace)]
    pace: f64,
}

fn pace(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if factor.is_finite() && factor >= 0.0 { Ok(factor) } else { Err("0 or more".to_owned()) }
}

/// Drives.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let drive = Drive::new(args.meters, args.seed);
    if let Some(path) = &args.write_keys {
        let mut text = "[keys]\n".to_owned();
        for (meter, key) in drive.keys() {
            text += &format!("{} = \"{key}\"\n", meter.id);
        }
        return Ok(files::write(path, text.as_bytes(), true)?);
    }
    let truth = args.truth.as_ref().map(|path| {
        File::create(path).map(BufWriter::new).with_context(|| path.display().to_string())
    });
    match replay(drive, args.pace, truth.transpose()?) {
        Err(error) if is_broken_pipe(&error) => Ok(()),
        outcome => outcome,
    }
}

fn replay(drive: Drive, pace: f64, mut truth: Option<BufWriter<File>>) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut out = BufWriter::new(io::stdout().lock());
    for reception in drive {
        if pace > 0.0 {
            let due = Duration::from_secs_f64(reception.elapsed_ms as f64 / 1000.0 / pace);
            out.flush()?;
            std::thread::sleep(due.saturating_sub(started.elapsed()));
        }
        writeln!(out, "{}", reception.rtl_wmbus_line())?;
        if let Some(truth) = &mut truth {
            writeln!(truth, "{}", true_of(&reception)).context("truth")?;
        }
    }
    out.flush()?;
    truth.map_or(Ok(()), |mut truth| truth.flush()).context("truth")
}

fn true_of(reception: &Reception) -> serde_json::Value {
    json!({
        "elapsed_ms": reception.elapsed_ms,
        "meter": reception.meter.id.to_string(),
        "manufacturer": reception.meter.manufacturer.to_string(),
        "volume_m3": f64::from(reception.litres) / 1000.0,
        "rssi_dbm": (reception.rssi_dbm * 10.0).round() / 10.0,
        "distance_m": reception.distance_m.round(),
        "latitude": reception.place.latitude,
        "longitude": reception.place.longitude,
        "damaged": reception.damaged,
    })
}
