//! Session tickets as they lie in flash between connections (RFC 8446, section 4.6.1): bounded, and with a
//! checksum, for a damaged key would make servers break the handshake off instead of refusing the ticket.

use crate::bytes::{Reader, Writer};
use crate::crypto::{Hash, sha256};
use crate::limits::{TICKET_BYTES, TICKET_IDENTITY_BYTES};
use crate::quic::SendLimits;

/// Changes when the layout does.
const FORMAT: u8 = 1;
const CHECKSUM_BYTES: usize = 4;

/// Data needed to resume.
pub(crate) struct Ticket<'a> {
    pub(crate) lifetime_s: u32,
    /// Added to the age, so that observers cannot link connections by it.
    pub(crate) age_add: u32,
    /// Whether the server takes early data.
    pub(crate) early: bool,
    /// Limits of early data.
    pub(crate) limits: SendLimits,
    pub(crate) psk: Hash,
    pub(crate) identity: &'a [u8],
}

impl<'a> Ticket<'a> {
    /// Gives the length, or [`None`] if the identity is too long to be kept.
    pub(crate) fn write(&self, to: &mut [u8; TICKET_BYTES]) -> Option<usize> {
        if self.identity.len() > TICKET_IDENTITY_BYTES {
            return None;
        }
        let mut writer = Writer::new(to);
        writer.u8(FORMAT);
        writer.u32(0);
        let limits = self.limits;
        for number in
            [self.lifetime_s, self.age_add, limits.data, limits.stream_data, limits.streams]
        {
            writer.u32(number);
        }
        writer.u8(self.early.into());
        writer.write_bytes(&self.psk);
        writer.write_bytes(self.identity);
        let len = writer.finish()?;
        let checksum = sha256(&[to.get(1 + CHECKSUM_BYTES..len)?]);
        to.get_mut(1..=CHECKSUM_BYTES)?.copy_from_slice(&checksum[..CHECKSUM_BYTES]);
        Some(len)
    }

    /// Reads what [`write`](Self::write) wrote; [`None`] if it is anything else.
    pub(crate) fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let format = reader.u8()?;
        let checksum = reader.bytes(CHECKSUM_BYTES)?;
        if format != FORMAT || checksum != &sha256(&[reader.rest()])[..CHECKSUM_BYTES] {
            return None;
        }
        let lifetime_s = reader.u32()?;
        let age_add = reader.u32()?;
        let limits =
            SendLimits { data: reader.u32()?, stream_data: reader.u32()?, streams: reader.u32()? };
        let early = reader.u8()? != 0;
        let psk = reader.array()?;
        let identity = reader.rest();
        let fits = !identity.is_empty() && identity.len() <= TICKET_IDENTITY_BYTES;
        fits.then_some(Self { lifetime_s, age_add, early, limits, psk, identity })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn damage_is_noticed() {
        let identity = [7; TICKET_IDENTITY_BYTES + 1];
        let mut ticket = Ticket {
            lifetime_s: 7200,
            age_add: 0x1234_5678,
            early: true,
            limits: SendLimits { data: 1, stream_data: 2, streams: 3 },
            psk: [9; 32],
            identity: &identity,
        };
        let mut bytes = [0; TICKET_BYTES];
        assert_eq!(ticket.write(&mut bytes), None, "too long");
        ticket.identity = &identity[1..];
        assert_eq!(ticket.write(&mut bytes), Some(TICKET_BYTES));
        let again = Ticket::read(&bytes).unwrap();
        assert_eq!((again.lifetime_s, again.age_add, again.early), (7200, 0x1234_5678, true));
        assert_eq!((again.limits.streams, again.psk), (3, [9; 32]));
        assert_eq!(again.identity, &identity[1..]);
        for place in 0..bytes.len() {
            bytes[place] ^= 0x10;
            assert!(Ticket::read(&bytes).is_none(), "{place}");
            bytes[place] ^= 0x10;
        }
        for len in 0..bytes.len() {
            assert!(Ticket::read(&bytes[..len]).is_none(), "{len}");
        }
    }
}
