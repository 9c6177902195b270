//! What lies between the link frame and the records: extended link layer, authentication and
//! fragmentation layer, transport layer, and the ciphers of each.
//!
//! Layers are read outside in; each module knows one and leaves the rest of the bytes to the next.

pub(crate) mod afl;
pub(crate) mod cipher;
pub(crate) mod ell;
pub(crate) mod tpl;

use crate::error::Error;

/// Reads fields off the front of a frame.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
    layer: &'static str,
}

impl<'a> Fields<'a> {
    pub(crate) const fn new(bytes: &'a [u8], layer: &'static str) -> Self {
        Self { rest: bytes, layer }
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Error> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Error::Short(self.layer))?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or(Error::Short(self.layer))?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) const fn rest(self) -> &'a [u8] {
        self.rest
    }
}
