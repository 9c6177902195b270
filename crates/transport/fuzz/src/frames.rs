//! WebSocket frames of a hostile client, cut anywhere, beside a decoder that has all of them at once
//! and follows RFC 6455 section 5.2 field by field.

use fulmar_mqtt_fuzz::heap;

use crate::ws::{CloseCode, Event, FrameDecoder, append_binary, append_pong};

/// A header and a control frame's payload are all a decoder may keep, in bytes.
const MAX_KEPT_BYTES: usize = 512;

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Data(Vec<u8>),
    Ping(Vec<u8>),
    Close,
    Refused(CloseCode),
}

/// How much the decoder gets at a time, then what the client sends.
pub fn frames(data: &[u8]) {
    let Some((cut, wire)) = data.split_first() else { return };
    let wanted = naive(wire);
    assert_eq!(decoded(wire, usize::from(*cut) + 1), wanted);
    assert_eq!(decoded(wire, wire.len().max(1)), wanted);
    for seen in &wanted {
        let mut out = Vec::new();
        match seen {
            Seen::Ping(payload) => {
                append_pong(&mut out, payload);
                assert_eq!(out[..2], [0x8A, payload.len() as u8]);
                assert_eq!(out[2..], payload[..]);
            }
            Seen::Data(payload) => {
                append_binary(&mut out, payload);
                let header = if payload.len() < 126 { 2 } else { 4 };
                assert_eq!((out[0], &out[header..]), (0x82, &payload[..]));
            }
            Seen::Close | Seen::Refused(_) => {}
        }
    }
}

fn decoded(wire: &[u8], cut: usize) -> Vec<Seen> {
    let mut decoder = FrameDecoder::default();
    let mut all = Vec::new();
    for piece in wire.to_vec().chunks_mut(cut) {
        let mut rest = &mut piece[..];
        while !rest.is_empty() {
            let (result, used) = heap::measure(|| decoder.next(rest));
            assert!(used.peak_bytes <= MAX_KEPT_BYTES, "{used:?}");
            let used = match result {
                Ok((used, event)) => {
                    match event {
                        Some(Event::Data(bytes)) => push_data(&mut all, bytes),
                        Some(Event::Ping(bytes)) => all.push(Seen::Ping(bytes.to_vec())),
                        Some(Event::Close) => all.push(Seen::Close),
                        None => {}
                    }
                    used
                }
                Err(code) => {
                    all.push(Seen::Refused(code));
                    return all;
                }
            };
            assert!(used > 0, "a decoder that uses nothing never ends");
            rest = &mut rest[used..];
        }
    }
    all
}

/// Frame borders mean nothing, so neighbouring data is one.
fn push_data(all: &mut Vec<Seen>, bytes: &[u8]) {
    match all.last_mut() {
        _ if bytes.is_empty() => {}
        Some(Seen::Data(data)) => data.extend_from_slice(bytes),
        _ => all.push(Seen::Data(bytes.to_vec())),
    }
}

struct Header {
    first: u8,
    mask: Option<[u8; 4]>,
    payload_bytes: u64,
}

fn naive(mut wire: &[u8]) -> Vec<Seen> {
    let mut all = Vec::new();
    let mut in_message = false;
    while let Some((header, rest)) = header(wire) {
        match refusal(&header, in_message) {
            Some(code) => {
                all.push(Seen::Refused(code));
                return all;
            }
            None => wire = rest,
        }
        let whole = wire.len() as u64 >= header.payload_bytes;
        let len = if whole { header.payload_bytes as usize } else { wire.len() };
        let mask = header.mask.unwrap_or_default();
        let masked = wire[..len].iter().zip(mask.iter().cycle());
        let payload: Vec<u8> = masked.map(|(byte, key)| byte ^ key).collect();
        wire = &wire[len..];
        match header.first & 0x0F {
            0 | 2 => {
                in_message = header.first & 0x80 == 0;
                push_data(&mut all, &payload);
            }
            8 if whole => all.push(Seen::Close),
            9 if whole => all.push(Seen::Ping(payload)),
            _ => {}
        }
    }
    all
}

fn header(wire: &[u8]) -> Option<(Header, &[u8])> {
    let (&[first, second], rest) = wire.split_first_chunk()?;
    let (payload_bytes, rest) = match second & 0x7F {
        126 => {
            let (length, rest) = rest.split_first_chunk()?;
            (u64::from(u16::from_be_bytes(*length)), rest)
        }
        127 => {
            let (length, rest) = rest.split_first_chunk()?;
            (u64::from_be_bytes(*length), rest)
        }
        short => (u64::from(short), rest),
    };
    if second & 0x80 == 0 {
        return Some((Header { first, mask: None, payload_bytes }, rest));
    }
    let (mask, rest) = rest.split_first_chunk()?;
    Some((Header { first, mask: Some(*mask), payload_bytes }, rest))
}

fn refusal(header: &Header, in_message: bool) -> Option<CloseCode> {
    let (last, opcode) = (header.first & 0x80 != 0, header.first & 0x0F);
    let broken = header.first & 0x70 != 0
        || header.mask.is_none()
        || header.payload_bytes >> 63 != 0
        || !matches!(opcode, 0..=2 | 8..=10)
        || (opcode >= 8 && (!last || header.payload_bytes > 125))
        || (opcode == 0 && !in_message)
        || (opcode == 2 && in_message);
    match opcode {
        _ if broken => Some(CloseCode::Protocol),
        1 => Some(CloseCode::Unsupported),
        _ => None,
    }
}
