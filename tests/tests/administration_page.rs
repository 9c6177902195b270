//! What the broker's page uses of the administration API, as a browser does: the session, the overview, topics.
#![allow(clippy::unwrap_used)]

use std::process::{Child, Command, Stdio};

use fulmar_tests::{TestBroker, eventually, fulmar, run};
use serde_json::{Value, json};

/// A browser without a page: curl, with its cookies.
struct Browser<'a> {
    broker: &'a TestBroker,
    cookies: tempfile::NamedTempFile,
    session: String,
}

impl<'a> Browser<'a> {
    fn new(broker: &'a TestBroker) -> Browser<'a> {
        let cookies = tempfile::NamedTempFile::new().unwrap();
        Browser { broker, cookies, session: String::new() }
    }

    fn send(&self, method: &str, path: &str, body: &Value, headers: &[&str]) -> (u16, Value) {
        let url = format!("https://localhost:{}{path}", self.broker.address("https").port());
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-X", method, "-w", "\n%{http_code}", "-b"]).arg(self.cookies.path());
        curl.arg("-c").arg(self.cookies.path()).arg("--cacert").arg(self.broker.ca_file());
        curl.args(["-H", "content-type: application/json", "-H"]);
        curl.arg(format!("x-fulmar-session: {}", self.session));
        for header in headers {
            curl.args(["-H", header]);
        }
        if !body.is_null() {
            curl.args(["-d", &body.to_string()]);
        }
        let output = run(curl.arg(url));
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), serde_json::from_str(body).unwrap_or_default())
    }

    fn api(&self, method: &str, path: &str) -> (u16, Value) {
        self.send(method, &format!("/api/admin/v1{path}"), &Value::Null, &[])
    }

    fn log_in(&mut self, credentials: &Value) -> (u16, Value) {
        let (status, begun) = self.send("POST", "/api/admin/v1/session", credentials, &[]);
        self.session = begun["session"].as_str().unwrap_or_default().to_owned();
        (status, begun)
    }
}

/// Runs a command that reads a password.
fn with_password(password: &str, words: &[&str], broker: &TestBroker) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{password}\n{password}\n")).unwrap();
    let mut command = fulmar();
    command.args(words).arg("--data").arg(broker.data()).stdin(file.reopen().unwrap());
    let output = run(&mut command);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

struct Subscriber(Child);

