//! `fulmar pub` and `fulmar sub` as people and scripts use them: through the program.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::{Child, Command, Output, Stdio};

use fulmar_tests::{TestBroker, eventually, fulmar, run, write_secret};
use serde_json::Value;

/// `fulmar COMMAND` at the broker's listener `name`.
fn at(broker: &TestBroker, command: &str, name: &str) -> Command {
    let address = broker.address(name);
    let mut made = fulmar();
    made.args([command, "--cafile"]).arg(broker.ca_file());
    // The listeners have the names of their schemes.
    made.arg(format!("{name}://localhost:{}", address.port()));
    made.stdin(Stdio::null());
    made
}

fn words(command: &mut Command, line: &str) -> Output {
    run(command.args(line.split(' ')))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs it and gives its standard output without the last line feed; it must succeed.
fn good(command: &mut Command, line: &str) -> String {
    let output = words(command, line);
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Makes a session of this client identifier that keeps what is published.
fn session(broker: &TestBroker, id: &str, filter: &str) {
    good(&mut at(broker, "sub", "mqtt"), &format!("-E -c -i {id} -q 2 -t {filter}"));
}

/// What the session has been kept.
fn kept(broker: &TestBroker, id: &str, filter: &str, count: usize, more: &str) -> String {
    let line = format!("-c -i {id} -q 2 -t {filter} -C {count}{more}");
    good(&mut at(broker, "sub", "mqtt"), &line)
}

/// Runs with something on standard input.
fn with_input(command: &mut Command, line: &str, input: &[u8]) -> Output {
    command.args(line.split(' ')).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child: Child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn every_source_of_a_payload_arrives_as_it_is() {
    let broker = TestBroker::start();
    session(&broker, "s", "in/#");
    let file = broker.data().join("payload");
    std::fs::write(&file, "of a file\nof two lines").unwrap();
    let publish = || at(&broker, "pub", "mqtt");
    good(&mut publish(), "-q 1 -t in/m -m -5.5");
    good(&mut publish(), &format!("-q 1 -t in/f -f {}", file.display()));
    good(&mut publish(), "-q 1 -t in/n -n");
    assert!(with_input(&mut publish(), "-q 1 -t in/s -s", b"a\nb\n").status.success());
    assert!(with_input(&mut publish(), "-q 1 -t in/l -l", b"c\nd").status.success());
    let all = kept(&broker, "s", "in/#", 6, " -F %t=%p;");
    let wanted = [
        "in/m=-5.5;",
        "in/f=of a file\nof two lines;",
        "in/n=;",
        "in/s=a\nb\n;",
        "in/l=c;",
        "in/l=d;",
    ];
    assert_eq!(all, wanted.join("\n"));
}

#[test]
fn properties_go_out_and_come_back_as_json() {
    let broker = TestBroker::start();
    session(&broker, "s", "t");
    let line = "-q 1 -t t -m x -D publish content-type text/plain \
                -D publish user-property room attic -D publish response-topic r";
    good(&mut at(&broker, "pub", "mqtt"), &line.split_whitespace().collect::<Vec<_>>().join(" "));
    let message: Value = serde_json::from_str(&kept(&broker, "s", "t", 1, " --json")).unwrap();
    assert_eq!(message["topic"], "t");
    assert_eq!(message["payload"], "x");
    assert_eq!(message["qos"], 1);
    assert_eq!(message["properties"]["content-type"], "text/plain");
    assert_eq!(message["properties"]["response-topic"], "r");
    assert_eq!(message["properties"]["user-properties"][0][1], "attic");
}

#[test]
fn what_is_printed_can_be_chosen() {
    let broker = TestBroker::start();
    session(&broker, "s", "#");
    let publish = |line: &str| good(&mut at(&broker, "pub", "mqtt"), line);
    publish("-q 1 -t a/hidden -m 1");
    publish("-q 1 -t a/shown -m 2");
    publish("-q 1 -t b -m 3");
    assert_eq!(kept(&broker, "s", "#", 2, " -v -N -T a/hidden -T c/#"), "a/shown 2b 3");
    publish("-r -q 1 -t kept -m old");
    // The retained message does not count; a new one ends it, however late it is subscribed.
    let mut sub = at(&broker, "sub", "mqtt");
    sub.args(["-R", "-t", "kept", "-C", "1"]).stdout(Stdio::piped());
    let mut sub = sub.spawn().unwrap();
    eventually("a message that is not retained", || {
        publish("-q 1 -t kept -m new");
        sub.try_wait().unwrap().is_some()
    });
    assert_eq!(text(&sub.wait_with_output().unwrap().stdout), "new\n");
}

#[test]
fn repetitions_and_the_connection_are_told_in_json() {
    let broker = TestBroker::start();
    for listener in ["mqtt", "quic"] {
        let line = "-q 1 -t t -m x --repeat 3 --repeat-delay 0.01 --json";
        let told = good(&mut at(&broker, "pub", listener), line);
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["delivered"], 3);
        assert_eq!(told["transport"], listener);
        assert_eq!(told["early_data"], false);
        assert_eq!(told["rtt_ms"].is_number(), listener == "quic", "{told}");
        assert_eq!(told["migrations"].is_number(), listener == "quic", "{told}");
    }
}

#[test]
fn many_lines_go_over_several_streams_and_statistics_tell() {
    let broker = TestBroker::start();
    session(&broker, "s", "t/#");
    let lines: String = (0..500).map(|number| format!("{number}\n")).collect();
    let line = "-q 2 -t t/x -l --streams both --persistent-flows --stats --json";
    let output = with_input(&mut at(&broker, "pub", "quic"), line, lines.as_bytes());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["delivered"], &told["data_streams"]), (&500.into(), &1.into()), "{told}");
    let last = text(&output.stderr).lines().last().unwrap().to_owned();
    let last: Value = serde_json::from_str(&last).unwrap();
    assert_eq!(last["messages"], 500);
    assert_eq!(kept(&broker, "s", "t/#", 500, ""), lines.trim_end());
}

