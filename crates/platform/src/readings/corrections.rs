//! Readings that are changed after they came: corrected, withdrawn, decided about where two contradict each
//! other, and the audit trail of all that. What was sent is never lost: a correction stands beside it.

use std::collections::BTreeSet;

use super::Reading;
use super::handlers::{announce, announce_lists, as_uuid, existing};
use super::intake::{complete_work, is_future, judge};
use super::types::{Action, Change, Flag, Original, ReadingChange};
use crate::prelude::*;
use crate::store::conflicts::DECIDED_AT_ONCE;
use crate::store::{conflicts, corrections, meters, readings, work_lists};

/// Change of a reading, and why.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Correction {
    /// Value of the register.
    value: Option<Amount>,
    /// When the reading was taken.
    at: Option<Time>,
    /// Whether it is to count no longer (true), or again (false); false also lets an unproven one count.
    withdrawn: Option<bool>,
    /// Why, for the audit trail.
    reason: Text<1, 500>,
}

/// Correct a reading, or withdraw it
///
/// This requires an admin or the office. The reading keeps its id and shows the new value; what was sent is in
/// `original`. A withdrawn reading stays stored and no longer counts: not for consumption, not for its meter's
/// last reading, not for its work list. Each change is an entry of the audit trail (`/reading_change`).
#[utoipa::path(patch, path = "/{twin}/reading/{id}", tag = "readings", params(("id" = Uuid, Path)),
    request_body = Correction, responses((status = 200, body = Reading)))]
pub(crate) async fn change(
    Edit(app, member, id, conditions, correction): Edit<Correction>,
) -> Answer {
    member.may(Deed::Manage)?;
    let id = as_uuid(&id)?;
    let (by, now) = (member.name().clone(), Time::now());
    let changed = member.write(&app, move |db| {
        let reading = existing(db, id)?;
        conditions.hold(&reading.etag)?;
        apply(db, &reading, &correction, &by, now)
    });
    let (changed, lists) = changed.await?;
    announce(&app, &member.twin, &changed);
    announce_lists(&app, &member.twin, lists).await?;
    let reading = changed.first().ok_or_else(|| Problem::missing("reading"))?;
    Conditions::default().json_tagged(reading, &reading.etag)
}

/// Makes the change; the reading, those whose conflict it ended, and work lists that changed with it.
fn apply(
    db: TwinDb<'_>,
    reading: &Reading,
    correction: &Correction,
    by: &Name,
    now: Time,
) -> Result<(Vec<Reading>, Vec<Uuid>)> {
    let after = Original {
        value: correction.value.map_or(reading.value, |value| *value),
        at: correction.at.unwrap_or(reading.at),
    };
    let was_withdrawn = reading.flags.contains(&Flag::Withdrawn);
    let withdrawn = correction.withdrawn.unwrap_or(was_withdrawn);
    let is_corrected = (after.value, after.at) != (reading.value, reading.at);
    let is_unproven = reading.flags.contains(&Flag::Unproven);
    let action = match (withdrawn, was_withdrawn) {
        (true, false) => Action::Withdrawn,
        (false, true) => Action::Restored,
        (false, false) if correction.withdrawn == Some(false) && is_unproven => Action::Restored,
        _ if is_corrected => Action::Corrected,
        _ => return Err(Problem::invalid("value", "nothing would change")),
    };
    if is_future(after.at, now) && after.at != reading.at {
        return Err(Problem::invalid("at", "this is in the future"));
    }
    let reason = Some(correction.reason.to_string());
    let change = Change { action, by: by.clone(), at: now, reason };
    corrections::note(db, reading, &change, &after)?;
    if is_corrected {
        corrections::set(db, reading.id, &after)?;
    }
    let ended = end_conflicts(db, reading, after.value, withdrawn)?;
    let known = existing(db, reading.id)?;
    let mut flags = flags(db, reading, &known, withdrawn)?;
    if correction.withdrawn == Some(false) {
        flags.retain(|flag| *flag != Flag::Unproven);
    }
    readings::set_flags(db, reading.id, &flags)?;
    for other in &ended {
        drop_ended_conflict(db, *other)?;
    }
    readings::update_meter(db, &reading.meter, now)?;
    let mut lists = Vec::new();
    let waits = |flags: &[Flag]| flags.contains(&Flag::Future) || flags.contains(&Flag::Unproven);
    if waits(&reading.flags) && !waits(&flags) && !withdrawn {
        lists = complete_work(db, &known)?;
    }
    lists.extend(work_lists::recount(db, &reading.meter)?);
    let changed = std::iter::once(reading.id).chain(ended).map(|id| existing(db, id));
    Ok((changed.collect::<Result<_, _>>()?, lists))
}

