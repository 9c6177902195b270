//! Gives the memory of connections that have ended back to the system.
//!
//! glibc's allocator keeps what is freed in the middle of the heap for what may come: after 1,000
//! QUIC clients have vanished a broker would stay as large as it was with them. Twice a second it is
//! looked whether many connections fewer are open than were at most; when they get no fewer any more,
//! free pages go back.
//!
//! What starting took, keys and schemas and parsed authorities, goes back the same way.
//!
//! A gateway, which may be a small machine, keeps large buffers off the heap: a QUIC client's for what it receives has
//! 3 MB, of which hardly any is used, but on the heap all of it would be filled with zeros, at each attempt to reach
//! upstream. Other brokers do not: messages of a MB, each on fresh pages, would pass half as fast.
//!
//! Not while connections come and go in equal numbers: they use each other's memory. A crowd that is gone
//! before the next look is not noticed; what it took serves the next one.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use fulmar_broker::{Broker, TransportKind};

use self::system::give_back;
/// To be called before anything large is allocated.
pub(super) use self::system::keep_large_off_the_heap;

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
        let (stop, stopped) = channel();
        let broker = Arc::downgrade(broker);
        let body = move || {
            let mut watch = Watch::default();
            while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                let Some(open) = open(&broker) else { return };
                if watch.look(open) {
                    tracing::debug!(open, "returning memory to the system");
                    give_back();
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
    /// From so many bytes on an allocation has pages of its own. glibc's limit would be lower at first, and rise with
    /// each such allocation that is freed, until all of them are on the heap.
    const LARGE: libc::c_int = 512 << 10;
    /// So much that is free at the heap's end stays there; in glibc's usual proportion.
    const SPARE: libc::c_int = 2 * LARGE;

    pub(super) fn give_back() {
        // SAFETY: it takes no pointer and locks the heap itself (malloc_trim(3), MT-Safe).
        unsafe { libc::malloc_trim(0) };
    }

    pub(in crate::serve) fn keep_large_off_the_heap() {
        // SAFETY: it takes no pointer; a limit is a number that others read as it was or as it is.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
            libc::mallopt(libc::M_TRIM_THRESHOLD, SPARE);
        }
    }
}

/// Other allocators give back by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
mod system {
    pub(super) fn give_back() {}
    pub(in crate::serve) fn keep_large_off_the_heap() {}
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

    #[test]
    fn a_slow_end_is_not_waited_for_for_ever() {
        let mut watch = Watch::default();
        assert!(!watch.has_shrunk(1_000));
        let given = (1..1_000).find(|fewer| watch.has_shrunk(1_000 - fewer));
        assert_eq!(given, Some(125 + u64::from(MOST_WAITED)));
    }
}
