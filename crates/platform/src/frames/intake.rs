//! What becomes of a frame.

use std::collections::HashMap;

use fulmar_text::hex;
use fulmar_wmbus::frame::Frame;
use fulmar_wmbus::{
    Address, Decoder, Error, Key, KeyStore, Protection, Reading as Record, Received, Sighting,
    Telegram,
};
use parking_lot::Mutex;
use ring::digest::{Context, SHA256, digest};
use ring::hmac;
use uuid::{Builder, Uuid};

use super::types::{FrameResult, FrameStatus, Heard, NewFrame};
use crate::extract::Each;
use crate::meters::{Medium, Method, RadioAddress};
use crate::number::Amount;
use crate::problem::Problem;
use crate::readings::intake::{Origin, Sender, take};
use crate::readings::{NewReading, Status};
use crate::store::frames::{self, RadioMeter, Sequence};
use crate::store::{Db, readings};
use crate::text::{Name, Text};
use crate::time::{DAY_MS, SECOND_MS, Time};

/// Within this of each other two receptions of a frame are of the same transmission, and clocks of
/// receivers agree.
const SAME_MS: i64 = 10 * 60 * SECOND_MS;
/// A meter's clock may go back this far, such as at the end of summer time.
const CLOCK_SLACK_S: u64 = 2 * 3600;
/// A meter's clock further ahead than this is wrong, or altered: it says nothing of what comes later.
const CLOCK_AHEAD_MS: i64 = DAY_MS;
/// 2000-01-01T00:00:00Z.
const YEAR_2000_MS: i64 = 946_684_800 * SECOND_MS;

/// Decoders, one a twin: each learns the formats of its meters' compact frames.
#[derive(Debug)]
pub(crate) struct Decoders {
    /// The key of readings' identifiers: nobody else can compute the one of a frame.
    naming: hmac::Key,
    by_twin: Mutex<HashMap<Name, Decoder<MeterKey>>>,
}

impl Decoders {
    pub(crate) fn new(naming: hmac::Key) -> Decoders {
        Decoders { naming, by_twin: Mutex::default() }
    }
}

/// The key of the meter whose frame is decoded: another meter's proves nothing.
#[derive(Debug)]
struct MeterKey(Option<Key>);

impl KeyStore for MeterKey {
    fn key(&self, _: &Address) -> Option<&Key> {
        self.0.as_ref()
    }
}

/// What came of frames.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) results: Vec<FrameResult>,
    /// Readings that are new.
    pub(crate) stored: Vec<Uuid>,
    /// Work lists that changed with them.
    pub(crate) lists: Vec<Uuid>,
    pub(crate) heard: Vec<Heard>,
}

fn failed(status: FrameStatus, detail: impl ToString) -> FrameResult {
    FrameResult { status, meter: None, reading: None, detail: Some(detail.to_string()) }
}

/// Takes frames of one receiver, each with an outcome of its own.
pub(crate) fn take_all(
    db: &Db,
    decoders: &Decoders,
    sender: &Sender,
    receiver: &Name,
    items: Vec<Each<NewFrame>>,
) -> Result<Taken, Problem> {
    let mut by_twin = decoders.by_twin.lock();
    let repeating = || Decoder::new(MeterKey(None)).with_repeats(true);
    let decoder = by_twin.entry(sender.twin.clone()).or_insert_with(repeating);
    let mut intake = Intake { db, decoder, naming: &decoders.naming, sender, receiver };
    let mut taken = Taken::default();
    for each in items {
        let result = match each.item {
            Ok(frame) => intake.store_frame(&frame, &mut taken)?,
            Err(problem) => failed(FrameStatus::Malformed, problem.detail()),
        };
        if result.status == FrameStatus::Stored {
            taken.stored.extend(result.reading);
        }
        taken.results.push(result);
    }
    Ok(taken)
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    hex::decode(digits.strip_prefix("0x").unwrap_or(digits))
}

