//! WebSocket frames (RFC 6455 section 5) as a stream of payload bytes: MQTT packets may span
//! frames and a frame may hold several (MQTT 5.0 section 6), so frame borders mean nothing here.
//!
//! Payloads are unmasked in place and handed on as they come, a part of a frame at a time; no
//! message is ever put together, so a frame's length needs no bound. Only control frames, at most
//! 125 bytes, are collected.

use std::io::Cursor;

use smallvec::SmallVec;
use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};

/// Longest header: two bytes, eight of length, four of mask.
const MAX_HEADER_BYTES: usize = 14;

/// Longest payload of a control frame (RFC 6455 section 5.5).
const MAX_CONTROL_BYTES: usize = 125;

/// Why a WebSocket is closed (RFC 6455 section 7.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseCode {
    Normal = 1000,
    Protocol = 1002,
    Unsupported = 1003,
}

/// A frame of the peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    /// Bytes of the MQTT stream.
    Data(&'a [u8]),
    /// To be answered with a pong of the same bytes.
    Ping(&'a [u8]),
    /// The peer closes; to be answered with a close.
    Close,
}

/// Where a connection stands within its frames.
#[derive(Debug, Default)]
pub(crate) struct FrameDecoder {
    /// Bytes of a header that is not complete; empty between and within frames.
    header: SmallVec<[u8; MAX_HEADER_BYTES]>,
    frame: Option<OpenFrame>,
    /// Between the first and the last frame of a message.
    in_message: bool,
    /// Payload of a control frame, collected.
    control: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct OpenFrame {
    opcode: OpCode,
    /// Rotated so that its first byte is for the next byte of payload.
    mask: [u8; 4],
    remaining: u64,
}

impl FrameDecoder {
    /// Decodes from the start of `input`: how many bytes were used, and what they mean. To be called with what remains
    /// until nothing does; uses at least one byte of what is not empty. The error is the close code to answer a
    /// violation with.
    pub(crate) fn next<'a>(
        &'a mut self,
        input: &'a mut [u8],
    ) -> Result<(usize, Option<Event<'a>>), CloseCode> {
        let Some(mut frame) = self.frame else {
            let used = self.read_header(input)?;
            // An empty frame has no payload byte to end it.
            return match self.frame {
                Some(frame) if frame.remaining == 0 => {
                    self.frame = None;
                    Ok((used, self.control_event(frame.opcode)))
                }
                _ => Ok((used, None)),
            };
        };
        let len = usize::try_from(frame.remaining).unwrap_or(usize::MAX).min(input.len());
        let payload = &mut input[..len];
        unmask(payload, frame.mask);
        frame.mask.rotate_left(len % 4);
        frame.remaining -= len as u64;
        self.frame = (frame.remaining > 0).then_some(frame);
        if matches!(frame.opcode, OpCode::Data(_)) {
            return Ok((len, Some(Event::Data(payload))));
        }
        self.control.extend_from_slice(payload);
        let event = if self.frame.is_none() { self.control_event(frame.opcode) } else { None };
        Ok((len, event))
    }

    fn control_event(&mut self, opcode: OpCode) -> Option<Event<'_>> {
        match opcode {
            OpCode::Control(Control::Ping) => Some(Event::Ping(&self.control)),
            OpCode::Control(Control::Close) => Some(Event::Close),
            _ => None,
        }
    }

    fn read_header(&mut self, input: &[u8]) -> Result<usize, CloseCode> {
        self.control.clear();
        if self.header.is_empty() {
            if let Some((header, length, used)) = parse(input)? {
                self.open(&header, length)?;
                return Ok(used);
            }
            self.header.extend_from_slice(input);
            return Ok(input.len());
        }
        for (i, byte) in input.iter().enumerate() {
            self.header.push(*byte);
            if let Some((header, length, _)) = parse(&self.header)? {
                self.header.clear();
                self.open(&header, length)?;
                return Ok(i + 1);
            }
        }
        Ok(input.len())
    }

    fn open(&mut self, header: &FrameHeader, length: u64) -> Result<(), CloseCode> {
        if header.rsv1 || header.rsv2 || header.rsv3 || length >> 63 != 0 {
            return Err(CloseCode::Protocol);
        }
        let mask = header.mask.ok_or(CloseCode::Protocol)?;
        match header.opcode {
            OpCode::Control(_) if !header.is_final || length > MAX_CONTROL_BYTES as u64 => {
                return Err(CloseCode::Protocol);
            }
            OpCode::Control(_) => {}
            OpCode::Data(Data::Text) => return Err(CloseCode::Unsupported),
            OpCode::Data(kind) => {
                if (kind == Data::Continue) != self.in_message {
                    return Err(CloseCode::Protocol);
                }
                self.in_message = !header.is_final;
            }
        }
        self.frame = Some(OpenFrame { opcode: header.opcode, mask, remaining: length });
        Ok(())
    }
}

fn parse(input: &[u8]) -> Result<Option<(FrameHeader, u64, usize)>, CloseCode> {
    let mut cursor = Cursor::new(input);
    let parsed = FrameHeader::parse(&mut cursor).map_err(|_| CloseCode::Protocol)?;
    Ok(parsed.map(|(header, length)| (header, length, cursor.position() as usize)))
}

/// XORs `payload` with the repeated mask, eight bytes a step, which the compiler makes into vectors.
fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = payload.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(mask.into_iter().cycle()) {
        *byte ^= key;
    }
}

