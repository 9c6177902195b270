//! Fills a data folder with the homes, before the server runs on it: twin, users, homes, sensors, and what they
//! measured in the past.
//!
//! The past and what comes live are the same simulation, so that curves go on where they were.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fulmar_platform::Role;
use fulmar_sensors::homes::{Measured, Plan, Village};
use fulmar_sensors::instant;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::api::Api;
use super::super::installation::{Installation, Installed, User, made_with};

/// The installation.
pub(super) const NAME: &str = "Rural homes";
/// The twin's identifier.
pub(super) const TWIN: &str = "rural";
/// The gateway's user, and its name.
pub(super) const GATEWAY_USER: &str = "gateway";

/// Name of the file with the parameters of the homes.
const FILE: &str = "homes.json";

const DAY_MS: u64 = 86_400_000;
/// Between two readings of the past.
const HISTORY_EVERY_S: u32 = 1800;
/// Measurements the API takes at once.
const BATCH: usize = 1000;

#[derive(Deserialize, Serialize)]
struct Parameters {
    homes: u32,
    seed: u64,
}

/// Returns the parameters of the homes in the folder; new ones are made as wished.
pub(super) fn plan(data: &Path, homes: u32, seed: u64, every_s: u32) -> anyhow::Result<Plan> {
    let known = made_with(data, FILE, " of homes")?.unwrap_or(Parameters { homes, seed });
    Ok(Plan { homes: known.homes, seed: known.seed, every_s })
}

/// Makes what is missing.
pub(super) fn settle(data: &Path, plan: &Plan, history_days: u32) -> anyhow::Result<Installed> {
    let (twin, device) = ((TWIN, NAME, true), (GATEWAY_USER, None));
    let parameters = Parameters { homes: plan.homes, seed: plan.seed };
    let user = |name, role, about| User { name, password: None, about, role };
    let users = vec![
        user("home", Role::Office, "sees everything, acknowledges alerts, changes rules"),
        user("viewer", Role::Viewer, "sees everything, changes nothing"),
        user("admin", Role::Admin, "everything, users too"),
    ];
    let installation = Installation { data, file: FILE, twin, device };
    installation.create(users, &parameters, async |api| fill(api, plan, history_days).await)
}

async fn fill(api: &Api, plan: &Plan, history_days: u32) -> anyhow::Result<()> {
    let path = |what: &str| format!("/api/v1/{TWIN}/{what}");
    let now_ms = now_ms();
    let from_ms = now_ms.saturating_sub(u64::from(history_days) * DAY_MS);
    let past = Plan { every_s: HISTORY_EVERY_S, ..*plan };
    let mut village = Village::new(&past, from_ms);
    let homes: Vec<Value> = village
        .homes()
        .iter()
        .map(|home| {
            let place = json!({ "lat": home.latitude, "lon": home.longitude });
            let name = &home.street;
            json!({ "id": home.id, "name": name, "street": home.street, "place": place, "gateway": GATEWAY_USER })
        })
        .collect();
    api.request("POST", &path("home"), &json!({ "items": homes })).await?;
    let devices = village
        .homes()
        .iter()
        .flat_map(|home| home.devices.iter().map(move |device| (home, device)));
    let mut devices: Vec<_> = devices.collect();
    // One is left for users who try the registry.
    devices.pop();
    for (home, device) in devices {
        let sensor = json!({
            "home": home.id, "room": device.room, "model": device.model, "expected_every_s": plan.every_s,
        });
        api.request("PUT", &path(&format!("sensor/{}", device.name)), &sensor).await?;
    }
    let mut at_ms = from_ms;
    while at_ms < now_ms {
        at_ms = (at_ms + DAY_MS).min(now_ms);
        let items: Vec<Value> = village.advance(at_ms).iter().map(measurement).collect();
        for batch in items.chunks(BATCH) {
            api.all_stored("POST", &path("measurement"), &json!({ "items": batch })).await?;
        }
    }
    // The mean of an hour takes an hour to say anything; nobody watches a demonstration that long.
    let rule = json!({ "name": "Radon, each value", "averaging_s": 0 });
    api.request("PATCH", &path("alert_rule/radon"), &rule).await?;
    Ok(())
}

fn measurement(measured: &Measured) -> Value {
    let reading = &measured.reading;
    let at = instant(reading.at_ms.unwrap_or_default());
    json!({ "device": reading.device, "quantity": reading.quantity, "value": reading.value, "at": at })
}

fn now_ms() -> u64 {
    let since: Duration = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
