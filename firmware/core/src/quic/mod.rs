//! A QUIC v1 connection as a client (RFC 9000, 9001, 9002), without I/O: state, life cycle and timers.
//!
//! [`receive`](self) has what comes, `transmit` what goes, `handshake` what TLS does with it. The modules
//! below those know nothing of connections: packet headers, frames, parameters, streams of bytes, ranges,
//! recovery, connection IDs.
//!
//! Not in here: servers, unidirectional streams, streams opened by the server, migration to another
//! address of the server's, ECN, path MTU discovery, address validation tokens for later connections.

mod frame;
mod handshake;
mod ids;
mod packet;
mod params;
mod ranges;
mod receive;
mod recovery;
mod stream;
mod transmit;

#[cfg(test)]
mod rfc_9001;

pub(crate) use packet::Space;
pub(crate) use params::{SendLimits, write as write_parameters};

use crate::crypto::{PacketKeys, hmac, initial_keys};
use crate::limits::{
    HANDSHAKE_MS, HELLO_BYTES, RECEIVE_BYTES, STREAM_RECEIVE_BYTES, STREAM_SEND_BYTES, STREAMS,
    TICKET_BYTES, TOKEN_BYTES,
};
use crate::tls::{Alert, Ticket, Tls};
use crate::{CloseReason, Error, Instant, KeyPair, Options};
use ids::ServerIds;
use packet::{Id, SPACES};
use ranges::Ranges;
use recovery::{Content, Recovery, Sent};
use stream::{Inbound, Outbound};

/// Error codes of RFC 9000, section 20.1, that we send.
mod code {
    pub(super) const FLOW_CONTROL_ERROR: u32 = 0x03;
    pub(super) const STREAM_LIMIT_ERROR: u32 = 0x04;
    pub(super) const STREAM_STATE_ERROR: u32 = 0x05;
    pub(super) const FINAL_SIZE_ERROR: u32 = 0x06;
    pub(super) const FRAME_ENCODING_ERROR: u32 = 0x07;
    pub(super) const TRANSPORT_PARAMETER_ERROR: u32 = 0x08;
    pub(super) const CONNECTION_ID_LIMIT_ERROR: u32 = 0x09;
    pub(super) const PROTOCOL_VIOLATION: u32 = 0x0a;
    pub(super) const APPLICATION_ERROR: u32 = 0x0c;
    pub(super) const CRYPTO_BUFFER_EXCEEDED: u32 = 0x0d;
    pub(super) const CRYPTO_ERROR: u32 = 0x0100;
}

/// What ends a connection from our side.
enum Fault {
    Tls(Alert),
    Transport(u32),
}

impl From<Alert> for Fault {
    fn from(alert: Alert) -> Self {
        Self::Tls(alert)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Never begun, or over; why is told once.
    Closed,
    /// The server is not known to be whom we trust.
    Handshake,
    /// It is, and the application may speak.
    Established,
}

/// A CONNECTION_CLOSE frame to be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Closing {
    No,
    Transport(u32),
    Application(u32),
}

/// A packet number space with its keys.
// In this order for the sake of flash: what is near the beginning is reached by shorter instructions.
#[repr(C)]
struct PacketSpace {
    can_send: bool,
    can_receive: bool,
    next_number: u32,
    largest_acked: Option<u32>,
    /// Packets below were received, or are no longer wanted.
    floor: u32,
    largest_at: Instant,
    /// Ack-eliciting packets not acknowledged yet.
    unacked: u8,
    ack_now: bool,
    ack_at: Option<Instant>,
    /// When packets older than an acknowledged one count as lost.
    loss_at: Option<Instant>,
    probe: bool,
    received: Ranges,
    send: PacketKeys,
    receive: PacketKeys,
}

impl PacketSpace {
    const fn new() -> Self {
        Self {
            send: PacketKeys::none(),
            receive: PacketKeys::none(),
            can_send: false,
            can_receive: false,
            next_number: 0,
            largest_acked: None,
            received: Ranges::new(),
            floor: 0,
            largest_at: Instant::from_millis(0),
            unacked: 0,
            ack_now: false,
            ack_at: None,
            loss_at: None,
            probe: false,
        }
    }

    fn start(&mut self) {
        self.next_number = 0;
        self.largest_acked = None;
        self.received.clear();
        self.floor = 0;
        self.discard();
    }

