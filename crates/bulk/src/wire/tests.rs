//! Encoded messages: every field is where RFC 5740 has it, and nothing beyond the end is read.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use super::*;

const HEAD: SenderHead = SenderHead {
    source: 0x0102_0304,
    sequence: 0x0A0B,
    instance: 0x0C0D,
    grtt: 99,
    backoff: 4,
    group: 3,
};

fn bytes(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out);
    assert_eq!(Message::decode(&out).as_ref(), Ok(message));
    for cut in 0..usize::from(out[1]) * 4 {
        assert!(Message::decode(&out[..cut]).is_err(), "a header cut at {cut}");
    }
    out
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().filter(|c| !c.is_whitespace()).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

#[test]
fn data_with_transmission_information() {
    let fti = Fti { object_bytes: 0x01_0000_0002, symbol_bytes: 1400, max_block: 64, parity: 32 };
    let symbol = SymbolId { block: 0x01_0203, symbol: 65, block_len: 0 };
    let message = Message::Object(ObjectMessage {
        head: HEAD,
        flags: flags::FILE | flags::INFO,
        fec: Fec::ReedSolomon8,
        object: 7,
        symbol: Some(symbol),
        fti: Some(fti),
        rate: None,
        payload: b"abc",
    });
    let expected = hex("12 08 0a0b 01020304  0c0d 63 43  14 05 0007  010203 41
         40 03 0001 00000002 0578 40 20  616263");
    assert_eq!(bytes(&message), expected);
}

#[test]
fn data_in_encoding_129() {
    let fti = Fti { object_bytes: 5000, symbol_bytes: 1400, max_block: 64, parity: 32 };
    let message = Message::Object(ObjectMessage {
        head: HEAD,
        flags: 0,
        fec: Fec::SmallBlock,
        object: 7,
        symbol: Some(SymbolId { block: 1, symbol: 2, block_len: 3 }),
        fti: Some(fti),
        rate: Some(0x1234),
        payload: &[],
    });
    let expected = hex("12 0b 0a0b 01020304  0c0d 63 43  00 81 0007  00000001 0003 0002
         40 04 0000 00001388 0000 0578 0040 0020  80 00 1234");
    assert_eq!(bytes(&message), expected);
}

#[test]
fn commands() {
    let command = |kind| Message::Command(Command { head: HEAD, fec: Fec::default(), kind });
    let at = SymbolId { block: 9, symbol: 8, block_len: 0 };
    let nodes = hex("00000005 00000006");
    let flush = CommandKind::Flush { object: 7, at, nodes: NodeList::from_bytes(&nodes) };
    assert_eq!(
        bytes(&command(flush)),
        hex("13 05 0a0b 01020304 0c0d 63 43  01 05 0007  00000908  00000005 00000006")
    );
    assert_eq!(NodeList::from_bytes(&nodes).iter().collect::<Vec<_>>(), [5, 6]);
    assert_eq!(
        bytes(&command(CommandKind::Eot)),
        hex("13 04 0a0b 01020304 0c0d 63 43  02 00 0000")
    );
    let mut listed = Vec::new();
    Probe::push(&mut listed, 5, cc_flags::RTT, 77, 0x0102);
    let probe = Probe::new(3, Duration::new(1, 2000), Some(0x0405), &listed);
    assert_eq!((probe.rtt_of(5), probe.rtt_of(6)), (Some(77), None));
    assert_eq!(
        bytes(&command(CommandKind::Probe(probe))),
        hex("13 07 0a0b 01020304 0c0d 63 43  04 00 0003  00000001 00000002  80 00 0405
             00000005 04 4d 0102")
    );
    let gone = hex("0001 0002");
    let squelch = CommandKind::Squelch { object: 7, at, invalid: ObjectList::from_bytes(&gone) };
    bytes(&command(squelch));
    assert_eq!(ObjectList::from_bytes(&gone).iter().collect::<Vec<_>>(), [1, 2]);
    bytes(&command(CommandKind::AckRequest {
        kind: 16,
        id: 1,
        nodes: NodeList::from_bytes(&nodes),
    }));
    bytes(&command(CommandKind::Application(b"x")));
}

#[test]
fn a_nack_lists_items_and_ranges() {
    let symbol = |block, symbol| SymbolId { block, symbol, block_len: 0 };
    let segment = Level { segment: true, ..Level::default() };
    let info = Level { info: true, ..Level::default() };
    let mut writer = Writer::new(60, Fec::ReedSolomon8);
    assert!(writer.push(info, (1, symbol(0, 0)), (1, symbol(0, 0))));
    assert!(writer.push(segment, (1, symbol(2, 64)), (1, symbol(2, 66))));
    assert!(writer.push(segment, (1, symbol(3, 64)), (1, symbol(3, 70))));
    assert!(!writer.push(segment, (1, symbol(4, 64)), (1, symbol(4, 70))), "60 bytes are full");
    let report = CcFeedback { sequence: 3, flags: 4, rtt: 77, loss: 0x8000, rate: 0x0102 };
    let message = Message::Feedback(Feedback {
        source: 5,
        sequence: 1,
        sender: HEAD.source,
        instance: HEAD.instance,
        echo: Some(Duration::new(1, 5000)),
        report: Some(report),
        kind: FeedbackKind::Nack(writer.requests()),
    });
    let expected = hex(
        "14 09 0001 00000005  01020304 0c0d 0000  00000001 00000005  03 03 0003 04 4d 8000 0102 0000
         01 04 0008  05 00 0001 00000000
         02 01 0020  05 00 0001 00000240 05 00 0001 00000242 05 00 0001 00000340 05 00 0001 00000346",
    );
    assert_eq!(bytes(&message), expected);
    let spans: Vec<_> = writer.requests().spans().collect();
    assert_eq!(spans.len(), 3);
    assert_eq!(spans[2].last, (1, symbol(3, 70)));
    assert!(spans[0].level.info && !spans[0].level.segment);
}

#[test]
fn acknowledgements() {
    let at = SymbolId { block: 9, symbol: 8, block_len: 0 };
    for kind in [
        AckKind::Probe,
        AckKind::Flush { object: 7, at, fec: Fec::ReedSolomon8 },
        AckKind::Flush { object: 7, at: SymbolId { block_len: 3, ..at }, fec: Fec::SmallBlock },
        AckKind::Other(16, b"x"),
    ] {
        let message = Message::Feedback(Feedback {
            source: 5,
            sequence: 1,
            sender: HEAD.source,
            instance: HEAD.instance,
            echo: None,
            report: None,
            kind: FeedbackKind::Ack(kind, 9),
        });
        assert_eq!(bytes(&message)[0], 0x15);
    }
}

#[test]
fn what_is_no_message_is_refused_for_its_reason() {
    for (text, error) in [
        ("", WireError::Short),
        ("22 04 0a0b 01020304", WireError::Version(2)),
        ("1f 02 0a0b 01020304", WireError::Kind(15)),
        ("12 02 0a0b 00000000", WireError::Header),
        ("12 02 0a0b ffffffff", WireError::Header),
        // The header ends within the fixed part, and within an extension.
        ("12 03 0a0b 01020304 0c0d6343 14050007 01020341", WireError::Header),
        ("12 06 0a0b 01020304 0c0d6343 14050007 01020341 4003 0001", WireError::Header),
        ("12 06 0a0b 01020304 0c0d6343 14050007 01020341 4000 0001", WireError::Header),
        ("12 04 0a0b 01020304 0c0d6343 14070007", WireError::Kind(7)),
        // A list with a length beyond the end of the message.
        ("14 06 0001 00000005 01020304 0c0d0000 00000000 00000000 01010009 00", WireError::Header),
    ] {
        assert_eq!(Message::decode(&hex(text)), Err(error), "{text}");
    }
}
