//! Outgoing messages of a session: sends, queues or drops them, and refills the connection's output (MQTT 5.0 sections
//! 4.3, 4.4, 4.9). What the client acknowledges is in [`crate::client_acks`].
//!
//! The session is locked during all of this. A message of a durable session is in the storage batch for which its
//! publisher's acknowledgement waits, together with the packet identifier with which it is sent, so that after a crash
//! it is sent again with the same identifier and with DUP. A QoS 2 message is not sent before storage has that
//! identifier: after a crash it would be sent again with another one, and arrive twice.

use std::sync::Arc;

use fulmar_auth::Timestamp;
use fulmar_auth::access::{Action, Subject};
use fulmar_mqtt::ack::{self, AckKind};
use fulmar_mqtt::session::{Outbound, Replay, give_back};
use fulmar_mqtt::{PacketId, QoS, ReasonCode};
use smallvec::SmallVec;

use crate::aliases::Naming;
use crate::mailbox::Attachment;
use crate::outbox::{ClientLimits, Outbox, is_shared};
use crate::publication::{Parcel, Publication, Terms, count, encode_publish, encode_start};
use crate::session::{Block, Flow, FlowExtras, Outgoing, SendState, Session, SessionState};
use crate::storage::{Delivery, FlowId, Op, Position, Progress};
use crate::turn::{Turn, Waiter};

/// Encoded bytes at which refilling stops; the rest follows when the connection has taken these.
const REFILL_BYTES: usize = 64 * 1024;

impl SessionState {
    /// Delivers a publication to one flow. True if the session has accepted it.
    pub(crate) fn deliver(
        &mut self,
        session: &Arc<Session>,
        turn: &mut Turn,
        publication: &mut Publication<'_>,
        flow: FlowId,
        terms: Terms<'_>,
    ) -> bool {
        if self.ended {
            return false;
        }
        // The flow may have ended since the route was found: the control flow has its messages then, even if the
        // client has opened a flow of the same name.
        let index = self.flow_index(flow).unwrap_or(0);
        let reopened = |rare: &FlowExtras| rare.opened_in > publication.found_in;
        let index = if self.flows[index].rare.as_deref().is_some_and(reopened) { 0 } else { index };
        if terms.qos == QoS::AtMostOnce {
            return self.send_unacknowledged(session, turn, publication, index, terms);
        }
        if !self.keeps_messages() {
            return false;
        }
        let broker = Arc::clone(&turn.broker);
        let outgoing = Outgoing {
            message: publication.message(&broker),
            position: self.next_position(),
            identifiers: terms.identifiers.into(),
            qos: terms.qos,
            retain: terms.retain,
            maybe_sent: false,
            share: publication.share,
            traced: turn.is_traced(),
            send_state: SendState::of_new(self.durable, terms.qos),
            stamp: publication.stored_in.unwrap_or_else(|| turn.stamp()),
            kept: None,
        };
        self.order_after_stale_route(index, outgoing.position, publication.found_in);
        let most = self.outbox_bytes(turn.limits());
        let behind = self.waits_for_other_flow(index, outgoing.position);
        let flow = &self.flows[index];
        // The message may reach storage before the flow does. If it were sent now, it would be sent again on the
        // control flow after a crash. The flow's own worker sends it.
        // So may the turn that has stored it for another member, and a crash takes that turn back.
        let is_known = |stamp| turn.has_handed_over(stamp);
        let unknown = outgoing.send_state != SendState::Sendable
            && !(is_known(flow.opened()) && is_known(outgoing.stamp));
        let may_send = flow.stream.is_some()
            && !unknown
            && !behind
            && !flow.has_waiting()
            && !flow.outbound.is_full()
            && flow.outbox.len() < most
            && self.may_output(index)
            && self.has_memory_for(&outgoing.message);
        if !may_send {
            let kept = self.enqueue(session, turn, index, outgoing);
            let flow = &mut self.flows[index];
            // It may be the only one because others were dropped to make room, which the flow was waiting with.
            if kept && flow.queue.len() == 1 {
                flow.set_blocked(behind.then_some(Block::Order));
            }
            if kept
                && (unknown || flow.can_refill())
                && let Some(attachment) = self.attachment
            {
                flow.announce(turn, attachment);
            }
            return kept;
        }
        self.send_first(session, turn, publication, index, outgoing, terms)
    }

