//! Frames of meters, devices that send them, photos.
#![allow(clippy::unwrap_used)]

mod common;

use std::fmt::Write as _;

use axum::body::Body;
use axum::http::Request;
use common::World;
use fulmar_wmbus::simulate::Drive;
use serde_json::{Value, json};

const CLEAR: &str = "1844AE4C4455223368077A55000000041389E20100023B0000";

fn frame(hex: &str, at: &str) -> Value {
    json!({"hex": hex, "at": at, "rssi_dbm": -71.5, "mode": "T1", "place": {"lat": 53.5, "lon": 10.0}})
}

async fn send(world: &World, token: &str, frames: Value) -> Vec<Value> {
    let body = json!({"receiver": "van-1", "frames": frames});
    let answer = world.good(token, "POST", "/api/v1/north/frame", body).await;
    answer["results"].as_array().unwrap().clone()
}

fn statuses(results: &[Value]) -> Vec<&str> {
    results.iter().map(|result| result["status"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn frames_become_readings_once_and_replays_are_told() {
    let mut world = World::new();
    let (admin, van) = (world.log_in("north-admin").await, world.log_in("north-device").await);
    let meter = json!({"id": "m1", "address": "SEN-33225544-68-07"});
    world.good(&admin, "POST", "/api/v1/north/meter", meter).await;
    let (now, later) = ("2026-11-21T10:00:00Z", "2026-11-21T12:00:00Z");
    let strange = CLEAR.replace("44552233", "44552234");
    let frames = json!([
        frame(CLEAR, now),
        frame(CLEAR, "2026-11-21T10:00:02Z"),
        frame(&CLEAR[..30], now),
        frame("xyz", now),
        frame(&strange, now),
        {"hex": 5},
        frame(CLEAR, later),
    ]);
    let results = send(&world, &van, frames).await;
    let expected =
        ["stored", "duplicate", "malformed", "malformed", "unknown_meter", "malformed", "replayed"];
    assert_eq!(statuses(&results), expected);
    let readings = world.get(&admin, "/api/v1/north/reading").await.json;
    let stored = readings["items"].as_array().unwrap();
    assert_eq!(stored.len(), 1);
    assert_eq!((&stored[0]["value"], &stored[0]["unit"]), (&json!(123.529), &json!("m3")));
    assert_eq!((&stored[0]["method"], &stored[0]["device"]), (&json!("radio"), &json!("van-1")));
    let mut heard = Vec::new();
    while let Ok(told) = world.announced.try_recv() {
        if told.topic == "fulmar/north/heard/m1" {
            heard.push(String::from_utf8(told.payload).unwrap());
        }
    }
    assert!(!heard.is_empty() && heard.iter().all(|told| !told.contains("123.529")), "{heard:?}");
    let world = world.restart();
    let again = send(&world, &van, json!([frame(CLEAR, now), frame(CLEAR, later)])).await;
    assert_eq!(statuses(&again), ["duplicate", "replayed"], "what was heard is remembered");
}

#[tokio::test]
async fn encrypted_frames_need_the_right_key() {
    let world = World::new();
    let admin = world.log_in("north-admin").await;
    let mut drive = Drive::new(40, 7);
    let named = drive.keys().map(|(meter, key)| (meter.to_string().replace(' ', "-"), key));
    let keys: Vec<(String, String)> = named.collect();
    let items: Vec<Value> =
        keys.iter().map(|(meter, _)| json!({"id": meter, "address": meter})).collect();
    world.good(&admin, "POST", "/api/v1/north/meter", json!({"items": items})).await;
    let known = |meter: String| keys.iter().any(|(name, _)| *name == meter.replace(' ', "-"));
    let receptions: Vec<_> = drive
        .by_ref()
        .filter(|heard| !heard.damaged && known(heard.meter.to_string()))
        .take(60)
        .collect();
    let frames: Vec<Value> = receptions
        .iter()
        .map(|heard| {
            let mut hex = String::new();
            heard.frame.iter().for_each(|byte| write!(hex, "{byte:02X}").unwrap());
            let at = format!(
                "2026-11-21T10:00:{:02}.{:03}Z",
                heard.elapsed_ms / 1000 % 60,
                heard.elapsed_ms % 1000
            );
            frame(&hex, &at)
        })
        .collect();
    let without = send(&world, &admin, json!(frames)).await;
    assert!(statuses(&without).contains(&"no_key"));
    for (meter, _) in &keys {
        let wrong = json!({"key": "f".repeat(32)});
        world.good(&admin, "PUT", &format!("/api/v1/north/meter/{meter}/key"), wrong).await;
    }
    let wrong = send(&world, &admin, json!(frames)).await;
    assert!(statuses(&wrong).contains(&"wrong_key") && !statuses(&wrong).contains(&"no_key"));
    for (meter, key) in &keys {
        let right = json!({ "key": key });
        world.good(&admin, "PUT", &format!("/api/v1/north/meter/{meter}/key"), right).await;
    }
    let right = send(&world, &admin, json!(frames)).await;
    for (result, heard) in right.iter().zip(&receptions) {
        let status = result["status"].as_str().unwrap();
        assert!(["stored", "duplicate"].contains(&status), "{result}");
        let reading = format!("/api/v1/north/reading/{}", result["reading"].as_str().unwrap());
        let reading = world.get(&admin, &reading).await.json;
        assert_eq!(reading["value"], json!(f64::from(heard.litres) / 1000.0));
    }
}

#[tokio::test]
async fn devices_take_commands_and_tell_of_themselves() {
    let world = World::new();
    let (office, van) = (world.log_in("north-office").await, world.log_in("north-device").await);
    let reader = world.log_in("north-reader").await;
    let at = "/api/v1/north/instance/van-1";
    world.good(&van, "PUT", at, json!({"kind": "van", "name": "Van 1"})).await;
    let stolen = world.call(&reader, "PUT", at, &json!({"kind": "van"})).await;
    assert_eq!(stolen.status, 403, "a device is its first owner's");
    let command =
        world.call(&office, "POST", "/north/instance/van-1/command/sync", &json!({})).await;
    assert_eq!((command.status, &command.json["state"]), (202, &json!("pending")));
    let id = command.json["id"].as_str().unwrap();
    let done = json!({"state": "done"});
    world.good(&van, "PATCH", &format!("{at}/command/{id}"), done.clone()).await;
    assert_eq!(
        world.call(&reader, "PATCH", &format!("{at}/command/{id}"), &done).await.status,
        403
    );
    let commands = world.get(&van, &format!("{at}/command")).await.json;
    assert_eq!(commands["items"][0]["state"], "done");
    let item = json!({"id": uuid::Uuid::from_u128(1), "at": "2026-11-21T10:00:00Z", "battery_percent": 40});
    let items = json!({"items": [item, item]});
    let sent = world.good(&van, "POST", &format!("{at}/telemetry"), items).await;
    assert_eq!(
        (&sent["results"][0]["status"], &sent["results"][1]["status"]),
        (&json!("stored"), &json!("duplicate"))
    );
    let shown = world.get(&office, at).await.json;
    assert_eq!(shown["telemetry"]["battery_percent"], json!(40.0));
}

#[tokio::test]
async fn a_device_finds_its_own_behind_those_of_others() {
    let world = World::new();
    let (reader, van) = (world.log_in("north-reader").await, world.log_in("north-device").await);
    for (token, name) in [(&reader, "a-phone"), (&reader, "b-phone"), (&van, "van-1")] {
        let at = format!("/api/v1/north/instance/{name}");
        world.good(token, "PUT", &at, json!({"kind": "thing"})).await;
    }
    let names = async |token| {
        let page = world.get(token, "/api/v1/north/instance?limit=1").await.json;
        (page["items"][0]["device"].clone(), page["next"].is_null())
    };
    assert_eq!(names(&van).await, (json!("van-1"), true));
    assert_eq!(names(&reader).await, (json!("a-phone"), false));
}

#[tokio::test]
async fn a_photo_is_stored_once_and_never_changed() {
    let world = World::new();
    let reader = world.log_in("north-reader").await;
    let path = format!("/api/v1/north/photo/{}", uuid::Uuid::from_u128(1));
    let put = |bytes: &'static [u8]| {
        let request = Request::put(&path).header("authorization", format!("Bearer {reader}"));
        world.send(request.header("content-type", "image/jpeg").body(Body::from(bytes)).unwrap())
    };
    let jpeg = b"\xFF\xD8\xFF\xE0 a photo";
    assert_eq!(put(jpeg).await.status, 201);
    assert_eq!(put(jpeg).await.status, 200);
    assert_eq!(put(b"\xFF\xD8\xFF\xE0 another").await.status, 409);
    assert_eq!(put(b"<script>").await.status, 415);
    let shown = world.get(&reader, &path).await;
    assert_eq!((&*shown.kind, &*shown.bytes), ("image/jpeg", &jpeg[..]));
}
