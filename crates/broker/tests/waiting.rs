//! Each cause for which a client waits: it is seen while the client waits, logged once if that is long, and over when the
//! client goes on. One test alone, in a program of its own, as `log.rs`.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::log::Log;
use common::storage::SimStorage;
use common::{Conn, Hello, Setup, World, hello, lasting};
use fulmar_broker::auth::{AccessControl, JwtVerifier};
use fulmar_broker::{Limits, TransportKind, User, WaitCause};
use fulmar_mqtt::packet::{Connect, Publish};
use fulmar_mqtt::{Packet, PacketId, Properties, QoS, Version};

const LONG: Duration = Duration::from_secs(10);

struct Scene {
    world: World,
    storage: Arc<SimStorage>,
}

impl Scene {
    /// A broker with a durable session for `a/#`, whose client is away.
    fn new(limits: Limits) -> Scene {
        let storage = Arc::new(SimStorage::default());
        let jwt = Some(JwtVerifier::new("HS256", &[7; 32]).unwrap());
        let world = World::with(Setup {
            limits,
            storage: Arc::clone(&storage) as _,
            access_control: AccessControl { jwt, ..AccessControl::default() },
            internal_sessions: vec!["part".into()],
            ..Setup::default()
        });
        let mut scene = Scene { world, storage };
        let keeper = scene.join(1, &lasting("keeper"));
        scene.world.subscribe(keeper, "a/#", QoS::AtLeastOnce);
        scene.world.cut(keeper);
        scene.commit();
        scene
    }

    fn join(&mut self, shard: usize, hello: &Hello) -> Conn {
        let conn = self.world.open(shard);
        self.world.say_hello(conn, hello);
        self.commit();
        conn
    }

    fn commit(&mut self) {
        self.storage.commit();
        self.world.broker.storage_committed();
        self.world.settle();
    }

    fn publish(&mut self, conn: Conn, topic: &str, id: u16) {
        self.world.publish(conn, topic, "", QoS::AtLeastOnce, id);
    }

    /// The causes for which some connection waits, one for each connection.
    fn causes(&self) -> Vec<WaitCause> {
        let broker = &self.world.broker;
        let waiting = |cause| std::iter::repeat_n(cause, broker.connections_waiting(cause));
        WaitCause::ALL.into_iter().flat_map(waiting).collect()
    }

    /// Asserts that the client, and no other, waits for this, and since when.
    fn assert_waits(&self, client: &str, cause: WaitCause) {
        assert_eq!(self.causes(), [cause], "{client}");
        let wait = self.world.broker.connection_of(client).unwrap().waiting.unwrap();
        assert_eq!((wait.cause, wait.since_ms), (cause, self.world.now().0), "{client}");
    }

    fn assert_nobody_waits(&self) {
        assert_eq!(self.causes(), []);
    }
}

fn login() {
    let mut scene = Scene::new(Limits::default());
    for refused in 0..4 {
        scene.assert_nobody_waits();
        let conn = scene.world.open(0);
        let connect = Connect {
            version: Version::V5,
            bridge: false,
            clean_start: true,
            keep_alive_s: 0,
            client_id: "c",
            properties: Properties::NONE,
            will: None,
            username: Some("ann"),
            password: Some(b"ey.bad.token"),
        };
        scene.world.send(conn, &Packet::Connect(connect));
        assert_eq!(scene.world.is_closed(conn), refused < 3);
    }
    assert_eq!(scene.causes(), [WaitCause::Login], "the answer to the fourth is late");
    scene.world.wait(Duration::from_secs(1));
    scene.assert_nobody_waits();
}

fn rate() {
    let mut scene = Scene::new(Limits { max_publishes_per_s: 1, ..Limits::default() });
    let conn = scene.join(0, &hello("p"));
    for _ in 0..3 {
        scene.world.publish(conn, "t", "", QoS::AtMostOnce, 0);
    }
    scene.assert_waits("p", WaitCause::Rate);
    scene.world.wait(Duration::from_secs(5));
    scene.assert_nobody_waits();
}

fn window() {
    let mut scene = Scene::new(Limits { receive_maximum: 1, ..Limits::default() });
    let conn = scene.join(0, &hello("p"));
    scene.assert_nobody_waits();
    scene.publish(conn, "a/b", 1);
    scene.assert_waits("p", WaitCause::Window);
    scene.commit();
    scene.world.read_again(conn);
    scene.assert_nobody_waits();
}

