//! `fulmar send` and `fulmar receive` as people use them: on this machine, and over an emulated link
//! that loses half of what is sent. The latter needs network namespaces; where they cannot be made, its
//! tests say so and pass, since nothing of them could run.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fulmar_tests::{eventually, fulmar, run};
use serde_json::Value;

/// Bytes without a pattern, the same each time.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn lines(text: &[u8]) -> Vec<Value> {
    let text = String::from_utf8_lossy(text);
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
        .collect()
}

/// A receiver on a port of its own, ready, with its output to come.
fn receiver(dir: &Path, count: &str) -> (Child, BufReader<std::process::ChildStdout>, String) {
    let mut command = fulmar();
    command.args(["receive", "--from", "127.0.0.1:0", "--json", "--count", count, "--dir"]);
    let mut child = command.arg(dir).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(ready["event"], "ready");
    (child, output, ready["address"].as_str().unwrap().to_owned())
}

#[test]
fn files_arrive_with_their_names_and_hashes() {
    let folder = tempfile::tempdir().unwrap();
    let [into, first, empty] = ["into", "first.bin", "empty"].map(|name| folder.path().join(name));
    fs::write(&first, noise(300_000)).unwrap();
    fs::write(&empty, "").unwrap();
    let (mut child, output, address) = receiver(&into, "2");
    let mut send = fulmar();
    send.args(["send", "--json", "--rate", "50M", "--to", &address]).arg(&first).arg(&empty);
    let sent = run(&mut send);
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read(into.join("first.bin")).unwrap(), noise(300_000));
    assert_eq!(fs::read(into.join("empty")).unwrap(), b"");
    assert_eq!(fs::read_dir(&into).unwrap().count(), 2, "nothing else is left there");

    let end = lines(&sent.stdout).pop().unwrap();
    assert_eq!((&end["event"], &end["complete"]), (&"end".into(), &true.into()));
    let told: Vec<Value> =
        output.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    let file = told.iter().find(|line| line["name"] == "first.bin").unwrap();
    assert_eq!(file["verified"], true);
    assert_eq!(file["sha256"], end["files"][0]["sha256"]);
}

#[test]
fn without_a_receiver_it_fails_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let mut send = fulmar();
    // Nobody reads from a port that is held.
    let held = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = held.local_addr().unwrap().to_string();
    send.args(["send", "--patience", "0", "--to", &to]).arg(&file);
    let sent = run(&mut send);
    assert_eq!(sent.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&sent.stderr).contains("acknowledged"));
}

#[test]
fn a_file_that_cannot_be_stored_ends_both() {
    let folder = tempfile::tempdir().unwrap();
    let [into, file] = ["into", "file.bin"].map(|name| folder.path().join(name));
    fs::write(&file, noise(100_000)).unwrap();
    // A folder has its name.
    fs::create_dir_all(into.join("file.bin")).unwrap();
    let (mut child, _output, address) = receiver(&into, "1");
    let mut send = fulmar();
    let sent = run(send.args(["send", "--patience", "1", "--to", &address]).arg(&file));
    assert_eq!(sent.status.code(), Some(1), "{}", String::from_utf8_lossy(&sent.stderr));
    let mut status = None;
    eventually("the receiver ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(1));
}

#[test]
fn wrong_usage_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name).join("same"));
    for file in [&a, &b] {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "x").unwrap();
    }
    let mut send = fulmar();
    send.args(["send", "--to", "127.0.0.1:9"]).args([&a, &b]);
    assert_eq!(run(&mut send).status.code(), Some(2), "two files of one name");
    let mut receive = fulmar();
    receive.args(["receive", "--from", "nowhere:x", "--dir"]).arg(folder.path());
    assert_eq!(run(&mut receive).status.code(), Some(2), "no address");
}

#[test]
fn what_is_no_file_or_has_another_name_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let nameless = folder.path().join(std::ffi::OsStr::from_bytes(b"\xFF"));
    fs::write(&nameless, "x").unwrap();
    let cases = [
        ("/dev/null".as_ref(), "neither a file nor a block device"),
        ("/dev/zero".as_ref(), "neither a file nor a block device"),
        ("/proc/version".as_ref(), "its length is unknown; copy it into a file first"),
        (nameless.as_path(), "its name is not UTF-8"),
    ];
    for (path, reason) in cases {
        let output = run(fulmar().args(["send", "--to", "127.0.0.1:9"]).arg(path));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{path:?}: {said}");
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("into");
    fs::create_dir(&into).unwrap();
    for path in [folder.path(), &into] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o555)).unwrap();
    }
    let mut receive = fulmar();
    receive.args(["receive", "--from", "127.0.0.1:0", "--dir"]).arg(&into);
    // Root may write everywhere.
    if fs::metadata(&into).unwrap().uid() == 0 {
        receive.uid(65_534);
    }
    let output = run(&mut receive);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("Permission denied"), "{said}");
}

