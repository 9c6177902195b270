//! What becomes of a frame.

use std::collections::HashMap;

use fulmar_wmbus::frame::Frame;
use fulmar_wmbus::{
    Address, Decoder, Error, Key, KeyStore, Protection, Reading as Record, Sighting, Telegram,
    input,
};
use parking_lot::Mutex;
use ring::digest::{Context, SHA256, digest};
use ring::hmac;
use uuid::Builder;

use super::proof::Circumstances;
use super::types::{FrameReceipt, FrameResult, FrameStatus, NewFrame};
use crate::meters::{Medium, Meter, Method, RadioAddress};
use crate::problem;
use crate::readings::intake::{Sender, flags, prove, store_new};
use crate::readings::types::{Flag, Proof};
use crate::readings::{NewReading, Reading};
use crate::store::frames::{self, RadioMeter, Sequence};
use crate::store::{Db, TwinDb, meters, readings};
use crate::values::*;

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

/// Result of storing frames.
#[derive(Debug, Default)]
pub(crate) struct FrameIntake {
    pub(crate) results: Vec<FrameResult>,
    /// Readings that are new.
    pub(crate) stored: Vec<Uuid>,
    /// Work lists that changed with them.
    pub(crate) lists: Vec<Uuid>,
    pub(crate) heard: Vec<FrameReceipt>,
}

type Unstored = problem::Unstored<FrameResult>;

fn failed(status: FrameStatus, detail: impl ToString) -> FrameResult {
    FrameResult { status, meter: None, reading: None, detail: Some(detail.to_string()) }
}

/// The same as the reason to go no further.
fn refused(status: FrameStatus, detail: impl ToString) -> Unstored {
    Unstored::Refused(failed(status, detail))
}

fn status_of(error: &Error) -> FrameStatus {
    match error {
        Error::NoKey(_) => FrameStatus::NoKey,
        Error::WrongKey(_) | Error::Forged(_) => FrameStatus::WrongKey,
        _ => FrameStatus::Malformed,
    }
}

/// Takes frames of one receiver, each with an outcome of its own.
pub(crate) fn take_all(
    db: &Db,
    decoders: &Decoders,
    sender: &Sender,
    receiver: &Name,
    items: Vec<Each<NewFrame>>,
) -> Result<FrameIntake> {
    let mut by_twin = decoders.by_twin.lock();
    // Which messages are replays, and from which to learn, is decided here.
    let new = || Decoder::new(MeterKey(None)).with_repeats(true).with_learning(false);
    let decoder = by_twin.entry(sender.twin.clone()).or_insert_with(new);
    let mut intake =
        Intake { db: db.within(&sender.twin), decoder, naming: &decoders.naming, sender, receiver };
    let mut taken = FrameIntake::default();
    for each in items {
        let result = match each.item {
            Ok(frame) => intake.store_frame(&frame, &mut taken).or_else(Unstored::result)?,
            Err(problem) => failed(FrameStatus::Malformed, problem.detail()),
        };
        if result.status == FrameStatus::Stored {
            taken.stored.extend(result.reading);
        }
        taken.results.push(result);
    }
    Ok(taken)
}

/// Properties that all frames of an upload have in common.
struct Intake<'a> {
    db: TwinDb<'a>,
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

/// A message that may be stored.
struct Message {
    telegram: Telegram,
    /// The digest of what is protected of it, or of all of it.
    digest: Vec<u8>,
    sequence: Sequence,
    /// Whether a later one of the meter was received before.
    is_late: bool,
    /// The reading of another copy of it, which did not count, and the answer unless this one does.
    copy: Option<(FrameResult, Reading)>,
}

