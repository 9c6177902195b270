//! Applies rules to measurements, and to their absence.
//!
//! Measurements newer than all before go through the rules' machines in order, however late they arrive. Older ones
//! are evaluated together with all measurements around them: a past violation becomes an alert with its own times,
//! which is over already.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use super::machine::{Condition, Episode, Machine, Step, replay};
use super::types::{Alert, AlertEvent, AlertNotification, Rule};
use crate::homes::types::silent_after_ms;
use crate::measurements::intake::ChangedSeries;
use crate::problem::{Result, internal};
use crate::store::{Db, TwinDb, alerts, measurements, webhooks};
use crate::text::Name;
use crate::time::{SECOND_MS, Time};

/// The most measurements that are evaluated again when older ones have arrived.
const MAX_REPLAYED: usize = 20_000;
/// The most sensors that one transaction notes as silent, and as silent no longer: the writer is everybody's.
pub(crate) const MAX_SILENCES: usize = 1000;

/// Rules times measurements of one transaction. Each may be a state of its own that is read and written.
const MAX_EVALUATED: usize = 20_000;

/// Number of the twin's measurements that one transaction may store.
pub(crate) fn most_at_once(db: TwinDb<'_>) -> Result<usize> {
    let rules = alerts::count_rules(db)?.max(1);
    Ok((MAX_EVALUATED / rules).max(1))
}

type Notifications = Vec<AlertNotification>;

/// A rule applied to a series.
struct Watch<'a> {
    db: TwinDb<'a>,
    known: &'a ChangedSeries,
    rule: &'a Rule,
    condition: Condition,
    now: Time,
}

/// Applies the twin's rules to new measurements of a series, in the order in which they were taken. The caller has to
/// [`remember`] what it returns.
pub(crate) fn series(
    db: TwinDb<'_>,
    known: &ChangedSeries,
    fresh: &[(Time, f64)],
    now: Time,
) -> Result<Notifications> {
    let mut notifications = Vec::new();
    let late = known.series.last_at.map_or(0, |last| fresh.partition_point(|(at, _)| *at < last));
    let (late, in_order) = fresh.split_at(late);
    for rule in &alerts::rules_for(db, &known.quantity, known.unit.home.as_deref())? {
        let gap_ms = silent_after_ms(known.unit.expected_every_s);
        let Some(condition) = rule.condition(gap_ms) else { continue };
        let watch = Watch { db, known, rule, condition, now };
        let mut machine = alerts::machine(db, &rule.id, known.series.seq)?;
        let before = machine.clone();
        if let (true, Some((first, _))) = (machine.is_new(), in_order.first()) {
            watch.recall(&mut machine, *first)?;
        }
        if let (Some((first, _)), Some(last)) = (late.first(), known.series.last_at) {
            notifications.extend(watch.look_back(&mut machine, *first, last)?);
        }
        notifications.extend(watch.advance(&mut machine, in_order)?);
        if machine != before {
            alerts::set_machine(db, &rule.id, known.series.seq, &machine)?;
        }
    }
    Ok(notifications)
}

/// Stores which webhooks to notify. Call it once for all notifications of a transaction.
pub(crate) fn remember(
    db: TwinDb<'_>,
    notifications: &[impl Borrow<AlertNotification>],
    now: Time,
) -> Result<()> {
    let forgotten = webhooks::enqueue(db, notifications, now)?;
    if forgotten > 0 {
        tracing::warn!(twin = db.twin, forgotten, "webhook events dropped: too many are waiting");
    }
    Ok(())
}

