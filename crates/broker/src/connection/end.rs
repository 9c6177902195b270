//! How a connection ends: with a reason for the client, or because the transport is gone; and what
//! becomes of its session and will then (MQTT 5.0 sections 3.14 and 4.13).

use std::collections::VecDeque;

use fulmar_auth::text_of;
use fulmar_mqtt::packet::Disconnect;
use fulmar_mqtt::{Properties, ReasonCode, Version};

use super::{Closing, Connection, LostCause, State};
use crate::lifecycle::{self, Departure};
use crate::shard::Shard;

impl Connection {
    /// How to close, once everything is written; `None` while the connection goes on.
    #[must_use]
    pub fn closing(&self) -> Option<Closing> {
        self.closing
    }

    /// The transport is gone. To be called once, also after [`Connection::closing`].
    pub fn lost(&mut self, shard: &mut Shard, cause: LostCause) {
        if self.lost {
            return;
        }
        self.lost = true;
        self.end_waits(shard);
        shard.turn.sends.forget(self.at.token);
        if !self.peer.is_program() {
            shard.metrics().connections[self.peer.transport.index()].sub(1);
        }
        self.unlist(shard);
        self.forget_memory();
        let departure = Departure { discard_will: false, expiry_interval_s: None };
        self.leave(shard, departure, cause.text());
    }

    /// Leaves the session, if there is one, and publishes a will that is due.
    pub(super) fn leave(&mut self, shard: &mut Shard, departure: Departure, why: &str) {
        let State::Connected(session) = std::mem::replace(&mut self.state, State::Ended) else {
            return;
        };
        let (user, owner) = {
            let state = session.lock();
            (state.user.clone(), state.memory_owner())
        };
        tracing::info!(peer = %self.peer.address, client = session.client_id(), user = text_of(user.as_ref()),
            "disconnected: {why}");
        let will = session.lock().will.clone().filter(|_| !departure.discard_will);
        let gives_way =
            will.is_some_and(|will| shard.will_waits(&will) || shard.will_is_delayed(&will));
        let left = lifecycle::leave(&mut shard.turn, &session, self.at, departure, gives_way);
        if let Some(will) = left {
            crate::housekeeping::publish_will(shard, (&session, owner), &will);
        }
    }

    /// The session is to end with the connection, unless another connection has it already.
    pub(super) fn end_session(&mut self) {
        let State::Connected(session) = &self.state else { return };
        let mut state = session.lock();
        if state.is_attached(self.at) {
            state.expiry_interval_s = 0;
        }
    }

    /// Closes because of a bad packet, and says so (section 4.13).
    pub(super) fn refuse_packet(
        &mut self,
        shard: &mut Shard,
        reason: ReasonCode,
        why: &dyn std::fmt::Display,
    ) {
        shard.metrics().protocol_errors.add(1);
        tracing::info!(peer = %self.peer.address, client = self.client_id(), %reason, "bad packet: {why}");
        self.disconnect(shard, reason, "protocol error");
    }

    /// Closes the connection, with a DISCONNECT that contains the reason if the client's version has that. Before
    /// CONNECT nothing may be sent.
    pub(super) fn disconnect(&mut self, shard: &mut Shard, reason: ReasonCode, why: &'static str) {
        if self.closing.is_some() {
            return;
        }
        // Not before CONNACK, which may still wait for storage ([MQTT-3.14.0-1]).
        let connected = matches!(self.state, State::Connected(_)) && self.greeted;
        if connected && self.version == Version::V5 {
            let packet = Disconnect { reason, properties: Properties::NONE };
            packet.encode(self.version, &mut self.streams[0].out);
        }
        self.end(shard, why, u64::from(reason.as_u8()));
    }

    pub(super) fn end(&mut self, shard: &mut Shard, why: &'static str, quic_code: u64) {
        if self.closing.is_some() {
            return;
        }
        tracing::debug!(peer = %self.peer.address, client = self.client_id(), "closing: {why}");
        self.closing = Some(Closing { quic_code, reason: why });
        self.waiting = VecDeque::new();
        self.end_waits(shard);
        self.leave(shard, Departure { discard_will: false, expiry_interval_s: None }, why);
    }
}
