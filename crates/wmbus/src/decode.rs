//! Decodes a received frame to its meter's readings: all layers, from the outermost to the innermost.
//!
//! Use one [`Decoder`] per server: it holds the keys, the formats of compact frames, and which messages were already
//! seen. Every frame has a result of its own; an error in one does not affect the next. A message's key is looked up in
//! `Decoder::key_for`; the extended link layer's and a manufacturer's own transport layer look theirs up where they are
//! decrypted.

use serde::Serialize;

use crate::address::Address;
use crate::compact::Formats;
use crate::error::Error;
use crate::frame::{self, Frame};
use crate::keys::{Key, KeyStore};
use crate::layers::afl::{self, Afl};
use crate::layers::cipher::{self, Purpose};
use crate::layers::ell::{self, Ell};
use crate::layers::tpl::{Content, Secrets, Tpl};
use crate::received::Received;
use crate::records::{Reading, Records};
use crate::replay::{Counter, ReplayGuard};
use crate::status::Status;
use crate::vendor;

/// How a message was protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Security {
    /// None: anybody could have sent it.
    None,
    /// Encrypted by the extended link layer.
    EllCtr,
    /// Mode 5: AES-128-CBC under the meter's key.
    Mode5,
    /// Mode 7: AES-128-CBC under a key derived for the message.
    Mode7,
    /// The manufacturer's own encryption.
    Manufacturer,
}

/// A decoded message.
#[derive(Clone, Debug, PartialEq)]
pub struct Telegram {
    /// The meter that was read, even if a radio adapter sent the message for it.
    pub meter: Address,
    /// How it was protected.
    pub security: Security,
    /// Whether an authentication code protects all of it.
    pub authenticated: bool,
    /// The access number, which counts messages modulo 256, if there is one.
    pub access: Option<u8>,
    /// A counter protected by the meter's key that never decreases from one message of the meter to the next, if there
    /// is one.
    pub counter: Option<u32>,
    /// The meter's status, if the message has one.
    pub status: Option<Status>,
    /// The readings.
    pub records: Records,
}

impl Telegram {
    /// The first unqualified reading of a quantity that is a current value of tariff 0 (total): the one that is billed.
    #[must_use]
    pub fn main(&self, quantity: &str) -> Option<&Reading> {
        self.records.readings.iter().find(|reading| {
            reading.quantity == quantity
                && reading.function == crate::records::Function::Instantaneous
                && (reading.storage, reading.tariff, reading.subunit) == (0, 0, 0)
                && reading.qualifiers.is_empty()
        })
    }
}

/// Decodes frames.
#[derive(Debug)]
pub struct Decoder<K> {
    keys: K,
    formats: Formats,
    replays: ReplayGuard,
    repeats: bool,
    /// Buffers that are reused for every frame.
    bare: Vec<u8>,
    plain: Vec<u8>,
    records: Vec<u8>,
}

impl<K: KeyStore> Decoder<K> {
    /// A decoder that has not seen any message yet.
    #[must_use]
    pub fn new(keys: K) -> Self {
        Self {
            keys,
            formats: Formats::new(),
            replays: ReplayGuard::default(),
            repeats: false,
            bare: Vec::new(),
            plain: Vec::new(),
            records: Vec::new(),
        }
    }

    /// Whether a message that was received before is decoded again instead of refused: for captures, which may contain
    /// the same telegram from several receivers, not for readings that are billed.
    #[must_use]
    pub fn with_repeats(self, repeats: bool) -> Self {
        Self { repeats, ..self }
    }

    /// The keys it decodes with.
    pub const fn keys(&self) -> &K {
        &self.keys
    }

    /// The keys, to replace them.
    pub const fn keys_mut(&mut self) -> &mut K {
        &mut self.keys
    }

