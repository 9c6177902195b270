//! What waits for webhooks that do not answer.
#![allow(clippy::unwrap_used)]

use rusqlite::StatementStatus;

use super::*;
use crate::alerts::types::{Alert, AlertEvent, AlertState};
use crate::store::sql::{Database, Purpose};
use crate::store::{Store, twins};
use crate::twins::types::TwinKind;

const WEBHOOKS: u128 = 20;

fn notification(number: usize) -> AlertNotification {
    let alert = Alert {
        id: Uuid::from_u128(number as u128),
        rule: "radon".parse().unwrap(),
        rule_name: "Radon".to_owned(),
        home: None,
        home_name: None,
        device: "attic".parse().unwrap(),
        quantity: None,
        severity: Severity::Warning,
        state: AlertState::Active,
        value: None,
        peak: None,
        unit: String::new(),
        threshold: 0.0,
        raised_at: Time(0),
        noticed_at: Time(0),
        late: false,
        cleared_at: None,
        acknowledged_at: None,
        acknowledged_by: None,
        note: None,
    };
    AlertNotification { event: AlertEvent::Raised, alert }
}

fn steps(db: &Db) -> i32 {
    let Some(connection) = db.sqlite() else { unreachable!("it is a file") };
    connection.prepare_cached(DROP_OLDEST).unwrap().get_status(StatementStatus::VmStep)
}

#[test]
fn the_newest_events_wait_for_each_webhook_and_others_are_not_searched_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), &Database::File, Purpose::Server).unwrap();
    let done = store.write_now(|db| {
        twins::add(db.within("t"), "T", TwinKind::Homes, None, Time(0))?;
        for id in (1..=WEBHOOKS).map(Uuid::from_u128) {
            let url = "https://example.org".to_owned();
            add(db.within("t"), &Webhook { id, url, least_severity: Severity::Info }, "secret")?;
        }
        let critical = Webhook {
            id: Uuid::from_u128(100),
            url: "https://example.org".to_owned(),
            least_severity: Severity::Critical,
        };
        add(db.within("t"), &critical, "secret")?;
        let full: Vec<_> = (0..MAX_WAITING).map(notification).collect();
        assert_eq!(enqueue(db.within("t"), &full, Time(1))?, 0);

        // A thousand for each of twenty wait: to look at a webhook's takes some 5 steps for each of them.
        let before = steps(db);
        let more: Vec<_> = (2000..2200).map(notification).collect();
        assert_eq!(enqueue(db.within("t"), &more, Time(2))?, 200 * WEBHOOKS as u64);
        let passed = steps(db) - before;
        assert!(passed < 20 * 15_000, "{passed} steps");

        // More than may wait.
        let all: Vec<_> = (5000..6500).map(notification).collect();
        assert_eq!(enqueue(db.within("t"), &all, Time(3))?, 1500 * WEBHOOKS as u64);
        let sql =
            "SELECT webhook, count(*), min(body), max(body) FROM webhook_event GROUP BY webhook";
        Ok(db.list::<(String, usize, String, String)>(sql, ())?)
    });
    let waiting = done.unwrap();
    assert_eq!(waiting.len(), WEBHOOKS as usize);
    for (webhook, count, first, last) in waiting {
        assert_eq!(count, MAX_WAITING, "{webhook}");
        let has = |body: &str, number: u128| body.contains(&Uuid::from_u128(number).to_string());
        assert!(has(&first, 5500) && has(&last, 6499), "{first} {last}");
    }
}
