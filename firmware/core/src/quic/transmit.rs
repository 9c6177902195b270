//! What goes to the server: datagrams are put together of packets, packets of frames (RFC 9000, sections
//! 12, 13 and 14).

use super::packet::{self, SPACES};
use super::params::OUR_MAX_ACK_DELAY_MS;
use super::recovery::{Content, SentPacket};
use super::{Closing, Connection, FIRST_STREAM, Outbound, Space, code, control};
use crate::Instant;
use crate::bytes::Writer;
use crate::crypto::TAG_BYTES;
use crate::limits::{DATAGRAM_BYTES, STREAMS};

/// With less room left, a datagram gets no further packet.
const MIN_PACKET_ROOM: usize = 128;
/// After this many packets the keys are changed, a half of what AES-GCM stands (RFC 9001, section 6.6).
const PACKETS_PER_KEY: u32 = 1 << 22;
/// A STREAM or CRYPTO frame without its data.
const FRAME_OVERHEAD: usize = 16;

impl Connection {
    /// Writes a datagram; [`None`] if there is nothing to send.
    pub(crate) fn poll_transmit(&mut self, datagram: &mut [u8], now: Instant) -> Option<usize> {
        let out = datagram.get_mut(..DATAGRAM_BYTES)?;
        let closing = core::mem::replace(&mut self.closing, Closing::No);
        if closing == Closing::No && !self.is_open() {
            return None;
        }
        let data = &self.spaces[Space::Data as usize];
        if self.one_rtt && data.next_number - self.phase_sent >= PACKETS_PER_KEY {
            self.update_keys();
        }
        if self.wants(Space::Handshake, closing) {
            // The server knows what our Initial packets could still tell it (RFC 9001, section 4.9.1).
            self.discard(Space::Initial);
        }
        let pad = self.wants(Space::Initial, closing) || self.path_response.is_some();
        let mut at = 0;
        for (place, space) in SPACES.into_iter().enumerate() {
            if self.wants(space, closing) && DATAGRAM_BYTES - at >= MIN_PACKET_ROOM {
                let last =
                    !SPACES.into_iter().skip(place + 1).any(|later| self.wants(later, closing));
                at = self.write_packet(space, out, at, pad, last, closing, now);
            }
        }
        if at == 0 {
            return None;
        }
        // Only now: whoever asks every millisecond would put the next probe off for ever.
        self.sent_at = now;
        Some(at)
    }

    /// Whether there is something to send in a packet of `space`.
    fn wants(&self, space: Space, closing: Closing) -> bool {
        let state = &self.spaces[space as usize];
        if !state.can_send {
            return false;
        }
        let early = self.is_early(space);
        if closing != Closing::No {
            return !early;
        }
        if state.probe || state.ack_now && !early {
            return true;
        }
        if !self.recovery.may_send() {
            return false;
        }
        match self.crypto_out.get(space as usize) {
            Some(out) => out.pending(usize::MAX, u32::MAX).is_some(),
            None if early => self.pending_stream().is_some(),
            None => {
                self.control != 0
                    || self.path_response.is_some()
                    || self.ids.has_retiring()
                    || self.pending_stream().is_some()
            }
        }
    }

    /// Whether packets of `space` are 0-RTT packets now.
    fn is_early(&self, space: Space) -> bool {
        space == Space::Data && !self.one_rtt
    }

    /// The first stream with something to send that the server's limits allow, and how far it may go.
    fn pending_stream(&self) -> Option<(usize, u32)> {
        let total: u32 = self.streams.iter().map(|stream| stream.out.next()).sum();
        let credit = self.send_limit.saturating_sub(total);
        (0..STREAMS.min(self.stream_limit as usize)).find_map(|index| {
            let stream = self.streams.get(index).filter(|stream| !stream.stopped)?;
            let limit = stream.send_limit.min(stream.out.next().saturating_add(credit));
            stream.out.pending(usize::MAX, limit).map(|_| (index, limit))
        })
    }

