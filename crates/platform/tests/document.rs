//! The OpenAPI document and what is served.
#![allow(clippy::unwrap_used)]

mod common;

use axum::body::Body;
use axum::http::Request;
use common::World;
use fulmar_platform::Role;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower_service::Service as _;

fn operations(document: &Value) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            all.push((method.to_uppercase(), path.clone()));
        }
    }
    all
}

#[tokio::test]
async fn every_operation_of_the_document_is_served_and_wants_a_token() {
    let world = World::new();
    let document = world.get("", "/api/v1/openapi.json").await;
    assert_eq!(document.status, 200);
    assert!(document.json["openapi"].as_str().unwrap().starts_with("3.1"));
    let operations = operations(&document.json);
    assert!(operations.len() > 20);
    let mut ids = std::collections::HashSet::new();
    for (method, path) in operations {
        let id = &document.json["paths"][&path][method.to_lowercase()]["operationId"];
        assert!(ids.insert(id.as_str().unwrap().to_owned()), "{id} twice");
        let at = path.replace("{twin}", "north").replace(['{', '}'], "");
        let open = path.ends_with("/session") && method == "POST" || path.ends_with("/config");
        let answer = world.call("", &method, &at, &Value::Null).await;
        if !open {
            assert_eq!(answer.status, 401, "{method} {path}");
        }
        // What the document does not have, the path does not take.
        let item = document.json["paths"][&path].as_object().unwrap();
        for other in ["put", "post", "patch", "delete"] {
            if !item.contains_key(other) {
                let answer = world.call("", &other.to_uppercase(), &at, &Value::Null).await;
                assert_eq!(answer.status, 405, "{other} {path}");
                assert_eq!(answer.kind, "application/problem+json");
            }
        }
    }
    let nowhere = world.get("", "/api/v1/north/no/where").await;
    assert_eq!((nowhere.status, &*nowhere.kind), (404, "application/problem+json"));
}

#[tokio::test]
async fn responses_share_the_document() {
    let mut router = World::new().platform.router();
    let mut documents = Vec::new();
    for _ in 0..2 {
        let request = Request::builder().uri("/api/v1/openapi.json").body(Body::empty()).unwrap();
        let response = router.call(request).await.unwrap();
        assert_eq!(response.headers()["content-type"], "application/json");
        documents.push(response.into_body().collect().await.unwrap().to_bytes());
    }
    assert!(documents[0].len() > 1000);
    assert_eq!(documents[0].as_ptr(), documents[1].as_ptr());
}

#[tokio::test]
async fn no_token_reaches_another_twin() {
    let world = World::new();
    let document = world.get("", "/api/v1/openapi.json").await.json;
    for role in Role::ALL {
        let token = world.log_in(&format!("south-{}", role.name())).await;
        for (method, path) in operations(&document) {
            if !path.contains("{twin}") {
                continue;
            }
            for twin in ["north", "nowhere"] {
                let at = path.replace("{twin}", twin).replace(['{', '}'], "");
                let answer = world.call(&token, &method, &at, &json!({})).await;
                assert_eq!(answer.status, 404, "{method} {at} as {}", role.name());
                assert_eq!(answer.json["detail"], "there is no such twin");
            }
        }
    }
}

