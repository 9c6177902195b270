//! A data folder of an earlier version, whose accounts are in the platform's database: tokens, passwords, sessions and what
//! is queued in them are their owners' after the first start, and nobody has more rights than before.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use fulmar_tests::{TestBroker, eventually, fulmar, good, run};
use rusqlite::{Connection, params};
use serde_json::Value;

const PLATFORM: &str = "of the platform";
const STORE: &str = "of the store";

fn client(broker: &TestBroker, what: &str, user: &str, password: &str, more: &[&str]) -> Command {
    let mut command = fulmar();
    command.args([what, &format!("mqtt://{}", broker.address("mqtt")), "-u", user, "-q", "1"]);
    command.args(more).env("FULMAR_PASSWORD", password);
    command
}

fn publishes(broker: &TestBroker, user: &str, password: &str, topic: &str) -> bool {
    let more = ["-t", topic, "-m", "21"];
    run(&mut client(broker, "pub", user, password, &more)).status.success()
}

/// The status of a request to the platform's API, and its answer.
fn api(broker: &TestBroker, more: &[&str]) -> (String, Value) {
    let port = broker.address("https").port();
    let mut curl = Command::new("curl");
    curl.args(["-sSk", "-w", "\n%{http_code}", "-H", "Content-Type: application/json"]).args(more);
    let output = run(curl.arg(format!("https://localhost:{port}/api/v1/session")));
    let text = String::from_utf8(output.stdout).unwrap();
    let (answer, status) = text.rsplit_once('\n').unwrap();
    (status.to_owned(), serde_json::from_str(answer).unwrap_or_default())
}

/// Puts the accounts to where the version before had them. `anna` has a client's name there, as no new user has.
fn go_back(data: &Path) {
    let store = Connection::open(data.join("identities.db")).unwrap();
    let rename =
        "UPDATE account SET body = replace(body, '\"anna\"', '\"ann\"') WHERE name = 'anna'";
    assert_eq!(store.execute(rename, ()).unwrap(), 1);
    let platform = Connection::open(data.join("platform.db")).unwrap();
    let mut rows = store.prepare("SELECT body FROM account").unwrap();
    let bodies = rows.query_map([], |row| row.get::<_, String>(0)).unwrap();
    for body in bodies {
        let account: Value = serde_json::from_str(&body.unwrap()).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let list = |field: &str| account[field].as_array().cloned().unwrap_or_default();
        let (name, admin) = (text(&account["name"]), account["server_admin"] == true);
        let password = text(&account["password"]);
        let columns = params![name, text(&account["display_name"]), password, admin, 1];
        platform.execute("INSERT INTO account VALUES (?1, ?2, ?3, ?4, ?5)", columns).unwrap();
        for own in list("memberships") {
            let columns = params![text(&own["twin"]), name, text(&own["role"])];
            platform.execute("INSERT INTO member VALUES (?1, ?2, ?3)", columns).unwrap();
        }
        for token in list("tokens") {
            let columns = params![text(&token["id"]), name, text(&token["digest"])];
            let sql = "INSERT INTO credential VALUES (?1, ?2, ?3, 1, NULL)";
            platform.execute(sql, columns).unwrap();
        }
        for session in list("sessions") {
            let end = session["expires_ms"].as_i64();
            let sql = "INSERT INTO session VALUES (?1, ?2, 1, ?3)";
            platform.execute(sql, params![text(&session["id"]), name, end]).unwrap();
        }
    }
    drop(rows);
    store.execute_batch("DROP TABLE account; PRAGMA user_version = 2").unwrap();
}

#[test]
fn everything_is_its_owners_after_the_first_start_of_this_version() {
    let mut broker = TestBroker::start();
    good(&broker, &["twin", "add", "rural", "--kind", "homes"], "");
    for name in ["anna", "bob"] {
        good(&broker, &["user", "add", name, "--twin", "rural", "--role", "office"], PLATFORM);
    }
    let token = ["user", "token", "gw-1", "--twin", "rural", "--role", "device"];
    let token = good(&broker, &token, "");
    // A client of the store with the name of an account.
    good(&broker, &["ctl", "roles", "add", "stored"], "");
    good(&broker, &["ctl", "roles", "allow", "stored", "publish", "store/#"], "");
    good(&broker, &["ctl", "users", "add", "ann", "--topic-roles", "stored"], STORE);

    let (command, batch) = ("fulmar/rural/command/gw-1/stop", "fulmar/rural/batch/gw-1");
    eventually("bob", || publishes(&broker, "bob", PLATFORM, command));
    let listen = ["-t", "fulmar/rural/command/gw-1/#", "-i", "gw", "-c", "-C", "1"];
    let subscribed = ["-t", "fulmar/rural/command/gw-1/#", "-i", "gw", "-c", "-W", "1"];
    let _ = run(&mut client(&broker, "sub", "gw-1", &token, &subscribed));
    assert!(publishes(&broker, "bob", PLATFORM, command), "it waits in the gateway's session");
    let login = format!("{{\"user\":\"bob\",\"password\":\"{PLATFORM}\"}}");
    let (status, begun) = api(&broker, &["-d", &login]);
    assert_eq!(status, "201", "{begun}");
    let bearer = format!("Authorization: Bearer {}", begun["token"].as_str().unwrap());

    assert!(broker.terminate().success());
    go_back(&broker.data());
    // Beside a server of that version, which would think that all its users were removed.
    let mut early = fulmar();
    let refused = run(early.args(["user", "list", "--data"]).arg(broker.data()));
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains("start the server of this version"), "{why}");
    assert!(!broker.data().join("identities.db.version-2").exists(), "nothing is moved");
    broker.restart();
    let log = broker.log();
    assert!(log.contains("accounts are in the store of identities now"), "{log}");
    assert!(log.contains("user=ann") || log.contains("user=\"ann\""), "the clash by name: {log}");
    for file in ["platform-accounts.sql", "identities.db.version-2"] {
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &broker.data().join(file).metadata().unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let received = run(&mut client(&broker, "sub", "gw-1", &token, &listen));
    assert!(received.status.success(), "{}", String::from_utf8_lossy(&received.stderr));
    assert_eq!(String::from_utf8_lossy(&received.stdout).trim(), "21", "what was queued");
    assert!(publishes(&broker, "gw-1", &token, batch));
    assert_eq!(api(&broker, &["-H", &bearer]).0, "200", "a login lasts");
    assert!(publishes(&broker, "bob", PLATFORM, command) && !publishes(&broker, "bob", STORE, "x"));
    // One name and two users: over MQTT the client's password counts, with its rights; over HTTPS the account's.
    assert!(publishes(&broker, "ann", STORE, "store/x"));
    assert!(!publishes(&broker, "ann", STORE, command), "no rights of the account");
    assert!(!publishes(&broker, "ann", PLATFORM, command));
    let login = |password: &str| {
        api(&broker, &["-d", &format!("{{\"user\":\"ann\",\"password\":\"{password}\"}}")]).0
    };
    assert_eq!((login(PLATFORM), login(STORE)), ("201".to_owned(), "401".to_owned()));

    good(&broker, &["user", "token", "gw-1", "--revoke", "all"], "");
    eventually("the token to be refused", || !publishes(&broker, "gw-1", &token, batch));
    assert!(broker.terminate().success());
    broker.restart();
    assert!(!broker.log().contains("accounts are in the store of identities now"), "once");
    assert!(!publishes(&broker, "gw-1", &token, batch), "what was revoked stays so");
    assert_eq!(api(&broker, &["-H", &bearer]).0, "200");
}
