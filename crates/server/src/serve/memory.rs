//! Returns the memory of ended connections to the system, and looks whether the process has more than `[limits] memory`.
//!
//! glibc's allocator keeps memory that is freed in the middle of the heap: after 1,000 QUIC clients have disconnected,
//! a broker would stay as large as before. Twice per second, this module checks whether far fewer connections are open
//! than at the maximum. When their number no longer falls, it returns free pages to the system.
//!
//! Memory used at start, for keys, schemas and parsed CAs, is returned in the same way.
//!
//! The 19 MiB that a password's hash takes are outside the heap: threads have heaps of their own, which would keep them
//! after logins ([`fulmar_broker`] keeps them for ten seconds). A gateway, which may be a small machine, has smaller buffers there too:
//! a QUIC client's receive buffer has 3 MB, of which little is used, but on the heap all of it would be filled with
//! zeros at each attempt to reach upstream. Other brokers do not, because messages of a MB, each on new pages, would be
//! forwarded half as fast.
//!
//! Connections to the HTTP endpoint, handshakes that do not end, and peers over UDP are not among those connections. So
//! every five seconds, the module also checks how much resident memory is not in use, and returns it when that has grown
//! by a few MiB.
//!
//! The accounts of `[limits] memory` keep the process below it. Not all that clients cause is counted, such as what a QUIC
//! library keeps for pieces of streams. So resident memory is compared with the limit itself; close to it, connections that
//! may be the reason are closed ([`Broker::set_memory_pressure`]).
//!
//! Nothing is returned for connections while connections begin and end at the same rate, because they reuse each other's memory. Many
//! connections that end before the next check are not detected; the next ones reuse their memory.

use fulmar_part::thread::{Stopped, Thread};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use fulmar_broker::{Broker, MemoryPressure, TransportKind};

/// To be called before anything large is allocated.
pub(super) use self::system::keep_large_off_the_heap;
use self::system::{give_back, resident_bytes, unused_bytes};

/// Time between two checks.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Checks after which it does not wait any longer for the last connections to end.
const MOST_WAITED: u32 = 20;

/// Fewest ended connections that are worth it: a few hundred KiB over QUIC.
const LEAST: u64 = 16;

/// … and their smallest share of the maximum. Returning memory walks the whole heap, and no thread can allocate
/// meanwhile, so it must not happen often with a large heap.
const SHARE: u64 = 8;

/// Checks after which memory is returned again, twice: a closed QUIC connection is no longer counted, but its state is
/// kept for three probe timeouts (RFC 9000 section 10.2), half a second on a good link and many seconds on a bad one.
const AGAIN_AFTER: [u32; 2] = [4, 24];

/// Checks between two of memory that is not in use: adding it up takes a few ms when there are many free pieces.
const WASTE_EVERY: u32 = 10;
/// Growth of it that is worth returning.
const LEAST_WASTE_BYTES: u64 = 4 << 20;

/// Memory is short when only this share of the limit is left: until the next look and the end of what is closed then, a
/// hundred megabytes may come. It is short until less than half of the limit is used, and more is taken if it has grown by a
/// part of that share.
const MARGIN: u64 = 8;
const RISE: u64 = 4;
/// … and looks between two at which free pages are returned, to see what is in use.
const TRIM_EVERY: u32 = 4;

