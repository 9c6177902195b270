//! Keeps a topic's messages in order (MQTT 5.0 section 4.6) while its subscription moves from one flow to another, for
//! example because a client has reconnected and subscribes again on a stream.
//!
//! QUIC streams are not ordered among each other. The new flow therefore holds the messages that arrive after the move
//! until those that the old flow had not yet delivered are acknowledged. Messages wait only for earlier ones, so flows
//! cannot deadlock.
//!
//! It also restores the order when a client reconnects after a crash: storage may know that a later message was sent,
//! and not yet know it of an earlier one, because each worker stores at its own times.

use std::collections::VecDeque;
use std::sync::Arc;

use fulmar_mqtt::QoS;
use fulmar_mqtt::session::Replay;
use smallvec::SmallVec;

use crate::session::{Flow, FlowPositions, Outgoing, SendState, Session, SessionState};
use crate::storage::{FlowId, Op, Position};
use crate::turn::{Turn, Waiter};

impl SessionState {
    /// A subscription moves: later messages on `to` wait for the undelivered ones of `from`, and for those that
    /// `from` waits for.
    pub(crate) fn keep_order(&mut self, from: FlowId, to: FlowId) {
        let Some(flow) = self.flow_mut(from).filter(|_| from != to) else { return };
        let mut undelivered: FlowPositions =
            flow.rare.as_ref().map_or_else(FlowPositions::new, |rare| rare.order_after.clone());
        undelivered.extend(flow.last_undelivered().map(|last| (from, last)));
        let Some(flow) = self.flow_mut(to) else { return };
        for (id, last) in undelivered.into_iter().filter(|(id, _)| *id != to) {
            flow.wait_behind(id, last);
        }
    }

    /// A subscription has moved. Routes found before this generation of the tree are stale: they lead to `from`.
    pub(crate) fn subscription_moved(&mut self, from: FlowId, to: FlowId, generation: u64) {
        let known: SmallVec<[FlowId; 4]> = self.flows.iter().map(|flow| flow.id).collect();
        let Some(flow) = self.flow_mut(from).filter(|_| from != to) else { return };
        let moved = &mut flow.rare().moved;
        moved.retain(|(id, _)| *id != to && known.contains(id));
        moved.push((to, generation));
    }

    /// A flow gets a message by a route found in generation `found_in`. If subscriptions have moved to other flows
    /// since, those hold later messages behind this one, as if it had arrived before the move.
    pub(crate) fn order_after_stale_route(
        &mut self,
        index: usize,
        position: Position,
        found_in: u64,
    ) {
        let flow = &self.flows[index];
        let moved = flow.rare.as_ref().map_or(&[][..], |rare| &rare.moved[..]);
        if moved.iter().all(|(_, generation)| *generation <= found_in) {
            return;
        }
        let from = flow.id;
        let since = moved.iter().filter(|(_, generation)| *generation > found_in);
        let since: SmallVec<[FlowId; 1]> = since.map(|(to, _)| *to).collect();
        for to in since {
            if let Some(flow) = self.flow_mut(to) {
                flow.wait_behind(from, position);
            }
        }
    }

    /// Whether the message at `position` of this flow has to wait for another flow's messages.
    pub(crate) fn waits_for_other_flow(&mut self, index: usize, position: Position) -> bool {
        let order_after = match &mut self.flows[index].rare {
            Some(rare) if !rare.order_after.is_empty() => std::mem::take(&mut rare.order_after),
            _ => return false,
        };
        let mut known: Option<(FlowId, Option<Position>)> = None;
        let mut first_undelivered = |id: FlowId| match known {
            Some((same, first)) if same == id => first,
            _ => {
                let flow = self.flow_index(id).map(|index| &self.flows[index]);
                let first =
                    flow.filter(|flow| flow.stream.is_some()).and_then(Flow::first_undelivered);
                known = Some((id, first));
                first
            }
        };
        let undelivered = |(id, last): &(FlowId, Position)| {
            first_undelivered(*id).is_some_and(|first| first <= *last)
        };
        let order_after: FlowPositions = order_after.into_iter().filter(undelivered).collect();
        let waits = order_after.iter().any(|(_, last)| *last < position);
        self.flows[index].rare().order_after = order_after;
        waits
    }

