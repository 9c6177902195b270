//! Fuzzes both ends of the encryption with arbitrary and nearly correct datagrams: each datagram that decrypts was
//! encrypted, and decrypts only once.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use fulmar_bulk::encryption::{ReceiverEncryption, Secret, SenderEncryption};
use fulmar_bulk::wire::{
    AckKind, Command, CommandKind, Fec, Feedback, FeedbackKind, Message, SenderHead,
};

use crate::script::Script;

const RECEIVER: u32 = 2;

/// Each byte of a script chooses which message is encrypted, changed, held back or repeated.
pub fn encryption(data: &[u8]) {
    let mut script = Script(data);
    script.u8();
    let secret = secret_of(data);
    let mut sender = SenderEncryption::new(&secret, [1; 8]);
    let mut receiver = ReceiverEncryption::new(secret.receiver(RECEIVER), [2; 8]);
    let (mut encrypted, mut decrypted) = (Vec::new(), HashSet::new());
    let mut out = Vec::new();
    while !script.is_over() && encrypted.len() < 200 {
        match script.u8() % 4 {
            0 => {
                let sequence = script.u16();
                if sender.encrypt(&end(sequence), &mut out).is_ok() {
                    encrypted.push(out.clone());
                }
            }
            1 => {
                let sequence = script.u16();
                if receiver.encrypt(&answer(sequence), &mut out).is_ok() {
                    encrypted.push(out.clone());
                }
            }
            2 => {
                let any = script.bytes().to_vec();
                assert!(sender.decrypt(&mut any.clone()).is_err());
                assert!(receiver.decrypt(&mut any.clone()).is_err());
            }
            _ => {
                let Some(genuine) = encrypted.get(usize::from(script.u8())) else { continue };
                let (place, change) = (usize::from(script.u8()), script.u8());
                let mut datagram = genuine.clone();
                let place = place % datagram.len();
                datagram[place] ^= change;
                let taken = sender.decrypt(&mut datagram.clone()).is_ok()
                    || receiver.decrypt(&mut datagram).is_ok();
                if taken {
                    assert_eq!(change, 0, "a changed datagram is not taken");
                    assert!(decrypted.insert(genuine.clone()), "nor is one taken twice");
                }
            }
        }
    }
}

/// A secret that is another one after every mutation. Otherwise libFuzzer, which sees the operands of comparisons, copies
/// the authentication tag that a forged datagram should have had into the next one.
fn secret_of(data: &[u8]) -> Secret {
    let mut secret = [0; 32];
    for (place, part) in secret.chunks_exact_mut(8).enumerate() {
        let mut hasher = DefaultHasher::new();
        (place, data).hash(&mut hasher);
        part.copy_from_slice(&hasher.finish().to_be_bytes());
    }
    Secret::new(secret)
}

fn end(sequence: u16) -> Vec<u8> {
    let head = SenderHead { source: 1, sequence, instance: 1, ..SenderHead::default() };
    let mut message = Vec::new();
    let command = Command { head, fec: Fec::default(), kind: CommandKind::Eot };
    Message::Command(command).encode(&mut message);
    message
}

fn answer(sequence: u16) -> Vec<u8> {
    let (source, sender, instance) = (RECEIVER, 1, 1);
    let kind = FeedbackKind::Ack(AckKind::Probe, 0);
    let feedback = Feedback { source, sequence, sender, instance, echo: None, report: None, kind };
    let mut message = Vec::new();
    Message::Feedback(feedback).encode(&mut message);
    message
}
