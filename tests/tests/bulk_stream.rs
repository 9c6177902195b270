//! `fulmar send -` and `fulmar receive --stdout`: what goes in on one side comes out on the other, whole and in order, also
//! where half of all packets are lost.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use fulmar_tests::{fulmar, run};
use serde_json::Value;

const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Lines that differ.
fn lines(count: usize) -> Vec<u8> {
    (0..count)
        .flat_map(|number| format!("line {number} {}\n", number * 7919).into_bytes())
        .collect()
}

/// A receiver, and the address at which it listens. What it tells comes on standard error.
fn receiver(
    output: impl Into<Stdio>,
    key: Option<&str>,
) -> (Child, BufReader<std::process::ChildStderr>, String) {
    let mut command = fulmar();
    command.args(["receive", "--from", "127.0.0.1:0", "--stdout", "--json"]);
    key.map(|key| command.env("FULMAR_BULK_KEY", key));
    let mut child = command.stdout(output).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    (child, told, ready["address"].as_str().unwrap().to_owned())
}

fn send(address: &str, input: &Path, key: Option<&str>, options: &[&str]) -> Output {
    let mut command = fulmar();
    command.args(["send", "-", "--to", address, "--json", "--quiet"]).args(options);
    key.map(|key| command.env("FULMAR_BULK_KEY", key));
    command.stdin(File::open(input).unwrap());
    run(&mut command)
}

#[test]
fn what_goes_in_comes_out_plain_and_sealed_at_a_rate_told_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["input", "output"].map(|name| folder.path().join(name));
    fs::write(&input, lines(40_000)).unwrap();
    for (key, options) in [
        (None, &["--rate", "50M", "--lines"][..]),
        (Some(KEY), &["--rate", "50M"]),
        (Some(KEY), &["--adaptive", "--buffer", "1"]),
    ] {
        let (mut child, _told, address) = receiver(File::create(&output).unwrap(), key);
        let sent = send(&address, &input, key, options);
        assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
        assert!(child.wait().unwrap().success());
        assert!(fs::read(&output).unwrap() == lines(40_000), "{options:?}");
    }
}

#[test]
fn a_line_comes_out_before_the_next_goes_in() {
    let (mut child, _told, address) = receiver(Stdio::piped(), None);
    let mut sender = fulmar();
    sender.args(["send", "-", "--lines", "--quiet", "--to", &address]).stdin(Stdio::piped());
    let mut sender = sender.stderr(Stdio::null()).spawn().unwrap();
    let mut input = sender.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    for number in 0..20 {
        let line = format!("line {number}\n");
        input.write_all(line.as_bytes()).unwrap();
        let mut came = String::new();
        output.read_line(&mut came).unwrap();
        assert_eq!(came, line);
    }
    drop(input);
    assert!(sender.wait().unwrap().success());
    assert!(child.wait().unwrap().success());
}

#[test]
fn another_key_hears_nothing_and_without_a_receiver_it_fails() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["input", "output"].map(|name| folder.path().join(name));
    fs::write(&input, lines(100)).unwrap();
    let (mut child, _told, address) =
        receiver(File::create(&output).unwrap(), Some(&KEY.replace('0', "1")));
    let sent = send(&address, &input, Some(KEY), &["--patience", "1"]);
    assert_eq!(sent.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&sent.stderr).contains("acknowledged"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fs::read(&output).unwrap(), b"");
}

#[test]
fn wrong_usage_is_told_apart() {
    for arguments in [
        &["send", "-", "file", "--to", "127.0.0.1:9"][..],
        &["send", "-", "--resume", "--to", "127.0.0.1:9"],
        &["send", "-", "--via", "tcp", "--to", "127.0.0.1:9"],
        &["send", "Cargo.toml", "--push", "--to", "127.0.0.1:9"],
        &["receive", "--stdout", "--dir", "x", "--from", "127.0.0.1:0"],
        &["receive", "--from", "127.0.0.1:0"],
    ] {
        let mut command = fulmar();
        command.args(arguments).stdin(Stdio::null());
        assert_eq!(run(&mut command).status.code(), Some(2), "{arguments:?}");
    }
}

/// Needs network namespaces; where they cannot be made, it says so and passes.
#[test]
fn half_of_all_packets_may_be_lost() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["input", "output"].map(|name| folder.path().join(name));
    fs::write(&input, lines(15_000)).unwrap();
    let mut probe = fulmar();
    let tried = run(probe.args(["lab", "link", "--", "true"]));
    if !tried.status.success() {
        eprintln!("not tested: {}", String::from_utf8_lossy(&tried.stderr));
        return;
    }
    let own = Command::new(fulmar().get_program()).get_program().to_str().unwrap().to_owned();
    let receive =
        format!("exec {own} receive --from $LAB_SELF:6003 --stdout > {}", output.display());
    let send =
        format!("exec {own} send - --lines --rate 10M --to $LAB_PEER:6003 < {}", input.display());
    let mut link = fulmar();
    link.args(["lab", "link", "--loss", "50%", "--delay", "10ms", "--rate", "20M", "--between"]);
    let outcome = run(link.args([receive, send]));
    assert!(outcome.status.success(), "{}", String::from_utf8_lossy(&outcome.stderr));
    assert!(fs::read(&output).unwrap() == lines(15_000));
}