    /// Called before a flow is put on a stream. The client may have seen the messages in flight. Older messages in the
    /// queue were in flight with them when the broker crashed: they are sent first, and the others under the
    /// identifiers that they have ([MQTT-4.4.0-1], [MQTT-4.6.0-1]).
    pub(crate) fn restore_order(&mut self, session: &Arc<Session>, turn: &mut Turn, index: usize) {
        for (_, outgoing) in self.flows[index].outbound.messages_mut() {
            outgoing.maybe_sent |= outgoing.send_state == SendState::Sendable;
        }
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let flow = &self.flows[index];
            let Some(last) = flow.last_in_flight(qos) else { continue };
            if flow.queue.front().is_some_and(|outgoing| outgoing.position < last) {
                self.send_older_first(session, turn, index, qos, last);
            }
        }
    }

    /// Puts queued messages that are older than `last` in flight, ahead of newer ones.
    fn send_older_first(
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
        while let Some(outgoing) = queue.pop_front() {
            if outgoing.position > last || most == 0 || !turn.has_handed_over(outgoing.stamp) {
                left.push_back(outgoing);
                break;
            }
            if outgoing.qos != qos || outgoing.message.is_expired(turn.now) {
                left.push_back(outgoing);
                continue;
            }
            most -= 1;
            let (position, stamp) = (outgoing.position, outgoing.stamp);
            self.queued.remove(outgoing.message.size());
            let flow = &mut self.flows[index];
            let later = |other: &Outgoing| other.qos == qos && other.position > position;
            let packet_id =
                match flow.outbound.push_ahead(position.packet_id(), qos, outgoing, later) {
                    Ok(packet_id) => packet_id,
                    Err(outgoing) => {
                        self.queued.add(outgoing.message.size());
                        left.push_back(outgoing);
                        break;
                    }
                };
            if self.durable {
                let (session, progress, flow) =
                    (session.key(), flow.sent(packet_id), flow.stored_as());
                turn.op_after(stamp, Op::Advance { session, flow, position, progress });
            }
            let sendable = |outgoing: &Outgoing| outgoing.send_state == SendState::Sendable;
            if self.flows[index]
                .outbound
                .get_mut(packet_id)
                .is_some_and(|outgoing| !sendable(outgoing))
            {
                let flow = self.flows[index].id;
                turn.when_durable(Waiter::Send(Arc::clone(session), flow, packet_id, position));
            }
        }
        left.append(&mut queue);
        self.flows[index].queue = left;
        self.flows[index].hold_back_unsendable();
    }

    /// A message was acknowledged, or a flow has ended: flows that waited for it are checked again.
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

    /// The control flow takes over the undelivered messages of `ended`, and waits for the flows that `ended` waited
    /// for. Flows that waited for `ended` wait for the control flow.
    pub(crate) fn wait_for_control(&mut self, ended: &mut Flow) {
        let order_after = ended.rare.as_mut().map(|rare| std::mem::take(&mut rare.order_after));
        // The messages that move come between the control flow's own undelivered messages.
        for at in order_after.into_iter().flatten().filter(|(id, _)| *id != FlowId::CONTROL) {
            let own = &mut self.flows[0].rare().order_after;
            if !own.contains(&at) {
                own.push(at);
            }
        }
        for flow in &mut self.flows {
            let Some(rare) = &mut flow.rare else { continue };
            for (id, _) in rare.order_after.iter_mut().filter(|(id, _)| *id == ended.id) {
                *id = FlowId::CONTROL;
            }
            if flow.id == FlowId::CONTROL {
                rare.order_after.retain(|(id, _)| *id != FlowId::CONTROL);
            }
        }
    }
}

