//! Frames of meters, devices that send them, photos.
#![allow(clippy::unwrap_used)]

mod common;

use std::fmt::Write as _;

use axum::body::Body;
use axum::http::Request;
use common::{World, reading};
use fulmar_platform::Database;
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
async fn frames_are_stored_as_published_by_whoever_published_them() {
    let world = World::new();
    let (admin, van) = (world.log_in("north-admin").await, world.log_in("north-device").await);
    let meter = json!({"id": "m1", "address": "SEN-33225544-68-07"});
    world.good(&admin, "POST", "/api/v1/north/meter", meter).await;
    world.good(&van, "PUT", "/api/v1/north/instance/van-1", json!({"kind": "van"})).await;
    let payload = frame(CLEAR, "2026-11-21T10:00:00Z").to_string().into_bytes();
    // An office publishes what it likes, but not in the name of the device's owner.
    let topic = "fulmar/north/receiver/van-1/frame";
    let voucher = world.platform.vouch("north-office", topic, &payload).unwrap();
    let publisher = world.platform.vouched(&voucher, topic, &payload);
    assert_eq!(publisher, Some("north-office"));
    world.platform.take_frames("north", "van-1", publisher, &[payload]).await.unwrap();
    let readings = world.get(&admin, "/api/v1/north/reading").await.json;
    let stored = &readings["items"][0];
    assert_eq!((&stored["reader"], &stored["device"]), (&json!("north-office"), &json!("van-1")));
}

#[tokio::test]
async fn a_receivers_name_gives_no_role() {
    let world = World::new();
    let admin = world.log_in("north-admin").await;
    let meter = json!({"id": "m1", "address": "SEN-33225544-68-07"});
    world.good(&admin, "POST", "/api/v1/north/meter", meter).await;
    let list = json!({"name": "All", "meters": ["m1"]});
    let list = world.good(&admin, "POST", "/api/v1/north/work_list", list).await;
    let list = format!("/api/v1/north/work_list/{}", list["id"].as_str().unwrap());
    // The broker's own users may have a rule for all receivers: without a voucher, nobody knows who published it.
    for (publisher, hex, done) in
        [(None, CLEAR.to_owned(), 0), (Some("north-reader"), CLEAR.replace("89E2", "90E2"), 1)]
    {
        let payloads = [frame(&hex, &common::now(2)).to_string().into_bytes()];
        let taken = world.platform.take_frames("north", "north-reader", publisher, &payloads);
        taken.await.unwrap();
        assert_eq!(world.get(&admin, &list).await.json["done"], done, "{publisher:?}");
    }
}

#[tokio::test]
async fn a_frame_whose_reading_there_is_already_does_not_keep_others_from_being_stored() {
    let world = World::new();
    let (admin, reader) = (world.log_in("north-admin").await, world.log_in("north-reader").await);
    for address in ["SEN-33225544-68-07", "SEN-33225545-68-07"] {
        world.good(&admin, "POST", "/api/v1/north/meter", json!({"address": address})).await;
    }
    let other = CLEAR.replace("44552233", "45552233");
    let payload = |hex: &str| frame(hex, "2026-11-21T10:00:00Z").to_string().into_bytes();
    world.platform.take_frames("north", "van-1", None, &[payload(CLEAR)]).await.unwrap();
    let stored = world.get(&admin, "/api/v1/north/reading").await.json["items"][0].clone();
    // Somebody has received the second frame, too, and uses what its id was in earlier versions before it comes.
    let digest = ring::digest::digest(&ring::digest::SHA256, &hex(&other));
    let mut id = [0; 16];
    id.copy_from_slice(&digest.as_ref()[..16]);
    let id = uuid::Builder::from_random_bytes(id).into_uuid();
    let mut taken = reading(0, stored["meter"].as_str().unwrap(), "2026-11-20T00:00:00Z", 1.0);
    taken["id"] = json!(id);
    let answer = world.good(&reader, "POST", "/api/v1/north/reading", json!({"items": [taken]}));
    assert_eq!(answer.await["results"][0]["status"], "stored");
    let third = CLEAR.replace("44552233", "46552233");
    world
        .good(&admin, "POST", "/api/v1/north/meter", json!({"address": "SEN-33225546-68-07"}))
        .await;
    let payloads = [payload(&other), payload(&third)];
    world.platform.take_frames("north", "van-1", None, &payloads).await.unwrap();
    let readings = world.get(&admin, "/api/v1/north/reading").await.json;
    assert_eq!(readings["items"].as_array().unwrap().len(), 4, "{readings}");
    // The same frames again are known, also those that an earlier version has stored.
    let van = world.log_in("north-device").await;
    let again = frame(&other, "2026-11-21T10:00:01Z");
    assert_eq!(statuses(&send(&world, &van, json!([again])).await), ["duplicate"]);
    let before = world.get(&admin, "/api/v1/north/reading").await.json["items"].clone();
    for one in before.as_array().unwrap() {
        assert_ne!(one["method"] == "radio", one["id"] == json!(id));
    }
}