    fn discard(&mut self) {
        self.can_send = false;
        self.can_receive = false;
        self.unacked = 0;
        self.ack_now = false;
        self.ack_at = None;
        self.loss_at = None;
        self.probe = false;
    }
}

/// A stream that we opened.
// In this order for the sake of flash: what is near the beginning is reached by shorter instructions.
#[repr(C)]
struct Stream {
    /// Up to which offset the server lets us send.
    send_limit: u32,
    /// Up to which offset it may send.
    receive_limit: u32,
    /// The server reads no more, or has reset its side.
    stopped: bool,
    used: bool,
    inbound: Inbound,
    out: Outbound,
    written: [u8; STREAM_SEND_BYTES],
}

impl Stream {
    const fn new() -> Self {
        Self {
            out: Outbound::new(),
            written: [0; STREAM_SEND_BYTES],
            inbound: Inbound::new(),
            send_limit: 0,
            receive_limit: 0,
            stopped: false,
            used: false,
        }
    }

    fn start(&mut self) {
        self.out = Outbound::new();
        self.inbound = Inbound::new();
        self.send_limit = 0;
        self.receive_limit = STREAM_RECEIVE_BYTES as u32;
        self.stopped = false;
        self.used = false;
    }
}

/// Control frames to be sent, and sent again if lost.
mod control {
    use crate::limits::STREAMS;

    pub(super) const PING: u8 = 1;
    pub(super) const MAX_DATA: u8 = 1 << 1;
    pub(super) const RETIRE: u8 = 1 << 2;
    /// MAX_STREAM_DATA for stream 0; the next bit for stream 1.
    pub(super) const MAX_STREAM_DATA: u8 = 1 << 3;
    /// RESET_STREAM for stream 0; the next bit for stream 1.
    pub(super) const RESET_STREAM: u8 = 1 << 5;
    const _: () = assert!(STREAMS == 2);
}

/// Ways of bytes that packets carry parts of: two of CRYPTO frames, then the streams.
const FIRST_STREAM: usize = 2;

/// A connection.
// In this order for the sake of flash: what is near the beginning is reached by shorter instructions.
#[repr(C)]
pub(crate) struct Connection {
    state: State,
    /// Why it ended, and whether that has not been told yet. An `Option` would not be all zero.
    ended: CloseReason,
    has_ended: bool,
    closing: Closing,
    /// Whether the data space has 1-RTT keys.
    one_rtt: bool,
    /// Acknowledged by HANDSHAKE_DONE.
    confirmed: bool,
    /// Whether a packet of the server's has been authenticated.
    heard: bool,
    key_phase: bool,
    /// The lowest packet number of the server's in this phase, and ours.
    phase_received: u32,
    phase_sent: u32,
    /// Keys of the phase before, for packets that come late, and until when.
    previous: PacketKeys,
    previous_until: Option<Instant>,
    original_destination: Id,
    retry_source: Option<Id>,
    token_len: usize,
    /// At which offset the ClientHello in memory begins: not 0 for the second.
    hello_offset: u32,
    crypto_in: [Inbound; 3],
    crypto_out: [Outbound; FIRST_STREAM],
    /// Up to which sum of offsets the server lets us send, and it may send.
    send_limit: u32,
    receive_limit: u32,
    stream_limit: u32,
    /// What the server allows at the beginning: as remembered, then as it says.
    server_limits: SendLimits,
    /// The server's connection ID in its first packet, which all its long headers must have.
    server_source: Id,
    control: u8,
    path_response: Option<[u8; 8]>,
    idle_ms: u32,
    /// Since when the connection is idle: the server was heard, or was first asked for an answer since.
    idle_from: Instant,
    /// Whether it was asked for an answer since it was heard.
    waiting: bool,
    /// When the last datagram was sent.
    sent_at: Instant,
    /// When the connection began.
    started_at: Instant,
    ack_exponent: u32,
    max_ack_delay_ms: u32,
    ticket_len: usize,
    /// Whether the ticket has not been told of.
    ticket_is_new: bool,
    /// How much there is to come of a message that is too long for memory.
    skipping: usize,
    spaces: [PacketSpace; 3],
    tls: Tls,
    recovery: Recovery,
    ids: ServerIds,
    token: [u8; TOKEN_BYTES],
    /// The ClientHello; once the handshake is done, what TLS says afterwards.
    hello: [u8; HELLO_BYTES],
    streams: [Stream; STREAMS],
    /// Handshake messages; once the handshake is done, a part for each stream.
    memory: [u8; RECEIVE_BYTES],
    ticket: [u8; TICKET_BYTES],
}

