//! Client identifiers and their sessions: opening, taking over, leaving, ending
//! (MQTT 5.0 sections 3.1.2.4, 3.1.2.11.2 and 4.1).

use std::net::IpAddr;
use std::sync::Arc;

use fulmar_auth::access::Subject;
use fulmar_auth::{SessionOwner, Timestamp, User};
use fulmar_mqtt::Version;
use fulmar_mqtt::topic::Subscription;

use crate::aliases::MAX_ALIASES;
use crate::broker::Broker;
use crate::event::BrokerEvent;
use crate::flows;
use crate::mailbox::Attachment;
use crate::memory::Account;
use crate::owner::{Claim, Owner, claim, claim_of_anyone};
use crate::peer::StreamKey;
use crate::session::{Session, SessionState};
use crate::session_memory;
use crate::storage::{Op, SessionRecord};
use crate::turn::Turn;
use crate::will::{Testator, Will};

/// What a CONNECT that has been let in asks for.
#[derive(Debug)]
pub(crate) struct OpenRequest<'a> {
    pub(crate) client_id: &'a str,
    pub(crate) clean_start: bool,
    pub(crate) version: Version,
    pub(crate) user: Option<User>,
    /// See [`fulmar_text::network::site`].
    pub(crate) site: IpAddr,
    /// It came over MQTT-SN.
    pub(crate) mqtt_sn: bool,
    pub(crate) expiry_interval_s: u32,
    pub(crate) max_packet_bytes: u32,
    pub(crate) topic_alias_maximum: u16,
    pub(crate) window: u16,
    pub(crate) will: Option<Arc<Will>>,
    pub(crate) attachment: Attachment,
    /// Whether the connection can have data streams.
    pub(crate) streams: bool,
    /// It had to wait for another worker.
    pub(crate) again: bool,
}

impl OpenRequest<'_> {
    fn owner(&self) -> Owner<'_> {
        Owner { user: self.user.as_ref(), mqtt_sn: Some(self.mqtt_sn) }
    }
}

/// Why no session was opened.
#[derive(Debug)]
pub(crate) enum NotOpened {
    /// The client identifier is in use by another owner: this user, or anonymous clients.
    Foreign(Option<User>),
    /// There are as many sessions as there may be.
    Full,
    /// The client's user, or its address, has its share of the memory.
    NoMemory,
    /// Another worker has stored something for the session in a turn that has not ended. An operation stored here would
    /// reach storage before that, and be overwritten by it. True if the session's present connection gets closed.
    NotYet(bool),
    /// Another connection has asked for the session while this one waited.
    Superseded,
}

/// A session opened for a connection.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) session: Arc<Session>,
    /// It existed and was resumed.
    pub(crate) present: bool,
    /// The will of a connection that was taken over, to be published now.
    pub(crate) due_will: Option<Arc<Will>>,
    /// Another connection had it until now.
    pub(crate) taken_over: bool,
}

/// Opens the client's session: resumes it, or begins a new one. The session's present connection gets closed. A
/// session of another owner is not touched.
pub(crate) fn open(
    turn: &mut Turn,
    request: OpenRequest<'_>,
    ownership: SessionOwner,
) -> Result<Opened, NotOpened> {
    let broker = Arc::clone(&turn.broker);
    let mut sessions = broker.registry.lock();
    let mut due_will = None;
    let (mut replaces, mut taken_over) = (false, false);
    if let Some(session) = sessions.get(request.client_id) {
        replaces = true;
        let session = Arc::clone(session);
        let mut state = session.lock();
        let owner = Owner { user: state.user.as_ref(), mqtt_sn: state.mqtt_sn };
        let claim = match ownership {
            SessionOwner::User => claim(owner, request.owner()),
            SessionOwner::None => claim_of_anyone(owner, request.owner()),
        };
        let over = state.ended || state.expires_at <= turn.now;
        if claim == Claim::Refused && !over {
            return Err(NotOpened::Foreign(state.user.clone()));
        }
        let before = state.awaited_by.take();
        if request.again && before != Some(request.attachment) {
            state.awaited_by = before;
            return Err(NotOpened::Superseded);
        }
        let waits = state.durable && !turn.has_handed_over(state.last_turn);
        if let Some(old) = state.attachment {
            turn.metrics().takeovers.add(u64::from(!request.again));
            if waits {
                // It goes of its own accord, so that the wait is short.
                turn.notify(old, BrokerEvent::TakenOver);
            }
        }
        if waits {
            state.awaited_by = Some(request.attachment);
            return Err(NotOpened::NotYet(state.attachment.is_some()));
        }
        if !may_have_will(&state, turn, &request) {
            return Err(NotOpened::NoMemory);
        }
        if let Some(old) = state.attachment.take() {
            taken_over = true;
            turn.notify(old, BrokerEvent::TakenOver);
            flows::detach_all(&mut state, &session, turn);
        }
        let resumes = !request.clean_start
            && !state.ended
            && state.expiry_interval_s > 0
            && state.expires_at > turn.now
            && claim == Claim::Resumes
            && !outgrown(&state, &session, turn);
        // A will that has given way was due before its client reconnected.
        let gave_way = state.will_at.is_some_and(|at| at <= turn.now);
        let no_delay = state.will.as_ref().is_some_and(|will| will.delay_s == 0);
        let now_due = !resumes || gave_way || no_delay;
        let will = state.will.take();
        due_will = will.filter(|_| now_due);
        if resumes {
            attach(&mut state, &session, turn, request);
            drop(state);
            return Ok(Opened { session, present: true, due_will, taken_over });
        }
        end(&mut state, &session, turn);
    }
    if !replaces && sessions.len() >= turn.limits().max_sessions {
        return Err(NotOpened::Full);
    }
    if !replaces {
        let owner = broker.memory.owner(request.user.as_ref(), request.site);
        let bytes = session_memory::of_session(request.client_id, request.will.as_deref());
        if !owner.has_room(Account::Sessions, bytes) {
            return Err(NotOpened::NoMemory);
        }
    }
    let key = broker.registry.next_key();
    let session = Session::new(key, request.client_id, turn.limits());
    attach(&mut session.lock(), &session, turn, request);
    sessions.insert(session.client_id().into(), Arc::clone(&session));
    Ok(Opened { session, present: false, due_will, taken_over })
}

