//! NORM_NACK and NORM_ACK (RFC 5740 section 4.3).

use std::time::Duration;

use super::error::WireError;
use super::header::{ACK, EXT_CC, NACK, Parts, begin, end_header, extensions, put_time, take_time};
use super::object::{Fec, SymbolId};
use super::read::{Read, put16, put32};
use super::repair::Requests;
use crate::NodeId;

const ACK_CC: u8 = 1;
const ACK_FLUSH: u8 = 2;

/// Flags of a receiver's report.
pub mod cc_flags {
    /// It has measured its round-trip time.
    pub const RTT: u8 = 0x04;
    /// It has lost nothing so far.
    pub const START: u8 = 0x08;
    /// It leaves.
    pub const LEAVE: u8 = 0x10;
}

/// A receiver's report of its reception (EXT_CC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CcFeedback {
    /// The probe it answers.
    pub sequence: u16,
    /// See [`cc_flags`].
    pub flags: u8,
    /// The receiver's round-trip time, quantized.
    pub rtt: u8,
    /// The share of messages that it loses, of 65535.
    pub loss: u16,
    /// The rate at which it receives, quantized.
    pub rate: u16,
}

/// Subject of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AckKind<'a> {
    /// A probe.
    Probe,
    /// A flush: everything up to this symbol was received.
    Flush {
        /// The object.
        object: u16,
        /// The symbol.
        at: SymbolId,
        /// The encoding of the symbol.
        fec: Fec,
    },
    /// An acknowledgement of the application.
    Other(u8, &'a [u8]),
}

/// The kind of feedback.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FeedbackKind<'a> {
    /// A request for missing data.
    Nack(Requests<'a>),
    /// An acknowledgement; the number distinguishes requests.
    Ack(AckKind<'a>, u8),
}

/// A receiver's message to a sender.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Feedback<'a> {
    /// The receiver.
    pub source: NodeId,
    /// Counts its messages.
    pub sequence: u16,
    /// The sender to which it is addressed.
    pub sender: NodeId,
    /// The sender's instance (run).
    pub instance: u16,
    /// The sender's time in the last probe plus the time since the probe was received: the sender's clock one one-way
    /// delay before this message was sent.
    pub echo: Option<Duration>,
    /// The receiver's report, if it is there.
    pub report: Option<CcFeedback>,
    /// The kind and its content.
    pub kind: FeedbackKind<'a>,
}

impl<'a> Feedback<'a> {
    pub(super) fn decode(mut parts: Parts<'a>, nack: bool) -> Result<Self, WireError> {
        let sender = parts.header.u32()?;
        let instance = parts.header.u16()?;
        let [kind, id] = parts.header.u16()?.to_be_bytes();
        let echo = take_time(&mut parts.header)?;
        let mut report = None;
        extensions(parts.header, |kind, mut content| {
            if kind == EXT_CC {
                let sequence = content.u16()?;
                let (flags, rtt) = (content.u8()?, content.u8()?);
                let (loss, rate) = (content.u16()?, content.u16()?);
                report = Some(CcFeedback { sequence, flags, rtt, loss, rate });
            }
            Ok(())
        })?;
        let kind = if nack {
            FeedbackKind::Nack(Requests::check(parts.payload)?)
        } else {
            FeedbackKind::Ack(ack(kind, parts.payload)?, id)
        };
        let (source, sequence) = (parts.source, parts.sequence);
        Ok(Feedback { source, sequence, sender, instance, echo, report, kind })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let kind = if matches!(self.kind, FeedbackKind::Nack(_)) { NACK } else { ACK };
        let start = begin(out, kind, self.sequence, self.source);
        put32(out, self.sender);
        put16(out, self.instance);
        out.extend(match self.kind {
            FeedbackKind::Nack(_) => [0, 0],
            FeedbackKind::Ack(AckKind::Probe, id) => [ACK_CC, id],
            FeedbackKind::Ack(AckKind::Flush { .. }, id) => [ACK_FLUSH, id],
            FeedbackKind::Ack(AckKind::Other(kind, _), id) => [kind, id],
        });
        put_time(out, self.echo);
        if let Some(report) = self.report {
            out.extend([EXT_CC, 3]);
            put16(out, report.sequence);
            out.extend([report.flags, report.rtt]);
            put16(out, report.loss);
            put16(out, report.rate);
            put16(out, 0);
        }
        end_header(out, start);
        match self.kind {
            FeedbackKind::Nack(requests) => out.extend_from_slice(requests.bytes()),
            FeedbackKind::Ack(AckKind::Probe, _) => {}
            FeedbackKind::Ack(AckKind::Flush { object, at, fec }, _) => {
                out.extend([fec.number(), 0]);
                put16(out, object);
                at.encode(out, fec);
            }
            FeedbackKind::Ack(AckKind::Other(_, content), _) => out.extend_from_slice(content),
        }
    }
}

fn ack(kind: u8, payload: &[u8]) -> Result<AckKind<'_>, WireError> {
    Ok(match kind {
        ACK_CC => AckKind::Probe,
        ACK_FLUSH => {
            let mut read = Read(payload);
            let fec = Fec::from_number(read.u8()?)?;
            read.u8()?;
            let object = read.u16()?;
            AckKind::Flush { object, at: SymbolId::decode(&mut read, fec)?, fec }
        }
        other => AckKind::Other(other, payload),
    })
}
