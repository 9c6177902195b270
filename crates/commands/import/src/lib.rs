//! `fulmar import`: turns the configuration of another broker into Fulmar's.
//!
//! Nothing of the other broker is changed. `mosquitto` reads and translates; here are only the command line and the
//! files that are written.

pub mod mosquitto;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Subcommand;
use fulmar_certs::files;
use fulmar_command::exit::Usage;

use self::mosquitto::{Disk, Translation};

const EXAMPLES: &str = "\
Examples:
  fulmar import mosquitto /etc/mosquitto/mosquitto.conf          into the folder from-mosquitto
  fulmar import mosquitto mosquitto.conf --out /etc/fulmar       into another folder
  fulmar serve --config from-mosquitto/fulmar.toml               with mosquitto stopped: the ports are the same

Lists each line that could not be translated, or that works differently, with its file and line.
Nothing of mosquitto is changed. docs/mosquitto.md has what is translated, and how.";

/// Translate another broker's configuration
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, Subcommand)]
enum From {
    /// Translate mosquitto.conf and the files that it names
    Mosquitto(MosquittoArgs),
}

#[derive(clap::Args, Debug)]
struct MosquittoArgs {
    /// mosquitto.conf; run as a user who may read the password file that it names
    #[arg(value_name = "FILE")]
    config: PathBuf,
    /// Folder for fulmar.toml and the files with passwords, created if missing
    #[arg(long, short, value_name = "DIR", default_value = "from-mosquitto")]
    out: PathBuf,
    /// Replace files that exist in that folder
    #[arg(long)]
    force: bool,
}

/// Runs the command.
///
/// # Errors
/// The configuration cannot be read or is malformed, or a file cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let From::Mosquitto(args) = &args.from;
    let folder = std::path::absolute(&args.out).context("--out")?;
    let translation = mosquitto::translate(&Disk, &args.config, &folder);
    let translation = translation.map_err(|error| Usage(error.to_string()))?;
    write(&translation, &folder, args.force)?;
    print!("{}", translation.report);
    println!("{}", next_steps(&folder));
    Ok(())
}

fn next_steps(folder: &Path) -> String {
    let config = folder.join("fulmar.toml");
    format!(
        "Written to {}. Next: read fulmar.toml, stop mosquitto, and run `fulmar serve --config {}`.",
        folder.display(),
        config.display()
    )
}

/// Writes all files, or none if one is there and must not be replaced.
fn write(translation: &Translation, folder: &Path, force: bool) -> anyhow::Result<()> {
    let all = translation.files.iter().map(|file| folder.join(&file.name));
    if !force && let Some(there) = all.into_iter().find(|path| path.exists()) {
        let text = format!(
            "{} exists; choose another folder with --out, or replace its files with --force",
            there.display()
        );
        return Err(Usage(text).into());
    }
    files::make_private_dir(folder)?;
    for file in &translation.files {
        let (path, contents) = (folder.join(&file.name), file.contents.as_bytes());
        let put = if force { files::write } else { files::write_new };
        put(&path, contents, file.secret)?;
    }
    Ok(())
}