/// `fulmar lab link` between two shell lines, with half of all packets lost; none if it cannot be here.
fn half_lost(receive: &str, send: &str) -> Option<std::process::Output> {
    let mut probe = fulmar();
    let tried = run(probe.args(["lab", "link", "--", "true"]));
    if !tried.status.success() {
        eprintln!("not tested: {}", String::from_utf8_lossy(&tried.stderr));
        return None;
    }
    let mut link = fulmar();
    link.args(["lab", "link", "--loss", "50%", "--delay", "10ms", "--rate", "20M", "--between"]);
    Some(run(link.args([receive, send])))
}

/// A shell line that waits until so many receivers have written to `told.*` in the folder that they are ready: what was
/// sent before would count. It ends after half a minute, and what follows fails.
fn until_ready(here: &Path, receivers: usize) -> String {
    let told = here.join("told.").display().to_string();
    format!(
        "n=0; until [ $(cat {told}* 2>/dev/null | grep -c ready) = {receivers} ] || [ $n = 1500 ]; \
         do n=$((n + 1)); sleep 0.02; done; "
    )
}

fn own() -> String {
    Command::new(fulmar().get_program()).get_program().to_str().unwrap().to_owned()
}

#[test]
fn half_of_all_packets_may_be_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (into, file) = (folder.path().join("into"), folder.path().join("file"));
    fs::write(&file, noise(400_000)).unwrap();
    let own = own();
    let receive = format!(
        "exec {own} receive --from $LAB_SELF:6003 --count 1 --json --dir {} > {}",
        into.display(),
        folder.path().join("told.1").display()
    );
    let ready = until_ready(folder.path(), 1);
    let send =
        format!("{ready}exec {own} send --json --rate 10M --to $LAB_PEER:6003 {}", file.display());
    let Some(output) = half_lost(&receive, &send) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read(into.join("file")).unwrap(), noise(400_000));
    let text = String::from_utf8_lossy(&output.stdout);
    let end = text.lines().find(|line| line.contains("\"end\"")).unwrap();
    let end: Value = serde_json::from_str(end).unwrap();
    assert!(end["loss"].as_f64().unwrap() > 0.3, "{end}");
    // Half is lost, so twice the object is needed; a few rounds more must do.
    assert!(end["sent_bytes"].as_f64().unwrap() < 3.0 * 400_000.0, "{end}");
}

#[test]
fn a_group_hears_one_transmission() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, noise(300_000)).unwrap();
    let (own, here) = (own(), folder.path().display());
    let receive = format!(
        "for i in 1 2 3; do {own} receive --from 239.1.2.3:6003 --interface $LAB_SELF --count 1 \
         --json --dir {here}/$i > {here}/told.$i & done; wait"
    );
    let ready = until_ready(folder.path(), 3);
    let send = format!(
        "{ready}exec {own} send --json --rate 10M --receivers 3 --to 239.1.2.3:6003 --interface $LAB_SELF \
         {here}/file"
    );
    let Some(output) = half_lost(&receive, &send) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for number in 1..=3 {
        let path = folder.path().join(number.to_string()).join("file");
        assert!(fs::read(&path).unwrap() == noise(300_000), "{}", path.display());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let end = text.lines().find(|line| line.contains("\"end\"")).unwrap();
    let end: Value = serde_json::from_str(end).unwrap();
    assert_eq!(end["confirmed"], 3, "{end}");
    assert!(end["sent_bytes"].as_f64().unwrap() < 3.5 * 300_000.0, "{end}");
}

/// Starts a receiver by a shell line and waits until it is ready.
fn started(line: &str) -> (Child, BufReader<std::process::ChildStdout>, Value) {
    let mut command = Command::new("sh");
    let mut child = command.args(["-c", line]).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut ready = String::new();
    output.read_line(&mut ready).unwrap();
    (child, output, serde_json::from_str(&ready).unwrap_or_default())
}

/// `FULMAR_BULK_MB=1000` has it do so with 1 GB.
#[test]
fn a_file_may_be_longer_than_there_is_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (into, file) = (folder.path().join("into"), folder.path().join("file"));
    let megabytes = std::env::var("FULMAR_BULK_MB").map_or(40, |number| number.parse().unwrap());
    let piece = noise(1_000_000);
    let mut bytes = fs::File::create(&file).unwrap();
    (0..megabytes).for_each(|_| bytes.write_all(&piece).unwrap());
    let (own, into_name) = (own(), into.display());
    let line = format!(
        "ulimit -d 32768; exec {own} receive --from 127.0.0.1:0 --json --count 1 --dir {into_name}"
    );
    let (mut child, output, ready) = started(&line);
    let mut send = fulmar();
    send.args(["send", "--json", "--rate", "300M", "--to", ready["address"].as_str().unwrap()]);
    let sent = run(send.arg(&file));
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    assert!(child.wait().unwrap().success());
    let told: Vec<Value> =
        output.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    let arrived = told.iter().find(|line| line["event"] == "file").unwrap();
    assert_eq!(arrived["verified"], true);
    assert_eq!(arrived["bytes"], megabytes * 1_000_000_u64);
}

