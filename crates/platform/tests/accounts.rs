//! Logging in, and what it is good for.
#![allow(clippy::unwrap_used)]

mod common;

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::http::Request;
use common::{PASSWORD, World, now, reading};
use fulmar_auth::{ExternalUsers as _, Timestamp};
use fulmar_identity::{ChangeLog, NewEntry};
use fulmar_platform::{Database, UserToAdd};
use futures_util::{StreamExt as _, stream};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

#[tokio::test]
async fn a_login_gives_a_token_and_logging_out_ends_it_for_good() {
    let world = World::new();
    let body = json!({"user": "north-reader", "password": PASSWORD});
    let login = world.call("", "POST", "/api/v1/session", &body).await;
    assert_eq!(login.status, 201);
    let user = &login.json["user"];
    assert_eq!(user["role"], "reader");
    assert_eq!(
        user["twins"],
        json!([{"id": "north", "name": "north", "kind": "meters", "role": "reader"}])
    );
    let token = login.json["token"].as_str().unwrap();
    let shown = world.get(token, "/api/v1/session").await;
    assert_eq!((shown.status, shown.json.get("token")), (200, None));
    let second = world.log_in("north-reader").await;
    assert_eq!(world.call(token, "DELETE", "/north/session", &Value::Null).await.status, 204);
    assert_eq!(world.get(token, "/api/v1/session").await.status, 401);
    let token = token.to_owned();
    let world = world.restart();
    assert_eq!(world.get(&token, "/api/v1/session").await.status, 401);
    assert_eq!(
        world.get(&second, "/api/v1/session").await.status,
        200,
        "the other session goes on"
    );
}

#[tokio::test]
async fn who_is_wrong_too_often_waits() {
    let world = World::new();
    let wrong = json!({"user": "north-reader", "password": "guess"});
    for _ in 0..5 {
        assert_eq!(world.call("", "POST", "/api/v1/session", &wrong).await.status, 401);
    }
    let right = json!({"user": "north-reader", "password": PASSWORD});
    // One more is allowed in ten seconds, which a busy machine may take for a few: those are wrong ones, too.
    let mut waits = false;
    for _ in 0..20 {
        let refused = world.call("", "POST", "/api/v1/session", &wrong).await;
        if refused.status == 401 {
            continue;
        }
        assert_eq!((refused.status, &*refused.kind), (429, "application/problem+json"));
        waits = world.call("", "POST", "/api/v1/session", &right).await.status == 429;
        if waits {
            break;
        }
    }
    assert!(waits, "who knows the password in the end need not wait");
    world.log_in("south-reader").await;
}

