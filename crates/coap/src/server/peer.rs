//! Handles one peer's messages: assembles requests, and keeps the state of requests and observations (RFC 7252 section
//! 5, RFC 7641 section 4, RFC 7959 section 2).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use coap_lite::{CoapOption, Packet};

use super::bodies::{Downloads, Progress, Uploads};
use super::{Context, Exchange, OBSERVER_SILENCE, Observe, Request, Trust};
use crate::block::{self, Block};
use crate::channel::{Channel, Received, Timing};
use crate::message::{self, Kind, Method, code};
use crate::response::Response;

/// Approximate bytes of a waiting message.
const WAITING_BYTES: usize = 1200;

/// An event of a peer.
pub(super) enum Happened {
    Request(RequestParts),
    Ended(u64),
}

/// A request without its peer.
pub(super) struct RequestParts {
    id: u64,
    method: Method,
    path: Vec<String>,
    queries: Vec<String>,
    content_format: Option<u16>,
    accept: Option<u16>,
    payload: Bytes,
    observe: Option<Observe>,
    proven: bool,
}

impl RequestParts {
    pub(super) fn with_peer<P>(self, peer: P) -> Request<P> {
        Request {
            exchange: Exchange { peer, id: self.id },
            method: self.method,
            path: self.path,
            queries: self.queries,
            content_format: self.content_format,
            accept: self.accept,
            payload: self.payload,
            observe: self.observe,
            proven: self.proven,
        }
    }
}

/// A request that waits for its response.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) id: u64,
    pub(super) token: Vec<u8>,
    pub(super) message_id: u16,
    pub(super) confirmable: bool,
    /// When it gets an empty acknowledgement; `None` after that.
    pub(super) acknowledge_at: Option<Instant>,
    pub(super) is_get: bool,
    pub(super) block1: Option<Block>,
    pub(super) block2: Option<Block>,
    pub(super) key: Vec<u8>,
    pub(super) etags: Vec<Vec<u8>>,
    /// Bytes of its datagram, which bound the answer to an address that is not validated.
    pub(super) request_bytes: usize,
}

/// An observation.
#[derive(Debug)]
pub(super) struct Observation {
    pub(super) token: Vec<u8>,
    /// The request's key, for further blocks of notifications.
    pub(super) key: Vec<u8>,
    pub(super) szx: u8,
    pub(super) sequence: u32,
}

/// A peer's state.
#[derive(Debug)]
pub(super) struct PeerState {
    pub(super) channel: Channel,
    pub(super) pending: BTreeMap<u64, Pending>,
    uploads: Uploads,
    pub(super) downloads: Downloads,
    pub(super) observations: BTreeMap<u64, Observation>,
    pub(super) proven: bool,
    pub(super) last_heard: Instant,
    /// Deadline of this peer in the server's list.
    pub(super) due: Instant,
    /// Bytes that are counted for it.
    pub(super) counted: usize,
}

impl PeerState {
    pub(super) fn new(timing: Timing, seed: u64, now: Instant) -> PeerState {
        PeerState {
            channel: Channel::new(timing, seed),
            pending: BTreeMap::new(),
            uploads: Uploads::default(),
            downloads: Downloads::default(),
            observations: BTreeMap::new(),
            proven: false,
            last_heard: now,
            due: now,
            counted: 0,
        }
    }

    pub(super) fn trust(&mut self, trust: Trust) {
        self.proven |= trust == Trust::Proven;
    }

    pub(super) fn receive(&mut self, context: &mut Context<'_>, packet: &Packet, bytes: usize) {
        self.last_heard = context.now;
        let (kind, id) = (message::kind_of(packet), packet.header.message_id);
        match self.channel.receive(context.now, packet) {
            Received::Repeated(answer) if kind == Kind::Confirmable => {
                let answer = answer.filter(|answer| self.may_be_sent(answer.len(), bytes));
                context.out.extend(answer);
            }
            Received::Repeated(_) | Received::Nothing => {}
            // This does not validate the address: an attacker can try all 65,536 message IDs.
            Received::Acknowledged(_) => self.channel.launch(context.now, &mut context.out),
            Received::Refused(tag) => {
                self.end(context, tag);
                self.channel.launch(context.now, &mut context.out);
            }
            Received::New => match message::code_of(packet) >> 5 {
                0 if message::code_of(packet) != code::EMPTY => {
                    self.handle_request(context, packet, bytes)
                }
                // A ping (section 4.3), an unexpected response, or an unassigned code.
                _ if kind == Kind::Confirmable => {
                    context.out.push(message::bare(Kind::Reset, id));
                }
                _ => {}
            },
        }
    }

