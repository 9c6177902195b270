//! What packages and images need of the program: its health as an exit code, completions, manual pages.
#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use fulmar_tests::{TestBroker, fulmar, run};

fn health(url: &str) -> Output {
    health_within("20", url)
}

fn health_within(seconds: &str, url: &str) -> Output {
    run(fulmar().args(["health", url, "--timeout", seconds]).stdin(Stdio::null()))
}

#[test]
fn health_is_an_exit_code() {
    let broker = TestBroker::start();
    let address = broker.address("http");
    for path in ["", "/", "/health/ready", "/health/live"] {
        let output = health(&format!("http://{address}{path}"));
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"ok"[..]));
    }
    // Not a health path, so there is no health to report.
    assert_eq!(health(&format!("http://{address}/health/nothing")).status.code(), Some(1));
    assert_eq!(health(&format!("mqtt://{address}")).status.code(), Some(2));
    drop(broker);
    let output = health(&format!("http://{address}"));
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no answer from"));
}

/// A server that sends part of an answer and no end must not keep a supervisor's command alive.
#[test]
fn health_ends_when_the_answer_does_not() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nok").unwrap();
        // Until the client gives up.
        while matches!(stream.read(&mut [0; 512]), Ok(1..)) {}
    });
    assert_eq!(health_within("1", &format!("http://{address}")).status.code(), Some(1));
    server.join().unwrap();
}

#[test]
fn shells_accept_the_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(fulmar().args(["completions", shell]));
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("session-expiry"), "{shell}: no option of `fulmar sub`");
        if shell == "bash" {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), &text).unwrap();
            assert!(run(Command::new("bash").arg("-n").arg(file.path())).status.success());
        }
    }
}

#[test]
fn each_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    assert!(run(fulmar().arg("man").arg(&pages)).status.success());
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    assert!(page("fulmar.1").contains("fulmar\\-serve(1)"));
    assert!(page("fulmar-cert-issue.1").contains("\\-\\-san"));
    assert!(page("fulmar-pub.1").contains("Examples:"));
    // `help` has no page: it would repeat all others.
    assert!(!pages.join("fulmar-help.1").exists());
}
