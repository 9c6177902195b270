//! A platform on a folder of its own, asked as the endpoint would ask it: without sockets. Where
//! FULMAR_TEST_POSTGRES names a server (`make test-postgres`), each has a database of its own there.
#![allow(dead_code, clippy::unwrap_used, reason = "each test program uses a part; tests may panic")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::http::{Request, Response, header};
use fulmar_platform::{
    Admin, Announcement, Database, Platform, Role, Settings, UserToAdd, WebhookAllowlist,
};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tower_service::Service as _;

pub(crate) mod server;

pub(crate) const PASSWORD: &str = "correct horse";

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) etag: Option<String>,
    pub(crate) retry_after: Option<String>,
    pub(crate) kind: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) json: Value,
}

/// A platform with two twins, `north` and `south`, and users of every role in each: `north-reader` …
pub(crate) struct World {
    pub(crate) folder: TempDir,
    pub(crate) database: Database,
    pub(crate) platform: Platform,
    pub(crate) announced: mpsc::Receiver<Announcement>,
    router: axum::Router,
}

/// What worlds are copies of.
struct Template {
    folder: TempDir,
    database: Database,
}

impl World {
    pub(crate) fn new() -> World {
        static TEMPLATE: OnceLock<Template> = OnceLock::new();
        static COPIES: AtomicUsize = AtomicUsize::new(0);
        let template = TEMPLATE.get_or_init(World::template);
        let folder = tempfile::tempdir().unwrap();
        let copy = |name: &str| {
            std::fs::copy(template.folder.path().join(name), folder.path().join(name)).unwrap();
        };
        copy("identities.db");
        let database = if template.database == Database::File {
            copy("platform.db");
            Database::File
        } else {
            let name = server::name(&COPIES.fetch_add(1, Ordering::Relaxed).to_string());
            server::sql(&format!("CREATE DATABASE {name} TEMPLATE {}", server::name("template")));
            server::database(&name).unwrap()
        };
        World::open(folder, database)
    }

    /// Made once a program: hashing passwords takes its time on purpose.
    fn template() -> Template {
        let folder = tempfile::tempdir().unwrap();
        let name = server::name("template");
        let database = match server::database(&name) {
            None => Database::File,
            Some(database) => {
                server::sql(&format!("CREATE DATABASE {name}"));
                database
            }
        };
        let admin = Admin::open(folder.path(), &database).unwrap();
        add(&admin, "root", true, None);
        for twin in ["north", "south"] {
            admin.add_twin(twin, None, false).unwrap();
            for role in Role::ALL {
                add(&admin, &format!("{twin}-{}", role.name()), false, Some((twin, role)));
            }
        }
        Template { folder, database }
    }

    /// What `fulmar user` uses, beside the platform.
    pub(crate) fn admin(&self) -> Admin {
        Admin::open(self.folder.path(), &self.database).unwrap()
    }

    pub(crate) fn open(folder: TempDir, database: Database) -> World {
        World::open_with(folder, database, |_| ())
    }

    fn open_with(folder: TempDir, database: Database, set: impl FnOnce(&mut Settings)) -> World {
        let mut settings = Settings {
            max_requests_per_s: 100_000,
            database: database.clone(),
            webhook_allowlist: WebhookAllowlist::new(&["127.0.0.1"]).unwrap(),
            ..Settings::default()
        };
        set(&mut settings);
        let (platform, announced) = Platform::open(folder.path(), settings).unwrap();
        let router = platform.router();
        World { folder, database, platform, announced, router }
    }

    /// Stops and starts again with other settings.
    pub(crate) fn with_settings(self, set: impl FnOnce(&mut Settings)) -> World {
        self.platform.close();
        World::open_with(self.folder, self.database, set)
    }

    /// Stops and starts again on the same folder.
    pub(crate) fn restart(self) -> World {
        self.platform.close();
        World::open(self.folder, self.database)
    }

    /// What begins to answer a request; its body is not taken yet.
    pub(crate) fn ask(
        &self,
        request: Request<Body>,
    ) -> impl Future<Output = Response<Body>> + Send + 'static {
        let response = self.router.clone().call(request);
        async { response.await.unwrap() }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.ask(request).await;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes().to_vec();
        let text = |name| parts.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        Answer {
            status: parts.status.as_u16(),
            etag: text(header::ETAG),
            retry_after: text(header::RETRY_AFTER),
            kind: text(header::CONTENT_TYPE).unwrap_or_default(),
            json: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
            bytes,
        }
    }

    pub(crate) async fn log_in(&self, user: &str) -> String {
        let body = json!({"user": user, "password": PASSWORD});
        let answer = self.call("", "POST", "/api/v1/session", &body).await;
        assert_eq!(answer.status, 201, "{user}: {}", answer.json);
        answer.json["token"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn call(&self, token: &str, method: &str, path: &str, body: &Value) -> Answer {
        self.call_with(token, method, path, body, &[]).await
    }

    pub(crate) async fn call_with(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: &Value,
        headers: &[(&str, &str)],
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        if !token.is_empty() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = match body {
            Value::Null => Body::empty(),
            body => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Body::from(body.to_string())
            }
        };
        self.send(request.body(body).unwrap()).await
    }

    pub(crate) async fn get(&self, token: &str, path: &str) -> Answer {
        self.call(token, "GET", path, &Value::Null).await
    }

    /// The JSON of a request that must succeed.
    pub(crate) async fn good(&self, token: &str, method: &str, path: &str, body: Value) -> Value {
        let answer = self.call(token, method, path, &body).await;
        assert!(
            (200..300).contains(&answer.status),
            "{method} {path}: {} {}",
            answer.status,
            answer.json
        );
        answer.json
    }
}

fn add(admin: &Admin, name: &str, server_admin: bool, role: Option<(&str, Role)>) {
    let user = UserToAdd { name, display_name: None, server_admin, role };
    admin.add_user(&user, PASSWORD).unwrap();
}

/// A reading to send.
pub(crate) fn reading(id: u128, meter: &str, at: &str, value: f64) -> Value {
    json!({"id": uuid::Uuid::from_u128(id), "meter": meter, "at": at, "value": value, "method": "manual"})
}

/// The time `ahead_s` seconds from now.
pub(crate) fn now(ahead_s: i64) -> String {
    let now = time::OffsetDateTime::now_utc() + time::Duration::seconds(ahead_s);
    let (date, (hour, minute, second)) = (now.date(), now.to_hms());
    format!("{date}T{hour:02}:{minute:02}:{second:02}Z")
}
