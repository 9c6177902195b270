//! Restores the broker's state from storage. Runs once, before the first connection.

use std::net::Ipv4Addr;
use std::sync::Arc;

use fulmar_auth::{Timestamp, User};
use fulmar_mqtt::QoS;
use fulmar_mqtt::topic::Subscription;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::broker::{Broker, BrokerConfig};
use crate::deferred_ops::TurnStamp;
use crate::lifecycle;
use crate::limits::Limits;
use crate::message::Message;
use crate::quota::{self, Quota};
use crate::session::{
    Flow, FlowPersistence, Outgoing, SendState, Session, SessionState, SessionSubscription,
};
use crate::session_memory;
use crate::storage::{FlowId, Op, Position, Progress, QueuedRecord, Restored, SessionKey, Storage};

impl Broker {
    /// A broker with what storage remembers.
    #[must_use]
    pub fn new(
        config: BrokerConfig,
        storage: Arc<dyn Storage>,
        restored: Restored,
        now: Timestamp,
    ) -> Arc<Broker> {
        let (last_key, last_id) = (restored.last_session_key, restored.last_message_id);
        let broker = Broker::empty(config, storage, last_key, last_id, now);
        restore(&broker, restored, now);
        broker
    }
}

/// Restores everything. For a session that was connected when the broker stopped, the session expiry interval and the
/// will delay interval begin now.
fn restore(broker: &Arc<Broker>, restored: Restored, now: Timestamp) {
    let limits = broker.limits();
    let mut repairs = Repairs::default();
    let mut sessions: FxHashMap<SessionKey, Arc<Session>> = FxHashMap::default();
    let mut newest: FxHashMap<&str, SessionKey> = FxHashMap::default();
    for record in &restored.sessions {
        let key = newest.entry(&*record.client_id).or_insert(record.key);
        *key = record.key.max(*key);
    }
    for record in &restored.sessions {
        if newest.get(&*record.client_id).is_some_and(|newest| *newest != record.key) {
            // One worker had ended the session when another began the next; the latter was stored first.
            repairs.gone.insert(record.key);
            continue;
        }
        let session = Session::new(record.key, &record.client_id, limits);
        let mut state = session.lock();
        state.durable = true;
        state.user = record.username.clone().map(User::from_text);
        lifecycle::watch(broker, &session, &mut state);
        state.mqtt_sn = record.mqtt_sn;
        state.expiry_interval_s = record.expiry_interval_s;
        let from_now = match record.expiry_interval_s {
            u32::MAX => Timestamp::NEVER,
            seconds => now.plus_secs(seconds),
        };
        state.expires_at = record.expires_at.unwrap_or(from_now);
        if let Some(will) = &record.will {
            state.will_at = Some(record.will_at.unwrap_or_else(|| now.plus_secs(will.delay_s)));
            state.will = Some(Arc::clone(will));
        }
        drop(state);
        broker.registry.insert(Arc::clone(&session));
        sessions.insert(record.key, session);
    }
    for (key, id, _, expiry_s) in restored.flows {
        let Some(session) = repairs.owner(&sessions, key) else { continue };
        let mut flow = Flow::new(id, limits.max_in_flight);
        let expires_at = Timestamp(now.0.saturating_add(expiry_s.saturating_mul(1000)));
        flow.rare().persistence = Some(FlowPersistence { expiry_s, expires_at, stored: true });
        session.lock().flows.push(flow);
    }
    for mut record in restored.subscriptions {
        let Some(session) = repairs.owner(&sessions, record.session) else { continue };
        let Ok(parsed) = Subscription::parse(&record.filter) else { continue };
        if session.lock().flow_index(record.flow).is_none() {
            repairs.ended.insert((record.session, record.flow));
            record.flow = FlowId::CONTROL;
            repairs.ops.push(Op::SubscriptionPut(record.clone()));
        }
        let (flow, options, identifier) = (record.flow, record.options, record.identifier);
        let own = SessionSubscription { flow, options, identifier };
        let subscriber = crate::subscribe::subscriber(session, &own);
        broker.change_tree(|tree| tree.insert(parsed.filter, parsed.share, subscriber));
        let mut state = session.lock();
        let wide = quota::is_wide(&parsed);
        let bytes = session_memory::of_subscription(&record.filter);
        if let Some(after) = &record.replay {
            let cursor = crate::subscribe::cursor(session, &record.filter, &own, after);
            let index = state.flow_index(flow).unwrap_or(0);
            state.flows[index].rare().retained.push_back(cursor);
        }
        if state.subscriptions.insert(record.filter, own).is_none() {
            state.subscription_bytes += bytes;
            if wide {
                Quota::restore(&mut state.quota_use);
            }
        }
    }
    for session in sessions.values() {
        let state = &mut *session.lock();
        state.set_memory_owner(broker, session, Ipv4Addr::UNSPECIFIED.into());
        // Sessions without a user count for their client's address when it reconnects.
        if let Some(user) = state.user.as_ref() {
            broker.quota.belongs_to(&mut state.quota_use, Some(user), Ipv4Addr::UNSPECIFIED.into());
        }
    }
    let connected: FxHashSet<SessionKey> =
        restored.sessions.iter().filter(|r| r.expires_at.is_none()).map(|r| r.key).collect();
    for queued in restored.queued {
        queued.message.count_in(broker.memory.accounts());
        let session = repairs.owner_of_queue(&sessions, queued.session, limits);
        let was_connected = connected.contains(&queued.session);
        restore_queued(&mut session.lock(), queued, was_connected, limits, &mut repairs);
    }
    for (key, id, packet_id) in restored.inbound {
        let Some(session) = repairs.owner(&sessions, key) else { continue };
        let mut state = session.lock();
        match state.flow_index(id) {
            Some(index) => state.flows[index].inbound.restore(packet_id),
            // On another flow the identifier would mean another message.
            None => drop(repairs.ended.insert((key, id))),
        }
    }
    for session in sessions.values() {
        session.lock().count_memory(session);
    }
    for session in repairs.ended.iter().filter_map(|(key, _)| sessions.get(key)) {
        // The messages of an ended flow have been appended after the control flow's.
        let queue = &mut session.lock().flows[0].queue;
        queue.make_contiguous().sort_by_key(|outgoing| outgoing.position);
    }
    restore_retained(broker, restored.retained, now, &mut repairs);
    repairs.gone.retain(|key| !repairs.left.contains_key(key));
    let left = std::mem::take(&mut repairs.left);
    broker.storage().submit(&mut repairs.into_ops());
    for session in sessions.values().chain(left.values()) {
        broker.schedule(session, &mut session.lock());
    }
}

