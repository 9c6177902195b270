//! `fulmar lab report`.

use std::path::{Path, PathBuf};

use anyhow::Context;

const EXAMPLES: &str = "\
Examples:
  fulmar lab report results/mqtt-quic    write report.html, .csv, .xlsx and figures/*.svg there";

/// Missed goals that are printed; the report has all.
const MAX_MISSED: usize = 20;

/// Write the report on a folder of results
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Folder of results
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    write(&args.folder)
}

/// Writes a report and prints its path.
pub(super) fn write(folder: &Path) -> anyhow::Result<()> {
    let written = fulmar_lab::report::write(folder).context("no report")?;
    println!("{}", written.html.display());
    let count = written.missed.len();
    if count > 0 {
        let figures = if count == 1 { "figure misses its" } else { "figures miss their" };
        eprintln!("{count} {figures} goal; the report marks what was missed");
    }
    for missed in written.missed.iter().take(MAX_MISSED) {
        eprintln!("  {missed}");
    }
    if count > MAX_MISSED {
        eprintln!("  and {} more", count - MAX_MISSED);
    }
    Ok(())
}
