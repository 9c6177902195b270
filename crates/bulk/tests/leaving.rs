//! Until when a receiver that has enough is needed: senders that have not received its acknowledgement, and nothing
//! else, make it stay.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use fulmar_bulk::wire::{CommandKind, Message};
use fulmar_bulk::{Kind, NodeId, Receiver, ReceiverConfig, ReceiverEvent, Sender, SenderConfig};
use support::{Memory, checksum, noise};

const STEP: Duration = Duration::from_millis(1);

fn address(node: NodeId) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, node as u8], 6003))
}

fn receiver(node: NodeId, storage: Memory) -> Receiver<Memory> {
    Receiver::new(ReceiverConfig { node, ..ReceiverConfig::default() }, storage)
}

/// All that a sender sends for an object until it ends: it receives acknowledgements.
fn recording(node: NodeId) -> Vec<Vec<u8>> {
    let config = SenderConfig { node, ..SenderConfig::default() };
    let mut sender = Sender::new(config, Duration::ZERO).unwrap();
    let object = noise(node.into(), 5000);
    sender.add(object.clone(), 5000, checksum(&object), Kind::Memory).unwrap();
    sender.finish();
    let (mut receiver, mut sent, mut out) =
        (receiver(100, Memory::default()), Vec::new(), Vec::new());
    let mut now = Duration::ZERO;
    while sender.deadline().is_some() && now < Duration::from_secs(10) {
        while sender.poll_transmit(now, &mut out) {
            receiver.receive(now, address(node), &out);
            sent.push(out.clone());
        }
        while receiver.poll_transmit(now, &mut out).is_some() {
            sender.receive(now, &out);
        }
        now += STEP;
    }
    sent
}

fn is_end(datagram: &[u8]) -> bool {
    let message = Message::decode(datagram).unwrap();
    matches!(message, Message::Command(command) if matches!(command.kind, CommandKind::Eot))
}

/// The same sender's data, and how it announces its end.
fn object_and_end(node: NodeId) -> (Vec<Vec<u8>>, Vec<u8>) {
    let (ends, object): (Vec<_>, Vec<_>) =
        recording(node).into_iter().partition(|datagram| is_end(datagram));
    (object, ends.into_iter().next().unwrap())
}

fn complete(receiver: &mut Receiver<Memory>) -> usize {
    let events = std::iter::from_fn(|| receiver.poll_event());
    events.filter(|event| matches!(event, ReceiverEvent::Complete(..))).count()
}

#[test]
fn a_sender_that_ends_twice_does_not_end_for_another() {
    let mut receiver = receiver(100, Memory::default());
    let [(first, first_end), (second, second_end)] = [1, 2].map(object_and_end);
    for (node, object) in [(1, &first), (2, &second)] {
        object.iter().for_each(|datagram| receiver.receive(STEP, address(node), datagram));
    }
    assert_eq!(complete(&mut receiver), 2);
    // Late data between two announcements of the end.
    receiver.receive(2 * STEP, address(1), &first_end);
    receiver.receive(3 * STEP, address(1), first.last().unwrap());
    receiver.receive(4 * STEP, address(1), &first_end);
    assert_eq!(receiver.last_awaited(), Some(STEP));
    receiver.receive(5 * STEP, address(2), &second_end);
    assert_eq!(receiver.last_awaited(), None);
}

#[test]
fn only_a_sender_of_something_complete_makes_it_stay() {
    let mut receiver = receiver(100, Memory::default());
    let [(object, _), (other, _)] = [1, 2].map(object_and_end);
    assert_eq!(receiver.last_awaited(), None);
    object.iter().for_each(|datagram| receiver.receive(STEP, address(1), datagram));
    assert_eq!(complete(&mut receiver), 1);
    let mut nack = Vec::new();
    let mut lacking = self::receiver(101, Memory::default());
    object.iter().step_by(2).for_each(|datagram| lacking.receive(STEP, address(1), datagram));
    let asked = (2..1000).any(|step| lacking.poll_transmit(step * STEP, &mut nack).is_some());
    assert!(asked);
    // Garbage, its datagram from elsewhere, another receiver's request, and the beginning of another object.
    receiver.receive(10 * STEP, address(1), b"garbage");
    receiver.receive(20 * STEP, address(3), &object[0]);
    receiver.receive(30 * STEP, address(3), &nack);
    receiver.receive(40 * STEP, address(2), &other[0]);
    receiver.receive(50 * STEP, address(2), &other[1]);
    assert_eq!(receiver.last_awaited(), Some(STEP));
    receiver.receive(60 * STEP, address(1), &object[0]);
    assert_eq!(receiver.last_awaited(), Some(60 * STEP));
}

#[test]
fn after_a_failure_no_sender_makes_it_stay() {
    let mut receiver = receiver(100, Memory { full: true, ..Memory::default() });
    let (object, _) = object_and_end(1);
    object.iter().for_each(|datagram| receiver.receive(STEP, address(1), datagram));
    assert_eq!(receiver.storage().refused, 1);
    assert_eq!(receiver.last_awaited(), None);
}