impl Flow {
    /// Messages from now on wait for the other flow's messages up to `last`.
    fn wait_behind(&mut self, id: FlowId, last: Position) {
        let newest = self.last_undelivered();
        let order_after = &mut self.rare().order_after;
        match order_after.iter_mut().rfind(|(other, _)| *other == id) {
            Some((_, known)) if *known >= last => {}
            // No message of this flow waits for the earlier position only.
            Some((_, known)) if newest.is_none_or(|newest| newest <= *known) => *known = last,
            _ => order_after.push((id, last)),
        }
    }

    /// Position of the last message that is queued or not acknowledged.
    fn last_undelivered(&self) -> Option<Position> {
        // The queue is in order.
        self.in_flight_positions().chain(self.queue.back().map(|outgoing| outgoing.position)).max()
    }

    /// Position of the first message that is queued or not acknowledged.
    fn first_undelivered(&self) -> Option<Position> {
        self.in_flight_positions().chain(self.queue.front().map(|outgoing| outgoing.position)).min()
    }

    fn last_in_flight(&self, qos: QoS) -> Option<Position> {
        let positions = self.outbound.replay().filter_map(|replay| match replay {
            Replay::Publish { qos: own, message, .. } if own == qos => Some(message.position),
            Replay::Publish { .. } | Replay::Pubrel { .. } => None,
        });
        positions.max()
    }

    /// Of the messages in flight, one that may not be sent holds back those behind it.
    fn hold_back_unsendable(&mut self) {
        let packet_ids: Vec<_> = self
            .outbound
            .replay()
            .filter_map(|replay| match replay {
                Replay::Publish { packet_id, .. } => Some(packet_id),
                Replay::Pubrel { .. } => None,
            })
            .collect();
        let mut unsendable = VecDeque::new();
        for packet_id in packet_ids {
            let Some(outgoing) = self.outbound.get_mut(packet_id) else { continue };
            if outgoing.send_state == SendState::Sendable && unsendable.is_empty() {
                continue;
            }
            if outgoing.send_state == SendState::Sendable {
                outgoing.send_state = SendState::Stored;
            }
            unsendable.push_back((packet_id, outgoing.position));
        }
        if !unsendable.is_empty() {
            self.rare().unsendable = unsendable;
        }
    }

