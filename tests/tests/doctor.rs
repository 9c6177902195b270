//! `fulmar doctor` on a machine with real faults. A path that drops UDP is in `tests/interop/test_doctor.py`.
#![allow(clippy::unwrap_used)]

use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use fulmar_tests::{TestBroker, default_listeners, fulmar, run};
use serde_json::Value;

/// The command, on free ports.
fn doctor(data: &Path) -> Command {
    let mut command = fulmar();
    command.args(["doctor", "--json", "--data"]).arg(data);
    on_free_ports(&mut command);
    command
}

fn on_free_ports(command: &mut Command) {
    for (name, _) in default_listeners() {
        command.env(format!("FULMAR_LISTENERS__{}", name.to_uppercase()), r#"["127.0.0.1:0"]"#);
    }
}

/// Exit code and the findings of a check, or all without a name.
fn findings(command: &mut Command, check: &str) -> (i32, Vec<Value>) {
    let output = run(command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let json: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}\n{error}"));
    let all = json["findings"].as_array().unwrap().iter();
    let found = all.filter(|finding| check.is_empty() || finding["check"] == check).cloned();
    (output.status.code().unwrap(), found.collect())
}

/// Asserts that the only finding of a check is a problem with this text.
#[track_caller]
fn problem(command: &mut Command, check: &str, part: &str) -> Value {
    let (code, found) = findings(command, check);
    assert_eq!(code, 1, "{found:?}");
    let [finding] = &found[..] else { panic!("{check}: {found:?}") };
    assert_eq!(finding["level"], "problem", "{finding}");
    assert!(finding["text"].as_str().unwrap().contains(part), "{finding}");
    finding.clone()
}

#[test]
fn a_machine_without_problems_ends_with_0_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (code, found) = findings(&mut doctor(&folder.path().join("data")), "");
    let checks: Vec<&str> =
        found.iter().map(|finding| finding["check"].as_str().unwrap()).collect();
    for check in ["certificate", "clock", "open files", "receive buffers", "memory", "disk"] {
        assert!(checks.contains(&check), "{check} is not in {checks:?}");
    }
    let problems: Vec<&Value> = found.iter().filter(|found| found["level"] == "problem").collect();
    assert!(code == 0 && problems.is_empty(), "{problems:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn for_people_each_finding_is_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = fulmar();
    on_free_ports(&mut command);
    let output = run(command.args(["doctor", "--data"]).arg(folder.path()));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\nok       memory: "), "{text}");
    assert!(text.contains("0 problems, "), "{text}");
}

#[test]
fn a_low_limit_of_open_files_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let limited = |limit: u32| {
        let doctor = doctor(folder.path());
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n $0 && exec \"$@\"", &limit.to_string()]);
        command.arg(doctor.get_program()).args(doctor.get_args());
        on_free_ports(&mut command);
        command
    };
    let finding = problem(&mut limited(300), "open files", "is 300: some 100 clients");
    assert!(finding["next"].as_str().unwrap().starts_with("ulimit -n "), "{finding}");
    let (code, found) = findings(&mut limited(2000), "open files");
    assert_eq!((code, &found[0]["level"]), (0, &"warning".into()), "{found:?}");
}

#[test]
fn a_port_that_is_taken_and_a_key_that_all_can_read_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let mut command = doctor(folder.path());
    command.env("FULMAR_LISTENERS__MQTTS", format!("[\"{address}\"]"));
    let process = format!("(process {})", std::process::id());
    problem(&mut command, "listener mqtts", &process);

    let issued = fulmar()
        .args(["cert", "issue", "broker.example", "--dir"])
        .arg(folder.path().join("ca"))
        .arg("--out")
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(issued.status.success(), "{issued:?}");
    let path = |name: &str| folder.path().join(name);
    std::fs::set_permissions(path("broker.example.key"), PermissionsExt::from_mode(0o644)).unwrap();
    let with_certificate = || {
        let mut command = doctor(&path("data"));
        command.env("FULMAR_TLS__CERT", path("broker.example.pem"));
        command.env("FULMAR_TLS__KEY", path("broker.example.key"));
        command
    };
    problem(&mut with_certificate(), "certificate", "run `chmod 600");
    std::fs::set_permissions(path("broker.example.key"), PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(findings(&mut with_certificate(), "certificate").0, 0);
}

#[test]
fn an_expired_certificate_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let mut params = rcgen::CertificateParams::new(["broker.example".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("cert.pem"), certificate.pem()).unwrap();
    std::fs::write(path("key.pem"), key.serialize_pem()).unwrap();
    std::fs::set_permissions(path("key.pem"), PermissionsExt::from_mode(0o600)).unwrap();
    let mut command = doctor(&path("data"));
    command.env("FULMAR_TLS__CERT", path("cert.pem")).env("FULMAR_TLS__KEY", path("key.pem"));
    problem(&mut command, "certificate", "expired on Jan  1");
}

