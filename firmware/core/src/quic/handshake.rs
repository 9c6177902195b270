//! How a connection and its TLS handshake get on (RFC 9001, section 4): CRYPTO frames become messages, and
//! messages keys, limits, tickets and what is to be sent.

use super::params::{self, Parameters};
use super::{Connection, Fault, Space, State, code};
use crate::bytes::Reader;
use crate::tls::{Alert, HEADER_BYTES, Progress, Ticket};

/// Result of a message, nothing of it being borrowed.
enum Step {
    More,
    HelloAgain,
    HandshakeSecrets,
    Parameters(Parameters),
    Done,
}

impl Connection {
    /// The level that TLS expects its next message on.
    fn level(&self) -> Space {
        if self.tls.is_done() {
            Space::Data
        } else if self.spaces[Space::Handshake as usize].can_receive {
            Space::Handshake
        } else {
            Space::Initial
        }
    }

    /// Takes a CRYPTO frame. False: there is no room now, and the packet must count as lost.
    pub(super) fn on_crypto(
        &mut self,
        space: Space,
        offset: u32,
        data: &[u8],
    ) -> Result<bool, Fault> {
        let current = space == self.level();
        let inbound = &mut self.crypto_in[space as usize];
        if !current {
            // What is repeated does not matter.
            let end = offset.saturating_add(data.len() as u32);
            return if end <= inbound.base() {
                Ok(true)
            } else {
                Err(Alert::UNEXPECTED_MESSAGE.into())
            };
        }
        let memory = if space == Space::Data { &mut self.hello[..] } else { &mut self.memory[..] };
        if !inbound.write(memory, offset, data) {
            return Ok(false);
        }
        while let Some(step) = self.next_message(space)? {
            self.follow(step)?;
            if space != self.level() {
                // What a level has to say ends where the next begins.
                return if self.crypto_in[space as usize].is_drained() {
                    Ok(true)
                } else {
                    Err(Alert::UNEXPECTED_MESSAGE.into())
                };
            }
        }
        Ok(true)
    }

    /// Takes a message, or a piece of a long one, out of the memory; [`None`] until there is one.
    fn next_message(&mut self, space: Space) -> Result<Option<Step>, Fault> {
        let inbound = &mut self.crypto_in[space as usize];
        let ready = inbound.ready();
        let after_handshake = space == Space::Data;
        let memory = if after_handshake { &mut self.hello[..] } else { &mut self.memory[..] };
        if self.skipping > 0 {
            let count = self.skipping.min(ready);
            if !after_handshake {
                self.tls.add_piece(memory.get(..count).unwrap_or_default());
            }
            self.skipping -= count;
            inbound.consume(memory, count);
            return Ok((count > 0).then_some(Step::More));
        }
        let mut reader = Reader::new(memory.get(..ready).unwrap_or_default());
        let (Some(kind), Some(body)) = (reader.u8(), reader.u24()) else { return Ok(None) };
        let len = HEADER_BYTES + body;
        if len > memory.len() {
            if !self.tls.begin_long(kind) {
                return Err(Fault::Transport(code::CRYPTO_BUFFER_EXCEEDED));
            }
            self.skipping = len;
            return Ok(Some(Step::More));
        }
        if ready < len {
            return Ok(None);
        }
        let (message, hello) = if after_handshake {
            (self.hello.get(..len), &mut [][..])
        } else {
            (self.memory.get(..len), &mut self.hello[..])
        };
        let step = match self.tls.message(space, message.unwrap_or_default(), hello)? {
            Progress::More => Step::More,
            Progress::HelloAgain => Step::HelloAgain,
            Progress::HandshakeSecrets => Step::HandshakeSecrets,
            Progress::Done => Step::Done,
            Progress::Parameters(bytes) => Step::Parameters(
                params::read(bytes).ok_or(Fault::Transport(code::TRANSPORT_PARAMETER_ERROR))?,
            ),
            Progress::Ticket(ticket) => {
                let ticket = Ticket { limits: self.server_limits, ..ticket };
                if let Some(len) = ticket.write(&mut self.ticket) {
                    self.ticket_len = len;
                    self.ticket_is_new = true;
                }
                Step::More
            }
        };
        let memory = if after_handshake { &mut self.hello[..] } else { &mut self.memory[..] };
        self.crypto_in[space as usize].consume(memory, len);
        Ok(Some(step))
    }