    /// Writes a packet at `at`; gives where it ends.
    #[allow(clippy::too_many_arguments)]
    fn write_packet(
        &mut self,
        space: Space,
        out: &mut [u8],
        at: usize,
        pad: bool,
        last: bool,
        closing: Closing,
        now: Instant,
    ) -> usize {
        let end = out.len() - TAG_BYTES;
        let Some(place) = out.get_mut(at..end) else { return at };
        let mut writer = Writer::new(place);
        let number = self.spaces[space as usize].next_number;
        let (number_at, number_bytes) = self.write_header(space, number, &mut writer);
        let payload_at = writer.len();
        let (content, ack_eliciting) = if closing == Closing::No {
            self.write_frames(space, &mut writer, now)
        } else {
            if space == Space::Data {
                // The application's last words.
                self.write_stream(&mut writer, &mut Content::nothing());
            }
            write_close(space, closing, &mut writer);
            (Content::nothing(), false)
        };
        // Header protection needs a sample from behind the longest packet number.
        writer.pad(payload_at + 4 - number_bytes);
        if pad && (last || writer.room() < MIN_PACKET_ROOM) {
            writer.pad(end);
        }
        if space != Space::Data || self.is_early(space) {
            // The length counts from the packet number to the end of the tag.
            writer.set16(number_at - 2, (writer.len() - number_at + TAG_BYTES) | 0x4000);
        }
        let packet_len = writer.len() + TAG_BYTES;
        self.protect(space, number, number_at, payload_at, &mut out[at..at + packet_len]);
        let state = &mut self.spaces[space as usize];
        state.next_number += 1;
        state.probe = false;
        if ack_eliciting {
            if !self.waiting {
                self.waiting = true;
                self.idle_from = now;
            }
            let bytes = packet_len as u16;
            let sent = SentPacket { number, at: now, bytes, space, content };
            if let Some(given_up) = self.recovery.on_sent(sent) {
                self.requeue(given_up.content);
            }
        }
        at + packet_len
    }

    /// Gives where the packet number begins, and its length.
    fn write_header(&self, space: Space, number: u32, writer: &mut Writer<'_>) -> (usize, usize) {
        let state = &self.spaces[space as usize];
        let unacked = number - state.largest_acked.unwrap_or(0);
        let number_bytes = if unacked < 1 << 14 { 2 } else { 4 };
        let low = number_bytes as u8 - 1;
        let id = self.ids.current();
        if space == Space::Data && self.one_rtt {
            writer.u8(0x40 | u8::from(self.key_phase) << 2 | low);
            writer.write_bytes(id.as_slice());
        } else {
            let kind = match space {
                Space::Initial => 0,
                Space::Data => 1,
                Space::Handshake => 2,
            };
            writer.u8(0xc0 | kind << 4 | low);
            writer.u32(packet::VERSION);
            writer.u8(id.as_slice().len() as u8);
            writer.write_bytes(id.as_slice());
            writer.u8(0);
            if space == Space::Initial {
                writer.varint(self.token_len as u32);
                writer.write_bytes(self.token.get(..self.token_len).unwrap_or_default());
            }
            writer.open16();
        }
        let number_at = writer.len();
        match number_bytes {
            2 => writer.u16(number as usize & 0xffff),
            _ => writer.u32(number),
        }
        (number_at, number_bytes)
    }

    fn protect(
        &self,
        space: Space,
        number: u32,
        number_at: usize,
        payload_at: usize,
        packet: &mut [u8],
    ) {
        let keys = &self.spaces[space as usize].send;
        let (header, body) = packet.split_at_mut(payload_at);
        let Some((payload, tag)) = body.split_last_chunk_mut() else { return };
        *tag = keys.seal(number, header, payload);
        let sample = packet.get(number_at + 4..number_at + 4 + 16).unwrap_or_default();
        let mask = keys.mask(sample);
        let long = packet.first().is_some_and(|first| first & 0x80 != 0);
        if let Some(first) = packet.first_mut() {
            *first ^= mask[0] & if long { 0x0f } else { 0x1f };
        }
        for (byte, mask) in packet[number_at..payload_at].iter_mut().zip(&mask[1..]) {
            *byte ^= mask;
        }
    }

    /// Writes what there is to say in `space`; gives what to do again if it is lost, and whether it asks
    /// for an acknowledgement.
    fn write_frames(
        &mut self,
        space: Space,
        writer: &mut Writer<'_>,
        now: Instant,
    ) -> (Content, bool) {
        let mut content = Content::nothing();
        let early = self.is_early(space);
        let mut ack_eliciting = false;
        if !early {
            self.write_ack(space, writer, now);
        }
        // An acknowledgement may go when nothing else may.
        if self.recovery.may_send() || self.spaces[space as usize].probe {
            if space == Space::Data {
                if !early {
                    ack_eliciting |= self.write_control(writer, &mut content);
                }
                ack_eliciting |= self.write_stream(writer, &mut content);
            } else {
                ack_eliciting |= self.write_crypto(space, writer, &mut content);
            }
        }
        if self.spaces[space as usize].probe && !ack_eliciting {
            writer.u8(0x01); // PING
            ack_eliciting = true;
        }
        (content, ack_eliciting)
    }

