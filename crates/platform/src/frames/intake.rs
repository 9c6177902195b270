//! What becomes of a frame.

use std::collections::HashMap;

use fulmar_text::hex;
use fulmar_wmbus::frame::Frame;
use fulmar_wmbus::{
    Decoder, Error, InMemoryKeys, Key, Reading as Record, Received, Security, Sighting, Telegram,
};
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use uuid::{Builder, Uuid};

use super::types::{FrameResult, FrameStatus, Heard, NewFrame};
use crate::extract::Each;
use crate::meters::{Medium, Method, RadioAddress};
use crate::number::Amount;
use crate::problem::Problem;
use crate::readings::intake::{Sender, take};
use crate::readings::{NewReading, Status};
use crate::store::Db;
use crate::store::frames::{self, RadioMeter};
use crate::text::{Name, Text};
use crate::time::SECOND_MS;

/// Within this of each other two receptions of a frame are of the same transmission, and clocks of
/// receivers agree.
const SAME_MS: i64 = 10 * 60 * SECOND_MS;

/// Decoders, one a twin: each learns the formats of its meters' compact frames.
#[derive(Debug, Default)]
pub(crate) struct Decoders(Mutex<HashMap<Name, Decoder<InMemoryKeys>>>);

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
    let mut decoders = decoders.0.lock();
    let repeating = || Decoder::new(InMemoryKeys::new()).with_repeats(true);
    let decoder = decoders.entry(sender.twin.clone()).or_insert_with(repeating);
    let mut taken = Taken::default();
    for each in items {
        let result = match each.item {
            Ok(frame) => one(db, decoder, sender, receiver, &frame, &mut taken)?,
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

fn one(
    db: &Db,
    decoder: &mut Decoder<InMemoryKeys>,
    sender: &Sender,
    receiver: &Name,
    frame: &NewFrame,
    taken: &mut Taken,
) -> Result<FrameResult, Problem> {
    let Some(bytes) = bytes_of(&frame.hex) else {
        return Ok(failed(FrameStatus::Malformed, "not hexadecimal, or an odd number of digits"));
    };
    let received = Received { bytes, ..Received::default() };
    let sighting = match Sighting::of(&received, None) {
        Ok(sighting) => sighting,
        Err(error) => return Ok(failed(FrameStatus::Malformed, error)),
    };
    let address = RadioAddress::of(&sighting.meter);
    let (twin, short_address) = (&sender.twin, address.short());
    let Some(meter) = frames::meter(db, twin, &short_address)? else {
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
        receiver: receiver.clone(),
    });
    let digest = digest(&SHA256, &sighting.frame);
    let known = (&*short_address, digest.as_ref());
    let mut result = match decode(db, decoder, sender, frame, &sighting, &meter, known)? {
        Ok(telegram) => {
            let (result, lists) = store(db, sender, receiver, frame, &meter, &telegram, known)?;
            taken.lists.extend(lists);
            result
        }
        Err(refused) => refused,
    };
    result.meter = Some(meter.id);
    Ok(result)
}

/// The telegram, if it is genuine and new.
fn decode(
    db: &Db,
    decoder: &mut Decoder<InMemoryKeys>,
    sender: &Sender,
    frame: &NewFrame,
    sighting: &Sighting,
    meter: &RadioMeter,
    (short_address, digest): (&str, &[u8]),
) -> Result<Result<Telegram, FrameResult>, Problem> {
    let twin = &sender.twin;
    if let Some(before) = frames::seen(db, twin, short_address, digest)? {
        let apart = frame.at.ms_since(before).abs();
        let status = if apart <= SAME_MS { FrameStatus::Duplicate } else { FrameStatus::Replayed };
        let mut result = failed(status, format!("received before, at {before}"));
        result.reading = Some(reading_id(digest));
        return Ok(Err(result));
    }
    if let Some(key) = meter.key.as_deref().and_then(|key| <[u8; 16]>::try_from(key).ok()) {
        let named = decoder.keys_mut().insert(short_address, Key::new(key));
        named.map_err(|error| Problem::internal(&error))?;
    }
    let parsed = Frame::parse(&sighting.frame).map_err(Error::from);
    let telegram = match parsed.and_then(|bare| decoder.frame(&bare)) {
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
    if let Some(counter) = telegram.counter {
        let earlier = frame.at.plus_ms(-SAME_MS);
        if frames::counted_further(db, twin, short_address, counter, earlier)? {
            let detail = "the meter had a higher value before this was received";
            return Ok(Err(failed(FrameStatus::Replayed, detail)));
        }
    }
    Ok(Ok(telegram))
}

fn store(
    db: &Db,
    sender: &Sender,
    receiver: &Name,
    frame: &NewFrame,
    meter: &RadioMeter,
    telegram: &Telegram,
    (short_address, digest): (&str, &[u8]),
) -> Result<(FrameResult, Vec<Uuid>), Problem> {
    let Some((value, unit)) = main_value(telegram, meter.medium) else {
        let detail = "it contains no meter value";
        return Ok((failed(FrameStatus::Malformed, detail), Vec::new()));
    };
    frames::remember(db, &sender.twin, short_address, digest, telegram.counter, frame.at)?;
    let new = NewReading {
        id: reading_id(digest),
        meter: meter.id.clone(),
        at: frame.at,
        value,
        unit: Some(unit),
        method: Method::Radio,
        photo: None,
        place: frame.place,
        rssi_dbm: frame.rssi_dbm,
        note: None,
        implausible_confirmed: false,
        work_list: None,
        device: Some(receiver.clone()),
    };
    // A telegram authenticated by a meter's own key completes entries of work lists for any sender; other telegrams
    // do so only from senders that may read meters.
    let reads = sender.reads || telegram.security != Security::None;
    let outcome = match take(db, &Sender { reads, ..sender.clone() }, &new) {
        // Another reading has the frame's id: the others that came with it are not to suffer for that.
        Err(problem) if problem.status() < 500 => {
            return Ok((failed(FrameStatus::Replayed, problem.detail()), Vec::new()));
        }
        outcome => outcome?,
    };
    let status = match outcome.status {
        Status::Duplicate => FrameStatus::Duplicate,
        _ => FrameStatus::Stored,
    };
    let result = FrameResult { status, meter: None, reading: Some(new.id), detail: None };
    Ok((result, outcome.lists))
}

/// What the register shows, and in which unit: energy where the meter counts that, otherwise volume.
fn main_value(telegram: &Telegram, medium: Medium) -> Option<(Amount, Text<1, 16>)> {
    let quantities = match medium {
        Medium::Heat | Medium::Electricity => ["energy", "volume"],
        _ => ["volume", "energy"],
    };
    let records = quantities.into_iter().filter_map(|quantity| telegram.main(quantity));
    let number = |record: &Record| match record.value {
        fulmar_wmbus::Value::Number(number) => Amount::new(number),
        _ => None,
    };
    let unit = |record: &Record| Text::cut(&record.unit.replace('³', "3"));
    let mut numbers = records.filter_map(|record| Some((number(record)?, unit(record)?)));
    numbers.next()
}

/// A reading's id is its frame's: the same frame is the same reading.
fn reading_id(digest: &[u8]) -> Uuid {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    Builder::from_random_bytes(bytes).into_uuid()
}
