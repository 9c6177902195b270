//! What a server that has stopped, was dropped or could not start leaves in the process: no thread, socket or file.
//!
//! In a process of its own, because it counts what the process has.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use fulmar_server::{Config, Server};

/// Everything that has threads or sockets of its own; `http` is bound last.
fn config(http: &str) -> String {
    let names =
        ["mqtt", "mqtts", "ws", "wss", "quic", "https", "webtransport", "coap", "coaps", "mqtt_sn"];
    let listeners: String =
        names.iter().map(|name| format!("{name} = [\"127.0.0.1:0\"]\n")).collect();
    let platform = if cfg!(feature = "platform") { "[platform]\nenabled = true\n" } else { "" };
    // Nothing listens there.
    let upstream = "[upstream]\nurl = \"mqtt://127.0.0.1:1\"\n[[upstream.up]]\nfilter = \"#\"\n";
    format!(
        "[server]\nworkers = 2\n[listeners]\nhttp = [{http:?}]\n{listeners}{platform}{upstream}"
    )
}

/// The names of the servers' threads.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    let names = tasks.filter_map(|task| name(task.unwrap()));
    names.map(|name| name.trim().to_owned()).filter(|name| name.starts_with("fulmar")).collect()
}

/// The open files and sockets.
fn files() -> BTreeSet<String> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let target = |file: std::fs::DirEntry| std::fs::read_link(file.path()).ok();
    let targets = open.filter_map(|file| target(file.unwrap()));
    targets
        .map(|target| target.display().to_string())
        .filter(|target| !target.contains("/proc/"))
        .collect()
}

/// Waits until there is no thread, and no file but `before`.
fn nothing_is_left(before: &BTreeSet<String>, after: &str) {
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        let (threads, files) = (threads(), files());
        let left: Vec<&String> = files.difference(before).collect();
        if threads.is_empty() && left.is_empty() {
            return;
        }
        assert!(Instant::now() < patience, "after {after}: {threads:?}, {left:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_server_that_has_ended_or_not_begun_leaves_nothing() {
    let data = tempfile::tempdir().unwrap();
    // The first runtime of a process makes a pair of sockets that stays, for signals that nobody waits for.
    drop(tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
    let before = files();
    let config = |http: &str| Config::from_toml(&config(http)).unwrap().with_data_dir(data.path());
    let server = Server::start(config("127.0.0.1:0")).unwrap();
    assert!(threads().len() > 5 && files().len() > before.len());
    server.stop().unwrap();
    nothing_is_left(&before, "stop");
    drop(Server::start(config("127.0.0.1:0")).unwrap());
    nothing_is_left(&before, "drop");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let with_taken = files();
    let address = taken.local_addr().unwrap().to_string();
    let error = format!("{:#}", Server::start(config(&address)).unwrap_err());
    assert!(error.contains("[listeners] http ") && error.contains(&address), "{error}");
    nothing_is_left(&with_taken, "an address that is in use");
    // Its data folder is free, too.
    Server::start(config("127.0.0.1:0")).unwrap().stop().unwrap();
}