    fn in_flight_positions(&self) -> impl Iterator<Item = Position> {
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

    use fulmar_mqtt::flow::{DataFlow, FlowFlags};
    use fulmar_mqtt::packet::SubscribeOptions;

    use super::*;
    use crate::mailbox::Attachment;
    use crate::message::MessageParts;
    use crate::publication::{Parcel, Publication, Terms};
    use crate::storage::{NoStorage, Restored, SessionKey};
    use crate::{
        Broker, BrokerConfig, ClientStatistics, Limits, Shard, StreamKey, Timestamp, Token, flows,
        subscribe,
    };
    use fulmar_auth::AccessControl;

    fn broker() -> (Arc<Broker>, Shard, Arc<Session>) {
        let config = BrokerConfig {
            workers: 1,
            limits: Limits::default(),
            access_control: AccessControl::default(),
            sys_interval_s: 0,
            client_statistics: ClientStatistics::Rules,
            internal_sessions: Vec::new(),
        };
        let now = Timestamp(1);
        let broker = Broker::new(config, Arc::new(NoStorage), Restored::default(), now);
        let shard = Shard::new(Arc::clone(&broker), 0, now, Arc::new(|| {}));
        let session = Session::new(SessionKey(1), "reader", broker.limits());
        session.lock().attachment = Some(Attachment { shard: 0, token: Token(1) });
        (broker, shard, session)
    }

    /// Subscribes to "t" on this flow; returns the tree's generation since.
    fn subscribe(
        state: &mut SessionState,
        session: &Arc<Session>,
        turn: &mut Turn,
        flow: FlowId,
    ) -> u64 {
        let options = SubscribeOptions { qos: QoS::AtLeastOnce, ..SubscribeOptions::default() };
        let (site, identifier) = (std::net::Ipv4Addr::LOCALHOST.into(), None);
        let request = subscribe::Request { text: "t", options, identifier, flow, site };
        subscribe::add(state, session, turn, request);
        turn.broker.tree_generation.load(Ordering::Acquire)
    }

    /// Delivers a message by a route to `flow` that was found in this generation.
    fn deliver(
        state: &mut SessionState,
        session: &Arc<Session>,
        turn: &mut Turn,
        (flow, found_in): (FlowId, u64),
    ) {
        let (topic, payload, qos, retain) = ("t", &b"x"[..], QoS::AtLeastOnce, false);
        let (properties, expires_at, publisher) = (&[][..], None, 2);
        let parts = MessageParts { topic, properties, payload, qos, retain, expires_at, publisher };
        let mut parcel = Parcel::default();
        let mut publication = Publication::new(parts, &mut parcel);
        publication.found_in = found_in;
        let naming = crate::aliases::Naming::Topic;
        let terms = Terms { qos, retain, identifiers: &[], naming };
        assert!(state.deliver(session, turn, &mut publication, flow, terms));
    }

    /// How many messages a flow has in flight, and how many wait.
    fn holds(state: &mut SessionState, flow: FlowId) -> (usize, usize) {
        let flow = state.flow_mut(flow).unwrap();
        (flow.outbound.in_flight(), flow.queue.len())
    }

    /// The subscription moves after the publication's receivers are found and before it is delivered.
    #[test]
    fn a_message_routed_before_its_subscription_moved_is_not_overtaken() {
        let (_broker, mut shard, session) = broker();
        let turn = &mut shard.turn;
        let mut state = session.lock();
        let [old, new] = [4, 8].map(|stream| {
            flows::open_unnamed(&mut state, &session, turn, StreamKey(stream)).unwrap()
        });
        let before = subscribe(&mut state, &session, turn, old);
        let after = subscribe(&mut state, &session, turn, new);
        deliver(&mut state, &session, turn, (old, before));
        deliver(&mut state, &session, turn, (new, after));
        assert_eq!(holds(&mut state, old), (1, 0), "the first is in flight");
        assert_eq!(holds(&mut state, new), (0, 1), "the later one waits for it");
        let id = fulmar_mqtt::PacketId::FIRST;
        state.handle_last_ack(&session, turn, old, fulmar_mqtt::ack::AckKind::Puback, id).unwrap();
        let index = state.flow_index(new).unwrap();
        state.refill(&session, turn, index);
        assert_eq!(holds(&mut state, new), (1, 0));
    }

    /// Its flow ends, so that the subscription moves to the control flow, and opens again.
    #[test]
    fn a_message_routed_to_a_flow_that_ended_does_not_reach_a_new_one_of_its_name() {
        let (_broker, mut shard, session) = broker();
        let turn = &mut shard.turn;
        let mut state = session.lock();
        let header = DataFlow { id: 4, expiry_s: 0, flags: FlowFlags::default() };
        let open = |state: &mut SessionState, turn: &mut Turn, stream| {
            flows::open_named(state, &session, turn, StreamKey(stream), header).unwrap().0
        };
        let flow = open(&mut state, turn, 4);
        let before = subscribe(&mut state, &session, turn, flow);
        flows::lose_stream(&mut state, &session, turn, StreamKey(4));
        assert_eq!(open(&mut state, turn, 8), flow);
        let after = turn.broker.tree_generation.load(Ordering::Acquire);
        deliver(&mut state, &session, turn, (flow, before));
        deliver(&mut state, &session, turn, (FlowId::CONTROL, after));
        assert_eq!(holds(&mut state, flow), (0, 0));
        let control = holds(&mut state, FlowId::CONTROL);
        assert_eq!(control.0 + control.1, 2, "both, in order");
        subscribe(&mut state, &session, turn, flow);
        let again = turn.broker.tree_generation.load(Ordering::Acquire);
        deliver(&mut state, &session, turn, (flow, again));
        let held = holds(&mut state, flow);
        assert_eq!(held.0 + held.1, 1, "a subscription of its own");
    }
}
