//! A broker that is paused (SIGSTOP, as by a freezer) longer than its clients may be silent, while they go on pinging.
#![allow(clippy::unwrap_used)]

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use fulmar_tests::{PATIENCE, TestBroker, Wire, field, packet};

/// Long enough for a busy machine to serve all of them once.
const KEEP_ALIVE_S: u8 = 4;
const PAUSE: Duration = Duration::from_secs(7);
const PING_EVERY: Duration = Duration::from_secs(1);

/// A client with a Keep Alive and a will.
fn client(broker: &TestBroker, listener: &str, id: &str) -> Wire {
    let flags = 0x02 | 0x04;
    let body = [
        [field("MQTT"), vec![5, flags, 0, KEEP_ALIVE_S, 0]].concat(),
        [field(id), vec![0], field("wills"), field(id)].concat(),
    ];
    let mut wire = Wire::dial(broker.address(listener));
    wire.send(&packet(0x10, &body.concat()));
    let (first, body) = wire.read().expect("CONNACK");
    assert_eq!((first, body[1]), (0x20, 0));
    wire
}

/// A device of MQTT-SN that states the same time.
fn device(broker: &TestBroker, id: &str) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(broker.address("mqtt_sn")).unwrap();
    let connect = [&[6 + id.len() as u8, 0x04, 0x04, 0x01, 0, KEEP_ALIVE_S][..], id.as_bytes()];
    socket.send(&connect.concat()).unwrap();
    assert_eq!(answer(&socket), [3, 0x05, 0], "CONNACK");
    socket
}

fn answer(socket: &UdpSocket) -> Vec<u8> {
    let mut room = [0; 256];
    let len = socket.recv(&mut room).expect("an answer");
    room[..len].to_vec()
}

#[test]
fn clients_that_ping_all_the_time_stay_connected() {
    let broker = TestBroker::builder().listen("mqtt_sn", &["127.0.0.1:0"]).start();
    let mut watcher = Wire::connect(broker.address("mqtt"), "watcher");
    watcher.send(&packet(0x82, &[vec![0, 1, 0], field("wills"), vec![0]].concat()));
    assert_eq!(watcher.read().unwrap().0, 0x90, "SUBACK");
    let mut clients: Vec<Wire> =
        (0..300).map(|number| client(&broker, "mqtt", &format!("client-{number}"))).collect();
    // These are paused as well, as by a suspended machine.
    let mut asleep: Vec<Wire> =
        (0..20).map(|number| client(&broker, "mqtt", &format!("asleep-{number}"))).collect();
    let devices: Vec<UdpSocket> =
        (0..20).map(|number| device(&broker, &format!("device-{number}"))).collect();
    broker.signal(libc::SIGSTOP);
    let (paused, mut pings) = (Instant::now(), 0);
    while paused.elapsed() < PAUSE {
        clients.iter_mut().for_each(|client| client.send(&[0xc0, 0]));
        devices.iter().for_each(|device| _ = device.send(&[2, 0x16]).unwrap());
        pings += 1;
        std::thread::sleep(PING_EVERY);
    }
    broker.signal(libc::SIGCONT);
    asleep.iter_mut().for_each(Wire::ping);
    for client in &mut clients {
        for _ in 0..pings {
            assert_eq!(client.read(), Some((0xd0, Vec::new())), "PINGRESP");
        }
    }
    for device in &devices {
        assert_eq!(answer(device), [2, 0x17], "PINGRESP");
    }
    assert_eq!(broker.metric("keep_alive_timeouts_total"), 0.0);
    // No will comes before it.
    watcher.ping();
}
