//! Gives the memory of connections that have ended back to the system.
//!
//! glibc's allocator keeps what is freed in the middle of the heap for what may come: after 1,000
//! QUIC clients have vanished a broker would stay as large as it was with them. Twice a second it is
//! looked whether many connections fewer are open than were at most; when they get no fewer any more,
//! free pages go back.
//!
//! What starting took, keys and schemas and parsed authorities, goes back the same way; and the program's own code,
//! of which running needs a part that is read again from its file when it is called. Large buffers are never on the
//! heap: a QUIC client's for what it receives has 3 MB, of which hardly any is used, but on the heap all of it would
//! be filled with zeros, at each attempt to reach upstream.
//!
//! Not while connections come and go in equal numbers: they use each other's memory. A crowd that is gone
//! before the next look is not noticed; what it took serves the next one.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use fulmar_broker::{Broker, TransportKind};

use self::system::{give_back, keep_large_off_the_heap, let_go_of_code};

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Looks after which it is not waited any longer for the last of them to end.
const MOST_WAITED: u32 = 20;

/// Connections fewer that are worth it at least: some hundred KiB over QUIC.
const LEAST: u64 = 16;

/// … and the share of those there were at most. Giving back walks the whole heap, during which
/// nobody can allocate, so that it must not happen often on a large one.
const SHARE: u64 = 8;

/// Looks after which memory is given back once more, and once more: a QUIC connection that was closed is no
/// longer counted, but its state is kept for three probe timeouts (RFC 9000 section 10.2), half a second on a
/// good link and many on a bad one.
const AGAIN_AFTER: [u32; 2] = [4, 24];

/// The thread that looks; dropping it ends it.
pub(super) struct Memory {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Memory {
    pub(super) fn start(broker: &Arc<Broker>) -> anyhow::Result<Memory> {
        keep_large_off_the_heap();
        let (stop, stopped) = channel();
        let broker = Arc::downgrade(broker);
        let body = move || {
            let mut watch = Watch::default();
            let mut started = false;
            while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                let Some(open) = open(&broker) else { return };
                if watch.look(open) {
                    tracing::debug!(open, "giving memory back");
                    give_back();
                    if !std::mem::replace(&mut started, true) {
                        let_go_of_code();
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("fulmar-memory".to_owned()).spawn(body);
        let thread = thread.context("cannot start a thread")?;
        Ok(Memory { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::warn!("the thread that gives memory back had panicked");
        }
    }
}

/// Connections open now; `None` without a broker.
fn open(broker: &Weak<Broker>) -> Option<u64> {
    let broker = broker.upgrade()?;
    let of = |kind: TransportKind| broker.metrics().sum(|shard| &shard.connections[kind.index()]);
    Some(TransportKind::ALL.into_iter().map(of).sum())
}

/// Remembers how many connections there were.
#[derive(Debug, Default)]
struct Watch {
    /// Most since memory was given back.
    most: u64,
    /// At the last look.
    last: u64,
    /// Looks at which there were many fewer, and fewer at each.
    waited: u32,
    /// Looks since there were many fewer, or since the start.
    since: u32,
}

impl Watch {
    /// Whether memory is to be given back, so many connections being open now.
    fn look(&mut self, open: u64) -> bool {
        self.since = self.since.saturating_add(1);
        let shrunk = self.has_shrunk(open);
        if shrunk {
            self.since = 0;
        }
        shrunk || AGAIN_AFTER.contains(&self.since)
    }

    /// Whether so many fewer are open now that giving back is worth it, and no more are ending.
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

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
mod system {
    use std::ops::Range;

    /// From so many bytes on an allocation has pages of its own. glibc's limit would begin here or higher and rise
    /// with each such allocation that is freed, until all of them are on the heap.
    const LARGE: libc::c_int = 512 << 10;

    pub(super) fn give_back() {
        // SAFETY: it takes no pointer and locks the heap itself (malloc_trim(3), MT-Safe).
        unsafe { libc::malloc_trim(0) };
    }

    pub(super) fn keep_large_off_the_heap() {
        // SAFETY: it takes no pointer; the limit is a number that others read as it was or as it is.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
    }

    /// Gives the pages of the program's code back.
    pub(super) fn let_go_of_code() {
        let Ok(program) = std::env::current_exe() else { return };
        let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
        for range in maps.lines().filter_map(|line| code(line, program.to_str()?)) {
            // SAFETY: pages that are mapped from a file, may be executed and were never written are read from that
            // file when they are next used, as after the kernel itself took them (madvise(2), MADV_DONTNEED).
            unsafe {
                libc::madvise(
                    std::ptr::with_exposed_provenance_mut(range.start),
                    range.len(),
                    libc::MADV_DONTNEED,
                )
            };
        }
    }

    /// The addresses of a line of /proc/self/maps (proc(5)), if that is code of this program.
    pub(super) fn code(line: &str, program: &str) -> Option<Range<usize>> {
        let (addresses, rest) = line.split_once(' ')?;
        let (first, end) = addresses.split_once('-')?;
        let is_code = rest.starts_with("r-xp ") && rest.ends_with(&format!(" {program}"));
        let number = |text| usize::from_str_radix(text, 16).ok();
        is_code.then_some(number(first)?..number(end)?)
    }
}

/// Other allocators give back by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
mod system {
    pub(super) fn give_back() {}
    pub(super) fn keep_large_off_the_heap() {}
    pub(super) fn let_go_of_code() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_when_many_connections_have_ended_and_only_then() {
        let mut watch = Watch::default();
        let looks = [
            (100, false),
            // As many come as go.
            (99, false),
            (100, false),
            // Fifteen fewer are too few, sixteen enough once they are all.
            (85, false),
            (85, false),
            (84, false),
            (84, true),
            (84, false),
            (30, false),
            (5, false),
            (0, false),
            (0, true),
            // Of many an eighth.
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
        watch.look(100);
        let given: Vec<u32> = (1..100).filter(|_| watch.look(0)).collect();
        // Once they no longer get fewer, and so much later.
        assert_eq!(given, [2, 2 + AGAIN_AFTER[0], 2 + AGAIN_AFTER[1]]);
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn only_the_programs_code_is_let_go() {
        let program = "/opt/fulmar of ours";
        let code = |line: &str| system::code(line, program);
        let own =
            "55d0a000-55d0c000 r-xp 00800000 fe:00 1234                       /opt/fulmar of ours";
        assert_eq!(code(own), Some(0x55d0_a000..0x55d0_c000));
        for other in [
            "55d0c000-55d0d000 r--p 00a00000 fe:00 1234                       /opt/fulmar of ours",
            "55d0d000-55d0e000 rw-p 00b00000 fe:00 1234                       /opt/fulmar of ours",
            "7f00a000-7f00c000 r-xp 00000000 fe:00 99                         /lib/libc.so.6",
            "7f00c000-7f00d000 r-xp 00000000 00:00 0                          [vdso]",
            "",
        ] {
            assert_eq!(code(other), None, "{other}");
        }
        // Code that has been let go runs on.
        let_go_of_code();
        assert_eq!(code(own), Some(0x55d0_a000..0x55d0_c000));
    }

    #[test]
    fn a_slow_end_is_not_waited_for_for_ever() {
        let mut watch = Watch::default();
        assert!(!watch.has_shrunk(1_000));
        let given = (1..1_000).find(|fewer| watch.has_shrunk(1_000 - fewer));
        assert_eq!(given, Some(125 + u64::from(MOST_WAITED)));
    }
}