/// The bytes of hexadecimal digits.
fn hex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[tokio::test]
async fn a_receiver_is_its_owners_over_http_too() {
    let world = World::new();
    let (reader, van) = (world.log_in("north-reader").await, world.log_in("north-device").await);
    world.good(&van, "PUT", "/api/v1/north/instance/van-1", json!({"kind": "van"})).await;
    world.good(&reader, "PUT", "/api/v1/north/instance/phone-1", json!({"kind": "phone"})).await;
    let upload = |receiver: &str| json!({"receiver": receiver, "frames": []});
    for (token, receiver, expected) in [
        (&van, "van-1", 200),
        (&van, "van-2", 200),
        (&van, "phone-1", 403),
        // It would look like that user's.
        (&van, "north-office", 403),
        (&reader, "phone-1", 200),
        // People may share a device: they send in their own name.
        (&reader, "van-1", 200),
    ] {
        let answer = world.call(token, "POST", "/api/v1/north/frame", &upload(receiver)).await;
        assert_eq!(answer.status, expected, "{receiver}");
    }
    for (topic, user, expected) in [
        ("fulmar/north/receiver/van-1/frame", "north-reader", false),
        ("fulmar/north/receiver/north-office/frame", "north-reader", false),
        ("fulmar/north/receiver/north-reader/frame", "north-reader", true),
    ] {
        assert_eq!(world.platform.may(user, true, topic), expected, "{topic}");
    }
}

#[tokio::test]
async fn a_device_is_not_told_where_meters_are() {
    let world = World::new();
    let (admin, van) = (world.log_in("north-admin").await, world.log_in("north-device").await);
    let meter = json!({"id": "m1", "address": "SEN-33225544-68-07", "serial": "4711",
        "street": "Hafenstr. 1", "note": "dog", "place": {"lat": 53.5, "lon": 10.0}});
    world.good(&admin, "POST", "/api/v1/north/meter", meter).await;
    let listed = world.get(&van, "/api/v1/north/meter").await.json["items"][0].clone();
    for shown in [listed, world.get(&van, "/api/v1/north/meter/m1").await.json] {
        assert_eq!(shown["address"], "SEN-33225544-68-07");
        for hidden in ["serial", "street", "note", "place", "last", "expected"] {
            assert_eq!(shown[hidden], Value::Null, "{hidden}");
        }
    }
    for search in ["q=Hafen", "bbox=9,53,11,54"] {
        assert_eq!(world.get(&van, &format!("/api/v1/north/meter?{search}")).await.status, 403);
    }
    assert_eq!(world.get(&van, "/api/v1/north/work_list").await.status, 403);
    assert_eq!(world.get(&admin, "/api/v1/north/meter/m1").await.json["street"], "Hafenstr. 1");
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

    // As for measurements: an hour ahead may be a clock, two days would be the newest for two days.
    let item = |id, ahead_s| json!({"id": uuid::Uuid::from_u128(id), "at": common::now(ahead_s)});
    let items = json!({"items": [item(2, 2 * 86_400), item(3, 3600)]});
    let sent = world.good(&van, "POST", &format!("{at}/telemetry"), items).await;
    assert_eq!(sent["results"][0]["status"], "rejected", "{sent}");
    assert!(sent["results"][0]["detail"].as_str().unwrap().contains("future"), "{sent}");
    assert_eq!(sent["results"][1]["status"], "stored");
    let shown = world.get(&office, at).await.json;
    assert_eq!(shown["telemetry"]["id"], json!(uuid::Uuid::from_u128(3)));
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
    // What the client has is not read again: it gets 304 though other bytes are in the database now.
    if world.database == Database::File {
        let file = world.folder.path().join("platform.db");
        let db = rusqlite::Connection::open(file).unwrap();
        assert_eq!(db.execute("UPDATE photo SET bytes = x'FFD8FF00'", ()).unwrap(), 1);
    }
    let etag = shown.etag.unwrap();
    let known = [("if-none-match", &*etag)];
    let again = world.call_with(&reader, "GET", &path, &Value::Null, &known).await;
    assert_eq!((again.status, again.etag, again.bytes.len()), (304, Some(etag.clone()), 0));
    // As large as they may be, and no larger.
    for (id, bytes, expected) in [(2, 4 << 20, 201), (3, (4 << 20) + 1, 413)] {
        let path = format!("/api/v1/north/photo/{}", uuid::Uuid::from_u128(id));
        let request = Request::put(&path).header("authorization", format!("Bearer {reader}"));
        let body = [&jpeg[..], &vec![0; bytes - jpeg.len()]].concat();
        assert_eq!(world.send(request.body(Body::from(body)).unwrap()).await.status, expected);
    }
}

