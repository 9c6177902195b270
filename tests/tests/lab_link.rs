//! `fulmar lab link` as people use it. Needs network namespaces; where they cannot be made, each test
//! says so and passes, since nothing of it could run.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use fulmar_tests::{TestBroker, eventually, fulmar, run};
use serde_json::Value;

/// `fulmar lab link` with these arguments.
fn link(args: &[&str]) -> Command {
    let mut command = fulmar();
    command.args(["lab", "link"]).args(args);
    command
}

fn possible() -> bool {
    let tried = run(&mut link(&["--", "true"]));
    let said = String::from_utf8_lossy(&tried.stderr).into_owned();
    if !tried.status.success() {
        assert!(said.contains("cannot be made") || said.contains("/dev/net/tun"), "{said}");
        eprintln!("not tested: {said}");
    }
    tried.status.success()
}

fn summary(folder: &Path, settings: &[&str], program: &[&str]) -> (Output, Value) {
    let file = folder.join("summary.json");
    let before = ["--json", "--summary", file.to_str().unwrap()];
    let output = run(&mut link(&[&before, settings, &["--"], program].concat()));
    let text = fs::read_to_string(&file).unwrap_or_default();
    (output, serde_json::from_str(&text).unwrap_or_default())
}

fn own() -> String {
    fulmar().get_program().to_str().unwrap().to_owned()
}

#[test]
fn a_client_behind_a_link_publishes_to_a_broker_on_this_machine() {
    if !possible() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let broker = TestBroker::start();
    for (scheme, protocol) in [("mqtt", "tcp"), ("quic", "quic")] {
        let url = format!("{scheme}://198.18.1.2:{}", broker.address(scheme).port());
        let own = own();
        let mut program = vec![own.as_str(), "pub", &url, "-t", "a", "-m", "b", "-q", "1"];
        if scheme != "mqtt" {
            program.push("--insecure");
        }
        let settings = ["--delay", "30ms", "--up.loss", "5%", "--seed", "3"];
        let (output, told) = summary(folder.path(), &settings, &program);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let flow = &told["flows"].as_array().unwrap()[0];
        assert_eq!(flow["protocol"], protocol);
        assert_eq!(flow["sent"][0][0], "handshake");
        // A connection and an acknowledged message take two round trips of 60 ms at least.
        assert!(told["seconds"].as_f64().unwrap() >= 0.12, "{told}");
        assert_eq!(told["accidents"], 0);
    }
}

#[test]
fn a_client_that_leaves_at_once_has_a_ticket_for_the_next_time() {
    if !possible() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let broker = TestBroker::start();
    let url = format!("quic://198.18.1.2:{}", broker.address("quic").port());
    let own = own();
    let program =
        [own.as_str(), "lab", "message", &url, "--insecure", "--rest-ms", "0", "--count", "6"];
    let program = [&program[..], &["--connection", "returning"]].concat();
    let (output, _) = summary(folder.path(), &["--delay", "150ms"], &program);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let early = text.matches(r#""early_data":true"#).count();
    assert_eq!(early, 6, "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_a_program_sent_last_still_arrives() {
    if !possible() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // The program ends at once; its datagram is under way for half a second longer.
    let program = ["bash", "-c", "echo last > /dev/udp/198.18.1.2/9"];
    let (output, told) = summary(folder.path(), &["--delay", "500ms"], &program);
    assert!(output.status.success());
    assert!(told["up"]["delivered_packets"].as_u64().unwrap() >= 1, "{told}");
}

#[test]
fn the_same_seed_decides_the_same_in_two_runs() {
    if !possible() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let decisions = |name: &str, delay: &str, seed: &str| {
        let file = folder.path().join(name);
        // An address that nobody has: no answer disturbs the sender.
        let script = "exec 3> /dev/udp/198.18.1.77/9; for i in $(seq 200); do echo $i >&3; done";
        let path = file.to_str().unwrap();
        let settings = ["--up.loss", "20%", "--delay", delay, "--seed", seed, "--decisions", path];
        assert!(summary(folder.path(), &settings, &["bash", "-c", script]).0.status.success());
        // Neighbour discovery and the like is as the kernel pleases.
        let text = fs::read_to_string(&file).unwrap();
        text.lines().filter(|line| line.starts_with("udp/9/")).collect::<Vec<_>>().join("\n")
    };
    let first = decisions("first", "1ms", "5");
    assert!(first.lines().count() > 15, "{first}");
    assert_eq!(first, decisions("second", "30ms", "5"), "another timing, the same decisions");
    assert_ne!(first, decisions("third", "1ms", "6"));
}

#[test]
fn two_programs_are_joined_and_the_seconds_exit_code_is_told() {
    if !possible() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let heard = folder.path().join("heard");
    let first =
        format!("trap 'exit 0' TERM; echo $LAB_SELF > {}; sleep 60 & wait", heard.display());
    let second = "test $LAB_SELF = 198.18.1.2 && test $LAB_PEER = 198.18.0.2 && exit 7";
    let output = run(&mut link(&["--between", &first, second]));
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stderr).contains("late:"));
}

