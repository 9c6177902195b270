//! The transport layer (EN 13757-7, 7): headers, the configuration field, security modes 0, 5 and 7.
//!
//! Mode 5 is AES-128-CBC under the meter's key with an IV from its address and access number. Mode 7
//! is the same under a key derived for each message, with an IV of zeros. In both the first two bytes
//! of the plain text are fillers, which is how a wrong key is noticed; mode 7 comes with a proper
//! authentication code besides (`afl`).

use super::Fields;
use super::cipher::{self, BLOCK, Purpose};
use crate::address::Address;
use crate::error::Error;
use crate::keys::Key;

/// Two of these begin every encrypted part.
pub(crate) const FILLER: u8 = 0x2F;

/// Kind of data behind the transport layer's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Records with headers.
    Full,
    /// Records without, to be joined with those of a full frame.
    Compact,
    /// Records' headers alone.
    Format,
    /// A manufacturer's own bytes.
    Manufacturer,
}

/// Length of the header.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    None,
    Short,
    Long,
}

/// The transport layer of a frame, still encrypted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tpl<'a> {
    pub(crate) content: Content,
    pub(crate) header: Option<Header>,
    /// Bytes behind the header.
    pub(crate) body: &'a [u8],
}

/// The fields of a short or long header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The meter behind a radio adapter; long headers only.
    pub(crate) meter: Option<Address>,
    pub(crate) access: u8,
    pub(crate) status: u8,
    pub(crate) mode: u8,
    /// Encrypted blocks of 16 bytes.
    blocks: usize,
    /// Whether mode 7's key is derived.
    derived: bool,
    /// Mode 7's message counter, if it is here and not in the authentication layer.
    counter: Option<[u8; 4]>,
}

/// Values for decryption from outside the transport layer.
pub(crate) struct Secrets<'a> {
    /// Whose frame it is by the link layer.
    pub(crate) sender: Address,
    /// The authentication layer's message counter.
    pub(crate) counter: Option<[u8; 4]>,
    pub(crate) key: Option<&'a Key>,
}

impl<'a> Tpl<'a> {
    /// Reads the layer that begins with this CI field.
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Error> {
        let mut fields = Fields::new(payload, "transport layer");
        let ci = fields.byte()?;
        let (content, shape) = kind(ci)?;
        let header =
            if shape == Shape::None { None } else { Some(Header::parse(&mut fields, shape)?) };
        Ok(Self { content, header, body: fields.rest() })
    }

    /// Appends the records, decrypted where they are not in the clear.
    pub(crate) fn open(&self, secrets: &Secrets<'_>, out: &mut Vec<u8>) -> Result<(), Error> {
        out.clear();
        out.extend_from_slice(self.body);
        let Some(header) = self.header else { return Ok(()) };
        let sender = header.meter.unwrap_or(secrets.sender);
        let (derived, iv) = match header.mode {
            0 => return Ok(()),
            5 => (false, header.iv(sender)),
            7 => (header.derived, [0; BLOCK]),
            mode => return Err(Error::Mode(mode)),
        };
        if header.blocks == 0 {
            return Ok(());
        }
        let encrypted =
            out.get_mut(..header.blocks * BLOCK).ok_or(Error::Short("encrypted records"))?;
        let key = secrets.key.ok_or(Error::NoKey(sender))?;
        if derived {
            let counter = header.counter.or(secrets.counter);
            let counter = counter.ok_or(Error::Malformed("mode 7 without a message counter"))?;
            let key = cipher::derive(key, Purpose::Encryption, counter, sender.id);
            cipher::cbc_decrypt(&key, &iv, encrypted);
        } else {
            cipher::cbc_decrypt(key, &iv, encrypted);
        }
        if encrypted.starts_with(&[FILLER, FILLER]) { Ok(()) } else { Err(Error::WrongKey(sender)) }
    }
}

impl Header {
    fn parse(fields: &mut Fields<'_>, shape: Shape) -> Result<Self, Error> {
        let meter =
            if shape == Shape::Long { Some(Address::from_header(fields.array()?)) } else { None };
        let [access, status] = fields.array()?;
        let config = u16::from_le_bytes(fields.array()?);
        let mode = (config >> 8) as u8 & 0x1F;
        let mut header = Self {
            meter,
            access,
            status,
            mode,
            blocks: usize::from(config >> 4 & 0x0F),
            derived: false,
            counter: None,
        };
        if mode == 7 {
            const COUNTER_HERE: u16 = 1 << 13;
            const KEY_VERSION: u8 = 1 << 6;
            let extension = fields.byte()?;
            header.derived = match extension >> 4 & 0x03 {
                0 => false,
                1 => true,
                _ => return Err(Error::Malformed("key derivation")),
            };
            if config & COUNTER_HERE != 0 {
                header.counter = Some(fields.array()?);
            }
            if extension & KEY_VERSION != 0 {
                fields.byte()?;
            }
        }
        Ok(header)
    }

