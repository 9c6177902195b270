//! What all handlers share.

use std::net::IpAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use fulmar_broker::Broker;
use fulmar_http::AnswerSpace;
use fulmar_http::rate::Rate;
use fulmar_identity::{Identities, NewEntry};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::administrators::{Administrators, Refused};
use crate::history::History;
use crate::pass::Computed;
use crate::server::Server;
use crate::store::{MAX_TEXT_BYTES, Store, cut};
use crate::web_sessions::WebSessions;

/// Requests of one user: per second in the long run, and at once.
const REQUESTS_PER_S: f64 = 50.0;
const REQUESTS_AT_ONCE: f64 = 200.0;
/// Failed logins from one address: one in ten seconds, and at once.
const FAILURES_PER_S: f64 = 0.1;
const FAILURES_AT_ONCE: f64 = 10.0;

/// Failed logins that the log of changes has: per second in the long run, and at once.
const LOGGED_PER_S: f64 = 0.2;
const LOGGED_AT_ONCE: f64 = 100.0;

/// Taps at once.
pub(crate) const MAX_TAPS: usize = 8;

/// Parts of the server that the API uses.
pub struct Settings {
    /// The broker.
    pub broker: Arc<Broker>,
    /// Where administrative users are.
    pub administrators: Arc<dyn Administrators>,
    /// Users and API tokens.
    pub identities: Arc<Identities>,
    /// The rest of the server.
    pub server: Arc<dyn Server>,
    /// Memory for answers that clients have not taken yet.
    pub answers: AnswerSpace,
    /// The data folder, which is locked.
    pub data: PathBuf,
    /// The program's version.
    pub version: &'static str,
    /// Whether everybody on this machine may see the overview.
    pub open_overview: bool,
}

fulmar_text::opaque_debug!(Settings);

/// A change of the log that is in effect.
#[derive(Debug, Default)]
pub(crate) struct LogUntil {
    /// The filter to return to.
    pub(crate) before: Option<String>,
    pub(crate) until_ms: Option<i64>,
    /// Changes so far: only the last one ends at its time.
    pub(crate) changes: u64,
    /// The task that waits for that time.
    pub(crate) back: Option<AbortHandle>,
}

/// State that handlers share.
#[derive(Debug)]
pub(crate) struct Inner {
    settings: Settings,
    pub(crate) requests: Rate<String>,
    pub(crate) failures: Rate<IpAddr>,
    logged_failures: Rate<()>,
    pub(crate) backups: Arc<Semaphore>,
    pub(crate) taps: Arc<Semaphore>,
    pub(crate) log: Mutex<LogUntil>,
    pub(crate) web_sessions: WebSessions,
    pub(crate) overview: Computed,
    pub(crate) history: Mutex<History>,
    pub(crate) store: Store,
}

impl Deref for Inner {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.settings
    }
}

/// The state of all handlers.
#[derive(Clone, Debug)]
pub(crate) struct App(Arc<Inner>);

impl Deref for App {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl App {
    pub(crate) fn new(settings: Settings, store: Store) -> App {
        App(Arc::new(Inner {
            settings,
            requests: Rate::new(REQUESTS_PER_S, REQUESTS_AT_ONCE),
            failures: Rate::new(FAILURES_PER_S, FAILURES_AT_ONCE),
            logged_failures: Rate::new(LOGGED_PER_S, LOGGED_AT_ONCE),
            backups: Arc::new(Semaphore::new(1)),
            taps: Arc::new(Semaphore::new(MAX_TAPS)),
            log: Mutex::default(),
            web_sessions: WebSessions::default(),
            overview: Computed::default(),
            history: Mutex::default(),
            store,
        }))
    }

    /// Logs credentials that were refused. The rate of failures bounds how often.
    pub(crate) fn login_failed(&self, user: Option<&str>, from: IpAddr, refused: Refused) {
        let user = &*cut(user.unwrap_or("(token)"), MAX_TEXT_BYTES);
        tracing::warn!(user, peer = %from, ?refused, "administration: login refused");
        if self.logged_failures.take_token((), Instant::now()).is_err() {
            return;
        }
        let (who, from, object) = (user.to_owned(), from.to_string(), String::new());
        let entry = NewEntry { who, from, action: "login", object, detail: String::new() };
        let (store, now) = (self.store.clone(), self.now_ms());
        // The response need not wait for the disk.
        tokio::task::spawn_blocking(move || {
            let stored = store.begin(&entry, now).and_then(|id| store.end(id, "refused"));
            if let Err(error) = stored {
                tracing::error!("administration: {error}");
            }
        });
    }
}
