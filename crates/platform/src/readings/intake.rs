//! What becomes of a reading that is sent: stored, known already, in conflict, or rejected.
//!
//! Nothing here keeps a reading from being stored because it looks wrong: who stood before the meter
//! knows more than the server. What looks wrong is flagged.

use uuid::Uuid;

use super::types::Flag;
use super::{NewReading, ReadingResult, Status};
use crate::extract::Each;
use crate::meters::Method;
use crate::problem::Problem;
use crate::store::readings::{self, Row};
use crate::store::{Db, meters, work_lists};
use crate::text::Name;
use crate::time::{HOUR_MS, Time};

/// How far clocks of devices may be ahead.
const AHEAD_MS: i64 = HOUR_MS;

/// Who sends readings, where to and when.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    pub(crate) twin: Name,
    pub(crate) reader: Name,
    /// Whether only own and unassigned work lists count.
    pub(crate) own_lists_only: bool,
    pub(crate) now: Time,
}

/// Takes readings, each with an outcome of its own; also gives those that are new.
pub(crate) fn take_all(
    db: &Db,
    sender: &Sender,
    items: Vec<Each<NewReading>>,
) -> Result<(Vec<ReadingResult>, Vec<Uuid>), Problem> {
    let (mut results, mut stored) = (Vec::with_capacity(items.len()), Vec::new());
    for Each { id, item } in items {
        let taken = item.and_then(|new| Ok((take(db, sender, &new)?, new.id)));
        let (status, detail) = match taken {
            Ok(((status, detail), reading)) => {
                if matches!(status, Status::Stored | Status::Conflict) {
                    stored.push(reading);
                }
                (status, detail)
            }
            // A failing disk is no fault of the reading.
            Err(problem) if problem.status() >= 500 => return Err(problem),
            Err(problem) => (Status::Rejected, Some(problem.detail().to_owned())),
        };
        results.push(ReadingResult { id, status, detail });
    }
    Ok((results, stored))
}

/// Takes one reading.
pub(crate) fn take(
    db: &Db,
    sender: &Sender,
    new: &NewReading,
) -> Result<(Status, Option<String>), Problem> {
    let twin = &sender.twin;
    let meter = meters::get(db, twin, &new.meter, sender.now)?;
    let meter = meter.ok_or_else(|| Problem::invalid("meter", "there is no such meter"))?;
    if let Some(known) = readings::get(db, twin, new.id)? {
        if (&known.meter, known.at, known.value) == (&new.meter, new.at, *new.value) {
            return Ok((Status::Duplicate, None));
        }
        return Err(Problem::invalid("id", "another reading has this id: make a new one"));
    }
    if let Some(known) = readings::same(db, twin, new, &sender.reader)? {
        return Ok((Status::Duplicate, Some(format!("the same as {known}"))));
    }
    let mut flags = flags(&meter, new, sender.now);
    if let Some(list) = new.work_list {
        let visible =
            work_lists::visible(db, twin, list, sender.own_lists_only.then_some(&sender.reader))?;
        if !visible {
            return Err(Problem::invalid("work_list", "there is no such work list"));
        }
        if !work_lists::mark_read(db, twin, list, &new.meter)? {
            flags.push(Flag::NotOnList);
        }
    }
    let rivals = match new.work_list {
        Some(list) if new.method != Method::Radio => {
            readings::rivals(db, twin, list, new, &sender.reader)?
        }
        _ => Vec::new(),
    };
    if !rivals.is_empty() {
        flags.push(Flag::Conflict);
    }
    let unit = new.unit.as_ref().map_or(meter.unit.as_str(), |unit| unit);
    readings::insert(
        db,
        &Row { twin, new, unit, reader: &sender.reader, now: sender.now, flags: &flags },
    )?;
    for rival in &rivals {
        readings::set_conflict(db, twin, new.id, *rival)?;
    }
    readings::update_meter(db, twin, &new.meter, sender.now)?;
    Ok((if rivals.is_empty() { Status::Stored } else { Status::Conflict }, None))
}

fn flags(meter: &crate::meters::Meter, new: &NewReading, now: Time) -> Vec<Flag> {
    let mut flags = Vec::new();
    if new.at > now.plus_ms(AHEAD_MS) {
        flags.push(Flag::Future);
    }
    let before = meter.last.as_ref().filter(|last| last.at <= new.at);
    if before.is_some_and(|last| *new.value < last.value) {
        flags.push(Flag::Backwards);
    }
    let newest = meter.last.as_ref().is_none_or(|last| last.at <= new.at);
    let outside =
        |expected: crate::meters::Expected| new.value < expected.low || new.value > expected.high;
    if newest && meter.expected.is_some_and(outside) {
        flags.push(Flag::Implausible);
    }
    flags
}
