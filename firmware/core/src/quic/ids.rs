//! The connection IDs the server gave us to use (RFC 9000, section 5.1), and the tokens by which it can
//! show that it has forgotten the connection (section 10.3). Ours is empty and never changes.

use super::packet::Id;
use crate::crypto::equal;

/// Number that every endpoint must be ready to keep, and that we announce: the default.
const ACTIVE: usize = 2;
/// Retirements that have not been sent yet.
const RETIRING: usize = 4;

#[derive(Clone, Copy)]
struct Entry {
    id: Id,
    sequence: u32,
    reset_token: Option<[u8; 16]>,
    active: bool,
}

/// Why a NEW_CONNECTION_ID frame is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It contradicts an earlier one.
    Contradiction,
    /// There are more than we said we keep.
    TooMany,
}

/// The server's connection IDs; the one in use is the active one with the lowest sequence number.
pub(super) struct ServerIds {
    entries: [Entry; ACTIVE],
    retired_before: u32,
    retiring: [u32; RETIRING],
    retiring_count: u8,
}

impl ServerIds {
    pub(super) const fn new() -> Self {
        const NONE: Entry = Entry { id: Id::EMPTY, sequence: 0, reset_token: None, active: false };
        Self {
            entries: [NONE; ACTIVE],
            retired_before: 0,
            retiring: [0; RETIRING],
            retiring_count: 0,
        }
    }

    /// Begins with `id`, which we made up, or the server chose with its first packet.
    pub(super) fn start(&mut self, id: Id) {
        *self = Self::new();
        self.entries[0] = Entry { id, sequence: 0, reset_token: None, active: true };
    }

    /// The token of the first connection ID, which comes with the transport parameters.
    pub(super) fn set_reset_token(&mut self, token: [u8; 16]) {
        self.entries[0].reset_token = Some(token);
    }

    fn active(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.active)
    }

    /// The one to send packets to.
    pub(super) fn current(&self) -> Id {
        self.active().min_by_key(|entry| entry.sequence).map_or(Id::EMPTY, |entry| entry.id)
    }

    /// Whether a datagram that ends with `end` is a stateless reset.
    pub(super) fn is_reset(&self, end: &[u8]) -> bool {
        self.active().filter_map(|entry| entry.reset_token).any(|token| equal(&token, end))
    }

    /// Takes a NEW_CONNECTION_ID frame.
    #[inline(never)]
    pub(super) fn add(
        &mut self,
        sequence: u32,
        retire_before: u32,
        id: Id,
        reset_token: [u8; 16],
    ) -> Result<(), Refusal> {
        for known in self.active() {
            let same = known.id.as_slice() == id.as_slice();
            if same != (known.sequence == sequence)
                || same && known.reset_token.is_some_and(|token| token != reset_token)
            {
                return Err(Refusal::Contradiction);
            }
            if same {
                return Ok(());
            }
        }
        self.retired_before = self.retired_before.max(retire_before);
        for place in 0..ACTIVE {
            let entry = &mut self.entries[place];
            if entry.active && entry.sequence < self.retired_before {
                entry.active = false;
                let sequence = entry.sequence;
                self.retire(sequence)?;
            }
        }
        if sequence < self.retired_before {
            return self.retire(sequence);
        }
        let free = self.entries.iter_mut().find(|entry| !entry.active).ok_or(Refusal::TooMany)?;
        *free = Entry { id, sequence, reset_token: Some(reset_token), active: true };
        Ok(())
    }

    /// `sequence` is to be retired by a frame, perhaps once more.
    pub(super) fn retire(&mut self, sequence: u32) -> Result<(), Refusal> {
        let count = usize::from(self.retiring_count);
        if self.retiring.get(..count).is_some_and(|waiting| waiting.contains(&sequence)) {
            return Ok(());
        }
        *self.retiring.get_mut(count).ok_or(Refusal::TooMany)? = sequence;
        self.retiring_count += 1;
        Ok(())
    }

    /// Whether there is a retirement to send.
    pub(super) fn has_retiring(&self) -> bool {
        self.retiring_count > 0
    }

    /// The next one to send.
    pub(super) fn take_retiring(&mut self) -> Option<u32> {
        self.retiring_count = self.retiring_count.checked_sub(1)?;
        self.retiring.get(usize::from(self.retiring_count)).copied()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn id(byte: u8) -> Id {
        Id::new(&[byte; 8]).unwrap()
    }

    #[test]
    fn a_new_id_replaces_what_it_retires() {
        let mut ids = ServerIds::new();
        ids.start(id(0));
        ids.set_reset_token([0; 16]);
        ids.add(1, 0, id(1), [1; 16]).unwrap();
        ids.add(1, 0, id(1), [1; 16]).unwrap(); // repeated, as when an acknowledgement was lost
        assert_eq!(ids.add(2, 0, id(2), [2; 16]), Err(Refusal::TooMany));
        assert_eq!(ids.current().as_slice(), id(0).as_slice());
        ids.add(2, 1, id(2), [2; 16]).unwrap();
        assert_eq!(ids.current().as_slice(), id(1).as_slice());
        assert_eq!(ids.take_retiring(), Some(0));
        assert_eq!(ids.take_retiring(), None);
        assert!(ids.is_reset(&[2; 16]) && !ids.is_reset(&[0; 16]));
        ids.add(3, 3, id(3), [3; 16]).unwrap();
        assert_eq!(ids.current().as_slice(), id(3).as_slice());
        ids.add(2, 1, id(2), [2; 16]).unwrap(); // late: retired at once, or still
        assert!(ids.has_retiring());
    }

    #[test]
    fn contradictions_are_refused() {
        let mut ids = ServerIds::new();
        ids.start(id(0));
        ids.add(1, 0, id(1), [1; 16]).unwrap();
        assert_eq!(ids.add(1, 0, id(2), [1; 16]), Err(Refusal::Contradiction));
        assert_eq!(ids.add(1, 0, id(1), [2; 16]), Err(Refusal::Contradiction));
        assert_eq!(ids.add(2, 0, id(1), [1; 16]), Err(Refusal::Contradiction));
    }

    #[test]
    fn retirements_are_bounded() {
        let mut ids = ServerIds::new();
        ids.start(id(0));
        let refused = (1..20).any(|n| ids.add(n, n, id(n as u8), [n as u8; 16]).is_err());
        assert!(refused);
    }
}
