//! Authenticated encryption of NORM's messages: without the key nobody can read or forge them, and a recorded
//! datagram is not accepted a second time. RFC 5740 section 7 requires such protection and leaves its form open.
//!
//! An encrypted datagram is a header in the clear, a whole message encrypted with AES-128-GCM, and a tag over both:
//!
//! ```text
//! from a sender    0xE1  hint[3]           session[8]  count[4]  message  tag[16]
//! from a receiver  0xE2  hint[3]  node[4]  session[8]  count[4]  message  tag[16]
//! ```
//!
//! All keys come from a transfer's [`Secret`] by HKDF-SHA256. There is one for what its sender sends, which all its
//! receivers have, and one for what each receiver sends, which only that receiver and the sender have. Both are
//! also bound to the random sessions of the two, so that no run repeats a nonce. The count is
//! the nonce; the other end remembers which counts it has received ([`Rejected::Replayed`]). `hint` distinguishes
//! transfers without trying keys. Nothing is decoded, let alone put together with parity, before its tag is verified.
//!
//! A limit: a receiver has the key with which it decrypts, so it could send to other receivers in the sender's name.
//! Where that matters, distribute the file's SHA-256 in another way; `docs/bulk.md` has the whole threat model.

mod keys;
mod receiver;
mod sender;
mod window;

pub use keys::{KEY_BYTES, ReceiverKeys, Secret};
pub use receiver::ReceiverEncryption;
pub use sender::SenderEncryption;

use crate::NodeId;

/// Bytes that encryption adds to a sender's message.
pub const OVERHEAD_BYTES: usize = DOWN_HEADER_BYTES + TAG_BYTES;
/// Length in bytes of a session's random identifier.
pub const SESSION_BYTES: usize = 8;

/// NORM's messages begin with version 1; version 14 is far off.
const DOWN: u8 = 0xE1;
const UP: u8 = 0xE2;
const HINT_BYTES: usize = 3;
const NODE_BYTES: usize = size_of::<NodeId>();
const COUNT_BYTES: usize = 4;
const TAG_BYTES: usize = 16;
const DOWN_HEADER_BYTES: usize = 1 + HINT_BYTES + SESSION_BYTES + COUNT_BYTES;
const UP_HEADER_BYTES: usize = DOWN_HEADER_BYTES + NODE_BYTES;

type Hint = [u8; HINT_BYTES];
type SessionId = [u8; SESSION_BYTES];

/// Whether a datagram looks like an encrypted one.
#[must_use]
pub fn is_encrypted(datagram: &[u8]) -> bool {
    matches!(datagram.first(), Some(&(DOWN | UP)))
}

/// Why a datagram was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// It is not encrypted, or for another transfer, or from the wrong side.
    #[error("not encrypted for this transfer")]
    Foreign,
    /// The message's tag is wrong: it was forged or damaged.
    #[error("forged or damaged")]
    Forged,
    /// It was received before, or is too old to know.
    #[error("replayed")]
    Replayed,
    /// The sender has a valid key, but not that of the participant that the message names.
    #[error("under another participant's identity")]
    Impostor,
    /// The table of participants is full.
    #[error("too many participants")]
    Full,
}

/// Why a message cannot be encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncryptError {
    /// 2^32 messages were encrypted; a new session is needed.
    #[error("the session is used up")]
    Exhausted,
    /// A receiver encrypts an answer for a sender from which it has received nothing.
    #[error("no such sender")]
    Unknown,
}

/// Numbers of refused datagrams by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Not encrypted, or for another transfer.
    pub foreign: u64,
    /// Forged or damaged, in another participant's name, or from one participant too many.
    pub forged: u64,
    /// Replayed.
    pub replayed: u64,
}

impl Counts {
    fn count<T>(&mut self, outcome: Result<T, Rejected>) -> Result<T, Rejected> {
        match &outcome {
            Ok(_) => {}
            Err(Rejected::Foreign) => self.foreign += 1,
            Err(Rejected::Forged | Rejected::Impostor | Rejected::Full) => self.forged += 1,
            Err(Rejected::Replayed) => self.replayed += 1,
        }
        outcome
    }
}

/// The header's fields after its first byte, and the header's length.
struct Header {
    hint: Hint,
    node: NodeId,
    session: SessionId,
    count: u32,
    header_bytes: usize,
}

impl Header {
    fn read(datagram: &[u8], kind: u8) -> Option<Header> {
        let (&first, rest) = datagram.split_first()?;
        if first != kind {
            return None;
        }
        let (&hint, mut rest) = rest.split_first_chunk::<HINT_BYTES>()?;
        let (mut node, mut header_bytes) = (0, DOWN_HEADER_BYTES);
        if kind == UP {
            let (&bytes, after) = rest.split_first_chunk::<NODE_BYTES>()?;
            (node, rest, header_bytes) = (NodeId::from_be_bytes(bytes), after, UP_HEADER_BYTES);
        }
        let (&session, rest) = rest.split_first_chunk::<SESSION_BYTES>()?;
        let (&count, rest) = rest.split_first_chunk::<COUNT_BYTES>()?;
        let count = u32::from_be_bytes(count);
        (rest.len() >= TAG_BYTES).then_some(Header { hint, node, session, count, header_bytes })
    }

    fn write(&self, kind: u8, out: &mut Vec<u8>) {
        out.clear();
        out.push(kind);
        out.extend(self.hint);
        if kind == UP {
            out.extend(self.node.to_be_bytes());
        }
        out.extend(self.session);
        out.extend(self.count.to_be_bytes());
    }
}