#[test]
fn passwords_come_from_standard_input_or_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("passwords");
    let made = with_input(&mut fulmar(), "passwd ann", b"secret\n");
    write_secret(&file, made.stdout);
    let file = file.display().to_string();
    let config = format!("[auth]\nallow_anonymous = \"never\"\npassword_file = {file:?}\n");
    let broker = TestBroker::builder().config(&config).start();
    let publish = || at(&broker, "pub", "mqtt");
    let line = "-u ann -P - -q 1 -t t -m x";
    assert!(with_input(&mut publish(), line, b"secret\n").status.success());
    let wrong = with_input(&mut publish(), line, b"guess\n");
    assert_eq!(wrong.status.code(), Some(1));
    assert!(
        text(&wrong.stderr).contains("check user name and password"),
        "{}",
        text(&wrong.stderr)
    );
    good(publish().env("FULMAR_PASSWORD", "secret"), "-u ann -q 1 -t t -m x");
    let nobody = words(&mut publish(), "-q 1 -t t -m x");
    assert!(text(&nobody.stderr).contains("-u and -P"), "{}", text(&nobody.stderr));
}

#[test]
fn an_unknown_scheme_is_answered_with_all_known_ones() {
    for (command, more) in [("pub", "-n"), ("sub", "-v")] {
        let output = run(fulmar().args([command, "http://localhost", "-t", "t", more]));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        for scheme in ["mqtt", "mqtts", "quic", "ws", "wss", "coap", "coaps"] {
            assert!(said.split([' ', ',']).any(|word| word.trim() == scheme), "{scheme}: {said}");
        }
    }
}

#[test]
fn a_will_is_published_when_its_client_is_killed() {
    let broker = TestBroker::start();
    session(&broker, "s", "will");
    let mut sub = at(&broker, "sub", "mqtt");
    sub.args("-t ready --will-topic will --will-payload gone --will-qos 1".split(' '));
    let mut sub = sub.args(["-v"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    // Once it prints something it is connected.
    good(&mut at(&broker, "pub", "mqtt"), "-r -q 1 -t ready -m yes");
    std::io::Read::read_exact(sub.stdout.as_mut().unwrap(), &mut first).unwrap();
    sub.kill().unwrap();
    sub.wait().unwrap();
    assert_eq!(kept(&broker, "s", "will", 1, ""), "gone");
}

#[test]
fn wrong_usage_names_what_is_right() {
    let broker = TestBroker::start();
    for (line, hint) in [
        ("-t t -m x -D publish colour red", "message-expiry-interval"),
        ("-t t/# -m x", "t/#"),
        ("-t t -m x -V 311 -D publish content-type a", "MQTT 3.1.1 has no properties"),
        ("-t t -m x --streams many", "subscription"),
        ("-t t -m x --max-streams 0", "1 to 64"),
    ] {
        let output = words(&mut at(&broker, "pub", "mqtt"), line);
        assert_eq!(output.status.code(), Some(2), "{line}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(hint), "{line}: {}", text(&output.stderr));
    }
}

#[test]
fn what_other_programs_call_it_works_or_is_answered_with_what_to_type() {
    let broker = TestBroker::start();
    let port = broker.address("mqtt").port().to_string();
    for (command, more) in [("pub", "-m x"), ("sub", "-C 1")] {
        let line = format!("{command} -h localhost -p {port} -t t {more} -P secret");
        let output = run(fulmar().args(line.split(' ')));
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b""[..]), "{said}");
        assert!(said.contains(&format!("fulmar {command} mqtt://localhost:{port} ")), "{said}");
        assert!(!said.contains("secret"), "{said}");
        let help = run(fulmar().args([command, "-h"]));
        assert!(help.status.success() && text(&help.stdout).contains("Usage: fulmar"), "{help:?}");
    }
    let url = format!("tcp://localhost:{port}");
    good(fulmar().args(["publish", &url]), "-r -q 1 -t t -m x");
    assert_eq!(good(fulmar().args(["subscribe", &url]), "-t t -C 1"), "x");
    assert!(run(fulmar().args(["start", "--help"])).status.success());
}

#[test]
fn a_certificate_of_an_unknown_ca_is_answered_with_where_to_name_the_ca() {
    let broker = TestBroker::start();
    let other = tempfile::tempdir().unwrap();
    assert!(run(fulmar().args(["cert", "ca", "--dir"]).arg(other.path())).status.success());
    for (scheme, name) in [("mqtts", "mqtts"), ("ssl", "mqtts"), ("quic", "quic"), ("wss", "https")]
    {
        let url = format!("{scheme}://localhost:{}", broker.address(name).port());
        let mut command = fulmar();
        command
            .args(["pub", &url, "-t", "t", "-m", "x", "--cafile"])
            .arg(other.path().join("ca.pem"));
        let output = run(&mut command);
        assert!(
            text(&output.stderr).contains("; give the server's CA with --cafile"),
            "{output:?}"
        );
    }
}
