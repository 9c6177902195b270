//! Delays the client's packets while an internal session is behind ([`crate::back_pressure`]). They are left unread, so
//! that a client that publishes much is slowed down by its own transport.

use std::sync::Arc;

use super::{Connection, State};
use crate::session::Session;
use crate::shard::Shard;

impl Connection {
    /// Whether the client has to wait; an event comes when that may be over.
    pub(super) fn waits_for_internal_session(&self, shard: &mut Shard) -> bool {
        let State::Connected(session) = &self.state else { return false };
        let back_pressure = shard.broker().back_pressure();
        if !back_pressure.is_on() {
            return false;
        }
        // Before the decision: a fall between the two is then not missed.
        let falls = back_pressure.falls();
        let waits =
            back_pressure.delays(session.client_id()) && !session.lock().queued.is_internal();
        if waits {
            shard.turn.delay(self.at.token, falls);
        }
        waits
    }

    /// The client publishes: it waits from its next packet on if an internal session that is behind gets this message.
    pub(super) fn note_publisher(shard: &mut Shard, session: &Session, topic: &str) {
        if !shard.broker().back_pressure().is_on() {
            return;
        }
        let broker = Arc::clone(shard.broker());
        let route = shard.routes.find(&broker, topic, &mut shard.turn.fan_out);
        let receivers = route.targets.iter().map(|target| target.session.key());
        broker.back_pressure().note(session.client_id(), receivers);
    }
}
