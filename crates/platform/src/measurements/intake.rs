//! What becomes of measurements: whose they are, whether they are new, what they change.
//!
//! Order does not matter to what is stored. The last value is the one measured last, not the one that
//! came last.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use super::types::{LiveValue, MeasurementResult, MeasurementStatus};
use super::{
    MAX_QUANTITIES, MAX_SERIES, NewMeasurement, Quantity, too_many_quantities, too_many_series,
    units,
};
use crate::alerts::{AlertNotification, evaluate};
use crate::extract::Each;
use crate::problem::{self, Result};
use crate::sensors::{MAX_SENSORS, too_many_sensors};
use crate::settings::Monitoring;
use crate::store::measurements::{self, Sample, SeriesRow};
use crate::store::sensors::{self, Unit};
use crate::store::{Db, TwinDb};
use crate::text::Name;
use crate::time::Time;

/// Result of storing measurements.
#[derive(Debug, Default)]
pub(crate) struct MeasurementIntake {
    /// Results, in the order of the request.
    pub(crate) results: Vec<MeasurementResult>,
    /// New last values, one a series.
    pub(crate) values: Vec<LiveValue>,
    /// Notifications of alerts that they raised or ended.
    pub(crate) notifications: Vec<AlertNotification>,
}

/// A series of which something came, and what is known of its device.
pub(crate) struct ChangedSeries {
    pub(crate) device: Name,
    pub(crate) quantity: Quantity,
    pub(crate) series: SeriesRow,
    pub(crate) unit: Unit,
}

type Unstored = problem::Unstored<MeasurementResult>;

/// The series of a group of measurements.
#[derive(Default)]
struct Register {
    by_name: HashMap<(Name, Quantity), usize>,
    all: Vec<ChangedSeries>,
    /// Number of the twin's sensors, counted when the first one is registered.
    sensors: Option<usize>,
    /// Number of its series, and its sensors, counted when the first one is created.
    series: Option<usize>,
    quantities: HashMap<Name, usize>,
}

impl Register {
    /// Number of a measurement's series, and its value in the series' unit.
    fn place(&mut self, db: TwinDb<'_>, new: &NewMeasurement) -> Result<(usize, f64), Unstored> {
        let name = (new.device.clone(), new.quantity.clone());
        let at = match self.by_name.get(&name) {
            Some(at) => *at,
            None => {
                let known = self.enter(db, new)?;
                self.all.push(known);
                self.by_name.insert(name, self.all.len() - 1);
                self.all.len() - 1
            }
        };
        let wanted = &self.all[at].series.unit;
        let given = new.unit.as_deref().unwrap_or(wanted);
        let value = units::convert(*new.value, given, wanted);
        Ok((at, value.ok_or_else(|| wrong_unit(given, wanted))?))
    }

    /// The measurement's series, created now if there is none yet.
    fn enter(&mut self, db: TwinDb<'_>, new: &NewMeasurement) -> Result<ChangedSeries, Unstored> {
        let (device, quantity) = (new.device.clone(), new.quantity.clone());
        let found = measurements::find(db, &device, &quantity)?;
        // What was stored before does not bring back a sensor that was removed since.
        if let (None, Some(id)) = (&found, &new.id)
            && measurements::is_known(db, id)?
        {
            return Err(Unstored::Refused(MeasurementResult::duplicate()));
        }
        let unit = self.unit(db, &device)?;
        let given = new.unit.as_deref().unwrap_or_default();
        let first_unit = units::usual(&quantity).unwrap_or(given);
        // What cannot be taken registers nothing but its device.
        let value =
            units::convert(*new.value, new.unit.as_deref().unwrap_or(first_unit), first_unit);
        value.ok_or_else(|| wrong_unit(given, first_unit))?;
        let series = match found {
            Some(found) => found,
            None => {
                self.count_one_more(db, &device)?;
                measurements::add_series(db, &device, &quantity, first_unit)?
            }
        };
        Ok(ChangedSeries { device, quantity, series, unit })
    }

    /// Counts a new series of the device, unless there are too many. Those that exist are taken, however many they are.
    fn count_one_more(&mut self, db: TwinDb<'_>, device: &Name) -> Result<(), Unstored> {
        let of_device = match self.quantities.entry(device.clone()) {
            Entry::Occupied(count) => count.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(measurements::count_quantities(db, device)?),
        };
        if *of_device >= MAX_QUANTITIES {
            return Err(refused(format!("quantity: {}", too_many_quantities())));
        }
        let of_twin = self.series.map_or_else(|| measurements::count_series(db), Ok)?;
        if of_twin >= MAX_SERIES {
            self.series = Some(of_twin);
            return Err(refused(format!("quantity: {}", too_many_series())));
        }
        self.series = Some(of_twin + 1);
        *of_device += 1;
        Ok(())
    }

