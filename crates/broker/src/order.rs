//! The order of a topic's messages while its subscription moves from one flow to another, as when a
//! client that is back subscribes again on a stream (MQTT 5.0 section 4.6).
//!
//! Streams do not wait for each other. So the new flow keeps what comes after the move until what the
//! old one was owed before is acknowledged. Messages wait only behind earlier ones, so that flows
//! cannot wait for each other for ever.
//!
//! And the order on a client's return, when storage has told of a later message that it was sent and
//! not of an earlier one, because workers store at times of their own.

use std::collections::VecDeque;
use std::sync::Arc;

use fulmar_mqtt::QoS;
use fulmar_mqtt::session::Replay;
use smallvec::SmallVec;

use crate::session::{Clearance, Flow, Held, Owed, Session, SessionState};
use crate::shard::{Turn, Waiter};
use crate::storage::{FlowId, Op, Position};

impl SessionState {
    /// A subscription moves: what comes from now on stays behind what `from` is owed, and behind what
    /// that waits for.
    pub(crate) fn keep_order(&mut self, from: FlowId, to: FlowId) {
        let Some(flow) = self.flow_mut(from).filter(|_| from != to) else { return };
        let mut owed: Owed = flow.rare.as_ref().map_or_else(Owed::new, |rare| rare.behind.clone());
        owed.extend(flow.last_owed().map(|last| (from, last)));
        let Some(flow) = self.flow_mut(to) else { return };
        for (id, last) in owed.into_iter().filter(|(id, _)| *id != to) {
            flow.stay_behind(id, last);
        }
    }

    /// A subscription has moved; routes found before this generation of the tree do not know.
    pub(crate) fn has_moved(&mut self, from: FlowId, to: FlowId, generation: u64) {
        let known: SmallVec<[FlowId; 4]> = self.flows.iter().map(|flow| flow.id).collect();
        let Some(flow) = self.flow_mut(from).filter(|_| from != to) else { return };
        let moved = &mut flow.rare().moved;
        moved.retain(|(id, _)| *id != to && known.contains(id));
        moved.push((to, generation));
    }

    /// A message has come to a flow by a route found as of `found_in`. Flows to which a subscription has
    /// moved since keep what comes later behind it, as if it had come before the move.
    pub(crate) fn follow_late(&mut self, index: usize, position: Position, found_in: u64) {
        let flow = &self.flows[index];
        let moved = flow.rare.as_ref().map_or(&[][..], |rare| &rare.moved[..]);
        if moved.iter().all(|(_, generation)| *generation <= found_in) {
            return;
        }
        let from = flow.id;
        let late = moved.iter().filter(|(_, generation)| *generation > found_in);
        let late: SmallVec<[FlowId; 1]> = late.map(|(to, _)| *to).collect();
        for to in late {
            if let Some(flow) = self.flow_mut(to) {
                flow.stay_behind(from, position);
            }
        }
    }

    /// Whether the message at `position` of this flow has to wait for another flow.
    pub(crate) fn is_behind(&mut self, index: usize, position: Position) -> bool {
        let behind = match &mut self.flows[index].rare {
            Some(rare) if !rare.behind.is_empty() => std::mem::take(&mut rare.behind),
            _ => return false,
        };
        let mut known: Option<(FlowId, Option<Position>)> = None;
        let mut first_owed = |id: FlowId| match known {
            Some((same, first)) if same == id => first,
            _ => {
                let flow = self.flow_index(id).map(|index| &self.flows[index]);
                let first = flow.filter(|flow| flow.stream.is_some()).and_then(Flow::first_owed);
                known = Some((id, first));
                first
            }
        };
        let owed =
            |(id, last): &(FlowId, Position)| first_owed(*id).is_some_and(|first| first <= *last);
        let behind: Owed = behind.into_iter().filter(owed).collect();
        let waits = behind.iter().any(|(_, last)| *last < position);
        self.flows[index].rare().behind = behind;
        waits
    }

