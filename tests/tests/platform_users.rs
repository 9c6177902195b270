//! Users of the platform at the broker: by name and password, by token, and what a gateway may use.
#![allow(clippy::unwrap_used)]

use std::process::{Output, Stdio};

use fulmar_tests::{
    Log, PATIENCE, TestBroker, Wire, eventually, field, fulmar, good, http_get, packet, run,
};

const PASSWORD: &str = "correct horse";

/// A broker with a twin, whose admin is ann.
fn broker() -> TestBroker {
    let broker = TestBroker::start();
    good(&broker, &["twin", "add", "rural", "--kind", "homes"], "");
    good(&broker, &["user", "add", "ann", "--twin", "rural", "--role", "admin"], PASSWORD);
    broker
}

fn publish(
    broker: &TestBroker,
    version: &str,
    (user, password): (&str, &str),
    topic: &str,
) -> Output {
    let url = format!("mqtt://{}", broker.address("mqtt"));
    let mut command = fulmar();
    command.args(["pub", &url, "-V", version, "-u", user, "-q", "1", "-t", topic, "-m", "21"]);
    run(command.env("FULMAR_PASSWORD", password))
}

#[test]
fn a_user_logs_in_with_name_and_password_by_either_version() {
    let broker = broker();
    let topic = "fulmar/rural/sensor/attic/radon";
    for version in ["5", "311"] {
        // Whoever made the user a moment ago is not kept waiting by the clock.
        eventually("the server to know the user", || {
            publish(&broker, version, ("ann", PASSWORD), topic).status.success()
        });
        let wrong = publish(&broker, version, ("ann", "incorrect horse"), topic);
        let said = String::from_utf8(wrong.stderr).unwrap();
        assert_eq!(wrong.status.code(), Some(1), "{said}");
        assert!(said.contains("Bad User Name or Password"), "{said}");
    }
    // A new password ends what was logged in with the old one.
    let url = format!("mqtt://{}", broker.address("mqtt"));
    let mut command = fulmar();
    command.args(["sub", &url, "-u", "ann", "-t", "fulmar/rural/#", "-i", "watcher"]);
    command.env("FULMAR_PASSWORD", PASSWORD).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let here = || http_get(broker.address("http"), "/connections/watcher").0 == 200;
    eventually("the watcher", here);
    good(&broker, &["user", "passwd", "ann"], "another horse");
    eventually("the watcher to be sent away", || child.try_wait().unwrap().is_some());
    assert!(!publish(&broker, "5", ("ann", PASSWORD), topic).status.success());
    eventually("the new password", || {
        publish(&broker, "5", ("ann", "another horse"), topic).status.success()
    });
}

/// On loopback, where anonymous clients are let in, also before there are users.
#[test]
fn a_token_that_is_not_valid_makes_no_anonymous_client() {
    let broker = TestBroker::start();
    let output = publish(&broker, "5", ("gateway", "fulmar_not-a-token"), "t");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("Bad User Name or Password"), "{said}");
    assert!(publish(&broker, "5", ("gateway", "a label"), "t").status.success());
}