    /// Handles a request.
    fn handle_request(&mut self, context: &mut Context<'_>, packet: &Packet, bytes: usize) {
        let confirmable = message::kind_of(packet) == Kind::Confirmable;
        let etags = packet.get_option(CoapOption::ETag).into_iter().flatten();
        let mut pending = Pending {
            id: context.take_id(),
            token: packet.get_token().to_vec(),
            message_id: packet.header.message_id,
            confirmable,
            acknowledge_at: Some(context.now + context.limits.timing.processing_delay),
            is_get: Method::from_code(message::code_of(packet)) == Some(Method::Get),
            block1: None,
            block2: None,
            key: message::body_key(packet),
            etags: etags.take(4).cloned().collect(),
            request_bytes: bytes,
        };
        let refused = match self.read(context, packet, &mut pending) {
            Ok(Some(asked)) if self.pending.len() < context.limits.max_requests_per_peer => {
                if !self.proven {
                    // After an empty acknowledgement, the response would have to be sent until it is acknowledged.
                    // Without one, the peer sends its request again until it is answered.
                    let lifetime = context.limits.timing.exchange_lifetime;
                    pending.acknowledge_at = Some(context.now + lifetime);
                }
                self.pending.insert(pending.id, pending);
                context.happened.push(Happened::Request(asked));
                return;
            }
            Ok(Some(_)) => Response {
                max_age_s: Some(1),
                ..Response::error(code::UNAVAILABLE, "too many requests at once")
            },
            Ok(None) => return,
            // Section 5.4.1: rejected without an answer.
            Err(code::BAD_OPTION) if !confirmable => return,
            Err(code) => Response::new(code),
        };
        self.reply(context, pending, refused, None);
    }

    /// The complete request; `None` if it is handled already. An error is the code of the answer.
    fn read(
        &mut self,
        context: &mut Context<'_>,
        packet: &Packet,
        pending: &mut Pending,
    ) -> Result<Option<RequestParts>, u8> {
        let bad = |()| code::BAD_REQUEST;
        if [CoapOption::ProxyUri, CoapOption::ProxyScheme].map(|o| packet.get_option(o).is_some())
            != [false; 2]
        {
            return Err(code::NO_PROXYING);
        }
        if message::has_unknown_critical(packet) {
            return Err(code::BAD_OPTION);
        }
        let method = Method::from_code(message::code_of(packet)).ok_or(code::METHOD_NOT_ALLOWED)?;
        if let Some(echo) = packet.get_first_option(message::ECHO) {
            self.proven |= context.echo.is_fresh(context.now, context.peer, echo);
        }
        let path = message::texts(packet, CoapOption::UriPath).map_err(bad)?;
        let queries = message::texts(packet, CoapOption::UriQuery).map_err(bad)?;
        let short = |option| message::number(packet, option).and_then(|n| u16::try_from(n).ok());
        pending.block1 = message::block(packet, CoapOption::Block1).map_err(bad)?;
        pending.block2 = message::block(packet, CoapOption::Block2).map_err(bad)?;
        let Some(payload) = self.gather(context, packet, pending)? else { return Ok(None) };
        if self.continues(context, pending) {
            return Ok(None);
        }
        let observe = message::number(packet, CoapOption::Observe);
        let observe = match observe.filter(|_| method == Method::Get) {
            Some(0) if pending.block2.is_none_or(|block| block.number == 0) => {
                if !self.proven {
                    self.challenge(context, pending.clone());
                    return Ok(None);
                }
                Some(Observe::Register)
            }
            Some(1) => {
                self.end_by_token(context, &pending.token);
                Some(Observe::Deregister)
            }
            _ => None,
        };
        let (content_format, accept) =
            (short(CoapOption::ContentFormat), short(CoapOption::Accept));
        let (id, proven) = (pending.id, self.proven);
        Ok(Some(RequestParts {
            id,
            method,
            path,
            queries,
            content_format,
            accept,
            payload,
            observe,
            proven,
        }))
    }

    /// The request's complete body; `None` if more blocks follow.
    fn gather(
        &mut self,
        context: &mut Context<'_>,
        packet: &Packet,
        pending: &mut Pending,
    ) -> Result<Option<Bytes>, u8> {
        let max = context.limits.max_body_bytes;
        let announced = message::number(packet, CoapOption::Size1).unwrap_or(0) as usize;
        if announced > max || packet.payload.len() > max {
            return Err(code::TOO_LARGE);
        }
        let Some(block) = pending.block1 else {
            return Ok(Some(Bytes::copy_from_slice(&packet.payload)));
        };
        match self.uploads.add(&pending.key, block, &packet.payload, max, context.room) {
            Progress::Whole(body) => Ok(Some(body)),
            Progress::Refused(code) => Err(code),
            Progress::Continue => {
                // A smaller size from here on, if the peer's is too large (section 2.3).
                let szx = block.szx.min(context.limits.max_szx);
                pending.block1 = Some(Block { szx, ..block });
                self.reply(context, pending.clone(), Response::new(code::CONTINUE), None);
                Ok(None)
            }
        }
    }