    /// Whether the records are encrypted.
    pub(crate) const fn is_encrypted(&self) -> bool {
        self.mode != 0 && !(matches!(self.mode, 5 | 7) && self.blocks == 0)
    }

    /// The bytes of the records that are encrypted; what follows them is not.
    pub(crate) const fn encrypted_bytes(&self) -> usize {
        if self.is_encrypted() { self.blocks * BLOCK } else { 0 }
    }

    /// The message counter this header carries itself.
    pub(crate) const fn counter(&self) -> Option<[u8; 4]> {
        self.counter
    }

    fn iv(&self, sender: Address) -> [u8; BLOCK] {
        let mut iv = [self.access; BLOCK];
        iv[..8].copy_from_slice(&sender.to_link());
        iv
    }
}

/// Returns what a CI field announces (EN 13757-7, table 2), as far as meters send it.
fn kind(ci: u8) -> Result<(Content, Shape), Error> {
    use Content::{Compact, Format, Full, Manufacturer};
    Ok(match ci {
        0x72 => (Full, Shape::Long),
        0x78 => (Full, Shape::None),
        0x7A => (Full, Shape::Short),
        0x73 => (Compact, Shape::Long),
        0x79 => (Compact, Shape::None),
        0x7B => (Compact, Shape::Short),
        0x69 => (Format, Shape::None),
        0x6A => (Format, Shape::Short),
        0x6B => (Format, Shape::Long),
        0xA0..=0xB7 => (Manufacturer, Shape::None),
        0x50..=0x5F | 0xC0..=0xC7 => return Err(Error::Ci(ci, "a command to a device")),
        0x60..=0x67 | 0x7C..=0x7F => return Err(Error::Ci(ci, "DLMS, SML or OBIS")),
        0x6C | 0x6D => return Err(Error::Ci(ci, "the time")),
        0x6E..=0x70 => return Err(Error::Ci(ci, "an application's error")),
        0x71 | 0x74 | 0x75 => return Err(Error::Ci(ci, "an alarm")),
        0x80 | 0x8A | 0x8B => return Err(Error::Ci(ci, "an empty transport layer")),
        0x81 => return Err(Error::Ci(ci, "a network layer")),
        0x86 => return Err(Error::Ci(ci, "the variable extended link layer")),
        _ => return Err(Error::Ci(ci, "reserved or unknown")),
    })
}

/// Encryption by [`seal`].
pub(crate) enum Seal<'a> {
    /// Mode 0.
    Clear,
    /// Mode 5.
    Persistent(&'a Key),
    /// Mode 7, with the message counter that is sent in the authentication layer.
    Derived(&'a Key, u32),
}

/// Makes a transport layer with a short header around records, as a meter does. Records are filled
/// up to whole blocks.
pub(crate) fn seal(
    sender: Address,
    access: u8,
    status: u8,
    how: &Seal<'_>,
    records: &[u8],
) -> Vec<u8> {
    const SHORT: u8 = 0x7A;
    let mut out = vec![SHORT, access, status];
    let mut body = Vec::new();
    if !matches!(how, Seal::Clear) {
        body.extend([FILLER; 2]);
    }
    body.extend_from_slice(records);
    if !matches!(how, Seal::Clear) {
        body.resize(body.len().next_multiple_of(BLOCK), FILLER);
    }
    let blocks = (body.len() / BLOCK) as u16;
    let header = Header {
        meter: None,
        access,
        status,
        mode: 5,
        blocks: usize::from(blocks),
        derived: false,
        counter: None,
    };
    match how {
        Seal::Clear => out.extend([0, 0]),
        Seal::Persistent(key) => {
            out.extend((5 << 8 | blocks << 4).to_le_bytes());
            cipher::cbc_encrypt(key, &header.iv(sender), &mut body);
        }
        Seal::Derived(key, counter) => {
            out.extend((7 << 8 | blocks << 4).to_le_bytes());
            out.push(0x10);
            let counter = counter.to_le_bytes();
            let key = cipher::derive(key, Purpose::Encryption, counter, sender.id);
            cipher::cbc_encrypt(&key, &[0; BLOCK], &mut body);
        }
    }
    out.extend(body);
    out
}