    /// Decodes a frame from a receiver.
    ///
    /// # Errors
    /// The frame cannot be decoded; the decoder remains usable.
    pub fn decode(&mut self, received: &Received) -> Result<Telegram, Error> {
        let mut bare = std::mem::take(&mut self.bare);
        let stripped = match received.format {
            Some(format) => frame::strip(&received.bytes, format, &mut bare),
            None => frame::strip_any(&received.bytes, &mut bare).map(|_| ()),
        };
        let outcome = stripped.and_then(|()| Frame::parse(&bare)).map_err(Error::from);
        let outcome = outcome.and_then(|frame| self.frame(&frame));
        self.bare = bare;
        outcome
    }

    /// Decodes a link frame without checksums.
    ///
    /// # Errors
    /// As [`Decoder::decode`].
    pub fn frame(&mut self, frame: &Frame<'_>) -> Result<Telegram, Error> {
        let sender = frame.address;
        let mut plain = std::mem::take(&mut self.plain);
        let outcome = self.link_layer(sender, frame.payload, &mut plain);
        self.plain = plain;
        outcome
    }

    /// The extended link layer, if there is one; it is decrypted into `plain`.
    fn link_layer(
        &mut self,
        sender: Address,
        payload: &[u8],
        plain: &mut Vec<u8>,
    ) -> Result<Telegram, Error> {
        let ci = *payload.first().ok_or(Error::Short("link frame"))?;
        if let Some(telegram) = self.decode_vendor_transport(sender, payload) {
            return telegram;
        }
        if !ell::is_ell(ci) {
            return self.transport_layer(sender, payload, None);
        }
        let layer = Ell::parse(payload)?;
        layer.open(sender, self.keys.key(&sender), plain)?;
        self.transport_layer(sender, plain, Some(&layer))
    }

    /// The transport layer, with the authentication and fragmentation layer below it and the records above it.
    fn transport_layer(
        &mut self,
        sender: Address,
        payload: &[u8],
        ell: Option<&Ell<'_>>,
    ) -> Result<Telegram, Error> {
        let ci = *payload.first().ok_or(Error::Short("link frame"))?;
        let afl = if ci == afl::CI { Some(Afl::parse(payload)?) } else { None };
        let payload = afl.as_ref().map_or(payload, |afl| afl.rest);
        let tpl = Tpl::parse(payload)?;
        let meter = tpl.header.and_then(|header| header.meter).unwrap_or(sender);
        if tpl.content == Content::Manufacturer {
            return self.unknown_transport(sender, payload);
        }
        let counter = afl.and_then(|afl| afl.counter());
        let counter = counter.or_else(|| tpl.header.and_then(|header| header.counter()));
        let mut records = std::mem::take(&mut self.records);
        let key = self.key_for(meter, sender);
        let secrets = Secrets { sender, counter, key };
        let opened = tpl.open(&secrets, &mut records);
        let authenticated = authenticate(afl.as_ref(), counter, meter, key, &opened);
        let encrypted = tpl.header.is_some_and(|header| header.is_encrypted());
        let session = ell.and_then(|ell| ell.session).filter(|session| session.encryption() != 0);
        let security = match tpl.header.filter(|_| encrypted).map(|header| header.mode) {
            Some(7) => Security::Mode7,
            Some(_) => Security::Mode5,
            None if session.is_some() => Security::EllCtr,
            None => Security::None,
        };
        let access = tpl.header.map(|header| header.access).or_else(|| ell.map(|ell| ell.access));
        let outcome = authenticated.and_then(|authenticated| {
            opened?;
            // Mode 7 requires an authentication code: whoever stripped it could have altered the rest.
            if security == Security::Mode7 && !authenticated {
                return Err(Error::Forged(meter));
            }
            let replay_counter = match (counter, session) {
                (Some(counter), _) if authenticated => {
                    Counter::Message(u32::from_le_bytes(counter))
                }
                (_, Some(session)) => Counter::Session(session.counter()),
                _ => Counter::None,
            };
            let trusted = security != Security::None;
            Ok(Telegram {
                meter,
                security,
                authenticated,
                access,
                counter: replay_counter.number(),
                status: tpl.header.map(|header| Status::new(header.status)),
                records: self.content(
                    meter,
                    tpl.content,
                    &records,
                    trusted,
                    (replay_counter, access),
                )?,
            })
        });
        self.records = records;
        outcome
    }

