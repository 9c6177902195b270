//! The identity store of a running server: it fills the broker's table, makes changes effective for connected clients,
//! and answers requests to `$CONTROL/dynamic-security/v1`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};

use anyhow::Context as _;
use fulmar_broker::auth::{AccessControl, HashReplacements, IdentityTable};
use fulmar_broker::control::{Control, ControlRequest};
use fulmar_broker::{Broker, LogLimiter};
use fulmar_identity::{
    Affected, Asker, Change, ChangeLog, Command, Compiler, Desk, FILE, Identities, PasswordHash,
    State, control,
};
use fulmar_mirror::Shared;
use fulmar_transport::Clock;
use parking_lot::Mutex;

use super::secrets;
use fulmar_config::Auth;

/// The store, and its part of the broker.
#[derive(Debug)]
pub(super) struct Running {
    identities: Arc<Identities>,
    table: Arc<IdentityTable>,
    /// Set once there is one. It has the store for requests, so the store does not have it.
    broker: Arc<OnceLock<Weak<Broker>>>,
}

impl Running {
    /// Opens the store, if there is one; the first command creates it. At a node of a cluster, it begins with what is
    /// shared.
    pub(super) fn open(data: &Path, shared: Option<Shared>) -> anyhow::Result<Running> {
        let table = Arc::<IdentityTable>::default();
        let broker = Arc::<OnceLock<Weak<Broker>>>::default();
        let compiler = Arc::<OnceLock<Mutex<Compiler>>>::default();
        let (filling, live) = (Arc::clone(&compiler), Arc::clone(&broker));
        let watch = move |change: &Change, affected: &Affected, state: &State| {
            let Some(compiler) = filling.get() else { return };
            compiler.lock().follow(change, affected, state);
            let broker = live.get().and_then(Weak::upgrade);
            if let Some(broker) = broker.filter(|_| !affected.is_nobody()) {
                let concerned = |name: &str| affected.everybody || affected.users.contains(name);
                broker.identities_changed(|name| name.map_or(affected.everybody, concerned));
            }
        };
        let (file, watch) = (data.join(FILE), Box::new(watch));
        let identities = match shared {
            Some(shared) => Identities::open_shared(&file, shared, watch),
            None => Identities::open(&file, watch),
        };
        let identities = identities.context("identities")?;
        identities.read(|state| {
            let filled = Compiler::new(Arc::clone(&table), state);
            drop(compiler.set(Mutex::new(filled)));
        });
        let identities = Arc::new(identities);
        table.replace_outdated(Arc::new(Replacements(Arc::downgrade(&identities))));
        Ok(Running { identities, table, broker })
    }

    /// Adds the store's clients to those that may log in; also with SCRAM, if that is offered.
    pub(super) fn add_to(
        &self,
        access_control: &mut AccessControl,
        auth: &Auth,
        data: &Path,
    ) -> anyhow::Result<()> {
        access_control.scram = secrets::scram_decoys(auth, data)?;
        self.identities.hasher().set_scram_iterations(auth.verifier_iterations());
        access_control.logins.add_identities(&self.table);
        access_control.identities = Some(Arc::clone(&self.table));
        Ok(())
    }

    /// The store, for other parts of the server.
    pub(super) fn get(&self) -> &Arc<Identities> {
        &self.identities
    }

    /// Begins to answer requests, and to make changes effective.
    pub(super) fn go_live(&self, broker: &Arc<Broker>, log: Arc<dyn ChangeLog>) {
        drop(self.broker.set(Arc::downgrade(broker)));
        broker.set_control(Arc::new(Requests::new(Arc::clone(&self.identities), log)));
    }
}

/// Replaces mosquitto's hashes in the store.
struct Replacements(Weak<Identities>);

fulmar_text::opaque_debug!(Replacements);

impl HashReplacements for Replacements {
    fn find(&self, _: &str, _: &str) -> Option<String> {
        None
    }

    /// Does not wait: if too many changes do already, the next login tries again.
    fn replace_hash(&self, user: &str, outdated: &str, argon2: &str) {
        let Some(identities) = self.0.upgrade() else { return };
        let hashes = (PasswordHash::parse(outdated), PasswordHash::parse(argon2));
        let (Ok(outdated), Ok(hash)) = hashes else { return };
        let username: Box<str> = user.into();
        let replace = move |desk: &mut Desk| {
            let command = Command::ReplaceHash { username: username.clone(), outdated, hash };
            match desk.apply(vec![command]) {
                Ok(()) => tracing::info!(
                    user = &*username,
                    "mosquitto's password hash replaced by argon2"
                ),
                Err(error) => {
                    tracing::warn!(user = &*username, "cannot keep the argon2 hash: {error}");
                }
            }
        };
        drop(identities.submit(Box::new(replace)));
    }
}

