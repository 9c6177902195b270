//! NORM_CMD (RFC 5740 section 4.2.3).

use std::time::Duration;

use super::error::WireError;
use super::header::{
    COMMAND, EXT_RATE, Parts, SenderHead, begin_sender, end_header, extensions, put_time, take_time,
};
use super::object::{Fec, SymbolId};
use super::read::{Read, put16, put32};
use super::repair::Requests;
use crate::NodeId;

const FLUSH: u8 = 1;
const EOT: u8 = 2;
const SQUELCH: u8 = 3;
const CC: u8 = 4;
const REPAIR_ADV: u8 = 5;
const ACK_REQ: u8 = 6;
const APPLICATION: u8 = 7;

/// The nodes in a message. An incomplete node at the end is ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeList<'a>(&'a [u8]);

impl<'a> NodeList<'a> {
    /// Appends a node to bytes for [`NodeList::from_bytes`].
    pub fn push(bytes: &mut Vec<u8>, node: NodeId) {
        put32(bytes, node);
    }

    /// The list in these bytes.
    #[must_use]
    pub fn from_bytes(bytes: &'a [u8]) -> NodeList<'a> {
        NodeList(bytes)
    }

    /// The nodes.
    pub fn iter(&self) -> impl Iterator<Item = NodeId> + 'a {
        self.0.as_chunks().0.iter().map(|bytes| u32::from_be_bytes(*bytes))
    }
}

/// Objects in a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectList<'a>(&'a [u8]);

impl<'a> ObjectList<'a> {
    /// The list in these bytes, two per object.
    #[must_use]
    pub fn from_bytes(bytes: &'a [u8]) -> ObjectList<'a> {
        ObjectList(bytes)
    }

    /// The objects.
    pub fn iter(&self) -> impl Iterator<Item = u16> + 'a {
        self.0.as_chunks().0.iter().map(|bytes| u16::from_be_bytes(*bytes))
    }
}

/// The content of NORM_CMD(CC), by which round-trip times are measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probe<'a> {
    /// Counts probes.
    pub sequence: u16,
    /// The sender's time.
    pub sent: Option<Duration>,
    /// The sender's rate, quantized (EXT_RATE), if it is there.
    pub rate: Option<u16>,
    nodes: &'a [u8],
}