#[test]
fn a_gateways_token_lasts_is_exchanged_without_a_gap_and_is_revoked() {
    let broker = broker();
    let token = |more: &[&str]| good(&broker, &[&["user", "token", "gw-1"], more].concat(), "");
    let first = token(&["--twin", "rural", "--role", "device"]);
    assert!(first.starts_with("fulmar_"), "{first}");
    let topic = "fulmar/rural/batch/gw-1";
    let works = |secret: &str| publish(&broker, "5", ("gw-1", secret), topic).status.success();
    eventually("the server to know it", || works(&first));
    assert!(publish(&broker, "311", ("gw-1", &first), topic).status.success());
    assert!(!publish(&broker, "5", ("ann", &first), topic).status.success(), "another's token");
    let second = token(&["--rotate", "24"]);
    eventually("the server to know the second", || works(&second));
    assert!(works(&first), "both are good for a day");
    let list = good(&broker, &["user", "token", "gw-1", "--list"], "");
    let lines: Vec<Vec<&str>> = list.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(lines.len(), 2, "{list}");
    assert!(
        lines[0][2].starts_with('2') && lines[1][2] == "-",
        "only the first has an end: {list}"
    );

    // Only digests are stored.
    for file in ["identities.db", "identities.db-wal"] {
        let bytes = std::fs::read(broker.data().join(file)).unwrap_or_default();
        let secret = first.rsplit('_').next().unwrap().as_bytes();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret), "{file}");
    }
    let url = format!("mqtt://{}", broker.address("mqtt"));
    let mut command = fulmar();
    command.args(["sub", &url, "-u", "gw-1", "-t", "fulmar/rural/command/gw-1/#", "-i", "gw"]);
    command.env("FULMAR_PASSWORD", &first).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let log = Log::follow(child.stderr.take().unwrap());
    eventually("the gateway", || http_get(broker.address("http"), "/connections/gw").0 == 200);
    token(&["--revoke", lines[0][0]]);
    assert!(log.end(PATIENCE), "its connection ends: {}", log.text());
    assert_eq!(child.wait().unwrap().code(), Some(1), "{}", log.text());
    assert!(!works(&first) && works(&second));
}

#[test]
fn a_name_is_a_users_of_the_platform_or_a_clients() {
    let broker = broker();
    good(&broker, &["ctl", "users", "add", "bob"], PASSWORD);
    let carl = ["user", "add", "carl", "--twin", "rural", "--role", "office"];
    good(&broker, &carl, PASSWORD);
    let refused = |words: &[&str]| {
        let mut command = fulmar();
        command.args(words).arg("--data").arg(broker.data()).stdin(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        // It may look first.
        let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), PASSWORD.as_bytes());
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success(), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let why = refused(&["ctl", "users", "add", "carl"]);
    assert!(why.contains("remove that user first (fulmar user remove)"), "{why}");
    let why = refused(&["user", "add", "bob", "--twin", "rural", "--role", "office"]);
    assert!(why.contains("remove that client first (fulmar ctl users remove)"), "{why}");
    good(&broker, &["ctl", "users", "remove", "bob"], "");
    let bob = ["user", "add", "bob", "--twin", "rural", "--role", "office"];
    eventually("the name to be free", || {
        let mut command = fulmar();
        command.args(bob).arg("--data").arg(broker.data()).stdin(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), PASSWORD.as_bytes());
        child.wait().unwrap().success()
    });
    let topic = "fulmar/rural/command/gw-1/stop";
    eventually("bob", || publish(&broker, "5", ("bob", PASSWORD), topic).status.success());
}

/// Another folder's store of users knows none of these users, and they are not removed.
#[test]
fn what_is_queued_for_a_user_outlives_a_start_with_another_store_of_users() {
    let mut broker = broker();
    let token =
        good(&broker, &["user", "token", "gw-1", "--twin", "rural", "--role", "device"], "");
    let subscribe = |broker: &TestBroker, more: &[&str]| {
        let url = format!("mqtt://{}", broker.address("mqtt"));
        let mut command = fulmar();
        command.args(["sub", &url, "-u", "gw-1", "-q", "1", "-i", "gw", "-c", "-W", "10"]);
        command.args(["-t", "fulmar/rural/command/gw-1/#"]).args(more);
        run(command.env("FULMAR_PASSWORD", &token))
    };
    eventually("the server to know it", || subscribe(&broker, &["-E"]).status.success());
    let topic = "fulmar/rural/command/gw-1/stop";
    eventually("ann", || publish(&broker, "5", ("ann", PASSWORD), topic).status.success());
    assert!(broker.terminate().success());
    let (store, aside) = (broker.data().join("identities.db"), broker.data().join("aside.db"));
    std::fs::rename(&store, &aside).unwrap();
    broker.restart();
    assert!(broker.log().contains("are in another data folder's identities.db"));
    assert!(broker.terminate().success());
    std::fs::rename(&aside, &store).unwrap();
    broker.restart();
    let received = subscribe(&broker, &["-C", "1"]);
    assert_eq!(String::from_utf8_lossy(&received.stdout).trim(), "21", "what was queued");
}

