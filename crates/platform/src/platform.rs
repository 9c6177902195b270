//! The platform as a whole: opened on a data folder, gives a router, closed at the end.

use std::net::IpAddr;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::{Notify, Semaphore, mpsc};

use crate::accounts::caller::Caller;
use crate::accounts::rate::Rate;
use crate::accounts::roster::Roster;
use crate::accounts::token::Signer;
use crate::counts::{Counts, PlatformCounts};
use crate::error::Error;
use crate::extract::Each;
use crate::frames::intake::Decoders;
use crate::frames::types::NewFrame;
use crate::live::{Announcement, Live};
use crate::measurements::message::SensorMessage;
use crate::problem::Problem;
use crate::readings::intake::Sender;
use crate::store::sql::{Database, Purpose};
use crate::store::{Db, Store};
use crate::text::Name;
use crate::time::{DAY_MS, Time};
use crate::topics::Whose;

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
    /// How long what sensors measured is kept.
    pub monitoring: Monitoring,
    /// Where everything is kept.
    pub database: Database,
}

/// How long what sensors measured is kept, in ever coarser forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitoring {
    /// Days single measurements are kept.
    pub raw_days: u32,
    /// Days their hourly means, least and greatest values are kept.
    pub hour_days: u32,
    /// Days the daily ones are kept.
    pub day_days: u32,
}

impl Default for Monitoring {
    fn default() -> Monitoring {
        Monitoring { raw_days: 90, hour_days: 730, day_days: 3650 }
    }
}

impl Monitoring {
    /// Since when single measurements are kept.
    pub(crate) fn raw_since(&self, now: Time) -> Time {
        since(now, self.raw_days)
    }

    /// Since when hourly sums are kept.
    pub(crate) fn hours_since(&self, now: Time) -> Time {
        since(now, self.hour_days)
    }

    /// Since when daily sums are kept.
    pub(crate) fn days_since(&self, now: Time) -> Time {
        since(now, self.day_days)
    }
}

/// The beginning of the day so many days ago.
fn since(now: Time, days: u32) -> Time {
    Time((now.0.div_euclid(DAY_MS) - i64::from(days)) * DAY_MS)
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            token_lifetime_s: 30 * 24 * 3600,
            max_requests_per_s: 200,
            monitoring: Monitoring::default(),
            database: Database::File,
        }
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
    pub(crate) counts: Counts,
    pub(crate) decoders: Arc<Decoders>,
    pub(crate) logins: Rate<(String, IpAddr)>,
    pub(crate) requests: Rate<Name>,
    /// Told when there may be something for webhooks.
    pub(crate) deliveries: Notify,
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

/// Someone whose token is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// The account's name.
    pub user: String,
    /// Until when the token is good, in milliseconds since 1970.
    pub until_ms: u64,
    /// The token's session, for [`Platform::is_session`].
    pub session: String,
}

/// The platform of one installation.
#[derive(Clone, Debug)]
pub struct Platform {
    app: App,
}

