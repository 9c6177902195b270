//! What the office asks: use over time, progress, missed meters, leaks and tables of readings.
#![allow(clippy::unwrap_used)]

mod common;

use common::{World, now, reading};
use serde_json::{Value, json};

const BASE: &str = "/api/v1/north";

async fn meters(world: &World, office: &str, ids: &[&str]) {
    let items: Vec<Value> = ids.iter().map(|id| json!({"id": id})).collect();
    world.good(office, "POST", &format!("{BASE}/meter"), json!({"items": items})).await;
}

async fn send(world: &World, office: &str, readings: Vec<Value>) {
    let path = format!("{BASE}/reading");
    let answer = world.good(office, "POST", &path, json!({"items": readings})).await;
    let results = answer["results"].as_array().unwrap();
    assert!(results.iter().all(|result| result["status"] == "stored"), "{answer}");
}

async fn state(world: &World, office: &str, meter: &str) -> Value {
    world.get(office, &format!("{BASE}/meter/{meter}")).await.json["state"].clone()
}

/// Readings of every hour of a day and the next day's first, by how much the register rises in each.
fn hourly(meter: &str, first_id: u128, rise: impl Fn(usize) -> f64) -> Vec<Value> {
    let mut register = 10.0;
    let hours = (0..=24_usize).map(|hour| {
        register += rise(hour);
        let at = format!("2026-11-{:02}T{:02}:00:00Z", 2 + hour / 24, hour % 24);
        reading(first_id + hour as u128, meter, &at, register)
    });
    hours.collect()
}

#[tokio::test]
async fn consumption_is_told_in_steps_with_gaps() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    meters(&world, &office, &["m1"]).await;
    let readings = [("01", 100.0), ("02", 102.5), ("03", 104.0), ("08", 120.0), ("09", 121.0)];
    let readings = (1..)
        .zip(readings)
        .map(|(id, (day, value))| reading(id, "m1", &format!("2026-11-{day}T00:00:00Z"), value));
    send(&world, &office, readings.collect()).await;
    let path = format!("{BASE}/meter/m1/consumption");
    let range = "from=2026-11-01T00:00:00Z&to=2026-11-10T00:00:00Z&step=day";
    let answer = world.get(&office, &format!("{path}?{range}")).await;
    assert_eq!((&answer.json["unit"], &answer.json["step"]), (&json!("m3"), &json!("day")));
    let points = answer.json["points"].as_array().unwrap();
    let first = json!({"at": "2026-11-01T00:00:00.000Z", "value": 100.0, "consumption": 2.5});
    assert_eq!(points[0], first);
    let used: Vec<Option<f64>> = points.iter().map(|point| point["consumption"].as_f64()).collect();
    let gap = None;
    assert_eq!(used, [Some(2.5), Some(1.5), gap, gap, gap, gap, gap, Some(1.0), gap]);
    assert!(points[3]["value"].is_null(), "{}", points[3]);
    let months = format!("{path}?from=2026-10-01T00:00:00Z&to=2026-12-01T00:00:00Z&step=month");
    assert_eq!(world.get(&office, &months).await.json["points"].as_array().unwrap().len(), 2);
    let etag = answer.etag.unwrap();
    let known = [("if-none-match", &*etag)];
    let again = format!("{path}?{range}");
    assert_eq!(world.call_with(&office, "GET", &again, &Value::Null, &known).await.status, 304);
    assert_eq!(world.get(&office, &path).await.status, 200, "the range has a usual one");
    for (wrong, status) in [
        ("step=year", 422),
        ("from=2026-11-02T00:00:00Z&to=2026-11-01T00:00:00Z", 422),
        ("from=2000-01-01T00:00:00Z&to=2026-11-01T00:00:00Z&step=hour", 422),
        ("from=yesterday", 422),
    ] {
        let answer = world.get(&office, &format!("{path}?{wrong}")).await;
        assert_eq!((answer.status, &*answer.kind), (status, "application/problem+json"), "{wrong}");
    }
    assert_eq!(world.get(&office, &format!("{BASE}/meter/none/consumption")).await.status, 404);
}

