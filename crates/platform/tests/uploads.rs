//! Uploads with more items than are taken at once, and with items that are much smaller as text than as values.
#![allow(clippy::unwrap_used)]

mod common;

use axum::body::Body;
use axum::http::{Request, header};
use common::World;
use serde_json::json;

/// As much as the endpoint lets through.
const BODY_BYTES: usize = 8 << 20;

/// The most memory that this process has had, in MiB; nothing where there is no such count.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? / 1024)
}

/// `begin`, then as many of `item` as there is room for, then `end`.
fn filled(begin: &str, item: &str, end: &str) -> String {
    let items = format!("{item},").repeat(BODY_BYTES / (item.len() + 1));
    format!("{begin}{items}{item}{end}")
}

#[tokio::test]
async fn many_items_are_refused_and_take_little_memory() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    world.good(&office, "PUT", "/api/v1/north/instance/phone", json!({"kind": "thing"})).await;
    let send = async |method: &str, path: &str, body: String| {
        let request = Request::builder().method(method).uri(format!("/api/v1/north/{path}"));
        let request = request.header(header::AUTHORIZATION, format!("Bearer {office}"));
        let request = request.header(header::CONTENT_TYPE, "application/json");
        world.send(request.body(Body::from(body)).unwrap()).await
    };
    for (path, begin, end) in [
        ("reading", r#"{"items":["#, "]}"),
        ("measurement", r#"{"items":["#, "]}"),
        ("meter", r#"{"items":["#, "]}"),
        ("home", r#"{"items":["#, "]}"),
        ("frame", r#"{"receiver":"phone","frames":["#, "]}"),
    ] {
        let answer = send("POST", path, filled(begin, "1", end)).await;
        assert_eq!(answer.status, 413, "{path}: {}", answer.json);
        // One item of many small ones, which nothing wants.
        let nested = filled(&format!(r#"{begin}{{"no":["#), r#"{"":0}"#, &format!("]}}{end}"));
        let answer = send("POST", path, nested).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.json);
    }
    for (path, begin, item) in [
        (
            "instance/phone/telemetry",
            r#"{"items":["#,
            r#"{"id":"0197a3c2-5d0e-7c7a-9f4e-2b1d8a6c3f10","at":"2026-11-01T00:00:00Z"}"#,
        ),
        ("work_list", r#"{"name":"n","meters":["#, r#""m""#),
    ] {
        let answer = send("POST", path, filled(begin, item, "]}")).await;
        assert_eq!(answer.status, 413, "{path}: {}", answer.json);
    }
    let one = send("POST", "meter", filled(r#"{"no":["#, r#"{"":0}"#, "]}")).await;
    assert!(one.status < 500, "{}", one.json);
    if let Some(peak) = peak_mib() {
        assert!(peak < 250, "{peak} MiB");
    }
}