impl Platform {
    /// Opens the database, which is `platform.db` in the folder unless the settings name another, and
    /// `platform.key` in the folder, making them at first use. What changes comes out of the receiver, to
    /// be published.
    ///
    /// # Errors
    /// A file cannot be made, read or understood, or the database cannot be used.
    pub fn open(
        data: &Path,
        settings: Settings,
    ) -> Result<(Platform, mpsc::Receiver<Announcement>), Error> {
        let store = Store::open(data, &settings.database, Purpose::Server)?;
        let signer = Signer::open(&data.join("platform.key"))?;
        let roster = Arc::new(Roster::default());
        let loading = Arc::clone(&roster);
        store.write_now(move |db| {
            crate::store::alerts::make_usual_rules(db)?;
            Ok(loading.load(db)?)
        })?;
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
            counts: Counts::default(),
            decoders: Arc::default(),
            logins: Rate::new(LOGINS_PER_S, LOGINS_AT_ONCE),
            requests: Rate::new(per_s, per_s * 4.0),
            deliveries: Notify::new(),
            hashers: Semaphore::new(MAX_HASHING),
        }));
        Ok((Platform { app }, announcements))
    }

    /// What handlers share.
    pub(crate) fn app(&self) -> &App {
        &self.app
    }

    /// Everything under `/api/v1`, and the study's short addresses.
    pub fn router(&self) -> axum::Router {
        crate::routes::router(self.app.clone())
    }

    /// Whose token this is; `None` if it is none or no longer good, or if a user name is given and is
    /// another's. Answers from memory.
    #[must_use]
    pub fn admit(&self, token: &str, user: Option<&str>) -> Option<Guest> {
        let caller = self.app.caller(token, Time::now())?;
        let name = &caller.account.name;
        let same = user.is_none_or(|user| user.is_empty() || user == &**name);
        let until_ms = u64::try_from(caller.expires_at.0).ok()?;
        same.then(|| Guest { user: name.to_string(), until_ms, session: caller.session })
    }

    /// Whether the token of this session is still good. Answers from memory.
    #[must_use]
    pub fn is_session(&self, id: &str) -> bool {
        self.app.roster.session(id, Time::now()).is_some()
    }

    /// Calls `lost` whenever tokens have been revoked or accounts may do less than before, when the answers of
    /// this platform are already the new ones. On the writer's thread, so that it must not wait; the first call
    /// counts.
    pub fn on_loss(&self, lost: impl Fn() + Send + Sync + 'static) {
        self.app.roster.on_loss(Box::new(lost));
    }

    /// Whether the user may publish to this topic, or subscribe to it as a filter. Answers from memory.
    #[must_use]
    pub fn may(&self, user: &str, publish: bool, topic: &str) -> bool {
        let levels: Vec<&str> = topic.split('/').collect();
        let ["fulmar", twin, rest @ ..] = &levels[..] else { return false };
        let (Ok(twin), roster) = (twin.parse::<Name>(), &self.app.roster) else { return false };
        let role = roster.account(user).and_then(|account| roster.role(&account, &twin));
        let whose = |device: &str| match roster.owner(&twin, device) {
            Some(owner) if *owner == *user => Whose::Own,
            Some(_) => Whose::Others,
            None => Whose::Nobodys,
        };
        role.is_some_and(|role| crate::topics::allowed(role, publish, rest, whose))
    }

    /// A name of this installation that nobody else can know: its client identifier.
    #[must_use]
    pub fn installation(&self) -> &str {
        self.app.signer.installation()
    }

    /// Takes what receivers published, each payload one frame in JSON, and returns when it is durable.
    ///
    /// # Errors
    /// Nothing was stored, for now: try again. What cannot be taken at all is logged and done with.
    pub async fn take_frames(
        &self,
        twin: &str,
        receiver: &str,
        payloads: Vec<Vec<u8>>,
    ) -> Result<(), Error> {
        let (Ok(twin), Ok(receiver)) = (twin.parse::<Name>(), receiver.parse::<Name>()) else {
            tracing::info!(twin, receiver, "frames of a receiver without a proper name");
            return Ok(());
        };
        let parse = |payload: &Vec<u8>| match serde_json::from_slice::<Each<NewFrame>>(payload) {
            Ok(frame) => frame,
            Err(error) => {
                let item = Err(Problem::malformed(format!("the frame is not JSON: {error}")));
                Each { id: None, item }
            }
        };
        let frames: Vec<Each<NewFrame>> = payloads.iter().map(parse).collect();
        // The broker does not say who published, but lets nobody use the name of another's device.
        let owner = self.app.roster.owner(&twin, &receiver);
        let (reader, now) = (owner.unwrap_or_else(|| receiver.clone()), Time::now());
        let sender = Sender { twin: twin.clone(), reader, own_lists_only: false, now };
        let results = crate::frames::handlers::take(&self.app, sender, receiver.clone(), frames);
        for result in results.await? {
            if let Some(detail) = result.detail {
                let status = result.status;
                tracing::debug!(%twin, %receiver, ?status, detail, "frame not stored");
            }
        }
        Ok(())
    }

    /// Takes what was published on sensors' topics, in this order, and returns when it is durable.
    ///
    /// # Errors
    /// Something was not stored, for now: try all of it again; what has an identifier or a time of its
    /// own is stored once. What cannot be taken at all is logged, counted and done with.
    pub async fn take_measurements(&self, messages: Vec<SensorMessage>) -> Result<(), Error> {
        Ok(crate::measurements::handlers::take_messages(&self.app, messages).await?)
    }

    /// What was counted since it was opened.
    #[must_use]
    pub fn counts(&self) -> PlatformCounts {
        self.app.counts.get()
    }

    /// Whether there is no account yet.
    #[must_use]
    pub fn has_no_users(&self) -> bool {
        self.app.roster.is_empty()
    }

    /// Returns when there is an account; for one waiter.
    pub async fn users(&self) {
        self.app.roster.people().await;
    }

    /// Finishes what was begun and closes the database.
    pub fn close(&self) {
        self.app.store.close();
    }
}
