//! Which records a log still needs.

/// Snapshots that are kept. The log is there from the oldest of them on, so that the newest may be damaged.
pub const KEPT_SNAPSHOTS: usize = 2;

/// Up to which record, inclusive, the log may be purged: the position of the last snapshot but one. `None` while there
/// are fewer. `snapshots` are the positions of those that were stored completely, in any order.
pub fn purge_up_to(snapshots: impl IntoIterator<Item = u64>) -> Option<u64> {
    let mut positions: Vec<u64> = snapshots.into_iter().collect();
    positions.sort_unstable();
    positions.dedup();
    let oldest = positions.len().checked_sub(KEPT_SNAPSHOTS)?;
    positions.get(oldest).copied()
}

#[cfg(test)]
mod tests {
    use super::purge_up_to;

    #[test]
    fn the_log_is_kept_behind_the_last_snapshot_but_one() {
        assert_eq!(purge_up_to([]), None);
        assert_eq!(purge_up_to([7]), None);
        assert_eq!(purge_up_to([9, 7]), Some(7));
        assert_eq!(purge_up_to([3, 12, 9, 7]), Some(9));
        assert_eq!(purge_up_to([7, 7]), None, "one snapshot, stored twice");
    }
}
