//! Decodes a received frame to its meter's readings: all layers, from the outermost to the innermost.
//!
//! Use one [`Decoder`] per server: it holds the keys, the formats of compact frames, and which messages were already
//! seen. Every frame has a result of its own; an error in one does not affect the next. A message's key is looked up in
//! `Decoder::key_for`; the extended link layer's and a manufacturer's own transport layer look theirs up where they are
//! decrypted.

use crate::address::Address;
use crate::compact::{self, Formats};
use crate::error::Error;
use crate::frame::{self, Frame};
use crate::keys::{Key, KeyStore};
use crate::layers::afl::{self, Afl};
use crate::layers::cipher::{self, Purpose};
use crate::layers::ell::{self, Ell};
use crate::layers::tpl::{Content, Secrets, Tpl};
use crate::protection::{Protected, Protection, Security};
use crate::received::Received;
use crate::records::value::Value;
use crate::records::{self, Reading, Records};
use crate::replay::{Counter, ReplayGuard};
use crate::status::Status;
use crate::vendor;

/// A decoded message.
#[derive(Clone, Debug, PartialEq)]
pub struct Telegram {
    /// The meter that was read, even if a radio adapter sent the message for it.
    pub meter: Address,
    /// Encryption of the message.
    pub security: Security,
    /// Evidence that the meter sent it; records behind its encrypted part have less ([`Reading::protection`]).
    pub protection: Protection,
    /// The access number, which counts messages modulo 256, if there is one.
    pub access: Option<u8>,
    /// A counter protected by the meter's key that never decreases from one message of the meter to the next, if there
    /// is one.
    pub counter: Option<u32>,
    /// The meter's status, if the message has one.
    pub status: Option<Status>,
    /// The readings.
    pub records: Records,
    /// The protected part as it was sent: it tells one message from another, however many other bytes somebody has changed.
    pub sealed: Vec<u8>,
    /// Pattern that the protected part, or all of an unprotected message, shares with the meter's other messages of
    /// the same kind: its records' headers. One whose ciphertext was altered mostly has others.
    pub format: Option<Vec<u8>>,
    /// Whether that part could be read to its end. Of a message that was altered, it often cannot.
    pub is_whole: bool,
}

impl Telegram {
    /// The first unqualified reading of a quantity that is a current value of tariff 0 (total): the one that is billed. Of
    /// those that are protected best; others may be forged.
    #[must_use]
    pub fn main(&self, quantity: &str) -> Option<&Reading> {
        let best = self.all_main(quantity).map(|reading| reading.protection).max()?;
        self.all_main(quantity).find(|reading| reading.protection == best)
    }

    fn all_main<'a>(&'a self, quantity: &str) -> impl Iterator<Item = &'a Reading> {
        self.records.readings.iter().filter(move |reading| is_main(reading, quantity))
    }

    /// The meter's own clock when it sent this, in seconds since 2000, if the protected part has it.
    #[must_use]
    pub fn clock(&self) -> Option<u64> {
        let clock = self.all_main("date and time").find(|reading| {
            self.protection != Protection::Unauthenticated && reading.protection == self.protection
        })?;
        match clock.value {
            Value::Moment(moment) if !moment.doubtful => moment.seconds_since_2000(),
            _ => None,
        }
    }
}

fn is_main(reading: &Reading, quantity: &str) -> bool {
    reading.quantity == quantity
        && reading.function == crate::records::Function::Instantaneous
        && (reading.storage, reading.tariff, reading.subunit) == (0, 0, 0)
        && reading.qualifiers.is_empty()
}

/// Decodes frames.
#[derive(Debug)]
pub struct Decoder<K> {
    keys: K,
    formats: Formats,
    replays: ReplayGuard,
    repeats: bool,
    learns: bool,
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
            learns: true,
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

    /// Whether formats of compact frames are learned from every message. If not, they are from what is given to
    /// [`Decoder::learn`], for callers that refuse some messages.
    #[must_use]
    pub fn with_learning(self, learns: bool) -> Self {
        Self { learns, ..self }
    }