    /// QoS 0: appended to the outbox of a connected receiver, otherwise dropped.
    fn send_unacknowledged(
        &mut self,
        session: &Session,
        turn: &mut Turn,
        publication: &mut Publication<'_>,
        index: usize,
        terms: Terms<'_>,
    ) -> bool {
        let Some(attachment) = self.attachment else { return false };
        let (most, client) = (self.outbox_bytes(turn.limits()), self.client_limits());
        let flow = &self.flows[index];
        if flow.stream.is_none() {
            return false;
        }
        if flow.outbox.len() >= most || !self.may_output_more(index, publication.size()) {
            turn.metrics().messages_dropped_qos0.add(1);
            let who = (session.client_id(), self.user.as_ref());
            turn.log_bound("max_outbox_bytes", who, format_args!("QoS 0 message dropped"));
            return false;
        }
        let flow = &mut self.flows[index];
        let sent = publication.send(&mut flow.outbox, turn, client, terms, None);
        if sent {
            flow.announce(turn, attachment);
            self.count_output(index);
        }
        sent
    }

    /// QoS 1 and 2 with room in the window.
    fn send_first(
        &mut self,
        session: &Arc<Session>,
        turn: &mut Turn,
        publication: &mut Publication<'_>,
        index: usize,
        mut outgoing: Outgoing,
        terms: Terms<'_>,
    ) -> bool {
        outgoing.kept = self.keep(&outgoing.message);
        let (durable, client) = (self.durable, self.client_limits());
        let attachment = self.attachment;
        let flow = &mut self.flows[index];
        let record =
            durable.then(|| enqueue_op(session, flow.stored_as(), &outgoing, Progress::Queued));
        let Outgoing { position, send_state, stamp, .. } = outgoing;
        let wanted = outgoing.position.packet_id();
        let Some(packet_id) = flow.outbound.push_as(wanted, terms.qos, outgoing) else {
            // The session has been locked since the window had room.
            return false;
        };
        if let Some(mut record) = record {
            if let Op::Enqueue { progress, .. } = &mut record {
                *progress = flow.sent(packet_id);
            }
            let stamp = turn.move_after(stamp, record);
            if publication.stored_in.is_some()
                && let Some(outgoing) = flow.outbound.get_mut(packet_id)
            {
                outgoing.stamp = stamp;
            }
        }
        if flow.hold_back(session, turn, (packet_id, position), send_state) {
            return true;
        }
        let sent = publication.send(&mut flow.outbox, turn, client, terms, Some(packet_id));
        if !sent {
            flow.abandon(session, turn, packet_id, durable);
        } else if let Some(attachment) = attachment {
            flow.announce(turn, attachment);
            self.count_output(index);
        }
        sent
    }

    /// Restores a message from storage.
    pub(crate) fn restore(&mut self, index: usize, mut outgoing: Outgoing, progress: Progress) {
        outgoing.kept = self.keep(&outgoing.message);
        self.restore_position(outgoing.position);
        self.note_expiry(&outgoing.message);
        let flow = &mut self.flows[index];
        match progress {
            Progress::Queued | Progress::Offered => {
                self.queued.add(outgoing.message.size());
                flow.queue.push_back(outgoing);
            }
            Progress::Sent(packet_id) => {
                flow.outbound.restore(packet_id, outgoing.qos, false, outgoing);
            }
            Progress::Released(packet_id) => {
                flow.outbound.restore(packet_id, outgoing.qos, true, outgoing);
            }
        }
    }

