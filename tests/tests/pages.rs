//! Commands of the pages, typed as they stand there: those that end by themselves and need no hardware, and clients of
//! a broker. `operator.rs` and `gateway_setup.rs` type the long set-ups, `tests/interop/test_page_commands.py` what takes
//! several programs; `tests/interop/pages.py` lists which test types which line. `crates/fulmar/src/pages_tests.rs` parses all.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::UdpSocket;
use std::path::Path;

use fulmar_tests::{Host, PATIENCE, TestBroker, blocks, eventually};

/// A page of `docs`.
fn page(name: &str) -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    fs::read_to_string(docs.join(name)).unwrap()
}

/// Lines of a page's blocks that begin like this, without what stands beside them.
fn lines(name: &str, begins: &str) -> Vec<String> {
    let text = page(name);
    let typed = text.lines().map(|line| line.strip_prefix("    ").unwrap_or(line));
    let typed = typed.map(|line| line.trim_start_matches("$ "));
    let typed = typed.filter(|line| line.starts_with(begins));
    let found: Vec<String> =
        typed.map(|line| line.split("    ").next().unwrap().to_owned()).collect();
    assert!(!found.is_empty(), "{name} has no line that begins with {begins:?}");
    found
}

/// A machine whose default data folder is its own.
fn host(folder: &Path) -> Host {
    let mut host = Host::new(folder);
    host.says("fulmar cert", &format!("XDG_DATA_HOME={} fulmar cert", folder.display()));
    host
}

/// A port that is free now.
fn port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn the_page_of_meters_decodes_and_simulates() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path());
    let text = page("meters.md");
    let echo = &lines("meters.md", "echo ")[0];
    let shown = text.split(&format!("$ {echo}\n    ")).nth(1).unwrap().lines().next().unwrap();
    assert_eq!(host.good(echo).trim(), shown);
    let keys = blocks(&text, "## Keys").remove(0).1;
    fs::write(host.folder().join("keys.toml"), keys).unwrap();
    let telegram = echo.split(' ').nth(1).unwrap();
    fs::write(host.folder().join("telegrams.txt"), format!("{telegram}\n")).unwrap();
    host.good(&lines("meters.md", "chmod ")[0]);
    for line in lines("meters.md", "fulmar meter") {
        if line.contains("--write-keys") {
            fs::remove_file(host.folder().join("keys.toml")).unwrap();
        }
        let printed = host.good(&line);
        let decoded = printed.lines().filter(|line| line.contains("volume")).count();
        assert!(decoded > 0 || line.contains("--write-keys"), "{line}: {printed}");
    }
}

#[test]
fn the_page_of_homes_simulates_a_week() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path());
    let week = lines("homes.md", "fulmar sensor simulate --pace 0");
    host.good(&week[0]);
    let text = fs::read_to_string(host.folder().join("week.jsonl")).unwrap();
    assert!(text.lines().count() > 10_000, "{} lines", text.lines().count());
    assert!(text.starts_with('{'));
}

#[test]
fn certificates_are_issued_as_pages_show_it() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path());
    host.good("fulmar cert ca");
    for line in [lines("guide.md", "fulmar cert"), lines("firmware.md", "fulmar cert")].concat() {
        host.good(&line);
    }
    assert!(host.folder().join("sensor-17.key").exists());
    let public = |file: &str| {
        let shown = host.good(&format!("fulmar cert show {file}"));
        shown.lines().find(|line| line.contains("public key:")).unwrap().to_owned()
    };
    assert_eq!(public("broker.lan.pem"), public("renewed/broker.lan.pem"));
}

#[test]
fn users_and_twins_are_made_as_pages_show_it() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path());
    let typed = [lines("platform.md", "fulmar twin"), lines("platform.md", "fulmar user")].concat();
    fs::write(host.folder().join("password"), "correct horse").unwrap();
    for line in typed.iter().map(|line| line.split(" #").next().unwrap()) {
        let asks = if line.contains("user add") { "< password" } else { "" };
        host.good(&format!("{line} --data {} {asks}", folder.path().display()));
    }
    let list = host.good(&format!("fulmar user list --data {}", folder.path().display()));
    assert!(list.contains("ann"), "{list}");
}

#[test]
fn experiments_are_listed_and_begun_as_the_page_shows_it() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path());
    for line in [lines("lab.md", "fulmar lab list"), lines("lab.md", "fulmar lab new")].concat() {
        host.good(&line);
    }
    for line in lines("lab.md", "fulmar lab show") {
        let shown = host.good(&line);
        assert!(shown.contains("drop = 0, 10, 20") && shown.contains("90 cells"), "{shown}");
    }
    assert!(host.folder().join("mine.toml").exists());
    let list = host.good("fulmar lab list");
    for line in lines("lab.md", "fulmar lab run").iter().filter(|line| !line.contains(".toml")) {
        let name = line.split(' ').nth(3).unwrap();
        assert!(list.lines().any(|line| line.split(' ').next() == Some(name)), "{line}");
    }
}