impl Connection {
    pub(crate) const fn new() -> Self {
        Self {
            state: State::Closed,
            ended: CloseReason::Local,
            has_ended: false,
            closing: Closing::No,
            spaces: [const { PacketSpace::new() }; 3],
            one_rtt: false,
            confirmed: false,
            heard: false,
            key_phase: false,
            phase_received: 0,
            phase_sent: 0,
            previous: PacketKeys::none(),
            previous_until: None,
            tls: Tls::new(),
            ids: ServerIds::new(),
            original_destination: Id::EMPTY,
            retry_source: None,
            token: [0; TOKEN_BYTES],
            token_len: 0,
            recovery: Recovery::new(),
            hello: [0; HELLO_BYTES],
            hello_offset: 0,
            crypto_in: [const { Inbound::new() }; 3],
            crypto_out: [const { Outbound::new() }; FIRST_STREAM],
            streams: [const { Stream::new() }; STREAMS],
            memory: [0; RECEIVE_BYTES],
            send_limit: 0,
            receive_limit: 0,
            stream_limit: 0,
            server_limits: SendLimits { data: 0, stream_data: 0, streams: 0 },
            server_source: Id::EMPTY,
            control: 0,
            path_response: None,
            idle_ms: 0,
            idle_from: Instant::from_millis(0),
            waiting: false,
            sent_at: Instant::from_millis(0),
            started_at: Instant::from_millis(0),
            ack_exponent: 0,
            max_ack_delay_ms: 0,
            ticket: [0; TICKET_BYTES],
            ticket_len: 0,
            ticket_is_new: false,
            skipping: 0,
        }
    }

    /// Begins anew, in place.
    #[inline(never)]
    pub(crate) fn start(
        &mut self,
        options: &Options<'_>,
        key: &KeyPair,
        entropy: &[u8; 32],
        idle_ms: u32,
        now: Instant,
    ) -> Result<(), Error> {
        self.reset(idle_ms, now);
        let ticket = match options.resume {
            Some(resume) => Some(Ticket::read(resume.ticket).ok_or(Error::BadTicket)?)
                .filter(|ticket| resume.age_ms / 1000 < ticket.lifetime_s),
            None => None,
        };
        let random = hmac(entropy, &[b"random"]);
        let id = hmac(entropy, &[b"connection id"]);
        let id = Id::new(&id[..packet::OUR_CHOICE_BYTES]).ok_or(Error::Invalid)?;
        self.original_destination = id;
        self.ids.start(id);
        let tls = self.tls.start(options, ticket.as_ref(), key, &random, idle_ms, &mut self.hello);
        tls.ok_or(Error::TooLarge)?;
        self.crypto_out[0].extend(self.tls.hello_len());
        self.start_initial();
        if self.tls.early_data {
            self.server_limits = ticket.map(|ticket| ticket.limits).unwrap_or_default();
            self.set_send_limits(self.server_limits);
            let data = &mut self.spaces[Space::Data as usize];
            data.send.derive(&self.tls.client);
            data.can_send = true;
        }
        self.state = State::Handshake;
        Ok(())
    }

    fn reset(&mut self, idle_ms: u32, now: Instant) {
        self.state = State::Closed;
        self.has_ended = false;
        self.closing = Closing::No;
        for space in &mut self.spaces {
            space.start();
        }
        self.one_rtt = false;
        self.confirmed = false;
        self.heard = false;
        self.key_phase = false;
        self.phase_received = 0;
        self.phase_sent = 0;
        self.previous_until = None;
        self.retry_source = None;
        self.token_len = 0;
        self.recovery.start();
        self.hello_offset = 0;
        self.crypto_in = [const { Inbound::new() }; 3];
        self.crypto_out = [const { Outbound::new() }; FIRST_STREAM];
        for stream in &mut self.streams {
            stream.start();
        }
        self.streams[0].used = true;
        self.send_limit = 0;
        self.receive_limit = RECEIVE_BYTES as u32;
        self.stream_limit = 0;
        self.server_limits = SendLimits::default();
        self.control = 0;
        self.path_response = None;
        self.idle_ms = idle_ms;
        self.idle_from = now;
        self.waiting = false;
        self.sent_at = now;
        self.started_at = now;
        self.ack_exponent = 3;
        self.max_ack_delay_ms = params::OUR_MAX_ACK_DELAY_MS;
        self.ticket_len = 0;
        self.ticket_is_new = false;
        self.skipping = 0;
    }

