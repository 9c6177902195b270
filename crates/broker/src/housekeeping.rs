//! Housekeeping: sessions and flows that expire, wills that are due, `$SYS`.
//!
//! The first worker does it. Each session has at most one entry in the heap, for its earliest deadline; the session is
//! then examined as a whole. A client that connects and disconnects a thousand times therefore costs one entry, not a
//! thousand.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fulmar_auth::access::Subject;
use fulmar_auth::{Timestamp, text_of};

use crate::bans::BannedSubject;
use crate::broker::Broker;
use crate::deadlines::Due;
use crate::event::BrokerEvent;
use crate::fan_out::{VISITS_PER_TURN, WILLS};
use crate::flows;
use crate::memory::MemoryOwner;
use crate::message::MessageParts;
use crate::session::{Session, SessionState};
use crate::shard::Shard;
use crate::storage::Op;
use crate::will::{Testator, Will};

/// Expired retained messages removed per turn.
const SWEEP: usize = 1000;

/// Time between two removals of expired retained messages. New ones do not wait for the next: they take the room of those
/// that have expired ([`Turn::retain`]).
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// What examining a session costs, in visits: 1000 of them are a turn's budget, and fewer if their wills have receivers.
const SESSION_VISITS: usize = VISITS_PER_TURN.div_ceil(1000);

/// When a will is examined again that an internal session would get which is behind, and how many of them are examined at
/// once: while that lasts, they cost a limited part of the worker's time. They stay with their sessions, and count there.
/// A turn examines twice this number, so that a few other sessions between them do not bring the next turn at once. While
/// storage is behind, all sessions wait as long.
const DELAY: Duration = Duration::from_millis(100);
const DELAYED_AT_ONCE: usize = 500;

/// Does what is due.
pub(crate) fn run(shard: &mut Shard) {
    let now = shard.turn.now;
    let broker = Arc::clone(&shard.turn.broker);
    if broker.next_housekeeping() > now {
        return;
    }
    // From here on, a session with an earlier deadline than those found below moves it forward again.
    broker.set_next_housekeeping(Timestamp::NEVER);
    let (mut not_yet, mut delayed, mut spent) = (Vec::new(), 0, 0);
    while delayed < DELAYED_AT_ONCE
        && spent < VISITS_PER_TURN
        && !shard.turn.waits_for_storage()
        && let Some(session) = next_due(&broker, now)
    {
        match examine(shard, &session, &mut spent) {
            Examined::Done => {}
            Examined::NotYet(at) => {
                delayed += usize::from(at > now);
                not_yet.push(Reverse(Due { at, session }));
            }
            Examined::GivesWay => {
                shard.wills.push_back(session);
                shard.turn.fan_out.wait(WILLS);
            }
        }
    }
    broker.deadlines.lock().sessions.extend(not_yet);
    sweep_retained(shard, &broker);
    publish_sys(shard, &broker);
    let deadlines = broker.deadlines.lock();
    let mut next = deadlines.next_sweep;
    if broker.sys_interval_s > 0 {
        next = next.min(deadlines.next_sys);
    }
    if let Some(Reverse(due)) = deadlines.sessions.peek() {
        let waits = delayed >= DELAYED_AT_ONCE || shard.turn.waits_for_storage();
        let soonest = if waits { now + DELAY } else { now };
        next = next.min(due.at.max(soonest));
    }
    drop(deadlines);
    broker.housekeeping_due(next);
}

fn next_due(broker: &Broker, now: Timestamp) -> Option<Arc<Session>> {
    let mut deadlines = broker.deadlines.lock();
    deadlines.sessions.peek().filter(|due| due.0.at <= now)?;
    deadlines.sessions.pop().map(|Reverse(due)| due.session)
}

/// Continues with the wills that had to wait, when their turn has come.
pub(crate) fn go_on(shard: &mut Shard) {
    let mut spent = 0;
    while let Some(session) = shard.wills.pop_front() {
        if spent >= VISITS_PER_TURN {
            shard.wills.push_front(session);
            return shard.turn.fan_out.wait(WILLS);
        }
        match examine(shard, &session, &mut spent) {
            Examined::Done => {}
            Examined::NotYet(at) => {
                let broker = &shard.turn.broker;
                broker.deadlines.lock().sessions.push(Reverse(Due { at, session }));
                broker.housekeeping_due(at);
            }
            Examined::GivesWay => {
                shard.wills.push_front(session);
                return shard.turn.fan_out.wait(WILLS);
            }
        }
    }
    // Frees the memory after many sessions have gone.
    shard.wills = VecDeque::new();
}

/// The outcome of examining a session.
enum Examined {
    Done,
    /// To be examined again at this time: another worker's operations for the session have to reach storage first, or
    /// an internal session is behind.
    NotYet(Timestamp),
    /// Its will has many receivers and waits. Until it is published, it stays with its session, also in storage.
    GivesWay,
}

/// The session's will, if it is to be published now.
fn due_will(state: &SessionState, now: Timestamp) -> Option<&Arc<Will>> {
    let due = state.expires_at <= now || state.will_at.is_some_and(|at| at <= now);
    state.will.as_ref().filter(|_| due && state.attachment.is_none())
}

