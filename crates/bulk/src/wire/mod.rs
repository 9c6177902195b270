//! Encodes and decodes NORM's messages (RFC 5740 section 4).
//!
//! [`Message::decode`] borrows from the datagram, checks every length before it reads, and allocates nothing. Whether
//! a message makes sense at the moment is for `sender`, `receiver` and `stream` to decide. Reports and the congestion
//! control's node list are skipped as a whole.

mod command;
mod error;
mod feedback;
mod header;
mod object;
mod read;
mod repair;
mod segment;

pub use command::{Command, CommandKind, NodeList, ObjectList, Probe};
pub use error::WireError;
pub use feedback::{AckKind, CcFeedback, Feedback, FeedbackKind, cc_flags};
pub use header::SenderHead;
pub use object::{Fec, Fti, ObjectMessage, SymbolId, flags};
pub use repair::{Form, Level, Requests, Span, Writer};
pub use segment::{SEGMENT_HEAD_BYTES, Segment};

use crate::NodeId;
use header::{ACK, COMMAND, DATA, INFO, NACK, Parts, VERSION};
use read::Read;

/// Largest datagram there is over IPv4.
pub const MAX_DATAGRAM_BYTES: usize = 65_507;

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
        // A header that ends too early contradicts its own length.
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

    /// Appends the encoded message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Message::Object(message) => message.encode(out),
            Message::Command(message) => message.encode(out),
            Message::Feedback(message) => message.encode(out),
        }
    }
}

#[cfg(test)]
mod tests;