#[tokio::test]
async fn what_never_pauses_is_suspected_until_it_does() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    meters(&world, &office, &["drips", "rests", "hums"]).await;
    let hums = json!({"medium": "electricity"});
    world.good(&office, "PATCH", &format!("{BASE}/meter/hums"), hums).await;
    send(&world, &office, hourly("drips", 100, |_| 0.25)).await;
    send(&world, &office, hourly("hums", 300, |_| 0.25)).await;
    let rests = |hour| if hour == 3 { 0.0 } else { 0.25 };
    send(&world, &office, hourly("rests", 200, rests)).await;
    let report = world.get(&office, &format!("{BASE}/report/leaks")).await.json;
    let items = report["items"].as_array().unwrap();
    assert_eq!(items.len(), 1, "{report}");
    assert_eq!(items[0]["meter"]["id"], "drips");
    assert_eq!(items[0]["meter"]["state"], "leak_suspected");
    assert_eq!(items[0]["since"], "2026-11-02T00:00:00.000Z");
    assert_eq!(items[0]["least_per_hour"], 0.25);
    for fine in ["rests", "hums"] {
        assert_eq!(state(&world, &office, fine).await, "ok", "{fine}");
    }
    let quiet = reading(999, "drips", "2026-11-03T01:00:00Z", 16.25);
    send(&world, &office, vec![quiet]).await;
    assert_eq!(state(&world, &office, "drips").await, "ok", "it paused");
    let report = world.get(&office, &format!("{BASE}/report/leaks")).await.json;
    assert_eq!(report["items"], json!([]));
}