fn restore_retained(
    broker: &Broker,
    messages: Vec<Arc<Message>>,
    now: Timestamp,
    repairs: &mut Repairs,
) {
    let mut retained = broker.retained.write();
    let mut over = 0_usize;
    for message in messages {
        message.count_in(broker.memory.accounts());
        if message.is_expired(now) {
            // Nothing else would remove it from storage, except another message to its topic.
            repairs.ops.push(Op::RetainedRemove(message.topic().into()));
        } else if retained.put(&message, None, broker.limits()).is_err() {
            over += 1;
        }
    }
    if over > 0 {
        tracing::warn!(messages = over, "retained messages over the limit were not restored");
    }
}

/// Changes to storage because of the restart: messages and subscriptions of a flow that has ended are the control
/// flow's, a message that two workers stored in two flows has one position, a packet identifier may be free again, and
/// a retained message may have expired.
#[derive(Default)]
struct Repairs {
    ops: Vec<Op>,
    /// Flows that have ended.
    ended: FxHashSet<(SessionKey, FlowId)>,
    /// Sessions that have ended, but of which something was stored afterwards.
    gone: FxHashSet<SessionKey>,
    /// Those of them with messages.
    left: FxHashMap<SessionKey, Arc<Session>>,
    /// Each message has one position in its session.
    seen: FxHashSet<(SessionKey, Position)>,
}