    /// A flow is about to be put on a stream. What is in flight may have been seen by the client. What
    /// waits although it is older was in flight with it when the broker crashed: it goes out first, and
    /// the others under the identifiers they have ([MQTT-4.4.0-1], [MQTT-4.6.0-1]).
    pub(crate) fn put_in_order(&mut self, session: &Arc<Session>, turn: &mut Turn, index: usize) {
        for (_, held) in self.flows[index].outbound.messages_mut() {
            held.maybe_sent |= held.clearance == Clearance::Clear;
        }
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let flow = &self.flows[index];
            let Some(last) = flow.last_under_way(qos) else { continue };
            if flow.queue.front().is_some_and(|held| held.position < last) {
                self.overtake(session, turn, index, qos, last);
            }
        }
    }

    /// Puts messages that wait and are older than `last` in flight ahead of those that are not.
    fn overtake(
        &mut self,
        session: &Arc<Session>,
        turn: &mut Turn,
        index: usize,
        qos: QoS,
        last: Position,
    ) {
        // No more than were in flight with it.
        let mut most = usize::from(turn.limits().max_in_flight);
        let mut queue = std::mem::take(&mut self.flows[index].queue);
        let mut left = VecDeque::with_capacity(queue.len());
        while let Some(held) = queue.pop_front() {
            if held.position > last || most == 0 || !turn.has_handed_over(held.stamp) {
                left.push_back(held);
                break;
            }
            if held.qos != qos || held.message.is_expired(turn.now) {
                left.push_back(held);
                continue;
            }
            most -= 1;
            let (position, stamp) = (held.position, held.stamp);
            self.unqueued(&held);
            let flow = &mut self.flows[index];
            let later = |other: &Held| other.qos == qos && other.position > position;
            let packet_id = match flow.outbound.push_ahead(position.packet_id(), qos, held, later) {
                Ok(packet_id) => packet_id,
                Err(held) => {
                    self.queued_messages += 1;
                    self.queued_bytes += held.message.size();
                    left.push_back(held);
                    break;
                }
            };
            if self.durable {
                let (session, progress, flow) = (session.key(), flow.sent(packet_id), flow.home());
                turn.op_after(stamp, Op::Advance { session, flow, position, progress });
            }
            let clear = |held: &Held| held.clearance == Clearance::Clear;
            if self.flows[index].outbound.get_mut(packet_id).is_some_and(|held| !clear(held)) {
                let flow = self.flows[index].id;
                turn.when_durable(Waiter::Send(Arc::clone(session), flow, packet_id, position));
            }
        }
        left.append(&mut queue);
        self.flows[index].queue = left;
        self.flows[index].hold_back_unclear();
    }

    /// Something was acknowledged or has ended: flows that waited for it look again.
    pub(crate) fn unblock(&mut self, turn: &mut Turn) {
        // Also the only flow: what it waited for may have ended.
        let Some(attachment) = self.attachment else { return };
        for flow in &mut self.flows {
            let blocked = flow.rare.as_mut().and_then(|rare| rare.blocked.take());
            if blocked.is_some() && flow.has_more() {
                flow.announce(turn, attachment);
            }
        }
    }

    /// What `ended` was owed is the control flow's now, with what it waited for itself; who waited for
    /// it waits for that.
    pub(crate) fn wait_for_control(&mut self, ended: &mut Flow) {
        let behind = ended.rare.as_mut().map(|rare| std::mem::take(&mut rare.behind));
        // What moves comes between what the control flow is owed.
        for at in behind.into_iter().flatten().filter(|(id, _)| *id != FlowId::CONTROL) {
            let own = &mut self.flows[0].rare().behind;
            if !own.contains(&at) {
                own.push(at);
            }
        }
        for flow in &mut self.flows {
            let Some(rare) = &mut flow.rare else { continue };
            for (id, _) in rare.behind.iter_mut().filter(|(id, _)| *id == ended.id) {
                *id = FlowId::CONTROL;
            }
            if flow.id == FlowId::CONTROL {
                rare.behind.retain(|(id, _)| *id != FlowId::CONTROL);
            }
        }
    }
}

impl Flow {
    /// What comes from now on stays behind `last` of another flow.
    fn stay_behind(&mut self, id: FlowId, last: Position) {
        let newest = self.last_owed();
        let behind = &mut self.rare().behind;
        match behind.iter_mut().rfind(|(other, _)| *other == id) {
            Some((_, known)) if *known >= last => {}
            // Of this flow nothing waits for the earlier one alone.
            Some((_, known)) if newest.is_none_or(|newest| newest <= *known) => *known = last,
            _ => behind.push((id, last)),
        }
    }

    /// Place of the last message that has not arrived for certain.
    fn last_owed(&self) -> Option<Position> {
        // The queue is in order.
        self.under_way().chain(self.queue.back().map(|held| held.position)).max()
    }

    /// Place of the first.
    fn first_owed(&self) -> Option<Position> {
        self.under_way().chain(self.queue.front().map(|held| held.position)).min()
    }

