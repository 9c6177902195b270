//! NORM's messages (RFC 5740 section 4) as bytes and back.
//!
//! [`Message::decode`] borrows from the datagram, checks every length before it looks, and allocates
//! nothing. Whether a message makes sense at this moment is for `sender`, `receiver` and `stream` to
//! judge. Reports and the congestion control's node list as a whole are passed over.

mod command;
mod feedback;
mod object;
mod read;
mod repair;
mod segment;

pub use command::{Command, CommandKind, NodeList, ObjectList, Probe};
pub use feedback::{AckKind, CcFeedback, Feedback, FeedbackKind, cc_flags};
pub use object::{Fec, Fti, ObjectMessage, SymbolId, flags};
pub use repair::{Form, Level, Requests, Span, Writer};
pub use segment::{SEGMENT_HEAD_BYTES, Segment};

use std::time::Duration;

use crate::NodeId;
use read::{Read, put16, put32};

/// The version of the protocol.
const VERSION: u8 = 1;
/// Largest datagram there is over IPv4.
pub const MAX_DATAGRAM_BYTES: usize = 65_507;

const INFO: u8 = 1;
const DATA: u8 = 2;
const COMMAND: u8 = 3;
const NACK: u8 = 4;
const ACK: u8 = 5;

const EXT_CC: u8 = 3;
const EXT_FTI: u8 = 64;
const EXT_RATE: u8 = 128;

/// Why a datagram is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// It ends before its end, or a length in it reaches beyond it.
    #[error("cut off")]
    Short,
    /// Not version 1.
    #[error("version {0}")]
    Version(u8),
    /// A type, a command or an FEC encoding that we don't know.
    #[error("unknown kind {0}")]
    Kind(u8),
    /// A header length that does not fit the message, or a node without identity.
    #[error("contradictory header")]
    Header,
}

/// What all messages of a sender begin with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderHead {
    /// The sender.
    pub source: NodeId,
    /// Counts its messages.
    pub sequence: u16,
    /// Tells one run of it from another.
    pub instance: u16,
    /// Longest round-trip time in the group, quantized.
    pub grtt: u8,
    /// Longest wait before a NACK, in multiples of it; 0 to 15.
    pub backoff: u8,
    /// Size of the group, quantized; 0 to 15.
    pub group: u8,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Message<'a> {
    /// NORM_INFO or NORM_DATA.
    Object(ObjectMessage<'a>),
    /// NORM_CMD.
    Command(Command<'a>),
    /// NORM_NACK or NORM_ACK.
    Feedback(Feedback<'a>),
}

impl<'a> Message<'a> {
    /// Reads a datagram.
    ///
    /// # Errors
    /// It is not a message, or one that we don't know; see [`WireError`].
    pub fn decode(datagram: &'a [u8]) -> Result<Message<'a>, WireError> {
        let mut read = Read(datagram);
        let first = read.u8()?;
        if first >> 4 != VERSION {
            return Err(WireError::Version(first >> 4));
        }
        let header_bytes = usize::from(read.u8()?) * 4;
        let sequence = read.u16()?;
        let source = read.u32()?;
        if source == 0 || source == NodeId::MAX {
            return Err(WireError::Header);
        }
        if datagram.len() < header_bytes {
            return Err(WireError::Short);
        }
        let (Some(header), payload) =
            (datagram[..header_bytes].get(8..), &datagram[header_bytes..])
        else {
            return Err(WireError::Header);
        };
        // A header that ends early contradicts its own length.
        let inside = |error| if error == WireError::Short { WireError::Header } else { error };
        let parts = Parts { source, sequence, header: Read(header), payload };
        match first & 0x0F {
            kind @ (INFO | DATA) => ObjectMessage::decode(parts, kind == DATA).map(Message::Object),
            COMMAND => Command::decode(parts).map(Message::Command),
            kind @ (NACK | ACK) => Feedback::decode(parts, kind == NACK).map(Message::Feedback),
            kind => Err(WireError::Kind(kind)),
        }
        .map_err(inside)
    }

    /// Appends the message's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Message::Object(message) => message.encode(out),
            Message::Command(message) => message.encode(out),
            Message::Feedback(message) => message.encode(out),
        }
    }
}

/// A message taken apart: the rest of its header, and what follows the header.
struct Parts<'a> {
    source: NodeId,
    sequence: u16,
    header: Read<'a>,
    payload: &'a [u8],
}

impl Parts<'_> {
    /// The rest of a sender's head.
    fn sender_head(&mut self) -> Result<SenderHead, WireError> {
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
fn extensions<'a>(
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
        each(kind, Read(header.take(bytes)?))?;
    }
    Ok(())
}

/// Begins a message; [`end_header`] fills in its length.
fn begin(out: &mut Vec<u8>, kind: u8, sequence: u16, source: NodeId) -> usize {
    let start = out.len();
    out.extend([VERSION << 4 | kind, 0]);
    put16(out, sequence);
    put32(out, source);
    start
}

fn begin_sender(out: &mut Vec<u8>, kind: u8, head: &SenderHead) -> usize {
    let start = begin(out, kind, head.sequence, head.source);
    put16(out, head.instance);
    out.extend([head.grtt, head.backoff << 4 | head.group & 15]);
    start
}

/// The header ends here. Ours are far below the 1020 bytes that its length can say.
fn end_header(out: &mut [u8], start: usize) {
    let words = (out.len() - start) / 4;
    out[start + 1] = u8::try_from(words).unwrap_or(u8::MAX);
}

/// A sender's time in seconds and microseconds; zero stands for none.
fn put_time(out: &mut Vec<u8>, time: Option<Duration>) {
    let time = time.unwrap_or_default();
    put32(out, u32::try_from(time.as_secs()).unwrap_or(u32::MAX));
    put32(out, time.subsec_micros());
}

fn take_time(read: &mut Read<'_>) -> Result<Option<Duration>, WireError> {
    let (seconds, micros) = (read.u32()?, read.u32()?);
    if micros >= 1_000_000 {
        return Err(WireError::Header);
    }
    let time = Duration::from_secs(seconds.into()) + Duration::from_micros(micros.into());
    Ok((!time.is_zero()).then_some(time))
}

#[cfg(test)]
mod tests;
