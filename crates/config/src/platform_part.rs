//! What the platform's database gets of `[limits] disk`, and photos of that.
//!
//! The store of sessions and messages has its part in `super::store_part`; the remaining tenth is for the administration's
//! log, users, TLS tickets and certificates, which have limits of their own.

use fulmar_platform::DiskLimits;

use super::disk::LEAST;
use super::document::Config;

/// The platform's share in percent, of which its write-ahead log has a quarter.
const PLATFORM: u64 = 40;
/// In a cluster, where the store has the same rows for the other nodes.
const PLATFORM_OF_CLUSTER: u64 = 25;
/// The share of photos in the database, in percent.
const PHOTOS: u64 = 60;

impl Config {
    /// The platform's part. A database in PostgreSQL is not on this disk, and has no limit here.
    pub fn platform_part(&self) -> DiskLimits {
        if !self.platform.database.0.is_empty() {
            return DiskLimits::default();
        }
        let data = self.data_dir();
        // Checked when the configuration was read.
        let budget = self.limits.disk.bytes(&data).unwrap_or(u64::MAX);
        let share = if self.cluster.is_on() { PLATFORM_OF_CLUSTER } else { PLATFORM };
        let part = (self.without_outboxes(budget) / 100 * share).max(LEAST / 4);
        let mut database = part - part / 4;
        if self.limits.disk.is_auto() {
            // What a platform has that is older than this limit does not keep it from storing more.
            let has = std::fs::metadata(data.join(fulmar_platform::DATABASE_FILE));
            database = database.max(has.map_or(0, |file| file.len()).saturating_add(database / 2));
        }
        DiskLimits { database, photos: database / 100 * PHOTOS }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn part(text: &str) -> DiskLimits {
        Config::from_toml(text).unwrap().platform_part()
    }

    #[test]
    fn the_platform_has_two_fifths_and_photos_leave_room_for_readings() {
        let limits = part("[limits]\ndisk = \"1GB\"\n");
        assert_eq!((limits.database, limits.photos), (300_000_000, 180_000_000));
        let least = part("[limits]\ndisk = \"64MB\"\n");
        assert_eq!(least.database, 19_200_000);
        let elsewhere =
            "[limits]\ndisk = \"1GB\"\n[platform]\ndatabase = \"postgres://fulmar@db/fulmar\"\n";
        assert_eq!(part(elsewhere), DiskLimits::default());
    }

    #[test]
    fn a_database_that_is_larger_than_its_part_may_grow_unless_the_operator_has_set_the_budget() {
        let folder = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(folder.path().join("platform.db")).unwrap();
        // Sparse.
        file.set_len(1 << 40).unwrap();
        let data = format!("[server]\ndata_dir = {:?}\n", folder.path());
        assert!(part(&data).database > 1 << 40);
        assert_eq!(part(&format!("{data}[limits]\ndisk = \"1GB\"\n")).database, 300_000_000);
    }
}
