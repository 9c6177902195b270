//! SCRAM-SHA-256 with the program: users of the store sign in over each transport without sending their password.
#![allow(clippy::unwrap_used)]

use std::io::Write as _;
use std::process::{Output, Stdio};

use fulmar_tests::{TestBroker, eventually, fulmar, run};

/// Adds or changes a user through the administration API; the password is `password`.
fn ctl(broker: &TestBroker, args: &[&str], password: &str) {
    let mut command = fulmar();
    command.args(["ctl", "--data"]).arg(broker.data()).arg("users").args(args);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(password.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{args:?}");
}

fn publish(broker: &TestBroker, listener: &str, how: &str, user: &str, password: &str) -> Output {
    let address = broker.address(listener);
    let url = format!("{listener}://localhost:{}", address.port());
    let mut command = fulmar();
    command.args(["pub", &url, "-t", "t", "-m", "x", "-q", "0", "-u", user, "--auth", how]);
    command.arg("--cafile").arg(broker.ca_file()).env("FULMAR_PASSWORD", password);
    run(&mut command)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn users_sign_in_with_scram_over_every_transport_once_it_is_switched_on() {
    // Without it, the method is refused, and passwords get no verifier.
    let broker = TestBroker::builder().config("[auth]\nscram = false\n").start();
    ctl(&broker, &["add", "early", "--role", "viewer"], "a password");
    let refused = publish(&broker, "mqtt", "scram", "early", "a password");
    assert!(!refused.status.success());
    assert!(text(&refused).contains("[auth] scram = true"), "{}", text(&refused));

    let on = "[auth]\nscram = true\nscram_iterations = 4096\n";
    std::fs::write(broker.config_file(), on).unwrap();
    broker.hang_up();
    eventually("the new configuration", || {
        let output = publish(&broker, "mqtt", "scram", "early", "a password");
        text(&output).contains("set again")
    });
    broker.wait_for_log("set it again");
    assert!(publish(&broker, "mqtt", "password", "early", "a password").status.success());
    ctl(&broker, &["passwd", "early"], "another password");
    ctl(&broker, &["add", "ann", "--role", "viewer"], "p\u{e4}ssword \u{2168}");
    for listener in ["mqtt", "mqtts", "ws", "wss", "quic"] {
        // As prepared by RFC 4013.
        let output = publish(&broker, listener, "scram", "ann", "pa\u{308}ssword IX");
        assert!(output.status.success(), "{listener}: {}", text(&output));
    }
    assert!(publish(&broker, "mqtt", "scram", "early", "another password").status.success());
    let wrong = publish(&broker, "quic", "scram", "ann", "wrong");
    assert!(
        !wrong.status.success() && text(&wrong).contains("check user name"),
        "{}",
        text(&wrong)
    );
    let log = broker.log();
    assert!(!log.contains("password IX") && !log.contains("another password"));
    assert!(broker.metric("authentication_failed_total") > 0.5);
}

/// `fulmar user` reads the same configuration; its verifier is used by the broker that starts then.
#[test]
fn the_password_of_fulmar_user_gets_a_verifier_too() {
    let config = "[platform]\nenabled = false\n[auth]\nscram = true\nscram_iterations = 5000\n";
    let mut broker = TestBroker::builder().config(config).start();
    broker.kill();
    let mut command = fulmar();
    command.args(["user", "add", "ann", "--data"]).arg(broker.data());
    command.arg("--config").arg(broker.config_file());
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"a password").unwrap();
    assert!(child.wait().unwrap().success());
    broker.restart();
    let output = publish(&broker, "mqtt", "scram", "ann", "a password");
    assert!(output.status.success(), "{}", text(&output));
}
