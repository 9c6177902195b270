//! A receiver with hostile senders, and a sender with hostile receivers, which send arbitrary and nearly correct
//! datagrams. Neither may panic, exceed its limits, or return a deadline at which it has nothing to do.

use std::net::SocketAddr;
use std::time::Duration;

use fulmar_bulk::wire::{
    AckKind, CcFeedback, Command, CommandKind, Fec, Feedback, FeedbackKind, Fti, Level, Message,
    NodeList, ObjectList, ObjectMessage, Probe, SenderHead, SymbolId, Writer, flags,
};
use fulmar_bulk::{Kind, Receiver, ReceiverConfig, Sender, SenderConfig};
use fulmar_mqtt_fuzz::heap;

use crate::script::Script;
use crate::support::{Memory, checksum, noise};

/// Objects of a hostile sender; four of each of 16 senders may be in memory.
const MAX_OBJECT_BYTES: u64 = 1 << 16;
const MAX_HEAP_BYTES: usize = 32 << 20;
/// More datagrams than this at one time are an endless loop.
pub(crate) const MAX_AT_ONCE: usize = 2000;

pub(crate) const RECEIVER: u32 = 2;
pub(crate) const SENDER: u32 = 1;

/// Each byte of a script chooses a datagram for the receiver, or lets time pass.
pub fn receiver(data: &[u8]) {
    let ((), used) = heap::measure(|| play_receiver(data));
    assert!(used.peak_bytes < MAX_HEAP_BYTES, "{used:?}");
}

fn play_receiver(data: &[u8]) {
    let mut script = Script(data);
    let config = ReceiverConfig {
        node: RECEIVER,
        max_object_bytes: MAX_OBJECT_BYTES,
        max_parity_bytes: 1 << 15,
        max_open_objects: 4,
        history: 4,
        ..ReceiverConfig::default()
    };
    let mut receiver = Receiver::new(config, Memory::default());
    let (mut now, mut out) = (Duration::ZERO, Vec::new());
    while !script.is_over() {
        let from = SocketAddr::from(([192, 0, 2, 1], 6000));
        let mut datagram = Vec::new();
        match script.u8() % 16 {
            0 => now += Duration::from_millis(script.u16().into()),
            1 => datagram.extend_from_slice(script.bytes()),
            2 => {
                let other = SocketAddr::from(([192, 0, 2, script.u8()], 6000));
                from_sender(&mut script, &mut datagram);
                receiver.receive(now, other, &datagram);
                datagram.clear();
            }
            3 => from_receiver(&mut script, RECEIVER + 1, &mut datagram),
            _ => from_sender(&mut script, &mut datagram),
        }
        receiver.receive(now, from, &datagram);
        let mut sent = 0;
        while receiver.poll_transmit(now, &mut out).is_some() {
            assert!(matches!(Message::decode(&out), Ok(Message::Feedback(_))));
            sent += 1;
            assert!(sent < MAX_AT_ONCE, "it never has enough");
        }
        assert!(receiver.deadline().is_none_or(|deadline| deadline > now), "it wants what it has");
        while receiver.poll_event().is_some() {}
    }
}

/// A nearly correct message of a sender.
fn from_sender(script: &mut Script<'_>, out: &mut Vec<u8>) {
    let choice = script.u8();
    let head = SenderHead {
        source: SENDER + u32::from(choice >> 7) * u32::from(script.u8()),
        sequence: script.u8().into(),
        instance: u16::from(choice & 0x40 != 0),
        grtt: script.u8(),
        backoff: script.u8() & 15,
        group: 1,
    };
    let fec = if choice & 0x20 == 0 { Fec::ReedSolomon8 } else { Fec::SmallBlock };
    let object = u16::from(script.u8() & 7);
    let packed = script.u8();
    let at = SymbolId { block: (packed >> 4).into(), symbol: (packed & 15).into(), block_len: 0 };
    let nodes = RECEIVER.to_be_bytes();
    let command = |kind| Message::Command(Command { head, fec, kind });
    let gone = script.0.first_chunk::<4>().copied().unwrap_or_default();
    match choice & 7 {
        0..=3 => from_object(script, (head, fec, object, at), choice & 3 == 3, out),
        4 => command(CommandKind::Flush { object, at, nodes: NodeList::from_bytes(&nodes) })
            .encode(out),
        5 => {
            let invalid = ObjectList::from_bytes(&gone);
            command(CommandKind::Squelch { object, at, invalid }).encode(out);
        }
        6 => {
            let sent = Duration::from_millis(script.u16().into());
            command(CommandKind::Probe(Probe::new(1, sent, None, &[]))).encode(out);
        }
        _ => command(CommandKind::Eot).encode(out),
    }
}

