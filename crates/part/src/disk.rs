//! What the data folder takes, by account of `[limits] disk`.

use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fulmar_config::Config;

/// An account inside another one's file.
type Inner = Arc<dyn Fn() -> AccountUse + Send + Sync>;

/// The accounts that are files, by how their names begin; what is left is the last one's.
const FILES: [(&str, &str); 4] =
    [("store", "broker.db"), ("outboxes", "outbox"), ("platform", "platform.db"), ("other", "")];

/// The data folder and the limits of its files.
#[derive(Clone)]
pub struct DiskUse {
    data: PathBuf,
    /// In the order of [`FILES`].
    limits: [Option<u64>; FILES.len()],
    inner: Option<Inner>,
}

/// Use of the disk by one account, and its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountUse {
    /// Name, as in metrics.
    pub account: &'static str,
    /// Bytes on the disk.
    pub used: u64,
    /// Bytes that it may use.
    pub limit: Option<u64>,
}

impl DiskUse {
    /// Use of `data`, with an account inside a file.
    pub fn new(config: &Config, data: &Path, inner: Option<Inner>) -> DiskUse {
        let limits = [config.store_file_limit(), config.outboxes_limit(), part(config), None];
        DiskUse { data: data.to_owned(), limits, inner }
    }

    /// The accounts, as the folder is now. Photos are in the platform's database, and count there, too.
    pub fn accounts(&self) -> impl Iterator<Item = AccountUse> {
        let mut used = [0; FILES.len()];
        // Files come and go meanwhile.
        for file in std::fs::read_dir(&self.data).into_iter().flatten().flatten() {
            let (name, bytes) = (file.file_name(), bytes_of(&file));
            let name = name.to_string_lossy();
            if let Some(account) = FILES.iter().position(|(_, begin)| name.starts_with(begin)) {
                used[account] += bytes;
            }
        }
        let all = FILES.iter().zip(used).zip(self.limits);
        let all = all.map(|((file, used), limit)| AccountUse { account: file.0, used, limit });
        all.chain(self.inner.as_ref().map(|inner| inner()))
    }
}

/// A file's, or those of all files in a folder, such as the copies of a backup.
fn bytes_of(file: &DirEntry) -> u64 {
    // Of a link, not of what it refers to.
    let Ok(about) = file.metadata() else { return 0 };
    if !about.is_dir() {
        return about.len();
    }
    let inner = std::fs::read_dir(file.path()).into_iter().flatten().flatten();
    about.len() + inner.map(|file| bytes_of(&file)).sum::<u64>()
}

#[cfg(feature = "platform")]
fn part(config: &Config) -> Option<u64> {
    let limit = config.has_platform().then(|| config.platform_part().database)?;
    (limit < u64::MAX).then_some(limit)
}

#[cfg(not(feature = "platform"))]
fn part(_: &Config) -> Option<u64> {
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn files_count_for_their_accounts() {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in [
            ("broker.db", 10),
            ("broker.db-wal", 5),
            ("outbox-north.db", 3),
            ("platform.db", 2),
            ("admin.db", 1),
        ] {
            std::fs::write(folder.path().join(name), vec![0; bytes]).unwrap();
        }
        let config = Config::from_toml("[limits]\ndisk = \"1GB\"\n").unwrap();
        let accounts: Vec<AccountUse> =
            DiskUse::new(&config, folder.path(), None).accounts().collect();
        let copies = folder.path().join(".backup-x");
        std::fs::create_dir_all(copies.join("configuration")).unwrap();
        std::fs::write(copies.join("configuration/fulmar.toml"), vec![0; 100_000]).unwrap();
        std::fs::write(copies.join("broker.db"), vec![0; 50_000]).unwrap();
        let with_copies = DiskUse::new(&config, folder.path(), None).accounts().last().unwrap();
        assert!((150_000..200_000).contains(&with_copies.used), "{with_copies:?}");
        assert_eq!(accounts.iter().map(|account| account.used).collect::<Vec<_>>(), [15, 3, 2, 1]);
        assert!(accounts[0].limit.unwrap() < 1_000_000_000);
        assert_eq!((accounts[1].limit, accounts[3].limit), (None, None));
    }
}
