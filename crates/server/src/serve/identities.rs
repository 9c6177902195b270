//! The identity store of a running server: it fills the broker's table, makes changes effective for connected clients,
//! and answers requests to `$CONTROL/dynamic-security/v1`.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};

use anyhow::Context as _;
use fulmar_broker::Broker;
use fulmar_broker::auth::{AccessControl, HashReplacements, IdentityTable, PasswordFile};
use fulmar_broker::control::{Control, ControlRequest};
use fulmar_identity::{
    Affected, Asker, Change, Command, Compiler, Desk, FILE, Identities, PasswordHash, State,
    control,
};
use fulmar_mirror::Shared;
use parking_lot::Mutex;

use super::secrets;
use crate::config::Auth;

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
    ///
    /// # Errors
    /// It cannot be read.
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
    ///
    /// # Errors
    /// A key in the data folder cannot be stored.
    pub(super) fn add_to(
        &self,
        access_control: &mut AccessControl,
        (auth, data): (&Auth, &Path),
    ) -> anyhow::Result<()> {
        access_control.scram = secrets::scram_decoys(auth, data)?;
        self.identities.hasher().set_scram_iterations(auth.verifier_iterations());
        let passwords = access_control.passwords.take().unwrap_or_else(PasswordFile::without_file);
        passwords.add_identities(&self.table);
        access_control.passwords = Some(passwords);
        access_control.identities = Some(Arc::clone(&self.table));
        Ok(())
    }

    /// The store, for other parts of the server.
    pub(super) fn get(&self) -> &Arc<Identities> {
        &self.identities
    }

    /// Begins to answer requests, and to make changes effective.
    pub(super) fn go_live(&self, broker: &Arc<Broker>) {
        drop(self.broker.set(Arc::downgrade(broker)));
        broker.set_control(Arc::new(Requests(Arc::clone(&self.identities))));
    }
}

/// Replaces mosquitto's hashes in the store.
struct Replacements(Weak<Identities>);

impl fmt::Debug for Replacements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Replacements")
    }
}

impl HashReplacements for Replacements {
    fn find(&self, _: &str, _: &str) -> Option<String> {
        None
    }

    /// Does not wait: if too many changes do already, the next login tries again.
    fn keep(&self, user: &str, outdated: &str, argon2: &str) {
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

/// Passes requests to the store's thread.
#[derive(Debug)]
struct Requests(Arc<Identities>);

impl Control for Requests {
    fn request(&self, request: ControlRequest<'_>) {
        let ControlRequest { payload, client_id, username, reply_to } = request;
        let asker = Asker { client_id: client_id.into(), username: username.map(Into::into) };
        let payload: Box<[u8]> = payload.into();
        let reply_to = Arc::new(Mutex::new(Some(reply_to)));
        let answered = Arc::clone(&reply_to);
        let answer = move |text: String| {
            if let Some(reply_to) = answered.lock().take() {
                reply_to.send(text.into_bytes().into());
            }
        };
        let refused = answer.clone();
        let job = move |desk: &mut _| answer(control::respond(desk, &asker, &payload));
        if self.0.submit(Box::new(job)).is_err() {
            tracing::warn!(
                client = client_id,
                "a request to change identities was refused: too many wait"
            );
            refused(control::busy());
        }
    }
}