    /// The application layer, from its plain bytes.
    fn content(
        &mut self,
        meter: Address,
        content: Content,
        plain: &[u8],
        trusted: bool,
        (counter, access): (Counter, Option<u8>),
    ) -> Result<Records, Error> {
        let (full, checked) = match content {
            Content::Compact => {
                let (full, checked) = self.formats.expand(skip_fillers(plain))?;
                (Some(full), checked)
            }
            _ => (None, true),
        };
        let plain = full.as_deref().unwrap_or(plain);
        let access = access.unwrap_or(0);
        if !self.replays.is_new(meter, counter, access, plain) && !self.repeats {
            return Err(Error::Replayed(meter));
        }
        match content {
            Content::Full => self.formats.learn(plain, trusted),
            Content::Format => {
                self.formats.learn_headers(skip_fillers(plain), trusted)?;
                return Ok(Records::default());
            }
            Content::Compact | Content::Manufacturer => {}
        }
        let mut records = vendor::records(meter, plain).unwrap_or_else(|| Records::parse(plain));
        if !checked {
            records.problem.get_or_insert(Error::CompactMismatch);
        }
        Ok(records)
    }

    /// Finds a message's key: the meter's, otherwise that of the radio adapter that sent the message for it.
    fn key_for(&self, meter: Address, sender: Address) -> Option<&Key> {
        self.keys.key(&meter).or_else(|| self.keys.key(&sender))
    }

    /// Decodes a manufacturer's own layer in place of the standard's transport layer; `None` if it is not a known one.
    fn decode_vendor_transport(
        &mut self,
        sender: Address,
        payload: &[u8],
    ) -> Option<Result<Telegram, Error>> {
        let meter = vendor::sender(sender, payload);
        let records = vendor::transport(sender, meter, payload, self.keys.key(&meter))?;
        Some(
            records.and_then(|records| {
                self.unprotected(meter, payload, Security::Manufacturer, records)
            }),
        )
    }

    /// A manufacturer's own transport layer of which nothing is known: its bytes are kept.
    fn unknown_transport(&mut self, meter: Address, payload: &[u8]) -> Result<Telegram, Error> {
        let manufacturer = payload.get(1..).unwrap_or_default().to_vec();
        let records = Records { manufacturer, ..Records::default() };
        self.unprotected(meter, payload, Security::None, records)
    }

    fn unprotected(
        &mut self,
        meter: Address,
        payload: &[u8],
        security: Security,
        records: Records,
    ) -> Result<Telegram, Error> {
        if !self.replays.is_new(meter, Counter::None, 0, payload) && !self.repeats {
            return Err(Error::Replayed(meter));
        }
        Ok(Telegram {
            meter,
            security,
            authenticated: false,
            access: None,
            counter: None,
            status: None,
            records,
        })
    }
}

/// Whether the message has a valid authentication code. Without a key this cannot be checked; cleartext is accepted
/// unauthenticated.
fn authenticate(
    afl: Option<&Afl<'_>>,
    counter: Option<[u8; 4]>,
    meter: Address,
    key: Option<&Key>,
    opened: &Result<(), Error>,
) -> Result<bool, Error> {
    let (Some(afl), Some(key)) = (afl.filter(|afl| afl.is_authenticated()), key) else {
        return Ok(false);
    };
    let counter = counter.ok_or(Error::Malformed("authentication without a message counter"))?;
    if afl.verify(&cipher::derive(key, Purpose::Authentication, counter, meter.id)) {
        return Ok(true);
    }
    // A key that decrypts is the right one, so the message was altered. A key that does not decrypt is the wrong key.
    match opened {
        Err(wrong @ Error::WrongKey(_)) => Err(wrong.clone()),
        _ => Err(Error::Forged(meter)),
    }
}

fn skip_fillers(bytes: &[u8]) -> &[u8] {
    const FILLER: u8 = crate::layers::tpl::FILLER;
    let start = bytes.iter().position(|byte| *byte != FILLER).unwrap_or(bytes.len());
    &bytes[start..]
}
