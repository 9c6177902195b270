//! Turns responses into messages: options, the requested block, and the message type. A peer whose address is not
//! validated gets at most a small multiple of the bytes that it has sent (RFC 7252 section 11.3).

use std::hash::{DefaultHasher, Hasher};

use coap_lite::{CoapOption, Packet};

use super::Context;
use super::bodies::Body;
use super::peer::{PeerState, Pending};
use crate::block::{self, Block};
use crate::message::{self, Kind, code};
use crate::response::Response;

/// Maximum number of bytes sent to a peer that is not validated, as a multiple of its request (RFC 9175 section 2.4
/// recommends three).
const AMPLIFICATION: usize = 3;
/// Bytes of a datagram's headers, IPv4 and UDP. With those of IPv6, more would be allowed.
const HEADERS: usize = 28;

impl PeerState {
    /// Whether this many bytes may be sent to the peer for the bytes received from its address.
    pub(super) fn may_be_sent(&self, answer: usize, request: usize) -> bool {
        self.proven || answer + HEADERS <= AMPLIFICATION * (request + HEADERS)
    }

    /// Answers a request; `sequence` is the observation's sequence number, if it has one.
    pub(super) fn reply(
        &mut self,
        context: &mut Context<'_>,
        pending: Pending,
        response: Response,
        sequence: Option<u32>,
    ) {
        let etag = etag(&response);
        self.reply_with(context, pending, response, etag, sequence);
    }

    /// The same with the response's ETag, so that a long body's is not computed for each of its blocks.
    pub(super) fn reply_with(
        &mut self,
        context: &mut Context<'_>,
        pending: Pending,
        response: Response,
        etag: Option<Etag>,
        sequence: Option<u32>,
    ) {
        let mut packet = message::new(Kind::Acknowledgement, response.code, 0, &pending.token);
        if let Some(sequence) = sequence {
            message::set_number(&mut packet, CoapOption::Observe, sequence);
        }
        if let Some(block1) = pending.block1 {
            packet.add_option(CoapOption::Block1, block1.write());
        }
        if response.code == code::TOO_LARGE {
            let max = u32::try_from(context.limits.max_body_bytes).unwrap_or(u32::MAX);
            message::set_number(&mut packet, CoapOption::Size1, max);
        }
        let known = etag.filter(|etag| pending.is_get && pending.etags.contains(&etag.to_vec()));
        if let Some(etag) = known {
            packet.header.code = code::VALID.into();
            packet.add_option(CoapOption::ETag, etag.to_vec());
            set_age(&mut packet, &response);
        } else {
            let szx = PeerState::szx(context, pending.block2);
            let number = pending.block2.map_or(0, |block| block.number);
            let Some(offset) = (number as usize).checked_mul(block::size(szx)) else { return };
            // A smaller size than requested: the number counts smaller blocks, at the same offset.
            let requested_szx = pending.block2.map_or(szx, |block| block.szx);
            let offset = if requested_szx > szx { offset << (requested_szx - szx) } else { offset };
            let tagged = (&response, etag);
            if !self.fill(context, &mut packet, &pending.key, tagged, (offset, szx)) {
                packet.header.code = code::BAD_REQUEST.into();
            }
        }
        if self.may_be_sent(message::write(&packet).len(), pending.request_bytes) {
            self.dispatch(context, &pending, packet);
        } else {
            self.challenge(context, pending);
        }
    }

    /// Requests that the peer validates its address (RFC 9175 section 2.3).
    pub(super) fn challenge(&mut self, context: &mut Context<'_>, pending: Pending) {
        let (kind, code) = (Kind::Acknowledgement, code::UNAUTHORIZED);
        let mut packet = message::new(kind, code, 0, &pending.token);
        packet.add_option(message::ECHO, context.echo.value_for(context.now, context.peer));
        self.dispatch(context, &pending, packet);
    }

