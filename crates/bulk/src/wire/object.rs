//! NORM_DATA and NORM_INFO (RFC 5740 sections 4.2.1 and 4.2.2) with the FEC payload identifier and the
//! object transmission information of RFC 5510 (encoding 5) and RFC 5445 (encoding 129).

use super::error::WireError;
use super::header::{
    DATA, EXT_FTI, EXT_RATE, INFO, Parts, SenderHead, begin_sender, end_header, extensions,
};
use super::read::{Read, put16, put32};

/// Flags of an object's messages.
pub mod flags {
    /// Sent because a receiver requested it.
    pub const REPAIR: u8 = 0x01;
    /// A repair of this very symbol rather than fresh parity.
    pub const EXPLICIT: u8 = 0x02;
    /// The object has a NORM_INFO.
    pub const INFO: u8 = 0x04;
    /// The sender will not repair it.
    pub const UNRELIABLE: u8 = 0x08;
    /// A hint that the object should be a file.
    pub const FILE: u8 = 0x10;
    /// A stream: its source symbols are [`super::super::Segment`]s.
    pub const STREAM: u8 = 0x20;
}

/// A supported FEC encoding. Both carry the same code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fec {
    /// Encoding 5: Reed-Solomon over GF(2^8), 24 bits of block number, 8 of symbol number.
    #[default]
    ReedSolomon8,
    /// Encoding 129, "small block systematic", as in NRL's NORM: 32 bits of block number, 16 of length, 16 of symbol
    /// number.
    SmallBlock,
}

impl Fec {
    pub(super) fn number(self) -> u8 {
        match self {
            Fec::ReedSolomon8 => 5,
            Fec::SmallBlock => 129,
        }
    }

    pub(super) fn from_number(number: u8) -> Result<Fec, WireError> {
        match number {
            5 => Ok(Fec::ReedSolomon8),
            129 => Ok(Fec::SmallBlock),
            other => Err(WireError::Kind(other)),
        }
    }
}

/// Identifies a symbol of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SymbolId {
    /// The block, below 2^24.
    pub block: u32,
    /// The symbol: source symbols from 0, parity symbols after them.
    pub symbol: u16,
    /// Source symbols of the block; only [`Fec::SmallBlock`] carries this field.
    pub block_len: u16,
}

impl SymbolId {
    pub(super) fn decode(read: &mut Read<'_>, fec: Fec) -> Result<SymbolId, WireError> {
        match fec {
            Fec::ReedSolomon8 => {
                let packed = read.u32()?;
                Ok(SymbolId { block: packed >> 8, symbol: (packed & 0xFF) as u16, block_len: 0 })
            }
            Fec::SmallBlock => {
                let (block, block_len, symbol) = (read.u32()?, read.u16()?, read.u16()?);
                Ok(SymbolId { block, symbol, block_len })
            }
        }
    }

    pub(super) fn encode(self, out: &mut Vec<u8>, fec: Fec) {
        match fec {
            Fec::ReedSolomon8 => put32(out, self.block << 8 | u32::from(self.symbol & 0xFF)),
            Fec::SmallBlock => {
                put32(out, self.block);
                put16(out, self.block_len);
                put16(out, self.symbol);
            }
        }
    }
}

/// The parameters of an object that a receiver needs to decode it (EXT_FTI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fti {
    /// The object's length, below 2^48.
    pub object_bytes: u64,
    /// Length of a symbol.
    pub symbol_bytes: u16,
    /// The most source symbols of a block.
    pub max_block: u16,
    /// Parity symbols of each block. RFC 5510 has the sum of both here; NRL's implementation, with which this one
    /// interoperates, has the parity alone.
    pub parity: u16,
}

impl Fti {
    fn decode(read: &mut Read<'_>, fec: Fec) -> Result<Fti, WireError> {
        let object_bytes = u64::from(read.u16()?) << 32 | u64::from(read.u32()?);
        Ok(match fec {
            Fec::ReedSolomon8 => {
                let symbol_bytes = read.u16()?;
                let (max_block, parity) = (read.u8()?.into(), read.u8()?.into());
                Fti { object_bytes, symbol_bytes, max_block, parity }
            }
            Fec::SmallBlock => {
                let _instance = read.u16()?;
                let (symbol_bytes, max_block, parity) = (read.u16()?, read.u16()?, read.u16()?);
                Fti { object_bytes, symbol_bytes, max_block, parity }
            }
        })
    }

    fn encode(self, out: &mut Vec<u8>, fec: Fec) {
        let words = if fec == Fec::ReedSolomon8 { 3 } else { 4 };
        out.extend([EXT_FTI, words]);
        put16(out, (self.object_bytes >> 32) as u16);
        put32(out, self.object_bytes as u32);
        match fec {
            Fec::ReedSolomon8 => {
                put16(out, self.symbol_bytes);
                out.extend([self.max_block as u8, self.parity as u8]);
            }
            Fec::SmallBlock => {
                put16(out, 0);
                put16(out, self.symbol_bytes);
                put16(out, self.max_block);
                put16(out, self.parity);
            }
        }
    }
}

/// A message of an object: a symbol or the info.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ObjectMessage<'a> {
    /// The sender's header.
    pub head: SenderHead,
    /// See [`flags`].
    pub flags: u8,
    /// The encoding of `symbol` and `fti`.
    pub fec: Fec,
    /// The object.
    pub object: u16,
    /// The symbol's identifier; `None` for NORM_INFO.
    pub symbol: Option<SymbolId>,
    /// The object's parameters, if they are there.
    pub fti: Option<Fti>,
    /// The sender's rate as EXT_RATE has it, if it is there.
    pub rate: Option<u16>,
    /// The symbol, or the info.
    pub payload: &'a [u8],
}

impl<'a> ObjectMessage<'a> {
    pub(super) fn decode(mut parts: Parts<'a>, data: bool) -> Result<Self, WireError> {
        let head = parts.sender_head()?;
        let flags = parts.header.u8()?;
        let fec = parts.header.u8()?;
        let object = parts.header.u16()?;
        // A NORM_INFO without extensions has no fields of an encoding.
        let fec = match Fec::from_number(fec) {
            Err(_) if !data && parts.header.0.is_empty() => Fec::default(),
            fec => fec?,
        };
        let symbol = data.then(|| SymbolId::decode(&mut parts.header, fec)).transpose()?;
        let (mut fti, mut rate) = (None, None);
        extensions(parts.header, |kind, mut content| {
            match kind {
                EXT_FTI => fti = Some(Fti::decode(&mut content, fec)?),
                EXT_RATE => {
                    content.u8()?;
                    rate = Some(content.u16()?);
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(ObjectMessage { head, flags, fec, object, symbol, fti, rate, payload: parts.payload })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let kind = if self.symbol.is_some() { DATA } else { INFO };
        let start = begin_sender(out, kind, &self.head);
        out.extend([self.flags, self.fec.number()]);
        put16(out, self.object);
        if let Some(symbol) = self.symbol {
            symbol.encode(out, self.fec);
        }
        if let Some(fti) = self.fti {
            fti.encode(out, self.fec);
        }
        if let Some(rate) = self.rate {
            out.extend([EXT_RATE, 0]);
            put16(out, rate);
        }
        end_header(out, start);
        out.extend_from_slice(self.payload);
    }
}
