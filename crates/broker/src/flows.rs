//! Data streams of a session: opening, resuming, losing and expiring their flows.
//!
//! A stream without a header (EMQX's simple multi-stream mode) has no name by which it could be
//! resumed. When it ends, its undelivered messages move to the control flow, so that a persistent session
//! loses nothing: subscriptions deliver there from then on, and unacknowledged messages are sent
//! again with new identifiers. A QoS 2 message whose PUBREC was lost with such a stream can
//! therefore arrive twice; the draft's persistent flows avoid this. Such flows have no records in storage:
//! their messages are stored as the control flow's from the beginning ([`Flow::stored_as`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fulmar_auth::Timestamp;
use fulmar_mqtt::flow::{DataFlow, FlowFlags, StreamError};
use fulmar_mqtt::topic::Subscription;

use crate::deferred_ops::TurnNumber;
use crate::deliver::enqueue_op;
use crate::peer::StreamKey;
use crate::session::{Flow, FlowPersistence, Outgoing, SendState, Session, SessionState};
use crate::session_memory;
use crate::storage::{FlowId, Op, Progress};
use crate::turn::{Turn, Waiter};

/// Flow identifiers of streams without a header are above the largest varint.
const UNNAMED: u64 = 1 << 62;

/// Whether the session may have one flow more.
fn may_open(state: &SessionState, turn: &Turn) -> bool {
    let fits = state.may_grow(session_memory::FLOW_BYTES);
    turn.metrics().memory_refused.add(u64::from(!fits));
    fits && state.flows.len() < turn.limits().max_flows_per_session
}

/// Gives a stream without a header its flow.
pub(crate) fn open_unnamed(
    state: &mut SessionState,
    session: &Session,
    turn: &Turn,
    stream: StreamKey,
) -> Result<FlowId, StreamError> {
    if !may_open(state, turn) {
        return Err(StreamError::FlowRefused);
    }
    let id = FlowId(UNNAMED | stream.0);
    let mut flow = Flow::new(id, state.window);
    flow.stream = Some(stream);
    state.flows.push(flow);
    state.count_memory(session);
    Ok(id)
}

/// Gives a stream with a header its flow: the one of that name if the session has it, unless the
/// client wants it clean (draft sections 9.14 and 9.15). Returns the stream it was on before.
pub(crate) fn open_named(
    state: &mut SessionState,
    session: &Arc<Session>,
    turn: &mut Turn,
    stream: StreamKey,
    header: DataFlow,
) -> Result<(FlowId, Option<StreamKey>), StreamError> {
    let id = FlowId(header.id);
    state.last_turn = turn.awaitable_stamp();
    let keeps = FlowFlags::PERSISTENT_QOS | FlowFlags::PERSISTENT_SUBSCRIPTIONS;
    let expiry_s = if header.flags.0 & keeps == 0 { 0 } else { header.expiry_s };
    let storing = state.durable && expiry_s > 0;
    let mut displaced = None;
    if let Some(index) = state.flow_index(id) {
        let flow = &state.flows[index];
        displaced = flow.stream;
        if header.flags.has(FlowFlags::CLEAN) {
            remove(state, session, turn, id);
        } else if storing && !flow.is_stored() {
            if header.flags.has(FlowFlags::ABORT_IF_NO_STATE) {
                return Err(StreamError::NoFlowState);
            }
            // So far it was to end with its stream; what is stored of it is the control flow's.
            move_to_control(state, session, turn, id);
        }
    }
    let window = state.window;
    let index = match state.flow_index(id) {
        Some(index) => index,
        None if header.flags.has(FlowFlags::ABORT_IF_NO_STATE) => {
            return Err(StreamError::NoFlowState);
        }
        None if !may_open(state, turn) => {
            return Err(StreamError::FlowRefused);
        }
        None => {
            let mut flow = Flow::new(id, window);
            flow.rare().opened_in = turn.broker.tree_generation.load(Ordering::Acquire);
            state.flows.push(flow);
            state.count_memory(session);
            state.flows.len() - 1
        }
    };
    state.restore_order(session, turn, index);
    let durable = state.durable;
    let flow = &mut state.flows[index];
    flow.attach(stream, window);
    if durable && flow.rare.as_ref().is_some_and(|rare| !rare.resend.is_empty()) {
        let waiter = Waiter::Resend(Arc::clone(session), id);
        flow.rare().resend_after = Some(turn.when_durable(waiter));
    }
    if storing && !flow.is_stored() {
        flow.rare().opened = turn.stamp();
    }
    let stored = storing || flow.is_stored();
    flow.rare().persistence =
        Some(FlowPersistence { expiry_s, expires_at: Timestamp::NEVER, stored });
    if storing {
        let (session, flow, flags) = (session.key(), id, header.flags.0);
        turn.op(Op::FlowPut { session, flow, flags, expiry_s });
    }
    state.announce_more(turn, index);
    Ok((id, displaced))
}

