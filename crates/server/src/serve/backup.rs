//! Consistent copies of what a data folder has, and of the configuration, while the server runs.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use fulmar_certs::files;
use fulmar_store::SqliteStorage;
use rusqlite::Connection;

use fulmar_config::Config;

/// The broker's own database, whose lock nobody else gets.
const BROKER: &str = "broker.db";
/// Where the configuration is in a backup, and in a restored data folder.
const CONFIGURATION: &str = "configuration";
/// Names that are not copied: other files of databases, sockets and locks, what belongs to connections of this process,
/// and what a backup itself writes.
const SKIPPED: [&str; 5] = ["-wal", "-shm", "-journal", ".lock", ".sock"];

/// Copies everything into an empty folder, and returns what it left out, in words.
pub(super) fn copy(
    config: &Config,
    data: &Path,
    store: Option<&SqliteStorage>,
    to: &Path,
) -> anyhow::Result<Vec<String>> {
    let mut left_out = Vec::new();
    if let Some(store) = store {
        store.copy_to(to).context(BROKER)?;
    }
    folder(data, to, true, &mut left_out)?;
    configuration(config, to)?;
    Ok(left_out)
}

/// Whether the disk of the data folder has as much room as the files that are copied have bytes.
///
/// # Errors
/// It has less.
pub(super) fn check_room(data: &Path) -> Result<(), String> {
    // A disk that cannot be asked is no reason to make no backup.
    let Ok(disk) = rustix::fs::statvfs(data) else { return Ok(()) };
    let (needed, free) = (bytes_of(data), disk.f_bavail.saturating_mul(disk.f_frsize));
    if needed <= free {
        return Ok(());
    }
    let (data, mega) = (data.display(), |bytes: u64| bytes / 1_000_000);
    let (needed, free) = (mega(needed), mega(free));
    Err(format!("the copies take up to {needed} MB, and {free} MB are free in {data}"))
}

/// Bytes of what is copied from a folder.
fn bytes_of(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let copied = files.filter(|file| {
        let name = file.file_name();
        let name = name.to_string_lossy();
        !is_skipped(&name) && !name.starts_with("outbox")
    });
    let bytes = copied.filter_map(|file| {
        let about = file.metadata().ok()?;
        Some(if about.is_dir() { bytes_of(&file.path()) } else { about.len() })
    });
    bytes.sum()
}

fn is_skipped(name: &str) -> bool {
    let skipped = SKIPPED.iter().any(|end| name.ends_with(end));
    name.starts_with('.') || skipped || name.starts_with("tickets.")
}

fn folder(from: &Path, to: &Path, is_data: bool, left_out: &mut Vec<String>) -> anyhow::Result<()> {
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let kind = entry.file_type()?;
        if is_skipped(&name) || name == BROKER {
            continue;
        }
        let copy = to.join(&name);
        if kind.is_dir() {
            DirBuilder::new().mode(0o700).create(&copy)?;
            folder(&path, &copy, false, left_out)?;
        } else if is_data && name.ends_with(".db") {
            // Opening and closing it in another way would release this process's locks on it.
            if name.starts_with("outbox") {
                left_out.push(format!(
                    "{name}: messages that the upstream broker has not acknowledged yet, which would be sent twice"
                ));
                continue;
            }
            database(&path, &copy).with_context(|| path.display().to_string())?;
        } else if kind.is_file() {
            fs::copy(&path, &copy).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// A copy of a database that others may be writing.
fn database(path: &Path, copy: &Path) -> anyhow::Result<()> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    let copy = copy.to_str().context("the path is not UTF-8")?;
    connection.execute("VACUUM INTO ?1", [copy])?;
    Ok(())
}

/// The configuration as it is in effect, and the files that it names.
fn configuration(config: &Config, to: &Path) -> anyhow::Result<()> {
    let folder = to.join(CONFIGURATION);
    DirBuilder::new().mode(0o700).create(&folder)?;
    let text = toml::to_string_pretty(config).context("the configuration")?;
    files::write(&folder.join("fulmar.toml"), text.as_bytes(), true)?;
    for (key, path) in config.files() {
        // Two files may have the same name.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let key: String = key.chars().filter(char::is_ascii_alphanumeric).collect();
        let copy: PathBuf = folder.join(format!("{key}-{name}"));
        fs::copy(path, &copy).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_the_disk_has_no_room_for_is_not_copied() {
        let data = tempfile::tempdir().unwrap();
        let large = |name: &str| {
            let file = fs::File::create(data.path().join(name)).unwrap();
            // A file with a hole takes nothing.
            file.set_len(8 << 40).unwrap();
        };
        large("broker.db-wal");
        large("outbox.db");
        fs::create_dir(data.path().join(".backup-x")).unwrap();
        large(".backup-x/broker.db");
        assert_eq!(check_room(data.path()), Ok(()), "neither is copied");
        large("platform.db");
        let lack = check_room(data.path()).unwrap_err();
        assert!(lack.contains("8796093 MB") && lack.contains("are free in"), "{lack}");
    }
}