impl<'a> Probe<'a> {
    /// A probe with these nodes, made by [`Probe::push`].
    #[must_use]
    pub fn new(sequence: u16, sent: Duration, rate: Option<u16>, nodes: &'a [u8]) -> Probe<'a> {
        Probe { sequence, sent: Some(sent), rate, nodes }
    }

    /// Appends a node with its flags, its quantized round-trip time and rate.
    pub fn push(bytes: &mut Vec<u8>, node: NodeId, flags: u8, rtt: u8, rate: u16) {
        put32(bytes, node);
        bytes.extend([flags, rtt]);
        put16(bytes, rate);
    }

    /// The quantized round-trip time that the sender has measured for a node, if it knows the node.
    #[must_use]
    pub fn rtt_of(&self, node: NodeId) -> Option<u8> {
        let nodes = self.nodes.as_chunks::<8>().0;
        nodes.iter().find(|item| item[..4] == node.to_be_bytes()).map(|item| item[5])
    }
}

/// The kind of a command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CommandKind<'a> {
    /// Everything up to here has been sent; the named nodes are to acknowledge it.
    Flush {
        /// The object.
        object: u16,
        /// The last symbol sent.
        at: SymbolId,
        /// The nodes that are to acknowledge.
        nodes: NodeList<'a>,
    },
    /// The end of transmission.
    Eot,
    /// Nothing before this position can be repaired any more, nor can the objects named.
    Squelch {
        /// The first object that can be repaired.
        object: u16,
        /// First symbol of this object that can be repaired.
        at: SymbolId,
        /// Later objects that cannot be repaired.
        invalid: ObjectList<'a>,
    },
    /// A probe of round-trip times.
    Probe(Probe<'a>),
    /// Requests that the sender has received already.
    RepairAdv {
        /// Requests whose repair follows.
        requests: Requests<'a>,
        /// There are more than fit.
        limit: bool,
    },
    /// The named nodes are to acknowledge something other than a flush.
    AckRequest {
        /// Kind of acknowledgement requested.
        kind: u8,
        /// Distinguishes requests.
        id: u8,
        /// The nodes.
        nodes: NodeList<'a>,
    },
    /// A command of the application.
    Application(&'a [u8]),
}

/// A sender's command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Command<'a> {
    /// The sender's header.
    pub head: SenderHead,
    /// The encoding of symbols.
    pub fec: Fec,
    /// The command.
    pub kind: CommandKind<'a>,
}

impl<'a> Command<'a> {
    pub(super) fn decode(mut parts: Parts<'a>) -> Result<Self, WireError> {
        let head = parts.sender_head()?;
        let flavor = parts.header.u8()?;
        let first = parts.header.u8()?;
        let second = parts.header.u16()?;
        let mut fec = Fec::default();
        let payload = parts.payload;
        let kind = match flavor {
            FLUSH | SQUELCH => {
                fec = Fec::from_number(first)?;
                let at = SymbolId::decode(&mut parts.header, fec)?;
                if flavor == FLUSH {
                    CommandKind::Flush { object: second, at, nodes: NodeList(payload) }
                } else {
                    CommandKind::Squelch { object: second, at, invalid: ObjectList(payload) }
                }
            }
            EOT => CommandKind::Eot,
            CC => CommandKind::Probe(probe(second, &mut parts)?),
            REPAIR_ADV => {
                let requests = Requests::check(payload)?;
                CommandKind::RepairAdv { requests, limit: first & 1 != 0 }
            }
            ACK_REQ => {
                let [kind, id] = second.to_be_bytes();
                CommandKind::AckRequest { kind, id, nodes: NodeList(payload) }
            }
            APPLICATION => CommandKind::Application(payload),
            other => return Err(WireError::Kind(other)),
        };
        Ok(Command { head, fec, kind })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let start = begin_sender(out, COMMAND, &self.head);
        let payload = match self.kind {
            CommandKind::Flush { object, at, nodes } => {
                out.extend([FLUSH, self.fec.number()]);
                put16(out, object);
                at.encode(out, self.fec);
                nodes.0
            }
            CommandKind::Eot => {
                out.extend([EOT, 0, 0, 0]);
                &[]
            }
            CommandKind::Squelch { object, at, invalid } => {
                out.extend([SQUELCH, self.fec.number()]);
                put16(out, object);
                at.encode(out, self.fec);
                invalid.0
            }
            CommandKind::Probe(probe) => {
                out.extend([CC, 0]);
                put16(out, probe.sequence);
                put_time(out, probe.sent);
                if let Some(rate) = probe.rate {
                    out.extend([EXT_RATE, 0]);
                    put16(out, rate);
                }
                probe.nodes
            }
            CommandKind::RepairAdv { requests, limit } => {
                out.extend([REPAIR_ADV, limit.into(), 0, 0]);
                requests.bytes()
            }
            CommandKind::AckRequest { kind, id, nodes } => {
                out.extend([ACK_REQ, 0, kind, id]);
                nodes.0
            }
            CommandKind::Application(content) => {
                out.extend([APPLICATION, 0, 0, 0]);
                content
            }
        };
        end_header(out, start);
        out.extend_from_slice(payload);
    }
}

fn probe<'a>(sequence: u16, parts: &mut Parts<'a>) -> Result<Probe<'a>, WireError> {
    let sent = take_time(&mut parts.header)?;
    let mut rate = None;
    extensions(parts.header, |kind, mut content: Read<'_>| {
        if kind == EXT_RATE {
            content.u8()?;
            rate = Some(content.u16()?);
        }
        Ok(())
    })?;
    Ok(Probe { sequence, sent, rate, nodes: parts.payload })
}
