//! `fulmar send --key` and `fulmar receive --key`: what others on the network can do to a transfer.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fulmar_tests::{fulmar, run, write_secret};
use serde_json::Value;

fn key(folder: &Path, digits: &str) -> PathBuf {
    let path = folder.join(format!("{digits}.key"));
    write_secret(&path, digits.repeat(32));
    path
}

fn object() -> Vec<u8> {
    (0..200_000u32).flat_map(|number| number.wrapping_mul(0x9E37_79B9).to_be_bytes()).collect()
}

/// A receiver of one file with this key, ready; where it listens, and what it will have told.
fn receiver(dir: &Path, key: &Path) -> (Child, SocketAddr, thread::JoinHandle<Vec<Value>>) {
    let mut command = fulmar();
    command.args(["receive", "--from", "127.0.0.1:0", "--json", "--count", "1", "--key"]);
    command.arg(key).arg("--dir").arg(dir);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut ready = String::new();
    output.read_line(&mut ready).unwrap();
    let ready: Value = serde_json::from_str(&ready).unwrap();
    let address = ready["address"].as_str().unwrap().parse().unwrap();
    let told = thread::spawn(move || {
        output.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
    });
    (child, address, told)
}

fn send(to: SocketAddr, file: &Path, key: &Path, patience: &str) -> std::process::Output {
    let mut send = fulmar();
    send.args(["send", "--json", "--rate", "20M", "--patience", patience, "--to"]);
    run(send.arg(to.to_string()).arg("--key").arg(key).arg(file))
}

fn last(output: &[u8]) -> Value {
    serde_json::from_str(String::from_utf8_lossy(output).lines().last().unwrap()).unwrap()
}

/// Stands between sender and receiver, and adds to each datagram a second of it, a changed one, and
/// plain NORM messages that end transfers.
struct Stranger {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    work: Option<thread::JoinHandle<()>>,
}

impl Stranger {
    fn before(receiver: SocketAddr) -> Stranger {
        let [front, back] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        for socket in [&front, &back] {
            socket.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
        }
        let (address, stop) = (front.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let work = thread::spawn(move || {
            let (mut buffer, mut sender) = ([0; 2000], None);
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((length, from)) = front.recv_from(&mut buffer) {
                    sender = Some(from);
                    spoil(&back, receiver, &mut buffer[..length]);
                }
                if let (Ok((length, _)), Some(sender)) = (back.recv_from(&mut buffer), sender) {
                    spoil(&front, sender, &mut buffer[..length]);
                }
            }
        });
        Stranger { address, stop, work: Some(work) }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.work.take().map(thread::JoinHandle::join);
    }
}

fn spoil(socket: &UdpSocket, to: SocketAddr, datagram: &mut [u8]) {
    // NORM_CMD(EOT) of node 1, and an empty NORM_NACK for it.
    let end = [0x13, 4, 0, 1, 0, 0, 0, 1, 0, 1, 20, 0, 2, 0, 0, 0];
    let nack = [0x14, 6, 0, 1, 0, 0, 0, 9, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let send = |bytes: &[u8]| {
        let _ = socket.send_to(bytes, to);
    };
    send(&end);
    send(&nack);
    let place = datagram.len() / 2;
    datagram[place] ^= 1;
    send(datagram);
    datagram[place] ^= 1;
    send(datagram);
    send(datagram);
}

#[test]
fn forged_replayed_and_plain_datagrams_are_counted_and_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let (into, file, key) =
        (folder.path().join("into"), folder.path().join("file"), key(folder.path(), "0f"));
    fs::write(&file, object()).unwrap();
    let (mut child, address, told) = receiver(&into, &key);
    let stranger = Stranger::before(address);
    let sent = send(stranger.address, &file, &key, "30");
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    assert!(child.wait().unwrap().success());
    assert!(fs::read(into.join("file")).unwrap() == object());
    let told = told.join().unwrap();
    assert!(told.iter().any(|line| line["event"] == "file" && line["verified"] == true));
    for end in [told.last().unwrap(), &last(&sent.stdout)] {
        assert_eq!(end["event"], "end");
        for reason in ["foreign", "forged", "replayed"] {
            assert!(end["refused"][reason].as_u64().unwrap() > 0, "{reason}: {end}");
        }
    }
}

#[test]
fn another_key_opens_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (into, file) = (folder.path().join("into"), folder.path().join("file"));
    fs::write(&file, object()).unwrap();
    let (mut child, address, _told) = receiver(&into, &key(folder.path(), "0f"));
    let sent = send(address, &file, &key(folder.path(), "0e"), "1");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(sent.status.code(), Some(1));
    assert_eq!(last(&sent.stdout)["receivers"], 0);
    assert_eq!(fs::read_dir(&into).unwrap().count(), 0);
}

#[test]
fn a_key_that_others_can_read_or_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let exposed = key(folder.path(), "0f");
    fs::set_permissions(&exposed, fs::Permissions::from_mode(0o644)).unwrap();
    let none = key(folder.path(), "xy");
    for (key, reason) in [(exposed, "chmod 600"), (none, "64 hexadecimal digits")] {
        let sent = send("127.0.0.1:9".parse().unwrap(), &file, &key, "1");
        assert_eq!(sent.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&sent.stderr).contains(reason));
    }
}
