//! Every operation of the OpenAPI document, asked by every caller about every kind of object: `rights.txt` has what each
//! answer ought to be. `FULMAR_WRITE_RIGHTS=1` writes the file anew, to be read before it is committed.
#![allow(clippy::unwrap_used)]

mod common;

use std::fmt::Write as _;
use std::sync::atomic::{AtomicI64, Ordering};

use axum::body::Body;
use axum::http::Request;
use common::{PASSWORD, World, now};
use fulmar_platform::{AdminAnswer, AdminCommand, Role, UserToAdd};
use serde_json::{Value, json};
use uuid::Uuid;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rights.txt");

const HEAD: &str = "\
# What each operation of the platform's OpenAPI document answers to whom; tests/rights.rs asks, and compares.
# yes: done. Otherwise the status: 401 no valid token, 403 the role or the owner does not allow it, 404 hidden or not there.
# The twin is `north`. none to removed: no token, and tokens that were given back, have expired, or are of a removed account.
# root: the server's admin. Then the roles in `north`, and behind the line those in another twin, to whom `north` does not
# exist. Objects: the caller's own; another user's; name: of another account that has registered nothing; nobody's.
";

/// Callers by account; those of another twin come last.
const CALLERS: [&str; 15] = [
    "none",
    "ended",
    "expired",
    "removed",
    "root",
    "north-admin",
    "north-office",
    "north-reader",
    "north-device",
    "north-viewer",
    "south-admin",
    "south-office",
    "south-reader",
    "south-device",
    "south-viewer",
];
/// Paths of the document that the program around the platform serves, to everybody.
const ELSEWHERE: [&str; 2] = ["/api/v1/config", "/api/v1/status"];
/// Has what is another's.
const OTHER: &str = "north-other";
/// Has registered nothing.
const SILENT: &str = "north-silent";

/// The kinds of objects that an operation is asked about.
fn objects(method: &str, path: &str) -> &'static [&'static str] {
    match (method, path) {
        (_, "frame") => &["own", "another's", "name", "nobody's"],
        ("PUT", "instance/{device}") => &["own", "another's", "name", "nobody's"],
        (_, path) if path.starts_with("instance/") => &["own", "another's", "name"],
        ("PATCH", "work_list/{id}") => {
            &["own", "another's", "nobody's", "own name", "own assignee"]
        }
        (_, "work_list/{id}") => &["own", "another's", "nobody's"],
        (_, "user/{name}") => &["own", "another's"],
        ("GET", "photo/{id}" | "reading/{id}") | (_, "reading/{id}") => &["own", "another's"],
        ("PUT", "photo/{id}") => &["new", "another's"],
        _ => &["-"],
    }
}

/// A platform with objects, and everybody's tokens.
struct Table {
    world: World,
    /// Another token of the server's admin, who makes what is asked about.
    maker: String,
    tokens: Vec<(&'static str, String)>,
}

/// What is asked.
struct Asked {
    path: String,
    body: Value,
}

impl Table {
    async fn new() -> Table {
        let world = World::new();
        let mut table = Table { tokens: Vec::new(), maker: String::new(), world };
        table.maker = table.new_token("root", None);
        for (name, role) in [(OTHER, Role::Reader), (SILENT, Role::Device), ("gone", Role::Admin)] {
            table.account(name, role);
        }
        let mut tokens = Vec::new();
        for caller in CALLERS {
            tokens.push((caller, table.token_of(caller).await));
        }
        let table = Table { tokens, ..table };
        table.furnish().await;
        table
    }

    fn account(&self, name: &str, role: Role) {
        let user = UserToAdd {
            name,
            display_name: None,
            server_admin: false,
            role: Some(("north", role)),
        };
        self.world.admin().add_device(&user).unwrap();
    }

    fn new_token(&self, user: &str, others_end_in_ms: Option<u64>) -> String {
        let command = AdminCommand::AddToken { user: user.to_owned(), others_end_in_ms };
        match self.world.platform.administer(&command).unwrap() {
            AdminAnswer::Token(token) => token,
            other => panic!("{other:?}"),
        }
    }