#[test]
fn files_are_sent_as_the_page_shows_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut host = host(folder.path());
    fs::write(host.folder().join("map.zip"), vec![7; 100_000]).unwrap();
    host.good(&lines("bulk.md", "openssl")[0]);
    let receive = lines("bulk.md", "fulmar receive --from 0.0.0.0:6003 --dir");
    let send = lines("bulk.md", "fulmar send map.zip --to 192.0.2.7");
    assert_eq!((receive.len(), send.len()), (2, 2));
    for (receive, send) in receive.iter().zip(&send) {
        let at = format!("127.0.0.1:{}", port());
        host.says("0.0.0.0:6003", &at);
        host.says("--to 192.0.2.7", &format!("--to {at}"));
        let _ = fs::remove_dir_all(host.folder().join("maps"));
        let receiver = host.leaves(receive);
        host.good(send);
        assert!(
            receiver.log.find(PATIENCE, |line| line.contains("map.zip")).is_some(),
            "{receive}"
        );
        let file = fs::read(host.folder().join("maps/map.zip")).unwrap();
        assert!(file == [7; 100_000], "{send}");
    }
}

#[test]
fn clients_publish_and_subscribe_as_pages_show_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut host = host(folder.path());
    let broker = TestBroker::start();
    let ca = broker.ca_file().display().to_string();
    for (scheme, listener) in [("mqtt", "mqtt"), ("quic", "quic"), ("coap", "coap")] {
        let url = format!("{scheme}://localhost:{}", broker.address(listener).port());
        host.says(&format!("{scheme}://localhost"), &url);
    }
    host.says("fulmar sub quic", &format!("fulmar sub --cafile {ca} quic"));
    for (name, subscribe, publish) in [
        (
            "guide.md",
            "fulmar sub quic://localhost -t 'plant",
            "fulmar pub mqtt://localhost -t plant",
        ),
        ("coap.md", "fulmar sub coap://localhost", "fulmar pub coap://localhost"),
    ] {
        let (subs, pubs) = (lines(name, subscribe), lines(name, publish));
        assert_eq!((subs.len(), pubs.len()), (1, 1), "{name}");
        let subscriber = host.leaves(&subs[0]);
        // Whatever is published before the subscription is there goes by.
        eventually("the message to arrive", || {
            host.good(&pubs[0]);
            subscriber.log.text().contains("21.5")
        });
    }
    let session = lines("guide.md", "fulmar sub mqtt://localhost -t 'a/#' -E");
    host.good(&session[0]);
    let state = lines("guide.md", "fulmar sub mqtt://localhost -t '$SYS");
    let subscriber = host.leaves(&state[0]);
    assert!(
        subscriber.log.find(PATIENCE, |line| line.starts_with("$SYS/broker/version ")).is_some()
    );
}

/// Blocks of settings in a page: fenced ones, and indented ones that begin with a section.
fn settings(text: &str) -> Vec<String> {
    let fenced = text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut found: Vec<String> = fenced.map(str::to_owned).collect();
    for block in text.split("\n\n    [").skip(1) {
        let block = format!("    [{block}\n");
        let indented = block.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
        found.push(indented.map(|line| format!("{}\n", line.trim_start())).collect());
    }
    // Keys of meters.
    found.retain(|block| !block.starts_with("[keys]"));
    found
}

#[test]
fn settings_in_pages_are_those_of_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path());
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let mut checked = 0;
    for entry in fs::read_dir(docs).unwrap().map(|entry| entry.unwrap().path()) {
        let Ok(text) = fs::read_to_string(&entry) else { continue };
        for block in settings(&text) {
            fs::write(host.folder().join("page.toml"), &block).unwrap();
            // The environment is looked at when the file is understood, and ends it before it serves.
            let refused = host.types("FULMAR_LIMITS__NONE=1 fulmar serve --config page.toml");
            let said = String::from_utf8_lossy(&refused.stderr);
            assert_eq!(refused.status.code(), Some(2), "{}: {block}", entry.display());
            // No default feature yet.
            let is_left_out = said.contains("built without the feature `cluster`");
            let is_understood = said.contains("FULMAR_LIMITS__NONE") || is_left_out;
            assert!(is_understood, "{}: {said}\n{block}", entry.display());
            checked += 1;
        }
    }
    assert!(checked > 12, "{checked} blocks");
}

/// `make screenshots` takes them again, in tests that see what they show.
#[test]
fn every_picture_is_shown_by_a_page_and_taken_by_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let tests = ["broker", "homes", "meters"].map(|name| format!("tests/browser/{name}.test"));
    let read = |name: &str| fs::read_to_string(root.join(format!("{name}.mjs"))).unwrap();
    let tests =
        tests.iter().map(|name| read(name)).collect::<String>() + &read("web/tests/browser/run");
    let is_taken =
        |name: &str| ['"', '\''].iter().any(|q| tests.contains(&format!("{q}{name}{q}")));
    let pages = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages: String = pages.filter_map(|page| fs::read_to_string(page).ok()).collect();
    let mut pictures = 0;
    for entry in fs::read_dir(root.join("docs/images")).unwrap().map(|entry| entry.unwrap().path())
    {
        let file = entry.file_name().unwrap().to_str().unwrap();
        let name = file.strip_suffix(".png").unwrap();
        // Some are taken at a desk and on a phone in one go.
        let both = name.strip_suffix("-desk").or(name.strip_suffix("-phone")).unwrap_or(name);
        assert!(is_taken(name) || is_taken(both), "no test takes {file}");
        assert!(pages.contains(&format!("(images/{file})")), "no page shows {file}");
        pictures += 1;
    }
    assert_eq!(pages.matches("](images/").count(), pictures, "a page shows what is not there");
}
