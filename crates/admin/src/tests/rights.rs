//! Every operation of the OpenAPI document, asked by every caller: `rights.txt` has what each answer ought to be.
//! `FULMAR_WRITE_RIGHTS=1` writes the file anew, to be read before it is committed.

use std::fmt::Write as _;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::{Api, from_outside};
use crate::LocalCaller;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/rights.txt");

const HEAD: &str = "\
# What each operation of the administration API's OpenAPI document answers to whom; src/tests/rights.rs asks, and compares.
# yes: the caller may do it, and the answer is about what is asked. 401: no valid credentials. 403: the role does not allow it.
# wrong: a token that is unknown, has expired or was revoked. twin: a user of a twin of the platform. cookie: a browser's
# session without its second secret. ended: one whose user was disabled. socket: the one in the data folder.
";

const CALLERS: [&str; 9] =
    ["none", "wrong", "twin", "cookie", "ended", "viewer", "operator", "administrator", "socket"];

/// A browser's session: the cookie and the second secret.
async fn session(api: &Api) -> (String, String) {
    let body = json!({"user": "operator", "password": "right"}).to_string();
    let request = Request::post("/api/admin/v1/session").header("content-type", "application/json");
    let response = api.response(from_outside(request.body(Body::from(body)).unwrap())).await;
    let cookie = response.headers()["set-cookie"].to_str().unwrap();
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let begun: Value = serde_json::from_slice(&body).unwrap();
    (cookie, begun["session"].as_str().unwrap().to_owned())
}

async fn cell(method: &str, path: &str, caller: &str) -> String {
    let api = Api::new();
    // Of each kind of object there is none: an answer about that comes after the right was looked at.
    let mut at = path.replace(['{', '}'], "");
    match path.trim_start_matches("/api/admin/v1") {
        "/explain" => at.push_str("?action=publish&topic=t"),
        "/tap" => at.push_str("?filter=t&for_s=1"),
        "/roles/{name}/rules" => at.push_str("?action=publish&topic=t"),
        _ => {}
    }
    let mut request = Request::builder().method(method).uri(at);
    match caller {
        "cookie" => request = request.header("cookie", session(&api).await.0),
        "ended" => {
            let (cookie, second) = session(&api).await;
            api.revoked.store(true, std::sync::atomic::Ordering::Relaxed);
            request = request.header("cookie", cookie).header("x-fulmar-session", second);
        }
        "none" | "socket" => {}
        "twin" => request = request.header("authorization", "Bearer reader-of-a-twin"),
        token => request = request.header("authorization", format!("Bearer {token}")),
    }
    let body = if path.ends_with("/session") && method == "POST" {
        let login =
            if caller == "wrong" { json!({"token": "wrong"}) } else { json!({"token": "viewer"}) };
        Body::from(login.to_string())
    } else if ["POST", "PUT", "PATCH"].contains(&method) {
        Body::from("{}")
    } else {
        Body::empty()
    };
    let mut request = request.header("content-type", "application/json").body(body).unwrap();
    if caller == "socket" {
        request.extensions_mut().insert(ConnectInfo(LocalCaller { uid: Some(0) }));
    } else {
        request = from_outside(request);
    }
    let status = api.response(request).await.status().as_u16();
    match status {
        401 | 403 => status.to_string(),
        405 | 429 | 500.. => panic!("{method} {path} {caller}: {status}"),
        _ => "yes".to_owned(),
    }
}

#[tokio::test]
async fn everybody_may_what_the_table_says() {
    let document = Api::new().ask("", "GET", "/openapi.json").await.1;
    let mut lines = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys().map(|name| name.to_uppercase()) {
            let mut line = format!("{method:<6} {path:<36}");
            for caller in CALLERS {
                write!(line, " {:>3}", cell(&method, path, caller).await).unwrap();
            }
            lines.push(line);
        }
    }
    let text = format!("{HEAD}# {}\n{}\n", CALLERS.join(" "), lines.join("\n"));
    if std::env::var_os("FULMAR_WRITE_RIGHTS").is_some() {
        std::fs::write(FILE, &text).unwrap();
    }
    let expected = std::fs::read_to_string(FILE).unwrap_or_default();
    let wrong: Vec<&str> =
        text.lines().filter(|line| !expected.lines().any(|other| other == *line)).collect();
    assert!(wrong.is_empty(), "not as in {FILE}:\n{}", wrong.join("\n"));
    assert_eq!(text.lines().count(), expected.lines().count(), "{FILE} has lines that nobody asks");
}