    /// The device, registered now if it is not yet.
    fn unit(&mut self, db: TwinDb<'_>, device: &Name) -> Result<Unit, Unstored> {
        if let Some(known) = sensors::unit(db, device)? {
            return Ok(known);
        }
        let count = self.sensors.map_or_else(|| sensors::count(db), Ok)?;
        let is_full = count >= MAX_SENSORS;
        self.sensors = Some(if is_full { count } else { count + 1 });
        if is_full {
            return Err(refused(format!("device: {}", too_many_sensors())));
        }
        Ok(sensors::register(db, device)?)
    }
}

fn refused(detail: String) -> Unstored {
    Unstored::Refused(MeasurementResult::rejected(detail))
}

fn wrong_unit(given: &str, wanted: &str) -> Unstored {
    refused(format!("unit: {given:?} cannot be converted to {wanted:?}"))
}

fn check_time(at: Time, now: Time, settings: &Monitoring) -> Result<(), Unstored> {
    if at.is_ahead_of(now) {
        return Err(refused(format!("at: {at} is in the future")));
    }
    if at < settings.raw_since(now) {
        let kept = format!("the {} days for which measurements are kept", settings.raw_days);
        return Err(refused(format!("at: {at} is older than {kept}")));
    }
    Ok(())
}

/// Takes measurements of a twin, each with an outcome of its own.
pub(crate) fn store_measurements(
    db: TwinDb<'_>,
    settings: &Monitoring,
    items: Vec<Each<NewMeasurement>>,
    now: Time,
) -> Result<MeasurementIntake> {
    let mut register = Register::default();
    let mut results = Vec::with_capacity(items.len());
    // What can be stored: which result it is, and which series.
    let (mut places, mut samples) = (Vec::new(), Vec::new());
    for each in items {
        let checked = each.item.map_err(|problem| refused(problem.detail().to_owned()));
        let placed = checked.and_then(|new| {
            check_time(new.at, now, settings)?;
            Ok((register.place(db, &new)?, new))
        });
        match placed {
            Ok(((at, value), new)) => {
                let series = register.all[at].series.seq;
                let id = new.id.map(|id| id.to_string());
                places.push((results.len(), at));
                samples.push(Sample { series, at: new.at, value, id });
                results.push(MeasurementResult::duplicate());
            }
            Err(unstored) => results.push(unstored.result()?),
        }
    }
    let stored = measurements::insert(db, &samples, now)?;
    let mut new: BTreeMap<usize, Vec<(Time, f64)>> = BTreeMap::new();
    for (((result, series), sample), stored) in places.into_iter().zip(&samples).zip(stored) {
        if stored {
            results[result].status = MeasurementStatus::Stored;
            new.entry(series).or_default().push((sample.at, sample.value));
        }
    }
    let mut taken = MeasurementIntake { results, ..MeasurementIntake::default() };
    for (series, mut fresh) in new {
        fresh.sort_by_key(|(at, _)| *at);
        let known = &register.all[series];
        taken.notifications.extend(evaluate::series(db, known, &fresh, now)?);
        taken.values.extend(note_last(&db, known, &fresh)?);
    }
    evaluate::remember(db, &taken.notifications, now)?;
    heard(db, &taken.values)?;
    Ok(taken)
}

/// Remembers the newest of `fresh`, if it is newer than the last value.
fn note_last(db: &Db, known: &ChangedSeries, fresh: &[(Time, f64)]) -> Result<Option<LiveValue>> {
    let Some(&(at, value)) = fresh.last() else { return Ok(None) };
    if known.series.last_at.is_some_and(|last_at| at < last_at) {
        return Ok(None);
    }
    measurements::set_last(db, known.series.seq, at, value)?;
    Ok(Some(LiveValue {
        device: known.device.clone(),
        home: known.unit.home.clone(),
        quantity: known.quantity.clone(),
        value,
        unit: known.series.unit.clone(),
        at,
    }))
}