#[tokio::test]
async fn an_account_stores_no_more_photos_than_its_bytes_for_the_day() {
    let world = World::new().with_settings(|settings| settings.photo_bytes_per_day = 10_000);
    let (reader, office) = (world.log_in("north-reader").await, world.log_in("north-office").await);
    let put = async |token: &str, id: u128, bytes: usize| {
        let path = format!("/api/v1/north/photo/{}", uuid::Uuid::from_u128(id));
        let request = Request::put(&path).header("authorization", format!("Bearer {token}"));
        let body = [&b"\xFF\xD8\xFF"[..], &vec![0; bytes - 3]].concat();
        world.send(request.body(Body::from(body)).unwrap()).await
    };
    assert_eq!(put(&reader, 1, 6_000).await.status, 201);
    // What was stored already does not count again, nor does what is refused.
    assert_eq!(put(&reader, 1, 4_000).await.status, 409);
    assert_eq!(put(&reader, 2, 3_900).await.status, 201);
    let refused = put(&reader, 3, 1_000).await;
    assert_eq!(refused.status, 429);
    let wait: u64 = refused.retry_after.unwrap().parse().unwrap();
    assert!((1_000..86_400).contains(&wait), "{wait}");
    assert_eq!(put(&office, 4, 9_000).await.status, 201, "another account");
}

#[tokio::test]
async fn photos_are_refused_before_their_space_is_used_up_and_readings_go_on() {
    let limits = fulmar_platform::DiskLimits { database: 4_000_000, photos: 1_000_000 };
    let mut world = World::new().with_settings(|settings| settings.disk = limits);
    let names = ["north-reader", "north-office", "south-reader"];
    let mut stored = Vec::new();
    let put = async |world: &World, twin: &str, token: &str, id: u128| {
        let path = format!("/api/v1/{twin}/photo/{}", uuid::Uuid::from_u128(id));
        let request = Request::put(&path).header("authorization", format!("Bearer {token}"));
        let body = [&b"\xFF\xD8\xFF"[..], &[7; 17_497]].concat();
        world.send(request.body(Body::from(body)).unwrap()).await
    };
    for (who, name) in (1..).zip(names) {
        let (twin, token) = (&name[..5], world.log_in(name).await);
        let mut number = 0;
        let refused = loop {
            let answer = put(&world, twin, &token, who * 1000 + number).await;
            if answer.status != 201 {
                break answer;
            }
            number += 1;
        };
        assert_eq!((refused.status, &*refused.kind), (507, "application/problem+json"), "{name}");
        // What is stored needs no more space.
        assert_eq!(put(&world, twin, &token, who * 1000).await.status, 200);
        stored.push(number);
    }
    // 20 KB each: half of the space, half of the rest and the twin's three quarters, half of the rest.
    assert_eq!(stored, [26, 11, 7]);
    let counts = world.platform.counts();
    assert_eq!((counts.photo_bytes, counts.photos_refused), (880_000, 3));
    // It counts after a restart.
    world = world.with_settings(|settings| settings.disk = limits);
    assert_eq!(world.platform.counts().photo_bytes, 880_000);
    let reader = world.log_in("north-reader").await;
    assert_eq!(put(&world, "north", &reader, 9).await.status, 507);
}

