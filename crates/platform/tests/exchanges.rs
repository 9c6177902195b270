//! Meters that are exchanged: consumption goes on, and what comes is compared with the register in place.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};

use common::{World, now, reading};
use fulmar_identity::{ChangeLog, NewEntry};
use serde_json::{Value, json};

const BASE: &str = "/api/v1/north";

fn id(number: u128) -> String {
    uuid::Uuid::from_u128(number).to_string()
}

fn day(day: u32) -> String {
    format!("2026-11-{day:02}T00:00:00Z")
}

fn exchange(number: u128, at: &str, last: f64, first: f64) -> Value {
    json!({"id": id(number), "at": at, "final": last, "first": first})
}

/// A platform with the meter `m1`, number A-1, and the office's token.
async fn world() -> (World, String) {
    let world = World::new();
    let office = world.log_in("north-office").await;
    let meter = json!({"id": "m1", "serial": "A-1"});
    world.good(&office, "POST", &format!("{BASE}/meter"), meter).await;
    (world, office)
}

/// Sends a reading for each day and value; their numbers are those of the days.
async fn send(world: &World, office: &str, values: &[(u32, f64)]) {
    let readings = values.iter().map(|(at, value)| reading((*at).into(), "m1", &day(*at), *value));
    let body = json!({"items": readings.collect::<Vec<_>>()});
    let answer = world.good(office, "POST", &format!("{BASE}/reading"), body).await;
    let results = answer["results"].as_array().unwrap();
    assert!(results.iter().all(|result| result["status"] == "stored"), "{answer}");
}

async fn enter(world: &World, office: &str, exchange: Value) -> Value {
    world.good(office, "POST", &format!("{BASE}/meter/m1/exchange"), exchange).await
}

async fn flags(world: &World, office: &str, number: u32) -> Value {
    let path = format!("{BASE}/reading/{}", id(number.into()));
    world.get(office, &path).await.json["flags"].clone()
}

async fn meter(world: &World, office: &str) -> Value {
    world.get(office, &format!("{BASE}/meter/m1")).await.json
}

/// Register and consumption of the days from the first to the last.
async fn days(world: &World, office: &str, from: u32, to: u32) -> Vec<(Value, Value)> {
    let range = format!("from={}&to={}&step=day", day(from), day(to));
    let answer = world.get(office, &format!("{BASE}/meter/m1/consumption?{range}")).await.json;
    let points = answer["points"].as_array().unwrap_or_else(|| panic!("{answer}"));
    points.iter().map(|point| (point["value"].clone(), point["consumption"].clone())).collect()
}

