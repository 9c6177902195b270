//! Encryption protects a transfer from strangers, recordings and other receivers.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use fulmar_bulk::encryption::{
    OVERHEAD_BYTES, ReceiverEncryption, Rejected, Secret, SenderEncryption, is_encrypted,
};
use fulmar_bulk::wire::{
    AckKind, Command, CommandKind, Fec, Feedback, FeedbackKind, Message, SenderHead, SymbolId,
};
use fulmar_bulk::{Kind, Receiver, ReceiverConfig, Sender, SenderConfig, SenderEvent};
use proptest::prelude::*;
use support::{Memory, checksum, noise};

const RECEIVER: u32 = 100;

fn secret(byte: u8) -> Secret {
    Secret::new([byte; 32])
}

fn ends(secret: &Secret) -> (SenderEncryption, ReceiverEncryption) {
    (
        SenderEncryption::new(secret, [1; 8]),
        ReceiverEncryption::new(secret.receiver(RECEIVER), [2; 8]),
    )
}

/// A message of a sender: the end of transmission.
fn command() -> Vec<u8> {
    let head = SenderHead { source: 1, instance: 1, ..SenderHead::default() };
    let mut message = Vec::new();
    let command = Command { head, fec: Fec::default(), kind: CommandKind::Eot };
    Message::Command(command).encode(&mut message);
    message
}

/// A receiver's acknowledgement of everything.
fn acknowledgement(source: u32) -> Vec<u8> {
    let at = SymbolId { block: 3, symbol: 63, block_len: 64 };
    let kind = FeedbackKind::Ack(AckKind::Flush { object: 0, at, fec: Fec::default() }, 0);
    let (sender, instance) = (1, 1);
    let mut message = Vec::new();
    Message::Feedback(Feedback {
        source,
        sequence: 0,
        sender,
        instance,
        echo: None,
        report: None,
        kind,
    })
    .encode(&mut message);
    message
}

#[test]
fn what_is_encrypted_decrypts_once_at_the_other_end() {
    let (mut sender, mut receiver) = ends(&secret(1));
    let mut encrypted = Vec::new();
    sender.encrypt(&command(), &mut encrypted).unwrap();
    assert!(is_encrypted(&encrypted) && !is_encrypted(&command()));
    assert_eq!(encrypted.len(), command().len() + OVERHEAD_BYTES);
    assert_eq!(receiver.decrypt(&mut encrypted.clone()), Ok(&command()[..]));
    assert_eq!(receiver.decrypt(&mut encrypted.clone()), Err(Rejected::Replayed));

    receiver.encrypt(&acknowledgement(RECEIVER), &mut encrypted).unwrap();
    assert_eq!(sender.decrypt(&mut encrypted.clone()), Ok(&acknowledgement(RECEIVER)[..]));
    assert_eq!(sender.decrypt(&mut encrypted.clone()), Err(Rejected::Replayed));
    assert_eq!((sender.counts().replayed, receiver.counts().replayed), (1, 1));
}

#[test]
fn a_receiver_cannot_speak_for_another_or_with_anothers_keys() {
    let secret = secret(1);
    let mut sender = SenderEncryption::new(&secret, [1; 8]);
    let mut hello = Vec::new();
    sender.encrypt(&command(), &mut hello).unwrap();
    let mut encrypted = Vec::new();

    let mut member = ReceiverEncryption::new(secret.receiver(RECEIVER), [2; 8]);
    member.decrypt(&mut hello.clone()).unwrap();
    member.encrypt(&acknowledgement(RECEIVER + 1), &mut encrypted).unwrap();
    assert_eq!(sender.decrypt(&mut encrypted), Err(Rejected::Impostor));

    let mut keys = secret.receiver(RECEIVER);
    keys.node = RECEIVER + 1;
    let mut thief = ReceiverEncryption::new(keys, [3; 8]);
    thief.decrypt(&mut hello.clone()).unwrap();
    thief.encrypt(&acknowledgement(RECEIVER + 1), &mut encrypted).unwrap();
    assert_eq!(sender.decrypt(&mut encrypted), Err(Rejected::Forged));
}