#[test]
fn a_broker_that_runs_is_examined_with_its_own_limits() {
    let broker = TestBroker::start();
    let mut command = doctor(&broker.data());
    for (name, address) in broker.bound() {
        let key = format!("FULMAR_LISTENERS__{}", name.to_uppercase());
        command.env(key, format!("[\"{address}\"]"));
    }
    let (code, found) = findings(&mut command, "");
    assert_eq!(code, 0, "{found:?}");
    let text = |check: &str| -> Vec<&str> {
        let found = found.iter().filter(|finding| finding["check"] == check);
        found.map(|finding| finding["text"].as_str().unwrap()).collect()
    };
    let process = format!("fulmar (process {})", broker.pid());
    assert!(text("open files")[0].contains(&process), "{found:?}");
    assert!(text("listener quic").iter().any(|text| text.ends_with(" answers")), "{found:?}");
}

/// `fulmar doctor` about the path to a QUIC port of this machine.
fn path_to(port: u16, more: &[&str]) -> Command {
    let mut command = fulmar();
    command.args(["doctor", "--json", &format!("quic://127.0.0.1:{port}")]).args(more);
    command
}

#[test]
fn a_path_that_works_is_told_from_one_whose_certificate_is_not_trusted() {
    let broker = TestBroker::start();
    let port = broker.address("quic").port();
    let ca = broker.ca_file();
    let (code, found) = findings(&mut path_to(port, &["--cafile", ca.to_str().unwrap()]), "path");
    assert_eq!((code, &found[0]["level"]), (0, &"ok".into()), "{found:?}");
    assert!(found[0]["text"].as_str().unwrap().contains("answers QUIC after"), "{found:?}");
    let other = TestBroker::start();
    let ca = other.ca_file();
    let mut command = path_to(port, &["--cafile", ca.to_str().unwrap()]);
    problem(&mut command, "path", "a client does not connect");
}

#[test]
fn silence_over_udp_where_tcp_answers_is_a_blocked_path() {
    // It receives and says nothing, as if a firewall dropped everything.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let fallback = tcp.local_addr().unwrap().port().to_string();
    let finding = problem(
        &mut path_to(port, &["--fallback-port", &fallback]),
        "path",
        "UDP is blocked between here and 127.0.0.1",
    );
    let next = finding["next"].as_str().unwrap();
    assert!(next.starts_with(&format!("use mqtts://127.0.0.1:{fallback}")), "{next}");
    drop(tcp);
    problem(
        &mut path_to(port, &["--fallback-port", &fallback]),
        "path",
        "does not answer on UDP port",
    );
    drop(silent);
    problem(&mut path_to(port, &[]), "path", "nothing listens on its UDP port");
}

/// `fulmar doctor` about another transport.
fn path_over(scheme: &str, port: u16, more: &[&str]) -> Command {
    let mut command = fulmar();
    command.args(["doctor", "--json", &format!("{scheme}://127.0.0.1:{port}")]).args(more);
    command
}

#[test]
fn the_step_that_fails_over_tcp_is_named() {
    let broker = TestBroker::start();
    let ca = broker.ca_file();
    let ca = ["--cafile", ca.to_str().unwrap()];
    for (scheme, listener) in
        [("mqtt", "mqtt"), ("mqtts", "mqtts"), ("ws", "ws"), ("wss", "https"), ("https", "https")]
    {
        let trust: &[&str] = if scheme.ends_with('s') && scheme != "ws" { &ca } else { &[] };
        let mut command = path_over(scheme, broker.address(listener).port(), trust);
        let (code, found) = findings(&mut command, "path");
        assert_eq!((code, &found[0]["level"]), (0, &"ok".into()), "{scheme}: {found:?}");
        assert!(found[0]["text"].as_str().unwrap().contains("answers MQTT after"), "{found:?}");
    }
    let port = |name: &str| broker.address(name).port();
    let other = TestBroker::start();
    let other_ca = other.ca_file();
    let other_ca = ["--cafile", other_ca.to_str().unwrap()];
    let handshake = "but a client does not connect";
    problem(&mut path_over("mqtts", port("mqtts"), &other_ca), "path", handshake);
    problem(&mut path_over("wss", port("mqtts"), &ca), "path", handshake);
    problem(&mut path_over("mqtts", port("mqtt"), &ca), "path", handshake);
    problem(&mut path_over("mqtt", port("mqtts"), &[]), "path", "no MQTT broker answers");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let free = taken.local_addr().unwrap().port();
    drop(taken);
    problem(&mut path_over("mqtt", free, &[]), "path", "nothing listens on its TCP port");
}

#[test]
fn another_scheme_is_wrong_usage() {
    let output = run(fulmar().args(["doctor", "ftp://localhost"]));
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("unknown scheme"), "{text}");
}