    async fn token_of(&self, caller: &str) -> String {
        match caller {
            "none" => String::new(),
            "ended" => {
                let token = self.new_token("north-admin", None);
                self.world.good(&token, "DELETE", "/api/v1/session", Value::Null).await;
                token
            }
            "expired" => {
                let token = self.new_token("north-admin", None);
                self.new_token("north-admin", Some(0));
                token
            }
            "removed" => {
                let token = self.new_token("gone", None);
                let remove = AdminCommand::RemoveUser { user: "gone".to_owned() };
                self.world.platform.administer(&remove).unwrap();
                token
            }
            user => self.new_token(user, None),
        }
    }

    fn token(&self, caller: &str) -> &str {
        &self.tokens.iter().find(|(name, _)| *name == caller).unwrap().1
    }

    /// The server's admin does this, if it is not done already.
    async fn make(&self, method: &str, path: &str, body: Value) -> Value {
        let path = format!("/api/v1/north/{path}");
        let answer = self.world.call(&self.maker, method, &path, &body).await;
        assert!(answer.status < 300 || answer.status == 409, "{path}: {}", answer.json);
        answer.json
    }

    /// What all operations need.
    async fn furnish(&self) {
        self.make("POST", "meter", json!({"id": "m1", "medium": "water"})).await;
        self.make("POST", "home", json!({"id": "h1", "name": "Home"})).await;
        self.make("PUT", "sensor/s1", json!({"home": "h1"})).await;
        let rule =
            json!({"id": "r1", "name": "n", "severity": "info", "quantity": "co2", "above": 5});
        self.make("POST", "alert_rule", rule).await;
        let item =
            json!({"device": "s1", "quantity": "co2", "at": now(-60), "value": 10, "unit": "ppm"});
        self.make("POST", "measurement", json!({ "items": [item] })).await;
        if self.make("GET", "webhook", Value::Null).await["items"] == json!([]) {
            let hook = json!({"url": "https://example.org/x", "secret": "12345678"});
            self.make("POST", "webhook", hook).await;
        }
    }