    /// Derives the Initial keys from the server's connection ID as it is now.
    fn start_initial(&mut self) {
        let initial = &mut self.spaces[Space::Initial as usize];
        let id = self.ids.current();
        initial_keys(id.as_slice(), &mut initial.send, &mut initial.receive);
        initial.can_send = true;
        initial.can_receive = true;
    }

    fn set_send_limits(&mut self, limits: SendLimits) {
        self.send_limit = limits.data;
        self.stream_limit = limits.streams;
        for stream in &mut self.streams {
            stream.send_limit = limits.stream_data;
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state != State::Closed
    }

    /// Whether the server has proved to be whom we trust.
    pub(crate) fn is_established(&self) -> bool {
        self.state == State::Established
    }

    pub(crate) fn resumed(&self) -> bool {
        self.tls.resumed
    }

    pub(crate) fn early_data_accepted(&self) -> bool {
        self.tls.early_data
    }

    /// How long the connection lives without a word from the server, in milliseconds; 0: for ever.
    pub(crate) fn idle_ms(&self) -> u32 {
        self.idle_ms
    }

    /// Why the connection ended; told once.
    pub(crate) fn take_end(&mut self) -> Option<CloseReason> {
        core::mem::take(&mut self.has_ended).then_some(self.ended)
    }

    /// Whether there is a ticket that has not been told of; told once.
    pub(crate) fn take_new_ticket(&mut self) -> bool {
        core::mem::take(&mut self.ticket_is_new)
    }

    pub(crate) fn ticket(&self) -> Option<&[u8]> {
        self.ticket.get(..self.ticket_len).filter(|ticket| !ticket.is_empty())
    }

    /// Ends the connection; what is to be told the server is sent by the next
    /// [`transmit`](Self::transmit).
    pub(crate) fn close(&mut self, reason: CloseReason, code: u32, application: bool) {
        if self.is_open() {
            self.closing =
                if application { Closing::Application(code) } else { Closing::Transport(code) };
            self.end(reason);
        }
    }

    /// Forgets a connection that has not begun.
    pub(crate) fn abandon(&mut self) {
        self.state = State::Closed;
    }

    /// Ends the connection without a word.
    fn end(&mut self, reason: CloseReason) {
        self.state = State::Closed;
        self.ended = reason;
        self.has_ended = true;
    }

    fn fail(&mut self, fault: Fault) {
        match fault {
            Fault::Tls(alert) => {
                let code = code::CRYPTO_ERROR + u32::from(alert.0);
                self.close(CloseReason::Tls(alert.0), code, false);
            }
            Fault::Transport(code) => self.close(CloseReason::Transport(code), code, false),
        }
    }

    // The application's side.

    /// How much can be written on a stream now; 0 if it cannot be used.
    fn writable(&self, stream: usize) -> usize {
        match self.streams.get(stream) {
            Some(stream) if self.is_open() && !stream.stopped => {
                STREAM_SEND_BYTES - (stream.out.end() - stream.out.base()) as usize
            }
            _ => 0,
        }
    }

    /// Whether a stream can be used at all.
    pub(crate) fn is_usable(&self, stream: usize) -> bool {
        self.is_open()
            && self.streams.get(stream).is_some_and(|stream| !stream.stopped)
            && (stream == 0 || stream < self.stream_limit as usize)
    }

    /// The memory that what is written next on a stream goes to; [`written`](Self::written) tells how much.
    pub(crate) fn free(&mut self, stream: usize) -> &mut [u8] {
        let room = self.writable(stream);
        self.streams.get_mut(stream).map_or(&mut [], |stream| {
            stream.written.get_mut(STREAM_SEND_BYTES - room..).unwrap_or_default()
        })
    }

    /// The first `count` bytes of [`free`](Self::free) are to be sent.
    pub(crate) fn written(&mut self, stream: usize, count: usize) {
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.out.extend(count);
            stream.used = true;
        }
    }