    /// A QoS 2 message's identifier is durable: sends it and those that waited for it, if the client is still
    /// connected. Workers learn of commits at different times; this keeps the order ([MQTT-4.6.0-5]).
    pub(crate) fn release(
        &mut self,
        session: &Session,
        turn: &mut Turn,
        flow: FlowId,
        packet_id: PacketId,
        position: Position,
    ) {
        let (now, attachment) = (turn.now, self.attachment);
        let (durable, client) = (self.durable, self.client_limits());
        let Some(flow) = self.flow_mut(flow) else { return };
        let mut given_up: SmallVec<[PacketId; 1]> = SmallVec::new();
        let Flow { outbound, outbox, rare, stream, .. } = flow;
        let Some(rare) = rare else { return };
        match in_flight(outbound, packet_id, position) {
            Some(outgoing) if outgoing.send_state == SendState::Unstored => {
                outgoing.send_state = SendState::Stored;
            }
            _ => return,
        }
        while let Some(&(packet_id, position)) = rare.unsendable.front() {
            let outgoing = in_flight(outbound, packet_id, position);
            if outgoing.as_ref().is_some_and(|outgoing| outgoing.send_state == SendState::Unstored)
            {
                break;
            }
            rare.unsendable.pop_front();
            give_back(&mut rare.unsendable);
            let Some(outgoing) = outgoing else { continue };
            outgoing.send_state = SendState::Sendable;
            // What is to be sent again goes out before it, and it with them.
            if stream.is_none() || rare.resend.contains(&packet_id) {
                continue;
            }
            let sent =
                !outgoing.has_lapsed(turn, now) && outgoing.send(outbox, turn, client, packet_id);
            if !sent {
                given_up.push(packet_id);
            }
        }
        let abandoned = !given_up.is_empty();
        for packet_id in given_up {
            flow.abandon(session, turn, packet_id, durable);
        }
        if let Some(attachment) = attachment
            && (!flow.outbox.is_empty() || flow.can_refill())
        {
            flow.announce(turn, attachment);
        }
        if abandoned {
            self.unblock(turn);
        }
    }

    /// Refills a flow's outbox: with messages to send again, then with the queue, then with retained messages for new
    /// subscriptions.
    pub(crate) fn refill(&mut self, session: &Arc<Session>, turn: &mut Turn, index: usize) {
        if self.flows[index].waits_for_acknowledgements() {
            return;
        }
        let most = self.outbox_bytes(turn.limits()).min(REFILL_BYTES);
        while self.flows[index].outbox.len() < most && self.may_output(index) {
            let moved =
                self.resend_one(session, turn, index) || self.send_queued(session, turn, index);
            if !moved {
                break;
            }
        }
        self.count_output(index);
        if !self.flows[index].has_waiting() {
            let behind = self.waits_for_other_flow(index, Position(u64::MAX));
            self.flows[index].set_blocked(behind.then_some(Block::Order));
            if !behind {
                self.send_retained(session, turn, index);
            }
        }
    }

    /// Announces a flow's output to its connection, if there is more of it.
    pub(crate) fn announce_more(&mut self, turn: &mut Turn, index: usize) {
        if let Some(attachment) = self.attachment
            && self.flows[index].has_more()
        {
            self.flows[index].announce(turn, attachment);
        }
    }

    fn resend_one(&mut self, session: &Session, turn: &mut Turn, index: usize) -> bool {
        let (durable, client, now) = (self.durable, self.client_limits(), turn.now);
        let flow = &mut self.flows[index];
        if !flow.can_resend() {
            return false;
        }
        let next = |rare: &mut Box<FlowExtras>| {
            let next = rare.resend.pop_front();
            give_back(&mut rare.resend);
            next
        };
        let Some(packet_id) = flow.rare.as_mut().and_then(next) else { return false };
        match flow.outbound.replay_of(packet_id) {
            // A message whose identifier is not durable yet is sent when it is.
            Some(Replay::Publish { message: outgoing, .. })
                if outgoing.send_state == SendState::Sendable =>
            {
                // The client's Maximum Packet Size may be smaller than when this was first sent.
                let sent = !outgoing.has_lapsed(turn, now)
                    && outgoing.send(&mut flow.outbox, turn, client, packet_id);
                if !sent {
                    flow.abandon(session, turn, packet_id, durable);
                    self.unblock(turn);
                }
            }
            Some(Replay::Pubrel { .. }) => {
                let (out, version) = (flow.outbox.bytes(), client.version);
                ack::encode(out, version, AckKind::Pubrel, packet_id, ReasonCode::Success);
            }
            Some(Replay::Publish { .. }) | None => {}
        }
        true
    }