/// Wills of this size or less need no memory of their own: a session takes about as much.
const MAX_FREE_WILL_BYTES: usize = 1024;

/// Whether there is memory for the will with which a session is resumed or replaced, if that is longer than the one before.
/// Short wills always have it: sessions that exist are resumed.
fn may_have_will(state: &SessionState, turn: &Turn, request: &OpenRequest<'_>) -> bool {
    let bytes = |will: &Option<Arc<Will>>| will.as_ref().map_or(0, |will| will.bytes());
    let (before, now) = (bytes(&state.will), bytes(&request.will));
    let owner = || turn.broker.memory.owner(request.user.as_ref(), request.site);
    now <= before.max(MAX_FREE_WILL_BYTES) || owner().has_room(Account::Sessions, now - before)
}

/// Whether an external user's session may have queued messages that the user may no longer receive.
fn outgrown(state: &SessionState, session: &Session, turn: &Turn) -> bool {
    let subject = Subject { user: state.user.as_ref(), client_id: session.client_id() };
    let filters = state.subscriptions.keys().map(|filter| &**filter);
    turn.broker.access_control().has_outgrown(subject, filters)
}

fn attach(
    state: &mut SessionState,
    session: &Arc<Session>,
    turn: &mut Turn,
    request: OpenRequest<'_>,
) {
    state.attachment = Some(request.attachment);
    // It was for the connection before.
    state.awaits_recheck = false;
    state.last_turn = turn.awaitable_stamp();
    state.version = request.version;
    state.user = request.user;
    watch(&turn.broker, session, state);
    state.mqtt_sn = Some(request.mqtt_sn);
    let (quota_use, user) = (&mut state.quota_use, state.user.as_ref());
    turn.broker.quota.belongs_to(quota_use, user, request.site);
    state.expiry_interval_s = request.expiry_interval_s;
    state.expires_at = Timestamp::NEVER;
    state.max_packet_bytes = request.max_packet_bytes;
    let aliases = turn.limits().topic_alias_maximum.min(MAX_ALIASES);
    state.topic_aliases = request.topic_alias_maximum.min(aliases);
    state.window = request.window.min(turn.limits().max_in_flight);
    state.will = request.will;
    state.will_at = None;
    state.set_memory_owner(&turn.broker, session, request.site);
    if !request.streams {
        flows::gather(state, session, turn);
    }
    let window = state.window;
    if !state.flows.is_empty() {
        state.restore_order(session, turn, 0);
    }
    if let Some(control) = state.flows.first_mut() {
        control.attach(StreamKey::CONTROL, window);
        state.announce_more(turn, 0);
    }
    state.count_memory(session);
    turn.broker.schedule(session, state);
    if state.expiry_interval_s > 0 || state.durable {
        state.durable = true;
        turn.op(Op::SessionPut(record(state, session)));
    }
}

/// A session's user is known: its queue delays clients from now on if it is an internal session.
pub(crate) fn watch(broker: &Broker, session: &Session, state: &mut SessionState) {
    if state.queued.is_internal() {
        return;
    }
    let client = Subject { user: state.user.as_ref(), client_id: session.client_id() };
    let mark = broker.back_pressure.mark(client, session.key(), broker.limits());
    if let Some(mark) = mark {
        state.queued.set_mark(mark);
    }
}