#[tokio::test]
async fn changes_on_the_command_line_reach_a_running_server() {
    let world = World::new();
    let token = world.log_in("north-reader").await;
    world.admin().remove_user("north-reader").unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while world.get(&token, "/api/v1/session").await.status != 401 {
        assert!(std::time::Instant::now() < deadline, "the token of a removed user still counts");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn admins_manage_their_twins_users() {
    let world = World::new();
    let admin = world.log_in("north-admin").await;
    let new = json!({"name": "eve", "password": PASSWORD, "role": "reader"});
    world.good(&admin, "POST", "/api/v1/north/user", new.clone()).await;
    assert_eq!(world.call(&admin, "POST", "/api/v1/north/user", &new).await.status, 409);
    let eve = world.log_in("eve").await;
    assert_eq!(world.get(&eve, "/api/v1/north").await.status, 200);
    assert_eq!(world.get(&eve, "/api/v1/north/user").await.status, 403);
    let change = json!({"role": "office"});
    world.good(&admin, "PATCH", "/api/v1/north/user/eve", change.clone()).await;
    assert_eq!(world.get(&eve, "/api/v1/north/user").await.status, 200);
    let others = world.call(&admin, "PATCH", "/api/v1/north/user/south-reader", &change).await;
    assert_eq!(others.status, 404);
    world.good(&admin, "DELETE", "/api/v1/north/user/eve", Value::Null).await;
    assert_eq!(world.get(&eve, "/api/v1/north").await.status, 404);
}

#[tokio::test]
async fn a_twins_only_admin_stays_until_there_is_another() {
    let world = World::new();
    let (root, admin) = (world.log_in("root").await, world.log_in("north-admin").await);
    let own = "/api/v1/north/user/north-admin";
    let office = json!({"role": "office"});
    for (method, body) in [("PATCH", &office), ("DELETE", &Value::Null)] {
        let refused = world.call(&admin, method, own, body).await;
        assert_eq!(refused.status, 409, "{method}");
        assert_eq!(
            refused.json["detail"],
            "this would leave the twin without an administrator; make another one first"
        );
    }
    assert_eq!(world.get(&admin, "/api/v1/session").await.json["user"]["role"], "admin");
    let same = json!({"role": "admin"});
    world.good(&admin, "PATCH", own, same.clone()).await;
    world.good(&admin, "PATCH", "/api/v1/north/user/north-viewer", same).await;
    world.good(&admin, "DELETE", own, Value::Null).await;
    // The server's admin can make another one at any time.
    world.good(&root, "PATCH", "/api/v1/north/user/north-viewer", office).await;
    world.good(&root, "DELETE", "/api/v1/north/user/north-viewer", Value::Null).await;
}

#[test]
fn the_servers_only_admin_is_not_removed() {
    let world = World::new();
    let refused = world.admin().remove_user("root").unwrap_err().to_string();
    assert!(refused.contains("`fulmar user add NAME --admin`"), "{refused}");
    let second = UserToAdd { name: "vera", display_name: None, server_admin: true, role: None };
    world.admin().add_user(&second, PASSWORD).unwrap();
    world.admin().remove_user("root").unwrap();
    assert!(world.admin().users().unwrap().iter().all(|user| user.name != "root"));
}

#[tokio::test]
async fn only_the_servers_admin_makes_twins() {
    let world = World::new();
    let (root, admin) = (world.log_in("root").await, world.log_in("north-admin").await);
    let twin = json!({"id": "west", "name": "West", "centre": {"lat": 53.5, "lon": 10.0}});
    assert_eq!(world.call(&admin, "POST", "/api/v1/twin", &twin).await.status, 403);
    world.good(&root, "POST", "/api/v1/twin", twin.clone()).await;
    assert_eq!(world.call(&root, "POST", "/api/v1/twin", &twin).await.status, 409);
    for reserved in ["api", "assets", "mqtt", "sw.js", "API"] {
        let twin = json!({"id": reserved, "name": "x"});
        assert_eq!(
            world.call(&root, "POST", "/api/v1/twin", &twin).await.status,
            422,
            "{reserved}"
        );
    }
    let west = world.get(&root, "/api/v1/west").await;
    assert_eq!(west.json["centre"], json!({"lat": 53.5, "lon": 10.0}));
    assert_eq!(world.get(&admin, "/api/v1/west").await.status, 404);
}

#[tokio::test]
async fn who_loses_something_is_told_of() {
    let world = World::new();
    let (reader, admin) = (world.log_in("north-reader").await, world.log_in("north-admin").await);
    let admitted = world.platform.admit(&reader, Some("north-reader"), Timestamp(0)).unwrap();
    let credential = admitted.credential.unwrap();
    assert!(world.platform.is_good(&credential));
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let platform = world.platform.clone();
    world.platform.on_loss(move |losers| {
        let goes_on = platform.is_good(&credential);
        let may = platform.may("north-viewer", false, "fulmar/north/reading/m1");
        told.send((losers.keys().cloned().collect::<String>(), goes_on, may)).unwrap();
    });
    // New rights are no reason for a notification.
    world.log_in("north-device").await;
    let change = json!({"role": "reader"});
    world.call(&admin, "PATCH", "/api/v1/north/user/north-viewer", &change).await;
    let lost_role = ("north-viewer".to_owned(), true, false);
    assert_eq!(heard.recv().await, Some(lost_role), "a role, by when it has changed");
    world.call(&reader, "DELETE", "/api/v1/session", &Value::Null).await;
    let lost_token = ("north-reader".to_owned(), false, false);
    assert_eq!(heard.recv().await, Some(lost_token), "a token");
    assert!(heard.try_recv().is_err());
}

/// Entries, each with its result; refuses all if it is full.
#[derive(Clone, Default)]
struct Log {
    entries: Arc<Mutex<Vec<(NewEntry, String)>>>,
    is_full: bool,
}

impl ChangeLog for Log {
    fn begin(&self, changes: &[NewEntry]) -> Result<Vec<i64>, String> {
        if self.is_full {
            return Err("no room for the log".to_owned());
        }
        let mut entries = self.entries.lock().unwrap();
        entries.extend(changes.iter().map(|change| (change.clone(), String::new())));
        Ok(vec![entries.len() as i64 - 1])
    }

    fn end(&self, results: &[(i64, &str)]) {
        for (id, result) in results {
            self.entries.lock().unwrap()[*id as usize].1 = (*result).to_owned();
        }
    }
}

#[tokio::test]
async fn changes_of_accounts_and_twins_are_logged_without_secrets() {
    let (world, log) = (World::new(), Log::default());
    world.platform.log_changes(Box::new(log.clone()));
    let (root, admin) = (world.log_in("root").await, world.log_in("north-admin").await);
    let user = json!({"name": "new", "password": "s3cret phrase", "role": "reader"});
    for status in [201, 409] {
        assert_eq!(world.call(&admin, "POST", "/api/v1/north/user", &user).await.status, status);
    }
    let role = json!({"role": "viewer"});
    world.good(&admin, "PATCH", "/api/v1/north/user/new", role).await;
    world.call(&admin, "DELETE", "/api/v1/north/user/new", &Value::Null).await;
    world.good(&root, "POST", "/api/v1/twin", json!({"id": "west", "name": "West"})).await;
    let entries = log.entries.lock().unwrap();
    let shown: Vec<_> = entries
        .iter()
        .map(|(change, result)| (&*change.who, change.action, &*change.object, result == "ok"))
        .collect();
    let expected = [
        ("north-admin", "user.add", "new", true),
        ("north-admin", "user.add", "new", false),
        ("north-admin", "user.change", "new", true),
        ("north-admin", "user.remove", "new", true),
        ("root", "twin.add", "west", true),
    ];
    assert_eq!(shown, expected);
    assert!(!format!("{entries:?}").contains("s3cret"), "{entries:?}");
}

/// Whether a twin was in the database when it was logged as made.
struct Witness {
    file: PathBuf,
    seen: Arc<Mutex<Vec<bool>>>,
}

impl ChangeLog for Witness {
    fn begin(&self, _: &[NewEntry]) -> Result<Vec<i64>, String> {
        Ok(vec![1])
    }

    fn end(&self, results: &[(i64, &str)]) {
        assert_eq!(results, [(1, "ok")]);
        let db = rusqlite::Connection::open(&self.file).unwrap();
        let sql = "SELECT EXISTS (SELECT 1 FROM twin WHERE id = 'west')";
        let seen = db.query_row(sql, (), |row| row.get(0)).unwrap();
        self.seen.lock().unwrap().push(seen);
    }
}

#[tokio::test]
async fn a_change_is_logged_as_made_when_it_is() {
    let (world, seen) = (World::new(), Arc::new(Mutex::default()));
    if world.database != Database::File {
        return;
    }
    let file = world.folder.path().join("platform.db");
    world.platform.log_changes(Box::new(Witness { file, seen: Arc::clone(&seen) }));
    let root = world.log_in("root").await;
    world.good(&root, "POST", "/api/v1/twin", json!({"id": "west", "name": "West"})).await;
    assert_eq!(*seen.lock().unwrap(), [true]);
}

#[tokio::test]
async fn a_change_of_accounts_that_cannot_be_logged_is_not_made() {
    let world = World::new();
    world.platform.log_changes(Box::new(Log { is_full: true, ..Log::default() }));
    let admin = world.log_in("north-admin").await;
    let removed =
        world.call(&admin, "DELETE", "/api/v1/north/user/north-viewer", &Value::Null).await;
    assert_eq!(removed.status, 503);
    world.log_in("north-viewer").await;
}

/// Parts of a KiB without end, and how many of them were asked for.
fn endless() -> (Body, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let parts = std::iter::repeat_with(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(Bytes::from_static(&[b' '; 1024]))
    });
    (Body::from_stream(stream::iter(parts.take(64 * 1024))), asked)
}

#[tokio::test]
async fn bodies_are_read_when_their_sender_is_known() {
    let world = World::new();
    let viewer = world.log_in("north-viewer").await;
    for (path, token, status, most) in [
        ("/api/v1/session", "", 413, 17),
        ("/api/v1/north/reading", "", 401, 0),
        ("/api/v1/north/reading", "x.y.z", 401, 0),
        ("/api/v1/north/reading", &viewer, 403, 0),
        ("/api/v1/north/meter", &viewer, 403, 0),
        ("/api/v1/north/frame", &viewer, 403, 0),
        ("/api/v1/south/measurement", &viewer, 404, 0),
        ("/api/v1/north/user", &viewer, 413, 257),
    ] {
        let (body, asked) = endless();
        let mut request = Request::post(path).header("content-type", "application/json");
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = world.send(request.body(body).unwrap()).await;
        let asked = asked.load(Ordering::Relaxed);
        assert_eq!(answer.status, status, "{path}");
        assert!(asked <= most, "{path}: {asked} KiB were read");
    }
}

/// A request of this account whose body comes in two parts, the second when the sender fires.
fn in_two_parts(
    request: axum::http::request::Builder,
    body: &[u8],
) -> (Request<Body>, tokio::sync::oneshot::Sender<()>) {
    let (begin, rest) = body.split_at(body.len() / 2);
    let (begin, rest) = (Bytes::copy_from_slice(begin), Bytes::copy_from_slice(rest));
    let (go_on, told) = tokio::sync::oneshot::channel();
    let rest = stream::once(async move {
        told.await.unwrap();
        Ok::<_, Infallible>(rest)
    });
    let parts = stream::iter([Ok(begin)]).chain(rest);
    (request.body(Body::from_stream(parts)).unwrap(), go_on)
}

#[tokio::test]
async fn a_body_that_comes_after_its_token_has_ended_changes_nothing() {
    let world = World::new();
    let admin = world.log_in("north-admin").await;
    let photo = [b"\xFF\xD8\xFF".as_slice(), &[7; 1000]].concat();
    let (photo_path, meter_path) = ("/api/v1/north/photo/", "/api/v1/north/meter");
    let photo_path = format!("{photo_path}{}", uuid::Uuid::from_u128(1));
    for lost in ["token", "role"] {
        let office = world.log_in("north-office").await;
        let authorization = ("authorization", format!("Bearer {office}"));
        let put = Request::put(&photo_path).header(authorization.0, &authorization.1);
        let post = Request::post(meter_path).header(authorization.0, &authorization.1);
        let post = post.header("content-type", "application/json");
        let (put, photo_goes_on) = in_two_parts(put, &photo);
        let (post, meter_goes_on) = in_two_parts(post, br#"{"id": "m1"}"#);
        let (put, post) = (tokio::spawn(world.ask(put)), tokio::spawn(world.ask(post)));
        tokio::task::yield_now().await;
        match lost {
            "token" => world.call(&office, "DELETE", "/api/v1/session", &Value::Null).await,
            _ => {
                let change = json!({"role": "viewer"});
                world.call(&admin, "PATCH", "/api/v1/north/user/north-office", &change).await
            }
        };
        photo_goes_on.send(()).unwrap();
        meter_goes_on.send(()).unwrap();
        assert_eq!(
            [put.await.unwrap().status(), post.await.unwrap().status()],
            [401, 401],
            "{lost}"
        );
        for path in [&photo_path, "/api/v1/north/meter/m1"] {
            assert_eq!(world.get(&admin, path).await.status, 404, "{lost}: {path}");
        }
    }
}

#[tokio::test]
async fn an_answer_in_parts_ends_with_the_right_to_it() {
    let world = World::new();
    let admin = world.log_in("north-admin").await;
    let path = format!("/api/v1/north/photo/{}", uuid::Uuid::from_u128(1));
    let photo = [b"\xFF\xD8\xFF".as_slice(), &[7; 600 * 1024]].concat();
    let put = Request::put(&path).header("authorization", format!("Bearer {admin}"));
    assert_eq!(world.send(put.body(Body::from(photo)).unwrap()).await.status, 201);
    // Long enough for more than one part of a table.
    world.good(&admin, "POST", "/api/v1/north/meter", json!({"id": "m1"})).await;
    for chunk in 0..8 {
        let items: Vec<Value> = (0..50)
            .map(|n| {
                let number = chunk * 50 + n;
                let mut item = reading(number + 1, "m1", &now(number as i64 - 1000), 1.0);
                item["note"] = json!("x".repeat(2000));
                item
            })
            .collect();
        world.good(&admin, "POST", "/api/v1/north/reading", json!({"items": items})).await;
    }
    for lost in ["token", "role", "member"] {
        let office = world.log_in("north-office").await;
        let begin = |path: &str| {
            let get = Request::get(path).header("authorization", format!("Bearer {office}"));
            world.ask(get.body(Body::empty()).unwrap())
        };
        let mut bodies = Vec::new();
        for path in [&path, "/api/v1/north/export/readings.csv"] {
            let mut body = begin(path).await.into_body();
            assert!(body.frame().await.unwrap().is_ok(), "{path}");
            bodies.push(body);
        }
        let user = "/api/v1/north/user/north-office";
        match lost {
            "token" => world.call(&office, "DELETE", "/api/v1/session", &Value::Null).await,
            "role" => world.call(&admin, "PATCH", user, &json!({"role": "device"})).await,
            _ => world.call(&admin, "DELETE", user, &Value::Null).await,
        };
        for mut body in bodies {
            // One part had been made before.
            let last = async {
                while let Some(frame) = body.frame().await {
                    if frame.is_err() {
                        return true;
                    }
                }
                false
            };
            assert!(last.await, "{lost}: it came whole");
        }
        if lost == "role" {
            world.call(&admin, "PATCH", user, &json!({"role": "office"})).await;
        }
    }
}
