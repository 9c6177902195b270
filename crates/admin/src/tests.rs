//! The API over a broker without clients: who may do what, and errors.
#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fulmar_broker::message::{Message, MessageId, MessageParts};
use fulmar_broker::storage::{NoStorage, Restored};
use fulmar_broker::{Broker, BrokerConfig, ClientStatistics, Limits, Timestamp};
use fulmar_http::AnswerSpace;
use fulmar_mqtt::QoS;
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower_service::Service as _;

use crate::store::Store;
use crate::{
    Admin, Administrators, Answer, Credentials, LocalCaller, Login, Principal, Refused, Role,
};

mod rights;
mod web;

/// Tokens are the names of roles; so are users, with a password. Both are valid until they are revoked.
#[derive(Default)]
struct ByRole {
    revoked: Arc<AtomicBool>,
}

impl Administrators for ByRole {
    fn log_in<'a>(&'a self, credentials: Credentials<'a>, _: IpAddr) -> Answer<'a> {
        let role = match credentials {
            Credentials::Password { user: "operator", password: "right" } => Ok(Role::Operator),
            // Its password is hashed for ever.
            Credentials::Password { user: "slow", .. } => return Box::pin(std::future::pending()),
            Credentials::Password { user: "busy", .. } => Err(Refused::TooOften),
            Credentials::Token("viewer") => Ok(Role::Viewer),
            Credentials::Token("operator") => Ok(Role::Operator),
            Credentials::Token("administrator") => Ok(Role::Administrator),
            Credentials::Token("reader-of-a-twin") => Err(Refused::NoRole),
            _ => Err(Refused::Wrong),
        };
        let revoked = Arc::clone(&self.revoked);
        Box::pin(async move {
            let role = role?;
            let principal = Principal { name: role.name().to_owned(), role };
            let holds = move || (!revoked.load(Ordering::Relaxed)).then_some(role);
            Ok(Login { principal, holds: Arc::new(holds) })
        })
    }
}

/// A server without MQTT clients of its own, which counts how often it is looked at.
#[derive(Default)]
struct NoServer {
    looks: Arc<AtomicUsize>,
    copying: Arc<Mutex<Option<std::sync::mpsc::Receiver<()>>>>,
    is_full: Arc<AtomicBool>,
}

impl crate::Server for NoServer {
    fn clear_retained<'a>(&'a self, _: &'a str) -> crate::Later<'a, ()> {
        Box::pin(async { Err("none".to_owned()) })
    }

    fn tap(&self, _: &str, _: usize) -> Result<tokio::sync::mpsc::Receiver<crate::Tapped>, String> {
        Ok(tokio::sync::mpsc::channel(1).1)
    }

    fn log_filter(&self) -> Option<String> {
        Some("info".to_owned())
    }

    fn set_log_filter(&self, filter: &str) -> Result<(), String> {
        if filter == "loud" { Err("no such level".to_owned()) } else { Ok(()) }
    }

    fn room_for_copies(&self) -> Result<(), String> {
        if self.is_full.load(Ordering::Relaxed) {
            Err("the disk is full".to_owned())
        } else {
            Ok(())
        }
    }

    /// Takes as long as the test wants it to.
    fn copy_to(&self, folder: &std::path::Path) -> Result<Vec<String>, String> {
        std::fs::write(folder.join("copy"), "whole").map_err(|error| error.to_string())?;
        let wait = self.copying.lock().take();
        wait.map_or(Ok(()), |wait| wait.recv()).map_err(|error| error.to_string())?;
        Ok(Vec::new())
    }

    fn state(&self) -> crate::ServerState {
        self.looks.fetch_add(1, Ordering::Relaxed);
        crate::ServerState::default()
    }

    fn admits_anonymous(&self) -> bool {
        true
    }

    fn place_of_rule(&self, number: usize) -> String {
        number.to_string()
    }
}

struct Api {
    admin: Admin,
    revoked: Arc<AtomicBool>,
    looks: Arc<AtomicUsize>,
    /// What the next copy of a backup waits for.
    copying: Arc<Mutex<Option<std::sync::mpsc::Receiver<()>>>>,
    is_full: Arc<AtomicBool>,
    /// The data folder.
    folder: tempfile::TempDir,
}

impl Api {
    fn new() -> Api {
        Api::with(Restored::default())
    }

