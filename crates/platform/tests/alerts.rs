//! Alerts: raised, published, acknowledged and cleared by the time of measurement, not of arrival.
#![allow(clippy::unwrap_used)]

mod common;

use common::World;
use fulmar_platform::{Announcement, Database};
use serde_json::{Value, json};

const BASE: &str = "/api/v1/north";
const MINUTE: i64 = 60_000;

fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// RFC 3339 of milliseconds since 1970, as in responses.
fn at(ms: i64) -> String {
    let at = time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).unwrap();
    let (date, (hour, minute, second, ms)) = (at.date(), at.time().as_hms_milli());
    format!("{date}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

struct Site {
    world: World,
    office: String,
    /// When the first value was measured.
    start: i64,
}

impl Site {
    /// A home with a sensor that measures every minute, and one rule: radon above 300 until 250.
    async fn new(hours_ago: i64) -> Site {
        let world = World::new();
        let office = world.log_in("north-office").await;
        let home = json!({"id": "mill", "name": "Mill"});
        world.good(&office, "POST", &format!("{BASE}/home"), home).await;
        let sensor = json!({"home": "mill", "expected_every_s": 60});
        world.good(&office, "PUT", &format!("{BASE}/sensor/attic"), sensor).await;
        let site = Site { world, office, start: now_ms() - hours_ago * 60 * MINUTE };
        site.rule("radon", json!({"averaging_s": 0})).await;
        site
    }

    async fn rule(&self, id: &str, change: Value) -> Value {
        let path = format!("{BASE}/alert_rule/{id}");
        self.world.good(&self.office, "PATCH", &path, change).await
    }

    /// Sends radon measured this many minutes after the start.
    async fn radon(&self, values: &[(i64, f64)]) {
        let items: Vec<Value> = values
            .iter()
            .map(|(minute, value)| {
                let at = at(self.start + minute * MINUTE);
                json!({"device": "attic", "quantity": "radon", "at": at, "value": value})
            })
            .collect();
        let path = format!("{BASE}/measurement");
        let answer = self.world.good(&self.office, "POST", &path, json!({"items": items})).await;
        let results = answer["results"].as_array().unwrap();
        assert!(results.iter().all(|result| result["status"] == "stored"), "{answer}");
    }

    async fn alerts(&self, query: &str) -> Vec<Value> {
        let list = self.world.get(&self.office, &format!("{BASE}/alert?{query}")).await.json;
        list["items"].as_array().unwrap_or_else(|| panic!("{list}")).clone()
    }

    fn told(&mut self) -> Vec<Announcement> {
        let announced = &mut self.world.announced;
        let all = std::iter::from_fn(|| announced.try_recv().ok());
        all.filter(|told| told.topic.starts_with("fulmar/north/alert/")).collect()
    }
}

#[tokio::test]
async fn radon_is_raised_acknowledged_and_cleared() {
    let mut site = Site::new(0).await;
    site.radon(&[(-5, 120.0), (-4, 310.0)]).await;
    let alerts = site.alerts("state=active").await;
    assert_eq!(alerts.len(), 1);
    let alert = &alerts[0];
    assert_eq!((&alert["home_name"], &alert["device"]), (&json!("Mill"), &json!("attic")));
    assert_eq!((&alert["value"], &alert["threshold"]), (&json!(310.0), &json!(300.0)));
    assert_eq!((&alert["unit"], &alert["late"]), (&json!("Bq/m³"), &json!(false)));
    assert_eq!(alert["raised_at"], at(site.start - 4 * MINUTE));
    let told = site.told();
    assert_eq!((told.len(), told[0].retain), (1, true));
    let home = site.world.get(&site.office, &format!("{BASE}/home/mill")).await.json;
    assert_eq!((&home["worst"], &home["alerts"]), (&json!("warning"), &json!(1)));

    site.radon(&[(-3, 400.0), (-2, 280.0)]).await;
    let id = alert["id"].as_str().unwrap();
    let path = format!("{BASE}/alert/{id}");
    let shown = site.world.get(&site.office, &path).await.json;
    assert_eq!((&shown["value"], &shown["peak"]), (&json!(280.0), &json!(400.0)));
    let said = json!({"note": "windows opened"});
    let known = site.world.good(&site.office, "POST", &format!("{path}/acknowledge"), said).await;
    assert_eq!(
        (&known["state"], &known["note"]),
        (&json!("acknowledged"), &json!("windows opened"))
    );
    assert_eq!(known["acknowledged_by"], "north-office");
    assert_eq!(site.alerts("state=active").await.len(), 0);
    assert_eq!(site.alerts("state=acknowledged&home=mill").await.len(), 1);
    assert_eq!(site.told().len(), 1);

    site.radon(&[(-1, 250.0)]).await;
    let cleared = site.world.get(&site.office, &path).await.json;
    assert_eq!(
        (&cleared["state"], &cleared["cleared_at"]),
        (&json!("cleared"), &json!(at(site.start - MINUTE)))
    );
    let told = site.told();
    assert_eq!(told.len(), 2);
    assert!(!told[0].retain && told[1].retain && told[1].payload.is_empty(), "the topic is freed");
    let home = site.world.get(&site.office, &format!("{BASE}/home/mill")).await.json;
    assert_eq!((&home["worst"], &home["alerts"]), (&json!("ok"), &json!(0)));
}

#[tokio::test]
async fn an_outage_that_arrives_late_says_when_it_was() {
    let mut site = Site::new(6).await;
    site.radon(&[(0, 100.0)]).await;
    // Five hours later all of it at once, the peak long over.
    let values: Vec<(i64, f64)> = (1..300)
        .map(|minute| (minute, if (60..90).contains(&minute) { 350.0 } else { 100.0 }))
        .collect();
    site.radon(&values).await;
    assert_eq!(site.alerts("state=active").await.len(), 0, "nothing is wrong now");
    let alerts = site.alerts("").await;
    assert_eq!(alerts.len(), 1);
    let alert = &alerts[0];
    assert_eq!((&alert["state"], &alert["late"]), (&json!("cleared"), &json!(true)));
    assert_eq!(alert["raised_at"], at(site.start + 60 * MINUTE));
    assert_eq!(alert["cleared_at"], at(site.start + 90 * MINUTE));
    assert!(alert["noticed_at"].as_str().unwrap() > alert["cleared_at"].as_str().unwrap());
    for told in site.told() {
        let over = told.payload.is_empty() || {
            let alert: Value = serde_json::from_slice(&told.payload).unwrap();
            alert["state"] == "cleared"
        };
        assert!(over && (told.payload.is_empty() || !told.retain), "it is told as what it is");
    }
}

#[tokio::test]
async fn the_same_measurements_come_to_the_same_alerts_in_any_parts_and_order() {
    let values: Vec<(i64, f64)> = (0..240)
        .map(|minute| {
            (minute, if minute % 80 >= 60 { 350.0 } else { 100.0 + minute as f64 / 10.0 })
        })
        .collect();
    let mut found = Vec::new();
    for order in 0..3 {
        let site = Site::new(6).await;
        let mut parts: Vec<&[(i64, f64)]> = values.chunks(50).collect();
        match order {
            0 => parts = vec![&values],
            1 => {}
            _ => parts.swap(1, 3),
        }
        for part in parts {
            site.radon(part).await;
        }
        let mut times: Vec<(i64, i64)> = Vec::new();
        for alert in site.alerts("").await {
            let minute = |name: &str| {
                let text = alert[name].as_str().unwrap_or_else(|| panic!("{alert}"));
                let format = time::format_description::well_known::Rfc3339;
                let at = time::OffsetDateTime::parse(text, &format).unwrap();
                let ms = i64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap();
                (ms - site.start) / MINUTE
            };
            let cleared = if alert["cleared_at"].is_null() { 999 } else { minute("cleared_at") };
            times.push((minute("raised_at"), cleared));
        }
        times.sort_unstable();
        found.push(times);
    }
    assert_eq!(found[0], [(60, 80), (140, 160), (220, 999)]);
    assert_eq!(found[1], found[0]);
    assert_eq!(found[2], found[0]);
}

#[tokio::test]
async fn rules_are_made_changed_and_removed() {
    let site = Site::new(1).await;
    let (world, office) = (&site.world, &site.office);
    let path = format!("{BASE}/alert_rule");
    let list = world.get(office, &path).await.json;
    let rules = list["items"].as_array().unwrap();
    let ids: Vec<&str> = rules.iter().map(|rule| rule["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["co-15min", "co-1h", "co-8h", "co2", "co2-high", "radon", "silent"]);
    let radon = rules.iter().find(|rule| rule["id"] == "radon").unwrap();
    assert_eq!((&radon["above"], &radon["enabled"]), (&json!(300.0), &json!(true)));
    assert!(radon["source"].as_str().unwrap().contains("2013/59/Euratom"));
    for wrong in [
        json!({"name": "n", "severity": "info", "quantity": "co2"}),
        json!({"name": "n", "severity": "info", "quantity": "co2", "above": 1, "below": 1}),
        json!({"name": "n", "severity": "info", "above": 1}),
        json!({"name": "n", "severity": "info", "quantity": "co2", "above": 1, "clear": 2}),
        json!({"name": "n", "severity": "info", "quantity": "co2", "below": 2, "clear": 1}),
        json!({"name": "n", "severity": "info", "silent_s": 10}),
        json!({"name": "n", "severity": "bad", "silent_s": 100}),
        json!({"name": "n", "severity": "info", "silent_s": 100, "home": "castle"}),
    ] {
        assert_eq!(world.call(office, "POST", &path, &wrong).await.status, 422, "{wrong}");
    }
    let cold = json!({"id": "cold", "name": "Cold", "quantity": "temperature", "severity": "critical",
        "below": 5, "clear": 8, "home": "mill"});
    let made = world.good(office, "POST", &path, cold.clone()).await;
    assert_eq!(world.call(office, "POST", &path, &cold).await.status, 409);
    let send = async |value: f64| {
        let item = json!({"device": "attic", "quantity": "temperature", "at": at(now_ms()), "value": value});
        world.good(office, "POST", &format!("{BASE}/measurement"), json!({"items": [item]})).await;
    };
    send(3.0).await;
    assert_eq!(site.alerts("state=active").await.len(), 1);
    let one = format!("{path}/cold");
    let stale = [("if-match", "\"r0\"")];
    let change = json!({"below": 2});
    let answer = world.call_with(office, "PATCH", &one, &change, &stale).await;
    assert_eq!(answer.status, 412);
    let etag = made["etag"].as_str().unwrap();
    let answer = world.call_with(office, "PATCH", &one, &change, &[("if-match", etag)]).await;
    assert_eq!((answer.status, &answer.json["below"]), (200, &json!(2.0)));
    assert_eq!(site.alerts("state=active").await.len(), 0, "it is another rule now");
    send(1.0).await;
    assert_eq!(site.alerts("state=active").await.len(), 1);
    assert_eq!(world.call(office, "DELETE", &one, &Value::Null).await.status, 204);
    assert_eq!(site.alerts("state=cleared").await.len(), 2, "what was raised stays on record");
    send(1.0).await;
    assert_eq!(site.alerts("state=active").await.len(), 0);
    let pages = world.get(office, &format!("{BASE}/alert?limit=1")).await.json;
    let next = pages["next"].as_str().unwrap();
    let rest = world.get(office, &format!("{BASE}/alert?limit=1&cursor={next}")).await.json;
    assert_eq!((rest["items"].as_array().unwrap().len(), &rest["next"]), (1, &Value::Null));
    assert_ne!(rest["items"][0]["id"], pages["items"][0]["id"]);
}

#[tokio::test]
async fn webhooks_are_told_in_order_until_they_take_it() {
    let site = Site::new(1).await;
    let (world, office) = (&site.world, &site.office);
    let path = format!("{BASE}/webhook");
    let hook = json!({"url": "http://127.0.0.1:9/x", "secret": "long enough", "least_severity": "warning"});
    let made = world.good(office, "POST", &path, hook).await;
    assert!(made.get("secret").is_none());
    let quiet = json!({"url": "https://example.org/", "secret": "long enough", "least_severity": "critical"});
    world.good(office, "POST", &path, quiet).await;
    let plain = json!({"url": "http://example.org/", "secret": "long enough"});
    assert_eq!(world.call(office, "POST", &path, &plain).await.status, 422);
    // The operator has listed 127.0.0.1 and nothing else.
    for own in ["https://127.0.0.2/", "https://10.0.0.1/", "https://[::ffff:192.168.0.1]/"] {
        let hook = json!({"url": own, "secret": "long enough"});
        assert_eq!(world.call(office, "POST", &path, &hook).await.status, 422, "{own}");
    }
    let shown = world.get(office, &path).await;
    assert!(!String::from_utf8(shown.bytes).unwrap().contains("long enough"));

    site.radon(&[(0, 400.0), (1, 100.0)]).await;
    let due = world.platform.due_deliveries().await.unwrap();
    assert_eq!(due.len(), 1, "the oldest first, and nobody whom it does not matter enough");
    let body: Value = serde_json::from_str(&due[0].body).unwrap();
    assert_eq!((&body["event"], &body["alert"]["peak"]), (&json!("raised"), &json!(400.0)));
    assert_eq!(body["alert"]["state"], "cleared", "it says that it is over");
    world.platform.delivered(&due[0], false).await.unwrap();
    assert!(world.platform.due_deliveries().await.unwrap().is_empty(), "not at once again");
    world.platform.delivered(&due[0], true).await.unwrap();
    let next = world.platform.due_deliveries().await.unwrap();
    let body: Value = serde_json::from_str(&next[0].body).unwrap();
    assert_eq!(body["event"], "cleared");
    let id = made["id"].as_str().unwrap();
    assert_eq!(
        world.call(office, "DELETE", &format!("{path}/{id}"), &Value::Null).await.status,
        204
    );
    assert!(world.platform.due_deliveries().await.unwrap().is_empty());
}

/// Without PostgreSQL only: the tests cannot look into a world's database there.
#[tokio::test]
async fn pauses_of_a_webhook_double_until_it_is_given_up_and_begin_anew_with_the_next_event() {
    let site = Site::new(1).await;
    if site.world.database != Database::File {
        return;
    }
    let hook =
        json!({"url": "https://alarm.example/", "secret": "long enough", "least_severity": "info"});
    site.world.good(&site.office, "POST", &format!("{BASE}/webhook"), hook).await;
    site.radon(&[(0, 400.0), (1, 100.0), (2, 400.0)]).await;
    let file = rusqlite::Connection::open(site.world.folder.path().join("platform.db")).unwrap();
    let platform = &site.world.platform;
    let due = async || platform.due_deliveries().await.unwrap();
    // An attempt that fails; the event is due again after this many seconds, which are then over.
    let fails = async |id: &str, pause_s: i64| {
        let attempt = due().await.remove(0);
        assert_eq!(attempt.id, id, "the same event again");
        let before = now_ms();
        platform.delivered(&attempt, false).await.unwrap();
        let after = now_ms();
        assert!(due().await.is_empty(), "nothing meanwhile");
        let until = "SELECT due_at FROM webhook_event WHERE seq = ?1";
        let until: i64 = file.query_row(until, [id], |row| row.get(0)).unwrap();
        let pause = until - after..=until - before;
        assert!(pause.contains(&(1000 * pause_s)), "{pause_s} s: {pause:?} ms");
        file.execute("UPDATE webhook_event SET due_at = ?1 WHERE seq = ?2", (before, id)).unwrap();
    };
    let pauses = [5, 10, 20, 40, 80, 160, 320, 640, 1280];
    let first = due().await.remove(0);
    for pause_s in pauses {
        fails(&first.id, pause_s).await;
    }
    // The tenth attempt is the last.
    platform.delivered(&due().await[0], false).await.unwrap();
    let second = due().await.remove(0);
    assert_ne!(second.id, first.id);
    for pause_s in &pauses[..3] {
        fails(&second.id, *pause_s).await;
    }
    platform.delivered(&due().await[0], true).await.unwrap();
    let third = due().await.remove(0);
    assert_ne!(third.id, second.id);
    fails(&third.id, pauses[0]).await;
}

#[tokio::test]
async fn one_value_raises_no_average_and_a_rule_that_changed_knows_what_was_measured() {
    let site = Site::new(10).await;
    site.rule("radon", json!({"averaging_s": 3600})).await;
    site.radon(&[(0, 5000.0)]).await;
    assert_eq!(site.alerts("state=active").await, [] as [Value; 0], "an hour's mean takes an hour");
    let minutes: Vec<(i64, f64)> = (1..55).map(|minute| (minute, 5000.0)).collect();
    site.radon(&minutes).await;
    assert_eq!(site.alerts("state=active").await.len(), 0);
    // Changed, it need not wait for another hour.
    site.rule("radon", json!({"name": "Radon in the attic"})).await;
    site.radon(&[(55, 5000.0), (59, 5000.0)]).await;
    let alerts = site.alerts("state=active").await;
    assert_eq!(alerts.len(), 1);
    assert_eq!(alerts[0]["value"], json!(5000.0));
}

#[tokio::test]
async fn numbers_of_deliveries_are_never_given_again() {
    let site = Site::new(0).await;
    let hook = json!({"url": "https://alarm.example/", "least_severity": "info", "secret": "0123456789abcdef"});
    site.world.good(&site.office, "POST", &format!("{BASE}/webhook"), hook).await;
    let mut numbers = Vec::new();
    for (minute, value) in [(-8, 400.0), (-7, 100.0), (-6, 400.0), (-5, 100.0)] {
        site.radon(&[(minute, value)]).await;
        let due = site.world.platform.due_deliveries().await.unwrap();
        assert_eq!(due.len(), 1);
        numbers.push(due[0].id.parse::<i64>().unwrap());
        site.world.platform.delivered(&due[0], true).await.unwrap();
    }
    let mut once = numbers.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once, numbers, "each number names one event, though no event is left");
}
