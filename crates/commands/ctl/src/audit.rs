//! `fulmar audit`: the log of changes, with the broker running or not.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use fulmar_admin::{AuditEntry, AuditQuery, DATABASE_FILE, read_audit};

use fulmar_command::terminal;

use crate::duration;
use crate::table::{self, Column, plain};

const EXAMPLES: &str = "\
Examples:
  fulmar audit --data /var/lib/fulmar            the newest changes
  fulmar audit --since 7d --json                 those of a week, one JSON object per line";

/// Print who changed what
///
/// The broker may run or not. Failed logins are there, too, as far as the log has room.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct AuditArgs {
    /// Data folder of the broker [default: the one of `fulmar serve` without options]
    #[arg(long, value_name = "DIR", env = "FULMAR_DATA")]
    data: Option<PathBuf>,
    /// Only the last part: a number with s, m, h or d
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    since: Option<u64>,
    /// Maximum number of entries; the newest are printed
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    most: usize,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

const COLUMNS: &[Column] = &[
    ("TIME", |entry| table::time(entry["at_ms"].as_u64().unwrap_or(0))),
    ("WHO", |entry| plain(&entry["who"])),
    ("FROM", |entry| plain(&entry["from"])),
    ("ACTION", |entry| plain(&entry["action"])),
    ("OBJECT", |entry| plain(&entry["object"])),
    ("RESULT", |entry| match plain(&entry["result"]) {
        unknown if unknown.is_empty() => "(the server ended)".to_owned(),
        result => result,
    }),
    ("DETAIL", |entry| plain(&entry["detail"])),
];

/// Runs the command.
///
/// # Errors
/// There is no log in the folder, or it cannot be read.
pub fn audit(args: &AuditArgs) -> anyhow::Result<()> {
    let data = args.data.clone().unwrap_or_else(fulmar_certs::default_data_dir);
    let file = data.join(DATABASE_FILE);
    let there = file.try_exists().with_context(|| file.display().to_string())?;
    ensure!(there, "{} does not exist: name the broker's data folder with --data", file.display());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let since_s = args.since.map_or(0, |since| now.saturating_sub(since));
    let since_ms = i64::try_from(since_s.saturating_mul(1000)).unwrap_or(i64::MAX);
    let query = AuditQuery { since_ms, before: i64::MAX, most: args.most };
    let mut entries: Vec<AuditEntry> = read_audit(&data, query)?;
    // As in any log, the newest is last.
    entries.reverse();
    if args.json {
        for entry in &entries {
            println!("{}", terminal::json(serde_json::to_string(entry)?));
        }
        return Ok(());
    }
    table::rows(&serde_json::to_value(&entries)?, COLUMNS);
    Ok(())
}
