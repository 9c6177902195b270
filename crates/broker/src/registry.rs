//! Client identifiers and their sessions: opening, taking over, leaving, ending
//! (MQTT 5.0 sections 3.1.2.4, 3.1.2.11.2 and 4.1).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fulmar_mqtt::topic::Subscription;
use fulmar_mqtt::{ReasonCode, Version};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::access::Subject;
use crate::auth::GUEST_PREFIX;
use crate::broker::Broker;
use crate::flows;
use crate::mailbox::Mail;
use crate::peer::StreamKey;
use crate::session::{Attachment, Session, SessionState};
use crate::shard::Turn;
use crate::storage::{Op, SessionKey, SessionRecord};
use crate::time::Timestamp;
use crate::will::Will;

/// All sessions by client identifier.
#[derive(Debug)]
pub(crate) struct Registry {
    sessions: Mutex<FxHashMap<Box<str>, Arc<Session>>>,
    last_key: AtomicU64,
}

/// What a CONNECT that has been let in asks for.
#[derive(Debug)]
pub(crate) struct OpenRequest<'a> {
    pub(crate) client_id: &'a str,
    pub(crate) clean_start: bool,
    pub(crate) version: Version,
    pub(crate) username: Option<Box<str>>,
    pub(crate) expiry_interval_s: u32,
    pub(crate) max_packet_bytes: u32,
    pub(crate) window: u16,
    pub(crate) will: Option<Arc<Will>>,
    pub(crate) attachment: Attachment,
    /// Whether the connection can have data streams.
    pub(crate) streams: bool,
}

/// A session opened for a connection.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) session: Arc<Session>,
    /// It existed and was resumed.
    pub(crate) present: bool,
    /// The will of a connection that was taken over, to be published now.
    pub(crate) due_will: Option<Arc<Will>>,
}

impl Registry {
    pub(crate) fn new(last_key: u64) -> Registry {
        Registry { sessions: Mutex::default(), last_key: AtomicU64::new(last_key) }
    }

    pub(crate) fn len(&self) -> usize {
        self.sessions.lock().len()
    }

    pub(crate) fn find(&self, client_id: &str) -> Option<Arc<Session>> {
        self.sessions.lock().get(client_id).map(Arc::clone)
    }

    pub(crate) fn insert(&self, session: Arc<Session>) {
        self.sessions.lock().insert(session.client_id().into(), session);
    }

    /// Where all connected sessions are.
    pub(crate) fn attachments(&self) -> Vec<Attachment> {
        let sessions: Vec<_> = self.sessions.lock().values().map(Arc::clone).collect();
        sessions.iter().filter_map(|session| session.lock().attachment).collect()
    }

    /// Where connected sessions of guests are.
    pub(crate) fn guests(&self) -> Vec<Attachment> {
        let sessions: Vec<_> = self.sessions.lock().values().map(Arc::clone).collect();
        let attached = sessions.iter().filter_map(|session| {
            let state = session.lock();
            let name = state.username.as_deref()?;
            state.attachment.filter(|_| name.starts_with(GUEST_PREFIX))
        });
        attached.collect()
    }

    /// Opens the client's session: resumes it, or begins a new one. A connection that has it now is
    /// told to go.
    pub(crate) fn open(
        &self,
        turn: &mut Turn,
        request: OpenRequest<'_>,
    ) -> Result<Opened, ReasonCode> {
        let mut sessions = self.sessions.lock();
        let mut due_will = None;
        let mut replaces = false;
        if let Some(session) = sessions.get(request.client_id) {
            replaces = true;
            let session = Arc::clone(session);
            let mut state = session.lock();
            if let Some(old) = state.attachment.take() {
                turn.metrics().takeovers.add(1);
                turn.tell(old, Mail::TakenOver(old.token));
                flows::detach_all(&mut state, &session, turn);
            }
            // Another user's session is not for this one, whatever name the client took.
            let resumes = !request.clean_start
                && !state.ended
                && state.expiry_interval_s > 0
                && state.expires_at > turn.now
                && state.username == request.username
                && !outgrown(&state, &session, turn);
            let now_due = !resumes || state.will.as_ref().is_some_and(|will| will.delay_s == 0);
            let will = state.will.take();
            due_will = will.filter(|_| now_due);
            if resumes {
                attach(&mut state, &session, turn, request);
                drop(state);
                return Ok(Opened { session, present: true, due_will });
            }
            end(&mut state, &session, turn);
        }
        if !replaces && sessions.len() >= turn.limits().max_sessions {
            return Err(ReasonCode::QuotaExceeded);
        }
        let key = SessionKey(self.last_key.fetch_add(1, Ordering::Relaxed) + 1);
        let session = Session::new(key, request.client_id, turn.limits());
        attach(&mut session.lock(), &session, turn, request);
        sessions.insert(session.client_id().into(), Arc::clone(&session));
        Ok(Opened { session, present: false, due_will })
    }