    /// Answers a request for a further block of a body being sent.
    fn continues(&mut self, context: &mut Context<'_>, pending: &Pending) -> bool {
        let further = pending.block2.is_some_and(|block| block.number > 0);
        let Some(body) = self.downloads.find(&pending.key).filter(|_| further) else {
            return false;
        };
        let etag = body.etag;
        let response = Response {
            code: code::CONTENT,
            payload: body.content.clone(),
            content_format: body.content_format,
            max_age_s: body.max_age_s,
        };
        self.reply_with(context, pending.clone(), response, etag, None);
        true
    }

    pub(super) fn respond(&mut self, context: &mut Context<'_>, id: u64, response: Response) {
        if let Some(pending) = self.pending.remove(&id) {
            self.reply(context, pending, response, None);
        }
    }

    pub(super) fn ask_for_proof(&mut self, context: &mut Context<'_>, id: u64) {
        if let Some(pending) = self.pending.remove(&id) {
            self.challenge(context, pending);
        }
    }

    pub(super) fn observe(
        &mut self,
        context: &mut Context<'_>,
        id: u64,
        response: Response,
    ) -> Option<u64> {
        let pending = self.pending.remove(&id)?;
        self.end_by_token(context, &pending.token);
        let full = self.observations.len() >= context.limits.max_observations_per_peer;
        if full || !code::is_success(response.code) {
            self.reply(context, pending, response, None);
            return None;
        }
        let max = context.limits.max_szx;
        let szx = pending.block2.map_or(max, |block| block.szx.min(max));
        let (token, key) = (pending.token.clone(), pending.key.clone());
        self.observations.insert(id, Observation { token, key, szx, sequence: 1 });
        self.reply(context, pending, response, Some(1));
        Some(id)
    }

    /// Ends the observation with this token, because the peer reuses the token.
    fn end_by_token(&mut self, context: &mut Context<'_>, token: &[u8]) {
        let found = self.observations.iter().find(|(_, observation)| observation.token == token);
        if let Some((&id, _)) = found {
            self.end(context, id);
        }
    }

    pub(super) fn end(&mut self, context: &mut Context<'_>, id: u64) {
        if self.observations.remove(&id).is_some() {
            self.channel.forget(id);
            context.happened.push(Happened::Ended(id));
        }
    }

    /// Handles deadlines; returns whether the peer may be removed.
    pub(super) fn on_deadline(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(tag) = self.channel.on_deadline(context.now, &mut context.out) {
            // RFC 7641 section 4.5: an observer that does not acknowledge is lost; all of its state is removed.
            if self.observations.contains_key(&tag) {
                for id in self.observations() {
                    self.end(context, id);
                }
            }
            self.channel.launch(context.now, &mut context.out);
        }
        for pending in self.pending.values_mut() {
            if pending.acknowledge_at.is_some_and(|at| at <= context.now) {
                pending.acknowledge_at = None;
                if pending.confirmable {
                    let ack = message::bare(Kind::Acknowledgement, pending.message_id);
                    self.channel.answered(pending.message_id, &ack);
                    context.out.push(ack);
                }
            }
        }
        self.silent_until(context.limits.timing.exchange_lifetime) <= context.now
    }

    /// When it is removed if nothing is received from it.
    fn silent_until(&self, lifetime: Duration) -> Instant {
        let observing = !self.observations.is_empty();
        self.last_heard + if observing { OBSERVER_SILENCE.max(lifetime) } else { lifetime }
    }

    pub(super) fn deadline(&self, lifetime: Duration) -> Instant {
        let acknowledgements = self.pending.values().filter_map(|pending| pending.acknowledge_at);
        let first = acknowledgements.chain(self.channel.deadline()).min();
        let silent = self.silent_until(lifetime);
        first.map_or(silent, |at| at.min(silent))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.observations.is_empty() && self.pending.is_empty()
    }

    pub(super) fn observations(&self) -> Vec<u64> {
        self.observations.keys().copied().collect()
    }

    /// Whether bodies are in transfer in either direction.
    pub(super) fn holds_bodies(&self) -> bool {
        self.uploads.bytes() + self.downloads.bytes() > 0
    }

    /// Drops bodies in transfer; further blocks are answered as if none had begun.
    pub(super) fn drop_bodies(&mut self) {
        (self.uploads, self.downloads) = Default::default();
    }

    pub(super) fn bytes(&self) -> usize {
        self.uploads.bytes() + self.downloads.bytes() + self.channel.len() * WAITING_BYTES
    }

    /// The largest block size for an answer.
    pub(super) fn szx(context: &Context<'_>, asked: Option<Block>) -> u8 {
        asked.map_or(block::MAX_SZX, |block| block.szx).min(context.limits.max_szx)
    }
}
