//! What comes from the server: datagrams are taken apart, authenticated and acted upon (RFC 9000, sections
//! 12 and 13; RFC 9001, sections 5 and 6).

use super::frame::{self, Ack, Frame};
use super::ids::Refusal;
use super::packet::{self, Header, Id};
use super::{Connection, Fault, Space, code, control};
use crate::bytes::Reader;
use crate::crypto::{TAG_BYTES, equal, retry_tag};
use crate::limits::STREAM_RECEIVE_BYTES;
use crate::{CloseReason, Instant};

/// A stateless reset is no shorter (section 10.3).
const MIN_RESET_BYTES: usize = 21;
const KEY_PHASE: u8 = 0x04;

/// Result of a packet's frames.
struct Outcome {
    ack_eliciting: bool,
    /// Something had no room: the packet must count as lost.
    dropped: bool,
}

impl Connection {
    /// Takes a datagram.
    pub(crate) fn receive(&mut self, datagram: &mut [u8], now: Instant) {
        if !self.is_open() {
            return;
        }
        let mut end = [0; TAG_BYTES];
        let may_be_reset = datagram.len() >= MIN_RESET_BYTES;
        if let Some((_, last)) = datagram.split_last_chunk() {
            end = *last;
        }
        let mut authentic = false;
        let mut rest = datagram;
        while self.is_open() {
            let (space, source, number_at, length) = match packet::parse(rest) {
                Some(Header::Protected { space, source, number_at, end }) => {
                    (space, source, number_at, end)
                }
                Some(Header::VersionNegotiation { destination, source, versions }) => {
                    return self.on_version_negotiation(destination, source, versions);
                }
                Some(Header::Retry { source, token }) => return self.on_retry(rest, source, token),
                None => break,
            };
            let (packet, others) = rest.split_at_mut(length);
            authentic |= self.on_packet(packet, space, source, number_at, now);
            rest = others;
        }
        if !authentic && may_be_reset && self.is_open() && self.ids.is_reset(&end) {
            self.end(CloseReason::Reset);
        }
    }

    /// Section 6.2: believed only before anything else has been heard.
    fn on_version_negotiation(&mut self, destination: &[u8], source: &[u8], versions: &[u8]) {
        let ours = packet::VERSION.to_be_bytes();
        let answers_us = destination.is_empty()
            && source == self.ids.current().as_slice()
            && !self.heard
            && self.retry_source.is_none();
        if answers_us
            && !versions.is_empty()
            && versions.len().is_multiple_of(4)
            && versions.chunks(4).all(|version| version != ours)
        {
            self.end(CloseReason::Version);
        }
    }

    /// Section 17.2.5.2: begins again with the server's token and connection ID.
    fn on_retry(&mut self, packet: &[u8], source: Id, token: &[u8]) {
        let original = self.original_destination;
        if self.heard
            || self.retry_source.is_some()
            || token.is_empty()
            || source.as_slice() == original.as_slice()
        {
            return;
        }
        // Nothing has been received yet, so that there is memory to put the pseudo-packet together in.
        let Some((body, tag)) = packet.split_last_chunk::<TAG_BYTES>() else { return };
        let mut pseudo = crate::bytes::Writer::new(&mut self.memory);
        pseudo.u8(original.as_slice().len() as u8);
        pseudo.write_bytes(original.as_slice());
        pseudo.write_bytes(body);
        if !equal(&retry_tag(pseudo.written()), tag) || pseudo.finish().is_none() {
            return;
        }
        let Some(place) = self.token.get_mut(..token.len()) else { return };
        place.copy_from_slice(token);
        self.token_len = token.len();
        self.retry_source = Some(source);
        self.ids.start(source);
        self.start_initial();
        self.crypto_out[0].rewind();
        for stream in &mut self.streams {
            stream.out.rewind();
        }
        for space in [Space::Initial, Space::Data] {
            while self.recovery.forget_next(space).is_some() {}
        }
        self.recovery.probes = 0;
    }