#[tokio::test]
async fn a_database_that_is_full_answers_507_and_can_still_be_read() {
    let world = World::new();
    if world.database != fulmar_platform::Database::File {
        return;
    }
    let world = world.with_settings(|settings| settings.disk.database = 1);
    let reader = world.log_in("north-reader").await;
    let path = format!("/api/v1/north/photo/{}", uuid::Uuid::from_u128(1));
    let request = Request::put(&path).header("authorization", format!("Bearer {reader}"));
    let body = [&b"\xFF\xD8\xFF"[..], &[0; 1_000_000]].concat();
    let refused = world.send(request.body(Body::from(body)).unwrap()).await;
    assert_eq!(refused.status, 507);
    assert!(refused.retry_after.is_some());
    assert_eq!(world.platform.counts().photo_bytes, 0, "its space is given back");
    assert_eq!(world.get(&reader, "/api/v1/north").await.status, 200);
}

#[tokio::test]
async fn what_the_van_decodes_does_the_work_of_the_list_when_a_key_or_a_role_vouches_for_it() {
    let mut world = World::new();
    let (admin, van) = (world.log_in("north-admin").await, world.log_in("north-device").await);
    let reader = world.log_in("north-reader").await;
    let mut drive = Drive::new(10, 7);
    let keys: Vec<(String, String)> =
        drive.keys().map(|(meter, key)| (meter.to_string().replace(' ', "-"), key)).collect();
    let mut items: Vec<Value> =
        keys.iter().map(|(meter, _)| json!({"id": meter, "address": meter})).collect();
    items.push(json!({"id": "clear", "address": "SEN-33225544-68-07"}));
    world.good(&admin, "POST", "/api/v1/north/meter", json!({"items": items})).await;
    for (meter, key) in &keys {
        let path = format!("/api/v1/north/meter/{meter}/key");
        world.good(&admin, "PUT", &path, json!({ "key": key })).await;
    }
    let mut ids: Vec<&str> = keys.iter().map(|(meter, _)| &**meter).collect();
    ids.push("clear");
    let list = json!({"name": "Drive by", "assignee": "north-reader", "meters": ids});
    let list = world.good(&admin, "POST", "/api/v1/north/work_list", list).await;
    let path = format!("/api/v1/north/work_list/{}", list["id"].as_str().unwrap());
    while world.announced.try_recv().is_ok() {}

    let ahead = time::OffsetDateTime::now_utc() + time::Duration::seconds(2);
    let (date, (hour, minute, second)) = (ahead.date(), ahead.to_hms());
    let at = format!("{date}T{hour:02}:{minute:02}:{second:02}Z");
    let known = |meter: String| ids.contains(&&*meter.replace(' ', "-"));
    let heard: Vec<_> = drive
        .by_ref()
        .filter(|heard| !heard.damaged && known(heard.meter.to_string()))
        .take(40)
        .collect();
    let mut frames = vec![frame(CLEAR, &at)];
    for heard in &heard {
        let mut hex = String::new();
        heard.frame.iter().for_each(|byte| write!(hex, "{byte:02X}").unwrap());
        frames.push(frame(&hex, &at));
    }
    let results = send(&world, &van, json!(frames)).await;
    let stored = results[1..].iter().filter(|result| result["status"] == "stored");
    let read: std::collections::HashSet<&str> =
        stored.map(|result| result["meter"].as_str().unwrap()).collect();
    assert!(!read.is_empty() && results[0]["status"] == "stored", "{results:?}");
    let done = world.get(&admin, &path).await.json["done"].clone();
    assert_eq!(done, json!(read.len()), "an unencrypted frame of a device could be made up");
    let told = std::iter::from_fn(|| world.announced.try_recv().ok());
    let progress: Vec<Value> = told
        .filter(|told| told.topic.contains("/work_list/"))
        .map(|told| serde_json::from_slice(&told.payload).unwrap())
        .collect();
    assert_eq!(progress.len(), 1, "told once for all of them");
    assert_eq!(progress[0]["done"], json!(read.len()));
    // Another unencrypted meter, received by a user who may read meters.
    let other = CLEAR.replace("1389E201", "1390E201");
    let results = send(&world, &reader, json!([frame(&other, &at)])).await;
    assert_eq!(results[0]["status"], "stored", "{results:?}");
    assert_eq!(world.get(&admin, &path).await.json["done"], json!(read.len() + 1));
}

