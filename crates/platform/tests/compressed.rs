//! Answers and uploads with gzip, over a link on which each kilobyte takes an eighth of a second.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read as _, Write as _};

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use common::{PASSWORD, World};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

/// The answer to a client that accepts gzip.
async fn get(world: &World, token: &str, path: &str) -> (StatusCode, HeaderMap, Vec<u8>) {
    let request = Request::builder().uri(format!("/api/v1/north/{path}"));
    let request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    let request = request.header(header::ACCEPT_ENCODING, "gzip, deflate, br, zstd");
    let (parts, body) = world.ask(request.body(Body::empty()).unwrap()).await.into_parts();
    (parts.status, parts.headers, body.collect().await.unwrap().to_bytes().to_vec())
}

/// What a client that decompresses answers reads.
async fn get_decompressed(world: &World, token: &str, path: &str) -> (usize, Vec<u8>) {
    let (status, headers, bytes) = get(world, token, path).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(headers[header::CONTENT_ENCODING], "gzip", "{path}");
    assert_eq!(headers[header::VARY], "accept-encoding", "{path}");
    let mut plain = Vec::new();
    GzDecoder::new(&bytes[..]).read_to_end(&mut plain).unwrap();
    (bytes.len(), plain)
}

async fn post_gzip(world: &World, token: &str, path: &str, plain: &[u8]) -> (u16, Value) {
    let request = Request::builder().method("POST").uri(format!("/api/v1/{path}"));
    let request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    let request = request.header(header::CONTENT_TYPE, "application/json");
    let request = request.header(header::CONTENT_ENCODING, "gzip");
    let answer = world.send(request.body(Body::from(gzip(plain))).unwrap()).await;
    (answer.status, answer.json)
}

#[tokio::test]
async fn lists_are_a_tenth_as_long_and_the_same() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    let meter = |n: u32| json!({ "id": format!("{n:08}"), "street": format!("Deichstr. {n}"), "medium": "water" });
    let meters = json!({ "items": (0..500).map(meter).collect::<Vec<_>>() });
    let sent = serde_json::to_vec(&meters).unwrap();
    let (status, results) = post_gzip(&world, &office, "north/meter", &sent).await;
    assert_eq!(status, 200, "{results}");
    let ids: Vec<_> = (0..500).map(|n| format!("{n:08}")).collect();
    let list = json!({ "name": "Monday", "meters": ids });
    let list = world.good(&office, "POST", "/api/v1/north/work_list", list).await;
    let path = format!("work_list/{}", list["id"].as_str().unwrap());
    for path in [path.as_str(), "meter?limit=500", "export/readings.csv"] {
        let plain = world.get(&office, &format!("/api/v1/north/{path}")).await;
        let (size, decompressed) = get_decompressed(&world, &office, path).await;
        assert!(decompressed == plain.bytes, "{path}");
        assert!(plain.bytes.len() < 1000 || size < plain.bytes.len() / 8, "{path}: {size}");
    }
    // A client that has the meters needs their ids only.
    let brief = world.get(&office, &format!("/api/v1/north/{path}?meters=false")).await;
    assert_eq!(brief.json["tasks"][7]["meter"], json!({ "id": "00000007" }));
    assert_eq!(brief.json["tasks"].as_array().unwrap().len(), 500);
}

#[tokio::test]
async fn what_has_secrets_is_not_compressed() {
    let world = World::new();
    let admin = world.log_in("north-admin").await;
    for n in 0..20 {
        let hook = json!({ "url": format!("http://127.0.0.1/{n}/token"), "secret": "12345678" });
        world.good(&admin, "POST", "/api/v1/north/webhook", hook).await;
    }
    let (status, headers, bytes) = get(&world, &admin, "webhook").await;
    assert!(status == StatusCode::OK && bytes.len() > 1024, "{status}, {} bytes", bytes.len());
    assert!(!headers.contains_key(header::CONTENT_ENCODING), "{headers:?}");
}

#[tokio::test]
async fn what_is_too_long_decompressed_is_refused_with_and_without_login() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    let long = |name: &str, bytes: usize| format!(r#"{{"{name}":"{}"}}"#, "x".repeat(bytes));
    // 17 MB become 17 kB.
    let (status, problem) =
        post_gzip(&world, &office, "north/meter", long("street", 17 << 20).as_bytes()).await;
    assert_eq!(status, 413, "{problem}");
    let (status, problem) = post_gzip(&world, "", "session", long("user", 20_000).as_bytes()).await;
    assert_eq!(status, 413, "{problem}");
    let login = json!({ "user": "north-office", "password": PASSWORD }).to_string();
    assert_eq!(post_gzip(&world, "", "session", login.as_bytes()).await.0, 201);

    let request = Request::builder().method("POST").uri("/api/v1/north/meter");
    let request = request.header(header::AUTHORIZATION, format!("Bearer {office}"));
    let request = request.header(header::CONTENT_TYPE, "application/json");
    let request = request.header(header::CONTENT_ENCODING, "br");
    let answer = world.send(request.body(Body::from(&b"?"[..])).unwrap()).await;
    assert_eq!(answer.status, 415, "{}", answer.json);
}