    fn with(restored: Restored) -> Api {
        Api::with_answers(restored, AnswerSpace::new(usize::MAX))
    }

    fn with_answers(restored: Restored, answers: AnswerSpace) -> Api {
        let config = BrokerConfig {
            workers: 1,
            limits: Limits::default(),
            access_control: fulmar_broker::auth::AccessControl::default(),
            sys_interval_s: 0,
            client_statistics: ClientStatistics::Nobody,
            internal_sessions: Vec::new(),
        };
        let broker = Broker::new(config, Arc::new(NoStorage), restored, Timestamp(1));
        let (administrators, server) = (ByRole::default(), NoServer::default());
        let (revoked, looks) = (Arc::clone(&administrators.revoked), Arc::clone(&server.looks));
        let (administrators, server) = (Arc::new(administrators), Arc::new(server));
        let (copying, is_full) = (Arc::clone(&server.copying), Arc::clone(&server.is_full));
        let folder = tempfile::tempdir().unwrap();
        for inner in [".backup-of-a-crash/inner", "backup-of-the-operator"] {
            std::fs::create_dir_all(folder.path().join(inner)).unwrap();
        }
        let data = folder.path().to_owned();
        let file = folder.path().join("identities.db");
        let identities =
            Arc::new(fulmar_identity::Identities::open(&file, Box::new(|_, _, _| {})).unwrap());
        let settings = crate::Settings {
            broker,
            administrators,
            identities,
            server,
            answers,
            data,
            version: "1.2.3",
            open_overview: true,
        };
        let admin = Admin::open(settings, Store::in_memory());
        Api { admin, revoked, looks, copying, is_full, folder }
    }

    async fn response(&self, request: Request<Body>) -> Response<Body> {
        self.admin.router().call(request).await.unwrap()
    }

    /// Status and body for a caller with this token.
    async fn ask(&self, token: &str, method: &str, path: &str) -> (u16, Value) {
        let mut request = Request::builder().method(method).uri(format!("/api/admin/v1{path}"));
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let response = self.response(from_outside(request.body(Body::empty()).unwrap())).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }
}

/// What a broker retains that had messages of this size on these topics.
fn retaining(topics: impl IntoIterator<Item = String>, size: usize) -> Restored {
    let payload = vec![b'x'; size];
    let message = |(number, topic): (u64, String)| {
        let parts = MessageParts {
            topic: &topic,
            qos: QoS::AtLeastOnce,
            retain: true,
            properties: &[],
            payload: &payload,
            expires_at: None,
            publisher: 0,
        };
        Message::new(MessageId(number), &parts)
    };
    let retained = (1..).zip(topics).map(message).collect();
    Restored { retained, ..Restored::default() }
}

/// The request, from an address.
fn from_outside(mut request: Request<Body>) -> Request<Body> {
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 5))));
    request
}

#[tokio::test]
async fn each_role_includes_those_below_it() {
    let api = Api::new();
    for (token, list, disconnect) in [
        ("", 401, 401),
        ("wrong", 401, 401),
        ("reader-of-a-twin", 403, 403),
        ("viewer", 200, 403),
        ("operator", 200, 404),
        ("administrator", 200, 404),
    ] {
        assert_eq!(api.ask(token, "GET", "/clients").await.0, list, "{token}");
        assert_eq!(api.ask(token, "DELETE", "/clients/x").await.0, disconnect, "{token}");
    }
    let (_, problem) = api.ask("viewer", "DELETE", "/clients/x").await;
    assert_eq!(
        problem["detail"],
        "requires the role operator; yours is viewer, which an administrator can change"
    );
    assert_eq!(api.ask("viewer", "GET", "/me").await.1["role"], "viewer");
}

#[tokio::test]
async fn the_socket_makes_an_administrator_and_a_header_does_not() {
    let api = Api::new();
    let request = || Request::builder().uri("/api/admin/v1/me");
    let mut local = request().body(Body::empty()).unwrap();
    local.extensions_mut().insert(ConnectInfo(LocalCaller { uid: Some(0) }));
    assert_eq!(api.response(local).await.status(), 200);
    let header = request().header("x-local", "0").body(Body::empty()).unwrap();
    assert_eq!(api.response(header).await.status(), 401);
}

