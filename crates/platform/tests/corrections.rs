//! Readings as the office works with them: found from either end, corrected, withdrawn, decided about.
#![allow(clippy::unwrap_used)]

mod common;

use common::{World, now, reading};
use serde_json::{Value, json};

const BASE: &str = "/api/v1/north";

async fn meters(world: &World, office: &str, ids: &[&str]) {
    let items: Vec<Value> = ids.iter().map(|id| json!({"id": id})).collect();
    world.good(office, "POST", &format!("{BASE}/meter"), json!({"items": items})).await;
}

async fn send(world: &World, token: &str, readings: Vec<Value>) -> Vec<Value> {
    let path = format!("{BASE}/reading");
    let answer = world.good(token, "POST", &path, json!({"items": readings})).await;
    answer["results"].as_array().unwrap().iter().map(|result| result["status"].clone()).collect()
}

fn id(number: u128) -> String {
    uuid::Uuid::from_u128(number).to_string()
}

/// Identifiers of all pages of a list.
async fn walk(world: &World, token: &str, query: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = world.get(token, &format!("{BASE}/reading?limit=3&{query}{cursor}")).await.json;
        let items = page["items"].as_array().unwrap_or_else(|| panic!("{page}"));
        found.extend(items.iter().map(|item| item["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { return found };
        cursor = format!("&cursor={next}");
    }
}

async fn list_of(world: &World, office: &str, meters: &[&str]) -> String {
    let list = json!({"name": "Monday", "assignee": "north-admin", "meters": meters});
    let made = world.good(office, "POST", &format!("{BASE}/work_list"), list).await;
    made["id"].as_str().unwrap().to_owned()
}

async fn done(world: &World, office: &str, list: &str) -> Value {
    world.get(office, &format!("{BASE}/work_list/{list}")).await.json["done"].clone()
}

#[tokio::test]
async fn readings_are_paged_from_either_end_and_conflicts_alone() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    meters(&world, &office, &["m1", "m2"]).await;
    // Some at the same moment: the order among them holds over pages too.
    let all: Vec<Value> = (0..10)
        .map(|n| reading(n + 1, "m1", &format!("2026-11-01T{:02}:00:00Z", n / 2), n as f64))
        .collect();
    send(&world, &office, all).await;
    let forwards = walk(&world, &office, "meter=m1").await;
    let mut backwards = walk(&world, &office, "meter=m1&order=desc").await;
    assert_eq!(
        forwards,
        (1..=10).map(id).collect::<Vec<_>>(),
        "oldest first unless asked otherwise"
    );
    assert_eq!(walk(&world, &office, "order=asc").await, forwards);
    backwards.reverse();
    assert_eq!(backwards, forwards);

    let list = list_of(&world, &office, &["m2"]).await;
    let rival = |number, value, device: &str| {
        let mut item = reading(number, "m2", "2026-11-02T10:00:00Z", value);
        item["device"] = json!(device);
        item["work_list"] = json!(list);
        item
    };
    send(&world, &office, vec![rival(21, 5.0, "a"), rival(22, 6.0, "b")]).await;
    assert_eq!(walk(&world, &office, "conflict=true&order=desc").await, [id(22), id(21)]);
    assert_eq!(walk(&world, &office, "conflict=false").await, forwards);
    let exported = world.get(&office, &format!("{BASE}/export/readings.csv?conflict=true")).await;
    assert_eq!(String::from_utf8(exported.bytes).unwrap().lines().count(), 3);
    let path = format!("{BASE}/reading/{}/resolve", id(21));
    world.good(&office, "POST", &path, json!({"keep": true})).await;
    assert_eq!(walk(&world, &office, "conflict=true").await, [] as [String; 0]);
    let wrong = world.get(&office, &format!("{BASE}/reading?order=down")).await;
    assert_eq!(wrong.status, 422);
}

#[tokio::test]
async fn a_correction_counts_everywhere_and_says_who_when_why_and_what_was() {
    let world = World::new();
    let (office, reader) = (world.log_in("north-office").await, world.log_in("north-reader").await);
    meters(&world, &office, &["m1"]).await;
    let typed = reading(2, "m1", "2026-11-02T00:00:00Z", 1180.0);
    let sent = vec![
        reading(1, "m1", "2026-11-01T00:00:00Z", 100.0),
        typed.clone(),
        reading(3, "m1", "2026-11-03T00:00:00Z", 120.0),
    ];
    send(&world, &reader, sent).await;
    let path = format!("{BASE}/reading/{}", id(2));
    let before = world.get(&office, &path).await;
    let etag = before.etag.clone().unwrap();
    assert_eq!(before.json["etag"], etag.as_str());
    let change = json!({"value": 118.0, "reason": "a zero too much, photo checked"});
    let unheld = [("if-match", "\"0\"")];
    assert_eq!(world.call_with(&office, "PATCH", &path, &change, &unheld).await.status, 412);
    assert_eq!(world.call(&reader, "PATCH", &path, &change).await.status, 403);
    assert_eq!(world.call(&office, "PATCH", &path, &json!({"value": 118.0})).await.status, 422);
    let held = [("if-match", etag.as_str())];
    let changed = world.call_with(&office, "PATCH", &path, &change, &held).await;
    assert_eq!((changed.status, &changed.json["value"]), (200, &json!(118.0)), "{}", changed.json);
    assert_eq!(changed.json["original"]["value"], json!(1180.0));
    assert_eq!(changed.json["changed"]["by"], "north-office");
    assert_eq!(changed.json["flags"], json!(["corrected"]));
    assert_eq!(world.call_with(&office, "PATCH", &path, &change, &held).await.status, 412);

    let range = "from=2026-11-01T00:00:00Z&to=2026-11-03T00:00:00Z";
    let used = world.get(&office, &format!("{BASE}/meter/m1/consumption?{range}")).await.json;
    let used: Vec<&Value> =
        used["points"].as_array().unwrap().iter().map(|point| &point["consumption"]).collect();
    assert_eq!(used, [&json!(18.0), &json!(2.0)]);
    let csv = world.get(&office, &format!("{BASE}/export/readings.csv")).await.bytes;
    let csv = String::from_utf8(csv).unwrap();
    let row = csv.lines().find(|line| line.contains(&id(2))).unwrap();
    assert!(row.contains(",118,") && row.contains(",1180,"), "{row}");
    assert!(row.ends_with("\"a zero too much, photo checked\",\"\""), "{row}");
    // The phone did not receive the response and sends it again: it is the same reading, as it was sent.
    let copy = {
        let mut copy = typed.clone();
        copy["id"] = json!(id(9));
        copy
    };
    assert_eq!(send(&world, &reader, vec![typed, copy]).await, ["duplicate", "duplicate"]);
    assert_eq!(world.get(&office, &path).await.json["value"], json!(118.0));
}

#[tokio::test]
async fn a_withdrawn_reading_counts_no_more_until_it_is_restored() {
    let mut world = World::new();
    let office = world.log_in("north-office").await;
    let viewer = world.log_in("north-viewer").await;
    meters(&world, &office, &["m1"]).await;
    let list = list_of(&world, &office, &["m1"]).await;
    let mut wrong = reading(2, "m1", &now(0), 900.0);
    wrong["work_list"] = json!(list);
    send(&world, &office, vec![reading(1, "m1", "2026-11-01T00:00:00Z", 100.0), wrong]).await;
    assert_eq!(done(&world, &office, &list).await, 1);
    while world.announced.try_recv().is_ok() {}
    let path = format!("{BASE}/reading/{}", id(2));
    let change = json!({"withdrawn": true, "reason": "the neighbour's meter"});
    let gone = world.good(&office, "PATCH", &path, change.clone()).await;
    assert_eq!(gone["flags"], json!(["withdrawn"]));
    assert_eq!(world.call(&office, "PATCH", &path, &change).await.status, 422, "it is already");
    let meter = world.get(&office, &format!("{BASE}/meter/m1")).await.json;
    assert_eq!(meter["last"]["value"], json!(100.0));
    assert_eq!(done(&world, &office, &list).await, 0, "somebody must go there again");
    let topics: Vec<String> =
        std::iter::from_fn(|| world.announced.try_recv().ok()).map(|told| told.topic).collect();
    assert_eq!(
        topics,
        ["fulmar/north/reading/m1".to_owned(), format!("fulmar/north/work_list/{list}")]
    );
    let back = json!({"withdrawn": false, "value": 101.5, "reason": "it was ours, read wrongly"});
    let back = world.good(&office, "PATCH", &path, back).await;
    assert_eq!((&back["value"], &back["flags"]), (&json!(101.5), &json!(["corrected"])));
    assert_eq!(done(&world, &office, &list).await, 1);

    let trail = world.get(&viewer, &format!("{BASE}/reading_change?meter=m1")).await.json;
    let entries: Vec<(&str, &str, &Value, &Value)> = trail["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            let word = |key: &str| entry[key].as_str().unwrap();
            (word("action"), word("reason"), &entry["before"]["value"], &entry["after"]["value"])
        })
        .collect();
    let expected = [
        ("restored", "it was ours, read wrongly", &json!(900.0), &json!(101.5)),
        ("withdrawn", "the neighbour's meter", &json!(900.0), &json!(900.0)),
    ];
    assert_eq!(entries, expected);
    let (office, world) = (office.clone(), world.restart());
    let kept = world.get(&office, &format!("{BASE}/reading_change?reading={}", id(2))).await.json;
    assert_eq!(kept["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_conflict_ends_when_a_correction_agrees_and_decisions_are_on_the_trail() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    meters(&world, &office, &["m1"]).await;
    let list = list_of(&world, &office, &["m1"]).await;
    let rival = |number, value, device: &str| {
        let mut item = reading(number, "m1", "2026-11-02T10:00:00Z", value);
        item["device"] = json!(device);
        item["work_list"] = json!(list);
        item
    };
    send(&world, &office, vec![rival(1, 51.0, "a"), rival(2, 57.0, "b")]).await;
    let path = format!("{BASE}/reading/{}", id(1));
    let change = json!({"value": 57.0, "reason": "a 7 read as a 1"});
    let fixed = world.good(&office, "PATCH", &path, change).await;
    assert_eq!((&fixed["flags"], &fixed["conflict_with"]), (&json!(["corrected"]), &json!([])));
    let other = world.get(&office, &format!("{BASE}/reading/{}", id(2))).await.json;
    assert_eq!((&other["flags"], &other["conflict_with"]), (&json!([]), &json!([])));

    send(&world, &office, vec![rival(3, 60.0, "c")]).await;
    let path = format!("{BASE}/reading/{}/resolve", id(3));
    world.good(&office, "POST", &path, json!({"keep": false})).await;
    let trail = world.get(&office, &format!("{BASE}/reading_change?reading={}", id(3))).await.json;
    assert_eq!(trail["items"][0]["action"], "superseded");
    assert_eq!(trail["items"][0]["by"], "north-office");
}

#[tokio::test]
async fn a_conflict_is_resolved_once_and_no_reading_keeps_an_empty_one() {
    let mut world = World::new();
    let office = world.log_in("north-office").await;
    meters(&world, &office, &["m1"]).await;
    let list = list_of(&world, &office, &["m1"]).await;
    let rival = |number, value, device: &str| {
        let mut item = reading(number, "m1", "2026-11-02T10:00:00Z", value);
        item["device"] = json!(device);
        item["work_list"] = json!(list);
        item
    };
    // The third agrees with the first, and contradicts the second alone.
    let all = vec![rival(1, 51.0, "a"), rival(2, 57.0, "b"), rival(3, 51.0, "c")];
    assert_eq!(send(&world, &office, all).await, ["stored", "conflict", "conflict"]);
    let path = |number| format!("{BASE}/reading/{}", id(number));
    let resolve = |number| format!("{}/resolve", path(number));
    while world.announced.try_recv().is_ok() {}
    world.good(&office, "POST", &resolve(1), json!({"keep": true})).await;
    let told = std::iter::from_fn(|| world.announced.try_recv().ok());
    let told: Vec<Value> = told
        .map(|told| serde_json::from_slice::<Value>(&told.payload).unwrap()["id"].clone())
        .collect();
    assert_eq!(told, [id(1), id(2), id(3)], "everything that changed is announced");

    assert_eq!(walk(&world, &office, "conflict=true").await, [] as [String; 0]);
    for (number, flags) in [(1, json!([])), (2, json!(["superseded"])), (3, json!(["backwards"]))] {
        let shown = world.get(&office, &path(number)).await.json;
        assert_eq!((&shown["flags"], &shown["conflict_with"]), (&flags, &json!([])), "{number}");
    }
    // Somebody else had the page open.
    for (number, keep) in [(1, true), (2, true), (2, false), (1, false)] {
        let again = world.call(&office, "POST", &resolve(number), &json!({"keep": keep})).await;
        assert_eq!(again.status, 409, "{number} {keep}: {}", again.json);
    }
    assert_eq!(world.get(&office, &path(1)).await.json["flags"], json!([]));
    assert_eq!(world.get(&office, &path(2)).await.json["flags"], json!(["superseded"]));
    assert_eq!(done(&world, &office, &list).await, 1);
}

/// Readings of `m1` for a list: number, value and device.
async fn rivals(world: &World, office: &str, of: impl Iterator<Item = (u128, f64, u128)>) {
    meters(world, office, &["m1"]).await;
    let list = list_of(world, office, &["m1"]).await;
    let items = of.map(|(number, value, device)| {
        let mut item = reading(number, "m1", "2026-11-02T10:00:00Z", value);
        item["device"] = json!(format!("phone-{device}"));
        item["work_list"] = json!(list);
        item
    });
    send(world, office, items.collect()).await;
}

/// How many others each reading in conflict records.
async fn recorded(world: &World, office: &str) -> Vec<usize> {
    let found = world.get(office, &format!("{BASE}/reading?conflict=true&limit=1000")).await.json;
    let items = found["items"].as_array().unwrap();
    assert!(items.iter().all(|item| item["flags"].to_string().contains("conflict")));
    items.iter().map(|item| item["conflict_with"].as_array().unwrap().len()).collect()
}

async fn flagged(world: &World, office: &str, flag: &str) -> usize {
    let found = world.get(office, &format!("{BASE}/reading?limit=1000")).await.json;
    let items = found["items"].as_array().unwrap();
    items.iter().filter(|item| item["flags"].as_array().unwrap().contains(&json!(flag))).count()
}

#[tokio::test]
async fn forty_readings_that_contradict_each_other_record_sixteen_each_and_one_decision_ends_it() {
    for keep in [1, 20, 40] {
        let world = World::new();
        let office = world.log_in("north-office").await;
        rivals(&world, &office, (1..=40).map(|n| (n, n as f64, n))).await;
        assert_eq!(recorded(&world, &office).await, [16; 40]);
        let path = format!("{BASE}/reading/{}/resolve", id(keep));
        let kept = world.good(&office, "POST", &path, json!({"keep": true})).await;
        assert!(!kept["flags"].to_string().contains("superseded"), "{kept}");
        assert_eq!(recorded(&world, &office).await, [] as [usize; 0]);
        assert_eq!(flagged(&world, &office, "superseded").await, 39);
    }
}

#[tokio::test]
async fn forty_readings_of_a_device_that_one_contradicts_all_get_the_flag() {
    for (resolved, keep, superseded) in [(41, true, 40), (41, false, 1), (40, true, 1)] {
        let world = World::new();
        let office = world.log_in("north-office").await;
        rivals(&world, &office, (1..=41).map(|n| (n, n as f64, n / 41))).await;
        let records = recorded(&world, &office).await;
        assert_eq!((records.len(), records.iter().sum::<usize>()), (41, 40 + 16));
        let path = format!("{BASE}/reading/{}/resolve", id(resolved));
        world.good(&office, "POST", &path, json!({"keep": keep})).await;
        assert_eq!(recorded(&world, &office).await, [] as [usize; 0]);
        assert_eq!(flagged(&world, &office, "superseded").await, superseded);
    }
}

#[tokio::test]
async fn what_contradicts_more_than_it_records_stays_in_conflict_until_all_of_it_is_decided() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    rivals(&world, &office, (1..=40).map(|n| (n, n as f64, n))).await;
    let path = |number| format!("{BASE}/reading/{}", id(number));
    for number in 1..=38 {
        let withdrawn = json!({"withdrawn": true, "reason": "the neighbour's meter"});
        if number % 2 == 1 {
            world.good(&office, "PATCH", &path(number), withdrawn).await;
        } else {
            let lost = json!({"keep": false});
            world.good(&office, "POST", &format!("{}/resolve", path(number)), lost).await;
        }
        let records = recorded(&world, &office).await;
        let left = 40 - usize::try_from(number).unwrap();
        assert_eq!(records.len(), left, "after {number}");
        assert!(records.iter().all(|others| (1..=16).contains(others)), "{number}: {records:?}");
    }
    // The last two agree.
    let same = json!({"value": 40.0, "reason": "misread"});
    world.good(&office, "PATCH", &path(39), same).await;
    assert_eq!(recorded(&world, &office).await, [] as [usize; 0]);
}

#[tokio::test]
async fn readings_for_no_list_do_the_open_work_of_lists() {
    let mut world = World::new();
    let office = world.log_in("north-office").await;
    let (reader, viewer) = (world.log_in("north-reader").await, world.log_in("north-viewer").await);
    meters(&world, &office, &["m1", "m2"]).await;
    let list = list_of(&world, &office, &["m1", "m2"]).await;
    let mut radio = reading(1, "m1", "2026-11-01T00:00:00Z", 10.0);
    radio["method"] = json!("radio");
    send(&world, &reader, vec![radio.clone()]).await;
    assert_eq!(done(&world, &office, &list).await, 0, "it was read before there was the list");
    while world.announced.try_recv().is_ok() {}
    (radio["id"], radio["at"]) = (json!(id(2)), json!(now(2)));
    send(&world, &reader, vec![radio]).await;
    assert_eq!(done(&world, &office, &list).await, 1);
    let told = std::iter::from_fn(|| world.announced.try_recv().ok());
    let told: Vec<_> = told.filter(|told| told.topic.ends_with(&list)).collect();
    assert_eq!(told.len(), 1);
    let progress: Value = serde_json::from_slice(&told[0].payload).unwrap();
    assert_eq!((&progress["done"], &progress["total"]), (&json!(1), &json!(2)));
    let full = world.get(&viewer, &format!("{BASE}/work_list/{list}")).await.json;
    assert_eq!(full["tasks"][0]["state"], "read");
    assert_eq!(full["tasks"][0]["reading"]["id"], id(2).as_str());
    // By hand a reader does the work of lists that are theirs to see; the office of all.
    send(&world, &reader, vec![reading(3, "m2", &now(2), 20.0)]).await;
    assert_eq!(done(&world, &office, &list).await, 1);
    send(&world, &office, vec![reading(4, "m2", &now(3), 20.0)]).await;
    assert_eq!(done(&world, &office, &list).await, 2);
}

#[tokio::test]
async fn a_clock_far_ahead_leaves_a_meters_checks_as_they_are() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    meters(&world, &office, &["m1"]).await;
    let meter = format!("{BASE}/meter/m1");
    let flags = async |number| {
        let path = format!("{BASE}/reading/{}", id(number));
        world.get(&office, &path).await.json["flags"].clone()
    };
    let sent = vec![
        reading(1, "m1", "2026-11-01T00:00:00Z", 100.0),
        reading(2, "m1", "2026-11-03T00:00:00Z", 110.0),
    ];
    send(&world, &office, sent).await;
    let expected = json!({"expected": {"low": 110.0, "high": 130.0}});
    world.good(&office, "PATCH", &meter, expected.clone()).await;
    send(&world, &office, vec![reading(3, "m1", "2126-11-04T00:00:00Z", 120.0)]).await;
    assert_eq!(flags(3).await, json!(["future"]));
    let shown = world.get(&office, &meter).await.json;
    assert_eq!(shown["last"]["value"], json!(110.0));
    assert_eq!(shown["expected"], expected["expected"], "the next reading is still to come");
    send(&world, &office, vec![reading(4, "m1", "2026-11-04T00:00:00Z", 900.0)]).await;
    assert_eq!(flags(4).await, json!(["implausible"]));
    send(&world, &office, vec![reading(5, "m1", "2026-11-05T00:00:00Z", 12.0)]).await;
    assert_eq!(flags(5).await, json!(["backwards", "implausible"]));
    send(&world, &office, vec![reading(6, "m1", "2026-11-06T00:00:00Z", 13.0)]).await;

    // Its value alone says nothing of its time.
    let path = format!("{BASE}/reading/{}", id(3));
    let typed = json!({"value": 13.5, "reason": "a digit too much"});
    let typed = world.good(&office, "PATCH", &path, typed).await;
    assert_eq!(typed["flags"], json!(["future", "corrected"]));
    assert_eq!(world.get(&office, &meter).await.json["last"]["value"], json!(13.0));
    let dated = json!({"at": "2026-11-07T00:00:00Z", "reason": "the clock was a century ahead"});
    let dated = world.good(&office, "PATCH", &path, dated).await;
    assert_eq!(dated["flags"], json!(["corrected"]));
    assert_eq!(world.get(&office, &meter).await.json["last"]["value"], json!(13.5));
}