    fn follow(&mut self, step: Step) -> Result<(), Fault> {
        match step {
            Step::More => {}
            Step::HelloAgain => {
                let out = &mut self.crypto_out[0];
                out.acknowledge((out.base(), out.end()));
                self.hello_offset = out.end();
                out.extend(self.tls.hello_len());
                self.refuse_early_data();
            }
            Step::HandshakeSecrets => {
                let handshake = &mut self.spaces[Space::Handshake as usize];
                handshake.send.derive(&self.tls.client);
                handshake.receive.derive(&self.tls.server);
                handshake.can_send = true;
                handshake.can_receive = true;
            }
            Step::Parameters(parameters) => self.apply(&parameters)?,
            Step::Done => {
                let data = &mut self.spaces[Space::Data as usize];
                data.send.derive(&self.tls.client);
                data.receive.derive(&self.tls.server);
                data.can_send = true;
                data.can_receive = true;
                self.one_rtt = true;
                self.crypto_out[1].extend(self.tls.flight().len());
                self.state = State::Established;
            }
        }
        Ok(())
    }

    /// Repeats with 1-RTT keys what was sent as early data.
    fn refuse_early_data(&mut self) {
        self.spaces[Space::Data as usize].can_send = false;
        while self.recovery.forget_next(Space::Data).is_some() {}
        for stream in &mut self.streams {
            stream.out.rewind();
        }
    }

    /// Checks and takes the server's transport parameters (RFC 9000, section 7.3 and 7.4.1).
    fn apply(&mut self, parameters: &Parameters) -> Result<(), Fault> {
        let same = |said: &Option<super::Id>, known: &Option<super::Id>| match (said, known) {
            (Some(said), Some(known)) => said.as_slice() == known.as_slice(),
            (None, None) => true,
            _ => false,
        };
        if !same(&parameters.original_destination, &Some(self.original_destination))
            || !same(&parameters.initial_source, &Some(self.server_source))
            || !same(&parameters.retry_source, &self.retry_source)
        {
            return Err(Fault::Transport(code::TRANSPORT_PARAMETER_ERROR));
        }
        let limits = parameters.limits;
        if self.tls.early_data {
            let early = self.server_limits;
            if limits.data < early.data
                || limits.stream_data < early.stream_data
                || limits.streams < early.streams
            {
                return Err(Fault::Transport(code::PROTOCOL_VIOLATION));
            }
        } else {
            self.refuse_early_data();
        }
        self.server_limits = limits;
        self.set_send_limits(limits);
        if let Some(token) = parameters.reset_token {
            self.ids.set_reset_token(token);
        }
        self.ack_exponent = parameters.ack_delay_exponent;
        self.max_ack_delay_ms = parameters.max_ack_delay_ms;
        if parameters.idle_timeout_ms != 0 {
            self.idle_ms = match self.idle_ms {
                0 => parameters.idle_timeout_ms,
                ours => ours.min(parameters.idle_timeout_ms),
            };
        }
        Ok(())
    }
}

/// For fuzzing: the state that packets with valid keys would have led to.
#[cfg(feature = "fuzzing")]
impl Connection {
    pub(crate) fn pretend_level(&mut self, space: Space) {
        if space == Space::Initial {
            return;
        }
        self.tls.pretend(space == Space::Data);
        let step = if space == Space::Data { Step::Done } else { Step::HandshakeSecrets };
        let _ = self.follow(Step::HandshakeSecrets);
        let _ = self.follow(step);
        self.set_send_limits(super::SendLimits { data: 10_000, stream_data: 5000, streams: 2 });
    }

    pub(crate) fn pretend_packet(&mut self, space: Space, payload: &[u8], now: crate::Instant) {
        self.receive_payload(space, payload, now);
    }

    pub(crate) fn pretend_crypto(&mut self, space: Space, messages: &[u8], piece: usize) {
        for (index, data) in messages.chunks(piece).enumerate() {
            let result = self.on_crypto(space, (index * piece) as u32, data);
            if result.is_err() || space != self.level() {
                return;
            }
        }
    }

    pub(crate) fn pretend_stream(&mut self, offset: usize, data: &[u8]) {
        let frame = self.on_stream(0, offset as u32, data, false);
        if let Err(fault) = frame {
            self.fail(fault);
        }
    }
}
