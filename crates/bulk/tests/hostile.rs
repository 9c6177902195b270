//! A receiver without encryption under attack: garbage, senders with a forged identity or many identities, and
//! objects that only use up memory. The object that it is receiving still arrives.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use fulmar_bulk::wire::{Fti, Message, ObjectMessage, SymbolId};
use fulmar_bulk::{Kind, Receiver, ReceiverConfig, Sender, SenderConfig, SenderEvent};
use support::{Memory, checksum, noise};

const BYTES: usize = 300_000;
const STEP: Duration = Duration::from_millis(1);

fn address(host: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, host], 6003))
}

/// A genuine datagram in the name of another sender or instance.
fn forged(datagram: &[u8], node: u32, instance: u16) -> Vec<u8> {
    let mut message = Message::decode(datagram).unwrap();
    let head = match &mut message {
        Message::Object(object) => &mut object.head,
        Message::Command(command) => &mut command.head,
        Message::Feedback(_) => panic!("a sender does not say that"),
    };
    (head.source, head.instance) = (node, instance);
    let mut out = Vec::new();
    message.encode(&mut out);
    out
}

/// Sends an object from `address(1)`, losing `loss` both ways; `attack` returns what else arrives, and from where,
/// after each datagram. Returns the receiver at the end; panics if the object has not arrived.
fn transfer(
    loss: f64,
    config: ReceiverConfig,
    mut attack: impl FnMut(&[u8], &mut fastrand::Rng) -> Vec<(SocketAddr, Vec<u8>)>,
) -> Receiver<Memory> {
    let mut random = fastrand::Rng::with_seed(7);
    let rate_bytes_per_s = 1_250_000;
    let settings = SenderConfig { rate_bytes_per_s, ..SenderConfig::default() };
    let mut sender = Sender::new(settings, Duration::ZERO).unwrap();
    let object = noise(1, BYTES);
    sender.add(object.clone(), BYTES as u64, checksum(&object), Kind::Memory).unwrap();
    sender.finish();
    let mut receiver = Receiver::new(config, Memory::default());
    let (mut now, mut out) = (Duration::ZERO, Vec::new());
    while now < Duration::from_secs(60) {
        while sender.poll_transmit(now, &mut out) {
            if random.f64() >= loss {
                receiver.receive(now, address(1), &out);
            }
            for (from, datagram) in attack(&out, &mut random) {
                receiver.receive(now, from, &datagram);
            }
        }
        while let Some(to) = receiver.poll_transmit(now, &mut out) {
            if to == address(1) && random.f64() >= loss {
                sender.receive(now, &out);
            }
        }
        let ended = std::iter::from_fn(|| sender.poll_event())
            .any(|event| matches!(event, SenderEvent::Ended { complete: true }));
        if ended {
            let complete = &receiver.storage().complete;
            assert!(complete.values().any(|arrived| *arrived == object), "it is another object");
            return receiver;
        }
        now += STEP;
    }
    panic!("nothing after {now:?}: {:?}", receiver.progress());
}

#[test]
fn garbage_is_counted_and_stops_nothing() {
    let mut receiver = transfer(0.2, ReceiverConfig::default(), |datagram, random| {
        let length = random.usize(..1500);
        let garbage = (0..length).map(|_| random.u8(..)).collect();
        let mut damaged = datagram.to_vec();
        damaged[random.usize(..datagram.len())] ^= 1 << random.u8(..8);
        let cut = datagram[..random.usize(..datagram.len())].to_vec();
        vec![(address(1), garbage), (address(2), damaged), (address(1), cut)]
    });
    assert!(receiver.progress().strange > 200, "{:?}", receiver.progress());
    assert_eq!(receiver.storage().complete.len(), 1);
}

#[test]
fn a_sender_that_speaks_is_not_replaced_by_who_claims_to_be_it() {
    let mut receiver = transfer(0.2, ReceiverConfig::default(), |datagram, random| {
        // The same sender, restarted, at another address; and exact copies of its datagrams from there.
        let instance = random.u16(2..);
        vec![(address(2), forged(datagram, 1, instance)), (address(3), datagram.to_vec())]
    });
    assert!(receiver.progress().strange > 200, "{:?}", receiver.progress());
    assert_eq!(receiver.storage().refused, 0);
    assert_eq!(receiver.storage().open.len(), 0, "nothing of theirs was begun");
}

#[test]
fn a_crowd_of_senders_is_bounded_and_does_not_drive_out_the_one_that_is_known() {
    let mut receiver = transfer(0.2, ReceiverConfig::default(), |datagram, random| {
        let node = random.u32(10..);
        vec![(address(2), forged(datagram, node.min(u32::MAX - 1), 1))]
    });
    let begun = receiver.storage().open.len();
    assert!(begun < 16, "{begun} objects of others were begun");
}

#[test]
fn memory_that_others_fill_costs_time_and_not_the_object() {
    // Memory for ten symbols of parity, which another sender uses up with blocks that it never completes.
    let config = ReceiverConfig { max_parity_bytes: 15_000, ..ReceiverConfig::default() };
    let mut receiver = transfer(0.5, config, |datagram, _| {
        let parity = match Message::decode(datagram).unwrap() {
            Message::Object(object) => {
                object.fti.is_some() || object.symbol.is_some_and(|at| at.symbol >= at.block_len)
            }
            _ => false,
        };
        if parity { vec![(address(2), forged(datagram, 99, 1))] } else { vec![] }
    });
    let progress = receiver.progress();
    assert!(progress.dropped > 0, "{progress:?}");
    assert_eq!(receiver.storage().complete.len(), 1);
}

#[test]
fn blocks_that_others_begin_are_bounded_and_cost_only_time() {
    let config = ReceiverConfig { max_partial_blocks: 4, ..ReceiverConfig::default() };
    let (blocks, mut block) = (50_000, 0);
    let mut receiver = transfer(0.2, config, |datagram, _| {
        let Message::Object(genuine) = Message::decode(datagram).unwrap() else { return vec![] };
        // A symbol of every possible block of an object.
        let fti = Fti { object_bytes: 20 * blocks, symbol_bytes: 10, max_block: 2, parity: 9 };
        let head = genuine.head;
        let several = (0..20).map(|_| {
            block += 1;
            let symbol = Some(SymbolId { block: block % blocks as u32, symbol: 0, block_len: 2 });
            let (fti, payload) = (Some(fti), &[7; 10][..]);
            let message = ObjectMessage { head, symbol, fti, payload, ..genuine };
            let mut out = Vec::new();
            Message::Object(message).encode(&mut out);
            (address(2), forged(&out, 99, 1))
        });
        several.collect()
    });
    let progress = receiver.progress();
    assert!(progress.dropped > 1000, "{progress:?}");
    assert_eq!(receiver.storage().complete.len(), 1);
}