    /// What there is to read on a stream.
    pub(crate) fn readable(&self, stream: usize) -> &[u8] {
        let inbound = self.streams.get(stream).filter(|_| self.one_rtt);
        let ready = inbound.map_or(0, |stream| stream.inbound.ready());
        let start = stream * STREAM_RECEIVE_BYTES;
        self.memory.get(start..start + ready).unwrap_or_default()
    }

    /// Takes `count` bytes away from what [`readable`](Self::readable) gave, and lets the server send more.
    pub(crate) fn consume(&mut self, stream: usize, count: usize) {
        let start = stream * STREAM_RECEIVE_BYTES;
        let memory = self.memory.get_mut(start..start + STREAM_RECEIVE_BYTES);
        let (Some(memory), Some(state)) = (memory, self.streams.get_mut(stream)) else { return };
        state.inbound.consume(memory, count);
        let limit = state.inbound.base() + STREAM_RECEIVE_BYTES as u32;
        // Not for every byte: a frame costs a packet, and that costs energy.
        if limit - state.receive_limit >= STREAM_RECEIVE_BYTES as u32 / 2 {
            self.receive_limit += limit - state.receive_limit;
            state.receive_limit = limit;
            self.control |= control::MAX_DATA | control::MAX_STREAM_DATA << stream;
        }
    }

    /// Whether the server has ended its side of a stream, and all before has been consumed.
    pub(crate) fn is_finished(&self, stream: usize) -> bool {
        self.streams
            .get(stream)
            .is_some_and(|stream| stream.stopped || stream.inbound.is_finished())
    }

    /// Whether all that was written is acknowledged.
    pub(crate) fn is_flushed(&self) -> bool {
        self.streams.iter().all(|stream| stream.stopped || stream.out.is_acked())
    }

