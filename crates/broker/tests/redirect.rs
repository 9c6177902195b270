//! A broker that names another one instead of accepting clients (MQTT 5.0 section 4.11).
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{Hello, World, hello};
use fulmar_broker::{Redirect, TransportKind};
use fulmar_mqtt::Version;
use parking_lot::Mutex;

/// The server to use, with the transport in front.
struct Other(Mutex<Option<&'static str>>);

impl Redirect for Other {
    fn reference(&self, transport: TransportKind) -> Option<Box<str>> {
        self.0.lock().map(|server| format!("{transport}.{server}").into())
    }
}

/// What a client gets, and whether it is disconnected.
fn answer(world: &mut World, transport: TransportKind, hello: &Hello) -> Vec<u8> {
    let conn = world.open_over(0, transport);
    world.say_hello(conn, hello);
    assert!(world.is_closed(conn), "the broker closes the connection");
    world.bytes(conn)
}

#[test]
fn mqtt5_4_11_connack_names_the_server_to_use() {
    let mut world = World::new();
    let other = Arc::new(Other(Mutex::new(Some("b:1"))));
    world.broker.set_redirect(Arc::clone(&other) as Arc<dyn Redirect>);
    let redirected = |text: &str| {
        let length = u8::try_from(text.len()).unwrap();
        let head = [0x20, length + 6, 0, 0x9C, length + 3, 0x1C, 0, length];
        [&head, text.as_bytes()].concat()
    };
    let (v5, v311) = (hello("a"), Hello { version: Version::V311, ..hello("b") });
    assert_eq!(answer(&mut world, TransportKind::Tcp, &v5), redirected("tcp.b:1"));
    assert_eq!(answer(&mut world, TransportKind::Tls, &v5), redirected("tls.b:1"));
    // 3.1.1 has no reference: "Server unavailable".
    assert_eq!(answer(&mut world, TransportKind::Tcp, &v311), [0x20, 2, 0, 3]);
    // [MQTT-3.1.2-24]: no larger than the client accepts.
    let whole = u32::try_from(redirected("tcp.b:1").len()).unwrap();
    for (most, expected) in
        [(whole, redirected("tcp.b:1")), (whole - 1, vec![0x20, 3, 0, 0x9C, 0]), (4, Vec::new())]
    {
        let small = Hello { max_packet: Some(most), ..hello("c") };
        assert_eq!(answer(&mut world, TransportKind::Tcp, &small), expected, "{most}");
    }
    *other.0.lock() = None;
    assert_eq!(answer(&mut world, TransportKind::Tcp, &v5), [0x20, 3, 0, 0x88, 0]);
    assert_eq!(world.broker.sessions(), 0);
}