#[test]
fn recordings_of_another_run_are_worth_nothing() {
    let secret = secret(1);
    let (mut sender, mut receiver) = ends(&secret);
    let (mut hello, mut encrypted) = (Vec::new(), Vec::new());
    sender.encrypt(&command(), &mut hello).unwrap();
    receiver.decrypt(&mut hello.clone()).unwrap();
    receiver.encrypt(&acknowledgement(RECEIVER), &mut encrypted).unwrap();
    let mut later = SenderEncryption::new(&secret, [9; 8]);
    assert_eq!(
        later.decrypt(&mut encrypted.clone()),
        Err(Rejected::Forged),
        "the sender's next run"
    );

    sender.decrypt(&mut encrypted.clone()).unwrap();
    let mut again = ReceiverEncryption::new(secret.receiver(RECEIVER), [7; 8]);
    again.decrypt(&mut hello).unwrap();
    let mut fresh = Vec::new();
    again.encrypt(&acknowledgement(RECEIVER), &mut fresh).unwrap();
    assert!(sender.decrypt(&mut fresh).is_ok(), "a receiver may begin anew");
    let mut more = Vec::new();
    receiver.encrypt(&acknowledgement(RECEIVER), &mut more).unwrap();
    assert_eq!(sender.decrypt(&mut more), Err(Rejected::Replayed), "but not go back");
}

#[test]
fn other_transfers_and_plain_messages_are_not_for_us() {
    let (mut sender, mut receiver) = ends(&secret(1));
    let (mut other, mut other_receiver) = ends(&secret(2));
    let mut encrypted = Vec::new();
    other.encrypt(&command(), &mut encrypted).unwrap();
    assert_eq!(receiver.decrypt(&mut encrypted.clone()), Err(Rejected::Foreign));
    assert_eq!(receiver.decrypt(&mut command()), Err(Rejected::Foreign));
    assert_eq!(sender.decrypt(&mut acknowledgement(RECEIVER)), Err(Rejected::Foreign));
    other_receiver.decrypt(&mut encrypted).unwrap();
    other_receiver.encrypt(&acknowledgement(RECEIVER), &mut encrypted).unwrap();
    assert_eq!(sender.decrypt(&mut encrypted), Err(Rejected::Foreign));
    assert_eq!(receiver.counts().foreign, 2);
}

proptest! {
    #[test]
    fn a_changed_bit_anywhere_is_noticed(bit in 0usize..10_000, cut in 0usize..3) {
        let (mut sender, mut receiver) = ends(&secret(1));
        let mut encrypted = Vec::new();
        sender.encrypt(&command(), &mut encrypted).unwrap();
        let bit = bit % (encrypted.len() * 8);
        encrypted[bit / 8] ^= 1 << (bit % 8);
        encrypted.truncate(encrypted.len() - cut);
        prop_assert!(receiver.decrypt(&mut encrypted).is_err());
    }

    #[test]
    fn nothing_but_what_was_encrypted_is_accepted(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (mut sender, mut receiver) = ends(&secret(1));
        prop_assert!(receiver.decrypt(&mut bytes.clone()).is_err());
        prop_assert!(sender.decrypt(&mut bytes.clone()).is_err());
    }
}

/// A sender and a receiver in simulated time, both with encryption, on a link that loses a fifth. An attacker
/// receives every datagram, and repeats all of them, changed and unchanged, from its own address, as well as the
/// protocol's messages for ending transfers.
struct Siege {
    now: Duration,
    random: fastrand::Rng,
    sender: Sender<Vec<u8>>,
    sender_encryption: SenderEncryption,
    receiver: Receiver<Memory>,
    receiver_encryption: ReceiverEncryption,
    recorded: Vec<Vec<u8>>,
}

const DELAY: Duration = Duration::from_millis(10);
const OURS: ([u8; 4], u16) = ([192, 0, 2, 1], 6003);
const STRANGER: ([u8; 4], u16) = ([192, 0, 2, 66], 6003);

impl Siege {
    fn new(secret: &Secret, object: &[u8], session: u8, recorded: Vec<Vec<u8>>) -> Siege {
        // A random identity each, as the program has.
        let node = RECEIVER + u32::from(session);
        let config = SenderConfig {
            node: 1000 + u32::from(session),
            rate_bytes_per_s: 1_250_000,
            encryption_bytes: OVERHEAD_BYTES as u16,
            ..SenderConfig::default()
        };
        let mut sender = Sender::new(config, Duration::ZERO).unwrap();
        let (bytes, info) = (object.len() as u64, checksum(object));
        sender.add(object.to_vec(), bytes, info, Kind::Memory).unwrap();
        sender.finish();
        let config = ReceiverConfig { node, encrypted: true, ..ReceiverConfig::default() };
        Siege {
            now: Duration::ZERO,
            random: fastrand::Rng::with_seed(session.into()),
            sender,
            sender_encryption: SenderEncryption::new(secret, [session; 8]),
            receiver: Receiver::new(config, Memory::default()),
            receiver_encryption: ReceiverEncryption::new(secret.receiver(node), [session; 8]),
            recorded,
        }
    }