    /// Learns the format of a message for the meter's compact frames.
    pub fn learn(&mut self, telegram: &Telegram) {
        if let Some(headers) = telegram.format.as_ref().filter(|_| telegram.is_whole) {
            self.formats.learn(telegram.meter, headers, telegram.protection);
        }
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
        let (sender, payload) = vendor::unwrap(frame.address, frame.payload);
        let mut plain = std::mem::take(&mut self.plain);
        let outcome = self.link_layer(sender, payload, &mut plain);
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
        let is_afl = payload.first().ok_or(Error::Short("link frame"))? == &afl::CI;
        let afl = is_afl.then(|| Afl::parse(payload)).transpose()?;
        let payload = afl.as_ref().map_or(payload, |afl| afl.rest);
        let tpl = Tpl::parse(payload)?;
        let meter = tpl.header.and_then(|header| header.meter).unwrap_or(sender);
        if tpl.content == Content::Manufacturer {
            return self.unknown_transport(sender, payload);
        }
        let counter = afl.and_then(|afl| afl.counter());
        let counter = counter.or_else(|| tpl.header.and_then(|header| header.counter()));
        let mut records = std::mem::take(&mut self.records);
        let own_key = self.key_for(meter, sender).cloned();
        let key = own_key.as_ref();
        let general = if key.is_none() { vendor::general_key(meter) } else { None };
        let secrets = Secrets { sender, counter, key: key.or(general.as_ref()) };
        let opened = tpl.open(&secrets, &mut records).map_err(|error| match error {
            Error::WrongKey(meter) if general.is_some() => Error::NoKey(meter),
            other => other,
        });
        let authenticated = authenticate(afl.as_ref(), counter, meter, key, &opened);
        let encrypted_bytes = tpl.header.map_or(0, |header| header.encrypted_bytes());
        let session = ell.and_then(|ell| ell.session).filter(|session| session.encryption() != 0);
        let mode = tpl.header.filter(|_| encrypted_bytes > 0).map(|header| header.mode);
        let mut security = security_of(mode, session.is_some());
        let access = tpl.header.map(|header| header.access);
        // What protects a session does not protect the layer's own access number.
        let own_access = ell.filter(|_| session.is_none()).map(|ell| ell.access);
        let outcome = authenticated.and_then(|authenticated| {
            opened?;
            // Mode 7 requires an authentication code: whoever stripped it could have altered the rest.
            if security == Security::Mode7 && !authenticated {
                return Err(Error::Forged(meter));
            }
            let whole = whole_protection(authenticated, session.is_some());
            let partly = partly_protected(encrypted_bytes, key.is_some());
            let protected = whole.map_or(partly, |by| Protected { by, bytes: records.len() });
            let replay_counter = replay_counter(counter.filter(|_| authenticated), session);
            let ell_body = ell.filter(|_| session.is_some()).map(|ell| ell.rest);
            let sealed = ell_body.unwrap_or_else(|| &tpl.body[..protected.bytes]);
            let message = Message {
                meter,
                content: tpl.content,
                plain: &records,
                protected,
                counter: replay_counter,
                access: access.or(own_access).unwrap_or(0),
            };
            let content = self.content(&message, key)?;
            let (by, sealed) = if content.sealed.is_empty() {
                (protected.by, sealed.to_vec())
            } else {
                security = security.max(Security::Manufacturer);
                (protected.by.max(Protection::Encrypted), content.sealed)
            };
            Ok(Telegram {
                meter,
                security,
                protection: by,
                access: access.or_else(|| ell.map(|ell| ell.access)),
                counter: replay_counter.number(),
                status: tpl.header.map(|header| Status::new(header.status)),
                records: content.records,
                sealed,
                format: content.format,
                is_whole: content.is_whole,
            })
        });
        self.records = records;
        if let Some(telegram) = outcome.as_ref().ok().filter(|_| self.learns) {
            self.learn(telegram);
        }
        outcome
    }

    /// The application layer, from its plain bytes.
    fn content(&mut self, message: &Message<'_>, key: Option<&Key>) -> Result<Application, Error> {
        let Message { meter, content, plain, protected, counter, access } = *message;
        // Of a protected message, only what is protected.
        let own = if protected.bytes > 0 { &plain[..protected.bytes] } else { plain };
        let (full, checked) = match content {
            Content::Compact => {
                let (full, checked) =
                    self.formats.expand(meter, skip_fillers(own), protected.by)?;
                (Some(full), checked)
            }
            _ => (None, true),
        };
        let digested = full.as_deref().unwrap_or(own);
        if !self.replays.is_new(meter, counter, access, digested) && !self.repeats {
            return Err(Error::Replayed(meter));
        }
        if content == Content::Format {
            let format = Some(compact::headers(skip_fillers(own))?.to_vec());
            return Ok(Application { format, is_whole: true, ..Application::default() });
        }
        let protected = match &full {
            // It is longer than what it was sent as, and of a protected message all of it is protected.
            Some(full) if protected.bytes > 0 => Protected { bytes: full.len(), ..protected },
            _ => protected,
        };
        let plain = full.as_deref().unwrap_or(plain);
        let mut application = application(meter, plain, protected, key);
        if !checked {
            application.records.problem.get_or_insert(Error::CompactMismatch);
        }
        Ok(application)
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
        let message = vendor::transport(sender, meter, payload, self.keys.key(&meter))?;
        let security = Security::Manufacturer;
        Some(message.records.and_then(|records| {
            self.manufacturers(meter, payload, security, message.protection, records)
        }))
    }

    /// A manufacturer's own transport layer of which nothing is known: its bytes are kept.
    fn unknown_transport(&mut self, meter: Address, payload: &[u8]) -> Result<Telegram, Error> {
        let manufacturer = payload.get(1..).unwrap_or_default().to_vec();
        let records = Records { manufacturer, ..Records::default() };
        let none = Protection::Unauthenticated;
        self.manufacturers(meter, payload, Security::None, none, records)
    }