#[tokio::test]
async fn failed_logins_and_requests_are_limited() {
    let api = Api::new();
    let mut refused = Vec::new();
    for _ in 0..11 {
        refused.push(api.ask("wrong", "GET", "/me").await.0);
    }
    assert_eq!((refused[9], refused[10]), (401, 429));
    // Of that address alone, with right credentials too: guessing stops there.
    assert_eq!(api.ask("viewer", "GET", "/me").await.0, 429);
    let api = Api::new();
    let mut asked = 0;
    while api.ask("viewer", "GET", "/me").await.0 == 200 {
        asked += 1;
        assert!(asked < 100_000, "no limit");
    }
    assert!(asked >= 200, "{asked}");
    assert_eq!(api.ask("operator", "GET", "/me").await.0, 200);
}

#[tokio::test]
async fn an_aborted_login_counts_as_a_failed_one() {
    let api = Api::new();
    let log_in = |user: &str| {
        let request = Request::builder().uri("/api/admin/v1/me");
        let basic = STANDARD.encode(format!("{user}:guess"));
        let request = request.header("authorization", format!("Basic {basic}"));
        api.response(from_outside(request.body(Body::empty()).unwrap()))
    };
    // A busy server is nobody's fault.
    for _ in 0..20 {
        assert_eq!(log_in("busy").await.status(), 429);
    }
    for _ in 0..10 {
        assert_eq!(api.ask("viewer", "GET", "/me").await.0, 200);
        assert!(log_in("slow").now_or_never().is_none(), "it waits for its hash");
    }
    assert_eq!(api.ask("viewer", "GET", "/me").await.0, 429);
}