/// Requests of one user that wait or are being carried out, and bytes of all: further ones are answered with an error.
/// `mosquitto_ctrl` has one at a time. The store's thread has other work, too.
const MAX_REQUESTS_PER_USER: usize = 8;
const MAX_REQUEST_BYTES: usize = 8 << 20;

/// Passes requests to the store's thread.
struct Requests {
    identities: Arc<Identities>,
    log: Arc<dyn ChangeLog>,
    waiting: Arc<Mutex<Waiting>>,
}

fulmar_text::opaque_debug!(Requests);

#[derive(Debug, Default)]
struct Waiting {
    by_user: HashMap<Box<str>, usize>,
    bytes: usize,
    log: LogLimiter,
}

/// One of the requests that wait, until this is dropped.
struct WaitingRequest {
    waiting: Arc<Mutex<Waiting>>,
    user: Box<str>,
    bytes: usize,
}

impl Requests {
    fn new(identities: Arc<Identities>, log: Arc<dyn ChangeLog>) -> Requests {
        Requests { identities, log, waiting: Arc::default() }
    }

    /// `None` if there is no room.
    fn place(&self, user: &str, bytes: usize) -> Option<WaitingRequest> {
        let mut waiting = self.waiting.lock();
        let own = waiting.by_user.get(user).copied().unwrap_or(0);
        // One of any size, or a client with a long one would never have its turn.
        let fits = waiting.bytes == 0 || waiting.bytes + bytes <= MAX_REQUEST_BYTES;
        if own >= MAX_REQUESTS_PER_USER || !fits {
            return None;
        }
        waiting.by_user.insert(user.into(), own + 1);
        waiting.bytes += bytes;
        Some(WaitingRequest { waiting: Arc::clone(&self.waiting), user: user.into(), bytes })
    }

    fn log_refused(&self, client_id: &str) {
        if let Some(times) = self.waiting.lock().log.occurred(Clock::wall()) {
            tracing::warn!(
                client = client_id,
                times,
                "a request to change identities was refused: too many wait"
            );
        }
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        let mut waiting = self.waiting.lock();
        waiting.bytes -= self.bytes;
        if let Some(own) = waiting.by_user.get_mut(&self.user) {
            *own -= 1;
            if *own == 0 {
                waiting.by_user.remove(&self.user);
            }
        }
    }
}

impl Control for Requests {
    fn request(&self, request: ControlRequest<'_>) {
        let ControlRequest { payload, client_id, username, from, reply_to } = request;
        let place = self.place(username.unwrap_or(client_id), payload.len());
        let Some(place) = place else {
            self.log_refused(client_id);
            return reply_to.send(control::busy().into_bytes().into());
        };
        let username = username.map(Into::into);
        let asker = Asker { client_id: client_id.into(), username, from };
        let log = Arc::clone(&self.log);
        let payload: Box<[u8]> = payload.into();
        let reply_to = Arc::new(Mutex::new(Some(reply_to)));
        let answered = Arc::clone(&reply_to);
        let answer = move |text: String| {
            if let Some(reply_to) = answered.lock().take() {
                reply_to.send(text.into_bytes().into());
            }
        };
        let refused = answer.clone();
        let job = move |desk: &mut _| {
            let text = control::respond(desk, &asker, &*log, &payload);
            drop(place);
            answer(text);
        };
        if self.identities.submit(Box::new(job)).is_err() {
            self.log_refused(client_id);
            refused(control::busy());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_wait_are_bounded_per_user_and_by_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let identities = Identities::open(&folder.path().join(FILE), Box::new(|_, _, _| ()));
        let requests = Requests::new(Arc::new(identities.unwrap()), Arc::new(()));
        let mut of_ann: Vec<_> = (0..100).map_while(|_| requests.place("ann", 10)).collect();
        assert_eq!(of_ann.len(), MAX_REQUESTS_PER_USER);
        let of_bob = requests.place("bob", MAX_REQUEST_BYTES - 80);
        assert!(of_bob.is_some() && requests.place("eve", 1).is_none(), "bytes of all users");
        drop(of_bob);
        of_ann.pop();
        assert!(requests.place("ann", 10).is_some());
        drop(of_ann);
        assert!(requests.waiting.lock().by_user.is_empty());
        // One of any size, alone.
        assert!(requests.place("ann", 2 * MAX_REQUEST_BYTES).is_some());
    }
}
