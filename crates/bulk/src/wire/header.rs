//! The headers of messages (RFC 5740 section 4.1), and their extensions.

use std::time::Duration;

use super::error::WireError;
use super::read::{Read, put16, put32};
use crate::NodeId;

/// The version of the protocol.
pub(super) const VERSION: u8 = 1;

pub(super) const INFO: u8 = 1;
pub(super) const DATA: u8 = 2;
pub(super) const COMMAND: u8 = 3;
pub(super) const NACK: u8 = 4;
pub(super) const ACK: u8 = 5;

pub(super) const EXT_CC: u8 = 3;
pub(super) const EXT_FTI: u8 = 64;
pub(super) const EXT_RATE: u8 = 128;

/// The fields at the beginning of all messages of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderHead {
    /// The sender.
    pub source: NodeId,
    /// Counts its messages.
    pub sequence: u16,
    /// Distinguishes runs of the sender.
    pub instance: u16,
    /// Longest round-trip time in the group, quantized.
    pub grtt: u8,
    /// Longest wait before a NACK, in multiples of it; 0 to 15.
    pub backoff: u8,
    /// Size of the group, quantized; 0 to 15.
    pub group: u8,
}

/// A message taken apart: the rest of its header, and what follows the header.
pub(super) struct Parts<'a> {
    pub(super) source: NodeId,
    pub(super) sequence: u16,
    pub(super) header: Read<'a>,
    pub(super) payload: &'a [u8],
}

impl Parts<'_> {
    /// The rest of a sender's head.
    pub(super) fn sender_head(&mut self) -> Result<SenderHead, WireError> {
        let instance = self.header.u16()?;
        let grtt = self.header.u8()?;
        let packed = self.header.u8()?;
        let (source, sequence) = (self.source, self.sequence);
        Ok(SenderHead {
            source,
            sequence,
            instance,
            grtt,
            backoff: packed >> 4,
            group: packed & 15,
        })
    }
}

/// The header extensions of a message (RFC 5740 section 4.1): their types and contents.
pub(super) fn extensions<'a>(
    mut header: Read<'a>,
    mut each: impl FnMut(u8, Read<'a>) -> Result<(), WireError>,
) -> Result<(), WireError> {
    while !header.0.is_empty() {
        let kind = header.u8()?;
        let bytes = if kind < 128 {
            (usize::from(header.u8()?) * 4).checked_sub(2).ok_or(WireError::Header)?
        } else {
            3
        };
        each(kind, Read(header.bytes(bytes)?))?;
    }
    Ok(())
}

/// Begins a message; [`end_header`] fills in its length.
pub(super) fn begin(out: &mut Vec<u8>, kind: u8, sequence: u16, source: NodeId) -> usize {
    let start = out.len();
    out.extend([VERSION << 4 | kind, 0]);
    put16(out, sequence);
    put32(out, source);
    start
}

pub(super) fn begin_sender(out: &mut Vec<u8>, kind: u8, head: &SenderHead) -> usize {
    let start = begin(out, kind, head.sequence, head.source);
    put16(out, head.instance);
    out.extend([head.grtt, head.backoff << 4 | head.group & 15]);
    start
}

/// The header ends here. Ours are far below the 1020 bytes that its length can say.
pub(super) fn end_header(out: &mut [u8], start: usize) {
    let words = (out.len() - start) / 4;
    out[start + 1] = u8::try_from(words).unwrap_or(u8::MAX);
}

/// A sender's time in seconds and microseconds; zero stands for none.
pub(super) fn put_time(out: &mut Vec<u8>, time: Option<Duration>) {
    let time = time.unwrap_or_default();
    put32(out, u32::try_from(time.as_secs()).unwrap_or(u32::MAX));
    put32(out, time.subsec_micros());
}

pub(super) fn take_time(read: &mut Read<'_>) -> Result<Option<Duration>, WireError> {
    let (seconds, micros) = (read.u32()?, read.u32()?);
    if micros >= 1_000_000 {
        return Err(WireError::Header);
    }
    let time = Duration::from_secs(seconds.into()) + Duration::from_micros(micros.into());
    Ok((!time.is_zero()).then_some(time))
}
