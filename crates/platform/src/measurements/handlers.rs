//! Measurements over HTTP, and as MQTT messages that the program hands over.

use std::collections::BTreeMap;
use std::time::Instant;

use super::intake::{MeasurementIntake, store_measurements as take_in};
use super::message::{Contents, SensorMessage, parse};
use super::types::{MeasurementResult, MeasurementStatus, NewMeasurement};
use crate::alerts::{evaluate, handlers as alerts};
use crate::log_limit::LogLimit;
use crate::prelude::*;

/// Measurements sent at once.
const MAX_MEASUREMENTS: usize = 1000;

/// Measurements that are sent.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MeasurementUpload {
    #[serde(deserialize_with = "at_most::<MAX_MEASUREMENTS, _, _>")]
    #[schema(value_type = Vec<NewMeasurement>, max_items = 1000)]
    items: Vec<Each<NewMeasurement>>,
}

/// Results, in the order of the request.
#[derive(Serialize, ToSchema)]
pub(crate) struct MeasurementResults {
    results: Vec<MeasurementResult>,
}

/// Send measurements
///
/// Each has an outcome of its own; what is sent again is stored once.
#[utoipa::path(post, path = "/{twin}/measurement", tag = "homes", request_body = MeasurementUpload,
    responses((status = 200, body = MeasurementResults)))]
pub(crate) async fn add(Call(app, member): Call, body: Unread<MeasurementUpload>) -> Answer {
    member.may(Deed::Measure)?;
    let upload = body.read().await?;
    if upload.items.len() > MAX_MEASUREMENTS {
        return Err(Problem::too_large(format!("at most {MAX_MEASUREMENTS} measurements at once")));
    }
    let results = store_measurements(&app, member.twin, upload.items).await?;
    json(StatusCode::OK, &MeasurementResults { results })
}

/// Stores measurements and notifies subscribers. The writer is everybody's: with many rules, it has several
/// transactions.
async fn store_measurements(
    app: &App,
    twin: Name,
    mut items: Vec<Each<NewMeasurement>>,
) -> Result<Vec<MeasurementResult>> {
    let mut all = Vec::with_capacity(items.len());
    while !items.is_empty() {
        let (settings, to) = (app.settings.monitoring.clone(), twin.clone());
        let taken = app.store.write(move |db| {
            let (db, mut part) = (db.within(&to), items);
            let rest = part.split_off(evaluate::most_at_once(db)?.min(part.len()));
            Ok((take_in(db, &settings, part, Time::now())?, rest))
        });
        let (MeasurementIntake { results, values, notifications }, rest) = taken.await?;
        app.counts.took(&results);
        for value in &values {
            let topic = format!("fulmar/{twin}/value/{}/{}", value.device, value.quantity);
            app.announcements.publish(topic, value, true);
        }
        alerts::announce(app, &twin, &notifications);
        all.extend(results);
        items = rest;
    }
    Ok(all)
}

/// Takes messages, in their order; what cannot be taken is logged and done with. Each twin's are stored for themselves,
/// and many one part after the other, so that few are in memory and others can store something between them: what has
/// no time gets that of its arrival, which is the same when others fail and all are tried again.
pub(crate) async fn take_messages(
    app: &App,
    messages: &[SensorMessage],
    arrived: Time,
) -> Result<()> {
    let mut part = ByTwin::new();
    let mut count = 0;
    for message in messages {
        let topic = &message.topic;
        match read(app, message, arrived) {
            Ok((twin, Contents { measurements, unusable })) => {
                count += measurements.len();
                let items = measurements.into_iter().map(|item| Each { id: None, item: Ok(item) });
                part.entry(twin).or_default().extend(items);
                app.counts.unusable(unusable.len());
                static LOG: LogLimit = LogLimit::new();
                if let Some(first) = unusable.first()
                    && let Some(times) = LOG.occurred(Instant::now())
                {
                    tracing::info!(topic, times, "field of a message cannot be used: {first}");
                }
            }
            Err(reason) => {
                app.counts.malformed();
                static LOG: LogLimit = LogLimit::new();
                if let Some(times) = LOG.occurred(Instant::now()) {
                    tracing::info!(topic, reason, times, "message without a measurement");
                }
            }
        }
        if count >= MAX_MEASUREMENTS {
            take_part(app, std::mem::take(&mut part)).await?;
            count = 0;
        }
    }
    take_part(app, part).await
}

type ByTwin = BTreeMap<Name, Vec<Each<NewMeasurement>>>;

async fn take_part(app: &App, part: ByTwin) -> Result<()> {
    for (twin, items) in part {
        let devices: Vec<Option<Name>> = items.iter().map(device).collect();
        let results = store_measurements(app, twin.clone(), items).await?;
        for (result, device) in results.iter().zip(devices) {
            if let (MeasurementStatus::Rejected, Some(device)) = (result.status, device) {
                static LOG: LogLimit = LogLimit::new();
                if let Some(times) = LOG.occurred(Instant::now()) {
                    let reason = result.detail.as_deref().unwrap_or_default();
                    tracing::info!(%twin, %device, reason, times, "measurement refused");
                }
            }
        }
    }
    Ok(())
}

fn device(each: &Each<NewMeasurement>) -> Option<Name> {
    each.item.as_ref().ok().map(|item| item.device.clone())
}

/// Whose measurements a message has, and which.
fn read(app: &App, message: &SensorMessage, arrived: Time) -> Result<(Name, Contents), String> {
    let levels: Vec<&str> = message.topic.split('/').collect();
    let (twin, device, quantity) = match levels[..] {
        ["fulmar", twin, "sensor", device] => (twin, device, None),
        ["fulmar", twin, "sensor", device, quantity] => (twin, device, Some(quantity)),
        _ => return Err("the topic is not a sensor's".to_owned()),
    };
    let twin: Name = twin.parse()?;
    if !app.account_cache.has_twin(&twin) {
        return Err("there is no such twin".to_owned());
    }
    Ok((twin, parse(device, quantity, message, arrived)?))
}