#[test]
fn the_log_of_changes_has_users_twins_and_tokens_of_the_platform() {
    let mut broker = broker();
    let token = good(&broker, &["user", "token", "ann"], "");
    assert!(broker.terminate().success());
    good(&broker, &["user", "role", "ann", "--twin", "rural", "--role", "office"], "");
    good(&broker, &["user", "passwd", "ann"], "another horse");
    let lines = good(&broker, &["audit", "--json"], "");
    let entries: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |entry: &serde_json::Value| {
        assert!(entry["who"].as_str().unwrap().starts_with("local:"), "{entry}");
        ["action", "object", "result"].map(|field| entry[field].as_str().unwrap().to_owned())
    };
    let expected = [
        ["twin.add", "rural", "ok"],
        ["user.add", "ann", "ok"],
        ["token.add", "ann", "ok"],
        ["user.change", "ann", "ok"],
        ["user.change", "ann", "ok"],
    ];
    assert_eq!(entries.iter().map(of).collect::<Vec<_>>(), expected, "{lines}");
    for secret in [PASSWORD, "another horse", &token] {
        assert!(!lines.contains(secret), "{lines}");
    }
}

#[test]
fn a_gateway_may_use_what_the_pages_example_needs_and_nothing_of_others() {
    let broker = broker();
    let token =
        good(&broker, &["user", "token", "gw-1", "--twin", "rural", "--role", "device"], "");
    let url = format!("mqtt://{}", broker.address("mqtt"));
    let subscribe = |filter: &str| {
        let mut command = fulmar();
        command.args(["sub", &url, "-u", "gw-1", "-t", filter, "-E", "-i", "gw"]);
        let output = run(command.env("FULMAR_PASSWORD", &token));
        String::from_utf8(output.stderr).unwrap()
    };
    eventually("the server to know it", || {
        publish(&broker, "5", ("gw-1", &token), "fulmar/rural/sensor/attic/co").status.success()
    });
    for mine in ["fulmar/rural/command/gw-1/#", "fulmar/rural/instance/gw-1/command"] {
        let said = subscribe(mine);
        assert!(!said.contains("Not authorized"), "{mine}: {said}");
    }
    for others in ["fulmar/rural/command/gw-2/#", "fulmar/rural/command/#", "fulmar/rural/value/#"]
    {
        let said = subscribe(others);
        assert!(said.contains("Not authorized"), "{others}: {said}");
    }
    for denied in ["fulmar/rural/command/gw-1/valve", "fulmar/rural/alert/1", "elsewhere"] {
        let output = publish(&broker, "5", ("gw-1", &token), denied);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("Not authorized") && said.contains(denied), "{denied}: {said}");
    }
}

#[test]
fn what_waits_for_a_removed_user_is_not_its_successors() {
    let broker = broker();
    let token =
        good(&broker, &["user", "token", "gw-1", "--twin", "rural", "--role", "device"], "");
    let url = format!("mqtt://{}", broker.address("mqtt"));
    let topic = "fulmar/rural/command/gw-1/valve";
    let subscribe = || {
        let mut command = fulmar();
        command.args(["sub", &url, "-u", "gw-1", "-i", "gw", "-c", "-q", "1", "-t", topic, "-E"]);
        run(command.env("FULMAR_PASSWORD", &token))
    };
    eventually("the server to know it", || subscribe().status.success());
    // The gateway is away, and its command waits.
    eventually("ann", || publish(&broker, "5", ("ann", PASSWORD), topic).status.success());
    let sessions = || good(&broker, &["ctl", "sessions", "list", "--json"], "");
    assert!(sessions().contains("\"gw\""), "{}", sessions());
    good(&broker, &["user", "remove", "gw-1"], "");
    eventually("the session to end", || !sessions().contains("\"gw\""));
}

