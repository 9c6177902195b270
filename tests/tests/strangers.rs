//! What one datagram of a stranger does to the session of a client that has logged in: nothing.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use fulmar_tests::{TestBroker, Wire, eventually, field, fulmar, packet, run};

const NAME: &str = "meter-7";
/// CONNACK of MQTT-SN with "rejected: not supported" (section 5.3.11 of its specification).
const REFUSED: [u8; 3] = [3, 0x05, 3];

/// A password file with ann.
fn passwords(folder: &Path) -> String {
    let (file, secret) = (folder.join("passwords"), folder.join("secret"));
    std::fs::write(&secret, "correct horse").unwrap();
    let mut command = fulmar();
    command.args(["passwd", "ann", "--file"]).arg(&file).stdin(File::open(&secret).unwrap());
    let output = run(&mut command);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    file.to_str().unwrap().to_owned()
}

/// Ann's device with a session that is kept, and whether there was one.
fn connect(broker: &TestBroker) -> (Wire, bool) {
    // No clean start, a user name and a password; the session is kept for an hour.
    let terms = [&[5, 0xC0, 0, 0][..], &[5, 0x11, 0, 0, 14, 16]].concat();
    let body = [field("MQTT"), terms, field(NAME), field("ann"), field("correct horse")].concat();
    let mut wire = Wire::dial(broker.address("mqtt"));
    wire.send(&packet(0x10, &body));
    let (first, body) = wire.read().expect("CONNACK");
    assert_eq!((first, body[1]), (0x20, 0), "it is let in");
    (wire, body[0] == 1)
}

/// CONNECT of MQTT-SN, which names the device; flags as in section 5.3.2 of its specification.
fn stranger(flags: u8) -> Vec<u8> {
    let head = [6 + NAME.len() as u8, 0x04, flags, 1, 0, 60];
    [&head[..], NAME.as_bytes()].concat()
}

/// What the gateway answers, to a datagram that is sent again as a client would.
fn answer(broker: &TestBroker, datagram: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let (mut room, mut length) = ([0; 64], 0);
    eventually("an answer", || {
        socket.send_to(datagram, broker.address("mqtt_sn")).unwrap();
        length = socket.recv(&mut room).unwrap_or(0);
        length > 0
    });
    room[..length].to_vec()
}

fn publish(broker: &TestBroker, payload: &str) {
    let url = format!("mqtt://{}", broker.address("mqtt"));
    let output = run(fulmar().args(["pub", &url, "-t", "t", "-m", payload, "-q", "1"]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The payload of the next packet, which is a PUBLISH on `t` at QoS 1; it is acknowledged.
fn received(device: &mut Wire) -> String {
    let (first, body) = device.read().expect("a message");
    assert_eq!((first & 0xF6, &body[..3]), (0x32, &field("t")[..]), "{body:x?}");
    device.send(&[&[0x40, 2], &body[3..5]].concat());
    String::from_utf8(body[6..].to_vec()).unwrap()
}

fn nothing_is_taken(settings: &str) {
    const CLEAN: u8 = 0x04;
    let folder = tempfile::tempdir().unwrap();
    let settings = format!("[auth]\npassword_file = {:?}\n{settings}", passwords(folder.path()));
    let builder = TestBroker::builder().config(&settings).listen("mqtt_sn", &["127.0.0.1:0"]);
    let broker = builder.start();
    let (mut device, present) = connect(&broker);
    assert!(!present);
    device.send(&packet(0x82, &[&[0, 1, 0], &field("t")[..], &[1]].concat()));
    assert_eq!(device.read(), Some((0x90, vec![0, 1, 0, 1])));
    // While it is connected: neither thrown out nor kept from its messages.
    for flags in [CLEAN, 0] {
        assert_eq!(answer(&broker, &stranger(flags)), REFUSED, "{flags}");
        publish(&broker, "while it is there");
        assert_eq!(received(&mut device), "while it is there");
        device.ping();
    }
    // While it is away: what waits for it, waits.
    drop(device);
    publish(&broker, "while it is away");
    for flags in [CLEAN, 0] {
        assert_eq!(answer(&broker, &stranger(flags)), REFUSED, "{flags}");
    }
    let (mut device, present) = connect(&broker);
    assert!(present, "its session is gone");
    assert_eq!(received(&mut device), "while it is away");
}

#[test]
fn a_datagram_takes_no_session_of_a_user_over() {
    nothing_is_taken("");
}

#[test]
fn nor_does_it_where_all_of_mqtt_sn_are_that_user() {
    nothing_is_taken("[mqtt_sn]\nuser = \"ann\"\n");
}