/// Storage's form of a session.
pub(crate) fn record(state: &SessionState, session: &Session) -> SessionRecord {
    SessionRecord {
        key: session.key(),
        client_id: session.client_id().into(),
        username: state.user.as_ref().map(|user| user.text().into()),
        mqtt_sn: state.mqtt_sn,
        expiry_interval_s: state.expiry_interval_s,
        expires_at: (state.expires_at != Timestamp::NEVER).then_some(state.expires_at),
        will: state.will.clone(),
        will_at: state.will_at,
    }
}

/// The client has shown another credential, by which its will is judged from now on.
pub(crate) fn renew_will(
    turn: &mut Turn,
    session: &Arc<Session>,
    at: Attachment,
    change: impl FnOnce(&mut Testator),
) {
    let mut state = session.lock();
    let Some(will) = state.will.clone().filter(|_| state.is_attached(at)) else { return };
    let mut testator = will.testator.clone();
    change(&mut testator);
    if testator == will.testator {
        return;
    }
    state.will = Some(Arc::new(Will { testator, ..Will::clone(&will) }));
    state.count_memory(session);
    if state.durable {
        state.last_turn = turn.awaitable_stamp();
        turn.op(Op::SessionPut(record(&state, session)));
    }
}

/// How a client went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Departure {
    /// The will is not to be published: the client said goodbye.
    pub(crate) discard_will: bool,
    /// A session expiry interval given at the end (MQTT 5.0 section 3.14.2.2.2).
    pub(crate) expiry_interval_s: Option<u32>,
}

/// A connection leaves its session, which goes on without it or ends. Returns a will to publish. One that
/// `gives_way` stays with its session, which then lives until housekeeping has published it.
pub(crate) fn leave(
    turn: &mut Turn,
    session: &Arc<Session>,
    at: Attachment,
    departure: Departure,
    gives_way: bool,
) -> Option<Arc<Will>> {
    let mut state = session.lock();
    if !state.is_attached(at) {
        return None;
    }
    state.attachment = None;
    state.last_turn = turn.awaitable_stamp();
    if let Some(seconds) = departure.expiry_interval_s {
        state.expiry_interval_s = seconds.min(turn.limits().max_session_expiry_s);
    }
    if departure.discard_will {
        state.will = None;
    }
    let gives_way = gives_way && state.will.is_some();
    if state.expiry_interval_s == 0 && gives_way {
        turn.broker.quota.end(&mut state.quota_use);
        unsubscribe_all(&mut state, session, &turn.broker);
    } else if state.expiry_interval_s == 0 {
        let will = state.will.take();
        end(&mut state, session, turn);
        drop(state);
        turn.broker.registry.remove(session);
        return will;
    }
    flows::detach_all(&mut state, session, turn);
    if state.expiry_interval_s != u32::MAX {
        state.expires_at = turn.now.plus_secs(state.expiry_interval_s);
    }
    let will = match &state.will {
        Some(will) if will.delay_s > 0 => {
            state.will_at = Some(turn.now.plus_secs(will.delay_s));
            None
        }
        Some(_) if gives_way => {
            state.will_at = Some(turn.now);
            None
        }
        _ => state.will.take(),
    };
    if state.durable {
        // In the batch of the will's publication, so that it is published once.
        turn.op(Op::SessionPut(record(&state, session)));
    }
    turn.broker.schedule(session, &mut state);
    will
}

/// Ends a session: its subscriptions, queues and records go. The caller removes it from the
/// registry once it has let go of the session's lock.
pub(crate) fn end(state: &mut SessionState, session: &Session, turn: &mut Turn) {
    if state.ended {
        return;
    }
    state.ended = true;
    turn.broker.quota.end(&mut state.quota_use);
    unsubscribe_all(state, session, &turn.broker);
    // First what is kept back of it, some of which may go now and must not come behind the removal.
    flows::give_up_all(state, session, turn);
    if state.durable {
        turn.op(Op::SessionRemove(session.key()));
    }
    state.flows.clear();
    state.queued.clear();
    state.memory = None;
}

fn unsubscribe_all(state: &mut SessionState, session: &Session, broker: &Broker) {
    if state.subscriptions.is_empty() {
        return;
    }
    let subscriptions = std::mem::take(&mut state.subscriptions);
    state.subscription_bytes = 0;
    state.count_memory(session);
    broker.change_tree(|tree| {
        for filter in subscriptions.keys() {
            if let Ok(parsed) = Subscription::parse(filter) {
                tree.remove(parsed.filter, parsed.share, session);
            }
        }
    });
}
