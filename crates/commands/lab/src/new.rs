//! `fulmar lab new`: writes an experiment to start from.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;

use crate::exit::Usage;

/// One of the repository's experiments, so that it certainly runs.
const EXAMPLE: &str = include_str!("../../../../experiments/mosquitto-or-fulmar.toml");

const EXAMPLES: &str = "\
Examples:
  fulmar lab new mine.toml                 mosquitto over TCP and TLS, Fulmar over TLS and QUIC, on 2G
  fulmar lab run mine.toml                 run it; its report is results/mine/report.html";

/// Write an example experiment to change and run
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// File to write; an existing file is not overwritten
    #[arg(value_name = "FILE.toml")]
    file: PathBuf,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let path = &args.file;
    if path.extension().is_none_or(|extension| extension != "toml") {
        let name = path.with_added_extension("toml");
        return Err(
            Usage(format!("an experiment's name ends with .toml: {}", name.display())).into()
        );
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    file.write_all(EXAMPLE.as_bytes()).with_context(|| path.display().to_string())?;
    println!("{}", path.display());
    eprintln!("Run it: fulmar lab run {}", path.display());
    Ok(())
}
