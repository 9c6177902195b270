//! TLS sessions over TCP that clients may resume, in one piece of memory.
//!
//! A session has some 150 bytes and stays until newer ones take its place. If each were allocated on its own, those of
//! many short connections would lie all over the heap, between what the connections had, and keep the pages around
//! them: 60 MiB stayed after 6,000 HTTPS connections with large requests. Here they lie one behind the other in a ring,
//! and new ones overwrite the oldest. The ring grows only while the oldest are not to be forgotten yet.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use rustls::server::StoresServerSessions;

/// Sessions that are remembered.
const MAX_SESSIONS: usize = 16_384;

/// Bytes of all of them. With clients' certificates a session has a kilobyte or more, and fewer are remembered.
const MAX_BYTES: usize = 16 << 20;

/// Largest session in bytes; as for QUIC.
const MAX_SESSION_BYTES: usize = 8 * 1024;

/// A digest.
type Name = [u8; 32];

/// The store, shared by all workers, in memory only: sessions of TLS 1.2 would lose their forward secrecy on disk, and
/// without early data they gain little there. Names have 32 bytes.
pub(super) struct MemorySessions(Mutex<Ring>);

/// Where a session is in [`Ring::bytes`].
#[derive(Clone, Copy, PartialEq, Eq)]
struct ByteRange {
    start: usize,
    end: usize,
}

struct Ring {
    bytes: Vec<u8>,
    /// Where the next session goes.
    at: usize,
    places: HashMap<Name, ByteRange>,
    /// From the oldest to the newest, with those that were taken or replaced since.
    order: VecDeque<(Name, ByteRange)>,
    max: usize,
    max_bytes: usize,
}

impl MemorySessions {
    pub(super) fn new() -> MemorySessions {
        MemorySessions(Mutex::new(Ring::new(MAX_SESSIONS, MAX_BYTES)))
    }
}

impl Ring {
    fn new(max: usize, max_bytes: usize) -> Ring {
        let (bytes, places, order) = (Vec::new(), HashMap::new(), VecDeque::new());
        Ring { bytes, at: 0, places, order, max, max_bytes }
    }

    fn insert(&mut self, name: Name, session: &[u8]) {
        while self.places.len() >= self.max || self.order.len() >= 2 * self.max {
            self.forget_oldest();
        }
        let place = self.place_for(session.len());
        while self.oldest().is_some_and(|old| old.start < place.end && place.start < old.end) {
            self.forget_oldest();
        }
        self.bytes[place.start..place.end].copy_from_slice(session);
        self.at = place.end;
        self.places.insert(name, place);
        self.order.push_back((name, place));
    }

    /// Where this many bytes go; what is there may have to be forgotten.
    fn place_for(&mut self, length: usize) -> ByteRange {
        if self.at + length > self.bytes.len() {
            let beginning_is_free = self.oldest().is_none_or(|old| length <= old.start);
            if beginning_is_free || self.at + length > self.max_bytes {
                while self.oldest().is_some_and(|old| old.start >= self.at) {
                    self.forget_oldest();
                }
                self.at = 0;
            }
        }
        let place = ByteRange { start: self.at, end: self.at + length };
        if self.bytes.len() < place.end {
            self.bytes.resize(place.end, 0);
        }
        place
    }

    fn oldest(&self) -> Option<ByteRange> {
        self.order.front().map(|&(_, place)| place)
    }

    fn forget_oldest(&mut self) {
        if let Some((name, place)) = self.order.pop_front()
            && self.places.get(&name) == Some(&place)
        {
            self.places.remove(&name);
        }
    }

    fn get(&self, name: &Name) -> Option<Vec<u8>> {
        let place = self.places.get(name)?;
        Some(self.bytes[place.start..place.end].to_vec())
    }

    fn remove(&mut self, name: &Name) -> Option<Vec<u8>> {
        let session = self.get(name);
        if let Some(place) = self.places.remove(name) {
            // Its secrets have been used.
            self.bytes[place.start..place.end].fill(0);
        }
        session
    }
}

impl StoresServerSessions for MemorySessions {
    fn put(&self, name: Vec<u8>, session: Vec<u8>) -> bool {
        let Ok(name) = Name::try_from(name) else { return false };
        if session.is_empty() || session.len() > MAX_SESSION_BYTES {
            return false;
        }
        self.0.lock().insert(name, &session);
        true
    }

    fn get(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.0.lock().get(name.try_into().ok()?)
    }

    fn take(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.0.lock().remove(name.try_into().ok()?)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

// Without the secrets.
fulmar_text::opaque_debug!(MemorySessions {});

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(number: u8) -> Name {
        [number; 32]
    }

    #[test]
    fn a_session_is_taken_once_and_got_again_and_again() {
        let sessions = MemorySessions::new();
        assert!(sessions.put(name(1).to_vec(), b"secret".to_vec()));
        assert_eq!(sessions.get(&name(1)).as_deref(), Some(&b"secret"[..]));
        assert_eq!(sessions.take(&name(1)).as_deref(), Some(&b"secret"[..]));
        assert_eq!(sessions.get(&name(1)), None);
        assert_eq!(sessions.take(&name(1)), None);
        assert!(!sessions.0.lock().bytes.windows(6).any(|bytes| bytes == b"secret"));
    }

    #[test]
    fn what_is_too_large_is_not_remembered() {
        let sessions = MemorySessions::new();
        assert!(sessions.put(name(1).to_vec(), vec![1; MAX_SESSION_BYTES]));
        assert!(!sessions.put(name(2).to_vec(), vec![1; MAX_SESSION_BYTES + 1]));
        assert!(!sessions.put(vec![3; 31], vec![1]));
    }

    #[test]
    fn the_newest_are_remembered_in_as_much_memory_as_they_take() {
        let mut ring = Ring::new(100, 1 << 20);
        for number in 0..100_000_u32 {
            let mut name = name(0);
            name[..4].copy_from_slice(&number.to_be_bytes());
            ring.insert(name, &[7; 150]);
            let back = number.saturating_sub(99);
            name[..4].copy_from_slice(&back.to_be_bytes());
            assert!(ring.get(&name).is_some(), "{back} at {number}");
        }
        assert!(ring.bytes.len() <= 101 * 150, "{}", ring.bytes.len());
    }

    proptest! {
        #[test]
        fn what_is_found_is_what_was_put_last(
            steps in prop::collection::vec((0_u8..12, 0_usize..90, any::<u8>()), 1..400),
        ) {
            let mut ring = Ring::new(5, 200);
            let mut model = HashMap::new();
            for (number, length, byte) in steps {
                let name = name(number);
                if length < 20 {
                    let (found, kept) = (ring.remove(&name), model.remove(&name));
                    prop_assert!(found.is_none() || found == kept);
                    continue;
                }
                let session = vec![byte; length];
                ring.insert(name, &session);
                model.insert(name, session);
                for (name, session) in &model {
                    let found = ring.get(name);
                    prop_assert!(found.is_none() || found.as_ref() == Some(session));
                }
                prop_assert!(ring.get(&name).is_some());
                prop_assert!(ring.bytes.len() <= 200 && ring.places.len() <= 5 && ring.order.len() <= 10);
            }
        }
    }
}
