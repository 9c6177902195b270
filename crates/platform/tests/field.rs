//! Meters, work lists and readings, as office and field use them.
#![allow(clippy::unwrap_used)]

mod common;

use common::{World, reading};
use serde_json::{Value, json};

async fn meters(world: &World, office: &str, count: usize) {
    let items: Vec<Value> = (0..count)
        .map(|n| {
            let place = json!({"lat": 53.5 + n as f64 / 1000.0, "lon": 10.0});
            json!({"id": format!("m{n:03}"), "street": format!("Street {n}"), "place": place})
        })
        .collect();
    let import = world.good(office, "POST", "/api/v1/north/meter", json!({"items": items})).await;
    assert!(import["results"].as_array().unwrap().iter().all(|r| r["status"] == "created"));
}

async fn list_of(world: &World, office: &str, assignee: Option<&str>, meters: &[&str]) -> String {
    let list = json!({"name": "Monday", "assignee": assignee, "meters": meters});
    let made = world.good(office, "POST", "/api/v1/north/work_list", list).await;
    made["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn meters_are_imported_found_paged_and_changed() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    meters(&world, &office, 25).await;
    let mut found = Vec::new();
    let mut path = "/api/v1/north/meter?limit=10".to_owned();
    loop {
        let page = world.get(&office, &path).await.json;
        found.extend(page["items"].as_array().unwrap().iter().map(|m| m["id"].clone()));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/api/v1/north/meter?limit=10&cursor={next}");
    }
    assert_eq!(found.len(), 25);
    let within = world.get(&office, "/api/v1/north/meter?bbox=9.9,53.5,10.1,53.5045").await.json;
    assert_eq!(within["items"].as_array().unwrap().len(), 5);
    let words = world.get(&office, "/api/v1/north/meter?q=street%2017").await.json;
    assert_eq!(words["items"][0]["id"], "m017");
    let one = world.get(&office, "/api/v1/north/meter/m003").await;
    let etag = one.etag.clone().unwrap();
    assert_eq!(one.json["etag"], etag.as_str());
    let again = world
        .call_with(
            &office,
            "GET",
            "/api/v1/north/meter/m003",
            &Value::Null,
            &[("if-none-match", &etag)],
        )
        .await;
    assert_eq!((again.status, again.bytes.len()), (304, 0));
    let change = json!({"note": "key at no. 5", "street": null});
    let (path, held) = ("/api/v1/north/meter/m003", [("if-match", &*etag)]);
    let changed = world.call_with(&office, "PATCH", path, &change, &held).await;
    assert_eq!((changed.status, &changed.json["note"]), (200, &json!("key at no. 5")));
    assert_eq!(changed.json["street"], Value::Null);
    assert_eq!(world.call_with(&office, "PATCH", path, &change, &held).await.status, 412);
}

#[tokio::test]
async fn a_key_goes_in_and_never_out() {
    let world = World::new();
    let admin = world.log_in("north-admin").await;
    let key = "000102030405060708090a0b0c0d0e0f";
    world
        .good(&admin, "POST", "/api/v1/north/meter", json!({"address": "KAM-12345678-16-1b"}))
        .await;
    let path = "/api/v1/north/meter/KAM-12345678";
    world.good(&admin, "PUT", &format!("{path}/key"), json!({"key": key})).await;
    let shown = world.get(&admin, path).await;
    assert_eq!((&shown.json["has_key"], &shown.json["radio"]), (&json!(true), &json!(true)));
    let text = String::from_utf8(shown.bytes).unwrap().to_lowercase();
    assert!(!text.contains(&key[4..]), "{text}");
    let short = world.call(&admin, "PUT", &format!("{path}/key"), &json!({"key": &key[2..]})).await;
    assert_eq!(short.status, 422);
    assert!(!String::from_utf8(short.bytes).unwrap().contains("0405"), "an error shows no key");
}

#[tokio::test]
async fn a_reading_sent_twice_is_stored_once_and_survives() {
    let world = World::new();
    let (office, reader) = (world.log_in("north-office").await, world.log_in("north-reader").await);
    meters(&world, &office, 3).await;
    let list = list_of(&world, &office, Some("north-reader"), &["m000", "m001"]).await;
    let first = reading(1, "m000", "2026-11-21T10:00:00Z", 12.5);
    let mut copy = first.clone();
    copy["id"] = json!(uuid::Uuid::from_u128(9));
    let wrong = json!({"id": "x", "meter": "m001"});
    let unknown = reading(2, "nothing", "2026-11-21T10:00:00Z", 1.0);
    let items = json!([first, first, copy, wrong, unknown]);
    // As the study's app calls it.
    let path = format!("/north/work_list/{list}");
    let done = world.good(&reader, "PATCH", &path, json!({"readings": items})).await;
    let statuses: Vec<&str> =
        done["results"].as_array().unwrap().iter().map(|r| r["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["stored", "duplicate", "duplicate", "rejected", "rejected"]);
    assert_eq!((&done["work_list"]["done"], &done["work_list"]["total"]), (&json!(1), &json!(2)));
    let (office, reader) = (office.clone(), reader.clone());
    let world = world.restart();
    let again =
        world.good(&reader, "POST", "/api/v1/north/reading", json!({"items": [first]})).await;
    assert_eq!(again["results"][0]["status"], "duplicate");
    let stored = world.get(&office, "/api/v1/north/reading").await.json;
    assert_eq!(stored["items"].as_array().unwrap().len(), 1);
    assert_eq!(stored["items"][0]["reader"], "north-reader");
    let meter = world.get(&office, "/api/v1/north/meter/m000").await.json;
    assert_eq!(meter["last"]["value"], 12.5);
    let changed = json!({"items": [reading(1, "m000", "2026-11-21T10:00:00Z", 13.0)]});
    let other = world.good(&reader, "POST", "/api/v1/north/reading", changed).await;
    assert_eq!(other["results"][0]["status"], "rejected", "an id is not used twice");
}

#[tokio::test]
async fn two_devices_that_disagree_are_both_kept_until_somebody_decides() {
    let world = World::new();
    let (office, reader) = (world.log_in("north-office").await, world.log_in("north-reader").await);
    meters(&world, &office, 1).await;
    let list = list_of(&world, &office, None, &["m000"]).await;
    let send = |id, value, device: &'static str, at: &'static str| {
        let mut item = reading(id, "m000", at, value);
        item["device"] = json!(device);
        item["work_list"] = json!(list);
        json!({"items": [item]})
    };
    let path = "/api/v1/north/reading";
    let one = send(1, 10.0, "phone-1", "2026-11-21T10:00:00Z");
    assert_eq!(world.good(&reader, "POST", path, one).await["results"][0]["status"], "stored");
    let two = send(2, 11.0, "phone-2", "2026-11-21T11:00:00Z");
    assert_eq!(world.good(&reader, "POST", path, two).await["results"][0]["status"], "conflict");
    let ids = [1, 2].map(|id| uuid::Uuid::from_u128(id).to_string());
    let shown = world.get(&office, path).await.json;
    for (item, other) in [(0, 1), (1, 0)] {
        assert_eq!(shown["items"][item]["conflict_with"], json!([ids[other]]));
        assert_eq!(shown["items"][item]["flags"], json!(["conflict"]));
    }
    let resolve = format!("{path}/{}/resolve", ids[0]);
    assert_eq!(world.call(&reader, "POST", &resolve, &json!({"keep": true})).await.status, 403);
    world.good(&office, "POST", &resolve, json!({"keep": true})).await;
    let shown = world.get(&office, path).await.json;
    assert_eq!(shown["items"][0]["flags"], json!([]));
    assert_eq!(shown["items"][1]["flags"], json!(["superseded"]));
    let meter = world.get(&office, "/api/v1/north/meter/m000").await.json;
    assert_eq!(meter["last"]["value"], 10.0);
}

#[tokio::test]
async fn a_reader_sees_own_and_unassigned_lists_only() {
    let world = World::new();
    let (office, reader) = (world.log_in("north-office").await, world.log_in("north-reader").await);
    meters(&world, &office, 2).await;
    let mine = list_of(&world, &office, Some("north-reader"), &["m000"]).await;
    let free = list_of(&world, &office, None, &["m000"]).await;
    let other = list_of(&world, &office, Some("north-admin"), &["m001"]).await;
    let lists = world.get(&reader, "/north/work_list").await.json;
    let seen: Vec<&str> = lists["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|list| list["id"].as_str().unwrap())
        .collect();
    assert_eq!(seen, [&*mine, &*free]);
    let path = format!("/api/v1/north/work_list/{other}");
    assert_eq!(world.get(&reader, &path).await.status, 404);
    assert_eq!(world.call(&reader, "PATCH", &path, &json!({"state": "done"})).await.status, 404);
    assert_eq!(world.get(&office, &path).await.status, 200);
    let own = format!("/api/v1/north/work_list/{mine}");
    assert_eq!(world.call(&reader, "PATCH", &own, &json!({"name": "x"})).await.status, 403);
    let gone = json!({"tasks": [{"meter": "m000", "state": "unreachable", "note": "dog"}]});
    world.good(&reader, "PATCH", &own, gone).await;
    let full = world.get(&reader, &own).await.json;
    assert_eq!(
        (&full["tasks"][0]["state"], &full["tasks"][0]["note"]),
        (&json!("unreachable"), &json!("dog"))
    );
}

#[tokio::test]
async fn values_that_a_register_cannot_show_are_flagged() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    let meters = json!({"items": [
        {"id": "cold", "register_digits": 5},
        {"id": "warm", "medium": "warm_water"},
        {"id": "solar", "medium": "electricity", "register_digits": 6},
    ]});
    world.good(&office, "POST", "/api/v1/north/meter", meters).await;
    let cases = [
        ("cold", -1.5, "m3", true),
        ("cold", 100_000.0, "m3", true),
        ("cold", 99_999.999, "m3", false),
        ("warm", -0.001, "m3", true),
        ("solar", -20.0, "kWh", false),
        ("solar", -1_000_000.0, "kWh", true),
        // The register's digits are those of its own unit.
        ("cold", 1_182_000.0, "l", false),
    ];
    for (number, (meter, value, unit, flagged)) in (1..).zip(cases) {
        // Each older than the one before, so that nothing is compared with it.
        let at = format!("2026-11-{:02}T10:00:00Z", 20 - number);
        let mut item = reading(number, meter, &at, value);
        item["unit"] = json!(unit);
        world.good(&office, "POST", "/api/v1/north/reading", json!({"items": [item]})).await;
        let path = format!("/api/v1/north/reading/{}", uuid::Uuid::from_u128(number));
        let flags = world.get(&office, &path).await.json["flags"].clone();
        let expected = if flagged { json!(["implausible"]) } else { json!([]) };
        assert_eq!(flags, expected, "{meter} {value} {unit}");
    }
    let path = format!("/api/v1/north/reading/{}", uuid::Uuid::from_u128(4));
    for (value, flags) in [(-2.0, json!(["implausible", "corrected"])), (2.0, json!(["corrected"]))]
    {
        let change = json!({"value": value, "reason": "misread"});
        assert_eq!(world.good(&office, "PATCH", &path, change).await["flags"], flags, "{value}");
    }
}

#[tokio::test]
async fn no_access_does_not_undo_a_reading() {
    let world = World::new();
    let (office, reader) = (world.log_in("north-office").await, world.log_in("north-reader").await);
    meters(&world, &office, 2).await;
    let list = list_of(&world, &office, Some("north-reader"), &["m000", "m001"]).await;
    let path = format!("/api/v1/north/work_list/{list}");
    let task = async || {
        let full = world.get(&reader, &path).await.json;
        let task = full["tasks"][0].clone();
        (task["state"].clone(), task["note"].clone(), full["done"].clone())
    };
    let no_access =
        |note| json!({"tasks": [{"meter": "m000", "state": "unreachable", "note": note}]});
    world.good(&reader, "PATCH", &path, no_access("dog")).await;
    assert_eq!(task().await, (json!("unreachable"), json!("dog"), json!(0)));
    let read = json!({"readings": [reading(1, "m000", "2026-11-21T10:00:00Z", 12.5)]});
    world.good(&reader, "PATCH", &path, read).await;
    assert_eq!(task().await, (json!("read"), json!("dog"), json!(1)));
    // Another phone sends now what it noted in the morning.
    let sent = world.good(&reader, "PATCH", &path, no_access("nobody home")).await;
    assert_eq!(sent["work_list"]["unreachable"], 0);
    assert_eq!(task().await, (json!("read"), json!("nobody home"), json!(1)));
    // Without a reading that holds, it is as it is said to be.
    let change = json!({"withdrawn": true, "reason": "the neighbour's meter"});
    let id = uuid::Uuid::from_u128(1);
    world.good(&office, "PATCH", &format!("/api/v1/north/reading/{id}"), change).await;
    world.good(&reader, "PATCH", &path, no_access("dog")).await;
    assert_eq!(task().await, (json!("unreachable"), json!("dog"), json!(0)));
}

#[tokio::test]
async fn a_user_registers_a_bounded_number_of_devices_and_others_go_on() {
    let world = World::new();
    let (device, other) = (world.log_in("north-device").await, world.log_in("north-reader").await);
    let register = |number: usize| {
        let path = format!("/api/v1/north/instance/device{number}");
        let (world, device) = (&world, &device);
        async move { world.call(device, "PUT", &path, &json!({"kind": "van"})).await }
    };
    let answers = futures_util::future::join_all((0..1001).map(register)).await;
    let (good, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert_eq!((good.len(), refused.len()), (1000, 1));
    assert_eq!(refused[0].status, 409);
    let detail = refused[0].json["detail"].as_str().unwrap();
    assert!(detail.contains("1000 devices"), "{detail}");
    let known = good[0].json["device"].as_str().unwrap();
    let path = format!("/api/v1/north/instance/{known}");
    world.good(&device, "PUT", &path, json!({"kind": "gateway"})).await;
    world.good(&other, "PUT", "/api/v1/north/instance/phone", json!({"kind": "phone"})).await;
    let world = world.restart();
    let device = world.log_in("north-device").await;
    let path = "/api/v1/north/instance/one-more";
    assert_eq!(world.call(&device, "PUT", path, &json!({"kind": "van"})).await.status, 409);
}

#[tokio::test]
async fn an_import_names_each_meter_and_home_once() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    for (path, items, statuses) in [
        (
            "meter",
            json!([{"id": "m1", "street": "A 1"}, {"id": "m1", "street": "B 2"}, {"id": "m2"},
                {"address": "KAM-12345678"}, {"address": "KAM-12345678"}]),
            ["created", "rejected", "created", "created", "rejected"],
        ),
        (
            "home",
            json!([{"id": "m1", "name": "A"}, {"id": "m1", "name": "B"}, {"id": "m2", "name": "C"},
                {"name": "D"}, {"id": "m1", "name": "E"}]),
            ["created", "rejected", "created", "created", "rejected"],
        ),
    ] {
        let path = format!("/api/v1/north/{path}");
        let answer = world.good(&office, "POST", &path, json!({"items": items})).await;
        let results = answer["results"].as_array().unwrap();
        let got: Vec<&str> = results.iter().map(|one| one["status"].as_str().unwrap()).collect();
        assert_eq!(got, statuses, "{results:?}");
        assert!(results[1]["detail"].as_str().unwrap().contains("earlier item"), "{results:?}");
        let first = world.get(&office, &format!("{path}/m1")).await.json;
        assert!(first["street"] == "A 1" || first["name"] == "A", "the first counts: {first}");
    }
}
