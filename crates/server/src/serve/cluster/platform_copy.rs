//! The platform's database of this node. While the node stands by, it follows the rows that the nodes share, so that a
//! take-over need not make it anew; when the node serves, it is the platform's.

use std::path::Path;

use anyhow::Context as _;
use fulmar_mirror::Copy;
use fulmar_platform::{Admin, DATABASE_FILE, Database as Kind, KEY_FILE};
use fulmar_store::Follower;

use crate::exit::Usage;
use fulmar_config::Config;
use fulmar_part::shared_rows::Database;

const ROWS: u8 = Database::Platform as u8;

/// The copy, if there is a platform with SQLite.
pub(super) struct PlatformCopy(Option<Copy>);

impl PlatformCopy {
    /// Opens the one in the data folder, or creates it.
    pub(super) fn open(config: &Config, data: &Path) -> anyhow::Result<PlatformCopy> {
        let wanted = is_in_the_folder(config)?;
        Ok(PlatformCopy(wanted.then(|| fulmar_platform::copy(data)).transpose()?))
    }

    /// Brings it to where `follower` is.
    pub(super) fn follow(&mut self, follower: &mut Follower) -> anyhow::Result<()> {
        let Some(copy) = &mut self.0 else { return Ok(()) };
        let after = copy.position()?;
        let mut changes = copy.change()?;
        let mut some = after.is_none();
        let number = match after {
            Some(after) => follower.changes(ROWS, after, &mut |key, value| {
                some = true;
                changes.set(key, value)
            })?,
            None => {
                changes.clear()?;
                follower.each_row(ROWS, &mut |key, value| changes.set(key, Some(value)))?
            }
        };
        if some {
            changes.commit(number).context(DATABASE_FILE)?;
            follower.forget_changes(ROWS, number)?;
        }
        Ok(())
    }
}

/// Whether there is a platform whose database is in the data folder.
fn is_in_the_folder(config: &Config) -> anyhow::Result<bool> {
    Ok(config.has_platform() && config.platform.database()? == Kind::File)
}

/// Whether somebody may be able to log in at the platform. With PostgreSQL that is not known here.
pub(super) fn may_have_users(config: &Config, follower: &mut Follower) -> anyhow::Result<bool> {
    if !config.has_platform() {
        return Ok(false);
    }
    let prefix = fulmar_mirror::key_prefix("account")?;
    // Of this version, and of an earlier one.
    let stored = |follower: &mut Follower| follower.has_row(Database::Identities as u8, &prefix);
    Ok(!is_in_the_folder(config)? || stored(follower)? || follower.has_row(ROWS, &prefix)?)
}

/// Makes what the data folder's platform has the cluster's.
///
/// # Errors
/// A file cannot be read; the folder has a platform that the configuration does not have.
pub(super) fn bring(config: &Config, data: &Path, follower: &mut Follower) -> anyhow::Result<()> {
    let database = data.join(DATABASE_FILE);
    if !config.has_platform() {
        if database.exists() && Admin::has_users(data)? {
            return Err(Usage(format!(
                "{} has a platform with users, and the configuration has none: in a cluster it needs [platform] enabled = \
                 true and an https listener at each node. To leave it behind, move the file away",
                data.display()
            ))
            .into());
        }
        return Ok(());
    }
    if is_in_the_folder(config)? && database.exists() {
        let copy = fulmar_platform::copy(data)?;
        follower.fill_rows(ROWS, |put| copy.for_each_row(put))?;
    }
    let mut files = Vec::new();
    let key = data.join(KEY_FILE);
    if key.exists() {
        let secret = std::fs::read(&key).with_context(|| key.display().to_string())?;
        files.push((KEY_FILE.as_bytes().to_vec(), secret));
    }
    Ok(follower.replace_rows(Database::Files as u8, &files)?)
}

/// Notes that the data folder's platform is what the cluster begins with.
pub(super) fn begin(config: &Config, data: &Path, number: u64) -> anyhow::Result<()> {
    if is_in_the_folder(config)? && data.join(DATABASE_FILE).exists() {
        fulmar_platform::copy(data)?.change()?.commit(number)?;
    }
    Ok(())
}

/// Notes that what the copy has does not belong to the rows any more, which another node has stored.
pub(super) fn start_over(data: &Path) -> anyhow::Result<()> {
    if data.join(DATABASE_FILE).exists() {
        fulmar_platform::copy(data)?.start_over()?;
    }
    Ok(())
}

/// Makes the platform that of a broker alone.
pub(super) fn take_back(
    config: &Config,
    data: &Path,
    follower: &mut Follower,
) -> anyhow::Result<()> {
    let mut copy = PlatformCopy::open(config, data)?;
    copy.follow(follower)?;
    if let Some(copy) = copy.0 {
        copy.leave()?;
    }
    let files = follower.rows(Database::Files as u8)?;
    if let Some((_, secret)) = files.iter().find(|(name, _)| name == KEY_FILE.as_bytes()) {
        fulmar_certs::files::write(&data.join(KEY_FILE), secret, true)?;
    }
    Ok(())
}