impl Watch<'_> {
    fn alert(&self, episode: &Episode) -> Alert {
        let (known, Episode { raised_at, cleared_at, value, peak }) = (self.known, *episode);
        let alert = Alert {
            home: known.unit.home.clone(),
            quantity: Some(known.quantity.clone()),
            value: Some(value),
            peak: Some(peak),
            unit: known.series.unit.clone(),
            cleared_at,
            ..Alert::new(self.rule, &known.device, raised_at, self.now)
        };
        alert.finished()
    }

    /// Fills the window of a mean with measurements from before the rule existed or was changed.
    fn recall(&self, machine: &mut Machine, until: Time) -> Result<()> {
        if self.condition.averaging_ms == 0 {
            return Ok(());
        }
        let from = until.plus_ms(-self.condition.averaging_ms);
        let series = self.known.series.seq;
        // The first measurements, up to the limit: a window that they do not span is not covered, and has no result.
        let measured = measurements::raw(&self.db, series, from, until, MAX_REPLAYED)?;
        machine.recall(&self.condition, &measured);
        Ok(())
    }

    /// Stores a new alert; returns it in the form of notifications.
    fn raise(&self, episode: &Episode) -> Result<Alert> {
        add(self.db, &self.alert(episode))
    }

    /// Advances the machine by measurements that are newer than all before.
    fn advance(&self, machine: &mut Machine, measured: &[(Time, f64)]) -> Result<Notifications> {
        let mut notifications = Notifications::new();
        let (device, quantity) = (&self.known.device, Some(&self.known.quantity));
        let mut raised = match machine.is_raised() {
            true => alerts::raised(self.db, &self.rule.id, device, quantity)?,
            false => None,
        };
        let mut changed = false;
        for &(at, value) in measured {
            match machine.receive(&self.condition, at, value) {
                Step::Raised { value, peak } => {
                    let episode = Episode { raised_at: at, cleared_at: None, value, peak };
                    let alert = self.raise(&episode)?;
                    notifications.push(alert.notification(AlertEvent::Raised));
                    raised = Some(alert);
                }
                Step::Cleared { value, peak } => {
                    let Some(mut alert) = raised.take() else { continue };
                    (alert.value, alert.peak) = (Some(value), Some(peak));
                    alert.cleared_at = Some(at);
                    let alert = alert.finished();
                    alerts::update(self.db, &alert)?;
                    settle(&mut notifications, &alert);
                    notifications.push(alert.notification(AlertEvent::Cleared));
                    changed = false;
                }
                Step::Same { raised: Some((value, peak)) } => {
                    if let Some(alert) = &mut raised {
                        (alert.value, alert.peak) = (Some(value), Some(peak));
                        changed = true;
                    }
                }
                Step::Same { raised: None } => {}
            }
        }
        if let (Some(alert), true) = (&raised, changed) {
            alerts::update(self.db, alert)?;
            settle(&mut notifications, alert);
        }
        Ok(notifications)
    }

    /// Corrects a raised alert that, as is known now, began earlier or was worse.
    fn correct(&self, mut alert: Alert, episode: &Episode) -> Result<()> {
        let peak = alert.peak.map_or(episode.peak, |peak| self.condition.worse(peak, episode.peak));
        let raised_at = alert.raised_at.min(episode.raised_at);
        if (alert.raised_at, alert.peak) != (raised_at, Some(peak)) {
            (alert.raised_at, alert.peak) = (raised_at, Some(peak));
            alerts::update(self.db, &alert)?;
        }
        Ok(())
    }

    /// Evaluates all measurements from about `first` on again, up to the machine's time.
    fn look_back(&self, machine: &mut Machine, first: Time, last: Time) -> Result<Notifications> {
        let Condition { for_ms, averaging_ms, gap_ms, .. } = self.condition;
        let from = first.plus_ms(-(for_ms + averaging_ms + gap_ms));
        let series = self.known.series.seq;
        let measured = measurements::raw(&self.db, series, from, last.plus_ms(1), MAX_REPLAYED)?;
        let (episodes, end) = replay(&self.condition, &measured);
        let mut notifications = Vec::new();
        for episode in episodes {
            let until = episode.cleared_at.unwrap_or(last);
            // An episode without an end counts only if no later measurement was left out.
            let known_end = episode.cleared_at.is_some() || measured.len() < MAX_REPLAYED;
            if until < first || !known_end {
                continue;
            }
            let like = self.alert(&episode);
            if let Some(known) = alerts::overlapping(self.db, &like, until)? {
                self.correct(known, &episode)?;
                continue;
            }
            let alert = self.raise(&episode)?;
            notifications.push(alert.notification(AlertEvent::Raised));
            if alert.cleared_at.is_some() {
                notifications.push(alert.notification(AlertEvent::Cleared));
            }
        }
        // A raised alert stays raised until a new measurement clears it.
        if measured.len() < MAX_REPLAYED && !machine.is_raised() {
            *machine = end;
        }
        Ok(notifications)
    }
}