#[tokio::test]
async fn missed_meters_are_those_of_lists_that_are_over() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    meters(&world, &office, &["m1", "m2", "m3"]).await;
    let (lists, report) = (format!("{BASE}/work_list"), format!("{BASE}/report/missed"));
    let over =
        json!({"name": "October", "meters": ["m1", "m2", "m3"], "due": "2026-01-01T00:00:00Z"});
    let over = world.good(&office, "POST", &lists, over).await;
    let open = json!({"name": "Later", "meters": ["m1"], "due": "2126-01-01T00:00:00Z"});
    let open = world.good(&office, "POST", &lists, open).await;
    let (over, open) = (over["id"].as_str().unwrap(), open["id"].as_str().unwrap());
    let mut read = reading(1, "m1", "2026-01-01T00:00:00Z", 5.0);
    read["work_list"] = json!(over);
    send(&world, &office, vec![read]).await;
    let note = json!({"tasks": [{"meter": "m2", "state": "unreachable", "note": "a dog"}]});
    world.good(&office, "PATCH", &format!("{lists}/{over}"), note).await;

    let first = world.get(&office, &format!("{report}?limit=1")).await.json;
    let item = &first["items"][0];
    assert_eq!((&item["meter"]["id"], &item["meter"]["state"]), (&json!("m2"), &json!("missed")));
    assert_eq!((&item["state"], &item["note"]), (&json!("unreachable"), &json!("a dog")));
    assert_eq!(item["work_list"]["name"], "October");
    let next = first["next"].as_str().unwrap();
    let second = world.get(&office, &format!("{report}?limit=1&cursor={next}")).await.json;
    assert_eq!((&second["items"][0]["meter"]["id"], &second["next"]), (&json!("m3"), &Value::Null));
    let of_open = world.get(&office, &format!("{report}?work_list={open}")).await.json;
    assert_eq!(of_open["items"], json!([]), "nothing is missed before it is due");
    let nowhere = format!("{report}?work_list={}", uuid::Uuid::nil());
    assert_eq!(world.get(&office, &nowhere).await.status, 404);
    assert_eq!(world.get(&office, &format!("{report}?cursor=AAAA")).await.status, 422);

    let progress = world.get(&office, &format!("{BASE}/report/progress")).await.json;
    let all = json!({"work_lists": 2, "total": 4, "done": 1, "unreachable": 1, "open": 2});
    assert_eq!(progress["all"], all);
    let (first, second) = (&progress["items"][0], &progress["items"][1]);
    assert_eq!((&first["name"], &first["missed"]), (&json!("October"), &json!(2)));
    assert_eq!((&first["done"], &first["open"]), (&json!(1), &json!(1)));
    assert_eq!(first["last_reading_at"], "2026-01-01T00:00:00.000Z");
    assert_eq!((&second["missed"], &second["last_reading_at"]), (&json!(0), &Value::Null));

    // A reading that came after all, by radio for instance.
    let late = reading(2, "m3", &now(2), 5.0);
    send(&world, &office, vec![late]).await;
    assert_eq!(state(&world, &office, "m3").await, "ok");
    let rest = world.get(&office, &format!("{report}?work_list={over}")).await.json;
    assert_eq!(rest["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn exported_tables_are_whole_and_run_nothing() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    meters(&world, &office, &["m1", "m2"]).await;
    let street = json!({"street": "=HYPERLINK(\"http://x\"), \"5\"", "serial": "@S"});
    world.good(&office, "PATCH", &format!("{BASE}/meter/m1"), street).await;
    // More than are looked up at once, and all taken at one moment.
    let many: Vec<Value> =
        (0..2001).map(|n| reading(n, "m1", "2026-11-01T00:00:00Z", -1.5 - n as f64)).collect();
    for part in many.chunks(1000) {
        send(&world, &office, part.to_vec()).await;
    }
    let mut odd = reading(5000, "m2", "2026-11-02T00:00:00Z", 7.0);
    odd["note"] = json!("+49 40\n\"quoted\"; ä");
    send(&world, &office, vec![odd]).await;

    let csv = world.get(&office, &format!("{BASE}/export/readings.csv")).await;
    assert_eq!((csv.status, &csv.kind[..8]), (200, "text/csv"));
    assert!(csv.bytes.starts_with(b"\xEF\xBB\xBF"), "without it, Excel reads another code page");
    let mut table = csv::Reader::from_reader(&*csv.bytes);
    let heading = table.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = table.records().map(Result::unwrap).collect();
    let cell = |row: usize, name: &str| {
        rows[row].get(heading.iter().position(|head| head == name).unwrap()).unwrap().to_owned()
    };
    assert_eq!(rows.len(), 2002);
    let ids: std::collections::HashSet<String> = (0..2002).map(|row| cell(row, "id")).collect();
    assert_eq!(ids.len(), 2002, "each once");
    assert_eq!(cell(0, "street"), "'=HYPERLINK(\"http://x\"), \"5\"");
    assert_eq!((cell(0, "serial"), cell(0, "value")), ("'@S".into(), "-1.5".into()));
    assert_eq!(cell(2001, "note"), "'+49 40\n\"quoted\"; ä");
    assert_eq!(cell(2001, "at"), "2026-11-02T00:00:00.000Z");

    let one = world.get(&office, &format!("{BASE}/export/readings.csv?meter=m2")).await;
    assert_eq!(csv::Reader::from_reader(&*one.bytes).records().count(), 1);
    let none = world.get(&office, &format!("{BASE}/export/readings.csv?meter=other")).await;
    assert_eq!(csv::Reader::from_reader(&*none.bytes).records().count(), 0);
    let wrong = world.get(&office, &format!("{BASE}/export/readings.csv?since=never")).await;
    assert_eq!(wrong.status, 422);

    let xlsx = world.get(&office, &format!("{BASE}/export/readings.xlsx?meter=m2")).await;
    assert_eq!((xlsx.status, &xlsx.bytes[..2]), (200, &b"PK"[..]));
    assert!(xlsx.kind.ends_with("spreadsheetml.sheet"), "{}", xlsx.kind);
}