    // Timers.

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if !self.is_open() {
            return None;
        }
        let acks = self.spaces.iter().filter_map(|space| space.ack_at);
        let all = acks.chain(self.loss_deadline()).chain(self.idle_deadline());
        all.chain(self.previous_until).chain(self.handshake_deadline()).reduce(Instant::min)
    }

    fn idle_deadline(&self) -> Option<Instant> {
        (self.idle_ms != 0).then(|| {
            // At least three probes must fit in (section 10.1).
            let least = 3 * self.recovery.backed_off(self.recovery.probe_ms());
            self.idle_from.after(self.idle_ms.max(least))
        })
    }

    /// A server that answers but never comes to an end would keep us for ever.
    fn handshake_deadline(&self) -> Option<Instant> {
        (self.state == State::Handshake).then(|| self.started_at.after(HANDSHAKE_MS))
    }

    /// When a packet counts as lost or a probe is due.
    fn loss_deadline(&self) -> Option<Instant> {
        let loss = self.spaces.iter().filter_map(|space| space.loss_at).reduce(Instant::min);
        loss.or_else(|| self.probe_deadline().map(|(_, deadline)| deadline))
    }

    /// RFC 9002, section 6.2.
    fn probe_deadline(&self) -> Option<(Space, Instant)> {
        let mut earliest: Option<(Space, Instant)> = None;
        for space in SPACES {
            // Early data goes again with the Initial packets it came with.
            if space == Space::Data && !self.confirmed {
                continue;
            }
            let Some(last) = self.recovery.last_sent(space) else { continue };
            let delay = if space == Space::Data { self.max_ack_delay_ms } else { 0 };
            let period = self.recovery.backed_off(self.recovery.probe_ms() + delay);
            let deadline = last.after(period);
            if earliest.is_none_or(|(_, other)| !deadline.reached(other)) {
                earliest = Some((space, deadline));
            }
        }
        if earliest.is_none() && !self.confirmed {
            // The server may be waiting for a sign that our address is ours (section 6.2.2.1).
            let handshake = self.spaces[Space::Handshake as usize].can_send;
            let space = if handshake { Space::Handshake } else { Space::Initial };
            let period = self.recovery.backed_off(self.recovery.probe_ms());
            let sent_something = self.spaces[Space::Initial as usize].next_number > 0;
            earliest = sent_something.then(|| (space, self.sent_at.after(period)));
        }
        earliest
    }

    /// Does what is due.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if !self.is_open() {
            return;
        }
        if self.idle_deadline().is_some_and(|deadline| now.reached(deadline)) {
            return self.end(CloseReason::IdleTimeout);
        }
        if self.handshake_deadline().is_some_and(|deadline| now.reached(deadline)) {
            return self.close(CloseReason::HandshakeTimeout, 0, false);
        }
        if self.previous_until.is_some_and(|until| now.reached(until)) {
            self.previous_until = None;
        }
        for space in &mut self.spaces {
            if space.ack_at.is_some_and(|at| now.reached(at)) {
                space.ack_now = true;
                space.ack_at = None;
            }
        }
        if !self.loss_deadline().is_some_and(|deadline| now.reached(deadline)) {
            return;
        }
        let mut lost = false;
        for space in SPACES {
            if self.spaces[space as usize].loss_at.is_some_and(|at| now.reached(at)) {
                self.detect_losses(space, u32::MAX, now);
                lost = true;
            }
        }
        if !lost && let Some((space, _)) = self.probe_deadline() {
            self.probe(space);
        }
    }

    /// Sends again what is on its way, without taking it for lost.
    fn probe(&mut self, space: Space) {
        self.recovery.probes += 1;
        self.spaces[space as usize].probe = true;
        for again in SPACES {
            // Before the handshake is confirmed nothing else would repeat early data.
            if again == space || again == Space::Data && !self.confirmed {
                for place in 0..crate::limits::SENT_PACKETS {
                    let content = self.recovery.outstanding(again).nth(place);
                    let Some(content) = content.map(|sent| sent.content) else { break };
                    self.requeue(content);
                }
            }
        }
    }

    /// Packets of `space` that count as lost are sent again. Those below `acked_below` have been followed
    /// by nothing that was acknowledged.
    fn detect_losses(&mut self, space: Space, acked_below: u32, now: Instant) {
        let Some(largest) = self.spaces[space as usize].largest_acked else { return };
        let mut span: Option<(Instant, Instant)> = None;
        while let Some(sent) = self.recovery.take_lost(space, largest, now) {
            let (oldest, newest) = span.unwrap_or((sent.at, sent.at));
            let unbroken = sent.number < acked_below;
            span = Some((
                if unbroken { oldest.min(sent.at) } else { oldest },
                if sent.at.reached(newest) { sent.at } else { newest },
            ));
            self.requeue(sent.content);
        }
        if let Some((oldest, newest)) = span {
            self.recovery.on_loss(oldest, newest, self.max_ack_delay_ms, now);
        }
        self.spaces[space as usize].loss_at = self.recovery.loss_deadline(space, largest);
    }

    /// What was in a packet is to be sent again.
    fn requeue(&mut self, content: Content) {
        self.control |= content.control & !control::RETIRE & !control::PING;
        if content.control & control::RETIRE != 0 {
            // There is room: it was taken out to be sent, and what came since is bounded by the server's
            // need of our answers. If not, the server asks again.
            let _ = self.ids.retire(content.retired);
        }
        if let Some(out) = self.outbound(content.source) {
            out.lose(content.range);
        }
    }

    fn outbound(&mut self, source: u8) -> Option<&mut Outbound> {
        let source = usize::from(source);
        match source.checked_sub(FIRST_STREAM) {
            None => self.crypto_out.get_mut(source),
            Some(stream) => self.streams.get_mut(stream).map(|stream| &mut stream.out),
        }
    }

    /// A packet arrived.
    fn acknowledged(&mut self, sent: &Sent) {
        let content = sent.content;
        let Some(out) = self.outbound(content.source) else { return };
        let moved = out.acknowledge(content.range);
        let stream = usize::from(content.source).checked_sub(FIRST_STREAM);
        if let Some(stream) = stream.and_then(|stream| self.streams.get_mut(stream)) {
            stream.written.copy_within(moved.., 0);
        }
    }

    /// Keys of `space` are no longer needed (RFC 9001, section 4.9).
    fn discard(&mut self, space: Space) {
        if self.spaces[space as usize].can_send {
            self.spaces[space as usize].discard();
            while self.recovery.take(space).is_some() {}
            self.recovery.probes = 0;
        }
    }
}