impl Repairs {
    /// The session of a record; a record without a session is removed.
    fn owner<'s>(
        &mut self,
        sessions: &'s FxHashMap<SessionKey, Arc<Session>>,
        key: SessionKey,
    ) -> Option<&'s Arc<Session>> {
        let session = sessions.get(&key);
        if session.is_none() {
            self.gone.insert(key);
        }
        session
    }

    /// The same of a queued message. A session that has left messages and nothing else ends in the first turn, and other
    /// members of its shared subscriptions get its jobs.
    fn owner_of_queue(
        &mut self,
        sessions: &FxHashMap<SessionKey, Arc<Session>>,
        key: SessionKey,
        limits: &Limits,
    ) -> Arc<Session> {
        let ended = || {
            let session = Session::new(key, "", limits);
            session.lock().durable = true;
            session.lock().expires_at = Timestamp(0);
            session
        };
        let known = sessions.get(&key);
        Arc::clone(known.unwrap_or_else(|| self.left.entry(key).or_insert_with(ended)))
    }

    fn into_ops(self) -> Vec<Op> {
        let mut ops = self.ops;
        // Last: removing a flow removes its subscriptions.
        ops.extend(self.ended.into_iter().map(|(session, flow)| Op::FlowRemove { session, flow }));
        ops.extend(self.gone.into_iter().map(Op::SessionRemove));
        ops
    }
}

/// Puts a message back in flight or into the queue.
fn restore_queued(
    state: &mut SessionState,
    mut queued: QueuedRecord,
    was_connected: bool,
    limits: &Limits,
    repairs: &mut Repairs,
) {
    let QueuedRecord { session, flow, position, .. } = queued;
    if !repairs.seen.insert((session, position)) {
        repairs.ops.push(Op::Dequeue { session, flow, position });
        return;
    }
    let known = state.flow_index(flow);
    if known.is_none() {
        repairs.ended.insert((session, flow));
        repairs.ops.push(Op::Dequeue { session, flow, position });
        queued.progress = match queued.progress {
            // The message has arrived; only its PUBREL and PUBCOMP are lost.
            Progress::Released(_) => return,
            // The identifier belonged to the flow that has ended.
            Progress::Sent(_) | Progress::Offered => Progress::Offered,
            Progress::Queued => Progress::Queued,
        };
        repairs.ops.push(Op::Enqueue {
            session,
            flow: FlowId::CONTROL,
            position,
            message: Arc::clone(&queued.message),
            delivery: queued.delivery.clone(),
            progress: queued.progress,
        });
    }
    let mut maybe_sent = queued.progress == Progress::Offered;
    let index = known.unwrap_or(0);
    let flow = &state.flows[index];
    if queued.delivery.qos == QoS::AtLeastOnce {
        // Storage may not know which messages were sent just before the crash: at most a window of them, and none if
        // the client was not connected.
        let window = usize::from(limits.max_in_flight);
        maybe_sent |= was_connected && flow.outbound.in_flight() + flow.queue.len() < window;
    }
    let unsent = matches!(queued.progress, Progress::Queued | Progress::Offered);
    let outgoing = Outgoing {
        message: queued.message,
        position: queued.position,
        identifiers: queued.delivery.identifiers.as_ref().into(),
        qos: queued.delivery.qos,
        retain: queued.delivery.retain,
        maybe_sent,
        share: queued.delivery.share,
        traced: false,
        send_state: SendState::of_new(unsent, queued.delivery.qos),
        stamp: TurnStamp::default(),
        kept: None,
    };
    state.restore(index, outgoing, queued.progress);
}
