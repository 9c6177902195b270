//! Fills a data folder with the town, before the server runs on it: twin, users, meters with their keys, readings
//! of the past, work lists.
//!
//! Everything but the users goes through the platform's own API, called in this process: what the demonstration
//! shows is what the API stores.

use std::path::Path;
use std::time::{Duration, SystemTime};

use fulmar_platform::Role;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::api::{Api, rfc3339};
use super::installation::{Installation, Installed, User, made_with};
use super::town::{NAME, TWIN, Town, TownMeter};
use super::van;

/// Name of the file with the parameters of the town.
const FILE: &str = "demo.json";

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Ages of every meter's readings, and of those of meters whose consumption is shown in more detail.
const HISTORY_DAYS: [u32; 3] = [90, 60, 30];
const DETAILED_DAYS: u32 = 28;
/// One in this many meters has a detailed history.
const DETAILED: usize = 100;

/// Readings the API takes at once.
const BATCH: usize = 1000;

#[derive(Deserialize, Serialize)]
struct Parameters {
    meters: u32,
    seed: u64,
}

/// Returns the parameters of the town in the folder; a new one is made as wished.
pub(super) fn parameters(data: &Path, meters: u32, seed: u64) -> anyhow::Result<(u32, u64)> {
    let known = made_with(data, FILE, "")?.unwrap_or(Parameters { meters, seed });
    Ok((known.meters, known.seed))
}

/// Makes what is missing.
pub(super) fn seed(data: &Path, town: &Town) -> anyhow::Result<Installed> {
    let (twin, device) = ((TWIN, NAME, false), (van::USER, Some("Van")));
    let (meters, seed) = town.made_with();
    let user = |name, role, about| User { name, password: None, about, role };
    let users = vec![
        user("reader", Role::Reader, "in the field: map, work lists, readings"),
        user("office", Role::Office, "the office: progress, readings, reports"),
        user("admin", Role::Admin, "everything, users and keys too"),
    ];
    let installation = Installation { data, file: FILE, twin, device };
    installation.create(users, &Parameters { meters, seed }, async |api| fill(api, town).await)
}

async fn fill(api: &Api, town: &Town) -> anyhow::Result<()> {
    let meters = |path: &str| format!("/api/v1/{TWIN}/{path}");
    for batch in town.meters.chunks(BATCH) {
        let items: Vec<Value> = batch.iter().map(TownMeter::as_json).collect();
        api.all_stored("POST", &meters("meter"), &json!({ "items": items })).await?;
    }
    for meter in &town.meters {
        let Some(key) = meter.installed.key.as_ref().filter(|_| meter.radio) else { continue };
        let path = meters(&format!("meter/{}/key", meter.id()));
        api.request("PUT", &path, &json!({ "key": key })).await?;
    }
    let readings: Vec<Value> = {
        let numbered = town.meters.iter().enumerate();
        numbered.flat_map(|(number, meter)| history(number, meter)).collect()
    };
    for batch in readings.chunks(BATCH) {
        api.all_stored("POST", &meters("reading"), &json!({ "items": batch })).await?;
    }
    let by_hand = town.meters.iter().filter(|meter| !meter.radio);
    let by_radio = || town.meters.iter().filter(|meter| meter.radio);
    for (name, assignee, listed) in [
        ("Cellars, by hand", Some("reader"), by_hand.take(30).collect::<Vec<_>>()),
        ("First streets, drive by", Some("reader"), by_radio().take(150).collect()),
        ("Far end, anyone nearby", None, by_radio().rev().take(40).collect()),
    ] {
        let ids: Vec<String> = listed.into_iter().map(TownMeter::id).collect();
        let due = rfc3339(SystemTime::now() + 7 * DAY);
        let list = json!({ "name": name, "assignee": assignee, "due": due, "meters": ids });
        api.request("POST", &meters("work_list"), &list).await?;
    }
    Ok(())
}

/// Readings of a meter in the past, consistent with its present count.
fn history(number: usize, meter: &TownMeter) -> Vec<Value> {
    let detailed = (1..=DETAILED_DAYS).rev().filter(|_| number.is_multiple_of(DETAILED));
    let days = HISTORY_DAYS.into_iter().chain(detailed);
    let one = |(at, days): (u128, u32)| {
        let litres = meter.installed.litres_before(f64::from(days) * 24.0);
        json!({
            // The same each time, so that nothing is stored twice.
            "id": format!("00000000-0000-4000-8000-{:012x}", number as u128 * 64 + at),
            "meter": meter.id(),
            "at": rfc3339(SystemTime::now() - DAY * days),
            "value": (litres.max(0.0)).floor() / 1000.0,
            "unit": "m3",
            "method": "manual",
        })
    };
    (0..).zip(days).map(one).collect()
}