#[test]
fn sessions_of_a_removed_user_end_whether_connected_or_made_again_at_once() {
    let broker = broker();
    let add = ["user", "token", "gw-1", "--twin", "rural", "--role", "device"];
    let sessions = || good(&broker, &["ctl", "sessions", "list", "--json"], "");
    for makes_again in [false, true] {
        let token = good(&broker, &add, "");
        let url = format!("mqtt://{}", broker.address("mqtt"));
        let topic = "fulmar/rural/command/gw-1/valve";
        let mut command = fulmar();
        command.args(["sub", &url, "-u", "gw-1", "-i", "gw", "-c", "-q", "1", "-t", topic]);
        command.env("FULMAR_PASSWORD", &token).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        eventually("the gateway's session", || {
            // The server may not have known it yet.
            if child.try_wait().unwrap().is_some() {
                child = command.spawn().unwrap();
            }
            sessions().contains("\"gw\"")
        });
        good(&broker, &["user", "remove", "gw-1"], "");
        if makes_again {
            good(&broker, &add, "");
        }
        eventually("the session to end", || !sessions().contains("\"gw\""));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn a_ban_of_a_name_is_of_the_platforms_user_if_only_it_has_that() {
    let broker = broker();
    let topic = "fulmar/rural/sensor/attic/radon";
    let publishes = || publish(&broker, "5", ("ann", PASSWORD), topic).status.success();
    eventually("the server to know the user", publishes);
    good(&broker, &["ctl", "clients", "ban", "--user", "ann", "--for", "1h"], "");
    assert!(!publishes());
}

#[test]
fn no_token_expires_for_one_that_cannot_be_written_to_its_file() {
    let broker = broker();
    let good_token = good(&broker, &["user", "token", "ann"], "");
    let folder = broker.data();
    let folder = folder.to_str().unwrap();
    for file in ["/nonexistent/token", folder] {
        let mut command = fulmar();
        command.args(["user", "token", "ann", "--rotate", "0", "--file", file, "--data", folder]);
        assert!(!run(&mut command).status.success(), "{file}");
    }
    let topic = "fulmar/rural/sensor/attic/radon";
    eventually("the token", || publish(&broker, "5", ("ann", &good_token), topic).status.success());
    assert_eq!(good(&broker, &["user", "token", "ann", "--list"], "").lines().count(), 1);
}

#[test]
fn rules_about_everything_are_not_about_the_platform() {
    let rules = ["%c/#", "%u%c/#", "+/rural/#", "#"]
        .map(|topic| format!("[[acl.rules]]\nallow = true\ntopic = {topic:?}\n"))
        .concat();
    let config = format!("[acl]\ndefault_allow = false\n{rules}");
    let broker = TestBroker::builder().config(&config).start();
    good(&broker, &["twin", "add", "rural", "--kind", "homes"], "");
    for client_id in ["fulmar", "$SYS", "other"] {
        let fields = [field("MQTT"), vec![5, 2, 0, 0, 0], field(client_id)];
        let mut liar = Wire::dial(broker.address("mqtt"));
        liar.send(&packet(0x10, &fields.concat()));
        let (first, body) = liar.read().expect("CONNACK");
        assert_eq!((first, body[1]), (0x20, 0));
        for (topic, code) in [("fulmar/rural/sensor/attic/radon", 0x87), ("other/t", 0x10)] {
            liar.send(&packet(0x32, &[field(topic), vec![0, 1, 0], b"21".to_vec()].concat()));
            let (first, body) = liar.read().expect("PUBACK");
            assert_eq!((first, body.get(2)), (0x40, Some(&code)), "{client_id} {topic}");
        }
        for filter in ["fulmar/#", "$share/g/fulmar/rural/#", "$SYS/#", "$CONTROL/#"] {
            liar.send(&packet(0x82, &[vec![0, 1, 0], field(filter), vec![0]].concat()));
            let (first, body) = liar.read().expect("SUBACK");
            assert_eq!((first, body[3]), (0x90, 0x87), "{client_id} {filter}");
        }
    }
}

#[test]
fn explain_knows_a_user_of_the_platform_by_the_name_alone() {
    let broker = broker();
    let explain = |topic: &str| {
        good(&broker, &["ctl", "explain", "publish", topic, "--user", "ann", "--client", "c"], "")
    };
    eventually("the server to know the user", || {
        explain("fulmar/rural/sensor/attic/radon").starts_with("allowed")
    });
    assert!(explain("fulmar/elsewhere/sensor/attic/radon").starts_with("denied"));
}
