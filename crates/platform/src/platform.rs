//! The platform as a whole: opened on a data folder, gives a router, closed at the end.

use std::net::IpAddr;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};

use crate::accounts::caller::Caller;
use crate::accounts::rate::Rate;
use crate::accounts::roster::Roster;
use crate::accounts::token::Signer;
use crate::error::Error;
use crate::frames::intake::Decoders;
use crate::live::{Announcement, Live};
use crate::problem::Problem;
use crate::store::{Db, Store};
use crate::text::Name;
use crate::time::Time;

/// Failed logins of one user from one address: five at once, then one in ten seconds.
const LOGINS_PER_S: f64 = 0.1;
const LOGINS_AT_ONCE: f64 = 5.0;
/// Passwords that are hashed at once: each takes 19 MiB and a core.
const MAX_HASHING: usize = 2;

/// What can be set.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How long a token is good, in seconds.
    pub token_lifetime_s: u32,
    /// Requests an account may make a second in the long run; four times as many at once.
    pub max_requests_per_s: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { token_lifetime_s: 30 * 24 * 3600, max_requests_per_s: 200 }
    }
}

/// What handlers share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) settings: Settings,
    pub(crate) store: Store,
    pub(crate) roster: Arc<Roster>,
    pub(crate) signer: Signer,
    pub(crate) live: Live,
    pub(crate) decoders: Arc<Decoders>,
    pub(crate) logins: Rate<(String, IpAddr)>,
    pub(crate) requests: Rate<Name>,
    hashers: Semaphore,
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
    /// Whose token this is, if it is good.
    pub(crate) fn caller(&self, token: &str, now: Time) -> Option<Caller> {
        let (session, expires_at) = self.signer.check(token, now)?;
        let account = self.roster.session(&session, now)?;
        Some(Caller { account, session, expires_at })
    }

    /// Changes accounts, memberships, sessions or twins, and the roster with them.
    pub(crate) async fn change_roster<T, F>(&self, change: F) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: FnOnce(&Db) -> Result<T, Problem> + Send + 'static,
    {
        let roster = Arc::clone(&self.roster);
        let changed = self.store.write(move |db| {
            let outcome = change(db)?;
            roster.load(db)?;
            Ok(outcome)
        });
        changed.await
    }

    /// Hashes a password, or compares one, off the runtime's thread.
    pub(crate) async fn hashing<T, F>(&self, work: F) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let turn = self.hashers.acquire().await.map_err(|error| Problem::internal(&error))?;
        let done = tokio::task::spawn_blocking(work).await;
        drop(turn);
        done.map_err(|error| Problem::internal(&error))
    }
}

/// The platform of one installation.
#[derive(Clone, Debug)]
pub struct Platform {
    app: App,
}

impl Platform {
    /// Opens `platform.db` and `platform.key` in the folder, making them at first use. What changes
    /// comes out of the receiver, to be published.
    ///
    /// # Errors
    /// A file cannot be made, read or understood.
    pub fn open(
        data: &Path,
        settings: Settings,
    ) -> Result<(Platform, mpsc::Receiver<Announcement>), Error> {
        let store = Store::open(&data.join("platform.db"))?;
        let signer = Signer::open(&data.join("platform.key"))?;
        let roster = Arc::new(Roster::default());
        let loading = Arc::clone(&roster);
        store.write_now(move |db| Ok(loading.load(db)?))?;
        let reloading = Arc::clone(&roster);
        store.on_foreign_change(move |db| {
            if let Err(error) = reloading.load(db) {
                tracing::error!("platform: accounts cannot be read: {error}");
            }
        });
        let (live, announcements) = Live::new();
        let per_s = f64::from(settings.max_requests_per_s);
        let app = App(Arc::new(Inner {
            settings,
            store,
            roster,
            signer,
            live,
            decoders: Arc::default(),
            logins: Rate::new(LOGINS_PER_S, LOGINS_AT_ONCE),
            requests: Rate::new(per_s, per_s * 4.0),
            hashers: Semaphore::new(MAX_HASHING),
        }));
        Ok((Platform { app }, announcements))
    }

    /// Everything under `/api/v1`, and the study's short addresses.
    pub fn router(&self) -> axum::Router {
        crate::routes::router(self.app.clone())
    }

    /// Whether there is no account yet.
    #[must_use]
    pub fn has_no_users(&self) -> bool {
        self.app.roster.is_empty()
    }

    /// Finishes what was begun and closes the database.
    pub fn close(&self) {
        self.app.store.close();
    }
}
