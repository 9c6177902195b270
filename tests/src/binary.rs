//! Finds the program under test, building it first.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::log::Log;
use crate::{PATIENCE, TestBroker};

/// A command line that begins with the program under test.
///
/// The program is built once a test process, by the profile the tests were built with, unless
/// `FULMAR_BIN` names one.
///
/// # Panics
/// It does not build.
#[must_use]
pub fn fulmar() -> Command {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let named = || std::env::var_os("FULMAR_BIN").map(PathBuf::from);
    let mut command = Command::new(PROGRAM.get_or_init(|| named().unwrap_or_else(build)));
    // Neither the caller's settings nor its data folder may leak into a test.
    for (key, _) in std::env::vars_os() {
        if key.to_string_lossy().starts_with("FULMAR_") {
            command.env_remove(key);
        }
    }
    command.env_remove("RUST_LOG");
    command
}

/// Runs a command that should end by itself, and gives what came out of it, line by line.
///
/// # Panics
/// It does not end within [`PATIENCE`]; shows what it wrote.
pub fn run(command: &mut Command) -> Output {
    run_within(PATIENCE, command)
}

/// Runs the program on a broker's data folder with this standard input, and returns what it prints.
///
/// # Panics
/// It fails.
pub fn good(broker: &TestBroker, words: &[&str], input: &str) -> String {
    let mut command = fulmar();
    command.args(words).arg("--data").arg(broker.data()).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The same for a command that works for long although nothing is wrong.
///
/// # Panics
/// It does not end within `patience`; shows what it wrote.
pub fn run_within(patience: Duration, command: &mut Command) -> Output {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    let stdout = Log::follow(child.stdout.take().unwrap());
    let stderr = Log::follow(child.stderr.take().unwrap());
    let ended = stdout.end(patience) && stderr.end(patience);
    if !ended {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    assert!(ended, "{command:?} does not end:\n{}\n{}", stdout.text(), stderr.text());
    let bytes = |log: &Log| log.text().into_bytes();
    Output { status, stdout: bytes(&stdout), stderr: bytes(&stderr) }
}

fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut command = Command::new(cargo);
    command.args(["build", "--package", "fulmar", "--bin", "fulmar"]);
    // Cargo itself says where the program is, whatever target folder is configured.
    command.args(["--message-format", "json-render-diagnostics"]);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let output = command.current_dir(workspace).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "the fulmar program does not build");
    let messages = String::from_utf8(output.stdout).unwrap();
    let executable = messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        (message["target"]["name"] == "fulmar")
            .then(|| message["executable"].as_str())?
            .map(PathBuf::from)
    });
    executable.expect("cargo names the program it built")
}
