//! `fulmar lab report`.

use std::path::{Path, PathBuf};

use anyhow::Context;

const EXAMPLES: &str = "\
Examples:
  fulmar lab report results/mqtt-quic    write report.html, report.csv and report.xlsx there";

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
    if written.missed > 0 {
        let figures = if written.missed == 1 { "figure misses its" } else { "figures miss their" };
        eprintln!("{} {figures} goal; the report marks what was missed", written.missed);
    }
    Ok(())
}