    fn write_ack(&mut self, space: Space, writer: &mut Writer<'_>, now: Instant) {
        let state = &mut self.spaces[space as usize];
        let ranges = state.received.as_slice();
        let (Some(&(start, end)), true) = (ranges.last(), state.ack_now || state.unacked > 0)
        else {
            return;
        };
        let delay_ms = if space == Space::Data { now.since(state.largest_at) } else { 0 };
        writer.u8(0x02);
        writer.varint(end - 1);
        // In units of 8 microseconds. What was held back for longer was not held back by us.
        writer.varint(delay_ms.min(4 * OUR_MAX_ACK_DELAY_MS) * 125);
        writer.varint(ranges.len() as u32 - 1);
        writer.varint(end - 1 - start);
        let mut low = start;
        for &(start, end) in ranges.iter().rev().skip(1) {
            writer.varint(low - end - 1);
            writer.varint(end - 1 - start);
            low = start;
        }
        state.unacked = 0;
        state.ack_now = false;
        state.ack_at = None;
    }

    fn write_crypto(
        &mut self,
        space: Space,
        writer: &mut Writer<'_>,
        content: &mut Content,
    ) -> bool {
        let (bytes, origin) = match space {
            Space::Initial => (&self.hello[..], self.hello_offset),
            _ => (self.tls.flight(), 0),
        };
        let source = space as usize;
        write_range(&mut self.crypto_out[source], u32::MAX, writer, content, |range, writer| {
            writer.u8(0x06);
            writer.varint(range.0);
            writer.varint(range.1 - range.0);
            let from = (range.0 - origin) as usize;
            let to = (range.1 - origin) as usize;
            writer.write_bytes(bytes.get(from..to).unwrap_or_default());
        })
        .then(|| content.source = source as u8)
        .is_some()
    }

    fn write_stream(&mut self, writer: &mut Writer<'_>, content: &mut Content) -> bool {
        let Some((index, limit)) = self.pending_stream() else { return false };
        let Some(stream) = self.streams.get_mut(index) else { return false };
        let written = &stream.written;
        let origin = stream.out.base();
        write_range(&mut stream.out, limit, writer, content, |range, writer| {
            writer.u8(0x0e); // with offset and length
            writer.varint((index as u32) << 2);
            writer.varint(range.0);
            writer.varint(range.1 - range.0);
            let from = (range.0 - origin) as usize;
            let to = (range.1 - origin) as usize;
            writer.write_bytes(written.get(from..to).unwrap_or_default());
        })
        .then(|| content.source = (FIRST_STREAM + index) as u8)
        .is_some()
    }

    /// Writes control frames; each of them asks for an acknowledgement.
    fn write_control(&mut self, writer: &mut Writer<'_>, content: &mut Content) -> bool {
        let before = writer.len();
        if let Some(data) = self.path_response.take() {
            // Not repeated if lost: the server asks again.
            writer.u8(0x1b);
            writer.write_bytes(&data);
        }
        content.control = core::mem::take(&mut self.control);
        if content.control & control::PING != 0 {
            writer.u8(0x01);
        }
        if content.control & control::MAX_DATA != 0 {
            writer.u8(0x10);
            writer.varint(self.receive_limit);
        }
        for (index, stream) in self.streams.iter().enumerate() {
            let id = (index as u32) << 2;
            if content.control & control::MAX_STREAM_DATA << index != 0 {
                writer.u8(0x11);
                writer.varint(id);
                writer.varint(stream.receive_limit);
            }
            if content.control & control::RESET_STREAM << index != 0 {
                writer.u8(0x04);
                writer.varint(id);
                writer.varint(0);
                writer.varint(stream.out.next());
            }
        }
        if let Some(sequence) = self.ids.take_retiring() {
            writer.u8(0x19);
            writer.varint(sequence);
            content.control |= control::RETIRE;
            content.retired = sequence;
        }
        writer.len() > before
    }
}

/// Lets `write` put the next bytes of `out` into a frame, and remembers that; false if there are none.
fn write_range(
    out: &mut Outbound,
    limit: u32,
    writer: &mut Writer<'_>,
    content: &mut Content,
    write: impl FnOnce((u32, u32), &mut Writer<'_>),
) -> bool {
    let room = writer.room().saturating_sub(FRAME_OVERHEAD);
    let Some(range) = out.pending(room, limit) else { return false };
    write(range, writer);
    out.sent(range);
    content.range = range;
    true
}

/// Writes a CONNECTION_CLOSE frame. Only 1-RTT packets may tell what the application said (RFC 9000,
/// section 10.2.3).
fn write_close(space: Space, closing: Closing, writer: &mut Writer<'_>) {
    let (kind, code) = match closing {
        Closing::Application(code) if space == Space::Data => (0x1d, code),
        Closing::Application(_) => (0x1c, code::APPLICATION_ERROR),
        Closing::Transport(code) => (0x1c, code),
        Closing::No => return,
    };
    writer.u8(kind);
    writer.varint(code);
    if kind == 0x1c {
        writer.u8(0); // No frame is to blame more than others.
    }
    writer.u8(0);
}
