//! The extended link layer (EN 13757-4, 13): CI 8C to 8F, with its own counter-mode encryption.
//!
//! The variable form (CI 86) is not read: no meter that sends it was found to test with.

use super::{Fields, cipher};
use crate::address::Address;
use crate::crc::crc;
use crate::error::Error;
use crate::keys::Key;

/// The CC bits a repeater changes, which are no part of the cipher's counter: hop count, repeated.
const REPEATER_BITS: u8 = 0x12;

pub(crate) const fn is_ell(ci: u8) -> bool {
    matches!(ci, 0x8C..=0x8F)
}

/// The layer's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ell<'a> {
    control: u8,
    /// The frame's number modulo 256.
    pub(crate) access: u8,
    /// Whom it is for, in a dialogue.
    receiver: Option<[u8; 8]>,
    /// Encryption and session, of CI 8D and 8F.
    pub(crate) session: Option<Session>,
    /// Bytes behind this layer; encrypted if the session says so.
    pub(crate) rest: &'a [u8],
}

/// The session number field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Session([u8; 4]);

impl Session {
    const fn number(self) -> u32 {
        u32::from_le_bytes(self.0)
    }

    /// 0 none, 1 AES-128 in counter mode.
    pub(crate) const fn encryption(self) -> u8 {
        (self.number() >> 29) as u8
    }

    /// Grows with every session: minutes and a number within them.
    pub(crate) const fn counter(self) -> u32 {
        self.number() & 0x1FFF_FFFF
    }
}

impl<'a> Ell<'a> {
    /// Reads the layer that begins with this CI field.
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Error> {
        let mut fields = Fields::new(payload, "extended link layer");
        let ci = fields.byte()?;
        let [control, access] = fields.array()?;
        let receiver = if matches!(ci, 0x8E | 0x8F) { Some(fields.array()?) } else { None };
        let session = if matches!(ci, 0x8D | 0x8F) { Some(Session(fields.array()?)) } else { None };
        Ok(Self { control, access, receiver, session, rest: fields.rest() })
    }

    /// The payload in the clear, its checksum checked and removed. Without a session there is
    /// neither.
    pub(crate) fn open(
        &self,
        sender: Address,
        key: Option<&Key>,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        out.clear();
        let Some(session) = self.session else {
            out.extend_from_slice(self.rest);
            return Ok(());
        };
        match session.encryption() {
            0 => {
                out.extend_from_slice(self.rest);
                checked(out)?.ok_or(Error::Malformed("extended link layer's checksum"))
            }
            1 => {
                let key = key.ok_or(Error::NoKey(sender))?;
                let addresses = [Some(sender.to_link()), self.receiver];
                for address in addresses.into_iter().flatten() {
                    out.clear();
                    out.extend_from_slice(self.rest);
                    cipher::ctr(key, &self.counter(address, session), out);
                    if let Some(()) = checked(out)? {
                        return Ok(());
                    }
                }
                Err(Error::WrongKey(sender))
            }
            mode => Err(Error::Mode(mode)),
        }
    }

    /// The first counter block: address, CC, session, and zeros for the frame's number in the session
    /// (meters send one frame a session) and the block's in the frame.
    fn counter(&self, address: [u8; 8], session: Session) -> [u8; 16] {
        let mut block = [0; 16];
        block[..8].copy_from_slice(&address);
        block[8] = self.control & !REPEATER_BITS;
        block[9..13].copy_from_slice(&session.0);
        block
    }
}

/// Removes the checksum at the front; `None` if it does not fit.
fn checked(payload: &mut Vec<u8>) -> Result<Option<()>, Error> {
    let mut fields = Fields::new(payload, "extended link layer");
    let sum = u16::from_le_bytes(fields.array()?);
    if sum != crc(fields.rest()) {
        return Ok(None);
    }
    payload.drain(..2);
    Ok(Some(()))
}

/// Makes a layer with an encrypted session (CI 8D) around a payload, as a meter does.
pub(crate) fn seal(
    sender: Address,
    access: u8,
    session: u32,
    key: &Key,
    payload: &[u8],
) -> Vec<u8> {
    const SYNCHRONOUS: u8 = 0x20;
    let session = Session(((session & 0x1FFF_FFFF) | 1 << 29).to_le_bytes());
    let layer =
        Ell { control: SYNCHRONOUS, access, receiver: None, session: Some(session), rest: &[] };
    let mut body = crc(payload).to_le_bytes().to_vec();
    body.extend_from_slice(payload);
    cipher::ctr(key, &layer.counter(sender.to_link(), session), &mut body);
    let mut out = vec![0x8D, SYNCHRONOUS, access];
    out.extend(session.0);
    out.extend(body);
    out
}
