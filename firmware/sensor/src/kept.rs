//! What survives a loss of power: the newest ticket and when it was given, as a page of flash.
//!
//! A device need not write it at every wake, which would wear the flash out: memory is kept in deep
//! sleep, and a ticket that is lost, or was used already, costs one round trip.

use fulmar_tiny::limits::TICKET_BYTES;

/// A ticket with its time.
#[derive(Debug)]
pub struct StoredTicket {
    ticket: [u8; TICKET_BYTES],
    len: u16,
    /// By the board's calendar.
    given_s: u32,
}

/// Length and time, before the ticket in its page.
const HEADER: usize = 8;
/// Beginning of a page that holds a ticket.
const MAGIC: [u8; 2] = *b"TK";

impl StoredTicket {
    /// Nothing yet; all zero.
    #[must_use]
    pub const fn new() -> StoredTicket {
        StoredTicket { ticket: [0; TICKET_BYTES], len: 0, given_s: 0 }
    }

    /// Bytes of the page, at most.
    pub const PAGE: usize = HEADER + TICKET_BYTES;

    /// Takes what a page holds; an empty or damaged one holds nothing. Whether the ticket itself is
    /// whole is checked where it is used.
    pub fn read(&mut self, page: &[u8]) {
        self.len = 0;
        let Some((header, rest)) = page.split_first_chunk::<HEADER>() else { return };
        let [m0, m1, high, low, time @ ..] = *header;
        let len = u16::from_be_bytes([high, low]);
        let Some(ticket) = rest.get(..usize::from(len)) else { return };
        if [m0, m1] == MAGIC {
            self.set(ticket, u32::from_be_bytes(time));
        }
    }

    /// Writes a page; returns how much of it.
    pub fn write(&self, page: &mut [u8; StoredTicket::PAGE]) -> usize {
        let end = HEADER + usize::from(self.len);
        page[..2].copy_from_slice(&MAGIC);
        page[2..4].copy_from_slice(&self.len.to_be_bytes());
        page[4..HEADER].copy_from_slice(&self.given_s.to_be_bytes());
        page[HEADER..end].copy_from_slice(&self.ticket[..usize::from(self.len)]);
        end
    }

    /// Keeps a ticket given at `given_s`; one that is too long is not kept.
    pub(crate) fn set(&mut self, ticket: &[u8], given_s: u32) {
        self.len = 0;
        let Some(place) = self.ticket.get_mut(..ticket.len()) else { return };
        place.copy_from_slice(ticket);
        self.len = ticket.len() as u16;
        self.given_s = given_s;
    }

    /// Forgets the ticket: servers take it once.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// The ticket, and its age in milliseconds at `now_s`.
    pub(crate) fn get(&self, now_s: u32) -> Option<(&[u8], u32)> {
        let ticket =
            self.ticket.get(..usize::from(self.len)).filter(|ticket| !ticket.is_empty())?;
        let age_s = now_s.checked_sub(self.given_s)?;
        Some((ticket, age_s.saturating_mul(1000)))
    }
}

impl Default for StoredTicket {
    fn default() -> StoredTicket {
        StoredTicket::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_survives_its_page() {
        let (mut kept, mut page) = (StoredTicket::new(), [0xff; StoredTicket::PAGE]);
        kept.set(b"ticket", 1000);
        let len = kept.write(&mut page);
        let mut later = StoredTicket::new();
        later.read(&page[..len]);
        assert_eq!(later.get(1060), Some((&b"ticket"[..], 60_000)));
        assert_eq!(later.get(999), None, "a clock that went back tells no age");
        later.clear();
        assert_eq!(later.get(1060), None);
    }

    #[test]
    fn erased_and_damaged_pages_hold_nothing() {
        let mut kept = StoredTicket::new();
        for page in [
            &[0xff; StoredTicket::PAGE][..],
            &[0; StoredTicket::PAGE],
            b"TK\xff\xff0000",
            b"TK",
            b"",
        ] {
            kept.set(b"old", 0);
            kept.read(page);
            assert_eq!(kept.get(0), None, "{page:?}");
        }
    }
}
