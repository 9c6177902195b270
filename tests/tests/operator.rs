//! The operator's first hour: what `docs/guide.md` says of it, typed line by line; who is here, what the log says of
//! them, and commands that end as they should.
#![allow(clippy::unwrap_used)]

use std::net::UdpSocket;
use std::process::Stdio;
use std::time::Duration;

use fulmar_tests::{
    Host, PATIENCE, Program, TestBroker, blocks, eventually, fulmar, http_get, run,
};

const GUIDE: &str = include_str!("../../docs/guide.md");

fn stderr(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_client_is_listed_and_the_log_says_who_came_went_and_was_refused() {
    let denied = "[[acl.rules]]\nallow = false\naction = \"publish\"\ntopic = \"secret/#\"\n";
    let broker = TestBroker::builder().config(denied).start();
    let at = |name: &str| broker.address(name).port();
    let urls = [
        ("tcp", format!("mqtt://localhost:{}", at("mqtt"))),
        ("tls", format!("mqtts://localhost:{}", at("mqtts"))),
        ("ws", format!("ws://localhost:{}", at("ws"))),
        ("wss", format!("wss://localhost:{}", at("wss"))),
        ("quic", format!("quic://localhost:{}", at("quic"))),
    ];
    let mut clients: Vec<_> = urls
        .iter()
        .map(|(transport, url)| {
            let mut command = fulmar();
            command.args(["sub", url, "-t", "t/#", "-t", "u", "-i", transport, "--cafile"]);
            command.arg(broker.ca_file()).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().unwrap()
        })
        .collect();
    let http = broker.address("http");
    for (transport, _) in &urls {
        let page = || http_get(http, &format!("/connections/{transport}"));
        eventually("the client to be listed with its subscriptions", || {
            let (status, text) = page();
            status == 200 && text.contains("\"subscriptions\":2")
        });
        let one: serde_json::Value = serde_json::from_str(&page().1).unwrap();
        assert_eq!(one["transport"], *transport, "{one}");
        assert!(one["address"].as_str().unwrap().contains("127.0.0.1:"), "{one}");
        assert!(one["since_ms"].as_u64() > Some(1_700_000_000_000), "{one}");
        assert_eq!((&one["queued_messages"], one["user"].is_null()), (&0.into(), true), "{one}");
    }
    let all: serde_json::Value = serde_json::from_str(&http_get(http, "/connections").1).unwrap();
    assert_eq!(all["connections"].as_array().unwrap().len(), urls.len(), "{all}");
    for client in &mut clients {
        client.kill().unwrap();
        client.wait().unwrap();
    }
    for words in ["connected", "disconnected: "] {
        let line = broker.wait_for_log(words);
        assert!(
            line.contains("INFO") && line.contains("peer=") && line.contains("client="),
            "{line}"
        );
    }
    // More refusals than the log takes at once: it says how many it left out.
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("lines");
    std::fs::write(&lines, "x\n".repeat(1000)).unwrap();
    let publish = |input: &str| {
        let mut command = fulmar();
        command.args(["pub", &urls[0].1, "-t", "secret/a", "-q", "0", "-i", "nosy"]);
        match input {
            "" => command.args(["-m", "x"]),
            _ => command.arg("-l").stdin(std::fs::File::open(&lines).unwrap()),
        };
        run(&mut command)
    };
    publish("lines");
    eventually("what was left out to be said", || {
        publish("");
        broker.log().contains("lines like the next were omitted")
    });
    let refused = broker.log().lines().filter(|line| line.contains("publication denied")).count();
    assert!((200..600).contains(&refused), "{refused} lines");
}

/// What a page says of the log: parts of a line, with what differs left out.
fn expect_logged(server: &Program, lines: &str) {
    for pattern in lines.lines() {
        let parts: Vec<&str> = pattern.split('…').map(str::trim).collect();
        let found = server.log.find(PATIENCE, |line| parts.iter().all(|part| line.contains(part)));
        assert!(found.is_some(), "{pattern}\n{}", server.log.text());
    }
}

#[test]
fn the_guides_first_hour_works_as_it_is_typed() {
    let folder = tempfile::tempdir().unwrap();
    let mut host = Host::new(folder.path());
    for name in ["ann", "sensor", "carol"] {
        let password = format!("the password of {name}");
        std::fs::write(host.folder().join(format!("{name}.password")), password).unwrap();
    }
    let mut server = None;
    for (language, text) in blocks(GUIDE, "### Set it up") {
        match language.as_str() {
            "toml" => host.write(&text),
            _ => text.lines().for_each(|line| {
                if line.starts_with("fulmar serve") && !line.ends_with("--check") {
                    server = Some(host.starts(line));
                } else {
                    host.good(line);
                }
            }),
        }
    }
    let server = server.unwrap();
    for (name, port) in
        [("mqtt://localhost", "mqtt"), ("mqtts://localhost", "mqtts"), ("quic://localhost", "quic")]
    {
        host.says(name, &format!("{name}:{}", server.address(port).port()));
    }
    host.says("127.0.0.1:14568", &server.address("http").to_string());
    host.says("localhost:8443", &format!("localhost:{}", server.address("https").port()));

    let lines: Vec<String> = blocks(GUIDE, "### Check that it works")
        .iter()
        .flat_map(|(_, text)| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let [subscribe, publish, administrator, status, client, ready, metrics, page] = &lines[..]
    else {
        panic!("{lines:?}")
    };
    let subscriber = host.leaves(subscribe);
    eventually("the subscription", || {
        http_get(server.address("http"), "/connections/desk").1.contains("\"subscriptions\":1")
    });
    host.good(publish);
    assert!(subscriber.log.find(PATIENCE, |line| line == "plant/temperature 21.5").is_some());
    assert_eq!(host.good(administrator), "added");
    let status = host.good(status);
    assert!(status.starts_with("health       good\n"), "{status}");
    assert!(status.contains("clients      1 connected, 1 quic\n"), "{status}");
    let client: serde_json::Value = serde_json::from_str(&host.good(client)).unwrap();
    assert_eq!((&client["user"], &client["transport"]), (&"ann".into(), &"quic".into()));
    assert_eq!(host.good(ready), "ok");
    assert!(host.good(metrics).contains("fulmar_connections{transport=\"quic\"} 1"));
    let page = host.good(page);
    let quic = format!("quic://localhost:{}", server.address("quic").port());
    let http = format!("http://localhost:{}/metrics", server.address("http").port());
    for part in ["<h1>Fulmar ", &quic, &http, "/health/ready", "docs/guide.md"] {
        assert!(page.contains(part), "{part}\n{page}");
    }
    assert!(!page.contains("Meter reading"), "{page}");
    let port = server.address("https").port();
    for (user, status, reason) in
        [("carol", "201", "session"), ("ann", "403", "no administration role")]
    {
        let login = format!("{{\"user\":\"{user}\",\"password\":\"the password of {user}\"}}");
        let mut curl = std::process::Command::new("curl");
        curl.args([
            "-sSk",
            "-w",
            "%{http_code}",
            "-H",
            "Content-Type: application/json",
            "-d",
            &login,
        ]);
        let output = run(curl.arg(format!("https://localhost:{port}/api/admin/v1/session")));
        let answer = String::from_utf8(output.stdout).unwrap();
        assert!(answer.ends_with(status) && answer.contains(reason), "{user}: {answer}");
    }

    for (language, text) in blocks(GUIDE, "### Check what it refuses") {
        if language == "text" {
            expect_logged(&server, &text);
            continue;
        }
        for line in text.lines() {
            let output = host.types(line);
            // A take-over is no refusal.
            let fails = !line.starts_with("fulmar cert") && !line.contains(" -i desk ");
            assert_eq!(output.status.success(), !fails, "{line}\n{}", stderr(&output));
            assert!(!fails || !output.stderr.is_empty(), "{line}");
        }
    }
}

/// Whoever opens the address that the ready line names is told what is there.
#[test]
fn the_http_port_lists_its_pages() {
    let broker = TestBroker::start();
    let http = broker.address("http");
    let (status, pages) = http_get(http, "/");
    assert_eq!(status, 200);
    let paths: Vec<&str> = pages.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert!(paths.contains(&"/metrics") && paths.contains(&"/connections"), "{pages}");
    for path in paths {
        let expected = match path {
            "/health/upstream" | "/health/sinks" => 404,
            "/publish/TOPIC" => 405,
            _ => 200,
        };
        assert_eq!(http_get(http, path).0, expected, "{path}");
    }
    let (status, text) = http_get(http, "/health");
    assert!(status == 404 && text.contains("/ lists them"), "{status} {text}");
}

/// What the guide says of a session that is made now and read from later.
#[test]
fn a_session_that_the_guide_makes_keeps_what_comes_meanwhile() {
    let broker = TestBroker::start();
    let folder = tempfile::tempdir().unwrap();
    let mut host = Host::new(folder.path());
    host.says("mqtt://localhost", &format!("mqtt://{}", broker.address("mqtt")));
    let line = GUIDE.lines().find(|line| line.contains(" -E -c ")).unwrap();
    let (command, _) = line.trim().split_once("    create a session").unwrap();
    host.good(command);
    host.good("fulmar pub mqtt://localhost -t a/b -m kept -q 1");
    assert_eq!(host.good(&format!("{} -C 1 -W 20", command.replace(" -E ", " "))), "kept");
}

/// The address greets who cannot use the app, and no others.
#[test]
fn the_address_is_the_app_once_somebody_can_log_in() {
    let broker = TestBroker::start();
    let page = || {
        let mut curl = std::process::Command::new("curl");
        curl.arg("-sS").arg("--cacert").arg(broker.ca_file());
        let output =
            run(curl.arg(format!("https://localhost:{}/", broker.address("https").port())));
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let greeting = page();
    assert!(greeting.contains("fulmar user add") || greeting.contains("make web"), "{greeting}");
    assert!(greeting.contains("Metrics are at"), "{greeting}");
    let without_app = greeting.contains("make web");
    let password = broker.data().join("password");
    std::fs::write(&password, "correct horse").unwrap();
    let mut add = fulmar();
    add.args(["user", "add", "ann", "--admin", "--data"]).arg(broker.data());
    let output = run(add.stdin(std::fs::File::open(password).unwrap()));
    assert!(output.status.success(), "{}", stderr(&output));
    if !without_app {
        eventually("the app", || !page().contains("Metrics are at"));
    }
}

#[test]
fn clients_of_coap_and_mqtt_sn_are_listed() {
    let broker = TestBroker::builder().listen("mqtt_sn", &["127.0.0.1:0"]).start();
    let device = UdpSocket::bind("127.0.0.1:0").unwrap();
    device.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    // CONNECT of MQTT-SN 1.2: clean session, protocol 1, Keep Alive 60 s; answered by CONNACK, accepted.
    let connect = [&[10, 4, 0x04, 1, 0, 60][..], b"pump"].concat();
    let mut answer = [0; 16];
    eventually("CONNACK", || {
        device.send_to(&connect, broker.address("mqtt_sn")).unwrap();
        device.recv(&mut answer).is_ok_and(|length| answer[..length] == [3, 5, 0])
    });
    let url = format!("coap://{}", broker.address("coap"));
    let mut observer =
        fulmar().args(["sub", &url, "-t", "a"]).stdout(Stdio::null()).spawn().unwrap();
    let http = broker.address("http");
    for (transport, subscriptions) in [("mqtt-sn", 0), ("coap", 1)] {
        let mut found = None;
        eventually(transport, || {
            let all: serde_json::Value =
                serde_json::from_str(&http_get(http, "/connections").1).unwrap();
            let clients = all["connections"].as_array().unwrap();
            let ours = clients
                .iter()
                .find(|one| one["transport"] == transport && one["subscriptions"] == subscriptions);
            found = ours.cloned();
            found.is_some()
        });
        let found = found.unwrap();
        assert!(found["address"].as_str().unwrap().contains("127.0.0.1:"), "{found}");
        assert!(found["since_ms"].as_u64() > Some(1_700_000_000_000), "{found}");
    }
    let (status, text) = http_get(http, "/connections/pump");
    let own = device.local_addr().unwrap().to_string();
    assert!(status == 200 && text.contains(&own), "{text}");
    observer.kill().unwrap();
    observer.wait().unwrap();
}

#[test]
fn a_denied_topic_is_named() {
    let denied = "[[acl.rules]]\nallow = false\naction = \"publish\"\ntopic = \"secret/#\"\n";
    let broker = TestBroker::builder().config(denied).start();
    let url = format!("mqtt://{}", broker.address("mqtt"));
    let output = run(fulmar().args(["pub", &url, "-t", "secret/a", "-m", "x", "-q", "1"]));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let wanted = "topic \"secret/a\": the broker refused the publication: Not authorized (0x87); this client \
                  may not publish to this topic";
    assert!(said.contains(wanted), "{said}");
}

#[test]
fn a_file_that_is_missing_is_wrong_configuration() {
    for (section, key) in [("auth", "password_file"), ("tls", "cert"), ("coap", "psk_file")] {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("fulmar.toml");
        let more = if key == "cert" { "key = \"/none/key.pem\"\n" } else { "" };
        std::fs::write(&config, format!("[{section}]\n{key} = \"/none/here\"\n{more}")).unwrap();
        let mut command = fulmar();
        command.arg("serve").arg("--config").arg(&config);
        let output = run(command.arg("--data").arg(folder.path().join("data")));
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(key) && said.contains("/none/here"), "{said}");
        let can_be_created = said.contains("create it with `fulmar passwd USER --file /none/here`");
        assert_eq!(can_be_created, key == "password_file", "{said}");
    }
}

/// Of all actions on a platform only those that need nothing there may create one.
#[test]
fn a_mistyped_data_folder_is_named_and_not_made() {
    let home = tempfile::tempdir().unwrap();
    let (missing, empty) = (home.path().join("typo"), home.path().join("empty"));
    std::fs::create_dir(&empty).unwrap();
    let token = home.path().join("token");
    let token = token.to_str().unwrap();
    let actions: [&[&str]; 12] = [
        &["user", "list"],
        &["user", "passwd", "ann"],
        &["user", "remove", "ann"],
        &["user", "role", "ann", "--twin", "t", "--role", "office"],
        &["user", "add", "ann", "--twin", "t", "--role", "office"],
        &["user", "add", "ann", "--admin", "--twin", "t", "--role", "office"],
        &["user", "add", "ann"],
        &["user", "token", "gw", "--list"],
        &["user", "token", "gw", "--revoke", "all"],
        &["user", "token", "gw", "--file", token],
        &["user", "token", "gw", "--twin", "t", "--role", "device", "--file", token],
        &["twin", "list"],
    ];
    for (folder, why) in [(&missing, "does not exist"), (&empty, "has no platform database")] {
        for action in actions {
            let mut command = fulmar();
            command.args(action).arg("--data").arg(folder).stdin(Stdio::null());
            let output = run(&mut command);
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{action:?}: {said}");
            if action != ["user", "add", "ann"] {
                let named = format!("data folder {} {why}", folder.display());
                assert!(said.contains(&named) && said.contains("--data"), "{action:?}: {said}");
                assert!(said.contains("fulmar twin add"), "{action:?}: {said}");
            }
        }
    }
    assert!(!missing.exists() && !home.path().join("token").exists());
    assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0, "nothing is left in it");

    let create: [(&str, &[&str]); 2] =
        [("a", &["user", "add", "ann", "--admin"]), ("b", &["twin", "add", "hamburg"])];
    for (name, action) in create {
        let folder = home.path().join(name);
        let password = home.path().join("password");
        std::fs::write(&password, "correct horse").unwrap();
        let mut command = fulmar();
        command.args(action).arg("--data").arg(&folder);
        let output = run(command.stdin(std::fs::File::open(password).unwrap()));
        assert!(output.status.success(), "{action:?}: {}", stderr(&output));
        let mut list = fulmar();
        let output = run(list.args([action[0], "list", "--data"]).arg(&folder));
        assert!(String::from_utf8(output.stdout).unwrap().starts_with(action[2]), "{action:?}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    for words in [&["lab", "list"][..], &["lab", "link", "--list"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = fulmar();
        let child = command.args(words).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        drop(command);
        let output = child.wait_with_output().unwrap();
        let said = stderr(&output);
        assert_eq!((output.status.code(), said.as_str()), (Some(0), ""), "{words:?}");
    }
}

/// The command that `--help` names lists what the option takes.
#[test]
fn the_demos_help_names_the_list_of_links() {
    for demo in ["meters", "homes"] {
        let help = run(fulmar().args(["demo", demo, "--help"]));
        let help = String::from_utf8(help.stdout).unwrap();
        let (_, option) = help.split_once("--link <PROFILE>").unwrap();
        let words: Vec<&str> = option.split_whitespace().collect();
        let text = words.join(" ");
        let (_, after) = text.split_once("one of `fulmar ").unwrap();
        let (command, after) = after.split_once('`').unwrap();
        let (_, default) = after.split_once("[default: ").unwrap();
        let (default, _) = default.split_once(']').unwrap();
        let list = run(fulmar().args(command.split(' ')));
        let list = String::from_utf8(list.stdout).unwrap();
        for link in [default, "2g-64k"] {
            assert!(
                list.lines().any(|line| line.starts_with(&format!("{link}: "))),
                "{demo}: {link}"
            );
        }
    }
}

#[test]
fn experiments_are_there_in_any_folder_and_a_file_overrides() {
    let folder = tempfile::tempdir().unwrap();
    let list = || {
        let output = run(fulmar().args(["lab", "list"]).current_dir(folder.path()));
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let before = list();
    assert!(before.lines().any(|line| line.starts_with("mqtt-quic ")), "{before}");
    assert!(!before.contains("cannot be run"), "{before}");
    std::fs::create_dir(folder.path().join("experiments")).unwrap();
    std::fs::write(folder.path().join("experiments/mqtt-quic.toml"), "mistake").unwrap();
    let after = list();
    let own = after.lines().find(|line| line.starts_with("mqtt-quic ")).unwrap();
    assert!(own.contains("cannot be run"), "{own}");
}

#[test]
fn sending_says_when_nobody_receives_and_takes_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b", ".hidden"] {
        std::fs::write(folder.path().join(name), name).unwrap();
    }
    // Nobody listens at a port that is held and not read.
    let held = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = held.local_addr().unwrap().to_string();
    let mut command = fulmar();
    let output = run(command.arg("send").arg(folder.path()).args(["--to", &to, "--patience", "1"]));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no receiver has answered") && said.contains("fulmar receive"), "{said}");
    assert!(said.contains("0 of 1 receivers"), "{said}");
    let sent = String::from_utf8(output.stdout).unwrap();
    let names: Vec<&str> = sent.lines().filter_map(|line| line.split("  ").nth(1)).collect();
    assert_eq!(names, ["a", "b"]);
}
