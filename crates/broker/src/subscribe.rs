//! Adding and removing a session's subscriptions, in the session, the tree and storage at once
//! (MQTT 5.0 sections 3.8 and 3.10).

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fulmar_auth::text_of;
use fulmar_mqtt::packet::{RetainHandling, SubscribeOptions};
use fulmar_mqtt::session::give_back;
use fulmar_mqtt::topic::Subscription;
use fulmar_mqtt::{QoS, ReasonCode, Version};

use crate::quota;
use crate::retained::RetainedCursor;
use crate::session::{Flow, Session, SessionState, SessionSubscription};
use crate::session_memory;
use crate::storage::{FlowId, Op, SubscriptionRecord};
use crate::subscribers::Subscriber;
use crate::turn::{MEMORY_FULL, Turn};

/// The tree's form of a session's subscription.
pub(crate) fn subscriber(session: &Arc<Session>, own: &SessionSubscription) -> Subscriber {
    // The byte was made from valid options.
    let options = SubscribeOptions::from_byte(own.options, Version::V5).unwrap_or_default();
    Subscriber {
        session: Arc::clone(session),
        flow: own.flow,
        qos: options.qos,
        no_local: options.no_local,
        retain_as_published: options.retain_as_published,
        identifier: own.identifier,
    }
}

/// The rest of the retained messages for a session's subscription, behind the topic `after`.
pub(crate) fn cursor(
    session: &Session,
    filter: &str,
    own: &SessionSubscription,
    after: &str,
) -> RetainedCursor {
    let options = SubscribeOptions::from_byte(own.options, Version::V5).unwrap_or_default();
    let skip = options.no_local.then_some(session.publisher());
    let identifiers = own.identifier.into_iter().collect();
    RetainedCursor::new(filter, options.qos, identifiers, skip, after)
}

impl SessionState {
    /// Stores a subscription of a durable session, with what is left of its retained messages.
    pub(crate) fn store_subscription(&mut self, session: &Session, turn: &mut Turn, filter: &str) {
        let Some(own) = self.subscriptions.get(filter).copied().filter(|_| self.durable) else {
            return;
        };
        let flow = self.flows.iter().find(|flow| flow.id == own.flow);
        let rare = self.flows.iter().filter_map(|flow| flow.rare.as_ref());
        let mut cursors = rare.flat_map(|rare| &rare.retained);
        let cursor = cursors.find(|cursor| cursor.is_for(filter));
        let record = SubscriptionRecord {
            session: session.key(),
            flow: flow.map_or(FlowId::CONTROL, Flow::stored_as),
            filter: filter.into(),
            options: own.options,
            identifier: own.identifier,
            replay: cursor.and_then(RetainedCursor::progress),
        };
        // A connection on another worker may not remove it before.
        self.last_turn = turn.awaitable_stamp();
        turn.op(Op::SubscriptionPut(record));
    }

    /// No further retained messages are sent for the subscription; whether there may have been some.
    fn forget_replay(&mut self, filter: &str) -> bool {
        let mut any = false;
        for rare in self.flows.iter_mut().filter_map(|flow| flow.rare.as_mut()) {
            let before = rare.retained.len();
            rare.retained.retain(|cursor| !cursor.is_for(filter));
            any |= rare.retained.len() < before;
            give_back(&mut rare.retained);
        }
        any
    }
}

/// A subscription that a client asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) text: &'a str,
    pub(crate) options: SubscribeOptions,
    pub(crate) identifier: Option<u32>,
    pub(crate) flow: FlowId,
    /// Where the client is, as [`fulmar_text::network::site`] has it.
    pub(crate) site: IpAddr,
}

