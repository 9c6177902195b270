//! All sessions, by client identifier.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fulmar_auth::User;
use parking_lot::{Mutex, MutexGuard};

use crate::mailbox::Attachment;
use crate::session::Session;
use crate::storage::SessionKey;
use crate::will::Will;

/// In the order of their identifiers, so that lists have pages.
pub(crate) type Sessions = BTreeMap<Box<str>, Arc<Session>>;

/// All sessions by client identifier.
#[derive(Debug)]
pub(crate) struct Registry {
    sessions: Mutex<Sessions>,
    last_key: AtomicU64,
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

    /// At most `most`, from the one behind `after` on.
    pub(crate) fn after(&self, after: &str, most: usize) -> Vec<Arc<Session>> {
        let sessions = self.sessions.lock();
        let range = sessions.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
        range.take(most).map(|(_, session)| Arc::clone(session)).collect()
    }

    /// Whether storage knows the client's session.
    pub(crate) fn is_durable(&self, client_id: &str) -> bool {
        self.find(client_id).is_some_and(|session| session.lock().durable)
    }

    pub(crate) fn insert(&self, session: Arc<Session>) {
        self.sessions.lock().insert(session.client_id().into(), session);
    }

    fn sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.lock().values().map(Arc::clone).collect()
    }

    /// Where all connected sessions are.
    pub(crate) fn attachments(&self) -> Vec<Attachment> {
        self.sessions().iter().filter_map(|session| session.lock().attachment).collect()
    }

    /// Whether there are sessions of users whom this concerns, and where those are connected that are to be rechecked. One
    /// that waits for that already is left out, so that a mailbox has at most one such event of each.
    pub(crate) fn to_recheck(
        &self,
        concerns: impl Fn(Option<&User>) -> bool,
    ) -> (bool, Vec<Attachment>) {
        let (mut any, mut attached) = (false, Vec::new());
        for session in self.sessions() {
            let mut state = session.lock();
            if concerns(state.user.as_ref()) {
                any = true;
                if let Some(at) = state.attachment
                    && !std::mem::replace(&mut state.awaits_recheck, true)
                {
                    attached.push(at);
                }
            }
        }
        (any, attached)
    }

    /// The identifiers of clients whose sessions are of these users.
    pub(crate) fn clients_of(&self, concerns: impl Fn(Option<&User>) -> bool) -> Vec<Box<str>> {
        let sessions = self.sessions();
        let theirs = sessions.iter().filter(|session| concerns(session.lock().user.as_ref()));
        theirs.map(|session| session.client_id().into()).collect()
    }

    /// The will of the client's session, which may be due when that is opened.
    pub(crate) fn will_of(&self, client_id: &str) -> Option<Arc<Will>> {
        self.find(client_id)?.lock().will.clone()
    }

    /// Locks it, for changes that nobody else may make meanwhile.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock()
    }

    /// The key of a new session.
    pub(crate) fn next_key(&self) -> SessionKey {
        SessionKey(self.last_key.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Forgets a session that has ended, unless another has taken its name.
    pub(crate) fn remove(&self, session: &Session) {
        let mut sessions = self.sessions.lock();
        if sessions.get(session.client_id()).is_some_and(|other| other.key() == session.key()) {
            sessions.remove(session.client_id());
        }
    }
}