/// Needs a network namespace of its own, where IPv6 leads somewhere; where none can be made, it says so and passes.
#[test]
fn an_ipv6_group_hears_it_too() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), noise(300_000)).unwrap();
    let (own, here) = (own(), folder.path().display());
    // Interfaces are found by name in /sys, which shows those of the namespace in which it was mounted.
    let link = "mount -t sysfs sysfs /sys && ip link add lab0 type veth peer name lab1 && ip link set lab0 up && \
                ip link set lab1 up && ip link set lo up && ip -6 address add fd00::1/64 dev lab0 nodad";
    let can = Command::new("unshare").args(["--net", "--mount", "sh", "-c", link]).output();
    if !can.as_ref().is_ok_and(|output| output.status.success()) {
        eprintln!("not tested: {can:?}");
        return;
    }
    let group = "[ff05::4242]:6003 --interface lab0";
    // Whoever is not ready yet is told again.
    let script = format!(
        "{link} && {{ {own} receive --from {group} --count 1 --dir {here}/1 & \
         {own} receive --from {group} --count 1 --dir {here}/2 & \
         {own} send --rate 10M --receivers 2 --to {group} {here}/file && wait; }}"
    );
    let output =
        Command::new("unshare").args(["--net", "--mount", "sh", "-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for number in ["1", "2"] {
        let path = folder.path().join(number).join("file");
        assert!(fs::read(&path).unwrap() == noise(300_000), "{}", path.display());
    }
}

/// The files of a folder whose names begin with a dot.
fn hidden(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).into_iter().flatten();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('.')).collect()
}

/// Reads lines of JSON until one of them tells that half of a file is there.
fn until_half(output: &mut BufReader<std::process::ChildStdout>) {
    let mut line = String::new();
    loop {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "it ended early");
        let told: Value = serde_json::from_str(&line).unwrap();
        let of = |key: &str| told[key].as_f64().unwrap_or_default();
        if told["event"] == "progress" && of("received_bytes") > 0.5 * of("total_bytes") {
            return;
        }
    }
}

#[test]
fn a_receiver_that_was_killed_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let [into, file] = ["into", "file"].map(|name| folder.path().join(name));
    fs::write(&file, noise(2_500_000)).unwrap();
    let (mut child, mut output, address) = receiver(&into, "1");
    let mut send = fulmar();
    // Slow enough that more than half is not yet all, on a machine that is busy as well.
    send.args(["send", "--json", "--rate", "2M", "--to", &address]).arg(&file);
    let send = send.stdout(Stdio::piped()).spawn().unwrap();
    until_half(&mut output);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(hidden(&into).len(), 2, "what has come, and what is known of it");

    let mut again = fulmar();
    again.args(["receive", "--from", &address, "--json", "--count", "1", "--dir"]);
    let received = run(again.arg(&into));
    let sent = send.wait_with_output().unwrap();
    assert!(sent.status.success(), "the sender took it for the same receiver");
    assert!(fs::read(into.join("file")).unwrap() == noise(2_500_000));
    let end = lines(&received.stdout).pop().unwrap();
    assert!(end["resumed_bytes"].as_f64().unwrap() > 0.4 * 2_500_000.0, "{end}");
    assert!(hidden(&into).is_empty());
}

#[test]
fn a_sender_that_was_killed_goes_on_where_receivers_are() {
    let folder = tempfile::tempdir().unwrap();
    let [into, file] = ["into", "file"].map(|name| folder.path().join(name));
    fs::write(&file, noise(2_500_000)).unwrap();
    let (mut child, mut output, address) = receiver(&into, "1");
    let mut send = fulmar();
    send.args(["send", "--quiet", "--rate", "2M", "--to", &address]).arg(&file);
    let mut first = send.spawn().unwrap();
    until_half(&mut output);
    first.kill().unwrap();
    first.wait().unwrap();

    let mut send = fulmar();
    send.args(["send", "--resume", "--json", "--rate", "8M", "--to", &address]).arg(&file);
    let sent = run(&mut send);
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    assert!(child.wait().unwrap().success());
    assert!(fs::read(into.join("file")).unwrap() == noise(2_500_000));
    let end = lines(&sent.stdout).pop().unwrap();
    assert!(end["sent_bytes"].as_f64().unwrap() < 0.65 * 2_500_000.0, "{end}");
    assert!(hidden(&into).is_empty());
}
