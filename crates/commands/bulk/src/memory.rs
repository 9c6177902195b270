//! Memory for parity on a machine that limits this program by `ulimit` or a cgroup.
//!
//! A program that exceeds such a limit is killed. Data that does not fit the resulting limit of parity is requested
//! again.

use std::fs;
use std::path::Path;

/// Divisor: this part of the limit is used for parity.
const LIMIT_DIVISOR: u64 = 4;

/// Bytes of parity a receiver may hold, at most `most`.
pub(super) fn for_parity(most: usize) -> usize {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let own = of_process(&read(Path::new("/proc/self/limits")));
    let groups = read(Path::new("/proc/self/cgroup"));
    let group = groups
        .lines()
        .filter_map(group_file)
        .filter_map(|path| read(Path::new(&path)).trim().parse().ok());
    let least = own.into_iter().chain(group).min().map(|limit: u64| limit / LIMIT_DIVISOR);
    least.and_then(|least| usize::try_from(least).ok()).map_or(most, |least| least.min(most))
}

/// The least limit of memory in `/proc/self/limits`.
fn of_process(limits: &str) -> Option<u64> {
    let limit = |line: &str| {
        let rest = ["Max data size", "Max address space"]
            .iter()
            .find_map(|name| line.strip_prefix(name))?;
        // The soft limit comes first; "unlimited" is not a number.
        rest.split_whitespace().next()?.parse().ok()
    };
    limits.lines().filter_map(limit).min()
}

/// The file with the memory limit of a line of `/proc/self/cgroup`, for both versions of cgroups.
fn group_file(line: &str) -> Option<String> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, group) = (parts.next()?, parts.next()?.trim_end_matches('/'));
    match controllers {
        "" => Some(format!("/sys/fs/cgroup{group}/memory.max")),
        "memory" => Some(format!("/sys/fs/cgroup/memory{group}/memory.limit_in_bytes")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_memory_counts() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\n\
            Max data size             67108864             unlimited            bytes\n\
            Max stack size            8388608              unlimited            bytes\n\
            Max address space         unlimited            unlimited            bytes\n";
        assert_eq!(of_process(limits), Some(64 << 20));
        assert_eq!(of_process(""), None);
        assert!(for_parity(1000) <= 1000);
    }

    #[test]
    fn a_groups_limit_is_found_by_its_name() {
        let file = |line| group_file(line).unwrap_or_default();
        assert_eq!(file("0::/a/b"), "/sys/fs/cgroup/a/b/memory.max");
        assert_eq!(file("4:memory:/a"), "/sys/fs/cgroup/memory/a/memory.limit_in_bytes");
        assert_eq!(file("5:devices:/a") + &file("rubbish"), "");
    }
}
