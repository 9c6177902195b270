//! Servers that misbehave: whatever they say, the client ends the connection with an error and says nothing
//! it should not. A panic or an overrun would fail the test.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use fulmar_tiny::{Client, Options, Session, Trust, fuzzing};
use fulmar_tiny_tests::{Identity, Link, Mutation, Mutations, Net, Random, SERVER_NAME};

fn run(identity: &Identity, key: &[u8; 32], mutations: Vec<Mutation>) -> (Net, Arc<Mutations>) {
    let mutations = Arc::new(Mutations { list: mutations, ..Mutations::default() });
    let mut net = Net::new(mutations.clone().config(identity.tls()), Link::GOOD, 1);
    net.connect(&Options {
        server_name: SERVER_NAME,
        trust: Trust::Ed25519(key),
        resume: None,
        session: Session { client_id: "sensor-1", keep_alive_s: 2, ..Session::default() },
    });
    net.speak();
    net.run_until(40_000, |net| net.told.handshakes > 0 || net.told.closed.is_some());
    (net, mutations)
}

/// The length of what the server says before the client takes it for genuine.
fn flight_bytes(identity: &Identity, key: &[u8; 32]) -> usize {
    let (net, mutations) = run(identity, key, Vec::new());
    assert_eq!(net.told.handshakes, 1);
    *mutations.said.lock().unwrap()
}

fn assert_refused(identity: &Identity, key: &[u8; 32], mutation: Mutation) {
    let (mut net, _) = run(identity, key, vec![mutation]);
    assert_eq!(net.told.handshakes, 0, "{mutation:?}");
    assert!(net.told.closed.is_some(), "{mutation:?}");
    assert!(net.broker.published.is_empty(), "{mutation:?}");
    net.run(1000);
    assert!(net.client.deadline().is_none(), "{mutation:?}: it is over");
}

#[test]
fn every_byte_of_every_handshake_message_counts() {
    let identity = Identity::ed25519();
    let key = identity.public_key();
    for at in 0..flight_bytes(&identity, &key) {
        assert_refused(&identity, &key, Mutation::Flip { at, with: 1 << (at % 8) });
    }
}

#[test]
fn messages_with_parts_left_out_or_put_in_are_refused() {
    let identity = Identity::ed25519();
    let key = identity.public_key();
    let bytes = flight_bytes(&identity, &key) as u32;
    let mut random = Random::new(7);
    for _ in 0..300 {
        let at = random.below(bytes) as usize;
        let count = 1 + random.below(50) as usize;
        let byte = random.below(256) as u8;
        let mutation = if random.below(2) == 0 {
            Mutation::Cut { at, count }
        } else {
            Mutation::Insert { at, byte, count: count * 20 }
        };
        assert_refused(&identity, &key, mutation);
    }
}

/// What fuzzing begins with: one of each kind of thing that can come.
#[test]
fn the_seeds_of_fuzzing() {
    let mut client = Box::new(Client::new());
    let mut give = |target: &str, run: &dyn Fn(&mut Client, &mut [u8])| {
        let folder = format!("{}/../fuzz/seeds/{target}", env!("CARGO_MANIFEST_DIR"));
        let files = std::fs::read_dir(folder).unwrap();
        let count = files
            .map(|file| run(&mut client, &mut std::fs::read(file.unwrap().path()).unwrap()))
            .count();
        assert!(count >= 4, "{target}");
    };
    give("tiny-datagram", &|client, data| fuzzing::datagram(client, data));
    give("tiny-frames", &|client, data| fuzzing::frames(client, data));
    give("tiny-handshake", &|client, data| fuzzing::handshake(client, data));
    give("tiny-mqtt", &|client, data| fuzzing::mqtt(client, data));
}

/// What fuzzing does at length, for a moment: random bytes at every way in.
#[test]
fn random_bytes_at_every_way_in() {
    let mut random = Random::new(8);
    let mut client = Box::new(Client::new());
    for _ in 0..300 {
        let mut data = vec![0; random.below(300) as usize];
        let small = random.below(2) == 0;
        for byte in &mut data {
            *byte = random.below(if small { 32 } else { 256 }) as u8;
        }
        fuzzing::frames(&mut client, &data);
        fuzzing::handshake(&mut client, &data);
        fuzzing::mqtt(&mut client, &data);
        fuzzing::datagram(&mut client, &mut data);
    }
}
