//! The administration API and `fulmar ctl`: over the socket in the data folder, and over HTTPS with a token.
#![allow(clippy::unwrap_used)]

use std::process::{Child, Output, Stdio};

use fulmar_tests::{
    TestBroker, Wire, eventually, field, fulmar, http_get, packet, run, write_secret,
};
use serde_json::Value;

/// `fulmar ctl` on the broker's data folder.
fn ctl(broker: &TestBroker, words: &[&str]) -> Output {
    run(fulmar().arg("ctl").arg("--data").arg(broker.data()).args(words))
}

/// What it prints, which has to succeed.
fn good(broker: &TestBroker, words: &[&str]) -> String {
    let output = ctl(broker, words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(broker: &TestBroker, words: &[&str]) -> Value {
    serde_json::from_str(&good(broker, &[words, &["--json"]].concat())).unwrap()
}

/// What it says when it is refused.
fn bad(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A subscriber, when it is connected.
struct Subscriber(Child);

impl Subscriber {
    fn start(broker: &TestBroker, scheme: &str, listener: &str, id: &str) -> Subscriber {
        let url = format!("{scheme}://localhost:{}", broker.address(listener).port());
        let mut command = fulmar();
        command.args(["sub", &url, "-t", "t/#", "-i", id, "--cafile"]).arg(broker.ca_file());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let page = format!("/connections/{}", id.replace('/', "%2F"));
        eventually("the subscriber", || {
            let (status, text) = http_get(broker.address("http"), &page);
            status == 200 && text.contains("\"subscriptions\":1")
        });
        Subscriber(child)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn clients_are_listed_with_their_paths_and_disconnected() {
    let broker = TestBroker::start();
    let _quic = Subscriber::start(&broker, "quic", "quic", "by/quic");
    let _tcp = Subscriber::start(&broker, "mqtt", "mqtt", "by-tcp");
    let all = json(&broker, &["clients", "list"]);
    assert_eq!(all.as_array().unwrap().len(), 2, "{all}");
    let quic = json(&broker, &["clients", "list", "--transport", "quic"]);
    assert_eq!((&quic[0]["client"], quic.as_array().unwrap().len()), (&"by/quic".into(), 1));
    eventually("statistics of the path", || {
        let client = json(&broker, &["clients", "show", "by/quic"]);
        client["path"]["rtt_us"].as_u64().is_some() && client["path"]["migrations"] == 0
    });
    let table = good(&broker, &["clients", "list"]);
    assert!(table.starts_with("CLIENT") && table.contains("by-tcp"), "{table}");
    for client in ["by/quic", "by-tcp"] {
        let before = json(&broker, &["clients", "show", client])["since_ms"].as_u64().unwrap();
        good(&broker, &["clients", "disconnect", client]);
        // It connects again.
        eventually("the client's next connection", || {
            let output = ctl(&broker, &["clients", "show", client, "--json"]);
            let now: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            now["since_ms"].as_u64().is_some_and(|since| since > before)
        });
    }
    assert_eq!(broker.log().matches("closed by operator").count(), 2, "{}", broker.log());
    let said = bad(&ctl(&broker, &["clients", "disconnect", "nobody"]));
    assert!(said.contains("no client \"nobody\" is connected"), "{said}");
    let status = json(&broker, &["status"]);
    assert_eq!((&status["connections"]["quic"], &status["sessions"]), (&1.into(), &2.into()));
}

#[test]
fn a_client_that_waits_is_shown_with_cause_and_age() {
    let config = "[limits]\nmax_publish_bytes_per_s = 1\n";
    let broker = TestBroker::builder().config(config).start();
    let mut fast = Wire::connect(broker.address("mqtt"), "fast");
    assert_eq!(broker.metric("connections_waiting{cause=\"rate\"}"), 0.0);
    fast.send(&packet(0x30, &[field("t"), vec![0], vec![b'x'; 5_000]].concat()));
    eventually("the wait", || {
        let waiting = &json(&broker, &["clients", "show", "fast"])["waiting"];
        waiting["cause"] == "rate" && waiting["age_ms"].as_u64().is_some_and(|age| age > 0)
    });
    assert_eq!(broker.metric("connections_waiting{cause=\"rate\"}"), 1.0);
    let explained = good(&broker, &["explain", "publish", "t", "--client", "fast"]);
    assert!(explained.contains("it publishes faster than [limits] allows"), "{explained}");
}

#[test]
fn a_token_of_an_administrator_works_over_https_and_no_other() {
    let mut broker = TestBroker::start();
    let url = format!("https://localhost:{}", broker.address("https").port());
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    std::fs::write(&password, "correct horse\n").unwrap();
    let user = |words: &[&str]| {
        let mut command = fulmar();
        command.stdin(std::fs::File::open(&password).unwrap());
        let output = run(command.args(words).arg("--data").arg(broker.data()));
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let file = |name: &str| folder.path().join(name);
    user(&["twin", "add", "rural"]);
    let (root, ann) = (file("root"), file("ann"));
    let rights =
        [("root", &root, &["--admin"][..]), ("ann", &ann, &["--twin", "rural", "--role", "admin"])];
    for (name, path, rights) in rights {
        user(&[&["user", "add", name], rights].concat());
        user(&["user", "token", name, "--file", path.to_str().unwrap()]);
    }
    write_secret(file("wrong"), "fulmar_wrong\n");
    // Afterwards it knows the tokens.
    assert!(broker.terminate().success());
    broker.restart();
    let remote = |token: &str, words: &[&str]| {
        let mut command = fulmar();
        command.args(["ctl", "--url", &url, "--token-file"]).arg(file(token));
        run(command.arg("--ca").arg(broker.ca_file()).args(words))
    };
    let list = ["clients", "list", "--json"];
    assert!(remote("root", &list).status.success());
    // The administrator of a twin is none of the broker.
    let said = bad(&remote("ann", &list));
    assert!(said.contains("no administration role"), "{said}");
    let said = bad(&remote("wrong", &list));
    assert!(said.contains("wrong or expired credentials"), "{said}");
    let wait = broker.wait_for_log("administration: login refused");
    assert!(wait.contains("peer=127.0.0.1"), "{wait}");
    let said = bad(&remote("root", &["clients", "disconnect", "x"]));
    assert!(said.contains("no client"), "{said}");
}

#[test]
fn what_a_caller_sends_is_one_line_of_the_log_and_cut() {
    let broker = TestBroker::start();
    let forged = "2026-01-01T00:00:00Z ERROR forged";
    let name = format!("a\r\n{forged}\u{1b}[2J{}", "x".repeat(900));
    let said = bad(&ctl(&broker, &["log", &name]));
    assert!(said.contains("try `debug`"), "{said}");
    let line = broker.wait_for_log("administration by=");
    assert!(line.contains(&format!(r#"object="a\r\n{forged}\u{{1b}}[2Jxxx"#)), "{line}");
    // Of the name and of the result, 512 bytes each.
    let letters = line.matches('x').count();
    assert!(line.contains("xxx…") && (400..=1024).contains(&letters), "{letters}: {line}");
    assert!(!broker.log().lines().any(|line| line.starts_with(forged)), "{}", broker.log());
    assert!(!broker.log().contains('\u{1b}'), "{}", broker.log());
}

#[test]
fn without_a_broker_it_says_which_folder_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(fulmar().args(["ctl", "status", "--data"]).arg(folder.path()));
    assert!(bad(&output).contains("no broker runs with the data folder"), "{output:?}");
}

fn publish(broker: &TestBroker, id: &str, words: &[&str]) -> Output {
    let url = format!("mqtt://localhost:{}", broker.address("mqtt").port());
    run(fulmar().args(["pub", &url, "-q", "1", "-i", id]).args(words))
}

#[test]
fn bans_disconnect_refuse_survive_a_restart_and_end() {
    let mut broker = TestBroker::start();
    let mut subscriber = Subscriber::start(&broker, "quic", "quic", "meter");
    good(&broker, &["clients", "ban", "--client", "meter", "--for", "1h", "--reason", "flood"]);
    eventually("the client to end", || {
        broker.log().contains("connection refused: banned")
            || subscriber.0.try_wait().unwrap().is_some()
    });
    drop(subscriber);
    for version in ["5", "311"] {
        let output = publish(&broker, "meter", &["-t", "t", "-m", "x", "-V", version]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected = if version == "5" { "Banned" } else { "Not authorized" };
        assert!(!output.status.success() && said.contains(expected), "{version}: {said}");
    }
    assert!(publish(&broker, "other", &["-t", "t", "-m", "x"]).status.success());
    // The socket of a broker that was killed is in the way of none.
    broker.kill();
    broker.restart();
    assert!(!publish(&broker, "meter", &["-t", "t", "-m", "x"]).status.success());
    let bans = json(&broker, &["clients", "bans"]);
    assert_eq!((&bans[0]["value"], &bans[0]["reason"]), (&"meter".into(), &"flood".into()));
    let why = good(&broker, &["explain", "publish", "t", "--client", "meter"]);
    assert!(why.starts_with("denied") && why.contains("banned by local:"), "{why}");
    good(&broker, &["clients", "unban", &bans[0]["id"].to_string()]);
    assert!(publish(&broker, "meter", &["-t", "t", "-m", "x"]).status.success());
    let wrong = bad(&ctl(&broker, &["clients", "ban", "--network", "10.0.0.0/33", "--for", "1h"]));
    assert!(wrong.contains("ADDRESS/BITS"), "{wrong}");
    // A network: of everybody here.
    good(&broker, &["clients", "ban", "--network", "127.0.0.0/8", "--for", "1s"]);
    eventually("the ban to end", || {
        publish(&broker, "meter", &["-t", "t", "-m", "x"]).status.success()
    });
}

#[test]
fn sessions_and_retained_messages_are_listed_and_deleted() {
    let broker = TestBroker::start();
    let url = format!("mqtt://localhost:{}", broker.address("mqtt").port());
    // A session that stays, with a queued message; and one whose client is connected.
    let mut command = fulmar();
    command.args(["sub", &url, "-t", "q/#", "-q", "1", "-i", "gone", "-c", "-E"]);
    run(&mut command);
    publish(&broker, "p", &["-t", "q/1", "-m", "x"]);
    // Its session would stay: deleting it has to end it.
    let mut here = fulmar();
    here.args(["sub", &url, "-t", "h/#", "-q", "1", "-i", "here", "-c"]);
    let mut here = here.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the other client", || ctl(&broker, &["clients", "show", "here"]).status.success());
    let sessions = json(&broker, &["sessions", "list"]);
    let names: Vec<_> = sessions.as_array().unwrap().iter().map(|one| &one["client"]).collect();
    assert!(names.windows(2).all(|pair| pair[0].as_str() < pair[1].as_str()), "{names:?}");
    let waiting = json(&broker, &["sessions", "list", "--disconnected", "--queued", "1"]);
    assert_eq!((waiting.as_array().unwrap().len(), &waiting[0]["client"]), (1, &"gone".into()));
    let gone = json(&broker, &["sessions", "show", "gone"]);
    assert_eq!(
        (&gone["filters"][0]["filter"], &gone["filters"][0]["qos"]),
        (&"q/#".into(), &1.into())
    );
    for client in ["gone", "here"] {
        good(&broker, &["sessions", "delete", client]);
    }
    here.kill().unwrap();
    here.wait().unwrap();
    let said = bad(&ctl(&broker, &["sessions", "delete", "gone"]));
    assert!(said.contains("no session"), "{said}");
    for topic in ["a", "a/b", "a/c", "b"] {
        publish(&broker, "p", &["-t", topic, "-m", "value", "-r"]);
    }
    let topics = |filter: &str| {
        let list = json(&broker, &["retained", "list", filter]);
        let list: Vec<_> =
            list.as_array().unwrap().iter().map(|one| one["topic"].clone()).collect();
        serde_json::to_string(&list).unwrap()
    };
    assert_eq!(topics("#"), r#"["a","a/b","a/c","b"]"#);
    assert_eq!(
        [topics("a/#"), topics("a/+"), topics("a")],
        [r#"["a","a/b","a/c"]"#, r#"["a/b","a/c"]"#, r#"["a"]"#]
    );
    assert_eq!(json(&broker, &["retained", "show", "a/b"])["payload"], "value");
    good(&broker, &["retained", "delete", "a/b"]);
    assert_eq!(topics("a/#"), r#"["a","a/c"]"#);
    // Each change is in the log, also of a broker that has ended.
    let entries = audit(&broker);
    let action = |entry: &Value| {
        format!("{} {}", entry["action"].as_str().unwrap(), entry["object"].as_str().unwrap())
    };
    let actions: Vec<String> = entries.iter().map(action).collect();
    assert_eq!(actions, ["session.delete gone", "session.delete here", "retained.delete a/b"]);
    let local = |entry: &Value| entry["result"] == "ok" && entry["from"] == "local";
    assert!(entries.iter().all(local), "{entries:?}");
}

#[test]
fn explain_names_the_rule_and_a_tap_shows_what_passes() {
    let rules = "[[acl.rules]]\nallow = true\naction = \"publish\"\ntopic = \"t/#\"\n\
                 [[acl.rules]]\nallow = false\naction = \"publish\"\ntopic = \"secret/#\"\n";
    let broker = TestBroker::builder().config(rules).start();
    let why = json(&broker, &["explain", "publish", "secret/a", "--client", "meter"]);
    assert_eq!(
        (&why["allowed"], &why["rule"]),
        (&false.into(), &"[[acl.rules]] number 2 of the configuration".into())
    );
    let why = json(&broker, &["explain", "publish", "t/a", "--client", "meter"]);
    assert_eq!((&why["allowed"], &why["connected"]), (&true.into(), &false.into()));
    let said = bad(&ctl(&broker, &["explain", "publish", "t/+"]));
    assert!(said.contains("topic"), "{said}");
    let ways =
        [(&[][..], ["t/x 21.5\n"; 3]), (&["--json"], ["\"qos\":0", "\"qos\":1", "\"qos\":2"])];
    for (json, shown) in ways {
        let lines = tempfile::NamedTempFile::new().unwrap();
        let mut command = fulmar();
        command.args(["ctl", "tap", "t/#"]).args(json).arg("--data").arg(broker.data());
        let mut tap = command.stdout(lines.reopen().unwrap()).spawn().unwrap();
        for (qos, shown) in ["0", "1", "2"].iter().zip(shown) {
            eventually("the tap to show a message with its QoS", || {
                let url = format!("mqtt://localhost:{}", broker.address("mqtt").port());
                run(fulmar().args(["pub", &url, "-t", "t/x", "-m", "21.5", "-q", qos]));
                std::fs::read_to_string(lines.path()).unwrap().replace(": ", ":").contains(shown)
            });
        }
        tap.kill().unwrap();
        tap.wait().unwrap();
    }
    // More than the default for a time, which is shown; a wrong filter says what to try.
    let log = json(&broker, &["log", "debug", "--for", "1s"]);
    assert!(log["until_ms"].is_u64() && log["filter"] == "debug", "{log}");
    eventually("the log to be as before", || {
        json(&broker, &["log"]) == serde_json::json!({ "filter": "info" })
    });
    let said = bad(&ctl(&broker, &["log", "loud"]));
    assert!(said.contains("try `debug`"), "{said}");
}

/// The entries of the log of changes.
fn audit(broker: &TestBroker) -> Vec<Value> {
    let audit = run(fulmar().args(["audit", "--json", "--data"]).arg(broker.data()));
    let lines = String::from_utf8(audit.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_backup_under_load_is_restored_with_sessions_messages_and_users() {
    let broker = TestBroker::start();
    let url = format!("mqtt://localhost:{}", broker.address("mqtt").port());
    run(fulmar().args(["sub", &url, "-t", "q/#", "-q", "1", "-i", "gone", "-c", "-E"]));
    publish(&broker, "p", &["-t", "q/1", "-m", "queued"]);
    publish(&broker, "p", &["-t", "last", "-m", "value", "-r"]);
    run(fulmar().args(["twin", "add", "rural", "--data"]).arg(broker.data()));
    good(&broker, &["clients", "ban", "--client", "bad", "--for", "1h"]);
    add_sensor(&broker);
    // Publications that are stored all the time: each one's number is acknowledged before the next is sent.
    let folder = tempfile::tempdir().unwrap();
    let mut load = fulmar();
    load.args(["pub", &url, "-q", "1", "-i", "load", "-t", "q/load", "-l"]).stdin(Stdio::piped());
    let mut load = load.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = load.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        let mut number = 0;
        while number < 1_000_000
            && std::io::Write::write_all(&mut lines, format!("{number}\n").as_bytes()).is_ok()
        {
            number += 1;
        }
    });
    let queued = |broker: &TestBroker| {
        json(broker, &["sessions", "show", "gone"])["queued_messages"].as_u64().unwrap()
    };
    eventually("load", || queued(&broker) > 50);
    let before = queued(&broker);
    let file = folder.path().join("backup.tar");
    good(&broker, &["backup", file.to_str().unwrap()]);
    let after = queued(&broker);
    load.kill().unwrap();
    load.wait().unwrap();
    writer.join().unwrap();
    let again = bad(&ctl(&broker, &["backup", file.to_str().unwrap()]));
    assert!(again.contains("exists"), "{again}");
    // Elsewhere.
    let mut other = TestBroker::start();
    let refused = bad(&ctl(&other, &["restore", file.to_str().unwrap()]));
    assert!(refused.contains("is not empty") && refused.contains("another folder"), "{refused}");
    other.kill();
    std::fs::remove_dir_all(other.data()).unwrap();
    good(&other, &["restore", file.to_str().unwrap()]);
    other.restart();
    let restored = queued(&other);
    assert!((before..=after.max(before)).contains(&restored), "{before} {restored} {after}");
    assert_eq!(json(&other, &["retained", "show", "last"])["payload"], "value");
    assert_eq!(json(&other, &["clients", "bans"])[0]["value"], "bad");
    let twins = run(fulmar().args(["twin", "list", "--data"]).arg(other.data()));
    assert!(String::from_utf8_lossy(&twins.stdout).contains("rural"), "{twins:?}");
    assert_eq!(std::fs::read(other.ca_file()).unwrap(), std::fs::read(broker.ca_file()).unwrap());
    // The backup's own entry has no result yet in the backup.
    let others = |broker: &TestBroker| -> Vec<Value> {
        audit(broker).into_iter().filter(|entry| entry["action"] != "backup").collect()
    };
    let (original, copy) = (others(&broker), others(&other));
    assert!(copy.iter().any(|entry| entry["action"] == "ban.add"), "{copy:?}");
    assert!(copy.iter().any(|entry| entry["action"] == "user.add"), "{copy:?}");
    assert_eq!(copy, original);
    for words in
        [["users", "show", "s1"], ["groups", "show", "sensors"], ["roles", "show", "sensor"]]
    {
        assert_eq!(json(&other, &words), json(&broker, &words));
    }
}

#[test]
fn the_page_of_administration_is_typed() {
    const PAGE: &str = include_str!("../../docs/administration.md");
    let broker = TestBroker::start();
    let folder = tempfile::tempdir().unwrap();
    let begins = [
        "fulmar ctl status",
        "fulmar ctl clients list",
        "fulmar ctl backup",
        "fulmar ctl restore",
        "fulmar audit",
    ];
    for begin in begins {
        let line = PAGE
            .lines()
            .find_map(|line| line.strip_prefix("    ").filter(|line| line.starts_with(begin)));
        let line = line.unwrap_or_else(|| panic!("no line begins with {begin:?}"));
        let to = folder.path().join("restored");
        let line = line.replace("/srv/fulmar", to.to_str().unwrap());
        let mut command = fulmar();
        command.args(line.split(' ').skip(1)).env("FULMAR_DATA", broker.data());
        let output = run(command.current_dir(folder.path()));
        assert!(output.status.success(), "{line}: {output:?}");
    }
}

/// Adds the user `s1` (password: correct horse) with a role that its group has.
fn add_sensor(broker: &TestBroker) {
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    std::fs::write(&password, "correct horse\n").unwrap();
    for words in [
        &["roles", "add", "sensor"][..],
        &["roles", "allow", "sensor", "publish", "sensors/%u/#"],
        &["groups", "add", "sensors", "--topic-roles", "sensor"],
    ] {
        good(broker, words);
    }
    let mut add = fulmar();
    add.args(["ctl", "users", "add", "s1", "--groups", "sensors", "--data"]).arg(broker.data());
    let added = run(add.stdin(std::fs::File::open(&password).unwrap()));
    assert!(added.status.success(), "{added:?}");
}

#[test]
fn explain_names_the_role_that_decides_and_what_else_keeps_its_user_out() {
    let broker = TestBroker::start();
    add_sensor(&broker);
    good(&broker, &["roles", "add", "plant"]);
    good(&broker, &["roles", "deny", "plant", "publish", "sensors/s1/secret"]);
    good(&broker, &["users", "change", "s1", "--topic-roles", "plant"]);
    let explain =
        |topic| json(&broker, &["explain", "publish", topic, "--client", "d1", "--user", "s1"]);
    let why = explain("sensors/s1/t");
    let rule = "role \"sensor\" of group \"sensors\": allow publish sensors/%u/#";
    assert_eq!((&why["allowed"], &why["rule"]), (&true.into(), &rule.into()));
    let why = explain("sensors/s1/secret");
    let rule = "role \"plant\": deny publish sensors/s1/secret";
    assert_eq!((&why["allowed"], &why["rule"]), (&false.into(), &rule.into()));
    let why = explain("elsewhere");
    let because = why["because"].as_str().unwrap();
    assert!(why["allowed"] == false && because.contains("roles matches"), "{because}");
    good(&broker, &["users", "change", "s1", "--disable", "--client-id", "d2"]);
    let why = explain("sensors/s1/t");
    let because = why["because"].as_str().unwrap();
    assert!(why["allowed"] == false && because.contains("users change s1 --enable"), "{why}");
    good(&broker, &["users", "change", "s1", "--enable"]);
    let why = explain("sensors/s1/t");
    let because = why["because"].as_str().unwrap();
    assert!(why["allowed"] == false && because.contains("client identifier \"d2\""), "{why}");
    good(&broker, &["users", "remove", "s1"]);
    let why = explain("sensors/s1/t");
    let because = why["because"].as_str().unwrap();
    assert!(why["allowed"] == false && because.contains("was removed"), "{why}");
}

#[test]
fn rules_of_groups_and_roles_change_for_a_connected_client() {
    let broker = TestBroker::start();
    add_sensor(&broker);
    assert_eq!(json(&broker, &["groups", "show", "sensors"])["members"][0], "s1");
    let rules = good(&broker, &["roles", "show", "sensor"]);
    assert_eq!(rules, "allow publish sensors/%u/# (priority 0)");
    // One connection, which publishes a line at a time.
    let url = format!("mqtt://localhost:{}", broker.address("mqtt").port());
    let mut client = fulmar();
    client.args(["pub", &url, "-q", "1", "-i", "d1", "-t", "sensors/s1/t", "-r", "-l", "-u", "s1"]);
    client.args(["-P", "correct horse"]);
    let mut client = client.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = client.stdin.take().unwrap();
    std::io::Write::write_all(&mut lines, b"1\n").unwrap();
    let retained = || ctl(&broker, &["retained", "show", "sensors/s1/t", "--json"]);
    eventually("the first message", || retained().status.success());
    good(&broker, &["roles", "unset", "sensor", "publish", "sensors/%u/#"]);
    // Its worker hears of it within a turn; then the client is refused, and ends.
    eventually("the client to be refused", || {
        let _ = std::io::Write::write_all(&mut lines, b"2\n");
        client.try_wait().unwrap().is_some_and(|status| !status.success())
    });
    let said = bad(&ctl(&broker, &["users", "change", "s1", "--groups", "none"]));
    assert!(said.contains("no such group"), "{said}");
    good(&broker, &["users", "change", "s1", "--disable", "--client-id", "d1"]);
    let shown = json(&broker, &["users", "show", "s1"]);
    assert_eq!((&shown["disabled"], &shown["client_id"]), (&true.into(), &"d1".into()));
    for words in
        [["groups", "remove", "sensors"], ["roles", "remove", "sensor"], ["users", "remove", "s1"]]
    {
        good(&broker, &words);
    }
}

#[test]
fn a_viewers_token_shows_clients_and_disconnects_none() {
    // Without the platform: the API's users are its own.
    let broker = TestBroker::builder().config("[platform]\nenabled = false\n").start();
    let folder = tempfile::tempdir().unwrap();
    let _client = Subscriber::start(&broker, "quic", "quic", "meter");
    let url = format!("https://localhost:{}", broker.address("https").port());
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let remote = |token: &str, words: &[&str]| {
        let mut command = fulmar();
        command.args(["ctl", "--url", &url, "--token-file", &file(token), "--ca"]);
        run(command.arg(broker.ca_file()).args(words))
    };
    for role in ["viewer", "operator", "administrator"] {
        good(
            &broker,
            &["tokens", "add", role, "--role", role, "--for", "1h", "--file", &file(role)],
        );
    }
    let list = remote("viewer", &["clients", "list"]);
    assert!(String::from_utf8_lossy(&list.stdout).contains("meter"), "{list:?}");
    let said = bad(&remote("viewer", &["clients", "disconnect", "meter"]));
    assert!(said.contains("requires the role operator; yours is viewer"), "{said}");
    assert!(!broker.log().contains("closed by operator"));
    let said = bad(&remote("operator", &["tokens", "list"]));
    assert!(said.contains("requires the role administrator"), "{said}");
    assert!(remote("operator", &["clients", "disconnect", "meter"]).status.success());
    broker.wait_for_log("closed by operator");
    // Revoked, it is wrong at once.
    assert!(remote("administrator", &["tokens", "remove", "viewer"]).status.success());
    let said = bad(&remote("viewer", &["clients", "list"]));
    assert!(said.contains("wrong or expired credentials"), "{said}");
}

/// A one-shot `pub` has gone when its user asks why it was refused.
#[test]
fn explain_does_not_speak_for_users_that_it_does_not_know() {
    let broker = TestBroker::builder().config("[platform]\nenabled = false\n").start();
    let why = json(&broker, &["explain", "publish", "t", "--client", "s1"]);
    let notes = why["notes"].to_string();
    assert!(why["allowed"] == true && notes.contains("no session of") && notes.contains("--user"));
    let why = json(&broker, &["explain", "publish", "t", "--user", "nosuch"]);
    assert!(why["notes"].to_string().contains("neither the password file"), "{why}");
    let folder = tempfile::tempdir().unwrap();
    let passwords = folder.path().join("passwords");
    fulmar_tests::write_secret(&passwords, "# none yet\n");
    let closed = format!("[auth]\nallow_anonymous = \"never\"\npassword_file = {passwords:?}\n");
    let closed = TestBroker::builder().config(&closed).start();
    let why = json(&closed, &["explain", "publish", "t", "--client", "s1"]);
    let because = why["because"].as_str().unwrap();
    assert!(why["allowed"] == false && because.contains("allow_anonymous"), "{because}");
    assert!(because.contains("--user"), "{because}");
}

#[test]
fn explain_names_limits_that_are_reached_and_bans_of_networks() {
    let broker = TestBroker::builder()
        .config(
            "[limits]\nmax_sessions = 1\nmax_subscriptions_per_session = 1\n\
             [platform]\nenabled = false\n",
        )
        .start();
    let notes = |words: &[&str]| json(&broker, words)["notes"].to_string();
    let publish = ["explain", "publish", "a", "--client", "d2", "--user", ""];
    assert_eq!(notes(&publish), "[]");
    let url = format!("mqtt://{}", broker.address("mqtt"));
    let mut sub = fulmar();
    sub.args(["sub", &url, "-i", "d1", "-t", "a/#"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut sub = sub.spawn().unwrap();
    let subscribed = || json(&broker, &["clients", "list"])[0]["subscriptions"] == 1;
    eventually("the first client", subscribed);
    let full = notes(&publish);
    assert!(full.contains("[limits] max_sessions") && full.contains("there are 1"), "{full}");
    assert_eq!(notes(&["explain", "subscribe", "a/#", "--client", "d1"]), "[]", "it has that");
    let full = notes(&["explain", "subscribe", "b", "--client", "d1"]);
    assert!(full.contains("max_subscriptions_per_session"), "{full}");
    good(&broker, &["clients", "ban", "--network", "192.0.2.0/24", "--for", "1h"]);
    let at = |address| {
        json(&broker, &["explain", "publish", "a", "--client", "d1", "--address", address])
    };
    let banned = at("192.0.2.77");
    let because = banned["because"].as_str().unwrap();
    assert!(banned["allowed"] == false && because.contains("clients unban"), "{banned}");
    assert_eq!(at("192.0.3.77")["allowed"], true);
    sub.kill().unwrap();
    sub.wait().unwrap();
}

/// `fulmar ctl users` or `fulmar user` with a password: what it prints besides.
fn user(broker: &TestBroker, words: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    write_secret(folder.path().join("password"), "correct horse\n");
    let mut command = fulmar();
    command.stdin(std::fs::File::open(folder.path().join("password")).unwrap());
    let output = run(command.args(words).arg("--data").arg(broker.data()));
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{words:?}: {printed}");
    printed
}

#[test]
fn the_first_user_for_clients_is_announced_and_an_administrator_changes_nothing_for_them() {
    const NOTE: &str = "the broker refuses user names that it does not know";
    let broker = TestBroker::builder().config("[platform]\nenabled = false\n").start();
    let connects = |user: &str, password: &str| {
        let url = format!("mqtt://localhost:{}", broker.address("mqtt").port());
        let mut command = fulmar();
        command.args(["pub", &url, "-t", "t", "-m", "m", "-u", user]);
        run(command.env("FULMAR_PASSWORD", password)).status.success()
    };
    assert!(connects("bob", "any password"));
    let ctl = ["ctl", "users", "add", "root", "--role", "administrator"];
    assert!(!user(&broker, &ctl).contains(NOTE));
    assert!(connects("bob", "any password"));
    assert!(connects("root", "correct horse") && !connects("root", "any password"));
    user(&broker, &["ctl", "users", "add", "second", "--role", "viewer"]);
    good(&broker, &["users", "remove", "second"]);
    assert!(connects("bob", "any password") && !connects("second", "correct horse"));
    let printed = user(&broker, &["ctl", "users", "change", "root", "--topic-roles", ""]);
    assert!(!printed.contains(NOTE) && connects("bob", "any password"), "{printed}");
    let printed = user(&broker, &["user", "add", "ann"]);
    assert!(printed.contains(NOTE) && printed.contains("--role administrator"), "{printed}");
    assert!(printed.find(NOTE) < printed.find("added ann"), "{printed}");
    eventually("the change", || !connects("bob", "any password"));
    for words in [["user", "add", "carl"].as_slice(), &["ctl", "users", "add", "dora"]] {
        let printed = user(&broker, words);
        assert!(!printed.contains(NOTE), "{printed}");
    }
}