#[tokio::test]
async fn a_reading_from_the_future_counts_when_its_time_is_corrected() {
    let world = World::new();
    let (office, reader) = (world.log_in("north-office").await, world.log_in("north-reader").await);
    meters(&world, &office, &["m1"]).await;
    let open = json!({"name": "Monday", "assignee": "north-reader", "meters": ["m1"]});
    let open = world.good(&office, "POST", &format!("{BASE}/work_list"), open).await;
    let list = open["id"].as_str().unwrap();
    let mut other = reading(1, "m1", "2026-11-01T00:00:00Z", 10.0);
    send(&world, &reader, vec![other.clone(), reading(2, "m1", "2126-11-02T00:00:00Z", 20.0)])
        .await;
    // What happens to another reading does not make this one count.
    let path = format!("{BASE}/reading/{}", id(1));
    let change = json!({"value": 11.0, "reason": "misread"});
    world.good(&office, "PATCH", &path, change).await;
    assert_eq!(done(&world, &office, list).await, 0);
    let path = format!("{BASE}/reading/{}", id(2));
    let change = json!({"at": now(2), "reason": "the phone's clock was wrong"});
    world.good(&office, "PATCH", &path, change).await;
    assert_eq!(done(&world, &office, list).await, 1);
    let again = json!({"withdrawn": true, "reason": "the wrong meter"});
    world.good(&office, "PATCH", &path, again).await;
    assert_eq!(done(&world, &office, list).await, 0);
    let back = json!({"withdrawn": false, "reason": "the right one"});
    world.good(&office, "PATCH", &path, back).await;
    assert_eq!(done(&world, &office, list).await, 1);

    // Of two for a list, that with a time is shown.
    (other["id"], other["at"], other["work_list"]) =
        (json!(id(3)), json!("2126-11-03T00:00:00Z"), json!(list));
    send(&world, &reader, vec![other]).await;
    let full = world.get(&office, &format!("{BASE}/work_list/{list}")).await.json;
    assert_eq!(full["tasks"][0]["reading"]["id"], id(2).as_str());
    let progress = world.get(&office, &format!("{BASE}/report/progress")).await.json;
    let newest = progress["items"][0]["last_reading_at"].as_str().unwrap();
    assert!(newest.starts_with("20") && !newest.starts_with("2126"), "{newest}");
}