/// Examines a session, and adds what that costs to `spent`, in visits.
fn examine(shard: &mut Shard, session: &Arc<Session>, spent: &mut usize) -> Examined {
    *spent += SESSION_VISITS;
    // Not with the session locked: finding the will's receivers locks their sessions.
    let due = due_will(&session.lock(), shard.turn.now).cloned();
    if let Some(will) = due {
        if shard.will_is_delayed(&will) {
            let at = shard.turn.now + DELAY;
            session.lock().housekeeping_at = Some(at);
            return Examined::NotYet(at);
        }
        if shard.will_waits(&will) {
            session.lock().housekeeping_at = Some(shard.turn.now);
            return Examined::GivesWay;
        }
    }
    let turn = &mut shard.turn;
    let mut state = session.lock();
    if let Some(at) = state.attachment {
        // Operations that its own worker stores meanwhile could reach storage before those stored here.
        state.housekeeping_at = None;
        turn.notify(at, BrokerEvent::Expired);
        return Examined::Done;
    }
    if state.durable && !turn.has_handed_over(state.last_turn) {
        state.housekeeping_at = Some(turn.now);
        return Examined::NotYet(turn.now);
    }
    state.last_turn = turn.awaitable_stamp();
    state.housekeeping_at = None;
    let (mut will, owner) = (None, state.memory_owner());
    let over = state.expires_at <= turn.now;
    if over || state.will_at.is_some_and(|at| at <= turn.now) {
        state.will_at = None;
        will = state.will.take();
    }
    if over {
        crate::lifecycle::end(&mut state, session, turn);
        *spent = spent.saturating_add(turn.jobs.len());
    } else {
        if will.is_some() && state.durable {
            // In the same batch as its publication, so that it is published once.
            turn.op(Op::SessionPut(crate::lifecycle::record(&state, session)));
        }
        flows::expire(&mut state, session, turn);
        turn.broker.schedule(session, &mut state);
    }
    drop(state);
    if over {
        turn.broker.registry.remove(session);
    }
    if let Some(will) = will {
        *spent = spent.saturating_add(shard.cost_of_will(&will));
        publish_will(shard, (session, owner), &will);
    }
    Examined::Done
}

/// Publishes a will as its session (section 3.1.2.5), and for the owner of the session's memory, which it may have given
/// back by now; or drops it, if its client may not publish it any more.
pub(crate) fn publish_will(
    shard: &mut Shard,
    (session, owner): (&Session, Option<Arc<MemoryOwner>>),
    will: &Will,
) {
    let now = shard.turn.now;
    let client = session.client_id();
    if let Some(why) = refusal(&shard.turn.broker, client, will, shard.wall()) {
        shard.turn.metrics().wills_refused.add(1);
        tracing::info!(
            client,
            user = text_of(will.testator.user.as_ref()),
            topic = &*will.topic,
            "will not published: {why}"
        );
        return;
    }
    shard.turn.retainer = owner.filter(|_| will.retain);
    shard.turn.metrics().wills_published.add(1);
    shard.publish(MessageParts {
        topic: &will.topic,
        properties: &will.properties,
        payload: &will.payload,
        qos: will.qos,
        retain: will.retain,
        expires_at: will.message_expiry_s.map(|seconds| now.plus_secs(seconds)),
        publisher: session.publisher(),
    });
}

/// Why the will of this client may not be published at `wall`, what the system's clock shows; `None` if it may.
fn refusal(broker: &Broker, client_id: &str, will: &Will, wall: Timestamp) -> Option<&'static str> {
    let Testator { user, address, until, credential, certificate, by_login } = &will.testator;
    let (access_control, user) = (broker.access_control(), user.as_ref());
    let subject = Subject { user, client_id };
    let banned = BannedSubject { client_id, user, address: *address };
    if *until <= wall {
        Some("its client's token or certificate has expired")
    } else if certificate.is_some_and(|number| broker.revoked_certificates().contains(&number)) {
        Some("its client's certificate is revoked")
    } else if credential.as_ref().is_some_and(|credential| !access_control.is_good(credential)) {
        Some("its client's credential is no longer valid")
    } else if access_control.refuses(subject) {
        Some("its user is disabled, removed, or may not use its client identifier")
    } else if broker.bans.covers(&banned, wall) {
        Some("its client is banned")
    } else if !access_control.may_leave(subject, &will.topic, *by_login) {
        Some("its user may not publish to its topic")
    } else {
        None
    }
}

fn sweep_retained(shard: &mut Shard, broker: &Arc<Broker>) {
    let now = shard.turn.now;
    if broker.deadlines.lock().next_sweep > now {
        return;
    }
    let removed = {
        let mut retained = broker.retained.write();
        let expired = std::iter::from_fn(|| retained.remove_expired(now)).take(SWEEP);
        expired.map(|topic| shard.turn.store_retained(&topic)).count()
    };
    let wait = match removed {
        // There may be more.
        SWEEP if shard.turn.waits_for_storage() => DELAY,
        SWEEP => Duration::ZERO,
        _ => SWEEP_INTERVAL,
    };
    broker.deadlines.lock().next_sweep = now + wait;
    if removed == SWEEP {
        return;
    }
    broker.memory.sweep();
    shard.routes.forget_stale(broker);
}

fn publish_sys(shard: &mut Shard, broker: &Arc<Broker>) {
    let now = shard.turn.now;
    {
        let mut deadlines = broker.deadlines.lock();
        if broker.sys_interval_s == 0 || deadlines.next_sys > now {
            return;
        }
        deadlines.next_sys = now.plus_secs(broker.sys_interval_s);
    }
    for (topic, payload) in crate::sys::values(broker, now) {
        let (topic, payload) = (&*topic, payload.as_bytes());
        shard.publish(MessageParts { topic, payload, retain: true, ..MessageParts::default() });
    }
    crate::client_list::publish(shard, broker);
}
