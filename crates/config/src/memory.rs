//! `[limits] memory`: one budget for the process, divided among everything that clients can make it keep.
//!
//! The parts are limits that apply together with the configured ones: whichever is lower. What is left over is for the
//! program itself: HTTP connections, password hashing, databases, and the allocator's waste.

use std::path::Path;

use fulmar_broker::{Account, MemoryLimits};
use fulmar_text::units;
use serde::{Deserialize, Serialize};

use fulmar_text::Usage;

/// The smallest budget. A server needs some 30 MB before anybody has connected.
const LEAST: u64 = 64_000_000;

/// A listening socket, over TCP or UDP, has one HTTP connection per this much of the budget. One takes at most 40 KB for
/// itself and what `fulmar-http` lets a client without an account leave unread, less than a third of this.
const BYTES_PER_HTTP_CONNECTION: u64 = 256_000;

/// `auto`, or an amount such as `512MB`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Memory(pub String);

impl Default for Memory {
    fn default() -> Self {
        Memory("auto".to_owned())
    }
}

impl Memory {
    /// The budget in bytes.
    ///
    /// # Errors
    /// It is neither `auto` nor an amount of at least 64 MB.
    pub fn bytes(&self) -> Result<u64, Usage> {
        self.bytes_of(available_to("self"))
    }

    /// The same for a process with this much memory.
    ///
    /// # Errors
    /// As [`Memory::bytes`].
    pub fn bytes_of(&self, available: u64) -> Result<u64, Usage> {
        if self.0 == "auto" {
            return Ok((available / 2).max(LEAST));
        }
        let bytes = units::parse_memory(&self.0).ok().filter(|bytes| *bytes >= LEAST);
        bytes.ok_or_else(|| {
            let given = &self.0;
            Usage(format!(
                "[limits] memory = {given:?}: must be \"auto\" (half of this machine's memory) or an amount of at \
                 least 64MB, such as \"512MB\" or \"2GiB\""
            ))
        })
    }
}

/// Memory that answers of HTTP may always have, in bytes: parts of a few photos or tables.
const MIN_ANSWER_BYTES: usize = 4 << 20;

/// The parts of the budget, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The broker's accounts.
    pub broker: MemoryLimits,
    /// Retained messages, within the account for messages.
    pub retained: usize,
    /// Incomplete packets, over all workers.
    pub incomplete: usize,
    /// Receivers that all workers remember.
    pub routes: usize,
    /// Answers of the platform, the administration API and `/connections` that clients have not taken yet.
    pub answers: usize,
    /// Bodies of HTTP requests.
    pub bodies: usize,
    /// Values in transfer over CoAP.
    pub coap: usize,
    /// Connections of each socket of the `https` and `webtransport` listeners, a number.
    pub http_connections: usize,
}

impl Parts {
    pub fn divide(bytes: u64) -> Parts {
        let percent = |share: u64| usize::try_from(bytes / 100 * share).unwrap_or(usize::MAX);
        Parts {
            broker: MemoryLimits::NONE
                .with(Account::Sessions, percent(15))
                .with(Account::Messages, percent(30))
                // As much again may be in the transports' hands.
                .with(Account::Output, percent(5))
                .with(Account::Aliases, percent(2))
                .with(Account::Input, percent(6))
                .with(Account::Logins, percent(3))
                .with(Account::Connections, percent(12)),
            retained: percent(10),
            incomplete: percent(5),
            routes: percent(4),
            answers: percent(4).max(MIN_ANSWER_BYTES),
            bodies: percent(4),
            coap: percent(2),
            http_connections: usize::try_from(bytes / BYTES_PER_HTTP_CONNECTION)
                .unwrap_or(usize::MAX),
        }
    }
}

/// The memory that a process can have, by its number or `self`: the machine's, or its control group's if that is less.
pub fn available_to(process: &str) -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = machine(&meminfo).unwrap_or(u64::MAX);
    let group = std::fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
    machine.min(control_group(&group, Path::new("/sys/fs/cgroup")).unwrap_or(u64::MAX))
}

fn machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The lowest limit of the process's control group (version 2) and of the groups around it.
fn control_group(own: &str, root: &Path) -> Option<u64> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let group = root.join(path);
    let limit = |group: &Path| -> Option<u64> {
        std::fs::read_to_string(group.join("memory.max")).ok()?.trim().parse().ok()
    };
    group.ancestors().take_while(|group| group.starts_with(root)).filter_map(limit).min()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Result<u64, String> {
        Memory(text.to_owned()).bytes().map_err(|error| error.to_string())
    }

    #[test]
    fn amounts_are_read_and_nonsense_is_refused_with_what_is_allowed() {
        assert_eq!(bytes("512MB"), Ok(512_000_000));
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        assert!(bytes("auto").unwrap() >= LEAST);
        for text in ["", "512", "10MB", "half", "-1GB", "2000TB"] {
            assert!(bytes(text).unwrap_err().contains("such as \"512MB\""), "{text}");
        }
    }

    #[test]
    fn the_parts_leave_room_for_the_program() {
        let parts = Parts::divide(512_000_000);
        let accounts: usize = Account::ALL.iter().map(|account| parts.broker.limit(*account)).sum();
        let all = accounts + parts.broker.limit(Account::Output);
        let all = all + parts.incomplete + parts.bodies + parts.coap;
        assert!(all < 512_000_000 * 9 / 10, "{all}");
        assert!(parts.retained < parts.broker.limit(Account::Messages) / 2);
        assert_eq!(parts.http_connections, 2000);
    }

    #[test]
    fn the_lower_of_machine_and_control_groups_counts() {
        assert_eq!(machine("MemTotal:       2048 kB\nMemFree: 5 kB\n"), Some(2 << 20));
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("system.slice/fulmar.service");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("memory.max"), "max\n").unwrap();
        std::fs::write(root.path().join("system.slice/memory.max"), "1000000\n").unwrap();
        let own = "0::/system.slice/fulmar.service\n";
        assert_eq!(control_group(own, root.path()), Some(1_000_000));
        assert_eq!(control_group("1:memory:/x\n", root.path()), None);
    }
}
