//! Reads big-endian numbers from a slice, with bounds checks, and writes them to a buffer.

use super::error::WireError;

#[derive(Clone, Copy, Debug)]
pub(super) struct Read<'a>(pub(super) &'a [u8]);

impl<'a> Read<'a> {
    pub(super) fn bytes(&mut self, bytes: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(WireError::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(WireError::Short)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, WireError> {
        self.array().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_be_bytes)
    }
}

pub(super) fn put16(out: &mut Vec<u8>, value: u16) {
    out.extend(value.to_be_bytes());
}

pub(super) fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend(value.to_be_bytes());
}
