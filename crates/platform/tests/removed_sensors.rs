//! Removing a sensor: nothing shows it any more, and one that sends again begins anew.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, SystemTime};

use common::{World, now};
use fulmar_platform::{Database, Role, SensorMessage};
use serde_json::{Value, json};

const BASE: &str = "/api/v1/north";
const SENSOR: &str = "/api/v1/north/sensor/attic";

fn radon(ahead_s: i64, value: f64) -> Value {
    json!({"device": "attic", "quantity": "radon", "at": now(ahead_s), "value": value})
}

async fn send(world: &World, token: &str, items: &[Value]) -> Vec<Value> {
    let body = json!({"items": items});
    let answer = world.good(token, "POST", &format!("{BASE}/measurement"), body).await;
    let results = answer["results"].as_array().unwrap();
    results.iter().map(|result| result["status"].clone()).collect()
}

async fn remove(world: &World, token: &str) -> u16 {
    world.call(token, "DELETE", SENSOR, &Value::Null).await.status
}

async fn items(world: &World, token: &str, path: &str) -> Vec<Value> {
    let page = world.get(token, &format!("{BASE}/{path}")).await.json;
    page["items"].as_array().unwrap_or_else(|| panic!("{page}")).clone()
}

/// Topics whose retained message was taken away.
fn taken_away(world: &mut World) -> Vec<String> {
    let announced = std::iter::from_fn(|| world.announced.try_recv().ok());
    announced.filter(|told| told.payload.is_empty()).map(|told| told.topic).collect()
}

#[tokio::test]
async fn a_removed_sensor_is_nowhere_and_begins_anew_when_it_sends() {
    let mut world = World::new();
    let office = world.log_in("north-office").await;
    let home = json!({"id": "mill", "name": "Mill"});
    world.good(&office, "POST", &format!("{BASE}/home"), home).await;
    world.good(&office, "PUT", SENSOR, json!({"home": "mill", "room": "Attic"})).await;
    let at_once = json!({"averaging_s": 0});
    world.good(&office, "PATCH", &format!("{BASE}/alert_rule/radon"), at_once).await;
    assert_eq!(send(&world, &office, &[radon(-60, 500.0), radon(-50, 510.0)]).await, ["stored"; 2]);
    let raised = items(&world, &office, "alert?state=active").await;
    assert_eq!(raised.len(), 1);
    taken_away(&mut world);

    assert_eq!(remove(&world, &office).await, 204);
    let alert = raised[0]["id"].as_str().unwrap();
    let topics = ["alert/".to_owned() + alert, "value/attic/radon".to_owned()];
    assert_eq!(taken_away(&mut world), topics.map(|topic| format!("fulmar/north/{topic}")));
    let series = format!("{BASE}/series?device=attic&quantity=radon");
    for path in [SENSOR, &series] {
        assert_eq!(world.get(&office, path).await.status, 404, "{path}");
    }
    assert_eq!(items(&world, &office, "sensor").await, [] as [Value; 0]);
    assert_eq!(items(&world, &office, "alert?state=active").await, [] as [Value; 0]);
    let past = world.get(&office, &format!("{BASE}/alert/{alert}")).await.json;
    assert_eq!((&past["state"], &past["peak"]), (&json!("cleared"), &json!(510.0)));
    let home = world.get(&office, &format!("{BASE}/home/mill")).await.json;
    let shown = [&home["devices"], &home["alerts"], &home["values"]];
    assert_eq!(shown, [&json!(0), &json!(0), &json!([])]);
    let export = format!("{BASE}/export/series.csv?from={}", now(-3600));
    let lines = async || {
        world.get(&office, &export).await.bytes.iter().filter(|byte| **byte == b'\n').count()
    };
    assert_eq!(lines().await, 1, "the names of the columns");

    assert_eq!(send(&world, &office, &[radon(-60, 500.0)]).await, ["stored"]);
    let sensor = world.get(&office, SENSOR).await.json;
    assert_eq!((&sensor["home"], &sensor["room"]), (&Value::Null, &Value::Null));
    for step in ["raw", "3600", "86400"] {
        let shown = world.get(&office, &format!("{series}&step={step}")).await.json;
        let points = shown["points"].as_array().unwrap().iter();
        let count: u64 = points.map(|point| point["count"].as_u64().unwrap()).sum();
        assert_eq!(count, 1, "{step}: {shown}");
    }
    assert_eq!(lines().await, 2);
    assert_eq!(items(&world, &office, "alert?state=active").await.len(), 1, "it is raised again");
}

