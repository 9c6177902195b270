//! Settings of the store. The defaults are the best values in the benchmark `benches/commit.rs`.

use std::time::Duration;

use fulmar_mirror::Clocks;

fulmar_text::with_defaults! {
    /// Intervals and limits of the store's commits, and limits of its size.
    #[derive(Clone, Debug)]
    pub struct Options {
        /// Shortest time from the start of one commit to the start of the next. Under load it makes
        /// groups larger and fsyncs fewer; a lone batch on an idle store never waits. Zero commits
        /// again as soon as the last commit is done; where an fsync is fast (0.15 ms here) that gave
        /// both the most operations per second and the shortest waits.
        pub commit_interval: Duration = Duration::ZERO,
        /// Operations after which a transaction takes no further batch; at least 1. Bounds how long a
        /// commit takes. A batch is never split, so a single larger one is still one transaction.
        pub commit_max_ops: usize = 16_384,
        /// Longest time for which removals of delivered messages wait for another batch that is written with them. A
        /// crash meanwhile makes the broker send those messages again.
        pub removal_delay: Duration = Duration::from_secs(1),
        /// Largest size of the database file in bytes, `None` for as large as the disk. At the limit
        /// the store behaves as on a full disk: it fails, and recovers when room has been made.
        pub max_bytes: Option<u64> = None,
        /// Memory for SQLite's page cache in bytes.
        pub cache_bytes: u32 = 16 << 20,
        /// Pages of 4 KiB in the write-ahead log at which it is copied back into the database although
        /// batches wait. The default is 64 MiB: hot pages are then written once for many commits, and the
        /// stall is rare (longest wait measured at 200,000 operations per second: 76 ms).
        pub log_pages: u64 = 16_384,
        /// Pause after the first failed attempt to write a group. It doubles with each further one.
        pub retry_first: Duration = Duration::from_millis(50),
        /// Longest pause between two attempts.
        pub retry_last: Duration = Duration::from_secs(2),
        /// The broker's time and the machine's clocks, by which moments of before are moved if the system's clock was set.
        /// `None` leaves them, as in a cluster, whose nodes have clocks that are right.
        pub clocks: Option<Clocks> = None,
    }
}
