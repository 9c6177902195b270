//! A QUIC v1 connection as a client (RFC 9000, 9001, 9002), without I/O.
//!
//! Here is its state, how it begins and how it ends. `receive` has what comes, `transmit` what goes,
//! `handshake` what TLS does with it, `timers` what is due, `application` what is read and written. The
//! modules below those know nothing of connections: packet number spaces, packet headers, frames, parameters,
//! streams of bytes, ranges, recovery, connection IDs.
//!
//! Not in here: servers, unidirectional streams, streams opened by the server, migration to another
//! address of the server's, ECN, path MTU discovery, address validation tokens for later connections.

mod application;
mod frame;
mod handshake;
mod ids;
mod packet;
mod params;
mod ranges;
mod receive;
mod recovery;
mod space;
mod stream;
mod timers;
mod transmit;

#[cfg(test)]
mod rfc_9001_tests;

pub(crate) use packet::Space;
pub(crate) use params::{SendLimits, write as write_parameters};

use crate::crypto::{PacketKeys, hmac, initial_keys};
use crate::limits::{HELLO_BYTES, RECEIVE_BYTES, STREAMS, TICKET_BYTES, TOKEN_BYTES};
use crate::tls::{Alert, Ticket, Tls};
use crate::{CloseReason, Error, Instant, KeyPair, Options};
use application::Stream;
use ids::ServerIds;
use packet::Id;
use recovery::Recovery;
use space::PacketSpace;
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

/// Fault that ends a connection from our side.
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
    /// Limits that the server sets at the beginning: as remembered, then as it says.
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
    /// Number of bytes still to come of a message that is too long for memory.
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

    /// Time for which the connection lives without a packet from the server, in milliseconds; 0: for ever.
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
    /// [`poll_transmit`](Self::poll_transmit).
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
}