    fn send_queued(&mut self, session: &Arc<Session>, turn: &mut Turn, index: usize) -> bool {
        let (client, now) = (self.client_limits(), turn.now);
        if self.flows[index].outbound.is_full() {
            return false;
        }
        if self.next_must_wait(turn, index) {
            return false;
        }
        let Some(outgoing) = self.flows[index].queue.pop_front() else { return false };
        give_back(&mut self.flows[index].queue);
        self.queued.remove(outgoing.message.size());
        if outgoing.message.is_expired(now) {
            turn.metrics().messages_expired.add(1);
            self.forget(session, turn, index, &outgoing);
            self.unblock(turn);
            return true;
        }
        let durable = self.durable;
        let flow = &mut self.flows[index];
        let Outgoing { position, qos, send_state, stamp, .. } = outgoing;
        let wanted = position.packet_id();
        let Some(packet_id) = flow.outbound.push_as(wanted, qos, outgoing) else { return false };
        if durable {
            let (session, progress, flow) = (session.key(), flow.sent(packet_id), flow.stored_as());
            turn.op_after(stamp, Op::Advance { session, flow, position, progress });
        }
        if flow.hold_back(session, turn, (packet_id, position), send_state) {
            return true;
        }
        let Flow { outbound, outbox, .. } = flow;
        let outgoing = outbound.get_mut(packet_id);
        let sent = outgoing.is_some_and(|outgoing| outgoing.send(outbox, turn, client, packet_id));
        if !sent {
            flow.abandon(session, turn, packet_id, durable);
            self.unblock(turn);
        }
        true
    }

    /// Whether the next message in the queue must wait.
    fn next_must_wait(&mut self, turn: &Turn, index: usize) -> bool {
        let next = self.flows[index].queue.front();
        let next = next.map(|outgoing| (outgoing.position, outgoing.stamp, outgoing.send_state));
        let blocked = match next {
            Some((position, ..)) if self.waits_for_other_flow(index, position) => {
                Some(Block::Order)
            }
            Some((_, stamp, SendState::Unstored)) if !turn.has_handed_over(stamp) => {
                Some(Block::Worker)
            }
            _ => None,
        };
        self.flows[index].set_blocked(blocked);
        blocked.is_some()
    }

    fn send_retained(&mut self, session: &Arc<Session>, turn: &mut Turn, index: usize) {
        let broker = Arc::clone(&turn.broker);
        let access_control = broker.access_control();
        let mut budget = turn.fan_out.retained_visits();
        let mut parcel = Parcel::default();
        let most = self.outbox_bytes(turn.limits()).min(REFILL_BYTES);
        // The front cursor's filter, if storage does not know how far it has come.
        let mut unstored = None;
        while self.flows[index].outbox.len() < most && self.may_output(index) && budget > 0 {
            let flow = &mut self.flows[index];
            let flow_id = flow.id;
            let full = flow.outbound.is_full();
            let Some(cursors) = flow.rare.as_mut().map(|rare| &mut rare.retained) else { break };
            let Some(cursor) = cursors.front_mut() else { break };
            if full && cursor.qos > QoS::AtMostOnce {
                break;
            }
            let before = budget;
            let next = cursor.next(&broker.retained.read(), turn.now, &mut budget);
            turn.fan_out.look(before - budget);
            let (most, identifiers) = (cursor.qos, cursor.identifiers.clone());
            if cursor.is_done() {
                let over = cursors.pop_front().filter(|over| over.qos > QoS::AtMostOnce);
                give_back(cursors);
                unstored = None;
                if let Some(over) = over {
                    self.store_subscription(session, turn, over.filter());
                }
            } else if next.is_some() && most > QoS::AtMostOnce && unstored.is_none() {
                unstored = Some(Box::from(cursor.filter()));
            }
            if let Some(message) = next {
                let (user, client_id) = (self.user.as_ref(), session.client_id());
                let topic = message.topic();
                if access_control.guards(topic)
                    && !access_control.allows(Subject { user, client_id }, Action::Receive, topic)
                {
                    continue;
                }
                let qos = most.min(message.qos());
                let naming = Naming::Topic;
                let terms = Terms { qos, retain: true, identifiers: &identifiers, naming };
                let mut publication = Publication::of(&message, &mut parcel);
                self.deliver(session, turn, &mut publication, flow_id, terms);
            }
        }
        // In the batch of what was sent.
        if let Some(filter) = unstored {
            self.store_subscription(session, turn, &filter);
        }
    }
}