/// Notes when devices measured last.
fn heard(db: TwinDb<'_>, values: &[LiveValue]) -> Result<()> {
    let mut devices: HashMap<&Name, Time> = HashMap::new();
    for value in values {
        let last = devices.entry(&value.device).or_insert(value.at);
        *last = (*last).max(value.at);
    }
    for (device, at) in devices {
        sensors::heard(db, device, at)?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::sql::{Database, Purpose};
    use crate::store::{Store, removed, twins};
    use crate::twins::types::TwinKind;

    fn item(device: &str, quantity: &str) -> Each<NewMeasurement> {
        let text = format!(
            r#"{{"device":"{device}","quantity":"{quantity}","at":"2026-11-21T10:00:00Z","value":1}}"#
        );
        Each { id: None, item: Ok(serde_json::from_str(&text).unwrap()) }
    }

    fn statuses(results: &[MeasurementResult]) -> Vec<MeasurementStatus> {
        results.iter().map(|result| result.status).collect()
    }

    /// `devices` of a twin, with this many quantities each, and what comes of measurements of them.
    fn with_series(
        devices: usize,
        quantities: usize,
        measured: &'static [(&'static str, &'static str)],
    ) -> Vec<MeasurementResult> {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), &Database::File, Purpose::Server).unwrap();
        let taken = store.write_now(move |db| {
            let twin: Name = "t".parse().unwrap();
            twins::add(db.within(&twin), "T", TwinKind::Homes, None, Time(0))?;
            db.execute(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
                 INSERT INTO sensor (twin, device, revision) SELECT 't', 's' || i, 1 FROM n",
                [devices],
            )?;
            db.execute(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
                 INSERT INTO series (twin, device, quantity, unit)
                 SELECT 't', device, 'q' || i, '' FROM sensor, n",
                [quantities],
            )?;
            let items = measured.iter().map(|(device, quantity)| item(device, quantity)).collect();
            let now = "2026-11-21T10:00:00Z".parse().unwrap();
            store_measurements(db.within(&twin), &Monitoring::default(), items, now)
        });
        taken.unwrap().results
    }

    use MeasurementStatus::{Duplicate, Rejected, Stored};

    #[test]
    fn a_sensor_with_too_many_quantities_gets_no_further_one() {
        let measured =
            &[("s1", "last"), ("s1", "more"), ("s1", "q1"), ("s1", "last"), ("s2", "more")];
        let results = with_series(2, MAX_QUANTITIES - 1, measured);
        assert_eq!(statuses(&results), [Stored, Rejected, Stored, Duplicate, Stored]);
        let detail = results[1].detail.as_deref().unwrap();
        assert!(detail.starts_with("quantity: a sensor has at most 200 quantities"), "{detail}");

        // From the time when more were allowed.
        let results = with_series(1, MAX_QUANTITIES + 50, &[("s1", "q250"), ("s1", "more")]);
        assert_eq!(statuses(&results), [Stored, Rejected]);
    }

    #[test]
    fn a_twin_with_too_many_quantities_gets_no_further_one() {
        let each = MAX_QUANTITIES - 1;
        let measured = &[("s1", "more"), ("new", "radon"), ("s1", "q1")];
        let results = with_series(MAX_SERIES.div_ceil(each), each, measured);
        assert_eq!(statuses(&results), [Rejected, Rejected, Stored]);
        let detail = results[1].detail.as_deref().unwrap();
        assert!(
            detail.contains("500000 quantities") && detail.contains("another twin"),
            "{detail}"
        );
    }

    #[test]
    fn a_full_twin_takes_measurements_of_its_sensors_only() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), &Database::File, Purpose::Server).unwrap();
        let taken = store.write_now(|db| {
            let twin: Name = "t".parse().unwrap();
            twins::add(db.within(&twin), "T", TwinKind::Homes, None, Time(0))?;
            // All but one of them.
            db.execute(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
                 INSERT INTO sensor (twin, device, revision) SELECT 't', 's' || i, 1 FROM n",
                [MAX_SENSORS - 1],
            )?;
            let item = |device: &str| item(device, "radon");
            let items = ["last", "more", "s1", "last"].map(item).into();
            let now = "2026-11-21T10:00:00Z".parse().unwrap();
            let full = store_measurements(db.within(&twin), &Monitoring::default(), items, now)?;
            // One that is removed makes room.
            removed::remove_sensor(db.within("t"), "s2", 1)?;
            let items = ["more", "s2"].map(item).into();
            Ok((full, store_measurements(db.within(&twin), &Monitoring::default(), items, now)?))
        });
        let (full, after) = taken.unwrap();
        let results = full.results;
        assert_eq!(statuses(&results), [Stored, Rejected, Stored, Duplicate]);
        let detail = results[1].detail.as_deref().unwrap();
        assert!(detail.contains("50000 sensors") && detail.contains("another twin"), "{detail}");
        assert_eq!(statuses(&after.results), [Stored, Rejected]);
    }
}