/// What a flow's client acknowledged on an earlier stream is durable, as of this turn.
pub(crate) fn resend(state: &mut SessionState, turn: &mut Turn, id: FlowId, durable: TurnNumber) {
    let Some(index) = state.flow_index(id) else { return };
    match &mut state.flows[index].rare {
        Some(rare) if rare.resend_after == Some(durable) => rare.resend_after = None,
        _ => return,
    }
    state.announce_more(turn, index);
}

/// A stream is gone while its connection lives.
pub(crate) fn lose_stream(
    state: &mut SessionState,
    session: &Arc<Session>,
    turn: &mut Turn,
    stream: StreamKey,
) {
    let Some(index) = state.flows.iter().position(|flow| flow.stream == Some(stream)) else {
        return;
    };
    state.last_turn = turn.awaitable_stamp();
    lose(state, session, turn, index);
    turn.broker.schedule(session, state);
}

/// All streams are gone with their connection.
pub(crate) fn detach_all(state: &mut SessionState, session: &Arc<Session>, turn: &mut Turn) {
    if let Some(control) = state.flows.first_mut() {
        control.detach();
    }
    for index in (1..state.flows.len()).rev() {
        lose(state, session, turn, index);
    }
}

fn lose(state: &mut SessionState, session: &Arc<Session>, turn: &mut Turn, index: usize) {
    let now = turn.now;
    let flow = &mut state.flows[index];
    flow.detach();
    let keep_s = flow.persistence().map_or(0, |lifetime| lifetime.expiry_s);
    if keep_s == 0 {
        let id = flow.id;
        move_to_control(state, session, turn, id);
        return;
    }
    let expires_at = Timestamp(now.0.saturating_add(keep_s.saturating_mul(1000)));
    if let Some(lifetime) = &mut flow.rare().persistence {
        lifetime.expires_at = expires_at;
    }
    state.unblock(turn);
}

/// Persistent flows whose time is over at `now` move to the control flow too.
pub(crate) fn expire(state: &mut SessionState, session: &Arc<Session>, turn: &mut Turn) {
    let now = turn.now;
    let over = |flow: &Flow| {
        flow.stream.is_none()
            && flow.persistence().is_some_and(|lifetime| lifetime.expires_at <= now)
    };
    while let Some(id) = state.flows.iter().skip(1).find(|flow| over(flow)).map(|flow| flow.id) {
        move_to_control(state, session, turn, id);
    }
}

/// The client has reconnected over a transport without data streams: their undelivered messages are delivered on the
/// control flow, at once and not only when the flows expire.
pub(crate) fn gather(state: &mut SessionState, session: &Arc<Session>, turn: &mut Turn) {
    while let Some(id) = state.flows.get(1).map(|flow| flow.id) {
        move_to_control(state, session, turn, id);
    }
}

/// Takes a flow out, with the room of those that are gone.
fn take(state: &mut SessionState, index: usize) -> Flow {
    let flow = state.flows.remove(index);
    if state.flows.len() < state.flows.capacity() / 4 {
        state.flows.shrink_to_fit();
    }
    flow
}

