//! The OpenAPI document and what is served.
#![allow(clippy::unwrap_used)]

mod common;

use common::World;
use serde_json::Value;

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