    fn at_receiver(&mut self, from: ([u8; 4], u16), mut datagram: Vec<u8>) {
        if let Ok(message) = self.receiver_encryption.decrypt(&mut datagram) {
            self.receiver.receive(self.now, SocketAddr::from(from), message);
        }
    }

    fn at_sender(&mut self, mut datagram: Vec<u8>) {
        if let Ok(message) = self.sender_encryption.decrypt(&mut datagram) {
            self.sender.receive(self.now, message);
        }
    }

    /// Sends recorded datagrams, one unchanged and one changed, and a forged one to both.
    fn attack(&mut self) {
        let at = self.random.usize(..self.recorded.len());
        let mut changed = self.recorded[at].clone();
        let place = self.random.usize(..changed.len());
        changed[place] ^= 1 << self.random.u8(..8);
        let made_up = [acknowledgement(RECEIVER), command()];
        for datagram in [self.recorded[at].clone(), changed].into_iter().chain(made_up) {
            self.at_receiver(STRANGER, datagram.clone());
            self.at_sender(datagram);
        }
    }

    /// Runs until the sender ends; returns whether it reports success.
    fn play(&mut self) -> bool {
        let (mut message, mut encrypted) = (Vec::new(), Vec::new());
        let mut flying: Vec<(Duration, bool, Vec<u8>)> = Vec::new();
        while self.now < Duration::from_secs(60) {
            while self.sender.poll_transmit(self.now, &mut message) {
                self.sender_encryption.encrypt(&message, &mut encrypted).unwrap();
                self.recorded.push(encrypted.clone());
                flying.push((self.now + DELAY, true, encrypted.clone()));
            }
            while self.receiver.poll_transmit(self.now, &mut message).is_some() {
                // A recorded sender gets an answer too, which is lost.
                self.receiver_encryption.encrypt(&message, &mut encrypted).unwrap();
                self.recorded.push(encrypted.clone());
                flying.push((self.now + DELAY, false, encrypted.clone()));
            }
            self.attack();
            while let Some(event) = self.sender.poll_event() {
                if let SenderEvent::Ended { complete } = event {
                    return complete;
                }
            }
            self.now += Duration::from_millis(1);
            let (due, rest) = flying.into_iter().partition(|(at, ..)| *at <= self.now);
            flying = rest;
            for (_, down, datagram) in due {
                match self.random.f64() < 0.2 {
                    true => {}
                    false if down => self.at_receiver(OURS, datagram),
                    false => self.at_sender(datagram),
                }
            }
        }
        false
    }
}

#[test]
fn a_stranger_who_replays_and_forges_everything_stops_nothing() {
    let (secret, old, new) = (secret(5), noise(1, 300_000), noise(2, 300_000));
    let mut first = Siege::new(&secret, &old, 1, vec![vec![0; 40]]);
    assert!(first.play());
    assert!(first.receiver.storage().complete[&0] == old);
    // Most changed datagrams have an earlier count, and are not even decrypted.
    let (here, there) = (first.receiver_encryption.counts(), first.sender_encryption.counts());
    assert!(here.replayed > 100 && here.forged > 0, "{here:?}");
    assert!(there.replayed > 0 && there.forged > 0, "{there:?}");

    // The recording is genuine but old: it must not be delivered again.
    let mut second = Siege::new(&secret, &new, 2, first.recorded);
    assert!(second.play());
    let complete = &second.receiver.storage().complete;
    assert!(complete.len() == 1 && complete[&0] == new);
}

#[test]
fn a_whole_recording_played_to_a_new_receiver_delivers_nothing() {
    let (secret, object) = (secret(5), noise(1, 100_000));
    let mut first = Siege::new(&secret, &object, 1, vec![vec![0; 40]]);
    assert!(first.play());
    let mut second = Siege::new(&secret, &object, 2, Vec::new());
    for datagram in first.recorded {
        second.now += Duration::from_millis(1);
        second.at_receiver(STRANGER, datagram);
    }
    let progress = second.receiver.progress();
    assert_eq!(progress.received_bytes, 100_000, "it is all there: {progress:?}");
    assert!(second.receiver.storage().complete.is_empty(), "and not delivered");
}