/// Appends `payload` as one binary frame.
pub(crate) fn append_binary(out: &mut Vec<u8>, payload: &[u8]) {
    append(out, OpCode::Data(Data::Binary), payload);
}

/// Appends the answer to a ping.
pub(crate) fn append_pong(out: &mut Vec<u8>, payload: &[u8]) {
    append(out, OpCode::Control(Control::Pong), payload);
}

/// Appends a close frame.
pub(crate) fn append_close(out: &mut Vec<u8>, code: CloseCode) {
    append(out, OpCode::Control(Control::Close), &(code as u16).to_be_bytes());
}

fn append(out: &mut Vec<u8>, opcode: OpCode, payload: &[u8]) {
    let header = FrameHeader { opcode, ..FrameHeader::default() };
    out.reserve(MAX_HEADER_BYTES + payload.len());
    // Writing to a vector does not fail.
    let _ = header.format(payload.len() as u64, out);
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Default, PartialEq, Eq)]
    struct Seen {
        data: Vec<u8>,
        pings: Vec<Vec<u8>>,
        closed: bool,
    }

    fn run(
        decoder: &mut FrameDecoder,
        mut input: &mut [u8],
        seen: &mut Seen,
    ) -> Result<(), CloseCode> {
        while !input.is_empty() {
            let (used, event) = decoder.next(input)?;
            match event {
                Some(Event::Data(bytes)) => seen.data.extend_from_slice(bytes),
                Some(Event::Ping(bytes)) => seen.pings.push(bytes.to_vec()),
                Some(Event::Close) => seen.closed = true,
                None => {}
            }
            assert!(used > 0);
            input = &mut input[used..];
        }
        Ok(())
    }

    fn client_frame(first: u8, payload: &[u8], mask: [u8; 4]) -> Vec<u8> {
        let mut out = vec![first];
        match payload.len() {
            n @ 0..126 => out.push(0x80 | n as u8),
            n @ 126..65536 => {
                out.push(0x80 | 126);
                out.extend((n as u16).to_be_bytes());
            }
            n => {
                out.push(0x80 | 127);
                out.extend((n as u64).to_be_bytes());
            }
        }
        out.extend(mask);
        out.extend(payload.iter().zip(mask.iter().cycle()).map(|(b, k)| b ^ k));
        out
    }

    proptest! {
        #[test]
        fn any_fragmentation_and_any_cut_give_the_same_stream(
            messages in proptest::collection::vec(
                proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 1..4), 1..6),
            pings in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..126), 0..4),
            mask in any::<[u8; 4]>(),
            cut in 1usize..200,
        ) {
            let mut wire = Vec::new();
            let mut expected = Seen::default();
            let mut pings = pings.into_iter();
            for parts in &messages {
                for (i, part) in parts.iter().enumerate() {
                    let fin = if i + 1 == parts.len() { 0x80 } else { 0 };
                    let opcode = if i == 0 { 2 } else { 0 };
                    wire.extend(client_frame(fin | opcode, part, mask));
                    expected.data.extend_from_slice(part);
                    if let Some(ping) = pings.next() {
                        wire.extend(client_frame(0x89, &ping, mask));
                        expected.pings.push(ping);
                    }
                }
            }
            wire.extend(client_frame(0x88, &[3, 232], mask));
            expected.closed = true;
            let mut decoder = FrameDecoder::default();
            let mut seen = Seen::default();
            for piece in wire.chunks_mut(cut) {
                prop_assert_eq!(run(&mut decoder, piece, &mut seen), Ok(()));
            }
            prop_assert_eq!(seen, expected);
        }

        #[test]
        fn any_bytes_are_answered_without_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = run(&mut FrameDecoder::default(), &mut bytes, &mut Seen::default());
        }
    }

    #[test]
    fn violations_get_their_close_code() {
        let mask = [1, 2, 3, 4];
        let unmasked = vec![0x82, 0x01, 0x00];
        let long_ping = client_frame(0x89, &[0; 126], mask);
        let cases = [
            ("unmasked", unmasked, CloseCode::Protocol),
            ("text", client_frame(0x81, b"a", mask), CloseCode::Unsupported),
            ("reserved bit", client_frame(0xc2, b"a", mask), CloseCode::Protocol),
            ("reserved opcode", client_frame(0x83, b"a", mask), CloseCode::Protocol),
            ("fragmented ping", client_frame(0x09, b"a", mask), CloseCode::Protocol),
            ("long ping", long_ping, CloseCode::Protocol),
            ("continuation of nothing", client_frame(0x80, b"a", mask), CloseCode::Protocol),
            (
                "new message within a message",
                [client_frame(0x02, b"a", mask), client_frame(0x82, b"a", mask)].concat(),
                CloseCode::Protocol,
            ),
        ];
        for (what, mut bytes, code) in cases {
            let result = run(&mut FrameDecoder::default(), &mut bytes, &mut Seen::default());
            assert_eq!(result, Err(code), "{what}");
        }
    }

    #[test]
    fn frames_written_carry_their_length() {
        for (len, header) in [
            (5, vec![0x82, 5]),
            (126, vec![0x82, 126, 0, 126]),
            (70_000, vec![0x82, 127, 0, 0, 0, 0, 0, 1, 0x11, 0x70]),
        ] {
            let mut out = Vec::new();
            append_binary(&mut out, &vec![7; len]);
            assert_eq!(&out[..header.len()], &header[..]);
            assert_eq!(out.len(), header.len() + len);
        }
        let mut out = Vec::new();
        append_close(&mut out, CloseCode::Normal);
        assert_eq!(out, [0x88, 2, 3, 232]);
    }
}