    /// Takes a packet; gives whether it is authentic.
    fn on_packet(
        &mut self,
        packet: &mut [u8],
        space: Space,
        source: Option<Id>,
        number_at: usize,
        now: Instant,
    ) -> bool {
        let from_elsewhere = self.heard
            && source.is_some_and(|source| source.as_slice() != self.server_source.as_slice());
        if !self.spaces[space as usize].can_receive || from_elsewhere {
            return false;
        }
        let Some((number, header_len)) = self.unprotect(packet, space, number_at) else {
            return false;
        };
        let state = &mut self.spaces[space as usize];
        if number < state.floor || state.received.contains(number) {
            state.ack_now = state.can_send;
            return true;
        }
        let (header, body) = packet.split_at_mut(header_len);
        let Some((payload, tag)) = body.split_last_chunk_mut() else { return false };
        if !self.open(space, number, header, payload, tag, now) {
            return false;
        }
        if !self.heard {
            self.heard = true;
            self.server_source = source.unwrap_or(Id::EMPTY);
            self.ids.start(self.server_source);
        }
        self.idle_from = now;
        self.waiting = false;
        let reserved = if space == Space::Data { 0x18 } else { 0x0c };
        let result =
            if payload.is_empty() || header.first().is_none_or(|first| first & reserved != 0) {
                Err(Fault::Transport(code::PROTOCOL_VIOLATION))
            } else {
                self.on_frames(space, payload, now)
            };
        match result {
            Ok(outcome) if !outcome.dropped => {
                self.on_received(space, number, outcome.ack_eliciting, now);
            }
            Ok(_) => {}
            Err(fault) => self.fail(fault),
        }
        true
    }

    /// Removes header protection (RFC 9001, section 5.4). Gives packet number and length of the header.
    fn unprotect(&self, packet: &mut [u8], space: Space, number_at: usize) -> Option<(u32, usize)> {
        let state = &self.spaces[space as usize];
        let mask = state.receive.mask(packet.get(number_at + 4..number_at + 4 + 16)?);
        let first = packet.first_mut()?;
        *first ^= mask[0] & if space == Space::Data { 0x1f } else { 0x0f };
        let bytes = usize::from(*first & 3) + 1;
        let mut truncated = 0;
        for (byte, mask) in packet.get_mut(number_at..number_at + bytes)?.iter_mut().zip(&mask[1..])
        {
            *byte ^= mask;
            truncated = truncated << 8 | u32::from(*byte);
        }
        let expected = state.received.as_slice().last().map_or(state.floor, |range| range.1);
        Some((packet::decode_number(expected, truncated, bytes)?, number_at + bytes))
    }

    /// Decrypts, with the keys that number and key phase ask for (RFC 9001, section 6).
    fn open(
        &mut self,
        space: Space,
        number: u32,
        header: &[u8],
        payload: &mut [u8],
        tag: &[u8; TAG_BYTES],
        now: Instant,
    ) -> bool {
        let phase = header.first().is_some_and(|first| first & KEY_PHASE != 0);
        let state = &mut self.spaces[space as usize];
        if space != Space::Data || phase == self.key_phase {
            let good = state.receive.open(number, header, payload, tag);
            if good && space == Space::Data && number < self.phase_received {
                if self.phase_received == u32::MAX {
                    // The server's first packet after we changed the keys.
                    self.previous_until = Some(now.after(3 * self.recovery.probe_ms()));
                }
                self.phase_received = number;
            }
            return good;
        }
        if number < self.phase_received {
            return self.has_previous() && self.previous.open(number, header, payload, tag);
        }
        let mut next = state.receive.clone();
        next.update();
        if !next.open(number, header, payload, tag) {
            return false;
        }
        self.change_keys(next);
        self.phase_received = number;
        self.previous_until = Some(now.after(3 * self.recovery.probe_ms()));
        true
    }

    fn has_previous(&self) -> bool {
        self.previous_until.is_some() || self.phase_received == u32::MAX
    }

    fn change_keys(&mut self, receive: crate::crypto::PacketKeys) {
        let data = &mut self.spaces[Space::Data as usize];
        self.previous = core::mem::replace(&mut data.receive, receive);
        data.send.update();
        self.key_phase = !self.key_phase;
        self.phase_sent = data.next_number;
    }