#[tokio::test]
async fn admin_and_office_remove_what_is_there_and_what_they_saw() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    for role in Role::ALL {
        world.good(&office, "PUT", SENSOR, json!({})).await;
        let token = world.log_in(&format!("north-{}", role.name())).await;
        let expected = if matches!(role, Role::Admin | Role::Office) { 204 } else { 403 };
        assert_eq!(remove(&world, &token).await, expected, "{}", role.name());
        assert_eq!(
            world.get(&office, SENSOR).await.status,
            if expected == 204 { 404 } else { 200 }
        );
    }
    let south = world.log_in("south-office").await;
    assert_eq!(remove(&world, &south).await, 404);
    assert_eq!(remove(&world, "").await, 401);
    let sensor = world.good(&office, "GET", SENSOR, Value::Null).await;
    let room = world.good(&office, "PUT", SENSOR, json!({"room": "Attic"})).await;
    let remove_seen = async |seen: &Value| {
        let etag = [("if-match", seen["etag"].as_str().unwrap())];
        world.call_with(&office, "DELETE", SENSOR, &Value::Null, &etag).await.status
    };
    assert_eq!([remove_seen(&sensor).await, remove_seen(&room).await], [412, 204]);
    let again = world.call(&office, "DELETE", SENSOR, &Value::Null).await;
    assert_eq!((again.status, &*again.kind), (404, "application/problem+json"));
    assert_eq!(
        world.call(&office, "DELETE", &format!("{BASE}/sensor/a%00b"), &Value::Null).await.status,
        404
    );
}

#[tokio::test]
async fn what_was_stored_before_does_not_bring_a_sensor_back() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    let mut item = radon(-60, 120.0);
    item["id"] = json!("gw-1");
    let message = |id: &str| SensorMessage {
        topic: "fulmar/north/sensor/attic/co2".to_owned(),
        payload: b"640".to_vec(),
        at: Some(now(-60)),
        id: Some(id.to_owned()),
    };
    let take = async |id: &str| {
        world.platform.take_measurements(&[message(id)], SystemTime::now()).await.unwrap();
    };
    assert_eq!(send(&world, &office, &[item.clone()]).await, ["stored"]);
    take("gw-2").await;
    assert_eq!(remove(&world, &office).await, 204);
    assert_eq!(send(&world, &office, &[item.clone(), item.clone()]).await, ["duplicate"; 2]);
    take("gw-2").await;
    assert_eq!(world.get(&office, SENSOR).await.status, 404);
    // Nor one of its quantities.
    take("gw-3").await;
    assert_eq!(send(&world, &office, &[item]).await, ["duplicate"]);
    assert_eq!(world.get(&office, SENSOR).await.json["quantities"], json!(["co2"]));
    assert_eq!(world.platform.counts().measurements_duplicate, 4);
}

#[tokio::test]
async fn sensors_that_send_while_they_are_removed_are_not_refused() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    let at_once = json!({"averaging_s": 0});
    world.good(&office, "PATCH", &format!("{BASE}/alert_rule/radon"), at_once).await;
    let senders = (0..4).map(|sender| {
        let (world, office) = (&world, &office);
        async move {
            for n in 0..50 {
                let value = if n % 3 == 0 { 500.0 } else { 100.0 } + f64::from(sender);
                let sent = send(world, office, &[radon(n - 100, value)]).await;
                assert!(sent.iter().all(|status| status != "rejected"), "{sent:?}");
            }
        }
    });
    let removals = async {
        let mut removed = 0;
        for _ in 0..50 {
            match remove(&world, &office).await {
                204 => removed += 1,
                status => assert_eq!(status, 404),
            }
        }
        removed
    };
    let (_, removed) = tokio::join!(futures_util::future::join_all(senders), removals);
    assert!(removed > 0);
    assert_eq!(world.platform.counts().measurements_rejected, 0);
}

#[tokio::test]
async fn upkeep_deletes_what_removed_sensors_measured() {
    let mut world = World::new();
    let office = world.log_in("north-office").await;
    let items: Vec<Value> = (0..500).map(|n| radon(n - 3600, 120.0)).collect();
    send(&world, &office, &items).await;
    assert_eq!(remove(&world, &office).await, 204);
    taken_away(&mut world);
    // It takes the last value away again when it is done.
    let done =
        async |announced: &mut tokio::sync::mpsc::Receiver<_>| announced.recv().await.unwrap();
    let platform = world.platform.clone();
    let told: fulmar_platform::Announcement = tokio::select! {
        () = platform.keep_up() => unreachable!("it has no end"),
        told = tokio::time::timeout(Duration::from_secs(20), done(&mut world.announced)) => told.unwrap(),
    };
    assert_eq!((&*told.topic, told.payload.len()), ("fulmar/north/value/attic/radon", 0));
    // Tests cannot look into a world's database at a PostgreSQL server.
    if world.database == Database::File {
        let file = rusqlite::Connection::open(world.folder.path().join("platform.db")).unwrap();
        for table in ["measurement", "series_hour", "series_day", "series", "removed_series"] {
            let sql = format!("SELECT count(*) FROM {table}");
            let count: i64 = file.query_row(&sql, [], |row| row.get(0)).unwrap();
            assert_eq!(count, 0, "{table}");
        }
    }
}