/// Updates earlier notifications of the alert.
fn settle(notifications: &mut [AlertNotification], alert: &Alert) {
    let earlier = notifications.iter_mut().filter(|earlier| earlier.alert.id == alert.id);
    earlier.for_each(|earlier| earlier.alert = alert.clone());
}

/// Stores a new alert; returns it in the form of notifications.
fn add(db: TwinDb<'_>, alert: &Alert) -> Result<Alert> {
    alerts::add(db, alert)?;
    let stored = alerts::get(db, alert.id)?;
    stored.ok_or_else(|| internal(&"an alert that was just stored is missing"))
}

/// Raises alerts for silent devices, and clears those of devices that are not silent any more: up to [`MAX_SILENCES`]
/// of each. None of them is found again, so that the next call handles others.
pub(crate) fn silence(db: &Db, now: Time) -> Result<Vec<(Name, AlertNotification)>> {
    let mut notifications = Vec::new();
    for silence in alerts::silences(db, now, MAX_SILENCES)? {
        let silent_ms = i64::from(silence.rule.silent_s.unwrap_or_default()) * SECOND_MS;
        let raised_at = silence.last_at.plus_ms(silent_ms);
        let alert = Alert::new(&silence.rule, &silence.device, raised_at, now);
        let alert = Alert { home: silence.home, ..alert };
        let alert = add(db.within(&silence.twin), &alert)?;
        notifications.push((silence.twin, AlertNotification { event: AlertEvent::Raised, alert }));
    }
    for (twin, id, heard_at) in alerts::silences_over(db, now, MAX_SILENCES)? {
        let Some(mut alert) = alerts::get(db.within(&twin), id)? else { continue };
        alert.cleared_at = Some(heard_at.max(alert.raised_at));
        let alert = alert.finished();
        alerts::update(db.within(&twin), &alert)?;
        notifications.push((twin, AlertNotification { event: AlertEvent::Cleared, alert }));
    }
    let mut by_twin: BTreeMap<&Name, Vec<&AlertNotification>> = BTreeMap::new();
    for (twin, notification) in &notifications {
        by_twin.entry(twin).or_default().push(notification);
    }
    for (twin, notifications) in by_twin {
        remember(db.within(twin), &notifications, now)?;
    }
    Ok(notifications)
}

/// Clears a rule's alerts, because the rule has changed.
pub(crate) fn retire(db: TwinDb<'_>, rule: &Name, now: Time) -> Result<Notifications> {
    clear(db, alerts::raised_by(db, rule)?, now)
}

/// Clears a device's alerts, because it has moved to another home, where other rules may apply.
pub(crate) fn moved(db: TwinDb<'_>, device: &Name, now: Time) -> Result<Notifications> {
    alerts::forget_machines(db, device)?;
    removed(db, device, now)
}

/// Clears a device's alerts, because it is removed.
pub(crate) fn removed(db: TwinDb<'_>, device: &Name, now: Time) -> Result<Notifications> {
    clear(db, alerts::raised_about(db, device)?, now)
}

fn clear(db: TwinDb<'_>, raised: Vec<Alert>, now: Time) -> Result<Notifications> {
    let mut notifications = Vec::new();
    for mut alert in raised {
        alert.cleared_at = Some(now);
        let alert = alert.finished();
        alerts::update(db, &alert)?;
        notifications.push(AlertNotification { event: AlertEvent::Cleared, alert });
    }
    remember(db, &notifications, now)?;
    Ok(notifications)
}

#[cfg(test)]
#[path = "evaluate_tests.rs"]
mod tests;
