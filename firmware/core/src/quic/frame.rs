//! Frames as a server may send them (RFC 9000, section 19): read, not acted upon.

use super::packet::{Id, Space};
use crate::bytes::Reader;

pub(super) enum Frame<'a> {
    Padding,
    Ping,
    Ack(Ack<'a>),
    ResetStream {
        id: u32,
        final_size: u32,
    },
    StopSending {
        id: u32,
    },
    Crypto {
        offset: u32,
        data: &'a [u8],
    },
    Stream {
        id: u32,
        offset: u32,
        data: &'a [u8],
        fin: bool,
    },
    MaxData(u32),
    MaxStreamData {
        id: u32,
        limit: u32,
    },
    NewConnectionId {
        sequence: u32,
        retire_before: u32,
        id: Id,
        reset_token: [u8; 16],
    },
    PathChallenge([u8; 8]),
    Close {
        code: u32,
        application: bool,
    },
    HandshakeDone,
    /// A frame that has no meaning for us, but is allowed.
    Ignored,
}

/// Acknowledged ranges, the highest first.
#[derive(Clone)]
pub(super) struct Ack<'a> {
    pub(super) largest: u32,
    /// In the peer's units.
    pub(super) delay: u32,
    /// The length of the first range, less one.
    first: u32,
    count: u32,
    ranges: Reader<'a>,
}

impl Ack<'_> {
    /// Calls `visit` with every range, both ends being part of it; [`None`] if one is below 0.
    pub(super) fn for_each_range(mut self, mut visit: impl FnMut(u32, u32)) -> Option<()> {
        let mut low = self.largest.checked_sub(self.first)?;
        visit(low, self.largest);
        for _ in 0..self.count {
            let high = low.checked_sub(self.ranges.varint()?)?.checked_sub(2)?;
            low = high.checked_sub(self.ranges.varint()?)?;
            visit(low, high);
        }
        Some(())
    }
}

impl Frame<'_> {
    /// Whether the frame may come in packets of `space` (section 12.4, table 3).
    pub(super) fn is_allowed_in(&self, space: Space) -> bool {
        space == Space::Data
            || matches!(
                self,
                Self::Padding
                    | Self::Ping
                    | Self::Ack(_)
                    | Self::Crypto { .. }
                    | Self::Close { application: false, .. }
            )
    }

    pub(super) fn is_ack_eliciting(&self) -> bool {
        !matches!(self, Self::Padding | Self::Ack(_) | Self::Close { .. })
    }
}

/// Takes a frame off `reader`; [`None`] if it is malformed or of a kind that only clients send.
#[inline(never)]
pub(super) fn parse<'a>(reader: &mut Reader<'a>) -> Option<Frame<'a>> {
    let kind = reader.u8()?;
    Some(match kind {
        0x00 => Frame::Padding,
        0x01 => Frame::Ping,
        0x02 | 0x03 => {
            let largest = reader.varint()?;
            let delay = reader.varint()?;
            let count = reader.varint()?;
            let first = reader.varint()?;
            let ranges = reader.clone();
            for _ in 0..count {
                reader.varint()?;
                reader.varint()?;
            }
            if kind == 0x03 {
                for _ in 0..3 {
                    reader.varint()?; // Counts of congestion marks; we set none.
                }
            }
            Frame::Ack(Ack { largest, delay, first, count, ranges })
        }
        0x04 => {
            let id = reader.varint()?;
            reader.varint()?;
            Frame::ResetStream { id, final_size: reader.varint()? }
        }
        0x05 => {
            let id = reader.varint()?;
            reader.varint()?;
            Frame::StopSending { id }
        }
        0x06 => Frame::Crypto { offset: reader.varint()?, data: reader.block_varint()?.rest() },
        0x07 => (!reader.block_varint()?.is_empty()).then_some(Frame::Ignored)?, // NEW_TOKEN
        0x08..=0x0f => {
            let id = reader.varint()?;
            let offset = if kind & 4 != 0 { reader.varint()? } else { 0 };
            let data = if kind & 2 != 0 {
                reader.block_varint()?.rest()
            } else {
                reader.bytes(reader.rest().len())?
            };
            Frame::Stream { id, offset, data, fin: kind & 1 != 0 }
        }
        0x10 => Frame::MaxData(reader.varint()?),
        0x11 => Frame::MaxStreamData { id: reader.varint()?, limit: reader.varint()? },
        0x12..=0x14 | 0x16 | 0x17 => {
            reader.varint()?; // MAX_STREAMS, DATA_BLOCKED, STREAMS_BLOCKED
            Frame::Ignored
        }
        0x15 => {
            reader.varint()?; // STREAM_DATA_BLOCKED
            reader.varint()?;
            Frame::Ignored
        }
        0x18 => {
            let sequence = reader.varint()?;
            let retire_before = reader.varint()?;
            let id = reader.block8()?.rest();
            let fine = !id.is_empty() && retire_before <= sequence;
            let id = Id::new(id).filter(|_| fine)?;
            Frame::NewConnectionId { sequence, retire_before, id, reset_token: reader.array()? }
        }
        0x1a => Frame::PathChallenge(reader.array()?),
        0x1c | 0x1d => {
            let code = reader.varint()?;
            let application = kind == 0x1d;
            if !application {
                reader.varint()?;
            }
            reader.block_varint()?; // A reason, for people.
            Frame::Close { code, application }
        }
        0x1e => Frame::HandshakeDone,
        // RETIRE_CONNECTION_ID and PATH_RESPONSE have nothing of ours to refer to.
        _ => return None,
    })
}