/// A frame of a meter in mode 5 with the register's volume.
fn mode5(access: u8, litres: u32) -> String {
    let address = fulmar_wmbus::Address::from_link([0xAE, 0x4C, 0x44, 0x55, 0x22, 0x33, 0x68, 7]);
    let key = fulmar_wmbus::Key::new([7; 16]);
    let records = [&[0x04, 0x13][..], &litres.to_le_bytes(), &[0x02, 0xFD, 0x17, 0, 0]].concat();
    let frame = fulmar_wmbus::encode(address, access, 0, fulmar_wmbus::Seal::Mode5(&key), &records);
    let mut hex = String::new();
    frame.iter().for_each(|byte| write!(hex, "{byte:02X}").unwrap());
    hex
}

/// With records behind the encrypted part.
fn behind(hex: &str, records: &str) -> String {
    let bytes = (hex.len() + records.len()) / 2 - 1;
    format!("{bytes:02X}{}{records}", &hex[2..])
}

#[tokio::test]
async fn of_a_meter_with_a_key_only_what_it_protects_counts() {
    let world = World::new();
    let (admin, van) = (world.log_in("north-admin").await, world.log_in("north-device").await);
    let meter = json!({"id": "m1", "address": "SEN-33225544", "medium": "heat"});
    world.good(&admin, "POST", "/api/v1/north/meter", meter).await;
    let key = |key: Value| json!({ "key": key });
    let path = "/api/v1/north/meter/m1/key";
    world.good(&admin, "PUT", path, key(json!("07".repeat(16)))).await;
    let list = json!({"name": "All", "meters": ["m1"]});
    let list = world.good(&admin, "POST", "/api/v1/north/work_list", list).await;
    let list = format!("/api/v1/north/work_list/{}", list["id"].as_str().unwrap());
    let plain = CLEAR;
    let energy = "0406FFFF0F00";
    let other_model = mode5(9, 900).replacen("6807", "6907", 1);
    let at = |ahead: i64| common::now(ahead);
    let frames = [
        (plain.to_owned(), "unproven", "unauthenticated"),
        (mode5(1, 1000), "", "encrypted"),
        (behind(&mode5(2, 1100), energy), "", "encrypted"),
        // The volume that it showed before, from an old capture, and what somebody else claims.
        (mode5(3, 500), "backwards unproven", "encrypted"),
        (plain.replace("89E2", "90E2"), "unproven", "unauthenticated"),
        (other_model, "unproven", "encrypted"),
    ];
    for (number, (hex, _, _)) in frames.iter().enumerate() {
        let results = send(&world, &van, json!([frame(hex, &at(number as i64 + 2))])).await;
        assert_eq!(results[0]["status"], "stored", "{results:?}");
        let state = world.get(&admin, &list).await.json["tasks"][0].clone();
        assert_eq!(state["state"] == "read", number > 0, "{state}");
    }
    let readings = world.get(&admin, "/api/v1/north/reading").await.json["items"].clone();
    for (reading, (_, flags, protection)) in readings.as_array().unwrap().iter().zip(&frames) {
        let shown: Vec<&str> = reading["flags"]
            .as_array()
            .unwrap()
            .iter()
            .map(|flag| flag.as_str().unwrap())
            .collect();
        let shown: Vec<&str> = shown.into_iter().filter(|flag| *flag != "implausible").collect();
        assert_eq!(
            (&*shown.join(" "), &reading["protection"]),
            (*flags, &json!(protection)),
            "{reading}"
        );
    }
    let last = world.get(&admin, "/api/v1/north/meter/m1").await.json["last"].clone();
    assert_eq!((&last["value"], &last["protection"]), (&json!(1.1), &json!("encrypted")));
    // What is behind the encrypted part does not make it another message.
    let again = behind(&mode5(2, 1100), "041300000000");
    let results = send(&world, &van, json!([frame(&again, &at(1000))])).await;
    assert_eq!(results[0]["status"], "replayed", "{results:?}");
    // A person decides otherwise, and the key goes: then it is a meter without one.
    let id = readings[0]["id"].as_str().unwrap();
    let restored = json!({"withdrawn": false, "reason": "seen on the register"});
    let reading = format!("/api/v1/north/reading/{id}");
    let restored = world.good(&admin, "PATCH", &reading, restored).await;
    assert!(!restored["flags"].to_string().contains("unproven"), "{restored}");
    world.good(&admin, "PUT", path, key(Value::Null)).await;
    assert_eq!(world.call(&admin, "PUT", path, &json!({})).await.status, 422);
    let results = send(&world, &van, json!([frame(&plain.replace("89E2", "91E2"), &at(60))])).await;
    let reading = format!("/api/v1/north/reading/{}", results[0]["reading"].as_str().unwrap());
    let reading = world.get(&admin, &reading).await.json;
    assert_eq!(
        (&reading["flags"], &reading["protection"]),
        (&json!([]), &json!("unauthenticated"))
    );
}