/// Adds or replaces a subscription and queues its retained messages. Access has been checked.
pub(crate) fn add(
    state: &mut SessionState,
    session: &Arc<Session>,
    turn: &mut Turn,
    request: Request<'_>,
) -> ReasonCode {
    let Request { text, options, identifier, flow, .. } = request;
    let Ok(parsed) = Subscription::parse(text) else { return ReasonCode::TopicFilterInvalid };
    let known = state.subscriptions.contains_key(text);
    if !known && state.subscriptions.len() >= turn.limits().max_subscriptions_per_session {
        return refuse(state, session, turn, text, "max_subscriptions_per_session");
    }
    if !known && !state.may_grow(session_memory::of_subscription(text)) {
        turn.metrics().memory_refused.add(1);
        if let Some(times) = turn.occurred(MEMORY_FULL) {
            tracing::warn!(
                client = session.client_id(),
                user = text_of(state.user.as_ref()),
                filter = text,
                times,
                "subscription refused: the user's sessions have their share of [limits] memory"
            );
        }
        return ReasonCode::QuotaExceeded;
    }
    let before = state.subscriptions.get(text).copied();
    if let Some(before) = before {
        state.keep_order(before.flow, flow);
    }
    if !known && quota::is_wide(&parsed) {
        let (user, most) = (state.user.as_ref(), turn.limits().max_wildcard_subscriptions_per_user);
        if !turn.broker.quota.take(&mut state.quota_use, user, request.site, most) {
            return refuse(state, session, turn, text, "max_wildcard_subscriptions_per_user");
        }
    }
    let own = SessionSubscription { flow, options: options.to_byte(), identifier };
    // Otherwise the tree has it; its answer comes behind that of the one before.
    if before != Some(own) {
        put(state, session, turn, (text, &parsed), own);
    }
    let wants_retained = match options.retain_handling {
        RetainHandling::Always => true,
        RetainHandling::IfNew => !known,
        RetainHandling::Never => false,
    };
    let mut replays = false;
    // Section 3.8.4: no retained messages for shared subscriptions.
    if wants_retained && parsed.share.is_none() {
        // A client that subscribes repeatedly without reading gets each topic once. So there are never more cursors than
        // subscriptions, which are counted.
        replays = known && state.forget_replay(text);
        let matches = turn.broker.retained.read().may_match(text);
        let attachment = state.attachment;
        if let (true, Some(flow), Some(attachment)) = (matches, state.flow_mut(flow), attachment) {
            flow.rare().retained.push_back(cursor(session, text, &own, ""));
            flow.announce(turn, attachment);
            replays |= options.qos > QoS::AtMostOnce;
        }
    }
    if replays || before != Some(own) {
        state.store_subscription(session, turn, text);
    }
    match options.qos {
        QoS::AtMostOnce => ReasonCode::Success,
        QoS::AtLeastOnce => ReasonCode::GrantedQos1,
        QoS::ExactlyOnce => ReasonCode::GrantedQos2,
    }
}

/// Enters a subscription that is new, or not what it was.
fn put(
    state: &mut SessionState,
    session: &Arc<Session>,
    turn: &mut Turn,
    (text, parsed): (&str, &Subscription<'_>),
    own: SessionSubscription,
) {
    let before = state.subscriptions.insert(text.into(), own);
    if before.is_none() {
        state.subscription_bytes += session_memory::of_subscription(text);
        state.count_memory(session);
    }
    let subscriber = subscriber(session, &own);
    turn.broker.change_tree(|tree| tree.insert(parsed.filter, parsed.share, subscriber));
    if let Some(before) = before {
        let generation = turn.broker.tree_generation.load(Ordering::Acquire);
        state.subscription_moved(before.flow, own.flow, generation);
    }
}

/// Refuses a subscription over a bound.
fn refuse(
    state: &SessionState,
    session: &Session,
    turn: &mut Turn,
    filter: &str,
    bound: &'static str,
) -> ReasonCode {
    turn.metrics().subscriptions_refused.add(1);
    let who = (session.client_id(), state.user.as_ref());
    turn.log_bound(bound, who, format_args!("subscription to {filter:?} refused"));
    ReasonCode::QuotaExceeded
}

/// Removes a subscription.
pub(crate) fn remove(
    state: &mut SessionState,
    session: &Session,
    turn: &mut Turn,
    text: &str,
) -> ReasonCode {
    let Ok(parsed) = Subscription::parse(text) else { return ReasonCode::TopicFilterInvalid };
    if state.subscriptions.remove(text).is_none() {
        return ReasonCode::NoSubscriptionExisted;
    }
    // Their room is not counted, and the session may stay for days.
    let subscriptions = &mut state.subscriptions;
    if subscriptions.len() < subscriptions.capacity() / 4 {
        subscriptions.shrink_to(2 * subscriptions.len());
    }
    state.subscription_bytes -= session_memory::of_subscription(text);
    state.count_memory(session);
    if quota::is_wide(&parsed) {
        turn.broker.quota.give_back(&mut state.quota_use);
    }
    turn.broker.change_tree(|tree| tree.remove(parsed.filter, parsed.share, session));
    state.forget_replay(text);
    if state.durable {
        turn.op(Op::SubscriptionRemove { session: session.key(), filter: text.into() });
    }
    ReasonCode::Success
}
