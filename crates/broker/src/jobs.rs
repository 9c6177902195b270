//! The jobs of shared subscriptions whose member has ended: its messages that it has not acknowledged. Another member gets
//! them, except those that the client may have got at QoS 2 (MQTT 5.0 section 4.8.2).
//!
//! A session is locked when it ends, and no thread locks two: its jobs wait in the turn, at whose end they are handed on.
//! What is stored of that is in the batch of the session's removal.

use std::sync::Arc;

use fulmar_mqtt::QoS;

use crate::publication::Publication;
use crate::session::{Flow, Outgoing, SendState};
use crate::shard::Shard;
use crate::turn::Turn;

impl Flow {
    /// Takes out what a flow that is given up has not delivered, in order, and leaves its jobs to the turn.
    pub(crate) fn give_up(&mut self, turn: &mut Turn) -> Vec<Outgoing> {
        let mut all = Vec::new();
        let in_flight = self.outbound.drain().map(|(_, outgoing)| (true, outgoing));
        for (in_flight, outgoing) in in_flight.chain(self.queue.drain(..).map(|own| (false, own))) {
            let is_sent = in_flight && outgoing.send_state == SendState::Sendable;
            let came = outgoing.qos == QoS::ExactlyOnce && (is_sent || outgoing.maybe_sent);
            if outgoing.share != 0 && !came {
                let (message, share) = (Arc::clone(&outgoing.message), outgoing.share);
                turn.fan_out.spend(1, message.size());
                turn.jobs.push_back((message, share, outgoing.stamp));
            }
            all.push(outgoing);
        }
        all
    }
}

impl Shard {
    /// Hands the jobs of members that have ended to others.
    pub(crate) fn hand_on_jobs(&mut self) {
        while let Some((message, share, stamp)) = self.turn.jobs.pop_front() {
            let broker = Arc::clone(&self.turn.broker);
            let route = self.routes.find(&broker, message.topic(), &mut self.turn.fan_out);
            let group = route.shared.iter().find(|group| group.name == share);
            let Some(group) = group.filter(|_| !message.is_expired(self.turn.now)) else {
                continue;
            };
            let mut publication = Publication::from_shared(&message, &mut self.parcel);
            (publication.found_in, publication.stored_in) = (route.generation, Some(stamp));
            let (_, tried) = self.turn.hand_to_one(&mut publication, group, route.guarded);
            self.turn.fan_out.spend(tried, publication.bytes);
        }
    }
}
