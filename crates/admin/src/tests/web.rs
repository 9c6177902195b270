//! What the broker's page uses: a browser's session, and an overview that many may look at.

use super::*;

/// A browser's request.
struct Browser<'a> {
    api: &'a Api,
    cookie: String,
    session: String,
}

impl Browser<'_> {
    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response<Body> {
        let mut request = Request::builder().method(method).uri(format!("/api/admin/v1{path}"));
        request = request.header("host", "broker.example:8443");
        if !self.cookie.is_empty() {
            request = request.header("cookie", format!("other=1; {}", self.cookie));
        }
        if !self.session.is_empty() {
            request = request.header("x-fulmar-session", &self.session);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.api.response(request.body(Body::from(body.to_owned())).unwrap()).await
    }

    async fn get(&self, path: &str) -> u16 {
        self.send("GET", path, &[("sec-fetch-site", "same-origin")], "").await.status().as_u16()
    }
}

const JSON: (&str, &str) = ("content-type", "application/json");
const RIGHT: &str = r#"{"user":"operator","password":"right"}"#;

async fn log_in(api: &Api) -> Browser<'_> {
    let browser = Browser { api, cookie: String::new(), session: String::new() };
    let response = browser.send("POST", "/session", &[JSON], RIGHT).await;
    assert_eq!(response.status(), 201);
    let cookie = response.headers()["set-cookie"].to_str().unwrap().to_owned();
    for attribute in ["__Host-fulmar-8443=", "Secure", "HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let begun: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&begun["name"], &begun["role"]), (&"operator".into(), &"operator".into()));
    let cookie = cookie.split(';').next().unwrap().to_owned();
    assert!(!body.windows(20).any(|part| cookie.as_bytes().ends_with(part)), "scripts see it");
    Browser { cookie, session: begun["session"].as_str().unwrap().to_owned(), ..browser }
}

#[tokio::test]
async fn a_body_that_comes_after_its_session_has_ended_changes_nothing() {
    let api = Api::new();
    let browser = log_in(&api).await;
    let (go_on, told) = tokio::sync::oneshot::channel::<()>();
    let body = futures_util::stream::once(async move {
        told.await.unwrap();
        Ok::<_, std::convert::Infallible>(r#"{"filter":"debug","for_s":60}"#)
    });
    let request = Request::builder().method("PUT").uri("/api/admin/v1/log");
    let request = request.header("host", "broker.example:8443").header("cookie", &browser.cookie);
    let request = request.header("x-fulmar-session", &browser.session);
    let change = api.admin.router().call(request.body(Body::from_stream(body)).unwrap());
    let change = tokio::spawn(change);
    tokio::task::yield_now().await;
    let ended = browser.send("DELETE", "/session", &[("sec-fetch-site", "same-origin")], "").await;
    assert_eq!(ended.status(), 204);
    go_on.send(()).unwrap();
    assert_eq!(change.await.unwrap().unwrap().status(), 401);
}

#[tokio::test]
async fn a_session_needs_its_cookie_and_the_secret_of_the_page() {
    let api = Api::new();
    let browser = log_in(&api).await;
    assert_eq!(browser.get("/me").await, 200);
    assert_eq!(browser.send("DELETE", "/clients/x", &[], "").await.status(), 404);
    assert_eq!(browser.get("/users").await, 403);
    let cookie_alone =
        Browser { session: String::new(), cookie: browser.cookie.clone(), ..browser };
    assert_eq!(cookie_alone.get("/me").await, 401);
    let page_alone = Browser { cookie: String::new(), session: browser.session.clone(), ..browser };
    assert_eq!(page_alone.get("/me").await, 401);
    let other = log_in(&api).await;
    let mixed = Browser { cookie: other.cookie.clone(), session: browser.session.clone(), ..other };
    assert_eq!(mixed.get("/me").await, 401);
    // None of this ends it, nor does it count as guessing.
    for _ in 0..20 {
        assert_eq!(cookie_alone.get("/me").await, 401);
    }
    assert_eq!(browser.get("/me").await, 200);
    let ended = browser.send("DELETE", "/session", &[], "").await;
    assert_eq!(ended.status(), 204);
    assert!(ended.headers()["set-cookie"].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(browser.get("/me").await, 401);
}

#[tokio::test]
async fn pages_of_other_origins_cannot_use_or_begin_a_session() {
    let api = Api::new();
    let browser = log_in(&api).await;
    for site in ["cross-site", "same-site"] {
        let headers = [("sec-fetch-site", site), JSON];
        assert_eq!(browser.send("GET", "/me", &headers, "").await.status(), 403, "{site}");
        assert_eq!(browser.send("POST", "/session", &headers, RIGHT).await.status(), 403, "{site}");
    }
    // What a form can send.
    let form = [("content-type", "text/plain")];
    assert_eq!(browser.send("POST", "/session", &form, RIGHT).await.status(), 400);
}

#[tokio::test]
async fn a_session_ends_with_what_it_began_with() {
    let api = Api::new();
    let browser = log_in(&api).await;
    assert_eq!(browser.get("/me").await, 200);
    api.revoked.store(true, Ordering::Relaxed);
    assert_eq!(browser.get("/me").await, 401);
    api.revoked.store(false, Ordering::Relaxed);
    assert_eq!(browser.get("/me").await, 401);
}

#[tokio::test]
async fn wrong_passwords_of_pages_count_as_failed_logins() {
    let api = Api::new();
    let browser = Browser { api: &api, cookie: String::new(), session: String::new() };
    let wrong = r#"{"user":"operator","password":"wrong"}"#;
    let mut refused = Vec::new();
    for _ in 0..11 {
        refused.push(browser.send("POST", "/session", &[JSON], wrong).await.status().as_u16());
    }
    assert_eq!((refused[9], refused[10]), (401, 429));
    for body in ["{}", r#"{"user":"operator"}"#, r#"{"token":"viewer","user":"a","password":"b"}"#]
    {
        assert_eq!(browser.send("POST", "/session", &[JSON], body).await.status(), 400, "{body}");
    }
}

#[tokio::test]
async fn many_who_look_cost_as_much_as_one() {
    let api = Api::new();
    for token in ["viewer", "operator", "administrator"] {
        for _ in 0..50 {
            let (status, overview) = api.ask(token, "GET", "/overview").await;
            assert_eq!((status, &overview["version"]), (200, &"1.2.3".into()));
            assert!(
                overview["quality"]["transports"].is_array()
                    && overview["memory"][0]["limit_bytes"].is_u64()
            );
        }
    }
    let looks = api.looks.load(Ordering::Relaxed);
    assert!(looks < 75, "150 requests computed {looks} overviews");
    assert_eq!(api.ask("viewer", "GET", "/history").await.0, 200);
    assert_eq!(api.ask("viewer", "GET", "/topics").await.1["levels"], serde_json::json!([]));
}