#[tokio::test]
async fn errors_are_problems_and_nothing_is_cached() {
    let api = Api::new();
    for (method, path, status) in [
        ("GET", "/nothing", 404),
        ("PATCH", "/clients", 405),
        ("GET", "/clients?limit=0", 422),
        ("GET", "/clients?limt=5", 400),
        ("GET", "/clients?cursor=x", 400),
    ] {
        let (got, problem) = api.ask("viewer", method, path).await;
        assert_eq!((got, &problem["status"]), (status, &status.into()), "{method} {path}");
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.len() > 10), "{problem}");
    }
    let request = Request::builder().uri("/api/admin/v1/me").body(Body::empty()).unwrap();
    let response = api.response(request).await;
    assert_eq!(response.headers()["cache-control"], "no-store");
    assert!(response.headers()["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
}

#[tokio::test]
async fn the_document_has_every_path_with_its_problems() {
    let (status, document) = Api::new().ask("", "GET", "/openapi.json").await;
    assert_eq!(status, 200);
    let disconnect = &document["paths"]["/api/admin/v1/clients/{client}"]["delete"];
    assert_eq!(disconnect["operationId"], "disconnect_clients_client");
    assert!(
        disconnect["responses"]["403"].is_object() && disconnect["responses"]["204"].is_object()
    );
}

#[tokio::test]
async fn responses_share_the_document() {
    let mut router = Api::new().admin.router();
    let mut documents = Vec::new();
    for _ in 0..2 {
        let request = Request::builder().uri("/api/admin/v1/openapi.json");
        let response = router.call(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.headers()["content-type"], "application/json");
        documents.push(response.into_body().collect().await.unwrap().to_bytes());
    }
    assert!(documents[0].len() > 1000);
    assert_eq!(documents[0].as_ptr(), documents[1].as_ptr());
}

#[tokio::test]
async fn the_last_administrator_stays_and_secrets_are_in_no_log() {
    let api = Api::new();
    let send = |method: &'static str, path: &str, body: &str| {
        let request = Request::builder().method(method).uri(format!("/api/admin/v1{path}"));
        let request = request.header("authorization", "Bearer administrator");
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let api = &api;
        async move {
            let response = api.response(request).await;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            (status, serde_json::from_slice::<Value>(&body).unwrap_or_default())
        }
    };
    let ann = r#"{"name":"ann","password":"correct horse","administration":"administrator"}"#;
    assert_eq!(send("POST", "/users", ann).await.0, 201);
    assert_eq!(send("POST", "/users", ann).await.0, 409);
    for (method, body) in
        [("DELETE", ""), ("PATCH", r#"{"administration":null}"#), ("PATCH", r#"{"disabled":true}"#)]
    {
        let (status, problem) = send(method, "/users/ann", body).await;
        let detail = problem["detail"].as_str().unwrap_or_default().to_owned();
        assert!(
            status == 409 && detail.contains("first make another"),
            "{method} {body}: {status} {problem}"
        );
    }
    let bob = r#"{"name":"bob","password":"battery staple","administration":"viewer"}"#;
    assert_eq!(send("POST", "/users", bob).await.0, 201);
    assert_eq!(send("PATCH", "/users/bob", r#"{"administration":null}"#).await.0, 204);
    let (_, page) = send("GET", "/users?limit=1", "").await;
    assert_eq!((&page["users"][0]["name"], &page["next"]), (&"ann".into(), &"ann".into()));
    let (_, page) = send("GET", "/users?cursor=ann", "").await;
    assert_eq!(
        (&page["users"][0]["name"], page["users"][0].get("administration")),
        (&"bob".into(), None)
    );
    let (status, made) =
        send("POST", "/tokens", r#"{"name":"grafana","role":"viewer","for_s":60}"#).await;
    let token = made["token"].as_str().unwrap().to_owned();
    assert_eq!((status, token.starts_with("fulmarapi_")), (201, true));
    assert_eq!(send("POST", "/users", r#"{"name":"eve","password":"short"}"#).await.0, 422);
    let (_, log) = send("GET", "/audit", "").await;
    let text = log.to_string();
    assert!(text.contains("token.add") && text.contains("first make another"), "{text}");
    for secret in ["correct horse", "battery staple", &token] {
        assert!(!text.contains(secret), "{text}");
    }
    assert_eq!(send("DELETE", "/tokens/grafana", "").await.0, 204);
    assert_eq!(send("DELETE", "/tokens/grafana", "").await.0, 404);
}

#[tokio::test]
async fn groups_and_roles_change_with_values_before_and_after_and_nobody_locks_everybody_out() {
    let api = Api::new();
    let send = |method: &'static str, path: &str, body: Value| {
        let request = Request::builder().method(method).uri(format!("/api/admin/v1{path}"));
        let request = request.header("authorization", "Bearer administrator");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = request.body(Body::from(body)).unwrap();
        let api = &api;
        async move {
            let response = api.response(request).await;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            (status, serde_json::from_slice::<Value>(&body).unwrap_or_default())
        }
    };
    let rule =
        |action: &str, topic: &str| json!({ "action": action, "topic": topic, "allow": true });
    let control = rule("publish", "$CONTROL/#");
    for (method, path, body, status) in [
        ("POST", "/roles", json!({ "name": "sensor" }), 201),
        ("POST", "/roles", json!({ "name": "sensor" }), 409),
        ("POST", "/roles/sensor/rules", rule("publish", "s/%u/#"), 201),
        ("POST", "/roles/sensor/rules", rule("publish", "s/%u/#"), 409),
        ("POST", "/roles/sensor/rules", rule("publish", "s/#/x"), 422),
        ("POST", "/roles/sensor/rules", rule("fly", "s/#"), 400),
        ("POST", "/roles/none/rules", rule("publish", "s/#"), 404),
        ("POST", "/roles", json!({ "name": "control", "rules": [control] }), 201),
        ("POST", "/groups", json!({ "name": "sensors", "roles": ["sensor"] }), 201),
        ("POST", "/groups", json!({ "name": "other", "roles": ["none"] }), 404),
        ("POST", "/users", json!({ "name": "s1", "groups": ["none"] }), 404),
        ("POST", "/users", json!({ "name": "s1", "groups": ["sensors"] }), 201),
        (
            "POST",
            "/users",
            json!({ "name": "ann", "password": "correct horse", "roles": ["control"] }),
            201,
        ),
        // Nobody else may change the store over MQTT.
        ("DELETE", "/roles/control", Value::Null, 409),
        ("DELETE", "/roles/control/rules?action=publish&topic=%24CONTROL%2F%23", Value::Null, 409),
        ("PATCH", "/users/ann", json!({ "roles": [] }), 409),
        ("PATCH", "/groups/sensors", json!({ "members": ["ann", "s1"] }), 204),
        ("PATCH", "/groups/sensors", json!({ "members": ["nobody"] }), 404),
        ("PATCH", "/users/s1", json!({ "roles": ["sensor"], "client_id": "d1" }), 204),
        ("DELETE", "/roles/sensor/rules?action=receive&topic=s", Value::Null, 404),
    ] {
        let (got, problem) = send(method, path, body).await;
        assert_eq!(got, status, "{method} {path}: {problem}");
        assert!(
            got < 300 || problem["detail"].as_str().is_some_and(|detail| detail.len() > 10),
            "{problem}"
        );
    }
    let get = |path: &'static str| send("GET", path, Value::Null);
    assert_eq!(get("/groups/sensors").await.1["members"], json!(["ann", "s1"]));
    assert_eq!(get("/groups").await.1["groups"][0]["size"], 2);
    assert_eq!(get("/roles/sensor").await.1["rules"][0]["topic"], "s/%u/#");
    assert_eq!(get("/roles?limit=1").await.1["next"], "control");
    let s1 = get("/users/s1").await.1;
    assert_eq!((&s1["client_id"], &s1["roles"]), (&"d1".into(), &json!(["sensor"])));
    let (_, log) = get("/audit").await;
    let entries = log["entries"].as_array().unwrap();
    let change = entries.iter().find(|one| one["action"] == "user.change" && one["result"] == "ok");
    let detail: Value = serde_json::from_str(change.unwrap()["detail"].as_str().unwrap()).unwrap();
    assert_eq!(detail["before"]["roles"], json!([]));
    assert_eq!(detail["after"], json!({ "roles": ["sensor"], "client_id": "d1" }));
    assert!(!log.to_string().contains("correct horse"), "{log}");
    for (path, left) in [("/groups/sensors", "/users/s1"), ("/roles/sensor", "/users/s1")] {
        assert_eq!(send("DELETE", path, Value::Null).await.0, 204);
        assert_eq!(send("GET", left, Value::Null).await.0, 200);
    }
    let s1 = get("/users/s1").await.1;
    assert_eq!((&s1["groups"], &s1["roles"]), (&json!([]), &json!([])));
}

/// All pages of a list, each with its bytes and the values of this field.
async fn pages(api: &Api, path: &str, name: &str, field: &str) -> Vec<(usize, Vec<String>)> {
    let (mut pages, mut cursor) = (Vec::new(), String::new());
    loop {
        let (status, page) = api.ask("viewer", "GET", &format!("{path}?limit=1000{cursor}")).await;
        assert_eq!(status, 200, "{page}");
        let items = page[name].as_array().unwrap().iter();
        let values = items.map(|item| item[field].as_str().unwrap().to_owned());
        pages.push((page.to_string().len(), values.collect()));
        assert!(pages.len() < 100, "no end");
        let Some(next) = page["next"].as_str() else { return pages };
        assert!(next.len() < 2_000, "too long for an address: {} bytes", next.len());
        let encoded: String = next.bytes().map(|byte| format!("%{byte:02x}")).collect();
        cursor = format!("&cursor={encoded}");
    }
}

#[tokio::test]
async fn pages_of_long_topics_are_small_and_have_all_of_them() {
    let topic = |number: usize| {
        let rest = "t".repeat(60_000);
        // Some have nothing in common, most differ at their end only, and some are levels below one.
        match number % 4 {
            0 => format!("{number}{rest}"),
            1 => format!("{rest}/{number:02}"),
            _ => format!("{rest}{number:02}"),
        }
    };
    let mut topics: Vec<String> = (0..40).map(topic).chain(["z".to_owned()]).collect();
    let api = Api::with(retaining(topics.clone(), 3));
    topics.sort_unstable();
    let found = pages(&api, "/retained", "messages", "topic").await;
    assert!(found.len() > 5 && found.iter().all(|(bytes, _)| *bytes < 320_000), "{}", found.len());
    assert_eq!(found.into_iter().flat_map(|(_, topics)| topics).collect::<Vec<_>>(), topics);
    let found = pages(&api, "/topics", "levels", "topic").await;
    // A level is in an answer twice: alone, and as a topic.
    assert!(found.len() > 5 && found.iter().all(|(bytes, _)| *bytes < 400_000), "{}", found.len());
    let mut levels: Vec<_> = topics.iter().map(|topic| topic.split('/').next().unwrap()).collect();
    levels.dedup();
    assert_eq!(found.into_iter().flat_map(|(_, topics)| topics).collect::<Vec<_>>(), levels);
}

#[tokio::test]
async fn answers_that_nobody_takes_are_counted_for_their_caller() {
    let answers = AnswerSpace::new(8_000_000);
    let retained = retaining(["t".to_owned()], 1_000_000);
    let api = Api::with_answers(retained, answers.clone());
    let get = |token: &str| {
        let request = Request::builder().uri("/api/admin/v1/retained/t");
        let request = request.header("authorization", format!("Bearer {token}"));
        api.response(from_outside(request.body(Body::empty()).unwrap()))
    };
    let mut unread = Vec::new();
    let refused = loop {
        let response = get("operator").await;
        if response.status() != 200 {
            break response;
        }
        unread.push(response);
        assert!(unread.len() < 100, "no end");
    };
    assert_eq!((refused.status().as_u16(), unread.len()), (503, 4));
    assert_eq!(refused.headers()["retry-after"], "1");
    let problem = refused.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&problem).contains("have not been taken"), "{problem:?}");
    // What is small needs no room, and others have theirs.
    assert_eq!(api.ask("operator", "GET", "/me").await.0, 200);
    assert_eq!(get("administrator").await.status(), 200);
    drop(unread);
    assert_eq!((answers.totals().used, get("operator").await.status().as_u16()), (0, 200));
}

#[tokio::test]
async fn copies_that_a_crash_has_left_are_removed() {
    let api = Api::new();
    assert!(!api.folder.path().join(".backup-of-a-crash").exists());
    assert!(api.folder.path().join("backup-of-the-operator").exists());
}

#[tokio::test]
async fn a_backup_for_which_the_disk_has_no_room_is_refused() {
    let api = Api::new();
    api.is_full.store(true, Ordering::Relaxed);
    let (status, problem) = api.ask("administrator", "GET", "/backup").await;
    assert_eq!((status, &problem["detail"]), (507, &"no backup was made: the disk is full".into()));
    api.is_full.store(false, Ordering::Relaxed);
    assert_eq!(api.ask("administrator", "GET", "/backup").await.0, 200);
}

#[tokio::test]
async fn there_is_one_copy_at_a_time_although_its_request_is_cancelled() {
    let api = Api::new();
    let (end, ended) = std::sync::mpsc::channel();
    *api.copying.lock() = Some(ended);
    let cancelled = {
        let mut request = Box::pin(api.ask("administrator", "GET", "/backup"));
        let deadline = Instant::now() + Duration::from_secs(60);
        while api.copying.lock().is_some() {
            assert!(Instant::now() < deadline, "no copy");
            assert!(request.as_mut().now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        request
    };
    drop(cancelled);
    let (status, problem) = api.ask("administrator", "GET", "/backup").await;
    assert_eq!(status, 429, "{problem}");
    end.send(()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while api.ask("administrator", "GET", "/backup").await.0 != 200 {
        assert!(Instant::now() < deadline, "no further backup");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn of_many_changes_of_the_log_one_is_remembered() {
    let api = Api::new();
    let change = |filter: &str| {
        let request = Request::builder().method("PUT").uri("/api/admin/v1/log");
        let request = request.header("authorization", "Bearer operator");
        let body = json!({ "filter": filter, "for_s": 86_400 }).to_string();
        api.response(from_outside(request.body(Body::from(body)).unwrap()))
    };
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for _ in 0..100 {
        assert_eq!(change("debug").await.status(), 200);
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while tasks() > before + 1 {
        assert!(Instant::now() < deadline, "{} tasks wait", tasks());
        tokio::task::yield_now().await;
    }
    assert_eq!(tasks(), before + 1, "the log returns to what it was");
    assert_eq!(change(&"debug,".repeat(1000)).await.status(), 422);
}

#[tokio::test]
async fn operators_see_no_users_and_viewers_no_messages() {
    let api = Api::new();
    for path in ["/users", "/groups", "/roles", "/tokens", "/audit", "/backup"] {
        assert_eq!(api.ask("operator", "GET", path).await.0, 403, "{path}");
    }
    for path in ["/retained/a", "/tap?filter=a"] {
        assert_eq!(api.ask("viewer", "GET", path).await.0, 403, "{path}");
    }
    assert_eq!(
        api.ask("viewer", "GET", "/explain?action=publish&topic=a").await.1["allowed"],
        true
    );
}