/// What all frames of an upload have in common.
struct Intake<'a> {
    db: &'a Db,
    decoder: &'a mut Decoder<MeterKey>,
    naming: &'a hmac::Key,
    sender: &'a Sender,
    receiver: &'a Name,
}

/// A frame of a known meter.
struct MeterFrame<'a> {
    frame: &'a NewFrame,
    sighting: &'a Sighting,
    meter: &'a RadioMeter,
    short_address: &'a str,
    /// The digest of the whole frame.
    digest: &'a [u8],
}

/// A message that is new.
struct Message {
    telegram: Telegram,
    /// The digest of what is protected of it, or of all of it.
    digest: Vec<u8>,
    sequence: Sequence,
    /// Whether a later one of the meter was received before.
    is_late: bool,
}

impl Intake<'_> {
    fn store_frame(&mut self, frame: &NewFrame, taken: &mut Taken) -> Result<FrameResult, Problem> {
        let Some(bytes) = bytes_of(&frame.hex) else {
            let detail = "not hexadecimal, or an odd number of digits";
            return Ok(failed(FrameStatus::Malformed, detail));
        };
        let received = Received { bytes, ..Received::default() };
        let sighting = match Sighting::of(&received, None) {
            Ok(sighting) => sighting,
            Err(error) => return Ok(failed(FrameStatus::Malformed, error)),
        };
        let address = RadioAddress::of(&sighting.meter);
        let short_address = address.short();
        let Some(meter) = frames::meter(self.db, &self.sender.twin, &short_address)? else {
            let detail = format!("there is no meter {short_address} here");
            return Ok(failed(FrameStatus::UnknownMeter, detail));
        };
        taken.heard.push(Heard {
            meter: meter.id.clone(),
            address: address.to_string(),
            manufacturer: address.maker(),
            medium: meter.medium,
            at: frame.at,
            rssi_dbm: frame.rssi_dbm.map(|rssi| *rssi),
            place: frame.place,
            mode: frame.mode.clone(),
            receiver: self.receiver.clone(),
        });
        let digest = digest(&SHA256, &sighting.frame);
        let heard = MeterFrame {
            frame,
            sighting: &sighting,
            meter: &meter,
            short_address: &short_address,
            digest: digest.as_ref(),
        };
        let mut result = match self.decode(&heard)? {
            Ok(message) => {
                let (result, lists) = self.store(&heard, &message)?;
                taken.lists.extend(lists);
                result
            }
            Err(refused) => refused,
        };
        result.meter = Some(meter.id);
        Ok(result)
    }

    /// The message, if it is new and the meter's key fits.
    fn decode(&mut self, heard: &MeterFrame<'_>) -> Result<Result<Message, FrameResult>, Problem> {
        if let Some(known) = self.known(heard, heard.digest)? {
            return Ok(Err(known));
        }
        let key = heard.meter.key.as_deref().and_then(|key| <[u8; 16]>::try_from(key).ok());
        *self.decoder.keys_mut() = MeterKey(key.map(Key::new));
        let parsed = Frame::parse(&heard.sighting.frame).map_err(Error::from);
        let telegram = match parsed.and_then(|bare| self.decoder.frame(&bare)) {
            Ok(telegram) => telegram,
            Err(error) => {
                let status = match &error {
                    Error::NoKey(_) => FrameStatus::NoKey,
                    Error::WrongKey(_) | Error::Forged(_) => FrameStatus::WrongKey,
                    _ => FrameStatus::Malformed,
                };
                return Ok(Err(failed(status, error)));
            }
        };
        let digest = match identity(&telegram) {
            None => heard.digest.to_vec(),
            Some(identity) => {
                if let Some(known) = self.known(heard, &identity)? {
                    return Ok(Err(known));
                }
                identity
            }
        };
        let sequence = sequence(&telegram, heard.frame.at);
        Ok(self.is_late(heard, sequence)?.map(|is_late| Message {
            telegram,
            digest,
            sequence,
            is_late,
        }))
    }

    /// The answer to a message that was received before.
    fn known(&self, heard: &MeterFrame<'_>, digest: &[u8]) -> Result<Option<FrameResult>, Problem> {
        let (db, twin) = (self.db, &self.sender.twin);
        let mut stored = None;
        for id in [self.reading_id(heard.short_address, digest), earlier_reading_id(digest)] {
            // Earlier versions did not record the protection, and others could compute an identifier before the frame came.
            let own = |reading: &crate::readings::Reading| {
                id != earlier_reading_id(digest)
                    || reading.method == Method::Radio && reading.protection.is_none()
            };
            stored = stored.or(readings::get(db, twin, id)?.filter(own));
        }
        let seen = frames::seen(db, twin, heard.short_address, digest)?;
        let sent = |reading: &crate::readings::Reading| {
            reading.original.as_ref().map_or(reading.at, |original| original.at)
        };
        let Some(before) = seen.or_else(|| stored.as_ref().map(sent)) else { return Ok(None) };
        let apart = heard.frame.at.ms_since(before).abs();
        let status = if apart <= SAME_MS { FrameStatus::Duplicate } else { FrameStatus::Replayed };
        let reading = stored.map(|reading| reading.id);
        let known = failed(status, format!("received before, at {before}"));
        Ok(Some(FrameResult { reading, ..known }))
    }

    /// Whether the meter had sent later messages when this one was received; an error if it is a replay.
    fn is_late(
        &self,
        heard: &MeterFrame<'_>,
        sequence: Sequence,
    ) -> Result<Result<bool, FrameResult>, Problem> {
        let (db, twin, at) = (self.db, &self.sender.twin, heard.frame.at);
        let replayed = |detail| Ok(Err(failed(FrameStatus::Replayed, detail)));
        if let Some(counter) = sequence.counter
            && frames::has_counter(db, twin, heard.short_address, counter)?
        {
            return replayed("another message of the meter had this counter");
        }
        let address = heard.short_address;
        let beyond = frames::first_beyond(db, twin, address, sequence, CLOCK_SLACK_S)?;
        match beyond {
            Some(beyond) if at.ms_since(beyond) > SAME_MS => {
                replayed("the meter had a higher counter or a later time before this was received")
            }
            beyond => Ok(Ok(beyond.is_some_and(|beyond| beyond <= at))),
        }
    }

    fn store(
        &self,
        heard: &MeterFrame<'_>,
        message: &Message,
    ) -> Result<(FrameResult, Vec<Uuid>), Problem> {
        let MeterFrame { frame, meter, short_address, .. } = *heard;
        let Message { telegram, digest, .. } = message;
        let Some(main) = main_value(telegram, meter.medium) else {
            let detail = "it contains no meter value";
            return Ok((failed(FrameStatus::Malformed, detail), Vec::new()));
        };
        let new = NewReading {
            id: self.reading_id(short_address, digest),
            meter: meter.id.clone(),
            at: frame.at,
            value: main.value,
            unit: Some(main.unit),
            method: Method::Radio,
            photo: None,
            place: frame.place,
            rssi_dbm: frame.rssi_dbm,
            note: None,
            implausible_confirmed: false,
            work_list: None,
            device: Some(self.receiver.clone()),
        };
        let model = RadioAddress::of(&heard.sighting.meter).model();
        let late = message.is_late.then_some("a later message of the meter was received before");
        let doubt = meter.history.doubt(meter.key.is_some(), telegram, (main.protection, model));
        let origin = Origin::Telegram {
            protection: main.protection.into(),
            doubt: doubt.or(late),
            is_new_format: meter.history.is_new_format(telegram),
        };
        // What the meter's own key protects completes entries of work lists for any sender; other messages do so only
        // from senders that may read meters.
        let reads = self.sender.reads || main.protection != Protection::Unauthenticated;
        let sender = Sender { reads, ..self.sender.clone() };
        let outcome = match take(self.db, &sender, &new, &origin) {
            // It is stored already: the others that came with it are not to suffer for that.
            Err(problem) if problem.status() < 500 => {
                return Ok((failed(FrameStatus::Replayed, problem.detail()), Vec::new()));
            }
            outcome => outcome?,
        };
        let (db, twin) = (self.db, &self.sender.twin);
        if outcome.doubt.is_none() {
            frames::remember(db, twin, short_address, digest, message.sequence, frame.at)?;
        }
        if doubt.is_none() {
            let history = meter.history.with(telegram, model, outcome.doubt.is_none());
            if history != meter.history {
                frames::note(db, twin, &meter.id, &history)?;
            }
        }
        let status = match outcome.status {
            Status::Duplicate => FrameStatus::Duplicate,
            _ => FrameStatus::Stored,
        };
        let detail = outcome.doubt.map(|doubt| format!("it does not count: {doubt}"));
        Ok((FrameResult { status, meter: None, reading: Some(new.id), detail }, outcome.lists))
    }

    /// A reading's id is its message's: the same message is the same reading. Nobody without the installation's secret can
    /// compute it, and store another reading under it.
    fn reading_id(&self, short_address: &str, digest: &[u8]) -> Uuid {
        let mut naming = hmac::Context::with_key(self.naming);
        for part in [self.sender.twin.as_bytes(), short_address.as_bytes(), digest] {
            naming.update(&part.len().to_be_bytes());
            naming.update(part);
        }
        uuid(naming.sign().as_ref())
    }
}