impl Subscriber {
    fn start(broker: &TestBroker) -> Subscriber {
        let url = format!("quic://localhost:{}", broker.address("quic").port());
        let mut command = fulmar();
        command.args(["sub", &url, "-t", "t/#", "-i", "meter", "--cafile"]).arg(broker.ca_file());
        Subscriber(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_broker_without_platform_is_operated_at_its_address() {
    let broker = TestBroker::builder().config("[platform]\nenabled = false\n").start();
    let (_, config) = Browser::new(&broker).send("GET", "/api/v1/config", &Value::Null, &[]);
    assert_eq!(config["platform"], false);
    for (name, role) in [("ann", "operator"), ("vic", "viewer")] {
        with_password("correct horse", &["ctl", "users", "add", name, "--role", role], &broker);
    }
    let mut ann = Browser::new(&broker);
    assert_eq!(ann.api("GET", "/me").0, 401);
    let (status, problem) = ann.log_in(&json!({ "user": "ann", "password": "wrong" }));
    assert_eq!(status, 401, "{problem}");
    let right = json!({ "user": "ann", "password": "correct horse" });
    let (status, begun) = ann.log_in(&right);
    assert_eq!((status, &begun["role"]), (201, &"operator".into()));
    let cookies = std::fs::read_to_string(ann.cookies.path()).unwrap();
    assert!(cookies.contains("#HttpOnly_localhost\tFALSE\t/\tTRUE"), "{cookies}");
    // The cookie alone, which a browser may send with requests of other pages, does nothing.
    let secret = std::mem::take(&mut ann.session);
    assert_eq!(ann.api("GET", "/me").0, 401);
    ann.session = secret;
    let other = ann.send("GET", "/api/admin/v1/me", &Value::Null, &["sec-fetch-site: same-site"]);
    assert_eq!(other.0, 403);
    let mut vic = Browser::new(&broker);
    vic.log_in(&json!({ "user": "vic", "password": "correct horse" }));

    let _client = Subscriber::start(&broker);
    eventually("the client's path in the overview", || {
        let (status, overview) = vic.api("GET", "/overview");
        assert_eq!(status, 200, "{overview}");
        let quic = &overview["quality"]["transports"][0];
        quic["transport"] == "quic" && quic["path"]["rtt_median_us"].as_u64() > Some(0)
    });
    let (_, overview) = vic.api("GET", "/overview");
    assert_eq!(overview["connections"]["quic"], 1);
    let listeners = overview["server"]["listeners"].as_array().unwrap();
    assert!(listeners.iter().any(|one| one["name"] == "quic"), "{listeners:?}");
    let certificate = &overview["server"]["certificates"][0];
    assert!(certificate["expires_ms"].as_u64() > overview["now_ms"].as_u64(), "{certificate}");
    assert_eq!(overview["server"]["upstreams"], json!([]));
    assert!(
        overview["memory"]
            .as_array()
            .unwrap()
            .iter()
            .all(|part| part["limit_bytes"].as_u64() > Some(0))
    );
    eventually("the history", || {
        vic.api("GET", "/history").1["at_ms"].as_array().unwrap().len() > 1
    });

    // A viewer looks.
    let (status, problem) = vic.api("DELETE", "/clients/meter");
    assert_eq!(
        (status, &problem["detail"]),
        (
            403,
            &"requires the role operator; yours is viewer, which an administrator can change"
                .into()
        )
    );
    assert_eq!(ann.api("DELETE", "/clients/meter").0, 204);
    broker.wait_for_log("closed by operator");
    // Another password ends sessions, and so does logging out.
    with_password("battery staple", &["ctl", "users", "passwd", "ann"], &broker);
    assert_eq!(ann.api("GET", "/me").0, 401);
    assert_eq!(ann.log_in(&json!({ "user": "ann", "password": "battery staple" })).0, 201);
    assert_eq!(ann.api("DELETE", "/session").0, 204);
    assert_eq!(ann.api("GET", "/me").0, 401);
    let audit = run(fulmar().args(["audit", "--data"]).arg(broker.data()));
    let audit = String::from_utf8(audit.stdout).unwrap();
    assert!(audit.contains("session.begin") && !audit.contains(&vic.session), "{audit}");
}

#[test]
fn an_administrator_of_a_twin_sees_nothing_of_the_broker() {
    let mut broker = TestBroker::start();
    let data = broker.data();
    run(fulmar().args(["twin", "add", "rural", "--data"]).arg(&data));
    let rights = [("root", &["--admin"][..]), ("tom", &["--twin", "rural", "--role", "admin"])];
    for (name, rights) in rights {
        with_password("correct horse", &[&["user", "add", name], rights].concat(), &broker);
    }
    assert!(broker.terminate().success());
    broker.restart();
    let mut browser = Browser::new(&broker);
    let of = |name: &str| json!({ "user": name, "password": "correct horse" });
    let (status, problem) = browser.log_in(&of("tom"));
    assert_eq!(status, 403, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("no administration role"), "{problem}");
    let (_, session) = browser.send("POST", "/api/v1/session", &of("tom"), &[]);
    let token = format!("authorization: Bearer {}", session["token"].as_str().unwrap());
    for path in ["/overview", "/history", "/topics", "/clients", "/sessions", "/me"] {
        let (status, found) =
            browser.send("GET", &format!("/api/admin/v1{path}"), &Value::Null, &[&token]);
        assert_eq!(status, 403, "{path}: {found}");
    }
    let (status, begun) = browser.log_in(&of("root"));
    assert_eq!((status, &begun["role"]), (201, &"administrator".into()));
    assert_eq!(browser.api("GET", "/overview").0, 200);
}

#[test]
fn retained_topics_are_a_tree() {
    let broker = TestBroker::builder().config("[platform]\nenabled = false\n").start();
    let url = format!("mqtt://localhost:{}", broker.address("mqtt").port());
    for topic in ["plant/1/power", "plant/1", "plant/10/power", "office"] {
        run(fulmar().args(["pub", &url, "-q", "1", "-r", "-m", "1", "-t", topic]));
    }
    let password = ["ctl", "users", "add", "vic", "--role", "viewer"];
    with_password("correct horse", &password, &broker);
    let mut vic = Browser::new(&broker);
    vic.log_in(&json!({ "user": "vic", "password": "correct horse" }));
    let levels = |query: &str| {
        let (status, found) = vic.api("GET", &format!("/topics{query}"));
        assert_eq!(status, 200, "{found}");
        let levels = found["levels"].as_array().unwrap().iter();
        let levels = levels.map(|one| {
            format!(
                "{} {} {}",
                one["topic"].as_str().unwrap(),
                one["has_message"],
                one["has_levels"]
            )
        });
        (levels.collect::<Vec<_>>(), found["next"].as_str().map(str::to_owned))
    };
    assert_eq!(levels("").0, ["office true false", "plant false true"]);
    assert_eq!(levels("?under=plant").0, ["plant/1 true true", "plant/10 false true"]);
    let (first, next) = levels("?limit=1");
    assert_eq!(
        (first, &*next.clone().unwrap()),
        (vec!["office true false".to_owned()], "office\0")
    );
    let (second, next) = levels("?limit=1&cursor=office%00");
    assert_eq!((second, next), (vec!["plant false true".to_owned()], None));
}

#[test]
fn the_overview_is_open_on_this_machine_where_anonymous_clients_may_connect() {
    for (policy, expected) in [("loopback", 200), ("never", 401)] {
        let folder = tempfile::tempdir().unwrap();
        let passwords = folder.path().join("passwords");
        fulmar_tests::write_secret(&passwords, "# none yet\n");
        let config =
            format!("[auth]\nallow_anonymous = \"{policy}\"\npassword_file = {passwords:?}\n");
        let broker = TestBroker::builder().config(&config).start();
        let browser = Browser::new(&broker);
        for (path, expected) in
            [("/overview", expected), ("/history", expected), ("/clients", 401), ("/me", 401)]
        {
            let path = format!("/api/admin/v1{path}");
            let (status, found) = browser.send("GET", &path, &Value::Null, &[]);
            assert_eq!(status, expected, "{policy} {path}: {found}");
            // Wrong credentials are no better than none.
            let token = ["authorization: Bearer fulmar_wrong"];
            assert_eq!(browser.send("GET", &path, &Value::Null, &token).0, 401, "{path}");
        }
        let page = format!("https://localhost:{}/broker", broker.address("https").port());
        let line = broker.wait_for_log("the broker's page");
        assert!(
            line.contains(&page) && line.contains("users add NAME --role administrator"),
            "{line}"
        );
    }
}

#[test]
fn an_upstream_broker_that_is_not_connected_has_time_and_reason_and_is_no_client() {
    let config = "[upstream]\nurl = \"mqtt://127.0.0.1:1\"\n[[upstream.up]]\nfilter = \"#\"\n";
    let broker = TestBroker::builder().config(config).start();
    let browser = Browser::new(&broker);
    let overview = || browser.send("GET", "/api/admin/v1/overview", &Value::Null, &[]).1;
    eventually("the failed attempt", || overview()["health"]["verdict"] == "warn");
    let overview = overview();
    let reason = overview["health"]["reasons"][0]["text"].as_str().unwrap();
    assert!(
        reason.contains("is not connected for 0 min (") && reason.contains("refused"),
        "{reason}"
    );
    assert!(overview["server"]["upstreams"][0]["down_since_ms"].is_u64(), "{overview}");
    // The gateway's own session.
    assert_eq!((&overview["sessions"], &overview["connections"]), (&json!(1), &json!({})));
    assert!(!broker_metrics(&broker).contains("fulmar_connections{transport=\"tcp\"} 1"));
    let status = run(fulmar().args(["ctl", "status", "--data"]).arg(broker.data()));
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.starts_with("health       needs attention\n"), "{status}");
    for line in ["\nclients      0 connected\n", "\nupstream     not connected since 20"] {
        assert!(status.contains(line), "{line:?}: {status}");
    }
    assert!(status.lines().count() < 24, "{status}");
}

fn broker_metrics(broker: &TestBroker) -> String {
    fulmar_tests::http_get(broker.address("http"), "/metrics").1
}