/// The flags of the reading now. What looked wrong about the old value says nothing of the new one, and the same of
/// times.
fn flags(db: TwinDb<'_>, before: &Reading, known: &Reading, withdrawn: bool) -> Result<Vec<Flag>> {
    let is_corrected = (known.value, known.at) != (before.value, before.at);
    let stays = |flag: &Flag| match flag {
        Flag::Implausible | Flag::Backwards | Flag::Unproven => !is_corrected,
        Flag::Future => known.at == before.at,
        Flag::Conflict => !known.conflict_with.is_empty(),
        Flag::Corrected | Flag::Withdrawn => false,
        Flag::Superseded | Flag::NotOnList => true,
    };
    let mut flags: Vec<Flag> = known.flags.iter().copied().filter(stays).collect();
    if is_corrected && let Some(meter) = meters::get(db, &known.meter, Time::now())? {
        flags.extend(judge(db, &meter, known)?);
    }
    flags.extend(known.original.is_some().then_some(Flag::Corrected));
    flags.extend(withdrawn.then_some(Flag::Withdrawn));
    Ok(flags)
}

/// Ends the conflicts of a reading that was withdrawn or now says what the other one says; gives the others, which may
/// have the flag yet.
fn end_conflicts(
    db: TwinDb<'_>,
    reading: &Reading,
    value: f64,
    withdrawn: bool,
) -> Result<Vec<Uuid>> {
    let mut ended = Vec::new();
    for other in conflicts::opponents(db, reading)? {
        let other = existing(db, other)?;
        if !withdrawn && other.value != value {
            continue;
        }
        conflicts::end(db, reading.id, other.id)?;
        ended.push(other.id);
    }
    if withdrawn {
        conflicts::forget(db, reading.id)?;
    } else if !ended.is_empty() {
        // It may contradict more than it had recorded.
        let known = existing(db, reading.id)?;
        if known.conflict_with.is_empty() {
            conflicts::renew(db, &known)?;
        }
    }
    Ok(ended)
}

page_query! {
    /// Filter of the audit trail.
    TrailQuery, 1000 {
        /// Only of readings of this meter.
        meter: Name,
        /// Only of this reading.
        reading: Uuid,
    }
}

/// The audit trail of readings, newest first
///
/// The user, time and reason of each correction, withdrawal, restoration and decision, and the earlier value. Entries
/// are never changed.
#[utoipa::path(get, path = "/{twin}/reading_change", tag = "readings", params(TrailQuery),
    responses((status = 200, body = Page<ReadingChange>)))]
pub(crate) async fn trail(Lookup(app, member, query, conditions): Lookup<TrailQuery>) -> Answer {
    member.may(Deed::LookAtReadings)?;
    let limit = paging::limit(query.limit, paging::MOST)?;
    let before = open_number(query.cursor.as_deref())?;
    let TrailQuery { meter, reading, .. } = query;
    let rows = member.read(&app, move |db| {
        Ok(corrections::trail(db, meter.as_ref(), reading, before, limit + 1)?)
    });
    conditions.json(&Page::of_rows(rows.await?, limit, |_, number| number.to_string()))
}

