//! One request with its blocks, and its observation, if it has one.

use std::time::{Duration, Instant};

use bytes::Bytes;
use coap_lite::{CoapOption, Packet};

use super::{Call, ClientLimits, Failure, max_age};
use crate::block::{self, Block};
use crate::message::{self, Kind, code};
use crate::response::Response;

/// Maximum number of times a body is requested again because it has changed during the transfer.
const MAX_RESTARTS: u8 = 3;

/// RFC 7641 section 3.4: a notification later than this is newer, whatever its number.
const REORDERING: Duration = Duration::from_secs(128);

/// The exchange of a request to which a response belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The request itself, or the observation.
    Main,
    /// A further block of the response.
    Follow,
}

/// The next step.
#[derive(Debug)]
pub(super) enum Next {
    Nothing,
    /// Send the request, or its next block.
    Ask,
    /// Request the next block of the response.
    Follow,
    Done {
        response: Response,
        observing: bool,
        first: bool,
    },
    Fail(Failure),
}

#[derive(Debug)]
struct Download {
    content: Vec<u8>,
    etag: Option<Vec<u8>>,
    szx: u8,
    code: u8,
    content_format: Option<u16>,
    max_age_s: u32,
}

#[derive(Debug)]
struct Observing {
    sequence: u32,
    at: Instant,
    refresh_at: Instant,
    /// The last reported state, to detect whether a refresh has changed it.
    last: Option<Bytes>,
    refreshing: bool,
}

#[derive(Debug)]
pub(super) struct PendingCall {
    call: Call,
    token: Vec<u8>,
    follow: Vec<u8>,
    /// The offset of the request's next block.
    offset: usize,
    szx: u8,
    echo: Option<Vec<u8>>,
    download: Option<Download>,
    following: bool,
    restarts: u8,
    observing: Option<Observing>,
    pub(super) answer_by: Option<Instant>,
}

impl PendingCall {
    pub(super) fn new(call: Call, token: Vec<u8>, follow: Vec<u8>, szx: u8) -> PendingCall {
        PendingCall {
            call,
            token,
            follow,
            offset: 0,
            szx,
            echo: None,
            download: None,
            following: false,
            restarts: 0,
            observing: None,
            answer_by: None,
        }
    }

    pub(super) fn is_observing(&self) -> bool {
        self.observing.is_some()
    }

    pub(super) fn is_confirmable(&self) -> bool {
        self.call.confirmable || self.following || self.is_large()
    }

    fn is_large(&self) -> bool {
        self.call.payload.len() > block::size(self.szx)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let refresh = self.observing.as_ref().filter(|observing| !observing.refreshing);
        self.answer_by.into_iter().chain(refresh.map(|observing| observing.refresh_at)).min()
    }

    pub(super) fn role(&self, token: &[u8]) -> Option<Role> {
        if token == self.token {
            return Some(Role::Main);
        }
        (token == self.follow).then_some(Role::Follow)
    }

    /// Whether this is the current exchange.
    pub(super) fn awaits(&self, role: Role) -> bool {
        self.following == (role == Role::Follow)
    }

    /// The message to be sent now.
    pub(super) fn request(&mut self, role: Role) -> Packet {
        let token = if role == Role::Follow { &self.follow } else { &self.token };
        self.following = role == Role::Follow;
        let mut packet = message::new(Kind::Confirmable, self.call.method.code(), 0, token);
        self.put_target(&mut packet);
        if let Some(echo) = &self.echo {
            packet.add_option(message::ECHO, echo.clone());
        }
        if let (Role::Follow, Some(download)) = (role, &self.download) {
            let number = (download.content.len() / block::size(download.szx)) as u32;
            let block = Block { number, more: false, szx: download.szx };
            packet.add_option(CoapOption::Block2, block.write());
            return packet;
        }
        if self.call.observe {
            message::set_number(&mut packet, CoapOption::Observe, 0);
            if let Some(observing) = &mut self.observing {
                observing.refreshing = true;
            }
        }
        if let Some(format) = self.call.content_format {
            message::set_number(&mut packet, CoapOption::ContentFormat, format.into());
        }
        let body = &self.call.payload;
        if let Some((block, range)) = Block::at(self.offset, self.szx, body.len()) {
            if self.is_large() {
                packet.add_option(CoapOption::Block1, block.write());
                if block.number == 0 {
                    let size = u32::try_from(body.len()).unwrap_or(u32::MAX);
                    message::set_number(&mut packet, CoapOption::Size1, size);
                }
            }
            packet.payload = body[range].to_vec();
        }
        packet
    }

    /// Cancels the observation at the server.
    pub(super) fn deregistration(&self) -> Packet {
        let mut packet =
            message::new(Kind::NonConfirmable, self.call.method.code(), 0, &self.token);
        self.put_target(&mut packet);
        message::set_number(&mut packet, CoapOption::Observe, 1);
        packet
    }

    fn put_target(&self, packet: &mut Packet) {
        for segment in &self.call.path {
            packet.add_option(CoapOption::UriPath, segment.clone().into_bytes());
        }
        for query in &self.call.queries {
            packet.add_option(CoapOption::UriQuery, query.clone().into_bytes());
        }
    }