fn move_to_control(state: &mut SessionState, session: &Arc<Session>, turn: &mut Turn, id: FlowId) {
    let Some(index) = state.flow_index(id).filter(|index| *index > 0) else { return };
    let mut flow = take(state, index);
    state.count_memory(session);
    if state.ended {
        return;
    }
    state.wait_for_control(&mut flow);
    if let Some(rare) = flow.rare.as_mut().filter(|rare| !rare.retained.is_empty()) {
        state.flows[0].rare().retained.append(&mut rare.retained);
    }
    let stored = state.durable && flow.is_stored();
    redirect_subscriptions(state, session, turn, id, stored);
    let mut waiting = Vec::new();
    for (released, outgoing) in flow.outbound.drain() {
        // Released QoS 2 messages have arrived; only their last handshake is lost.
        if !released {
            waiting.push((true, outgoing));
        } else if stored {
            forget(session, turn, id, &outgoing);
        }
    }
    waiting.extend(flow.queue.drain(..).map(|outgoing| (false, outgoing)));
    for (was_in_flight, mut outgoing) in waiting {
        outgoing.send_state = SendState::of_new(state.durable, outgoing.qos);
        outgoing.maybe_sent |= was_in_flight;
        if stored {
            forget(session, turn, id, &outgoing);
        }
        if was_in_flight {
            state.queued.add(outgoing.message.size());
        }
        if stored {
            let progress = if was_in_flight { Progress::Offered } else { Progress::Queued };
            // Not before its publisher's turn, which a crash could still take back.
            let op = enqueue_op(session, FlowId::CONTROL, &outgoing, progress);
            outgoing.stamp = turn.move_after(outgoing.stamp, op);
        }
        state.flows[0].queue.push_back(outgoing);
    }
    if stored {
        turn.op(Op::FlowRemove { session: session.key(), flow: id });
    }
    // In a session's order, whichever flow went first.
    state.flows[0].queue.make_contiguous().sort_by_key(|outgoing| outgoing.position);
    state.announce_more(turn, 0);
    state.unblock(turn);
}

/// A message leaves a flow that is removed. Each goes by itself ([`Op::FlowRemove`]), when storage has it.
fn forget(session: &Session, turn: &mut Turn, flow: FlowId, outgoing: &Outgoing) {
    let (session, position) = (session.key(), outgoing.position);
    turn.op_after(outgoing.stamp, Op::Dequeue { session, flow, position });
}

/// A session ends with messages in its flows. Some may not be stored yet: those stored after the session's removal must
/// be removed one by one.
pub(crate) fn give_up_all(state: &mut SessionState, session: &Session, turn: &mut Turn) {
    for flow in &mut state.flows {
        let stored_as = flow.stored_as();
        for outgoing in flow.give_up(turn) {
            if state.durable && !turn.has_handed_over(outgoing.stamp) {
                forget(session, turn, stored_as, &outgoing);
            }
        }
    }
}

fn redirect_subscriptions(
    state: &mut SessionState,
    session: &Arc<Session>,
    turn: &mut Turn,
    id: FlowId,
    stored: bool,
) {
    let moved: Vec<_> = state
        .subscriptions
        .iter_mut()
        .filter(|(_, subscription)| subscription.flow == id)
        .map(|(filter, subscription)| {
            subscription.flow = FlowId::CONTROL;
            (filter.clone(), *subscription)
        })
        .collect();
    for (filter, subscription) in moved {
        if let Ok(parsed) = Subscription::parse(&filter) {
            let subscriber = crate::subscribe::subscriber(session, &subscription);
            turn.broker.change_tree(|tree| tree.insert(parsed.filter, parsed.share, subscriber));
        }
        if stored {
            state.store_subscription(session, turn, &filter);
        }
    }
}

/// Discards a flow with all it holds (the client asked for a clean one).
fn remove(state: &mut SessionState, session: &Arc<Session>, turn: &mut Turn, id: FlowId) {
    let Some(index) = state.flow_index(id).filter(|index| *index > 0) else { return };
    let mut flow = take(state, index);
    state.count_memory(session);
    let stored_as = flow.stored_as();
    for outgoing in &flow.queue {
        state.queued.remove(outgoing.message.size());
    }
    let filters: Vec<Box<str>> = state
        .subscriptions
        .iter()
        .filter(|(_, subscription)| subscription.flow == id)
        .map(|(filter, _)| filter.clone())
        .collect();
    for filter in filters {
        crate::subscribe::remove(state, session, turn, &filter);
    }
    let stored = flow.is_stored();
    for outgoing in flow.give_up(turn) {
        if state.durable {
            forget(session, turn, stored_as, &outgoing);
        }
    }
    if state.durable && stored {
        turn.op(Op::FlowRemove { session: session.key(), flow: id });
    }
    state.unblock(turn);
}
