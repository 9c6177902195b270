//! Answers that clients do not take: an account's share of the memory for them.
#![allow(clippy::unwrap_used)]

mod common;

use axum::body::Body;
use axum::http::{Request, header};
use common::World;
use fulmar_http::AnswerSpace;
use http_body_util::BodyExt as _;
use serde_json::json;

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
