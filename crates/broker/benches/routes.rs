//! What a publication costs while others subscribe and unsubscribe elsewhere:
//! `cargo bench -p fulmar-broker`.
//!
//! One worker, driven by hand. Prints microseconds of one publication with all its deliveries, alone
//! and with a subscription somewhere else made or ended before each, whose own cost is taken off. The
//! best of several rounds is shown, which is the figure the neighbours disturb least.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;
use std::time::Instant;

use fulmar_broker::auth::AccessControl;
use fulmar_broker::storage::{NoStorage, Restored};
use fulmar_broker::{
    Broker, BrokerConfig, ClientStatistics, Connection, Limits, ListenerPolicy, Peer, Shard,
    StreamKey, Timestamp, Token, TransportKind,
};
use fulmar_mqtt::packet::{Connect, FilterList, Publish, Subscribe, SubscribeOptions, Unsubscribe};
use fulmar_mqtt::{Packet, PacketId, Properties, QoS, Version};

const ROUNDS: usize = 10;
const PER_ROUND: usize = 200;
const NONE: Properties<'_> = Properties::NONE;

struct Bench {
    shard: Shard,
    conns: Vec<Connection>,
    listener: Arc<ListenerPolicy>,
}

impl Bench {
    fn new() -> Bench {
        let limits = Limits {
            max_connections: usize::MAX,
            max_sessions: usize::MAX,
            max_subscriptions_per_session: usize::MAX,
            max_wildcard_subscriptions_per_user: usize::MAX,
            ..Limits::default()
        };
        let access_control = AccessControl::default();
        let client_statistics = ClientStatistics::Nobody;
        let config = BrokerConfig {
            workers: 1,
            limits,
            access_control,
            sys_interval_s: 0,
            client_statistics,
            internal_sessions: Vec::new(),
        };
        let now = Timestamp(1_000);
        let broker = Broker::new(config, Arc::new(NoStorage), Restored::default(), now);
        let shard = Shard::new(broker, 0, now, Arc::new(|| {}));
        let listener = Arc::new(ListenerPolicy { name: "bench".into(), allow_anonymous: true });
        Bench { shard, conns: Vec::new(), listener }
    }

    fn connect(&mut self) -> usize {
        let at = self.conns.len();
        let peer = Peer {
            address: ([127, 0, 0, 1], 1).into(),
            transport: TransportKind::Tcp,
            identity: None,
            listener: Arc::clone(&self.listener),
        };
        self.conns.push(Connection::new(&mut self.shard, Token(at as u64), peer).unwrap());
        let connect = Connect {
            version: Version::V5,
            bridge: false,
            clean_start: true,
            keep_alive_s: 0,
            client_id: "",
            properties: NONE,
            will: None,
            username: None,
            password: None,
        };
        self.say(at, &Packet::Connect(connect));
        at
    }

    fn say(&mut self, at: usize, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(Version::V5, &mut bytes);
        let received = self.conns[at].receive(&mut self.shard, StreamKey::CONTROL, &bytes);
        assert_eq!(received.consumed, bytes.len());
        self.turn();
    }

    /// One turn of the worker: everybody is sent what there is.
    fn turn(&mut self) {
        let mut events = Vec::new();
        loop {
            self.shard.take_events(&mut events);
            if events.is_empty() {
                break;
            }
            for (token, event) in events.drain(..) {
                let conn = &mut self.conns[token.0 as usize];
                conn.on_event(&mut self.shard, event);
                let output = conn.output(&mut self.shard, StreamKey::CONTROL);
                self.shard.recycle(output.bytes);
            }
        }
        self.shard.end_turn();
    }

    fn subscribe(&mut self, at: usize, filter: &str) {
        let mut list = Vec::new();
        FilterList::encode_one(&mut list, filter, Some(SubscribeOptions::default()));
        let filters = FilterList::from_encoded(&list, true, Version::V5).unwrap();
        let subscribe = Subscribe { packet_id: PacketId::FIRST, properties: NONE, filters };
        self.say(at, &Packet::Subscribe(subscribe));
    }