impl Intake<'_> {
    fn store_frame(
        &mut self,
        frame: &NewFrame,
        taken: &mut FrameIntake,
    ) -> Result<FrameResult, Unstored> {
        let malformed = |error| refused(FrameStatus::Malformed, error);
        let received = input::line(&frame.hex).map_err(malformed)?;
        let sighting = Sighting::from_received(&received, None)
            .map_err(|error| refused(FrameStatus::Malformed, error))?;
        let address = RadioAddress::from_received(&sighting.meter);
        let short_address = address.short();
        let Some(meter) = frames::meter(self.db, &short_address)? else {
            let detail = format!("there is no meter {short_address} here");
            return Err(refused(FrameStatus::UnknownMeter, detail));
        };
        taken.heard.push(FrameReceipt {
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
        let stored = self.decode(&heard).and_then(|message| self.store(&heard, message, taken));
        let mut result = stored.or_else(Unstored::result)?;
        result.meter = Some(meter.id);
        Ok(result)
    }

    /// The message, if it may be stored and the meter's key fits.
    fn decode(&mut self, heard: &MeterFrame<'_>) -> Result<Message, Unstored> {
        let key = heard.meter.key.as_deref().and_then(|key| <[u8; 16]>::try_from(key).ok());
        *self.decoder.keys_mut() = MeterKey(key.map(Key::new));
        let parsed = Frame::parse(&heard.sighting.frame).map_err(Error::from);
        let telegram = parsed.and_then(|bare| self.decoder.frame(&bare));
        let telegram = telegram.map_err(|error| refused(status_of(&error), error))?;
        let digest = identity(&telegram).unwrap_or_else(|| heard.digest.to_vec());
        let copy = match self.known(heard, &digest)? {
            Some((answer, None)) => return Err(Unstored::Refused(answer)),
            Some((answer, Some(reading))) => Some((answer, reading)),
            None => None,
        };
        let sequence = sequence(&telegram, heard.frame.at);
        let is_late = self.is_late(heard, sequence)?;
        Ok(Message { telegram, digest, sequence, is_late, copy })
    }

    /// The answer to a message that was received before, and its reading if another copy of the same transmission may
    /// prove it: an attacker can add something to a message that makes no sense.
    fn known(
        &self,
        heard: &MeterFrame<'_>,
        digest: &[u8],
    ) -> Result<Option<(FrameResult, Option<Reading>)>> {
        let (db, address) = (self.db, heard.short_address);
        let mut stored = readings::get(db, self.reading_id(address, digest))?;
        if stored.is_none() {
            // Earlier versions did not record the protection, and others could compute an identifier before the frame came.
            let earlier = readings::get(db, earlier_reading_id(heard.digest))?;
            let is_frame =
                |reading: &Reading| reading.method == Method::Radio && reading.protection.is_none();
            stored = earlier.filter(is_frame);
        }
        let before = match &stored {
            Some(reading) => Some(reading.original.as_ref().map_or(reading.at, |sent| sent.at)),
            None => frames::seen(db, address, [digest, heard.digest])?,
        };
        let Some(before) = before else { return Ok(None) };
        let apart = heard.frame.at.ms_since(before).abs();
        let status = if apart <= SAME_MS { FrameStatus::Duplicate } else { FrameStatus::Replayed };
        let reading = stored.as_ref().map(|reading| reading.id);
        let answer =
            FrameResult { reading, ..failed(status, format!("received before, at {before}")) };
        let may_be_proven = |reading: &Reading| {
            let is_open = reading.flags.contains(&Flag::Unproven) && reading.changed.is_none();
            is_open && status == FrameStatus::Duplicate
        };
        Ok(Some((answer, stored.filter(may_be_proven))))
    }

    /// Whether the meter had sent later messages when this one was received; an error if it is a replay. Clocks of meters
    /// are set and lost, so that by them alone nothing is refused.
    fn is_late(&self, heard: &MeterFrame<'_>, sequence: Sequence) -> Result<bool, Unstored> {
        let (db, at) = (self.db, heard.frame.at);
        let replayed = |detail| Err(refused(FrameStatus::Replayed, detail));
        if let Some(counter) = sequence.counter
            && frames::has_counter(db, heard.short_address, counter)?
        {
            return replayed("another message of the meter had this counter");
        }
        let address = heard.short_address;
        let beyond = frames::first_beyond(db, address, sequence, CLOCK_SLACK_S)?;
        match beyond.filter(|_| sequence.counter.is_some()) {
            Some(beyond) if at.ms_since(beyond) > SAME_MS => {
                replayed("the meter had a higher counter before this was received")
            }
            _ => Ok(beyond.is_some_and(|beyond| beyond <= at)),
        }
    }

    fn store(
        &mut self,
        heard: &MeterFrame<'_>,
        message: Message,
        taken: &mut FrameIntake,
    ) -> Result<FrameResult, Unstored> {
        let MeterFrame { frame, short_address, .. } = *heard;
        let (telegram, digest) = (&message.telegram, &message.digest);
        let (db, now) = (self.db, self.sender.now);
        let Some(main) = main_value(telegram, heard.meter.medium) else {
            // Such as a format frame, which looks like no other message: only a code shows that it is the meter's.
            if telegram.protection == Protection::Authenticated {
                self.decoder.learn(telegram);
            }
            return Err(match &telegram.records.problem {
                Some(problem) => refused(status_of(problem), problem),
                None => refused(FrameStatus::Malformed, "it contains no meter value"),
            });
        };
        let meter = meters::get(db, &heard.meter.id, now)?;
        let meter = meter.ok_or_else(|| Problem::missing("meter"))?;
        let (protection, id) = (main.protection, self.reading_id(short_address, digest));
        let at = message.copy.as_ref().map_or(frame.at, |(_, copy)| copy.at);
        let new = self.reading(heard, id, at, main);
        let doubt = self.doubt(heard, &message, protection, &new, &meter)?;
        // What the meter's own key protects completes entries of work lists for any sender; other messages do so only
        // from senders that may read meters.
        let reads = self.sender.reads || protection != Protection::Unauthenticated;
        let sender = Sender { reads, ..self.sender.clone() };
        let detail = doubt.map(|doubt| format!("it does not count: {doubt}"));
        let status = FrameStatus::Stored;
        let mut result = FrameResult { status, meter: None, reading: Some(id), detail };
        let proof = Proof { protection: Some(protection.into()), doubt };
        taken.lists.extend(match (message.copy, doubt) {
            (Some((_, copy)), None) => prove(db, &sender, &copy, &new, &meter, proof)?,
            (Some((answer, _)), _) => return Ok(answer),
            (None, Some(_)) if readings::has_many_unproven(db, &meter.id, now)? => {
                (result.status, result.reading) = (FrameStatus::Unproven, None);
                Vec::new()
            }
            (None, _) => store_new(db, &sender, &new, &meter, proof)?.lists,
        });
        if doubt.is_none() {
            frames::remember(db, short_address, digest, message.sequence, at)?;
            self.decoder.learn(telegram);
        }
        let history = &heard.meter.history;
        let after = history.with(telegram, model(heard), doubt);
        if after != *history {
            frames::note(db, &meter.id, &after)?;
        }
        Ok(result)
    }

    /// The message's reading.
    fn reading(&self, heard: &MeterFrame<'_>, id: Uuid, at: Time, main: Main) -> NewReading {
        NewReading {
            id,
            meter: heard.meter.id.clone(),
            at,
            value: main.value,
            unit: Some(main.unit),
            method: Method::Radio,
            photo: None,
            place: heard.frame.place,
            rssi_dbm: heard.frame.rssi_dbm,
            note: None,
            implausible_confirmed: false,
            work_list: None,
            device: Some(self.receiver.clone()),
        }
    }

    /// Why the message may be another sender's than the meter's.
    fn doubt(
        &self,
        heard: &MeterFrame<'_>,
        message: &Message,
        protection: Protection,
        new: &NewReading,
        meter: &Meter,
    ) -> Result<Option<&'static str>> {
        let flags = flags(meter, new, self.sender.now);
        let is_backwards = flags.contains(&Flag::Backwards);
        let unit = new.unit.as_deref().unwrap_or_default();
        let shown = if is_backwards && !meter.medium.may_be_negative() {
            readings::newest_by_key(self.db, &new.meter, unit, new.at)?
        } else {
            None
        };
        // What says nothing new does not speak for itself.
        let is_more = meter.last.as_ref().is_some_and(|last| *new.value > last.value);
        let is_plausible = !is_backwards && !flags.contains(&Flag::Implausible);
        let has_counter = message.sequence.counter.is_some();
        let seen = Circumstances {
            has_key: meter.has_key,
            model: model(heard),
            is_copy: message.copy.is_some(),
            is_behind: message.is_late && has_counter,
            is_clock_behind: message.is_late && !has_counter,
            is_lower: shown.is_some_and(|shown| *new.value < shown),
            is_expected: meter.expected.is_some() && unit == meter.unit && is_more && is_plausible,
        };
        Ok(heard.meter.history.doubt(&message.telegram, protection, &seen))
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

/// Version and medium of a frame's sender.
fn model(heard: &MeterFrame<'_>) -> Option<(u8, u8)> {
    RadioAddress::from_received(&heard.sighting.meter).model()
}

/// A message's counter, or its clock if it has none.
fn sequence(telegram: &Telegram, at: Time) -> Sequence {
    let is_ahead = |clock: u64| {
        let clock_ms = i64::try_from(clock).unwrap_or(i64::MAX).saturating_mul(SECOND_MS);
        clock_ms.saturating_add(YEAR_2000_MS) > at.plus_ms(CLOCK_AHEAD_MS).0
    };
    let counter = telegram.counter;
    let clock = telegram.clock().filter(|clock| counter.is_none() && !is_ahead(*clock));
    Sequence { counter, clock }
}

/// Value of a register.
struct Main {
    value: Amount,
    unit: Text<1, 16>,
    protection: Protection,
}

/// Value of the register, and its unit: energy where the meter counts that, otherwise volume. Of records that are
/// protected as well as the message; others only if there is none.
fn main_value(telegram: &Telegram, medium: Medium) -> Option<Main> {
    let quantities = match medium {
        Medium::Heat | Medium::Electricity => ["energy", "volume"],
        Medium::HeatCost => ["heat cost allocation", "energy"],
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
