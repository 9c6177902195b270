//! Answers that clients do not take: an account's share of the memory for them.
#![allow(clippy::unwrap_used)]

mod common;

use axum::body::Body;
use axum::http::{Request, Response, header};
use common::{World, now, reading};
use fulmar_http::AnswerSpace;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

const PART: usize = 256 * 1024;

fn get(token: &str, path: &str) -> Request<Body> {
    let request = Request::get(path).header(header::AUTHORIZATION, format!("Bearer {token}"));
    request.body(Body::empty()).unwrap()
}

/// Stores a photo of two parts and a half.
async fn photo(world: &World, token: &str) -> (String, Vec<u8>) {
    let path = format!("/api/v1/north/photo/{}", uuid::Uuid::from_u128(1));
    let rest = (0..PART * 5 / 2).map(|at| (at / 1000) as u8);
    let bytes: Vec<u8> = b"\xFF\xD8\xFF".iter().copied().chain(rest).collect();
    let request = Request::put(&path).header(header::AUTHORIZATION, format!("Bearer {token}"));
    let stored = world.send(request.body(Body::from(bytes.clone())).unwrap()).await;
    assert_eq!(stored.status, 201);
    (path, bytes)
}

#[tokio::test]
async fn a_photo_of_several_parts_comes_whole() {
    let answers = AnswerSpace::new(usize::MAX);
    let world = World::new().with_settings(|settings| settings.answers = answers.clone());
    let reader = world.log_in("north-reader").await;
    let (path, bytes) = photo(&world, &reader).await;
    let response = world.ask(get(&reader, &path)).await;
    let length = response.headers()[header::CONTENT_LENGTH].to_str().unwrap().to_owned();
    assert_eq!(length, bytes.len().to_string());
    assert!(response.into_body().collect().await.unwrap().to_bytes() == bytes);
    assert_eq!(answers.totals().used, 0);
}

#[tokio::test]
async fn who_takes_no_answers_waits_and_others_do_not() {
    let answers = AnswerSpace::new(4 * PART);
    let world = World::new().with_settings(|settings| settings.answers = answers.clone());
    let (reader, office) = (world.log_in("north-reader").await, world.log_in("north-office").await);
    let (path, bytes) = photo(&world, &reader).await;
    let (first, second) =
        (world.ask(get(&reader, &path)).await, world.ask(get(&reader, &path)).await);
    assert_eq!(answers.totals().used, 2 * PART as u64);
    let third = tokio::spawn(world.ask(get(&reader, &path)));
    assert!(world.get(&office, &path).await.bytes == bytes, "another account");
    assert!(!third.is_finished());
    drop(first);
    assert_eq!(third.await.unwrap().status(), 200);
    assert!(second.into_body().collect().await.unwrap().to_bytes() == bytes);
    assert_eq!(answers.totals().used, 0);
}

#[tokio::test]
async fn an_answer_for_which_there_is_no_room_is_refused() {
    let answers = AnswerSpace::new(PART);
    let world = World::new().with_settings(|settings| settings.answers = answers.clone());
    let office = world.log_in("north-office").await;
    for number in 0..30 {
        let meter = json!({"id": format!("m{number}"), "note": "x".repeat(80)});
        world.good(&office, "POST", "/api/v1/north/meter", meter).await;
    }
    let (path, _) = photo(&world, &office).await;
    let unread = world.ask(get(&office, &path)).await;
    let meters = "/api/v1/north/meter";
    let refused = world.get(&office, meters).await;
    assert_eq!((refused.status, refused.retry_after.as_deref()), (503, Some("1")));
    assert_eq!(answers.totals().refused, 1);
    // What is small needs no room.
    assert_eq!(world.get(&office, "/api/v1/north").await.status, 200);
    drop(unread);
    let answer = world.get(&office, meters).await;
    assert_eq!(answer.status, 200);
    assert!(answer.bytes.len() > 4096, "{}", answer.bytes.len());
}

/// Sizes of a body's frames, and how many lines they have together.
async fn frames(response: Response<Body>) -> (Vec<usize>, usize) {
    let (mut body, mut sizes, mut lines) = (response.into_body(), Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let bytes = frame.unwrap().into_data().unwrap();
        lines += bytes.iter().filter(|byte| **byte == b'\n').count();
        sizes.push(bytes.len());
    }
    (sizes, lines)
}

#[tokio::test]
async fn parts_of_tables_are_small_however_long_their_texts_are() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    world.good(&office, "POST", "/api/v1/north/meter", json!({"id": "m1"})).await;
    // Together 1.2 MB, and as much again for the quotation marks.
    let notes = ["\u{6f22}".repeat(2000), "\"".repeat(2000)];
    let readings = (0..400).map(|n| {
        let mut item = reading(n + 1, "m1", &now(n as i64 - 1000), n as f64);
        item["note"] = json!(notes[n as usize % 2]);
        item
    });
    let readings: Vec<Value> = readings.collect();
    for items in readings.chunks(50) {
        let done =
            world.good(&office, "POST", "/api/v1/north/reading", json!({"items": items})).await;
        assert!(!done.to_string().contains("rejected"));
    }
    let csv = world.ask(get(&office, "/api/v1/north/export/readings.csv")).await;
    let (sizes, lines) = frames(csv).await;
    assert_eq!(lines, 401);
    assert!(sizes.iter().all(|bytes| *bytes <= PART + PART / 8), "{sizes:?}");

    let home = json!({"id": "mill", "name": "\u{1f3e0}".repeat(200)});
    world.good(&office, "POST", "/api/v1/north/home", home).await;
    let sensor = json!({"home": "mill", "room": "\u{1f6aa}".repeat(200)});
    world.good(&office, "PUT", "/api/v1/north/sensor/s1", sensor).await;
    let items: Vec<Value> = (0..1000)
        .map(|n| json!({"device": "s1", "quantity": "co2", "at": now(n - 2000), "value": n}))
        .collect();
    world.good(&office, "POST", "/api/v1/north/measurement", json!({"items": items})).await;
    let path = format!("/api/v1/north/export/series.csv?from={}", now(-3000));
    let (sizes, lines) = frames(world.ask(get(&office, &path)).await).await;
    assert_eq!(lines, 1001);
    assert!(sizes.iter().all(|bytes| *bytes <= PART + PART / 8), "{sizes:?}");
}

#[tokio::test]
async fn exports_that_are_not_taken_count_the_series_that_they_have_yet_to_look_at() {
    let answers = AnswerSpace::new(usize::MAX);
    let world = World::new().with_settings(|settings| settings.answers = answers.clone());
    let office = world.log_in("north-office").await;
    let items: Vec<Value> = (0..600)
        .map(
            |n| json!({"device": format!("s{n}"), "quantity": "co2", "at": now(-60), "value": 500}),
        )
        .collect();
    world.good(&office, "POST", "/api/v1/north/measurement", json!({"items": items})).await;
    let path = format!("/api/v1/north/export/series.csv?from={}", now(-3000));
    let mut unread = Vec::new();
    for _ in 0..20 {
        unread.push(world.ask(get(&office, &path)).await);
    }
    let used = answers.totals().used;
    assert!((20 * 600 * 8..20 * 600 * 64).contains(&used), "{used}");
    assert_eq!(frames(unread.remove(0)).await.1, 601);
    drop(unread);
    assert_eq!(answers.totals().used, 0);
}