    fn unsubscribe(&mut self, at: usize, filter: &str) {
        let mut list = Vec::new();
        FilterList::encode_one(&mut list, filter, None);
        let filters = FilterList::from_encoded(&list, false, Version::V5).unwrap();
        let unsubscribe = Unsubscribe { packet_id: PacketId::FIRST, properties: NONE, filters };
        self.say(at, &Packet::Unsubscribe(unsubscribe));
    }

    fn publish(&mut self, at: usize) {
        self.publish_to(at, "plant/7/temperature");
    }

    fn publish_to(&mut self, at: usize, topic: &str) {
        let publish = Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic,
            packet_id: None,
            properties: NONE,
            payload: &[0x2e; 64],
        };
        self.say(at, &Packet::Publish(publish));
    }
}

/// Microseconds per `step`, which gets its number.
fn measure(step: impl FnMut(usize)) -> f64 {
    measure_few(PER_ROUND, step)
}

fn measure_few(per_round: usize, mut step: impl FnMut(usize)) -> f64 {
    let best = (0..ROUNDS).map(|round| {
        let start = Instant::now();
        (0..per_round).for_each(|at| step(round * per_round + at));
        start.elapsed().as_secs_f64() * 1e6 / per_round as f64
    });
    best.fold(f64::INFINITY, f64::min)
}

/// What one owner can make a publication cost: sessions, and wildcard or shared subscriptions of each,
/// all of which match it. The first two are what the default quota leaves.
const CROWDS: [(usize, usize); 5] =
    [(100, 116), (1_000, 26), (1_000, 60), (100, 1_000), (10_000, 10)];

fn crowds() {
    println!("milliseconds a publication      wildcards    found anew   groups");
    const LEVELS: usize = 14;
    for (sessions, each) in CROWDS {
        let (mut bench, mut shared) = (Bench::new(), Bench::new());
        for session in 0..sessions {
            let (at, member) = (bench.connect(), shared.connect());
            for number in 0..each {
                let level = |bit: usize| if number >> bit & 1 == 1 { "+" } else { "l" };
                let filter: Vec<&str> = (0..LEVELS).map(level).collect();
                bench.subscribe(at, &filter.join("/"));
                shared.subscribe(member, &format!("$share/{session}-{number}/t"));
            }
        }
        let topic = ["l"; LEVELS].join("/");
        let (publisher, sharer) = (bench.connect(), shared.connect());
        let remembered = measure_few(1, |_| bench.publish_to(publisher, &topic));
        let anew = measure_few(1, |number| {
            bench.subscribe(publisher, &number.to_string());
            bench.publish_to(publisher, &topic);
        });
        let groups = measure_few(1, |_| shared.publish_to(sharer, "t"));
        let [remembered, anew, groups] = [remembered, anew, groups].map(|us| us / 1e3);
        println!(
            "{sessions:>6} sessions of {each:>5} {remembered:>12.2} {anew:>13.2} {groups:>8.2}"
        );
    }
}

fn main() {
    crowds();
    println!("microseconds a publication       alone   others subscribe");
    for (devices, watchers) in [(10_000, 1), (10_000, 100), (10_000, 10_000), (100_000, 100)] {
        let mut bench = Bench::new();
        for device in 0..devices {
            let at = bench.connect();
            bench.subscribe(at, &format!("devices/{device}/commands"));
        }
        for _ in 0..watchers {
            let at = bench.connect();
            bench.subscribe(at, "plant/#");
        }
        let (publisher, restless) = (bench.connect(), bench.connect());
        let change = |bench: &mut Bench, number: usize| {
            let filter = format!("devices/{}/commands", number / 2);
            match number % 2 {
                0 => bench.subscribe(restless, &filter),
                _ => bench.unsubscribe(restless, &filter),
            }
        };
        let alone = measure(|_| bench.publish(publisher));
        let changing = measure(|number| change(&mut bench, number));
        let both = measure(|number| {
            change(&mut bench, number);
            bench.publish(publisher);
        });
        let beside = both - changing;
        println!("{devices:>7} others, {watchers:>6} receivers {alone:>8.2}   {beside:>8.2}");
    }
}