/// Object and action, and true if it was made.
type Entry = (String, &'static str, bool);

/// The server's log of changes.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Entry>>>);

impl Log {
    fn entries(&self) -> Vec<Entry> {
        self.0.lock().unwrap().clone()
    }
}

impl ChangeLog for Log {
    fn begin(&self, changes: &[NewEntry]) -> Result<Vec<i64>, String> {
        let mut entries = self.0.lock().unwrap();
        entries.extend(changes.iter().map(|change| (change.object.clone(), change.action, false)));
        Ok(vec![entries.len() as i64 - 1])
    }

    fn end(&self, results: &[(i64, &str)]) {
        for (id, result) in results {
            self.0.lock().unwrap()[*id as usize].2 = *result == "ok";
        }
    }
}

/// home-assistant/core#140300: the register goes from 1182 to 0, and on.
#[tokio::test]
async fn a_new_meter_leaves_no_gap_and_no_reading_of_it_looks_wrong() {
    let (mut world, office) = world().await;
    let old = [(1, 1180.0), (2, 1181.0), (3, 1182.0)];
    let new = [(4, 0.0), (5, 1.0), (6, 2.5)];
    send(&world, &office, &old).await;
    send(&world, &office, &new).await;
    assert_eq!(flags(&world, &office, 4).await, json!(["backwards", "implausible"]));
    let gap = (json!(1182.0), Value::Null);
    assert_eq!(days(&world, &office, 3, 4).await, [gap], "nobody has entered an exchange");

    while world.announced.try_recv().is_ok() {}
    let entered = enter(&world, &office, exchange(1, "2026-11-03T12:00:00Z", 1182.4, 0.0)).await;
    assert_eq!((&entered["final"], &entered["first"]), (&json!(1182.4), &json!(0.0)));
    let shown = days(&world, &office, 1, 6).await;
    let expected = [(1180.0, 1.0), (1181.0, 1.0), (1182.0, 0.4), (0.0, 1.0), (1.0, 1.5)];
    assert_eq!(shown, expected.map(|(value, used)| (json!(value), json!(used))));
    for number in 1..=6 {
        assert_eq!(flags(&world, &office, number).await, json!([]), "{number}");
    }
    let announced: Vec<String> =
        std::iter::from_fn(|| world.announced.try_recv().ok()).map(|told| told.topic).collect();
    assert_eq!(announced, ["fulmar/north/reading/m1"], "of the reading whose flags went");
    // The rate goes on, too: a day's use is about 1, and 10 a day is not.
    send(&world, &office, &[(7, 3.5), (8, 33.5)]).await;
    assert_eq!(flags(&world, &office, 7).await, json!([]));
    assert_eq!(meter(&world, &office).await["last"]["value"], json!(33.5));
}

#[tokio::test]
async fn an_exchange_is_stored_once_checked_logged_and_listed() {
    let (world, office) = world().await;
    send(&world, &office, &[(1, 100.0), (3, 101.0)]).await;
    let log = Log::default();
    world.platform.log_changes(Box::new(log.clone()));
    let path = format!("{BASE}/meter/m1/exchange");
    let mut new = exchange(1, "2026-11-03T12:00:00Z", 101.5, 7.0);
    (new["new_serial"], new["note"]) = (json!("B-2"), json!("the old one leaked"));
    let first = world.call(&office, "POST", &path, &new).await;
    assert_eq!(first.status, 201, "{}", first.json);
    assert_eq!(first.json["old_serial"], "A-1");
    let again = world.call(&office, "POST", &path, &new).await;
    assert_eq!((again.status, &again.json), (200, &first.json), "the answer was lost");
    let shown = meter(&world, &office).await;
    assert_eq!((&shown["serial"], &shown["last"]["value"]), (&json!("B-2"), &json!(7.0)));
    assert_eq!(shown["expected"]["low"], 7.0);

    let other = |number, at: &str, last: f64, first: f64| exchange(number, at, last, first);
    for (wrong, status, field) in [
        (other(1, "2026-11-03T12:00:00Z", 102.0, 7.0), 409, None),
        (other(2, "2026-11-03T12:00:00Z", 102.0, 7.0), 409, None),
        (other(2, "2126-11-03T12:00:00Z", 102.0, 7.0), 422, Some("at")),
        (other(2, "2026-11-02T12:00:00Z", 99.0, 7.0), 422, Some("final")),
        (other(2, "2026-11-04T12:00:00Z", 6.0, 0.0), 422, Some("final")),
        (other(2, "2026-11-04T12:00:00Z", 1e8, 0.0), 422, Some("final")),
        (other(2, "2026-11-04T12:00:00Z", 8.0, -1.0), 422, Some("first")),
    ] {
        let answer = world.call(&office, "POST", &path, &wrong).await;
        let named = answer.json["errors"][0]["field"].as_str();
        assert_eq!((answer.status, named), (status, field), "{wrong}: {}", answer.json);
    }
    // An older one leaves the meter its number.
    let mut older = exchange(3, "2026-11-02T12:00:00Z", 100.5, 100.5);
    older["new_serial"] = json!("A-1");
    enter(&world, &office, older).await;
    assert_eq!(meter(&world, &office).await["serial"], "B-2");
    let listed = world.get(&office, &path).await.json;
    let ids: Vec<&Value> =
        listed["items"].as_array().unwrap().iter().map(|item| &item["id"]).collect();
    assert_eq!(ids, [&json!(id(1)), &json!(id(3))], "newest first");
    assert_eq!(listed["items"][0]["note"], "the old one leaked");
    assert_eq!(listed["items"][0]["entered_by"], "north-office");

    let taken_back = format!("{path}/{}", id(1));
    for _ in 0..2 {
        assert_eq!(world.call(&office, "DELETE", &taken_back, &Value::Null).await.status, 204);
    }
    let listed = world.get(&office, &path).await.json;
    assert_eq!(listed["items"][0]["withdrawn_by"], "north-office");
    let shown = meter(&world, &office).await;
    assert_eq!((&shown["serial"], &shown["last"]["value"]), (&json!("A-1"), &json!(101.0)));
    for unknown in [format!("{path}/{}", id(9)), format!("{path}/x")] {
        assert_eq!(world.call(&office, "DELETE", &unknown, &Value::Null).await.status, 404);
    }
    let sent_late = world.call(&office, "POST", &path, &new).await;
    assert!(sent_late.json["withdrawn_at"].is_string(), "it stays taken back: {}", sent_late.json);
    let actions: Vec<_> = log.entries().into_iter().filter(|(_, _, is_made)| *is_made).collect();
    let made = |action| ("m1".to_owned(), action, true);
    let add = made("meter.exchange");
    let back = made("meter.exchange.withdraw");
    assert_eq!(actions, [add.clone(), add.clone(), add.clone(), back.clone(), back, add]);
    let world = world.restart();
    assert_eq!(world.get(&office, &path).await.json, listed);
}

#[tokio::test]
async fn a_meter_has_a_hundred_exchanges_and_all_count() {
    let (world, office) = world().await;
    send(&world, &office, &[(1, 0.0)]).await;
    let at = |number: u128| format!("2026-11-01T{:02}:{:02}:00Z", number / 60, number % 60);
    for number in 1..=100 {
        enter(&world, &office, exchange(number, &at(number), 10.0, 0.0)).await;
    }
    let path = format!("{BASE}/meter/m1/exchange");
    let more = exchange(101, &at(101), 10.0, 0.0);
    assert_eq!(world.call(&office, "POST", &path, &more).await.status, 409);
    send(&world, &office, &[(2, 5.0)]).await;
    assert_eq!(days(&world, &office, 1, 2).await, [(json!(0.0), json!(1005.0))]);
    assert_eq!(flags(&world, &office, 2).await, json!([]));
}

#[tokio::test]
async fn a_mistaken_exchange_is_taken_back_and_readings_are_judged_without_it() {
    let (world, office) = world().await;
    send(&world, &office, &[(1, 1180.0), (2, 1181.0)]).await;
    enter(&world, &office, exchange(1, "2026-11-02T12:00:00Z", 1181.5, 0.0)).await;
    send(&world, &office, &[(3, 0.5), (4, 1.5)]).await;
    assert_eq!(flags(&world, &office, 3).await, json!([]), "it is the new register's");
    let used = (json!(1181.0), json!(1.0));
    assert_eq!(days(&world, &office, 2, 3).await, [used]);
    let path = format!("{BASE}/meter/m1/exchange/{}", id(1));
    world.good(&office, "DELETE", &path, Value::Null).await;
    assert_eq!(flags(&world, &office, 3).await, json!(["backwards", "implausible"]));
    assert_eq!(flags(&world, &office, 4).await, json!([]), "that was compared with the third");
    assert_eq!(days(&world, &office, 2, 3).await, [(json!(1181.0), Value::Null)]);
    // The right one, a day's reading off: only what is of the new register is judged by it.
    enter(&world, &office, exchange(2, &day(3), 1182.0, 0.2)).await;
    assert_eq!(flags(&world, &office, 3).await, json!([]), "at the time of the exchange");
    assert_eq!(days(&world, &office, 2, 4).await[0].1, json!(1.3));
}

#[tokio::test]
async fn exchanges_before_between_and_after_readings_and_late_ones() {
    let (world, office) = world().await;
    // Before the first reading: what the new register counted until then is known.
    enter(&world, &office, exchange(1, &day(1), 500.0, 3.0)).await;
    send(&world, &office, &[(2, 4.0)]).await;
    assert_eq!(days(&world, &office, 1, 2).await, [(json!(3.0), json!(1.0))]);
    // Two between two readings. The second makes no sense without the first.
    let second = exchange(2, "2026-11-02T18:00:00Z", 0.25, 20.0);
    let path = format!("{BASE}/meter/m1/exchange");
    assert_eq!(world.call(&office, "POST", &path, &second).await.status, 422);
    enter(&world, &office, exchange(3, "2026-11-02T12:00:00Z", 4.5, 0.0)).await;
    enter(&world, &office, second).await;
    send(&world, &office, &[(3, 20.25)]).await;
    assert_eq!(days(&world, &office, 2, 3).await, [(json!(4.0), json!(1.0))]);
    // After the last: the old register's end is known.
    enter(&world, &office, exchange(4, &day(4), 21.0, 100.0)).await;
    assert_eq!(days(&world, &office, 3, 4).await, [(json!(20.25), json!(0.75))]);
    // Late ones, of each register: nothing of them is compared with another one's.
    let late = [(50, "2026-11-02T06:00:00Z", 4.2), (51, "2026-11-02T15:00:00Z", 0.1)];
    let late = late.map(|(number, at, value)| reading(number, "m1", at, value));
    let body = json!({"items": late});
    world.good(&office, "POST", &format!("{BASE}/reading"), body).await;
    for number in [2, 3, 50, 51] {
        assert_eq!(flags(&world, &office, number).await, json!([]), "{number}");
    }
    assert_eq!(days(&world, &office, 2, 3).await, [(json!(4.0), json!(1.0))]);
    send(&world, &office, &[(5, 99.0)]).await;
    assert_eq!(flags(&world, &office, 5).await, json!(["backwards", "implausible"]), "below 100");

    // A correction that brings a reading to the other side of an exchange.
    let path = format!("{BASE}/reading/{}", id(5));
    let moved = json!({"at": "2026-11-03T12:00:00Z", "value": 20.5, "reason": "the day before"});
    world.good(&office, "PATCH", &path, moved).await;
    assert_eq!(flags(&world, &office, 5).await, json!(["corrected"]));
    let moved = json!({"at": "2026-11-04T12:00:00Z", "reason": "after all"});
    world.good(&office, "PATCH", &path, moved).await;
    assert_eq!(flags(&world, &office, 5).await, json!(["backwards", "corrected"]));
}

#[tokio::test]
async fn readings_of_two_registers_do_not_contradict_each_other() {
    let (world, office) = world().await;
    let list = json!({"name": "Monday", "meters": ["m1"]});
    let list = world.good(&office, "POST", &format!("{BASE}/work_list"), list).await;
    enter(&world, &office, exchange(1, "2026-11-02T12:00:00Z", 1181.5, 0.0)).await;
    let by = |number, at: u32, value, device: &str| {
        let mut item = reading(number, "m1", &day(at), value);
        (item["device"], item["work_list"]) = (json!(device), list["id"].clone());
        item
    };
    let items = [by(2, 2, 1181.0, "a"), by(3, 3, 0.5, "b"), by(4, 3, 0.6, "c")];
    let answer =
        world.good(&office, "POST", &format!("{BASE}/reading"), json!({"items": items})).await;
    let results = answer["results"].as_array().unwrap();
    let results: Vec<&Value> = results.iter().map(|result| &result["status"]).collect();
    assert_eq!(results, ["stored", "stored", "conflict"]);
}

#[tokio::test]
async fn a_leak_goes_on_across_an_exchange() {
    let (world, office) = world().await;
    let hourly = (0..=24_u32).map(|hour| {
        let (at, counted) = (
            format!("2026-11-{:02}T{:02}:00:00Z", 2 + hour / 24, hour % 24),
            f64::from(hour) / 4.0,
        );
        let value = if hour < 12 { 1000.0 + counted } else { counted - 3.0 };
        reading(u128::from(hour) + 1, "m1", &at, value)
    });
    let items: Vec<Value> = hourly.collect();
    world.good(&office, "POST", &format!("{BASE}/reading"), json!({"items": items})).await;
    assert_eq!(meter(&world, &office).await["state"], "ok");
    enter(&world, &office, exchange(1, "2026-11-02T12:00:00Z", 1003.0, 0.0)).await;
    assert_eq!(meter(&world, &office).await["state"], "leak_suspected");
    let report = world.get(&office, &format!("{BASE}/report/leaks")).await.json;
    assert_eq!(report["items"][0]["least_per_hour"], 0.25);
}

#[tokio::test]
async fn what_a_work_list_missed_was_seen_at_the_exchange() {
    let (world, office) = world().await;
    let list = json!({"name": "October", "meters": ["m1"], "due": "2026-01-01T00:00:00Z"});
    world.good(&office, "POST", &format!("{BASE}/work_list"), list).await;
    assert_eq!(meter(&world, &office).await["state"], "missed");
    enter(&world, &office, exchange(1, &now(2), 10.0, 0.0)).await;
    assert_eq!(meter(&world, &office).await["state"], "ok");
}