    fn last_under_way(&self, qos: QoS) -> Option<Position> {
        let positions = self.outbound.replay().filter_map(|replay| match replay {
            Replay::Publish { qos: own, message, .. } if own == qos => Some(message.position),
            Replay::Publish { .. } | Replay::Pubrel { .. } => None,
        });
        positions.max()
    }

    /// Of what is in flight, one that is not clear holds back what comes behind it.
    fn hold_back_unclear(&mut self) {
        let under_way: Vec<_> = self
            .outbound
            .replay()
            .filter_map(|replay| match replay {
                Replay::Publish { packet_id, qos: QoS::ExactlyOnce, .. } => Some(packet_id),
                Replay::Publish { .. } | Replay::Pubrel { .. } => None,
            })
            .collect();
        let mut unclear = VecDeque::new();
        for packet_id in under_way {
            let Some(held) = self.outbound.get_mut(packet_id) else { continue };
            if held.clearance == Clearance::Clear && unclear.is_empty() {
                continue;
            }
            if held.clearance == Clearance::Clear {
                held.clearance = Clearance::Stored;
            }
            unclear.push_back((packet_id, held.position));
        }
        if !unclear.is_empty() {
            self.rare().unclear = unclear;
        }
    }

    fn under_way(&self) -> impl Iterator<Item = Position> {
        self.outbound.replay().filter_map(|replay| match replay {
            Replay::Publish { message, .. } => Some(message.position),
            Replay::Pubrel { .. } => None,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::Ordering;

    use fulmar_mqtt::packet::SubscribeOptions;

    use super::*;
    use crate::auth::AccessControl;
    use crate::message::MessageParts;
    use crate::publish::{Parcel, Publication, Terms};
    use crate::session::Attachment;
    use crate::storage::{NoStorage, Restored, SessionKey};
    use crate::{
        Broker, BrokerConfig, ClientFigures, Limits, Shard, StreamKey, Timestamp, Token, flows,
        subscribe,
    };

    /// Between finding the receivers and delivering, which other workers can come between.
    #[test]
    fn a_message_found_its_way_before_the_subscription_moved_and_is_not_overtaken() {
        let config = BrokerConfig {
            workers: 1,
            limits: Limits::default(),
            access_control: AccessControl::default(),
            sys_interval_s: 0,
            client_figures: ClientFigures::Rules,
        };
        let now = Timestamp(1);
        let broker = Broker::new(config, Arc::new(NoStorage), Restored::default(), now);
        let mut shard = Shard::new(Arc::clone(&broker), 0, now, Arc::new(|| {}));
        let turn = &mut shard.turn;
        let session = Session::new(SessionKey(1), "reader", broker.limits());
        let mut state = session.lock();
        state.attachment = Some(Attachment { shard: 0, token: Token(1) });
        let subscribe = |state: &mut SessionState, turn: &mut Turn, stream| {
            let flow = flows::open_unnamed(state, turn, StreamKey(stream)).unwrap();
            let options = SubscribeOptions { qos: QoS::AtLeastOnce, ..SubscribeOptions::default() };
            let (site, identifier) = (std::net::Ipv4Addr::LOCALHOST.into(), None);
            let request = subscribe::Request { text: "t", options, identifier, flow, site };
            subscribe::add(state, &session, turn, request);
            (flow, broker.tree_generation().load(Ordering::Acquire))
        };
        let (old, before) = subscribe(&mut state, turn, 4);
        let (new, after) = subscribe(&mut state, turn, 8);
        let mut parcel = Parcel::default();
        for (flow, found_in, payload) in [(old, before, b"first"), (new, after, b"later")] {
            let (topic, properties, qos, retain) = ("t", &[][..], QoS::AtLeastOnce, false);
            let (expires_at, publisher) = (None, 2);
            let parts =
                MessageParts { topic, properties, payload, qos, retain, expires_at, publisher };
            let mut publication = Publication::new(parts, &mut parcel);
            publication.found_in = found_in;
            let terms = Terms { qos, retain, identifiers: &[] };
            assert!(state.deliver(&session, turn, &mut publication, flow, terms));
        }
        let holds = |state: &mut SessionState, flow| {
            let flow = state.flow_mut(flow).unwrap();
            (flow.outbound.in_flight(), flow.queue.len())
        };
        assert_eq!(holds(&mut state, old), (1, 0), "the first is on its way");
        assert_eq!(holds(&mut state, new), (0, 1), "the later one waits for it");
        state.puback(&session, turn, old, fulmar_mqtt::PacketId::FIRST).unwrap();
        let index = state.flow_index(new).unwrap();
        state.refill(&session, turn, index);
        assert_eq!(holds(&mut state, new), (1, 0));
    }
}
