//! What becomes of a reading that is sent: stored, known already, in conflict, or rejected.
//!
//! A reading is stored even if it looks wrong, because the person at the meter knows more than the server.
//! Implausible readings are flagged.

use super::types::{Flag, Proof, ReadingQuery};
use super::{NewReading, Reading, ReadingResult, Status};
use crate::meters::types::expect;
use crate::meters::{Expected, Meter, Method, Protection};
use crate::store::readings::{self, NewRow};
use crate::store::{TwinDb, conflicts, meters, reports, work_lists};
use crate::values::*;

/// Time by which clocks of devices may be ahead.
const AHEAD_MS: i64 = HOUR_MS;
/// Readings that are judged anew at an exchange: from the second on, new ones were compared with the first.
const JUDGED: usize = 100;

/// The sender of readings, the twin and the time.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    pub(crate) twin: Name,
    pub(crate) reader: Name,
    /// Whether only own and unassigned work lists count.
    pub(crate) own_lists_only: bool,
    /// Whether they may read meters, so that their readings do the work of lists.
    pub(crate) reads: bool,
    pub(crate) now: Time,
}

/// Result of storing readings that were sent together.
#[derive(Debug, Default)]
pub(crate) struct ReadingIntake {
    /// Result of each, in their order.
    pub(crate) results: Vec<ReadingResult>,
    pub(crate) stored: Vec<Uuid>,
    /// Work lists that changed with them.
    pub(crate) lists: Vec<Uuid>,
}

/// Result of storing one reading.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: Status,
    pub(crate) detail: Option<String>,
    /// Work lists that changed with it.
    pub(crate) lists: Vec<Uuid>,
}

impl Outcome {
    fn duplicate(detail: Option<String>) -> Outcome {
        Outcome { status: Status::Duplicate, detail, lists: Vec::new() }
    }
}

/// Takes readings, each with an outcome of its own.
pub(crate) fn take_all(
    db: TwinDb<'_>,
    sender: &Sender,
    items: Vec<Each<NewReading>>,
) -> Result<ReadingIntake> {
    let mut all = ReadingIntake::default();
    for Each { id, item } in items {
        let taken = item.and_then(|new| Ok((accept_sent(db, sender, &new)?, new.id)));
        let (status, detail) = match taken {
            Ok((Outcome { status, detail, lists }, reading)) => {
                if matches!(status, Status::Stored | Status::Conflict) {
                    all.stored.push(reading);
                }
                all.lists.extend(lists);
                (status, detail)
            }
            // A failing disk is no fault of the reading.
            Err(problem) if problem.status() >= 500 => return Err(problem),
            Err(problem) => (Status::Rejected, Some(problem.detail().to_owned())),
        };
        all.results.push(ReadingResult { id, status, detail });
    }
    Ok(all)
}

/// Accepts a reading that somebody has sent; of one by radio, only that somebody says so.
fn accept_sent(db: TwinDb<'_>, sender: &Sender, new: &NewReading) -> Result<Outcome> {
    let meter = meters::get(db, &new.meter, sender.now)?;
    let meter = meter.ok_or_else(|| Problem::invalid("meter", "there is no such meter"))?;
    if let Some(known) = readings::get(db, new.id)? {
        // A device that never had the answer sends what it sent before, whatever the office made of it since.
        let (at, value) =
            known.original.as_ref().map_or((known.at, known.value), |sent| (sent.at, sent.value));
        if (&known.meter, at, value) == (&new.meter, new.at, *new.value) {
            return Ok(Outcome::duplicate(None));
        }
        return Err(Problem::invalid("id", "another reading has this id: make a new one"));
    }
    if let Some(known) = readings::same(db, new, &sender.reader)? {
        return Ok(Outcome::duplicate(Some(format!("the same as {known}"))));
    }
    let is_radio = new.method == Method::Radio;
    let is_claimed = is_radio && (meter.has_key || meter.is_protected);
    let proof = Proof {
        protection: is_radio.then_some(Protection::Unauthenticated),
        doubt: is_claimed.then_some("no message of the meter shows it"),
    };
    store_new(db, sender, new, &meter, proof)
}

/// Stores a new reading of this meter.
pub(crate) fn store_new(
    db: TwinDb<'_>,
    sender: &Sender,
    new: &NewReading,
    meter: &Meter,
    proof: Proof,
) -> Result<Outcome> {
    let mut flags = flags(meter, new, sender.now);
    flags.extend(proof.doubt.map(|_| Flag::Unproven));
    let lists = do_work(db, sender, new, &mut flags)?;
    let rivals = match new.work_list {
        Some(list) if new.method != Method::Radio => {
            conflicts::rivals(db, list, new, &sender.reader)?
        }
        _ => Vec::new(),
    };
    if !rivals.is_empty() {
        flags.push(Flag::Conflict);
    }
    readings::insert(
        db,
        &NewRow {
            new,
            unit: unit(meter, new),
            work_list: new.work_list.or(lists.first().copied()),
            reader: &sender.reader,
            now: sender.now,
            flags: &flags,
            proof,
        },
    )?;
    conflicts::begin(db, new.id, &rivals)?;
    if !flags.contains(&Flag::Future) && proof.doubt.is_none() {
        readings::update_meter(db, &new.meter, sender.now)?;
    }
    let status = if rivals.is_empty() { Status::Stored } else { Status::Conflict };
    Ok(Outcome { status, detail: None, lists })
}

