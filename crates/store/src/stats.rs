//! Counters of the writer, for metrics.

use std::time::Duration;

/// Upper bounds, in microseconds, of the buckets of [`Stats::commit_histogram`]; the last bucket counts longer ones.
pub const COMMIT_BUCKETS_US: [u64; 11] =
    [250, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 500_000, 2_000_000];

/// Counters since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Transactions committed.
    pub commits: u64,
    /// Batches made durable.
    pub batches: u64,
    /// Operations made durable, cancelled ones included.
    pub ops: u64,
    /// Operations that cost no disk work because another one in the same group undid or replaced
    /// them.
    pub cancelled_ops: u64,
    /// Transactions that failed and were rolled back.
    pub failed_commits: u64,
    /// Times the write-ahead log was copied back into the database.
    pub checkpoints: u64,
    /// Size of the write-ahead log after the last commit, in pages.
    pub wal_pages: u64,
    /// Duration of the last commit in microseconds.
    pub last_commit_us: u64,
    /// Duration of all commits together in microseconds.
    pub commit_us_sum: u64,
    /// Commits by duration; not cumulative, see [`COMMIT_BUCKETS_US`].
    pub commit_histogram: [u64; COMMIT_BUCKETS_US.len() + 1],
}

impl Stats {
    /// Counts one commit that took `took`.
    pub(crate) fn record_commit(&mut self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.commits += 1;
        self.last_commit_us = us;
        self.commit_us_sum = self.commit_us_sum.saturating_add(us);
        let bucket = COMMIT_BUCKETS_US.partition_point(|&bound| bound < us);
        self.commit_histogram[bucket] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_durations_fall_into_their_bucket() {
        let mut stats = Stats::default();
        stats.record_commit(Duration::from_micros(250));
        stats.record_commit(Duration::from_micros(251));
        stats.record_commit(Duration::from_secs(60));
        assert_eq!(stats.commit_histogram[0], 1);
        assert_eq!(stats.commit_histogram[1], 1);
        assert_eq!(stats.commit_histogram[COMMIT_BUCKETS_US.len()], 1);
        assert_eq!(stats.commits, 3);
        assert_eq!(stats.last_commit_us, 60_000_000);
    }
}