#[tokio::test]
async fn heat_cost_allocators_count_units_and_lines_of_receivers_are_frames() {
    let world = World::new();
    let (admin, van) = (world.log_in("north-admin").await, world.log_in("north-device").await);
    for meter in [
        json!({"id": "radiator", "address": "QDS-32229002", "medium": "heat_cost"}),
        json!({"id": "m1", "address": "SEN-33225544"}),
    ] {
        world.good(&admin, "POST", "/api/v1/north/meter", meter).await;
    }
    let allocator = "49449344029022323608780DFF5F350082ED00000F0007B06EFFFF300500003F3C770700005F3830050000\
        030041006E007C0089FD8B008200610012000000000000002F046D20085439";
    let rtl_433 = json!({"model": "Wireless-MBus", "mode": "C", "data": CLEAR}).to_string();
    let now = "2026-11-21T10:00:00Z";
    let log = format!("telegram=|{CLEAR}|+5");
    let frames = json!([frame(allocator, now), frame(&rtl_433, now), frame(&log, now)]);
    let results = send(&world, &van, frames).await;
    assert_eq!(statuses(&results), ["stored", "stored", "duplicate"], "{results:?}");
    let readings = world.get(&admin, "/api/v1/north/reading").await.json;
    let of = |meter: &str| {
        let items = readings["items"].as_array().unwrap();
        let one = items.iter().find(|item| item["meter"] == meter).unwrap();
        (one["value"].clone(), one["unit"].clone())
    };
    assert_eq!(of("radiator"), (json!(530.0), json!("units")));
    assert_eq!(of("m1"), (json!(123.529), json!("m3")));
}

#[tokio::test]
async fn a_record_that_is_encrypted_on_its_own_is_read_with_the_key_or_not_at_all() {
    let world = World::new();
    let (admin, van) = (world.log_in("north-admin").await, world.log_in("north-device").await);
    let now = "2026-11-21T10:00:00Z";
    // Its ciphertext looks like 15,430.611 m³.
    let chance = "49449344016135141907780DFF5F350082C100352CAA738213487E11064315FD4DA668870285651771A8D3CFB7\
        DE5ECC22081CDD1A3FFBA6506F901027DB29B4672708D9046D160A4F38";
    let with_key = "5344934483561523330678077983561523934433060DFF5F350082970035AEFF35D165BFBD3C5A0704264BAE\
        AA296F804BBED74EBAC4BEB1FF2D0DBFFD52421241FD425C241CD4C54E95EFE91974046D1C10DC22";
    for (id, address) in [("a", "QDS-14356101"), ("b", "QDS-23155683")] {
        let meter = json!({"id": id, "address": address});
        world.good(&admin, "POST", "/api/v1/north/meter", meter).await;
    }
    let frames = json!([frame(chance, now), frame(with_key, now)]);
    let results = send(&world, &van, frames).await;
    assert_eq!(statuses(&results), ["no_key", "no_key"], "{results:?}");
    assert_eq!(world.platform.counts().frames_refused, 2);
    let key = json!({"key": "000102030405060708090A0B0C0D0E0F"});
    for meter in ["a", "b"] {
        world.good(&admin, "PUT", &format!("/api/v1/north/meter/{meter}/key"), key.clone()).await;
    }
    let frames = json!([frame(chance, now), frame(with_key, now)]);
    let results = send(&world, &van, frames).await;
    assert_eq!(statuses(&results), ["wrong_key", "stored"], "{results:?}");
    let readings = world.get(&admin, "/api/v1/north/reading").await.json;
    let items = readings["items"].as_array().unwrap();
    assert_eq!((items.len(), &items[0]["value"]), (1, &json!(9.908)));
    assert_eq!(items[0]["protection"], "encrypted", "{items:?}");
}