    /// The account whose object it is.
    fn owner<'a>(object: &str, caller: &'a str) -> &'a str {
        let has_account = caller.starts_with("north-") || caller == "root";
        if object.starts_with("own") && has_account { caller } else { OTHER }
    }

    /// A device of this kind: an account's is called as the account, and the office registers it.
    async fn device(&self, object: &str, caller: &str) -> String {
        match object {
            "name" => return SILENT.to_owned(),
            "nobody's" => return format!("new-{caller}"),
            _ => {}
        }
        let owner = Table::owner(object, caller).to_owned();
        let shown = self.make("PUT", &format!("instance/{owner}"), json!({"kind": "van"})).await;
        assert_eq!(shown["user"], owner);
        owner
    }

    async fn work_list(&self, object: &str, caller: &str) -> String {
        let mut list = json!({"name": "n", "meters": ["m1"]});
        if object != "nobody's" {
            list["assignee"] = json!(Table::owner(object, caller));
        }
        let made = self.make("POST", "work_list", list).await;
        made["id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    }

    /// Sent by its owner if that may send readings, and otherwise by the server's admin.
    async fn reading(&self, owner: &str, list: Option<&str>, value: f64) -> String {
        static SENT: AtomicI64 = AtomicI64::new(600);
        let id = Uuid::new_v4();
        // However slow the test is, no two have the same time: they would be one reading.
        let at = now(-SENT.fetch_add(1000, Ordering::Relaxed));
        let mut item = json!({"id": id, "meter": "m1", "at": at, "value": value, "method": "manual",
            "device": format!("phone-{value}")});
        if let Some(list) = list {
            item["work_list"] = json!(list);
        }
        let senders = ["north-admin", "north-office", "north-reader"];
        let sender = if senders.contains(&owner) { self.token(owner) } else { &self.maker };
        let body = json!({ "items": [item] });
        let sent = self.world.good(sender, "POST", "/api/v1/north/reading", body).await;
        assert!(
            ["stored", "conflict"].contains(&sent["results"][0]["status"].as_str().unwrap()),
            "{sent}"
        );
        id.to_string()
    }

    async fn put_photo(&self, token: &str, path: &str, last: u8) -> u16 {
        let request = Request::put(path).header("content-type", "image/jpeg");
        let request = if token.is_empty() {
            request
        } else {
            request.header("authorization", format!("Bearer {token}"))
        };
        self.world
            .send(request.body(Body::from(vec![0xFF, 0xD8, 0xFF, last])).unwrap())
            .await
            .status
    }

    async fn photo(&self, owner: &str) -> String {
        let id = Uuid::new_v4();
        let sender = if owner == "north-reader" { self.token(owner) } else { &self.maker };
        let path = format!("/api/v1/north/photo/{id}");
        assert_eq!(self.put_photo(sender, &path, 1).await, 201);
        id.to_string()
    }

    /// A request that does something if it is allowed.
    async fn request(&self, method: &str, path: &str, object: &str, caller: &str) -> Asked {
        let nothing = || (path.to_owned(), Value::Null);
        let owner = Table::owner(object, caller);
        let (path, body) = match (method, path) {
            ("POST", "/api/v1/session") => {
                (path.to_owned(), json!({"user": "north-viewer", "password": PASSWORD}))
            }
            (_, "/api/v1/session") | ("DELETE", "session") => nothing(),
            ("GET", "/api/v1/twin" | "") => nothing(),
            ("POST", "/api/v1/twin") => {
                (path.to_owned(), json!({"id": format!("t-{caller}"), "name": "n"}))
            }
            (
                "GET",
                "alert" | "alert_rule" | "webhook" | "instance" | "home" | "sensor" | "meter",
            ) => nothing(),
            ("GET", "reading" | "reading_change" | "work_list" | "user") => nothing(),
            ("GET", "report/leaks" | "report/missed" | "report/progress") => nothing(),
            ("GET", "export/readings.csv" | "export/readings.xlsx") => nothing(),
            ("GET", "series" | "export/series.csv" | "export/series.xlsx") => {
                (format!("{path}?device=s1&quantity=co2"), Value::Null)
            }
            (_, "alert/{id}" | "alert/{id}/acknowledge") => {
                let alerts = self.make("GET", "alert", Value::Null).await;
                let id = alerts["items"][0]["id"].as_str().unwrap();
                (path.replace("{id}", id), if method == "GET" { Value::Null } else { json!({}) })
            }
            ("POST", "alert_rule") => {
                (path.to_owned(), json!({"name": "n", "severity": "info", "silent_s": 100}))
            }
            ("PATCH", "alert_rule/{id}") => ("alert_rule/r1".to_owned(), json!({"name": "m"})),
            (_, "alert_rule/{id}") => ("alert_rule/r1".to_owned(), Value::Null),
            ("POST", "webhook") => {
                (path.to_owned(), json!({"url": "https://example.org/y", "secret": "12345678"}))
            }
            ("DELETE", "webhook/{id}") => {
                let hooks = self.make("GET", "webhook", Value::Null).await;
                (format!("webhook/{}", hooks["items"][0]["id"].as_str().unwrap()), Value::Null)
            }
            ("POST", "home") => (path.to_owned(), json!({"name": "n"})),
            ("PATCH", "home/{id}") => ("home/h1".to_owned(), json!({"name": "m"})),
            (_, "home/{id}") => ("home/h1".to_owned(), Value::Null),
            ("PUT", "sensor/{device}") => ("sensor/s1".to_owned(), json!({"home": "h1"})),
            (_, "sensor/{device}") => ("sensor/s1".to_owned(), Value::Null),
            ("POST", "measurement") => {
                let item = json!({"device": "s2", "quantity": "co2", "at": now(-5), "value": 1, "unit": "ppm"});
                (path.to_owned(), json!({ "items": [item] }))
            }
            ("POST", "meter") => (path.to_owned(), json!({"medium": "water"})),
            ("GET", "meter/{id}") => ("meter/m1".to_owned(), Value::Null),
            ("PATCH", "meter/{id}") => ("meter/m1".to_owned(), json!({"note": "n"})),
            ("PUT", "meter/{id}/key") => {
                ("meter/m1/key".to_owned(), json!({"key": "0".repeat(32)}))
            }
            ("GET", "meter/{id}/consumption") => (
                format!("meter/m1/consumption?from={}&to={}&step=day", now(-86_400), now(0)),
                Value::Null,
            ),
            ("GET", "meter/{id}/exchange") => ("meter/m1/exchange".to_owned(), Value::Null),
            ("POST", "meter/{id}/exchange") => ("meter/m1/exchange".to_owned(), new_exchange()),
            ("DELETE", "meter/{id}/exchange/{exchange}") => {
                let made = self.make("POST", "meter/m1/exchange", new_exchange()).await;
                let id = made["id"].as_str().unwrap();
                (format!("meter/m1/exchange/{id}"), Value::Null)
            }
            ("POST", "frame") => (
                path.to_owned(),
                json!({"receiver": self.device(object, caller).await, "frames": []}),
            ),
            ("POST", "reading") => (path.to_owned(), json!({"items": []})),
            ("GET", "reading/{id}") => {
                (format!("reading/{}", self.reading(owner, None, 5.0).await), Value::Null)
            }
            ("PATCH", "reading/{id}") => {
                let id = self.reading(owner, None, 5.0).await;
                (format!("reading/{id}"), json!({"value": 6, "reason": "r"}))
            }
            ("POST", "reading/{id}/resolve") => {
                let list = self.work_list("nobody's", caller).await;
                self.reading("root", Some(&list), 1.0).await;
                let id = self.reading("north-reader", Some(&list), 2.0).await;
                (format!("reading/{id}/resolve"), json!({"keep": true}))
            }
            ("GET", "photo/{id}") => (format!("photo/{}", self.photo(owner).await), Value::Null),
            ("PUT", "photo/{id}") if object == "new" => {
                (format!("photo/{}", Uuid::new_v4()), Value::Null)
            }
            ("PUT", "photo/{id}") => (format!("photo/{}", self.photo(OTHER).await), Value::Null),
            ("POST", "work_list") => (path.to_owned(), json!({"name": "n", "meters": ["m1"]})),
            (_, "work_list/{id}") => {
                let body = match (method, object) {
                    ("GET", _) => Value::Null,
                    (_, "own name") => json!({"name": "m"}),
                    (_, "own assignee") => json!({"assignee": OTHER}),
                    _ => json!({"tasks": [{"meter": "m1", "state": "unreachable"}]}),
                };
                (format!("work_list/{}", self.work_list(object, caller).await), body)
            }
            ("POST", "user") => {
                let name = format!("new-{caller}");
                (path.to_owned(), json!({"name": name, "password": PASSWORD, "role": "viewer"}))
            }
            (_, "user/{name}") => {
                // With another admin, everybody can go; and who has gone is back for the next caller.
                let back = [(OTHER, Role::Reader), (SILENT, Role::Admin)];
                for (user, role) in back {
                    let twin = "north".to_owned();
                    let command = AdminCommand::SetRole { user: user.to_owned(), twin, role };
                    self.world.platform.administer(&command).unwrap();
                }
                let body = if method == "PATCH" { json!({"role": "admin"}) } else { Value::Null };
                (format!("user/{owner}"), body)
            }
            (_, path) if path.starts_with("instance/{device}") => {
                let device = self.device(object, caller).await;
                let is_there = object != "name" && object != "nobody's";
                let (rest, body) = match (method, path.trim_start_matches("instance/{device}")) {
                    ("GET", rest) => (rest.to_owned(), Value::Null),
                    ("PUT", "") => (String::new(), json!({"kind": "van"})),
                    ("POST", "/command/{command}") => ("/command/reboot".to_owned(), json!({})),
                    ("PATCH", "/command/{command}") => {
                        let mut id = Uuid::nil().to_string();
                        if is_there {
                            let path = format!("instance/{device}/command/reboot");
                            let given = self.make("POST", &path, json!({})).await;
                            given["id"].as_str().unwrap().clone_into(&mut id);
                        }
                        (format!("/command/{id}"), json!({"state": "done"}))
                    }
                    ("POST", "/telemetry") => {
                        let item = json!({"id": Uuid::new_v4(), "at": now(-5)});
                        ("/telemetry".to_owned(), json!({ "items": [item] }))
                    }
                    other => panic!("{other:?}: how is this asked?"),
                };
                (format!("instance/{device}{rest}"), body)
            }
            (method, path) => panic!("{method} {path}: how is this asked?"),
        };
        Asked { path, body }
    }

    /// The answer to a caller, as the file has it.
    async fn cell(&self, method: &str, template: &str, object: &str, caller: &str) -> String {
        let prefix =
            ["/api/v1/{twin}", "/{twin}"].into_iter().find(|start| template.starts_with(start));
        let path =
            prefix.map_or(template, |prefix| template[prefix.len()..].trim_start_matches('/'));
        self.furnish().await;
        let Asked { path, body } = self.request(method, path, object, caller).await;
        let path = match prefix {
            None => path,
            Some(prefix) if path.is_empty() => prefix.replace("{twin}", "north"),
            Some(prefix) => format!("{}/{path}", prefix.replace("{twin}", "north")),
        };
        let status = if template.ends_with("photo/{id}") && method == "PUT" {
            self.put_photo(self.token(caller), &path, 1).await
        } else {
            self.world.call(self.token(caller), method, &path, &body).await.status
        };
        if (200..300).contains(&status) { "yes".to_owned() } else { status.to_string() }
    }
}

/// Each has a time of its own, and a later one an earlier time.
fn new_exchange() -> Value {
    static MADE: AtomicI64 = AtomicI64::new(600);
    let at = now(-MADE.fetch_add(1000, Ordering::Relaxed));
    json!({"id": Uuid::new_v4(), "at": at, "final": 1000, "first": 0})
}

/// A line of the table.
async fn line(table: &Table, method: &str, path: &str, object: &str) -> String {
    let mut line = format!("{method:<6} {path:<52} {object:<12}");
    for (at, caller) in CALLERS.iter().enumerate() {
        let cell = table.cell(method, path, object, caller).await;
        let before = if at == 4 || at == 10 { " |" } else { "" };
        write!(line, "{before} {cell:>3}").unwrap();
    }
    line
}

#[tokio::test]
async fn everybody_may_what_the_table_says() {
    let document = World::new().get("", "/api/v1/openapi.json").await.json;
    // What only looks shares a platform, and everything else has one of its own: what is allowed changes it.
    let (reading, mut lines) = (Table::new().await, Vec::new());
    for (path, item) in document["paths"].as_object().unwrap() {
        if ELSEWHERE.contains(&&**path) {
            continue;
        }
        for method in item.as_object().unwrap().keys() {
            let method = method.to_uppercase();
            let short = ["/api/v1/{twin}/", "/{twin}/"]
                .into_iter()
                .find_map(|start| path.strip_prefix(start));
            for object in objects(&method, short.unwrap_or(path)) {
                let writing = if method == "GET" { None } else { Some(Table::new().await) };
                let table = writing.as_ref().unwrap_or(&reading);
                lines.push(line(table, &method, path, object).await);
            }
        }
    }
    let names = CALLERS.map(|name| name.rsplit('-').next().unwrap());
    let text = format!("{HEAD}# {}\n{}\n", names.join(" "), lines.join("\n"));
    if std::env::var_os("FULMAR_WRITE_RIGHTS").is_some() {
        std::fs::write(FILE, &text).unwrap();
    }
    let expected = std::fs::read_to_string(FILE).unwrap_or_default();
    let wrong: Vec<&str> =
        text.lines().filter(|line| !expected.lines().any(|other| other == *line)).collect();
    assert!(wrong.is_empty(), "not as in {FILE}:\n{}", wrong.join("\n"));
    assert_eq!(text.lines().count(), expected.lines().count(), "{FILE} has lines that nobody asks");
}