/// The digest of what is protected of a message, which stays the same however the rest is changed; `None` if nothing is.
fn identity(telegram: &Telegram) -> Option<Vec<u8>> {
    if telegram.protection == Protection::Unauthenticated {
        return None;
    }
    // Where a message may contain the same as an earlier one, it has a counter, or is encrypted with another access number.
    let mut context = Context::new(&SHA256);
    context.update(&telegram.counter.unwrap_or(0).to_be_bytes());
    context.update(&telegram.sealed);
    Some(context.finish().as_ref().to_vec())
}

/// Counter and clock of a message.
fn sequence(telegram: &Telegram, at: Time) -> Sequence {
    let is_ahead = |clock: u64| {
        let clock_ms = i64::try_from(clock).unwrap_or(i64::MAX).saturating_mul(SECOND_MS);
        clock_ms.saturating_add(YEAR_2000_MS) > at.plus_ms(CLOCK_AHEAD_MS).0
    };
    Sequence {
        counter: telegram.counter,
        clock: telegram.clock().filter(|clock| !is_ahead(*clock)),
    }
}

/// What a register shows.
struct Main {
    value: Amount,
    unit: Text<1, 16>,
    protection: Protection,
}

/// What the register shows, and in which unit: energy where the meter counts that, otherwise volume. Of records that are
/// protected as well as the message; others only if there is none.
fn main_value(telegram: &Telegram, medium: Medium) -> Option<Main> {
    let quantities = match medium {
        Medium::Heat | Medium::Electricity => ["energy", "volume"],
        _ => ["volume", "energy"],
    };
    let main = |record: &Record| {
        let fulmar_wmbus::Value::Number(number) = record.value else { return None };
        let unit = Text::cut(&record.unit.replace('³', "3"))?;
        Some(Main { value: Amount::new(number)?, unit, protection: record.protection })
    };
    let records = quantities.into_iter().filter_map(|quantity| telegram.main(quantity));
    let mut values: Vec<Main> = records.filter_map(main).collect();
    values.sort_by_key(|main| std::cmp::Reverse(main.protection));
    values.into_iter().next()
}

/// The id of a frame's reading in earlier versions: anybody who received the frame could compute it.
fn earlier_reading_id(digest: &[u8]) -> Uuid {
    uuid(digest)
}

fn uuid(digest: &[u8]) -> Uuid {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    Builder::from_random_bytes(bytes).into_uuid()
}