    /// Handles a response.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        packet: &Packet,
        role: Role,
        limits: &ClientLimits,
        jitter: Duration,
    ) -> Next {
        let code = message::code_of(packet);
        if code == code::UNAUTHORIZED && self.echo.is_none() {
            self.echo = packet.get_first_option(message::ECHO).cloned();
            if self.echo.is_some() {
                return if role == Role::Follow { Next::Follow } else { Next::Ask };
            }
        }
        let Ok(block1) = message::block(packet, CoapOption::Block1) else {
            return Next::Fail(Failure::Blocks);
        };
        let smaller = block1.map(|block| block.szx).filter(|szx| *szx < self.szx);
        if code == code::TOO_LARGE
            && self.offset == 0
            && self.is_large()
            && let Some(szx) = smaller
        {
            self.szx = szx;
            return Next::Ask;
        }
        if code == code::CONTINUE && self.is_large() && role == Role::Main {
            self.offset += block::size(self.szx);
            self.szx = smaller.unwrap_or(self.szx);
            let over = self.offset >= self.call.payload.len();
            return if over { Next::Fail(Failure::Blocks) } else { Next::Ask };
        }
        if role == Role::Main && !self.observed(now, packet, jitter) {
            return Next::Nothing;
        }
        self.collect(packet, role, limits)
    }

    /// Stores an observation's state; `false` if it is older than the stored one.
    fn observed(&mut self, now: Instant, packet: &Packet, jitter: Duration) -> bool {
        let sequence = message::number(packet, CoapOption::Observe);
        let granted = code::is_success(message::code_of(packet));
        let Some(sequence) = sequence.filter(|_| self.call.observe && granted) else {
            self.observing = None;
            return true;
        };
        let refresh_at = now + Duration::from_secs(max_age(packet).into()) + jitter;
        let Some(known) = &mut self.observing else {
            let (last, refreshing) = (None, false);
            self.observing = Some(Observing { sequence, at: now, refresh_at, last, refreshing });
            return true;
        };
        let (v1, v2) = (known.sequence, sequence);
        const HALF: u32 = 1 << 23;
        let newer = (v1 < v2 && v2 - v1 < HALF)
            || (v1 > v2 && v1 - v2 > HALF)
            || now > known.at + REORDERING
            // A server that has lost the observation begins a new one.
            || known.refreshing;
        if newer {
            (known.sequence, known.at, known.refresh_at) = (sequence, now, refresh_at);
        }
        newer
    }

    /// Assembles blocks.
    fn collect(&mut self, packet: &Packet, role: Role, limits: &ClientLimits) -> Next {
        let Ok(block2) = message::block(packet, CoapOption::Block2) else {
            return Next::Fail(Failure::Blocks);
        };
        let code = message::code_of(packet);
        let short = |option| message::number(packet, option).and_then(|n| u16::try_from(n).ok());
        let etag = packet.get_first_option(CoapOption::ETag).cloned();
        let block = block2.unwrap_or(Block { number: 0, more: false, szx: limits.max_szx });
        let download = match self.download.take() {
            Some(download) if role == Role::Follow => download,
            None if role == Role::Follow => return Next::Nothing,
            _ => {
                if block.number != 0 {
                    return Next::Fail(Failure::Blocks);
                }
                let (content, szx) = (Vec::new(), block.szx);
                let (content_format, max_age_s) =
                    (short(CoapOption::ContentFormat), max_age(packet));
                Download { content, etag: etag.clone(), szx, code, content_format, max_age_s }
            }
        };
        if role == Role::Follow && (code != download.code || etag != download.etag) {
            return self.restart();
        }
        let mut download = download;
        if block.offset() != download.content.len() {
            return self.restart();
        }
        if block.more && packet.payload.len() != block.size() {
            return Next::Fail(Failure::Blocks);
        }
        if download.content.len() + packet.payload.len() > limits.max_body_bytes {
            return Next::Fail(Failure::TooLarge);
        }
        download.content.extend_from_slice(&packet.payload);
        download.szx = download.szx.min(block.szx);
        if block.more {
            self.download = Some(download);
            return Next::Follow;
        }
        self.following = false;
        self.done(download)
    }

    /// The body has changed during the transfer: requests its first block again.
    fn restart(&mut self) -> Next {
        self.restarts += 1;
        self.download = None;
        self.following = false;
        if self.restarts > MAX_RESTARTS || self.is_large() {
            return Next::Fail(Failure::Blocks);
        }
        Next::Ask
    }

    fn done(&mut self, download: Download) -> Next {
        self.restarts = 0;
        let payload = Bytes::from(download.content);
        let response = Response {
            code: download.code,
            payload: payload.clone(),
            content_format: download.content_format,
            max_age_s: Some(download.max_age_s),
        };
        let Some(observing) = &mut self.observing else {
            return Next::Done { response, observing: false, first: false };
        };
        let refreshed = std::mem::take(&mut observing.refreshing);
        let last = observing.last.replace(payload.clone());
        if refreshed && last.as_ref() == Some(&payload) {
            return Next::Nothing;
        }
        Next::Done { response, observing: true, first: last.is_none() }
    }
}
