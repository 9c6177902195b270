//! A broker's state from what storage remembers. Runs once, before the first connection.

use std::sync::Arc;

use fulmar_mqtt::topic::Subscription;
use rustc_hash::FxHashMap;

use crate::broker::Broker;
use crate::session::{Clearance, Flow, FlowPersistence, Held, Session, SessionSubscription};
use crate::storage::{FlowId, Restored, SessionKey};
use crate::time::Timestamp;

/// Puts everything in its place. A session that was connected when the broker went down counts its
/// expiry, and the delay of its will, from now.
pub(crate) fn restore(broker: &Arc<Broker>, restored: Restored, now: Timestamp) {
    let limits = broker.limits();
    let mut sessions: FxHashMap<SessionKey, Arc<Session>> = FxHashMap::default();
    for record in &restored.sessions {
        let session = Session::new(record.key, &record.client_id, limits);
        let mut state = session.lock();
        state.durable = true;
        state.username.clone_from(&record.username);
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
        broker.registry().insert(Arc::clone(&session));
        sessions.insert(record.key, session);
    }
    for (key, id, _, expiry_s) in restored.flows {
        let Some(session) = sessions.get(&key) else { continue };
        let mut flow = Flow::new(id, limits.max_in_flight);
        let expires_at = Timestamp(now.0.saturating_add(expiry_s.saturating_mul(1000)));
        flow.rare().persistence = Some(FlowPersistence { expiry_s, expires_at });
        session.lock().flows.push(flow);
    }
    for record in restored.subscriptions {
        let Some(session) = sessions.get(&record.session) else { continue };
        let Ok(parsed) = Subscription::parse(&record.filter) else { continue };
        let (options, identifier) = (record.options, record.identifier);
        // A stream without a name ended with the broker; what it was owed moves to the control flow.
        let known = session.lock().flow_index(record.flow).is_some();
        let flow = if known { record.flow } else { FlowId::CONTROL };
        let own = SessionSubscription { flow, options, identifier };
        let subscriber = crate::subscribe::subscriber(session, &own);
        broker.change_tree(|tree| tree.insert(parsed.filter, parsed.share, subscriber));
        session.lock().subscriptions.insert(record.filter, own);
    }
    for queued in restored.queued {
        let Some(session) = sessions.get(&queued.session) else { continue };
        let mut state = session.lock();
        let index = state.flow_index(queued.flow).unwrap_or(0);
        let unsent = queued.progress == crate::storage::Progress::Queued;
        let held = Held {
            message: queued.message,
            position: queued.position,
            identifiers: queued.delivery.identifiers.as_ref().into(),
            qos: queued.delivery.qos,
            retain: queued.delivery.retain,
            clearance: Clearance::of_new(unsent, queued.delivery.qos),
        };
        state.restore(index, held, queued.progress);
    }
    for (key, id, packet_id) in restored.inbound {
        let Some(session) = sessions.get(&key) else { continue };
        let mut state = session.lock();
        // On another flow the identifier would mean another message.
        if let Some(index) = state.flow_index(id) {
            state.flows[index].inbound.restore(packet_id);
        }
    }
    {
        let mut retained = broker.retained().write();
        for message in restored.retained {
            if !message.is_expired(now) && retained.put(message, limits).is_err() {
                tracing::warn!("retained messages over the limit were not restored");
                break;
            }
        }
    }
    for session in sessions.values() {
        crate::chores::look_after(broker, session, &mut session.lock());
    }
}