    /// Changes the keys of both directions, if that is allowed now (RFC 9001, section 6.1).
    pub(crate) fn update_keys(&mut self) -> bool {
        let data = &self.spaces[Space::Data as usize];
        let acknowledged = data.largest_acked.is_some_and(|largest| largest >= self.phase_sent);
        if !self.confirmed || !self.is_open() || !acknowledged || self.has_previous() {
            return false;
        }
        let mut next = data.receive.clone();
        next.update();
        self.change_keys(next);
        self.phase_received = u32::MAX;
        true
    }

    /// A packet has been processed: it can be acknowledged.
    fn on_received(&mut self, space: Space, number: u32, ack_eliciting: bool, now: Instant) {
        let state = &mut self.spaces[space as usize];
        let expected = state.received.as_slice().last().map_or(state.floor, |range| range.1);
        while !state.received.insert(number, number + 1) {
            // The oldest are forgotten, and what is as old as they are is no longer wanted.
            state.floor = state.received.as_slice().first().map_or(0, |range| range.1);
            if number < state.floor {
                return;
            }
            state.received.drop_lowest();
        }
        if number >= expected {
            state.largest_at = now;
        }
        if !ack_eliciting || !state.can_send {
            return;
        }
        state.unacked = state.unacked.saturating_add(1);
        if space != Space::Data || state.unacked >= 2 || number != expected {
            state.ack_now = true;
            state.ack_at = None;
        } else {
            state.ack_at = Some(now.after(super::params::OUR_MAX_ACK_DELAY_MS));
        }
    }

    fn on_frames(&mut self, space: Space, payload: &[u8], now: Instant) -> Result<Outcome, Fault> {
        let mut outcome = Outcome { ack_eliciting: false, dropped: false };
        let mut reader = Reader::new(payload);
        while !reader.is_empty() && self.is_open() {
            let frame =
                frame::parse(&mut reader).ok_or(Fault::Transport(code::FRAME_ENCODING_ERROR))?;
            if !frame.is_allowed_in(space) {
                return Err(Fault::Transport(code::PROTOCOL_VIOLATION));
            }
            outcome.ack_eliciting |= frame.is_ack_eliciting();
            outcome.dropped |= !self.on_frame(space, frame, now)?;
        }
        Ok(outcome)
    }

    /// For fuzzing: a packet whose protection was valid.
    #[cfg(feature = "fuzzing")]
    pub(super) fn receive_payload(&mut self, space: Space, payload: &[u8], now: Instant) {
        if let Err(fault) = self.on_frames(space, payload, now) {
            self.fail(fault);
        }
    }

    /// Acts upon a frame. False: there was no room for it.
    fn on_frame(&mut self, space: Space, frame: Frame<'_>, now: Instant) -> Result<bool, Fault> {
        match frame {
            Frame::Padding | Frame::Ping | Frame::Ignored => {}
            Frame::Ack(ack) => self.on_ack(space, ack, now)?,
            Frame::Crypto { offset, data } => return self.on_crypto(space, offset, data),
            Frame::Stream { id, offset, data, fin } => {
                return self.on_stream(id, offset, data, fin);
            }
            Frame::ResetStream { id, final_size } => {
                let stream = self.stream_index(id)?;
                self.check_size(stream, final_size, true)?;
                self.streams[stream].stopped = true;
            }
            Frame::StopSending { id } => {
                let stream = self.stream_index(id)?;
                self.streams[stream].stopped = true;
                self.control |= control::RESET_STREAM << stream;
            }
            Frame::MaxData(limit) => self.send_limit = self.send_limit.max(limit),
            Frame::MaxStreamData { id, limit } => {
                let stream = self.stream_index(id)?;
                let stream = &mut self.streams[stream];
                stream.send_limit = stream.send_limit.max(limit);
            }
            Frame::NewConnectionId { sequence, retire_before, id, reset_token } => {
                if self.server_source.as_slice().is_empty() {
                    return Err(Fault::Transport(code::PROTOCOL_VIOLATION));
                }
                self.ids.add(sequence, retire_before, id, reset_token).map_err(|refusal| {
                    Fault::Transport(match refusal {
                        Refusal::Contradiction => code::PROTOCOL_VIOLATION,
                        Refusal::TooMany => code::CONNECTION_ID_LIMIT_ERROR,
                    })
                })?;
            }
            Frame::PathChallenge(data) => self.path_response = Some(data),
            Frame::Close { code, application } => self.end(if application {
                CloseReason::PeerApplication(code)
            } else {
                CloseReason::PeerTransport(code)
            }),
            Frame::HandshakeDone => {
                self.confirmed = true;
                self.discard(Space::Handshake);
            }
        }
        Ok(true)
    }