/// The thread that checks; dropping this ends it.
pub(super) struct Memory(#[expect(dead_code, reason = "ends when it is dropped")] Thread);

impl Memory {
    /// `limit`: [limits] memory in bytes.
    pub(super) fn start(broker: &Arc<Broker>, limit: u64) -> anyhow::Result<Memory> {
        let broker = Arc::downgrade(broker);
        let body = move |stopped: Stopped| {
            let (mut watch, mut waste) = (Watch::default(), Waste::default());
            let mut excess = Excess::new(limit);
            while stopped.pause(LOOK_EVERY) {
                let Some(broker) = broker.upgrade() else { return };
                broker.set_memory_pressure(excess.check(resident_bytes, give_back));
                let open = open(&broker);
                drop(broker);
                if watch.check(open) | waste.check(unused_bytes) {
                    tracing::debug!(open, "returning memory to the system");
                    give_back();
                    waste.returned(unused_bytes());
                }
            }
        };
        let thread = Thread::blocking("fulmar-memory", body);
        Ok(Memory(thread.context("cannot start a thread")?))
    }
}

/// Connections open now.
fn open(broker: &Broker) -> u64 {
    let of = |kind: TransportKind| broker.metrics().sum(|shard| &shard.connections[kind.index()]);
    TransportKind::ALL.into_iter().map(of).sum()
}

/// Compares resident memory with the limit.
#[derive(Debug)]
struct Excess {
    limit: u64,
    /// Resident bytes when memory became short.
    first: Option<u64>,
    /// Looks since free pages were returned.
    since: u32,
}

impl Excess {
    fn new(limit: u64) -> Excess {
        Excess { limit, first: None, since: 0 }
    }

    /// Checks the memory in use. Before it counts as short, and now and then while it is, free pages are returned.
    fn check(&mut self, resident: impl Fn() -> u64, give_back: impl Fn()) -> MemoryPressure {
        let (mut now, margin) = (resident(), self.limit / MARGIN);
        let most = self.limit - margin;
        if now > most && self.since == 0 {
            give_back();
            now = resident();
        }
        let enough = if self.first.is_some() { self.limit / 2 } else { most };
        if now <= enough {
            if self.first.take().is_some() {
                tracing::info!("memory is no longer short");
            }
            self.since = 0;
            return MemoryPressure::None;
        }
        self.since = (self.since + 1) % TRIM_EVERY;
        if self.first.is_none() {
            tracing::warn!(
                resident = now,
                limit = self.limit,
                "memory is nearly as much as [limits] memory: connections whose clients read nothing or have sent very many \
                 pieces of QUIC streams, and idle HTTPS connections, are closed; if these are your devices, raise [limits] memory"
            );
        }
        let first = *self.first.get_or_insert(now);
        if now > first + margin / RISE { MemoryPressure::Rising } else { MemoryPressure::High }
    }
}

/// Follows the number of connections.
#[derive(Debug, Default)]
struct Watch {
    /// Maximum since memory was returned.
    most: u64,
    /// At the last check.
    last: u64,
    /// Checks at which there were far fewer, and fewer at each.
    waited: u32,
    /// Checks since there were far fewer, or since the start.
    since: u32,
}

impl Watch {
    /// Whether to return memory, with this number of open connections.
    fn check(&mut self, open: u64) -> bool {
        self.since = self.since.saturating_add(1);
        let shrunk = self.has_shrunk(open);
        if shrunk {
            self.since = 0;
        }
        shrunk || AGAIN_AFTER.contains(&self.since)
    }

    /// Whether enough connections have ended that returning memory is worth it, and no more are ending.
    fn has_shrunk(&mut self, open: u64) -> bool {
        self.most = self.most.max(open);
        let ending = open < self.last;
        self.last = open;
        if self.most - open < LEAST.max(self.most / SHARE) {
            self.waited = 0;
            return false;
        }
        self.waited += 1;
        if ending && self.waited <= MOST_WAITED {
            return false;
        }
        (self.most, self.waited) = (open, 0);
        true
    }
}

/// Follows resident memory that is not in use.
#[derive(Debug, Default)]
struct Waste {
    checks: u32,
    /// Bytes that could not be returned: pages in which something is in use.
    stays: u64,
}

impl Waste {
    /// Whether to return memory; `unused` is asked only at some of the checks.
    fn check(&mut self, unused: impl Fn() -> u64) -> bool {
        self.checks += 1;
        if self.checks < WASTE_EVERY {
            return false;
        }
        self.checks = 0;
        let unused = unused();
        self.stays = self.stays.min(unused);
        unused >= self.stays + LEAST_WASTE_BYTES
    }

    /// Memory was returned, and this stays.
    fn returned(&mut self, unused: u64) {
        self.stays = unused;
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
mod system {
    /// Allocations of this size or more have pages of their own. By default, glibc's limit is lower at first, and rises
    /// with each such allocation that is freed, until all of them are on the heap.
    const LARGE: libc::c_int = 8 << 20;
    /// The same on a gateway.
    const LARGE_ON_GATEWAY: libc::c_int = 512 << 10;
    /// Free bytes at the heap's end that are not returned.
    const SPARE: libc::c_int = 1 << 20;

    pub(super) fn give_back() {
        // SAFETY: it takes no pointer and locks the heap itself (malloc_trim(3), MT-Safe).
        unsafe { libc::malloc_trim(0) };
    }

    /// Resident memory without a file: not the program.
    pub(super) fn resident_bytes() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let mut pages =
            statm.split_whitespace().skip(1).map_while(|field| field.parse::<u64>().ok());
        let (Some(resident), Some(shared)) = (pages.next(), pages.next()) else { return 0 };
        resident.saturating_sub(shared) * rustix::param::page_size() as u64
    }

    /// The part of it that the allocator has not given to anybody.
    pub(super) fn unused_bytes() -> u64 {
        let resident = resident_bytes();
        // SAFETY: it takes no pointer and locks the heap itself. mallinfo2() is missing in glibc before 2.33.
        let heap = unsafe { libc::mallinfo() };
        // Of each number, it has the lowest 32 bits. The difference is below 2 GiB.
        let used = heap.uordblks.wrapping_add(heap.hblkhd);
        u64::try_from((resident as i32).wrapping_sub(used)).unwrap_or(0)
    }

    pub(in crate::serve) fn keep_large_off_the_heap(is_gateway: bool) {
        let large = if is_gateway { LARGE_ON_GATEWAY } else { LARGE };
        // SAFETY: it takes no pointer; a limit is a number that others read as it was or as it is.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, large);
            libc::mallopt(libc::M_TRIM_THRESHOLD, SPARE);
        }
    }
}

/// Other allocators return memory by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
mod system {
    pub(super) fn give_back() {}
    pub(super) fn resident_bytes() -> u64 {
        0
    }
    pub(super) fn unused_bytes() -> u64 {
        0
    }
    pub(in crate::serve) fn keep_large_off_the_heap(_: bool) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_when_many_connections_have_ended_and_only_then() {
        let mut watch = Watch::default();
        let looks = [
            (100, false),
            // As many begin as end.
            (99, false),
            (100, false),
            // Fifteen ended connections are too few; sixteen are enough when no more end.
            (85, false),
            (85, false),
            (84, false),
            (84, true),
            (84, false),
            (30, false),
            (5, false),
            (0, false),
            (0, true),
            // An eighth of many.
            (8_000, false),
            (7_001, false),
            (7_001, false),
            (7_000, false),
            (7_000, true),
        ];
        for (step, (open, expected)) in looks.into_iter().enumerate() {
            assert_eq!(watch.has_shrunk(open), expected, "look {step} at {open}");
        }
    }

    #[test]
    fn it_is_given_back_twice_more_for_what_ends_late() {
        let mut watch = Watch::default();
        watch.check(100);
        let given: Vec<u32> = (1..100).filter(|_| watch.check(0)).collect();
        // When the number no longer falls, and these checks later.
        assert_eq!(given, [2, 2 + AGAIN_AFTER[0], 2 + AGAIN_AFTER[1]]);
    }

    #[test]
    fn memory_that_is_not_in_use_is_returned_and_what_stays_is_not_tried_again() {
        let mut waste = Waste::default();
        let mut look =
            |unused: u64| (0..WASTE_EVERY).filter(|_| waste.check(|| unused << 20)).count();
        assert_eq!([look(3), look(8)], [0, 1]);
        waste.returned(7 << 20);
        let mut look =
            |unused: u64| (0..WASTE_EVERY).filter(|_| waste.check(|| unused << 20)).count();
        assert_eq!([look(8), look(10), look(11), look(2), look(6)], [0, 0, 1, 0, 1]);
    }

    #[test]
    fn memory_that_becomes_short_is_seen_and_whether_it_grows() {
        use MemoryPressure::{High, None, Rising};
        let returned = std::cell::Cell::new(0);
        let mut excess = Excess::new(1600);
        let mut look =
            |resident: u64| excess.check(|| resident, || returned.set(returned.get() + 1));
        let looks = [1400, 1401, 1450, 1452, 1390, 1410, 801, 800, 1400, 1500].map(&mut look);
        assert_eq!(looks, [None, High, High, Rising, High, High, High, None, None, High]);
        assert_eq!(returned.get(), 3, "when it becomes short, and at every fourth look");
    }

    #[test]
    fn a_slow_end_is_not_waited_for_for_ever() {
        let mut watch = Watch::default();
        assert!(!watch.has_shrunk(1_000));
        let given = (1..1_000).find(|fewer| watch.has_shrunk(1_000 - fewer));
        assert_eq!(given, Some(125 + u64::from(MOST_WAITED)));
    }
}
