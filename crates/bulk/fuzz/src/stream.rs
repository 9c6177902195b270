//! Both ends of a stream with hostile peers. The data and gaps that a receiver returns must be in order, and neither
//! end may exceed its limits or return a deadline at which it has nothing to do.

use std::net::SocketAddr;
use std::time::Duration;

use fulmar_bulk::SenderConfig;
use fulmar_bulk::stream::{StreamConfig, StreamReceiver, StreamReceiverConfig, StreamSender};
use fulmar_bulk::wire::{
    Command, CommandKind, Fec, Fti, Message, NodeList, ObjectList, ObjectMessage, Probe, Segment,
    SenderHead, SymbolId, flags,
};
use fulmar_mqtt_fuzz::heap;

use crate::peer::{MAX_AT_ONCE, RECEIVER, SENDER, from_receiver};
use crate::script::Script;

const BUFFER_BYTES: usize = 1 << 20;
/// Symbols and the same amount of parity, the overhead of blocks, and the code.
const MAX_HEAP_BYTES: usize = 16 << 20;

/// Each byte of a script chooses a datagram for one of the ends, or lets time pass.
pub fn stream(data: &[u8]) {
    let ((), used) = heap::measure(|| {
        play_receiver(data);
        play_sender(data);
    });
    assert!(used.peak_bytes < MAX_HEAP_BYTES, "{used:?}");
}

fn play_receiver(data: &[u8]) {
    let mut script = Script(data);
    let config = StreamReceiverConfig {
        node: RECEIVER,
        buffer_bytes: BUFFER_BYTES,
        ..StreamReceiverConfig::default()
    };
    let mut receiver = StreamReceiver::new(config);
    let from = SocketAddr::from(([192, 0, 2, 1], 6000));
    let (mut now, mut out) = (Duration::ZERO, Vec::new());
    while !script.is_over() {
        let mut datagram = Vec::new();
        match script.u8() % 16 {
            0 => now += Duration::from_millis(script.u16().into()),
            1 => datagram.extend_from_slice(script.bytes()),
            2 => while receiver.read().is_some() {},
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
    }
}

/// A nearly correct message of a sender.
fn from_sender(script: &mut Script<'_>, out: &mut Vec<u8>) {
    let choice = script.u8();
    let head = SenderHead {
        source: SENDER,
        sequence: script.u8().into(),
        instance: u16::from(choice & 0x40 != 0),
        grtt: script.u8(),
        backoff: choice >> 7,
        group: 1,
    };
    let fec = if choice & 0x20 == 0 { Fec::ReedSolomon8 } else { Fec::SmallBlock };
    let packed = script.u8();
    // Mostly near the beginning; sometimes anywhere, so that numbers wrap.
    let block = if packed == 0xFF { script.u16().into() } else { u32::from(packed >> 3) };
    let block = if choice == 0x1F { u32::MAX >> 8 } else { block };
    let at = SymbolId { block, symbol: (packed & 7).into(), block_len: 4 };
    let command = |kind| Message::Command(Command { head, fec, kind });
    match choice & 7 {
        0..=4 => from_stream(script, (head, fec, at), out),
        5 => {
            let nodes = RECEIVER.to_be_bytes();
            let kind = CommandKind::Flush { object: 0, at, nodes: NodeList::from_bytes(&nodes) };
            command(kind).encode(out);
        }
        6 => {
            let invalid = ObjectList::default();
            command(CommandKind::Squelch { object: 0, at, invalid }).encode(out);
        }
        _ if packed & 1 == 0 => {
            let sent = Duration::from_millis(script.u16().into());
            command(CommandKind::Probe(Probe::new(1, sent, None, &[]))).encode(out);
        }
        _ => command(CommandKind::Eot).encode(out),
    }
}

fn from_stream(
    script: &mut Script<'_>,
    (head, fec, at): (SenderHead, Fec, SymbolId),
    out: &mut Vec<u8>,
) {
    let shape = script.u8();
    let fti = match shape {
        0xF0.. => Fti {
            object_bytes: script.u16().into(),
            symbol_bytes: script.u8().into(),
            max_block: script.u8().into(),
            parity: script.u8().into(),
        },
        _ => Fti { object_bytes: 64, symbol_bytes: 4, max_block: 4, parity: 4 },
    };
    let data = [script.u8(); 4];
    let mut payload = Vec::new();
    if shape & 1 == 0 {
        let message_start = (shape & 2 != 0).then_some(u16::from(shape >> 2 & 3));
        let offset = u32::from(script.u8());
        let data = &data[..usize::from(shape >> 4 & 3)];
        Segment { message_start, offset, data }.encode(&mut payload);
    } else {
        payload.resize(12, data[0]);
    }
    let (flags, symbol, fti) = (flags::STREAM, Some(at), Some(fti));
    let message =
        ObjectMessage { head, flags, fec, object: 0, symbol, fti, rate: None, payload: &payload };
    Message::Object(message).encode(out);
}

fn play_sender(data: &[u8]) {
    let mut script = Script(data);
    let sender = SenderConfig {
        node: SENDER,
        symbol_bytes: 16,
        block_symbols: 4,
        parity_symbols: 4,
        rate_bytes_per_s: 1_000_000,
        adaptive: script.u8() & 1 == 1,
        ..SenderConfig::default()
    };
    let config = StreamConfig { sender, buffer_bytes: 1024, push: script.u8() & 1 == 1 };
    let Ok(mut sender) = StreamSender::new(config, Duration::ZERO) else { return };
    let (mut now, mut out) = (Duration::ZERO, Vec::new());
    while !script.is_over() {
        match script.u8() % 8 {
            0 => now += Duration::from_millis(script.u16().into()),
            1 => {
                sender.receive(now, script.bytes());
            }
            2 => {
                sender.end_message();
                assert!(sender.write(&[7; 100]) <= 100);
                sender.flush();
            }
            3 if script.u8() == 0 => {
                sender.close();
            }
            _ => {
                let mut datagram = Vec::new();
                from_receiver(&mut script, RECEIVER, &mut datagram);
                sender.receive(now, &datagram);
            }
        }
        let mut sent = 0;
        while sender.poll_transmit(now, &mut out) {
            assert!(Message::decode(&out).is_ok());
            sent += 1;
            assert!(sent < MAX_AT_ONCE, "it never has enough");
        }
        assert!(sender.deadline().is_none_or(|deadline| deadline > now), "it wants what it has");
        while sender.poll_event().is_some() {}
    }
}
