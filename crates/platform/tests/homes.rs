//! Homes, sensors and what they measure: stored once, shown over time, kept in its twin.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, SystemTime};

use common::World;
use fulmar_platform::{Announcement, Database, SensorMessage};
use serde_json::{Value, json};

const BASE: &str = "/api/v1/north";

fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// RFC 3339 of milliseconds since 1970.
fn at(ms: i64) -> String {
    let at = time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).unwrap();
    let format = time::format_description::well_known::Rfc3339;
    at.format(&format).unwrap()
}

fn measured(device: &str, quantity: &str, ms: i64, value: f64) -> Value {
    json!({"device": device, "quantity": quantity, "at": at(ms), "value": value})
}

async fn send(world: &World, token: &str, items: Vec<Value>) -> Vec<Value> {
    let path = format!("{BASE}/measurement");
    let answer = world.good(token, "POST", &path, json!({"items": items})).await;
    answer["results"].as_array().unwrap().clone()
}

fn statuses(results: &[Value]) -> Vec<&str> {
    results.iter().map(|result| result["status"].as_str().unwrap()).collect()
}

fn announced(world: &mut World) -> Vec<Announcement> {
    std::iter::from_fn(|| world.announced.try_recv().ok()).collect()
}

#[tokio::test]
async fn homes_are_made_found_changed_and_removed() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    let path = format!("{BASE}/home");
    let mill = json!({"id": "mill", "name": "The Mill", "place": {"lat": 53.5, "lon": 10.0},
        "street": "Mill Lane 1", "gateway": "gw-1"});
    let made = world.good(&office, "POST", &path, mill.clone()).await;
    assert_eq!(
        (&made["worst"], &made["alerts"], &made["values"]),
        (&json!("ok"), &json!(0), &json!([]))
    );
    assert_eq!(world.call(&office, "POST", &path, &mill).await.status, 409);
    let items = json!({"items": [
        {"id": "mill", "name": "The Old Mill", "place": {"lat": 53.5, "lon": 10.0}},
        {"id": "barn", "name": "Barn"},
        {"id": "bad/name", "name": "Barn"},
        {"name": ""},
    ]});
    let results = world.good(&office, "POST", &path, items).await;
    let results = results["results"].as_array().unwrap().clone();
    assert_eq!(statuses(&results), ["updated", "created", "rejected", "rejected"]);
    let ids = async |query: &str| -> Vec<String> {
        let list = world.get(&office, &format!("{path}?{query}")).await.json;
        let items = list["items"].as_array().unwrap_or_else(|| panic!("{list}"));
        items.iter().map(|home| home["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids("").await, ["barn", "mill"]);
    assert_eq!(ids("bbox=9.9,53.4,10.1,53.6").await, ["mill"]);
    assert_eq!(ids("q=old").await, ["mill"]);
    assert_eq!(ids("limit=1").await, ["barn"]);
    assert_eq!(world.get(&office, &format!("{path}?limit=1001")).await.status, 422);

    let mill = format!("{path}/mill");
    let seen = world.get(&office, &mill).await;
    let (header, field) = (seen.etag.unwrap(), seen.json["etag"].as_str().unwrap().to_owned());
    let note = json!({"note": "key under the mat", "place": null});
    let change = async |etag: &str| {
        world.call_with(&office, "PATCH", &mill, &note, &[("if-match", etag)]).await
    };
    let changed = change(&header).await;
    assert_eq!((changed.status, &changed.json["place"]), (200, &Value::Null));
    assert_eq!(changed.json["name"], "The Old Mill", "what is not given stays");
    assert_eq!([change(&header).await.status, change(&field).await.status], [412, 412]);
    let new = changed.json["etag"].as_str().unwrap();
    assert_eq!(change(new).await.status, 200);

    let sensor = format!("{BASE}/sensor/attic");
    let put = json!({"home": "mill", "room": "Attic", "expected_every_s": 60});
    assert_eq!(world.call(&office, "PUT", &sensor, &put).await.status, 201);
    assert_eq!(world.call(&office, "PUT", &sensor, &put).await.status, 200);
    let nowhere = json!({"home": "castle"});
    assert_eq!(world.call(&office, "PUT", &sensor, &nowhere).await.status, 422);
    assert_eq!(world.get(&office, &mill).await.json["devices"], 1);
    assert_eq!(world.call(&office, "DELETE", &mill, &Value::Null).await.status, 204);
    assert_eq!(world.get(&office, &mill).await.status, 404);
    let sensor = world.get(&office, &sensor).await.json;
    assert_eq!((&sensor["home"], &sensor["room"]), (&Value::Null, &json!("Attic")));
}

#[tokio::test]
async fn a_measurement_is_stored_once_and_shown_in_its_home() {
    let mut world = World::new();
    let office = world.log_in("north-office").await;
    let device = world.log_in("north-device").await;
    world
        .good(&office, "POST", &format!("{BASE}/home"), json!({"id": "mill", "name": "Mill"}))
        .await;
    let put = json!({"home": "mill", "expected_every_s": 3600});
    world.good(&office, "PUT", &format!("{BASE}/sensor/attic"), put).await;
    let now = now_ms();
    let mut named = measured("attic", "co2", now - 2000, 640.0);
    named["id"] = json!("gw-1");
    let mut other = named.clone();
    other["id"] = json!("gw-2");
    let items = vec![
        measured("attic", "radon", now - 1000, 120.0),
        measured("attic", "radon", now - 1000, 120.0),
        measured("attic", "radon", now - 5000, 110.0),
        named.clone(),
        named,
        other,
        json!({"device": "attic", "quantity": "Radon", "at": at(now), "value": 1}),
        measured("attic", "radon", now + 2 * 86_400_000, 1.0),
        measured("attic", "radon", now - 400 * 86_400_000, 1.0),
        json!({"device": "attic", "quantity": "temperature", "at": at(now), "value": 212, "unit": "°F"}),
        json!({"device": "attic", "quantity": "co", "at": at(now), "value": 5, "unit": "mg/m³"}),
    ];
    let results = send(&world, &device, items.clone()).await;
    let expected = [
        "stored",
        "duplicate",
        "stored",
        "stored",
        "duplicate",
        "stored",
        "rejected",
        "rejected",
        "rejected",
        "stored",
        "rejected",
    ];
    assert_eq!(statuses(&results), expected, "{results:?}");
    let again = send(&world, &device, items).await;
    assert!(statuses(&again).iter().all(|status| *status != "stored"), "{again:?}");

    let home = world.get(&office, &format!("{BASE}/home/mill")).await.json;
    let values: Vec<(&str, f64, &str)> = home["values"]
        .as_array()
        .unwrap()
        .iter()
        .map(|value| {
            assert_eq!(value["stale"], false);
            (
                value["quantity"].as_str().unwrap(),
                value["value"].as_f64().unwrap(),
                value["unit"].as_str().unwrap(),
            )
        })
        .collect();
    // The newest, not the one that came last.
    assert_eq!(
        values,
        [("co2", 640.0, "ppm"), ("radon", 120.0, "Bq/m³"), ("temperature", 100.0, "°C")]
    );
    let sensor = world.get(&office, &format!("{BASE}/sensor/attic")).await.json;
    assert_eq!(sensor["quantities"], json!(["co2", "radon", "temperature"]));
    assert_eq!(sensor["state"], "ok");

    let told = announced(&mut world);
    let radon = told.iter().find(|told| told.topic == "fulmar/north/value/attic/radon").unwrap();
    let payload: Value = serde_json::from_slice(&radon.payload).unwrap();
    assert!(radon.retain);
    assert_eq!((&payload["value"], &payload["home"]), (&json!(120.0), &json!("mill")));
}

#[tokio::test]
async fn measurements_survive_a_restart_and_repeat_after_it() {
    let world = World::new();
    let device = world.log_in("north-device").await;
    let mut item = measured("attic", "radon", now_ms() - 1000, 120.0);
    item["id"] = json!("gw-1");
    assert_eq!(statuses(&send(&world, &device, vec![item.clone()]).await), ["stored"]);
    let world = world.restart();
    assert_eq!(statuses(&send(&world, &device, vec![item]).await), ["duplicate"]);
}

#[tokio::test]
async fn messages_of_unknown_devices_are_kept_and_nonsense_is_counted() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    let now = now_ms();
    let message = |topic: &str, payload: &str, id: &str| SensorMessage {
        topic: format!("fulmar/{topic}"),
        payload: payload.into(),
        at: Some(at(now - 60_000)),
        id: Some(id.to_owned()),
    };
    let messages = vec![
        message("north/sensor/cellar/radon", "410", "gw-1"),
        message("north/sensor/cellar/radon", "410", "gw-1"),
        message("north/sensor/cellar", r#"{"co2":700,"humidity":55}"#, "gw-2"),
        message("north/sensor/cellar/radon", "many", "gw-3"),
        message("nowhere/sensor/cellar/radon", "5", "gw-4"),
        message("north/sensor/cellar/radon/x", "5", "gw-5"),
        message("south/sensor/cellar/radon", "6", "gw-1"),
    ];
    world.platform.take_measurements(&messages, SystemTime::now()).await.unwrap();
    let sensor = world.get(&office, &format!("{BASE}/sensor/cellar")).await.json;
    assert_eq!(sensor["home"], Value::Null);
    assert_eq!(sensor["quantities"], json!(["co2", "humidity", "radon"]));
    let series = format!("{BASE}/series?device=cellar&quantity=radon&step=raw");
    let series = world.get(&office, &series).await.json;
    let points = series["points"].as_array().unwrap();
    assert_eq!((points.len(), &points[0]["value"]), (1, &json!(410.0)), "{series}");
    let counts = world.platform.counts();
    assert_eq!((counts.measurements_stored, counts.measurements_duplicate), (4, 1));
    assert_eq!(counts.messages_malformed, 3);
    let south = world.log_in("south-office").await;
    let theirs = "/api/v1/south/series?device=cellar&quantity=radon&step=raw";
    assert_eq!(world.get(&south, theirs).await.json["points"][0]["value"], 6.0);
}

#[tokio::test]
async fn a_field_that_is_no_number_does_not_keep_others_from_being_stored() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    let payloads = [
        (r#"{"temperature":null,"humidity":51}"#, json!([51.0])),
        (r#"{"temperature":nan,"humidity":50}"#, json!([50.0])),
        (r#"{"temperature":"21.5","humidity":53}"#, json!([53.0])),
        (r#"{"temperature":1e400,"humidity":56}"#, json!([56.0])),
        (r#"{"temperature":{"a":1},"humidity":57}"#, json!([57.0])),
        (r#"{"ts":1796000000000,"values":{"humidity":58}}"#, json!([58.0])),
    ];
    let device = |number: usize| format!("s{number}");
    let messages = payloads.iter().enumerate().map(|(number, (payload, _))| SensorMessage {
        topic: format!("fulmar/north/sensor/{}", device(number)),
        payload: (*payload).into(),
        ..SensorMessage::default()
    });
    let messages: Vec<_> = messages.collect();
    world.platform.take_measurements(&messages, SystemTime::now()).await.unwrap();
    for (number, (payload, values)) in payloads.iter().enumerate() {
        let path = format!("{BASE}/series?device={}&quantity=humidity&step=raw", device(number));
        let path = format!("{path}&from=2026-01-01T00:00:00Z&to=2027-01-01T00:00:00Z");
        let points = world.get(&office, &path).await.json["points"].clone();
        let stored: Vec<_> = points.as_array().unwrap().iter().map(|one| &one["value"]).collect();
        assert_eq!(json!(stored), *values, "{payload}");
    }
    let counts = world.platform.counts();
    assert_eq!((counts.measurements_stored, counts.measurements_rejected), (6, 5));
    assert_eq!(counts.messages_malformed, 0);
}

#[tokio::test]
async fn a_message_that_cannot_be_stored_does_not_keep_others_from_being() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    let message = |device: &str, rest: &str, payload: &str| SensorMessage {
        topic: format!("fulmar/north/sensor/{device}{rest}"),
        payload: payload.into(),
        ..SensorMessage::default()
    };
    // JSON can have U+0000 as an escape; no database can hold it.
    let mut messages = vec![
        message("a", "/radon", r#"{"value":1,"id":"\u0000"}"#),
        message("b", "/radon", r#"[{"value":1,"id":"x\u0000"}]"#),
        message("c", "", r#"{"id":"\u0000","radon":1}"#),
        message("d", "/strange", r#"{"value":1,"unit":"\u0000"}"#),
        message("good", "/radon", "5"),
        message("e", "", r#"{"\u0000":1}"#),
    ];
    messages[4].id = Some("\0".to_owned());
    messages.push(message("good", "/radon", "6"));
    world.platform.take_measurements(&messages, SystemTime::now()).await.unwrap();
    let series = format!("{BASE}/series?device=good&quantity=radon&step=raw");
    let series = world.get(&office, &series).await.json;
    assert_eq!(series["points"].as_array().unwrap().len(), 1, "{series}");
    assert_eq!(world.platform.counts().messages_malformed, 6);
}

#[tokio::test]
async fn others_can_store_something_between_the_parts_of_many_measurements() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    let list = |message: i64| SensorMessage {
        topic: "fulmar/north/sensor/cellar/radon".to_owned(),
        payload: serde_json::to_vec(&vec![json!({"value": message}); 1000]).unwrap(),
        at: Some(at(now_ms() - message)),
        id: Some(format!("gw-{message}")),
    };
    let messages: Vec<SensorMessage> = (0..4).map(list).collect();
    assert_eq!(most_at_once(&world, &messages).await, 1000);
    assert_eq!(world.platform.counts().measurements_stored, 4000);

    // 200 rules in all, of which seven are there already.
    for number in 0..193 {
        let rule = json!({"id": format!("r{number}"), "name": "R", "quantity": "radon",
            "severity": "info", "above": 1000 + number});
        world.good(&office, "POST", &format!("{BASE}/alert_rule"), rule).await;
    }
    let message = list(4);
    assert_eq!(most_at_once(&world, std::slice::from_ref(&message)).await, 100);
    assert_eq!(world.platform.counts().measurements_stored, 5000);
}

/// Takes messages; how many measurements were stored at once.
async fn most_at_once(world: &World, messages: &[SensorMessage]) -> u64 {
    let mut take = std::pin::pin!(world.platform.take_measurements(messages, SystemTime::now()));
    let (mut most, mut before) = (0, world.platform.counts().measurements_stored);
    std::future::poll_fn(|context| {
        let polled = take.as_mut().poll(context);
        let now = world.platform.counts().measurements_stored;
        most = most.max(now - before);
        before = now;
        polled
    })
    .await
    .unwrap();
    most
}

/// Without PostgreSQL only: the tests cannot look into a world's database there.
#[tokio::test]
async fn messages_without_a_time_are_stored_once_however_often_they_are_tried() {
    let world = World::new();
    if world.database != Database::File {
        return;
    }
    let office = world.log_in("north-office").await;
    let message = |twin: &str| SensorMessage {
        topic: format!("fulmar/{twin}/sensor/cellar/radon"),
        payload: b"410".to_vec(),
        ..SensorMessage::default()
    };
    let messages = [message("north"), message("south")];
    let file = rusqlite::Connection::open(world.folder.path().join("platform.db")).unwrap();
    file.execute_batch(
        "CREATE TRIGGER fails BEFORE INSERT ON sensor WHEN NEW.twin = 'south'
         BEGIN SELECT RAISE(ABORT, 'for now'); END",
    )
    .unwrap();
    let arrived = SystemTime::now() - Duration::from_secs(1);
    // North's are stored, and then the whole is tried again.
    world.platform.take_measurements(&messages, arrived).await.unwrap_err();
    file.execute_batch("DROP TRIGGER fails").unwrap();
    world.platform.take_measurements(&messages, arrived).await.unwrap();

    let series = format!("{BASE}/series?device=cellar&quantity=radon");
    let raw = world.get(&office, &format!("{series}&step=raw")).await.json;
    assert_eq!(raw["points"].as_array().unwrap().len(), 1, "{raw}");
    let count =
        "SELECT sum(count) FROM series_hour x JOIN series s ON s.seq = x.series WHERE twin = ?1";
    for twin in ["north", "south"] {
        let count: i64 = file.query_row(count, [twin], |row| row.get(0)).unwrap();
        assert_eq!(count, 1, "{twin}");
    }
}

/// Without PostgreSQL only: the tests cannot fill a world's database there.
#[tokio::test]
async fn a_full_twin_refuses_another_sensor_and_still_changes_those_it_has() {
    let world = World::new();
    if world.database != Database::File {
        return;
    }
    let office = world.log_in("north-office").await;
    let file = rusqlite::Connection::open(world.folder.path().join("platform.db")).unwrap();
    // All but one of them.
    file.execute_batch(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 49999)
         INSERT INTO sensor (twin, device, revision) SELECT 'north', 's' || i, 1 FROM n",
    )
    .unwrap();
    let put = async |twin: &str, token: &str, device: &str| {
        let path = format!("/api/v1/{twin}/sensor/{device}");
        world.call(token, "PUT", &path, &json!({"room": "Attic"})).await
    };
    assert_eq!(put("north", &office, "last").await.status, 201);
    let refused = put("north", &office, "more").await;
    assert_eq!((refused.status, &*refused.kind), (409, "application/problem+json"));
    let detail = refused.json["detail"].as_str().unwrap();
    assert!(detail.contains("50000 sensors") && detail.contains("another twin"), "{detail}");
    assert_eq!(world.get(&office, &format!("{BASE}/sensor/more")).await.status, 404);
    for device in ["last", "s1"] {
        let changed = put("north", &office, device).await;
        assert_eq!((changed.status, &changed.json["room"]), (200, &json!("Attic")), "{device}");
    }
    let south = world.log_in("south-office").await;
    assert_eq!(put("south", &south, "more").await.status, 201, "another twin has room");
}

#[tokio::test]
async fn series_are_summed_up_in_steps_and_gaps_are_gaps() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    let day = now_ms().div_euclid(86_400_000) * 86_400_000 - 3 * 86_400_000;
    // Every ten minutes, six hours long, but for the third hour.
    let items = (0..36_i64)
        .filter(|n| !(12..18).contains(n))
        .map(|n| measured("attic", "radon", day + n * 600_000, 100.0 + n as f64));
    send(&world, &office, items.collect()).await;
    let path = format!("{BASE}/series?device=attic&quantity=radon");
    let range = format!("from={}&to={}", at(day), at(day + 6 * 3_600_000));
    let hours = world.get(&office, &format!("{path}&{range}&step=3600")).await;
    assert_eq!((&hours.json["step_s"], &hours.json["unit"]), (&json!(3600), &json!("Bq/m³")));
    let points = hours.json["points"].as_array().unwrap().clone();
    let means: Vec<Option<f64>> = points.iter().map(|point| point["value"].as_f64()).collect();
    assert_eq!(means, [Some(102.5), Some(108.5), None, Some(120.5), Some(126.5), Some(132.5)]);
    assert_eq!(points[0]["min"], 100.0);
    assert_eq!((&points[0]["max"], &points[0]["count"]), (&json!(105.0), &json!(6)));
    assert_eq!((&points[2]["count"], &points[2]["min"]), (&json!(0), &Value::Null));
    let again = [("if-none-match", &*hours.etag.unwrap())];
    let path_again = format!("{path}&{range}&step=3600");
    assert_eq!(
        world.call_with(&office, "GET", &path_again, &Value::Null, &again).await.status,
        304
    );

    // What was measured by the minute is summed up from what was measured, not from hours.
    let half = world.get(&office, &format!("{path}&{range}&step=1800")).await.json;
    let counts: Vec<u64> = half["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| point["count"].as_u64().unwrap())
        .collect();
    assert_eq!(counts, [3, 3, 3, 3, 0, 0, 3, 3, 3, 3, 3, 3]);
    let days = world.get(&office, &format!("{path}&{range}&step=86400")).await.json;
    assert_eq!(
        (&days["points"][0]["count"], days["points"].as_array().unwrap().len()),
        (&json!(30), 1)
    );
    let auto = world.get(&office, &format!("{path}&{range}")).await.json;
    assert_eq!(auto["step_s"], 1800, "never finer than the sensor measures");
    let raw = world.get(&office, &format!("{path}&{range}&step=raw")).await.json;
    assert_eq!((&raw["step_s"], raw["points"].as_array().unwrap().len()), (&json!(0), 30));
    let tooshort = format!("{path}&from={}&step=1", at(day));
    for (wrong, status) in [
        (&*tooshort, 422),
        (&*format!("{path}&step=0"), 422),
        (&*format!("{path}&step=hour"), 422),
        (&*format!("{path}&from={}&to={}", at(day), at(day)), 422),
        (&*format!("{BASE}/series?device=attic&quantity=co2"), 404),
        (&*format!("{BASE}/series?device=attic"), 422),
    ] {
        assert_eq!(world.get(&office, wrong).await.status, status, "{wrong}");
    }
}

#[tokio::test]
async fn twins_of_homes_say_so() {
    let world = World::new();
    let root = world.log_in("root").await;
    let made = world
        .good(
            &root,
            "POST",
            "/api/v1/twin",
            json!({"id": "rural", "name": "Rural", "kind": "homes"}),
        )
        .await;
    assert_eq!((&made["kind"], &made["homes"]), (&json!("homes"), &json!(0)));
    let twins = world.get(&root, "/api/v1/twin").await.json;
    let kind = |id: &str| {
        let twin = twins["items"].as_array().unwrap().iter().find(|twin| twin["id"] == id);
        twin.unwrap()["kind"].clone()
    };
    assert_eq!((kind("rural"), kind("north")), (json!("homes"), json!("meters")));
}

#[tokio::test]
async fn exported_series_are_whole() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    world
        .good(&office, "POST", &format!("{BASE}/home"), json!({"id": "mill", "name": "=Mill"}))
        .await;
    world.good(&office, "PUT", &format!("{BASE}/sensor/attic"), json!({"home": "mill"})).await;
    let day = now_ms().div_euclid(86_400_000) * 86_400_000 - 3 * 86_400_000;
    // More than are looked up at once, and several of one moment.
    let items: Vec<Value> = (0..2100_i64)
        .map(|n| measured("attic", "radon", day + n / 3 * 1000, n as f64))
        .chain([measured("cellar", "co2", day, 600.0)])
        .collect();
    for part in items.chunks(1000) {
        send(&world, &office, part.to_vec()).await;
    }
    let range = format!("from={}&to={}", at(day), at(day + 86_400_000));
    let path = format!("{BASE}/export/series.csv?{range}");
    let rows = async |query: &str| -> Vec<csv::StringRecord> {
        let answer = world.get(&office, &format!("{path}{query}")).await;
        assert_eq!((answer.status, &answer.kind[..8]), (200, "text/csv"));
        let mut table = csv::Reader::from_reader(&*answer.bytes);
        assert_eq!(table.headers().unwrap().get(7), Some("value"));
        table.records().map(Result::unwrap).collect()
    };
    let all = rows("").await;
    let values: std::collections::HashSet<String> =
        all.iter().filter(|row| &row[4] == "radon").map(|row| row[7].to_owned()).collect();
    assert_eq!((all.len(), values.len()), (2101, 2100), "each once");
    let radon = all.iter().find(|row| &row[4] == "radon").unwrap();
    assert_eq!((&radon[0], &radon[1], &radon[5]), ("mill", "'=Mill", "Bq/m³"));
    assert_eq!(rows("&home=mill").await.len(), 2100);
    assert_eq!(rows("&device=cellar").await.len(), 1);
    let minutes = rows("&home=mill&step=60").await;
    assert_eq!(minutes.len(), 12);
    let counted: u64 = minutes.iter().map(|row| row[10].parse::<u64>().unwrap()).sum();
    assert_eq!((counted, &minutes[0][8], &minutes[0][9]), (2100, "0", "179"));
    let xlsx = world.get(&office, &format!("{BASE}/export/series.xlsx?{range}")).await;
    assert_eq!((xlsx.status, &xlsx.bytes[..2]), (200, &b"PK"[..]));
    let wrong = world.get(&office, &format!("{path}&step=auto")).await;
    assert_eq!(wrong.status, 422);
}