    fn on_ack(&mut self, space: Space, ack: Ack<'_>, now: Instant) -> Result<(), Fault> {
        let largest = ack.largest;
        if largest >= self.spaces[space as usize].next_number {
            return Err(Fault::Transport(code::PROTOCOL_VIOLATION));
        }
        let delay_ms = ack.delay.checked_shl(self.ack_exponent).unwrap_or(u32::MAX) / 1000;
        let mut newest = None;
        let mut lowest = u32::MAX;
        let well_formed = ack.for_each_range(|low, high| {
            while let Some(sent) = self.recovery.take_acked(space, low, high) {
                if sent.number == largest {
                    newest = Some(sent.at);
                }
                lowest = lowest.min(sent.number);
                self.acknowledged(&sent);
            }
        });
        well_formed.ok_or(Fault::Transport(code::FRAME_ENCODING_ERROR))?;
        let state = &mut self.spaces[space as usize];
        state.largest_acked = state.largest_acked.max(Some(largest));
        if let Some(sent) = newest {
            let delay_ms = match space {
                Space::Data if self.confirmed => delay_ms.min(self.max_ack_delay_ms),
                Space::Data => delay_ms.min(1000),
                _ => 0,
            };
            self.recovery.sample(sent, now, delay_ms);
        }
        // An Initial packet acknowledged does not mean that the server believes our address.
        if lowest != u32::MAX && space != Space::Initial {
            self.recovery.probes = 0;
        }
        self.detect_losses(space, lowest, now);
        Ok(())
    }

    /// The index of a stream of ours that is in use.
    fn stream_index(&self, id: u32) -> Result<usize, Fault> {
        let index = id as usize >> 2;
        match id & 3 {
            0 if self.streams.get(index).is_some_and(|stream| stream.used) => Ok(index),
            1 | 3 => Err(Fault::Transport(code::STREAM_LIMIT_ERROR)),
            _ => Err(Fault::Transport(code::STREAM_STATE_ERROR)),
        }
    }

    /// Checks that a stream may have `end` bytes, or that it ends there.
    fn check_size(&self, stream: usize, end: u32, is_final: bool) -> Result<(), Fault> {
        let stream = &self.streams[stream];
        let known = stream.inbound.end;
        if known.is_some_and(|known| end > known || is_final && end != known)
            || is_final && end < stream.inbound.highest
        {
            return Err(Fault::Transport(code::FINAL_SIZE_ERROR));
        }
        // The limit of the connection is the sum of those of the streams.
        if end > stream.receive_limit {
            return Err(Fault::Transport(code::FLOW_CONTROL_ERROR));
        }
        Ok(())
    }

    pub(super) fn on_stream(
        &mut self,
        id: u32,
        offset: u32,
        data: &[u8],
        fin: bool,
    ) -> Result<bool, Fault> {
        let index = self.stream_index(id)?;
        let end = offset
            .checked_add(data.len() as u32)
            .ok_or(Fault::Transport(code::FLOW_CONTROL_ERROR))?;
        self.check_size(index, end, fin)?;
        let start = index * STREAM_RECEIVE_BYTES;
        let memory = self.memory.get_mut(start..start + STREAM_RECEIVE_BYTES);
        let stream = &mut self.streams[index];
        if stream.stopped {
            return Ok(true);
        }
        let stored = stream.inbound.write(memory.unwrap_or_default(), offset, data);
        if stored && fin {
            stream.inbound.end = Some(end);
        }
        Ok(stored)
    }
}