    /// A message in a manufacturer's own transport layer.
    fn manufacturers(
        &mut self,
        meter: Address,
        payload: &[u8],
        security: Security,
        protection: Protection,
        mut records: Records,
    ) -> Result<Telegram, Error> {
        if !self.replays.is_new(meter, Counter::None, 0, payload) && !self.repeats {
            return Err(Error::Replayed(meter));
        }
        records.readings.iter_mut().for_each(|reading| reading.protection = protection);
        let is_protected = protection != Protection::Unauthenticated;
        let is_whole = records.problem.is_none();
        Ok(Telegram {
            meter,
            security,
            protection,
            access: None,
            counter: None,
            status: None,
            records,
            sealed: if is_protected { payload.to_vec() } else { Vec::new() },
            format: None,
            is_whole,
        })
    }
}

/// A message's application layer and what is known about it.
struct Message<'a> {
    meter: Address,
    content: Content,
    plain: &'a [u8],
    protected: Protected,
    counter: Counter,
    access: u8,
}

/// Contents of an application layer.
#[derive(Default)]
struct Application {
    records: Records,
    format: Option<Vec<u8>>,
    is_whole: bool,
    /// Data that the manufacturer has encrypted in one of the records.
    sealed: Vec<u8>,
}

/// Records in a manufacturer's own form or the standard's. Behind the protected part there is only the standard's.
fn application(
    meter: Address,
    plain: &[u8],
    protected: Protected,
    key: Option<&Key>,
) -> Application {
    let (own, behind) = match protected.bytes {
        0 => (plain, &[][..]),
        bytes => plain.split_at(bytes),
    };
    let (format, mut is_whole) = records::format(own);
    let (mut records, sealed) = match vendor::records(meter, own, key) {
        Some((mut records, sealed)) => {
            is_whole = records.problem.is_none();
            let raise = |reading: &mut Reading| {
                reading.protection = reading.protection.max(protected.by);
            };
            records.readings.iter_mut().for_each(raise);
            records.readings.extend(Records::parse(behind).readings);
            (records, sealed)
        }
        None => (Records::parse_protected(plain, protected), Vec::new()),
    };
    vendor::leave_out(meter, &mut records.readings);
    let format = Some(format).filter(|format| !format.is_empty());
    Application { records, format, is_whole, sealed }
}

/// Counter that tells a repeated message: the authenticated one, or else the session's.
fn replay_counter(authenticated: Option<[u8; 4]>, session: Option<ell::Session>) -> Counter {
    match (authenticated, session) {
        (Some(counter), _) => Counter::Message(u32::from_le_bytes(counter)),
        (_, Some(session)) => Counter::Session(session.counter()),
        _ => Counter::None,
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

fn security_of(mode: Option<u8>, is_session: bool) -> Security {
    match mode {
        Some(7) => Security::Mode7,
        Some(_) => Security::Mode5,
        None if is_session => Security::EllCtr,
        None => Security::None,
    }
}

/// Protection of a whole message, by its authentication code or its session.
fn whole_protection(authenticated: bool, is_session: bool) -> Option<Protection> {
    if authenticated {
        return Some(Protection::Authenticated);
    }
    is_session.then_some(Protection::Encrypted)
}

/// Protection of a message without an authentication code or a session, of which this many bytes are encrypted.
fn partly_protected(encrypted_bytes: usize, has_key: bool) -> Protected {
    if encrypted_bytes == 0 {
        return Protected::default();
    }
    let by = if has_key { Protection::Encrypted } else { Protection::Unauthenticated };
    Protected { by, bytes: encrypted_bytes }
}

fn skip_fillers(bytes: &[u8]) -> &[u8] {
    const FILLER: u8 = crate::layers::tpl::FILLER;
    let start = bytes.iter().position(|byte| *byte != FILLER).unwrap_or(bytes.len());
    &bytes[start..]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::crc::crc;
    use crate::layers::tpl::FILLER;

    #[test]
    fn all_readings_of_an_encrypted_compact_frame_are_encrypted() {
        const COMPACT: u8 = 0x79;
        const CONTROL: u8 = 0x44;
        let (address, key) =
            (Address::from_link([0x2D, 0x2C, 1, 2, 3, 4, 0x1B, 7]), Key::new([7; 16]));
        for headers in compact::WELL_KNOWN {
            let mut keys = crate::InMemoryKeys::new();
            keys.insert(&address.id.to_string(), key.clone()).unwrap();
            let (full, _) = records::join(headers, &[FILLER; 400]).unwrap();
            let data = vec![FILLER; full.len() - headers.len()];
            let checksums = [crc(headers), crc(&full)].map(u16::to_le_bytes).concat();
            let payload = [&[COMPACT][..], &checksums, &data].concat();
            let payload = ell::seal(address, 1, 9, &key, &payload);
            let frame = Frame { control: CONTROL, address, payload: &payload };
            let telegram = Decoder::new(keys).frame(&frame).unwrap();
            let readings = &telegram.records.readings;
            assert_eq!(readings.len(), Records::parse(&full).readings.len());
            for reading in readings {
                assert_eq!(
                    reading.protection,
                    Protection::Encrypted,
                    "{headers:02X?}: {reading:?}"
                );
            }
            assert_eq!(telegram.format.as_deref(), Some(headers));
        }
    }
}