/// Roles and their permissions: everything else is refused with 403. Where a role has the permission, the response is
/// about the missing content of these requests.
#[tokio::test]
async fn roles_may_what_they_may_and_nothing_else() {
    let world = World::new();
    let matrix = [
        ("GET", "meter", "admin office reader device viewer"),
        ("GET", "work_list", "admin office reader viewer"),
        ("GET", "instance", "admin office reader device viewer"),
        ("GET", "reading", "admin office reader viewer"),
        ("GET", "photo/00000000-0000-0000-0000-000000000001", "admin office reader viewer"),
        ("GET", "meter/x/consumption", "admin office viewer"),
        ("GET", "meter/x/exchange", "admin office reader viewer"),
        ("POST", "meter/x/exchange", "admin office"),
        ("DELETE", "meter/x/exchange/x", "admin office"),
        ("GET", "report/progress", "admin office viewer"),
        ("GET", "report/missed", "admin office viewer"),
        ("GET", "report/leaks", "admin office viewer"),
        ("GET", "export/readings.csv", "admin office viewer"),
        ("GET", "export/readings.xlsx", "admin office viewer"),
        ("GET", "home", "admin office viewer"),
        ("GET", "home/x", "admin office viewer"),
        ("GET", "sensor", "admin office viewer"),
        ("GET", "sensor/x", "admin office viewer"),
        ("GET", "series?device=x&quantity=co2", "admin office viewer"),
        ("GET", "export/series.csv", "admin office viewer"),
        ("GET", "export/series.xlsx", "admin office viewer"),
        ("GET", "alert_rule", "admin office viewer"),
        ("GET", "alert_rule/radon", "admin office viewer"),
        ("GET", "alert", "admin office viewer"),
        ("GET", "alert/x", "admin office viewer"),
        ("GET", "webhook", "admin office"),
        ("POST", "alert_rule", "admin office"),
        ("PATCH", "alert_rule/x", "admin office"),
        ("DELETE", "alert_rule/x", "admin office"),
        ("POST", "alert/x/acknowledge", "admin office"),
        ("POST", "webhook", "admin office"),
        ("DELETE", "webhook/x", "admin office"),
        ("POST", "home", "admin office"),
        ("PATCH", "home/x", "admin office"),
        ("DELETE", "home/x", "admin office"),
        ("PUT", "sensor/x", "admin office"),
        ("POST", "measurement", "admin office device"),
        ("GET", "user", "admin office"),
        ("POST", "user", "admin"),
        ("PATCH", "user/x", "admin"),
        ("DELETE", "user/x", "admin"),
        ("POST", "meter", "admin office"),
        ("PATCH", "meter/x", "admin office"),
        ("PUT", "meter/x/key", "admin"),
        ("POST", "work_list", "admin office"),
        ("PATCH", "work_list/x", "admin office reader"),
        ("POST", "reading", "admin office reader"),
        ("POST", "reading/x/resolve", "admin office"),
        ("PUT", "photo/x", "admin office reader"),
        ("POST", "frame", "admin office reader device"),
        ("PUT", "instance/x", "admin office reader device"),
        ("POST", "instance/x/command/reboot", "admin office"),
        ("PATCH", "instance/x/command/x", "admin office reader device"),
        ("POST", "instance/x/telemetry", "admin office reader device"),
    ];
    let bodies = [
        ("user", json!({"name": "n", "password": "12345678", "role": "viewer"})),
        ("user/x", json!({"role": "viewer"})),
        ("meter/x/key", json!({"key": "0".repeat(32)})),
        (
            "meter/x/exchange",
            json!({"id": uuid::Uuid::nil(), "at": "2026-11-01T00:00:00Z", "final": 1, "first": 0}),
        ),
        ("work_list", json!({"name": "n", "meters": ["x"]})),
        ("reading", json!({"items": []})),
        ("reading/x/resolve", json!({"keep": true})),
        ("frame", json!({"receiver": "r", "frames": []})),
        ("instance/x", json!({"kind": ""})),
        ("instance/x/command/x", json!({"state": "done"})),
        ("instance/x/telemetry", json!({"items": []})),
        ("meter", json!({"items": []})),
        ("home", json!({"items": []})),
        ("alert_rule", json!({"name": "n", "severity": "info", "silent_s": 100})),
        ("webhook", json!({"url": "https://example.org", "secret": "12345678"})),
        ("measurement", json!({"items": []})),
    ];
    for role in Role::ALL {
        let token = world.log_in(&format!("north-{}", role.name())).await;
        for (method, path, may) in matrix {
            let body =
                bodies.iter().find(|(at, _)| *at == path).map_or(json!({}), |(_, b)| b.clone());
            let body = if method == "GET" || method == "DELETE" { Value::Null } else { body };
            let answer = world.call(&token, method, &format!("/api/v1/north/{path}"), &body).await;
            let allowed = may.split(' ').any(|name| name == role.name());
            let refused = answer.status == 403;
            // A body that cannot be taken may be refused before the role is looked at.
            let undecided = answer.status == 422 && !allowed;
            assert!(refused != allowed || undecided, "{method} {path} {role:?}: {}", answer.status);
            assert!(answer.status < 500, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn words_in_the_document_are_those_in_answers() {
    let world = World::new();
    let document = world.get("", "/api/v1/openapi.json").await.json;
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let words = schemas.values().filter_map(|schema| schema["enum"].as_array()).flatten();
    for word in words.map(|word| word.as_str().unwrap()) {
        assert!(!word.contains(char::is_uppercase), "{word}");
    }
    let states = &schemas["MeterState"]["enum"];
    assert_eq!(*states, json!(["ok", "missed", "leak_suspected"]));
}

/// The sentence, and the field that it is about.
fn told(answer: &Value) -> (&str, Option<&str>) {
    (answer["detail"].as_str().unwrap(), answer["errors"][0]["field"].as_str())
}

#[tokio::test]
async fn errors_name_what_is_wrong_in_the_words_of_the_api() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    let rule = |change: Value| {
        let mut rule = json!({"name": "n", "severity": "info", "quantity": "co2"});
        rule.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        rule
    };
    for (path, body, detail, field) in [
        (
            "meter",
            json!({"medium": "beer"}),
            "medium: unknown variant `beer`, expected one of `water`, `warm_water`, `heat`, `gas`, `electricity`, `heat_cost`, `other`",
            Some("medium"),
        ),
        (
            "meter",
            json!({"items": 5}),
            "items: invalid type: integer `5`, expected a list",
            Some("items"),
        ),
        ("meter", json!([]), "expected an object", None),
        ("reading", json!([]), "expected an object", None),
        ("reading", json!([{"id": 1}]), "expected an object", None),
        ("reading", json!("one"), "expected an object", None),
        ("reading", json!({}), "missing field `items`", None),
        ("work_list", json!({"name": "n", "meters": [""]}), "", Some("meters[0]")),
        (
            "alert_rule",
            rule(json!({"above": 5, "clear": 6})),
            "clear: expected a value at or below `above`",
            Some("clear"),
        ),
        (
            "alert_rule",
            rule(json!({"below": 5, "clear": 4})),
            "clear: expected a value at or above `below`",
            Some("clear"),
        ),
    ] {
        let answer = world.call(&office, "POST", &format!("/api/v1/north/{path}"), &body).await;
        assert_eq!(answer.status, 422, "{path} {body}: {}", answer.json);
        let (said, about) = told(&answer.json);
        assert!(said == detail || detail.is_empty(), "{path} {body}: {said}");
        assert_eq!(about, field, "{path} {body}: {said}");
    }
    let items = json!({"items": [
        {"meter": "m"},
        {"id": "x", "meter": "m"},
        7,
        ["a list"],
        {"id": uuid::Uuid::nil(), "meter": "m", "at": "now", "value": 1, "method": "manual"},
    ]});
    let sent = world.good(&office, "POST", "/api/v1/north/reading", items).await;
    let details: Vec<&str> =
        sent["results"].as_array().unwrap().iter().map(|r| r["detail"].as_str().unwrap()).collect();
    let expected = [
        "missing field `id`",
        "id: expected a UUID",
        "expected an object",
        "expected an object",
        "at: expected a time such as 2026-11-21T12:00:00Z (RFC 3339)",
    ];
    assert_eq!(details, expected);
    for (query, detail, field) in [
        (
            "meter/m/consumption?from=yesterday",
            "from: expected a time such as 2026-11-21T12:00:00Z (RFC 3339)",
            Some("from"),
        ),
        (
            "series?device=x&quantity=co2&step=never",
            "step: expected auto, raw or 1 to 31622400 seconds",
            Some("step"),
        ),
        ("series?quantity=co2", "missing field `device`", None),
        ("reading?work_list=5", "work_list: expected a UUID", Some("work_list")),
    ] {
        let answer = world.get(&office, &format!("/api/v1/north/{query}")).await;
        assert_eq!((answer.status, told(&answer.json)), (422, (detail, field)), "{query}");
    }
    let request = Request::put(format!("/api/v1/north/photo/{}", uuid::Uuid::nil()));
    let request = request.header("authorization", format!("Bearer {office}"));
    let request = request.header("content-type", "image/jpeg").body(Body::from("a,b\n")).unwrap();
    let answer = world.send(request).await;
    let expected = "the content is not a JPEG, PNG or WebP image";
    assert_eq!((answer.status, told(&answer.json).0), (415, expected));
}
