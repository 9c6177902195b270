//! The platform's users as the broker's external users: by token, or by name and password.
//!
//! Tokens are checked on the worker, from memory. A password costs tens of milliseconds on purpose: one thread checks
//! them in turn, with the platform's own limits of logins and hashing. A successful login is remembered as a keyed
//! digest, so that many devices that reconnect do not cost that again.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use anyhow::Context as _;
use fulmar_broker::Timestamp;
use fulmar_broker::access::Action;
use fulmar_broker::auth::{
    Admitted, AuthReply, EXTERNAL_USER_PREFIX, ExternalUsers, Login, ReplyTo,
};
use fulmar_mqtt::ReasonCode;
use fulmar_platform::{AdmittedUser, LoginRefused, Platform, TOKEN_PREFIX};
use parking_lot::Mutex;

/// Logins that wait for the thread; further ones are refused because the server is busy.
const WAITING: usize = 1024;
/// Successful logins that are remembered.
const REMEMBERED: usize = 10_000;

/// The platform's users.
#[derive(Debug)]
pub(super) struct Users {
    platform: Platform,
    known: Arc<Known>,
    /// The thread ends when this is dropped.
    logins: SyncSender<Waiting>,
}

struct Waiting {
    user: String,
    password: String,
    address: IpAddr,
    reply_to: ReplyTo,
}

/// Successful logins.
#[derive(Debug, Default)]
struct Known {
    right: Mutex<HashMap<String, ([u64; 2], AdmittedUser)>>,
    keys: [RandomState; 2],
}

impl Users {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn new(platform: Platform) -> anyhow::Result<Users> {
        let (logins, waiting) = sync_channel(WAITING);
        let known = Arc::<Known>::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (asked, right) = (platform.clone(), Arc::clone(&known));
        let thread = std::thread::Builder::new().name("fulmar-logins".into());
        let run = move || runtime.block_on(check_all(&asked, &right, &waiting));
        thread.spawn(run).context("platform logins")?;
        Ok(Users { platform, known, logins })
    }
}

impl ExternalUsers for Users {
    fn admit(&self, token: &str, username: Option<&str>, _: Timestamp) -> Option<Admitted> {
        self.platform.admit(token, username).map(admitted)
    }

    fn is_token(&self, password: &str) -> bool {
        password.starts_with(TOKEN_PREFIX)
    }

    fn knows(&self, username: &str) -> bool {
        self.platform.knows(username)
    }

    fn log_in(&self, login: Login<'_>) -> Option<AuthReply> {
        let Login { username, password, address, reply_to } = login;
        if let Some(admitted_user) = self.known.get(&self.platform, username, password) {
            return Some(Ok(admitted(admitted_user)));
        }
        let (user, password) = (username.to_owned(), password.to_owned());
        match self.logins.try_send(Waiting { user, password, address, reply_to }) {
            Ok(()) => None,
            Err(TrySendError::Full(_)) => Some(Err(ReasonCode::ServerBusy)),
            Err(TrySendError::Disconnected(_)) => Some(Err(ReasonCode::ServerUnavailable)),
        }
    }

    fn is_good(&self, credential: &str) -> bool {
        self.platform.is_session(credential)
    }

    fn allows(&self, external_user: &str, action: Action, topic: &str) -> bool {
        // The external user without a name is the platform's own client: no other user gets this name.
        external_user.is_empty()
            || self.platform.may(external_user, action == Action::Publish, topic)
    }
}

fn admitted(admitted_user: AdmittedUser) -> Admitted {
    let username = Some(format!("{EXTERNAL_USER_PREFIX}{}", admitted_user.user).into());
    Admitted {
        username,
        until: Timestamp(admitted_user.until_ms),
        credential: Some(admitted_user.session.into()),
    }
}

/// The thread: checks one login at a time, until the sender is dropped.
async fn check_all(platform: &Platform, known: &Known, waiting: &Receiver<Waiting>) {
    // Nothing else runs here, so it may block.
    while let Ok(Waiting { user, password, address, reply_to }) = waiting.recv() {
        let reply = match platform.log_in(&user, &password, address).await {
            Ok(admitted_user) => {
                known.put(&user, &password, admitted_user.clone());
                Ok(admitted(admitted_user))
            }
            Err(LoginRefused::Wrong) => Err(ReasonCode::BadUserNameOrPassword),
            Err(LoginRefused::TooOften) => Err(ReasonCode::ServerBusy),
            Err(LoginRefused::Unavailable) => Err(ReasonCode::ServerUnavailable),
        };
        reply_to.send(reply);
    }
}

impl Known {
    /// Two independently keyed hashes of name and password, whose keys never leave the process.
    fn digest(&self, user: &str, password: &str) -> [u64; 2] {
        self.keys.each_ref().map(|key| key.hash_one((user, password)))
    }

    /// The user, if the same login was successful before and the password has not been changed since.
    fn get(&self, platform: &Platform, user: &str, password: &str) -> Option<AdmittedUser> {
        let digest = self.digest(user, password);
        let right = self.right.lock();
        let (_, admitted_user) = right.get(user).filter(|(known, _)| *known == digest)?;
        platform.is_session(&admitted_user.session).then(|| admitted_user.clone())
    }

    fn put(&self, user: &str, password: &str, admitted_user: AdmittedUser) {
        let digest = self.digest(user, password);
        let mut right = self.right.lock();
        if right.len() >= REMEMBERED {
            right.clear();
        }
        right.insert(user.to_owned(), (digest, admitted_user));
    }
}
