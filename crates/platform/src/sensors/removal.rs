//! Removing a sensor: at once where it is shown, and what it measured in parts.

use super::handlers::find;
use crate::alerts::{AlertNotification, evaluate, handlers as alerts};
use crate::measurements::Quantity;
use crate::prelude::*;
use crate::store::removed;

/// Series of a sensor that one transaction removes. A sensor has some ten; a device can invent any number.
const MAX_SERIES: usize = 1000;

/// Remove a sensor
///
/// It leaves its home, lists and series at once, and what is raised about it is cleared. What it measured is deleted in
/// parts, soon after. A sensor that sends again is registered anew.
#[utoipa::path(delete, path = "/{twin}/sensor/{device}", tag = "homes", responses((status = 204)))]
pub(crate) async fn remove(Single(app, member, device, conditions): Single) -> Answer {
    member.may(Deed::Manage)?;
    let twin = &member.twin;
    // Each part changes the sensor: only the first one is of what the client saw.
    let mut conditions = Some(conditions);
    loop {
        let (of, which, first) = (twin.clone(), device.clone(), conditions.take());
        let part = app.store.write(move |db| remove_part(db.within(&of), &which, first));
        let Part { quantities, notifications, is_gone } = part.await?;
        alerts::announce(&app, twin, &notifications);
        for quantity in &quantities {
            clear_value(&app, twin, &device, quantity);
        }
        if is_gone {
            return done();
        }
    }
}

/// Progress of a transaction that removes a sensor.
struct Part {
    quantities: Vec<Quantity>,
    notifications: Vec<AlertNotification>,
    is_gone: bool,
}

fn remove_part(db: TwinDb<'_>, device: &Name, first: Option<Conditions>) -> Result<Part> {
    if let Some(conditions) = first {
        let sensor = find(db, device)?;
        conditions.hold_of(&sensor, &sensor.etag)?;
    }
    // With each part: a state that is forgotten would raise again what is still raised.
    let notifications = evaluate::removed(db, device, Time::now())?;
    let (quantities, is_gone) = removed::remove_sensor(db, device, MAX_SERIES)?;
    Ok(Part { quantities, notifications, is_gone })
}

/// Takes the last value away from later subscribers.
pub(crate) fn clear_value(app: &App, twin: &Name, device: &Name, quantity: &Quantity) {
    app.announcements.clear_retained(format!("fulmar/{twin}/value/{device}/{quantity}"));
}