#[test]
fn a_killed_lab_leaves_nothing_after_the_next_start() {
    if !possible() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    // The shell dies with the lab; the sleeper that it started does not.
    let script = format!("sleep 600 & echo $$ $! > {0}.new; mv {0}.new {0}; wait", pids.display());
    let mut lab = link(&["--", "sh", "-c", &script]);
    let mut lab = lab.stderr(Stdio::null()).spawn().unwrap();
    eventually("the program's start", || pids.exists());
    let pids = fs::read_to_string(&pids).unwrap();
    let alive = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('Z'))
    };
    let [shell, sleeper] = pids.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{pids}")
    };
    assert!(alive(shell) && alive(sleeper));
    lab.kill().unwrap();
    lab.wait().unwrap();
    eventually("the shell's end", || !alive(shell));
    assert!(run(&mut link(&["--", "true"])).status.success());
    eventually("the sleeper's end", || !alive(sleeper));
}

/// What tshark makes of a capture: lines that a display filter lets through.
fn tshark(capture: &Path, decode: &str, filter: &str) -> Option<usize> {
    let output = Command::new("tshark")
        .args(["-r", capture.to_str().unwrap(), "-d", decode, "-Y", filter])
        .stderr(Stdio::null())
        .output();
    let Ok(output) = output else {
        eprintln!("not tested: no tshark");
        return None;
    };
    assert!(output.status.success(), "tshark does not open the capture");
    Some(String::from_utf8_lossy(&output.stdout).lines().count())
}

#[test]
fn captures_open_in_tshark_and_show_what_was_encrypted() {
    if !possible() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let broker = TestBroker::start();
    let own = own();
    for (scheme, decode, filters) in [
        ("mqtt", "tcp.port==PORT,mqtt", ["mqtt.msgtype == 1", "mqtt.msgtype == 2"]),
        // The rest is encrypted, and the secrets are in the capture.
        ("mqtts", "tls.port==PORT,mqtt", ["mqtt.msgtype == 1", "mqtt.msgtype == 3"]),
        ("quic", "udp.port==PORT,quic", ["tls.handshake.type == 2", "quic.stream.stream_id == 0"]),
    ] {
        let port = broker.address(scheme).port().to_string();
        let url = format!("{scheme}://198.18.1.2:{port}");
        let capture = folder.path().join(format!("{scheme}.pcapng"));
        let mut program = vec![own.as_str(), "pub", &url, "-t", "a", "-m", "b"];
        if scheme != "mqtt" {
            program.push("--insecure");
        }
        let settings =
            ["--delay", "5ms", "--pcap", capture.to_str().unwrap(), "--up.duplicate", "0"];
        let output = summary(folder.path(), &settings, &program).0;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{scheme}: {said}");
        for filter in filters {
            let Some(packets) = tshark(&capture, &decode.replace("PORT", &port), filter) else {
                return;
            };
            assert!(packets >= 1, "{scheme}: {filter}");
        }
    }
}

#[test]
fn without_rights_it_says_what_is_missing() {
    // A user namespace in which no other may be made, and a program without capabilities in it.
    let forbid = "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all \
                  --inh-caps=-all --no-new-privs \"$0\" lab link -- true";
    let mut command = Command::new("unshare");
    let output = run(command.args(["-Ur", "sh", "-c", forbid, &own()]));
    let said = String::from_utf8_lossy(&output.stderr);
    if !said.contains("fulmar:") {
        eprintln!("not tested: {said}");
        return;
    }
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("max_user_namespaces is 0") && said.contains("CAP_NET_ADMIN"), "{said}");
}

#[test]
fn wrong_usage_says_what_is_allowed() {
    for (args, said) in [
        (vec!["--loss", "5", "--", "true"], "5%"),
        (vec!["--up.queue", "red", "--", "true"], "fq-codel"),
        (vec!["--profile", "6g", "--", "true"], "2g-64k"),
        (vec!["--queue-limit", "5kB", "--", "true"], "rate"),
        (vec!["--between", "true"], "--between"),
    ] {
        let output = run(&mut link(&args));
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(said), "{error}");
    }
}
