//! `fulmar import`: turns the configuration of another broker into Fulmar's.
//!
//! Nothing of the other broker is changed. `mosquitto` reads and translates; here are only the command line and the
//! files that are written, the store of users among them.

pub mod mosquitto;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Subcommand;
use fulmar_certs::files;
use fulmar_command::exit::Usage;
use fulmar_identity::{FILE, Refused, Store, StoreError};
use serde_json::{Value, json};

use self::mosquitto::{Disk, Files as _, Translation};

const EXAMPLES: &str = "\
Examples:
  fulmar import mosquitto /etc/mosquitto/mosquitto.conf          into the folder from-mosquitto
  fulmar import mosquitto mosquitto.conf --out /etc/fulmar       into another folder
  fulmar serve --config from-mosquitto/fulmar.toml               with mosquitto stopped: the ports are the same
  fulmar import dynamic-security dynamic-security.json --data /var/lib/fulmar
                                                                 users that `mosquitto_ctrl dynsec` changes

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
    /// Add the clients, groups and roles of mosquitto's dynamic security plugin to the broker's store of users
    DynamicSecurity(DynamicSecurityArgs),
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

#[derive(clap::Args, Debug)]
struct DynamicSecurityArgs {
    /// The plugin's file, which plugin_opt_config_file names; run as a user who may read it
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Data folder of the server, which may be running; the store in it is created if missing
    #[arg(long, value_name = "DIR", env = "FULMAR_DATA")]
    data: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// The configuration cannot be read or is malformed, or a file cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.from {
        From::Mosquitto(args) => translate(args),
        From::DynamicSecurity(args) => fill_store(args),
    }
}

fn translate(args: &MosquittoArgs) -> anyhow::Result<()> {
    let folder = std::path::absolute(&args.out).context("--out")?;
    let translation = mosquitto::translate(&Disk, &args.config, &folder);
    let translation = translation.map_err(|error| Usage(error.to_string()))?;
    write(&translation, &folder, args.force)?;
    print!("{}", translation.report);
    println!("{}", next_steps(&folder));
    Ok(())
}

/// All of the file, or nothing if the store refuses a part.
fn fill_store(args: &DynamicSecurityArgs) -> anyhow::Result<()> {
    let text = Disk.read(&args.file).with_context(|| args.file.display().to_string())?;
    let dynsec = mosquitto::dynsec::parse(&args.file, &text);
    let dynsec = dynsec.map_err(|error| Usage(error.to_string()))?;
    let filling = mosquitto::filling(&dynsec);
    files::make_private_dir(&args.data)?;
    let store = args.data.join(FILE);
    let detail = json!({
        "file": args.file, "clients": dynsec.clients.len(), "groups": dynsec.groups.len(), "roles": dynsec.roles.len(),
    });
    let add = || Ok(Store::open(&store)?.apply(filling.commands)?);
    if let Err(error) = logged(&args.data, &detail, add) {
        let Some(StoreError::Refused(refused)) = error.downcast_ref() else { return Err(error) };
        let exists = matches!(
            refused,
            Refused::RoleExists
                | Refused::GroupExists
                | Refused::ClientExists
                | Refused::NameOfAccount
        );
        let advice = match exists {
            true => ": import before the first start, or delete those of the same names first",
            false => "",
        };
        let text = format!("{refused}; nothing was added to {}{advice}", store.display());
        return Err(Usage(text).into());
    }
    for name in &filling.without_password {
        println!(
            "{name} has no password that can be verified; set one: `fulmar user passwd {name}`"
        );
    }
    println!(
        "Added to {3}: clients: {0}, groups: {1}, roles: {2}. A running server sees them within half a second.",
        dynsec.clients.len(),
        dynsec.groups.len(),
        dynsec.roles.len(),
        store.display()
    );
    Ok(())
}

/// Makes a change that the server's log of changes has.
fn logged<T>(
    data: &Path,
    detail: &Value,
    make: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    #[cfg(feature = "audit")]
    return fulmar_admin::logged_locally(data, "import", "dynamic-security", detail, make);
    #[cfg(not(feature = "audit"))]
    {
        let _ = (data, detail);
        make()
    }
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