    /// Forgets a session that has ended, unless another has taken its name.
    pub(crate) fn remove(&self, session: &Session) {
        let mut sessions = self.sessions.lock();
        if sessions.get(session.client_id()).is_some_and(|other| other.key() == session.key()) {
            sessions.remove(session.client_id());
        }
    }
}

/// Whether what waits in a guest's session might be what it may no longer see.
fn outgrown(state: &SessionState, session: &Session, turn: &Turn) -> bool {
    let subject = Subject { username: state.username.as_deref(), client_id: session.client_id() };
    let filters = state.subscriptions.keys().map(|filter| &**filter);
    turn.broker.gate().has_outgrown(subject, filters)
}

fn attach(
    state: &mut SessionState,
    session: &Arc<Session>,
    turn: &mut Turn,
    request: OpenRequest<'_>,
) {
    state.attachment = Some(request.attachment);
    state.version = request.version;
    state.username = request.username;
    state.expiry_interval_s = request.expiry_interval_s;
    state.expires_at = Timestamp::NEVER;
    state.max_packet_bytes = request.max_packet_bytes;
    state.window = request.window.min(turn.limits().max_in_flight);
    state.will = request.will;
    state.will_at = None;
    if !request.streams {
        flows::gather(state, session, turn);
    }
    let window = state.window;
    if let Some(control) = state.flows.first_mut() {
        control.attach(StreamKey::CONTROL, window);
        if control.has_more() {
            control.announce(turn, request.attachment);
        }
    }
    if state.expiry_interval_s > 0 || state.durable {
        state.durable = true;
        turn.op(Op::SessionPut(record(state, session)));
    }
}

/// Storage's form of a session.
pub(crate) fn record(state: &SessionState, session: &Session) -> SessionRecord {
    SessionRecord {
        key: session.key(),
        client_id: session.client_id().into(),
        username: state.username.clone(),
        expiry_interval_s: state.expiry_interval_s,
        expires_at: (state.expires_at != Timestamp::NEVER).then_some(state.expires_at),
        will: state.will.clone(),
        will_at: state.will_at,
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

/// A connection leaves its session, which goes on without it or ends. Returns a will to publish.
pub(crate) fn leave(
    turn: &mut Turn,
    session: &Arc<Session>,
    at: Attachment,
    departure: Departure,
) -> Option<Arc<Will>> {
    let mut state = session.lock();
    if !state.is_attached(at) {
        return None;
    }
    state.attachment = None;
    if let Some(seconds) = departure.expiry_interval_s {
        state.expiry_interval_s = seconds.min(turn.limits().max_session_expiry_s);
    }
    if departure.discard_will {
        state.will = None;
    }
    if state.expiry_interval_s == 0 {
        let will = state.will.take();
        end(&mut state, session, turn);
        drop(state);
        turn.broker.registry().remove(session);
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
        _ => state.will.take(),
    };
    if state.durable {
        // In the batch of the will's publication, so that it is published once.
        turn.op(Op::SessionPut(record(&state, session)));
    }
    crate::chores::look_after(&turn.broker, session, &mut state);
    will
}

/// Ends a session: its subscriptions, queues and records go. The caller removes it from the
/// registry once it has let go of the session's lock.
pub(crate) fn end(state: &mut SessionState, session: &Session, turn: &mut Turn) {
    if state.ended {
        return;
    }
    state.ended = true;
    unsubscribe_all(state, session, &turn.broker);
    if state.durable {
        turn.op(Op::SessionRemove(session.key()));
    }
    state.flows.clear();
    state.queued_messages = 0;
    state.queued_bytes = 0;
}

fn unsubscribe_all(state: &mut SessionState, session: &Session, broker: &Broker) {
    if state.subscriptions.is_empty() {
        return;
    }
    let subscriptions = std::mem::take(&mut state.subscriptions);
    broker.change_tree(|tree| {
        for filter in subscriptions.keys() {
            if let Ok(parsed) = Subscription::parse(filter) {
                tree.remove(parsed.filter, parsed.share, session);
            }
        }
    });
}