    /// Notifies an observer, with the response's ETag.
    pub(super) fn notify(
        &mut self,
        context: &mut Context<'_>,
        id: u64,
        response: &Response,
        etag: Option<Etag>,
    ) {
        let Some(observation) = self.observations.get_mut(&id) else { return };
        // RFC 7641 section 4.4: 24 bits that wrap around.
        observation.sequence = (observation.sequence + 1) & 0x00FF_FFFF;
        let (sequence, szx) = (observation.sequence, observation.szx);
        let (token, key) = (observation.token.clone(), observation.key.clone());
        let mut packet = message::new(Kind::Confirmable, response.code, 0, &token);
        let continues = code::is_success(response.code);
        if continues {
            message::set_number(&mut packet, CoapOption::Observe, sequence);
        }
        self.fill(context, &mut packet, &key, (response, etag), (0, szx));
        let waiting = self.channel.pending(id) > context.limits.max_waiting_notifications;
        if waiting || context.room == 0 {
            self.channel.drop_oldest_waiting(id);
        }
        if !continues {
            self.end(context, id);
        }
        self.channel.confirmable(context.now, id, packet, &mut context.out);
    }

    /// Puts the block at `offset` into a message. `false` if the body ends before it.
    fn fill(
        &mut self,
        context: &Context<'_>,
        packet: &mut Packet,
        key: &[u8],
        (response, etag): (&Response, Option<Etag>),
        (offset, szx): (usize, u8),
    ) -> bool {
        let content = &response.payload;
        let Some((block, range)) = Block::at(offset, szx, content.len()) else { return false };
        if let Some(etag) = etag {
            packet.add_option(CoapOption::ETag, etag.to_vec());
        }
        // Of 5.03 it says when to try again (RFC 7252 section 5.9.3.4).
        set_age(packet, response);
        if let Some(format) = response.content_format {
            message::set_number(packet, CoapOption::ContentFormat, format.into());
        }
        if block.more || block.number > 0 {
            packet.add_option(CoapOption::Block2, block.write());
        }
        if block.more && block.number == 0 {
            let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
            message::set_number(packet, CoapOption::Size2, size);
            let content = content.clone();
            let (content_format, max_age_s) = (response.content_format, response.max_age_s);
            let body = Body { content, etag, content_format, max_age_s };
            self.downloads.store(key, body, context.room);
        }
        packet.payload = content[range].to_vec();
        true
    }

    /// Piggybacks the response on the acknowledgement, or sends it separately if that was sent already (RFC 7252
    /// section 5.2).
    fn dispatch(&mut self, context: &mut Context<'_>, pending: &Pending, mut packet: Packet) {
        let acknowledged = pending.acknowledge_at.is_none();
        if !pending.confirmable || (acknowledged && !self.proven) {
            self.channel.non_confirmable(pending.id, packet, &mut context.out);
        } else if acknowledged {
            self.channel.confirmable(context.now, pending.id, packet, &mut context.out);
        } else {
            packet.header.message_id = pending.message_id;
            let datagram = message::write(&packet);
            self.channel.answered(pending.message_id, &datagram);
            context.out.push(datagram);
        }
    }
}

fn set_age(packet: &mut Packet, response: &Response) {
    if let Some(seconds) = response.max_age_s {
        message::set_number(packet, CoapOption::MaxAge, seconds);
    }
}

/// An ETag of this server (RFC 7252 section 5.10.6).
pub(super) type Etag = [u8; 8];

/// The ETag of a resource's state, if the response has one. Two states with the same ETag would be considered equal; with
/// 64 bits this does not happen by chance, and a client that causes it deliberately affects only its own publications.
pub(super) fn etag(response: &Response) -> Option<Etag> {
    (response.code == code::CONTENT).then(|| {
        let mut hasher = DefaultHasher::new();
        hasher.write(&response.payload);
        hasher.finish().to_be_bytes()
    })
}