fn from_object(
    script: &mut Script<'_>,
    (head, fec, object, at): (SenderHead, Fec, u16, SymbolId),
    info: bool,
    out: &mut Vec<u8>,
) {
    // Mostly the same object, so that its blocks are completed; sometimes any object.
    let shape = script.u8();
    let fti = if shape & 0xC0 == 0xC0 {
        let (object_bytes, symbol_bytes) = (script.u16().into(), script.u8().into());
        Fti {
            object_bytes,
            symbol_bytes,
            max_block: script.u8().into(),
            parity: script.u8().into(),
        }
    } else {
        Fti { object_bytes: 40, symbol_bytes: 4, max_block: 4, parity: 6 }
    };
    let payload = [script.u8(); 64];
    // 40 bytes in symbols of 4 and blocks of 4: 4, 3 and 3 symbols.
    let length =
        if info { 8 } else { usize::from(shape & 0x0F).min(usize::from(fti.symbol_bytes)) };
    let length = if shape & 0x30 == 0 { usize::from(fti.symbol_bytes).min(64) } else { length };
    let message = ObjectMessage {
        head,
        flags: if shape & 0x20 == 0 { 0 } else { flags::INFO },
        fec,
        object,
        symbol: (!info).then_some(at),
        fti: Some(fti),
        rate: None,
        payload: &payload[..length],
    };
    Message::Object(message).encode(out);
}

/// Nearly correct feedback of a receiver.
pub(crate) fn from_receiver(script: &mut Script<'_>, source: u32, out: &mut Vec<u8>) {
    let choice = script.u8();
    let mut writer = Writer::new(1000, Fec::ReedSolomon8);
    for _ in 0..choice >> 4 {
        let packed = script.u8();
        let level = Level {
            segment: packed & 1 != 0,
            block: packed & 2 != 0,
            info: packed & 4 != 0,
            object: packed & 8 != 0,
        };
        let mut at = || {
            let (object, block, symbol) = (script.u8() & 3, script.u8() & 7, script.u8());
            (object.into(), SymbolId { block: block.into(), symbol: symbol.into(), block_len: 0 })
        };
        let first = at();
        let last = if packed & 16 == 0 { first } else { at() };
        writer.push(level, first, last);
    }
    let report = CcFeedback { loss: script.u16(), rate: script.u16(), ..CcFeedback::default() };
    let packed = script.u8();
    let at = SymbolId { block: (packed >> 4).into(), symbol: (packed & 15).into(), block_len: 0 };
    let kind = match choice & 3 {
        0 | 1 => FeedbackKind::Nack(writer.requests()),
        2 => FeedbackKind::Ack(AckKind::Probe, 0),
        _ => {
            let object = u16::from(script.u8() & 3);
            FeedbackKind::Ack(AckKind::Flush { object, at, fec: Fec::ReedSolomon8 }, 0)
        }
    };
    let echo = (choice & 4 != 0).then(|| Duration::from_millis(script.u16().into()));
    let report = (choice & 8 != 0).then_some(report);
    let feedback =
        Feedback { source, sequence: 0, sender: SENDER, instance: 1, echo, report, kind };
    Message::Feedback(feedback).encode(out);
}

/// Each byte of a script chooses feedback for the sender, or lets time pass.
pub fn sender(data: &[u8]) {
    let ((), used) = heap::measure(|| play_sender(data));
    assert!(used.peak_bytes < MAX_HEAP_BYTES, "{used:?}");
}

fn play_sender(data: &[u8]) {
    let mut script = Script(data);
    let choice = script.u8();
    let config = SenderConfig {
        symbol_bytes: 100,
        block_symbols: 8,
        parity_symbols: 12,
        backoff: choice & 1,
        adaptive: choice & 2 != 0,
        receivers: usize::from(script.u8() & 3),
        patience: Duration::from_secs(2),
        ..SenderConfig::default()
    };
    let Ok(mut sender) = Sender::new(config, Duration::ZERO) else {
        panic!("a right configuration")
    };
    for bytes in [2500usize, 0, 900] {
        let object = noise(bytes as u64, bytes);
        let info = checksum(&object);
        assert!(sender.add(object, bytes as u64, info, Kind::Memory).is_ok());
    }
    sender.finish();
    let (mut now, mut out) = (Duration::ZERO, Vec::new());
    while !script.is_over() {
        let mut datagram = Vec::new();
        match script.u8() % 4 {
            0 => now += Duration::from_millis((script.u8() / 4).into()),
            1 => datagram.extend_from_slice(script.bytes()),
            choice => from_receiver(&mut script, 2 + u32::from(choice), &mut datagram),
        }
        sender.receive(now, &datagram);
        let mut sent = 0;
        while sender.poll_transmit(now, &mut out) {
            assert!(matches!(Message::decode(&out), Ok(Message::Object(_) | Message::Command(_))));
            sent += 1;
            assert!(sent < MAX_AT_ONCE, "it sends faster than its rate");
        }
        assert!(sender.deadline().is_none_or(|deadline| deadline > now), "it wants what it has");
        while sender.poll_event().is_some() {}
    }
}