fn storage(log: &Log) {
    // A timeout that is longer than a wait is long.
    let storage_stall_timeout = 3 * LONG;
    let mut scene = Scene::new(Limits { storage_stall_timeout, ..Limits::default() });
    let conn = scene.join(0, &hello("publisher"));
    let other = scene.join(0, &hello("other"));
    scene.publish(other, "a/b", 1);
    scene.storage.set_backlog(usize::MAX);
    scene.publish(conn, "a/b", 1);
    scene.assert_waits("publisher", WaitCause::Storage);
    let since = scene.world.now();
    let lines = |log: &Log| log.text().matches("nothing was read from the client").count();
    scene.world.wait(LONG - Duration::from_millis(1));
    assert_eq!(lines(log), 0);
    scene.world.wait(LONG);
    scene.world.wait(Duration::from_secs(1));
    assert_eq!(lines(log), 1, "once per wait");
    let text = log.text();
    let line = text.lines().find(|line| line.contains("nothing was read")).unwrap();
    for part in ["peer=127.0.0.1", "client=\"publisher\"", "cause=\"storage\""] {
        assert!(line.contains(part) || line.contains(&part.replace('"', "")), "{part}: {line}");
    }
    let wait = scene.world.broker.connection_of("publisher").unwrap().waiting.unwrap();
    assert_eq!(wait.since_ms, since.0);
    scene.storage.set_backlog(0);
    scene.commit();
    scene.assert_nobody_waits();
}

fn stall() {
    let mut scene = Scene::new(Limits::default());
    let first = scene.join(0, &hello("first"));
    let old = scene.join(1, &Hello { version: Version::V311, ..hello("old") });
    scene.publish(first, "a/b", 1);
    scene.world.wait(LONG);
    scene.assert_nobody_waits();
    scene.publish(old, "a/b", 1);
    scene.assert_waits("old", WaitCause::Stall);
    scene.commit();
    scene.assert_nobody_waits();
}

fn internal_session() {
    let mut scene = Scene::new(Limits { max_queued_messages: 8, ..Limits::default() });
    let program = User::program();
    let part = scene.world.open_user(0, TransportKind::Tcp, Some(program.text()));
    scene.world.say_hello(part, &Hello { receive_maximum: Some(1), ..lasting("part") });
    scene.commit();
    scene.world.subscribe(part, "b/#", QoS::AtLeastOnce);
    scene.commit();
    scene.world.cut(part);
    let conn = scene.join(1, &hello("p"));
    for id in 1..=20 {
        scene.publish(conn, "b/c", id);
        scene.commit();
    }
    scene.assert_waits("p", WaitCause::InternalSession);
    scene.world.broker.disconnect("p", fulmar_broker::CloseOrder::Administrative);
    scene.world.settle();
    scene.assert_nobody_waits();
}

/// Publications to 100 receivers, in one turn.
fn to_many(limits: Limits, payload: &[u8]) -> Scene {
    let mut scene = Scene::new(limits);
    for number in 0..100 {
        let reader = scene.join(0, &hello(format!("r{number}").leak()));
        scene.world.subscribe(reader, "t", QoS::AtMostOnce);
    }
    let conn = scene.join(0, &hello("p"));
    let mut packets = Vec::new();
    for _ in 0..100 {
        let publish = Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic: "t",
            packet_id: None::<PacketId>,
            properties: Properties::NONE,
            payload,
        };
        Packet::Publish(publish).encode(Version::V5, &mut packets);
    }
    scene.world.send_bytes_within_turn(conn, &packets);
    scene
}

fn fan_out() {
    let mut scene = to_many(Limits::default(), b"");
    scene.assert_waits("p", WaitCause::FanOut);
    scene.world.settle();
    scene.assert_nobody_waits();
}

fn large_messages() {
    let limits =
        Limits { large_message_bytes: 4_000, large_bytes_per_turn: 64 * 1024, ..Limits::default() };
    let mut scene = to_many(limits, &[b'x'; 5_000]);
    scene.assert_waits("p", WaitCause::LargeMessages);
    scene.world.settle();
    scene.assert_nobody_waits();
}

#[test]
fn each_cause_is_seen_while_a_client_waits() {
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || {
        login();
        rate();
        window();
        storage(&log);
        stall();
        internal_session();
        fan_out();
        large_messages();
    });
}
