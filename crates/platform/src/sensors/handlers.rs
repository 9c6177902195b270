//! What can be asked of sensors.

use super::{MAX_SENSORS, NewSensor, Sensor, too_many_sensors};
use crate::alerts::{evaluate, handlers as alerts};
use crate::prelude::*;
use crate::store::{homes, sensors};

/// Longest interval of a sensor: 30 days.
const MAX_EVERY_S: u32 = 30 * 24 * 3600;

page_query! {
    /// Filter of sensors.
    SensorQuery, 1000 {
        /// Only those of this home.
        home: Name,
    }
}

/// The twin's sensors, by name
#[utoipa::path(get, path = "/{twin}/sensor", tag = "homes", params(SensorQuery),
    responses((status = 200, body = Page<Sensor>)))]
pub(crate) async fn list(Lookup(app, member, query, conditions): Lookup<SensorQuery>) -> Answer {
    member.may(Deed::Report)?;
    let limit = paging::limit(query.limit, paging::MOST)?;
    let after = open_cursor(query.cursor.as_deref())?.unwrap_or_default();
    let items = member.read(&app, move |db| {
        let (home, now) = (query.home.as_deref(), Time::now());
        Ok(sensors::list(db, home, &after, limit + 1, now)?)
    });
    conditions.json(&Page::cut(items.await?, limit, |sensor: &Sensor| sensor.device.to_string()))
}

pub(super) fn find(db: TwinDb<'_>, device: &Name) -> Result<Sensor> {
    let sensor = sensors::get(db, device, Time::now())?;
    sensor.ok_or_else(|| Problem::missing("sensor"))
}

/// One sensor
#[utoipa::path(get, path = "/{twin}/sensor/{device}", tag = "homes",
    responses((status = 200, body = Sensor)))]
pub(crate) async fn show(Single(app, member, device, conditions): Single) -> Answer {
    member.may(Deed::Report)?;
    let sensor = member.read(&app, move |db| find(db, &device));
    conditions.json(&sensor.await?)
}

/// Register a sensor, or update it
///
/// What is raised about a sensor that moves is cleared; what is wrong where it is now is raised with its next
/// measurement.
#[utoipa::path(put, path = "/{twin}/sensor/{device}", tag = "homes", request_body = NewSensor,
    responses((status = 200, body = Sensor), (status = 201, body = Sensor)))]
pub(crate) async fn put(Edit(app, member, device, conditions, new): Edit<NewSensor>) -> Answer {
    member.may(Deed::Manage)?;
    if new.expected_every_s.is_some_and(|every| !(1..=MAX_EVERY_S).contains(&every)) {
        let detail = format!("expected 1 to {MAX_EVERY_S}");
        return Err(Problem::invalid("expected_every_s", detail));
    }
    let twin = member.twin.clone();
    let (known, sensor, notifications) = member
        .write(&app, move |db| {
            let now = Time::now();

            let known = sensors::get(db, &device, now)?;
            match &known {
                Some(known) => conditions.hold_of(known, &known.etag)?,
                None => conditions.hold("")?,
            }
            if let Some(home) = &new.home
                && !homes::exists(db, home)?
            {
                return Err(Problem::invalid("home", "there is no such home"));
            }
            if known.is_none() && sensors::count(db)? >= MAX_SENSORS {
                return Err(Problem::conflict(too_many_sensors()));
            }
            let moves = known.as_ref().is_some_and(|known| known.home != new.home);
            let notifications = if moves { evaluate::moved(db, &device, now)? } else { Vec::new() };
            sensors::upsert(db, &device, &new)?;
            Ok((known.is_some(), find(db, &device)?, notifications))
        })
        .await?;
    alerts::announce(&app, &twin, &notifications);
    let status = if known { StatusCode::OK } else { StatusCode::CREATED };
    json(status, &sensor)
}