impl Flow {
    /// Sends the flow's connection one event that there is output.
    pub(crate) fn announce(&mut self, turn: &mut Turn, attachment: Attachment) {
        if !self.ready {
            self.ready = true;
            match self.outbox.has_large() {
                true => turn.ready_large(attachment),
                false => turn.ready(attachment),
            }
        }
    }

    /// True if a message that was just put in flight has to wait: until storage has its identifier, or behind one of which
    /// storage has not, so that messages of all qualities of service leave in the order of their arrival.
    fn hold_back(
        &mut self,
        session: &Arc<Session>,
        turn: &mut Turn,
        (packet_id, position): (PacketId, Position),
        send_state: SendState,
    ) -> bool {
        if send_state != SendState::Sendable {
            turn.when_durable(Waiter::Send(Arc::clone(session), self.id, packet_id, position));
        } else if self.rare.as_ref().is_none_or(|rare| rare.unsendable.is_empty()) {
            return false;
        } else if let Some(outgoing) = self.outbound.get_mut(packet_id) {
            outgoing.send_state = SendState::Stored;
        }
        self.rare().unsendable.push_back((packet_id, position));
        true
    }

    /// Drops a message that was just put in flight and cannot be sent.
    fn abandon(&mut self, session: &Session, turn: &mut Turn, packet_id: PacketId, durable: bool) {
        if let Some(outgoing) = self.outbound.abandon(packet_id)
            && durable
        {
            let (session, flow, position) = (session.key(), self.stored_as(), outgoing.position);
            turn.op_after(outgoing.stamp, Op::Dequeue { session, flow, position });
        }
    }
}

impl Outgoing {
    /// Whether the message has expired while its identifier was being stored. It has not been sent, and must not be
    /// ([MQTT-3.3.2-5]). Counts it.
    fn has_lapsed(&self, turn: &Turn, now: Timestamp) -> bool {
        let lapsed = !self.maybe_sent && self.message.is_expired(now);
        turn.metrics().messages_expired.add(u64::from(lapsed));
        lapsed
    }

    /// Puts it into its stream's outbox, unless it is larger than the client accepts.
    fn send(
        &self,
        outbox: &mut Outbox,
        turn: &mut Turn,
        client: ClientLimits,
        packet_id: PacketId,
    ) -> bool {
        let (qos, retain, now) = (self.qos, self.retain, turn.now);
        let parts = self.message.parts();
        let id = Some(packet_id);
        if is_shared(&self.message, client.version, turn.limits().large_message_bytes) {
            let fits = outbox.publish_large(client, &self.message, |out, naming| {
                let terms = Terms { qos, retain, identifiers: &self.identifiers, naming };
                encode_start(out, client.version, &parts, terms, id, self.maybe_sent, now);
            });
            return count(turn, fits);
        }
        let encode = |out: &mut Vec<u8>, naming| {
            let terms = Terms { qos, retain, identifiers: &self.identifiers, naming };
            encode_publish(out, client.version, &parts, terms, id, self.maybe_sent, now);
        };
        let fits = outbox.publish(client, || turn.buffer(), parts.topic, encode);
        count(turn, fits)
    }
}

/// The message in flight with this identifier, unless another message has it now.
fn in_flight(
    outbound: &mut Outbound<Outgoing>,
    id: PacketId,
    position: Position,
) -> Option<&mut Outgoing> {
    outbound.get_mut(id).filter(|outgoing| outgoing.position == position)
}

pub(crate) fn enqueue_op(
    session: &Session,
    flow: FlowId,
    outgoing: &Outgoing,
    progress: Progress,
) -> Op {
    Op::Enqueue {
        session: session.key(),
        flow,
        position: outgoing.position,
        message: Arc::clone(&outgoing.message),
        delivery: Delivery {
            qos: outgoing.qos,
            retain: outgoing.retain,
            identifiers: outgoing.identifiers.as_slice().into(),
            share: outgoing.share,
        },
        progress,
    }
}