/// The end of a conflict.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Resolution {
    /// Whether this reading holds; otherwise those it is in conflict with do.
    keep: bool,
}

/// Resolve a conflict of readings
///
/// All stay stored; those that do not hold are flagged `superseded`. A reading that is in no conflict is refused (409).
#[utoipa::path(post, path = "/{twin}/reading/{id}/resolve", tag = "readings",
    params(("id" = Uuid, Path)), request_body = Resolution,
    responses((status = 200, body = Reading)))]
pub(crate) async fn resolve(Edit(app, member, id, _, resolution): Edit<Resolution>) -> Answer {
    member.may(Deed::Manage)?;
    let id = as_uuid(&id)?;
    let by = member.name().clone();
    let settled = member.write(&app, move |db| settle(db, id, resolution.keep, &by));
    let (changed, lists) = settled.await?;
    announce(&app, &member.twin, &changed);
    announce_lists(&app, &member.twin, lists).await?;
    let reading = changed.first().ok_or_else(|| Problem::missing("reading"))?;
    json(StatusCode::OK, reading)
}

/// Ends the reading's conflicts; the reading, the others that changed, and work lists that changed with them.
fn settle(db: TwinDb<'_>, id: Uuid, keep: bool, by: &Name) -> Result<(Vec<Reading>, Vec<Uuid>)> {
    let (reading, now) = (existing(db, id)?, Time::now());
    if reading.conflict_with.is_empty() {
        let detail = "this reading is in no conflict, or somebody has resolved it: load it again";
        return Err(Problem::conflict(detail));
    }
    let set = |reading: &Reading, holds: bool| {
        let action = if holds { Action::Kept } else { Action::Superseded };
        let change = Change { action, by: by.clone(), at: now, reason: None };
        let same = Original { value: reading.value, at: reading.at };
        corrections::note(db, reading, &change, &same)?;
        let ended = |flag: &Flag| !matches!(flag, Flag::Conflict | Flag::Superseded);
        let mut flags: Vec<Flag> = reading.flags.iter().copied().filter(ended).collect();
        flags.extend((!holds).then_some(Flag::Superseded));
        readings::set_flags(db, reading.id, &flags)
    };
    let opponents = conflicts::opponents(db, &reading)?;
    for other in &opponents {
        let other = existing(db, *other)?;
        let was_last = || other.conflict_with == [id];
        if keep || was_last() && !conflicts::contradicts_more(db, &other, id)? {
            conflicts::forget(db, other.id)?;
            set(&other, !keep)?;
        }
    }
    conflicts::forget(db, id)?;
    set(&reading, keep)?;
    if keep && opponents.len() >= DECIDED_AT_ONCE && conflicts::renew(db, &reading)? {
        conflicts::flag(db, id)?;
    }
    let mut others: BTreeSet<Uuid> = conflicts::forget_decided(db, &reading)?.into_iter().collect();
    others.extend(&opponents);
    others.remove(&id);
    for other in &others {
        drop_ended_conflict(db, *other)?;
    }
    readings::update_meter(db, &reading.meter, now)?;
    let lists = work_lists::recount(db, &reading.meter)?;
    let changed = std::iter::once(id).chain(others).map(|id| existing(db, id));
    Ok((changed.collect::<Result<_, _>>()?, lists))
}

/// Removes the flag of a reading whose last conflict ended with another reading's. One that has recorded only a part of
/// its conflicts stays in the others.
fn drop_ended_conflict(db: TwinDb<'_>, id: Uuid) -> Result<()> {
    let mut reading = existing(db, id)?;
    let is_over = reading.conflict_with.is_empty() && reading.flags.contains(&Flag::Conflict);
    if is_over && !conflicts::renew(db, &reading)? {
        reading.flags.retain(|flag| *flag != Flag::Conflict);
        readings::set_flags(db, id, &reading.flags)?;
    }
    Ok(())
}