/// Has an unproven reading say what another copy of its message says, which counts; gives work lists that changed with it.
pub(crate) fn prove(
    db: TwinDb<'_>,
    sender: &Sender,
    reading: &Reading,
    new: &NewReading,
    meter: &Meter,
    proof: Proof,
) -> Result<Vec<Uuid>> {
    let flags = flags(meter, new, sender.now);
    readings::set_value(db, reading.id, *new.value, unit(meter, new), proof)?;
    readings::set_flags(db, reading.id, &flags)?;
    if flags.contains(&Flag::Future) {
        return Ok(Vec::new());
    }
    readings::update_meter(db, &reading.meter, sender.now)?;
    if sender.reads { complete_work(db, reading) } else { Ok(Vec::new()) }
}

/// Completes the open work of lists, as the reading would have if it had counted when it came. Lists of other readers
/// stay open as they would have, except for the radio.
pub(super) fn complete_work(db: TwinDb<'_>, reading: &Reading) -> Result<Vec<Uuid>> {
    if reading.work_list.is_some() {
        return Ok(Vec::new());
    }
    let only = (reading.method != Method::Radio).then_some(&reading.reader);
    let lists = work_lists::tick(db, &reading.meter, reading.at, only)?;
    if let Some(first) = lists.first() {
        readings::set_work_list(db, reading.id, *first)?;
    }
    Ok(lists)
}

/// Does the work of lists; gives those that changed.
fn do_work(
    db: TwinDb<'_>,
    sender: &Sender,
    new: &NewReading,
    flags: &mut Vec<Flag>,
) -> Result<Vec<Uuid>> {
    let counts = !flags.contains(&Flag::Unproven);
    if let Some(list) = new.work_list {
        let visible =
            work_lists::visible(db, list, sender.own_lists_only.then_some(&sender.reader))?;
        if !visible {
            return Err(Problem::invalid("work_list", "there is no such work list"));
        }
        if counts && !work_lists::mark_read(db, list, &new.meter)? {
            flags.push(Flag::NotOnList);
        }
        return Ok(vec![list]);
    }
    if !counts || !sender.reads || flags.contains(&Flag::Future) {
        return Ok(Vec::new());
    }
    // A reading by radio is the meter's own: it completes the work-list entry, no matter to whom that is assigned.
    let is_radio = new.method == Method::Radio;
    let only = (sender.own_lists_only && !is_radio).then_some(&sender.reader);
    Ok(work_lists::tick(db, &new.meter, new.at, only)?)
}

/// Whether a time is further ahead than clocks of devices may be.
pub(crate) fn is_future(at: Time, now: Time) -> bool {
    at > now.plus_ms(AHEAD_MS)
}

fn unit<'a>(meter: &'a Meter, new: &'a NewReading) -> &'a str {
    new.unit.as_deref().unwrap_or(&meter.unit)
}

/// The flags of a new reading that looks wrong.
pub(crate) fn flags(meter: &Meter, new: &NewReading, now: Time) -> Vec<Flag> {
    let mut flags = Vec::new();
    flags.extend(is_future(new.at, now).then_some(Flag::Future));
    flags.extend(wrong_value(meter, new.at, *new.value, unit(meter, new)));
    flags
}

/// The flags of a value that looks wrong for a meter in this state.
fn wrong_value(meter: &Meter, at: Time, value: f64, unit: &str) -> Vec<Flag> {
    let mut flags = Vec::new();
    let before = meter.last.as_ref().filter(|last| last.at <= at);
    if before.is_some_and(|last| value < last.value) {
        flags.push(Flag::Backwards);
    }
    let newest = meter.last.as_ref().is_none_or(|last| last.at <= at);
    let outside = |expected: Expected| value < *expected.low || value > *expected.high;
    let unexpected = newest && meter.expected.is_some_and(outside);
    if unexpected || !meter.can_show(value, unit) {
        flags.push(Flag::Implausible);
    }
    flags
}

/// The flags of a stored reading whose value looks wrong after the one before it.
pub(super) fn judge(db: TwinDb<'_>, meter: &Meter, reading: &Reading) -> Result<Vec<Flag>> {
    let before = reports::newest_before(db, &meter.id, reading.at)?;
    // The person who corrects a reading says what the register showed.
    let expected = match before.as_ref().filter(|_| reading.original.is_none()) {
        None => None,
        Some(before) => readings::rate_start(db, &meter.id, before)?.and_then(|(first, since)| {
            expect(first, since, before.last.value, before.last.at, reading.received_at)
        }),
    };
    let meter = Meter { last: before.map(|before| before.last), expected, ..meter.clone() };
    Ok(wrong_value(&meter, reading.at, reading.value, &reading.unit))
}

/// Judges anew after an exchange was entered or taken back: of the readings from `since` to `until`, the first that counts,
/// and those with flags before the next without. Gives those whose flags changed.
pub(crate) fn judge_anew(
    db: TwinDb<'_>,
    meter: &Meter,
    since: Time,
    until: Option<Time>,
) -> Result<Vec<Uuid>> {
    let is_of_value = |flag: &&Flag| matches!(flag, Flag::Backwards | Flag::Implausible);
    let (id, mut changed, mut is_first) = (meter.id.clone(), Vec::new(), true);
    let query =
        ReadingQuery { meter: Some(id), since: Some(since), until, ..ReadingQuery::default() };
    for (reading, _) in readings::list(db, &query, None, JUDGED)? {
        let counts = readings::holds(&reading.flags);
        let before: Vec<Flag> = reading.flags.iter().filter(is_of_value).copied().collect();
        if before.is_empty() && counts && !is_first {
            break;
        }
        is_first &= !counts;
        let mut flags = judge(db, meter, &reading)?;
        if flags != before {
            flags.extend(reading.flags.iter().filter(|flag| !is_of_value(flag)));
            readings::set_flags(db, reading.id, &flags)?;
            changed.push(reading.id);
        }
    }
    Ok(changed)
}
