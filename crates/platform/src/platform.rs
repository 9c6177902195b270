//! The platform as a whole: opened on a data folder, gives a router, closed at the end.

use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use fulmar_auth::access::Action;
use fulmar_auth::{Admitted, ExternalUsers, Timestamp, User};
use fulmar_identity::{ChangeLog, Identities, TOKEN_PREFIX};
use tokio::sync::mpsc;

use crate::accounts::account_cache::Losers;
use crate::accounts::changes::open_identities;
use crate::admin::{Admin, AdminAnswer, AdminCommand};
use crate::announcements::Announcement;
use crate::app::App;
use crate::counts::PlatformCounts;
use crate::error::Error;
use crate::frames::types::{FrameResult, FrameStatus, NewFrame};
use crate::log_limit::LogLimit;
use crate::measurements::handlers::take_messages;
use crate::measurements::message::SensorMessage;
use crate::photo_space::PhotoTotals;
use crate::readings::intake::Sender;
use crate::role::Deed;
use crate::settings::Settings;
use crate::shared::SharedPlatform;
use crate::store::sql::sqlite;
use crate::topics::Whose;
use crate::values::*;

/// The platform of one installation.
#[derive(Clone, Debug)]
pub struct Platform {
    app: App,
}

impl Platform {
    /// Opens the database, which is `platform.db` in the folder unless the settings name another, and
    /// `platform.key` and `identities.db` in the folder, making them at first use. What changes comes out of the receiver,
    /// to be published.
    ///
    /// # Errors
    /// A file cannot be made, read or understood, or the database cannot be used.
    pub fn open(
        data: &Path,
        settings: Settings,
    ) -> Result<(Platform, mpsc::Receiver<Announcement>), Error> {
        let (app, receiver) = App::open(data, settings, open_identities(data)?, None)?;
        Ok((Platform { app }, receiver))
    }

    /// Opens the platform of a server, whose store of identities has its accounts. At a node of a cluster that has taken
    /// over, `platform.db` is a copy of what the nodes share, up to the end of the log.
    ///
    /// # Errors
    /// As [`Platform::open`]; and the secret of the tokens cannot be shared.
    pub fn open_with(
        data: &Path,
        settings: Settings,
        identities: Arc<Identities>,
        shared: Option<SharedPlatform>,
    ) -> Result<(Platform, mpsc::Receiver<Announcement>), Error> {
        let (app, receiver) = App::open(data, settings, identities, shared)?;
        Ok((Platform { app }, receiver))
    }

    /// Checks that this version knows the tables of a database file. `version` is what SQLite calls user version, in the
    /// header of the file, which is not opened.
    ///
    /// # Errors
    /// They are a newer version's.
    pub fn check_file(path: &Path, version: usize) -> Result<(), Error> {
        Ok(sqlite::check_version(path, version)?)
    }

    /// State that handlers share.
    pub(crate) fn app(&self) -> &App {
        &self.app
    }

    /// Everything under `/api/v1`, and the study's short addresses.
    pub fn router(&self) -> axum::Router {
        crate::routes::router(self.app.clone())
    }

    /// Does what `fulmar user` or `fulmar twin` says. Waits for the disk, and hashes passwords.
    ///
    /// # Errors
    /// It cannot be done.
    pub fn administer(&self, command: &AdminCommand) -> Result<AdminAnswer, Error> {
        Admin::within(self.app.clone()).run(command)
    }

    /// Whether a user was removed while no server ran. Of another store's users, it is not known.
    pub fn was_removed_while_stopped(&self, user: &str) -> bool {
        !self.app.has_foreign_users && !self.knows(user)
    }

    /// Calls `lost` with the names of accounts whose tokens have been revoked, who may do less than before or were removed,
    /// when the answers of this platform are already the new ones. On a thread that makes changes, so that it must not wait; the
    /// first call counts.
    pub fn on_loss(&self, lost: impl Fn(&Losers) + Send + Sync + 'static) {
        self.app.account_cache.on_loss(Box::new(lost));
    }

    /// Logs changes of accounts and twins through the API; the first call counts.
    pub fn log_changes(&self, log: Box<dyn ChangeLog>) {
        self.app.change_log.set(log);
    }

    /// Whether the user may publish to this topic, or subscribe to it as a filter. Answers from memory.
    pub fn may(&self, user: &str, publish: bool, topic: &str) -> bool {
        let levels: Vec<&str> = topic.split('/').collect();
        let ["fulmar", twin, rest @ ..] = &levels[..] else { return false };
        let (Ok(twin), account_cache) = (twin.parse::<Name>(), &self.app.account_cache) else {
            return false;
        };
        let role =
            account_cache.account(user).and_then(|account| account_cache.role(&account, &twin));
        // A device that has not registered is the user of the same name.
        let whose = |device: &str| match account_cache.whose(&twin, device, user) {
            Whose::Nobodys if device == user => Whose::Own,
            whose => whose,
        };
        role.is_some_and(|role| crate::topics::allowed(role, publish, rest, user, whose))
    }

    /// A name of this installation that nobody else can know: its client identifier.
    pub fn installation(&self) -> &str {
        self.app.signer.installation()
    }

    /// A voucher that shows later that this user has published this message; `None` if that does not matter.
    pub fn vouch(&self, user: &str, topic: &str, payload: &[u8]) -> Option<String> {
        let levels: Vec<&str> = topic.split('/').collect();
        let ["fulmar", _, "receiver", _, "frame"] = levels[..] else { return None };
        Some(self.app.signer.vouch(user, topic, payload))
    }

    /// The user who published this message, by the voucher of [`Platform::vouch`].
    pub fn vouched<'a>(&self, voucher: &'a str, topic: &str, payload: &[u8]) -> Option<&'a str> {
        self.app.signer.vouched(voucher, topic, payload)
    }

    /// Takes what receivers published, each payload one frame in JSON, and returns when it is durable.
    /// `publisher` is the user who published it, if it was one; readings are stored as that user's, others as
    /// the receiver's own.
    ///
    /// # Errors
    /// Nothing was stored, for now: try again. What cannot be taken at all is logged and done with.
    pub async fn take_frames(
        &self,
        twin: &str,
        receiver: &str,
        publisher: Option<&str>,
        payloads: &[Vec<u8>],
    ) -> Result<(), Error> {
        let (Ok(twin), Ok(receiver)) = (twin.parse::<Name>(), receiver.parse::<Name>()) else {
            self.app.counts.frames_refused(payloads.len());
            static LOG: LogLimit = LogLimit::new();
            if let Some(times) = LOG.occurred(Instant::now()) {
                tracing::info!(twin, receiver, times, "frames of a receiver with an invalid name");
            }
            return Ok(());
        };
        let (from, to) = (publisher, &receiver);
        let take =
            async |payloads: &[Vec<u8>]| self.take_some_frames(&twin, to, from, payloads).await;
        let refused = |problem: &Problem| {
            tracing::warn!(%twin, %receiver, "frame refused: {}", problem.detail());
        };
        Ok(one_by_one(payloads, take, |_, problem| refused(problem)).await?)
    }

    async fn take_some_frames(
        &self,
        twin: &Name,
        receiver: &Name,
        publisher: Option<&str>,
        payloads: &[Vec<u8>],
    ) -> Result<()> {
        let parse = |payload: &Vec<u8>| match serde_json::from_slice::<Each<NewFrame>>(payload) {
            Ok(frame) => frame,
            Err(error) => {
                let item = Err(Problem::malformed(format!("the frame is not JSON: {error}")));
                Each { id: None, item }
            }
        };
        let frames: Vec<Each<NewFrame>> = payloads.iter().map(parse).collect();
        let publisher: Option<Name> = publisher.and_then(|name| name.parse().ok());
        let (account_cache, now) = (&self.app.account_cache, Time::now());
        // A receiver's name alone gives no role: the broker's own users may publish in any.
        let account = publisher.as_deref().and_then(|name| account_cache.account(name));
        let role = account.and_then(|account| account_cache.role(&account, twin));
        let reader = publisher.unwrap_or_else(|| receiver.clone());
        let reads = role.is_some_and(|role| role.may(Deed::Read));
        let sender = Sender { twin: twin.clone(), reader, own_lists_only: false, reads, now };
        let results =
            crate::frames::handlers::store_frames(&self.app, sender, receiver.clone(), frames);
        for result in results.await? {
            static LOG: LogLimit = LogLimit::new();
            let FrameResult { status, meter, detail: Some(detail), .. } = result else { continue };
            let is_usual = matches!(status, FrameStatus::Duplicate | FrameStatus::UnknownMeter);
            if !is_usual && let Some(times) = LOG.occurred(Instant::now()) {
                let meter = meter.as_deref();
                tracing::info!(%twin, %receiver, meter, ?status, times, "frame does not count: {detail}");
            }
        }
        Ok(())
    }

    /// Takes what was published on sensors' topics, in this order, and returns when it is durable. What has no time of
    /// its own was measured when it `arrived`.
    ///
    /// # Errors
    /// Something was not stored, for now: try all of it again, with the same time of arrival, so that it is stored
    /// once. What cannot be taken at all is logged, counted and done with.
    pub async fn take_measurements(
        &self,
        messages: &[SensorMessage],
        arrived: SystemTime,
    ) -> Result<(), Error> {
        let arrived = Time::from(arrived);
        let take =
            async |messages: &[SensorMessage]| take_messages(&self.app, messages, arrived).await;
        let refused = |message: &SensorMessage, problem: &Problem| {
            self.app.counts.malformed();
            let topic = &message.topic;
            tracing::warn!(topic, "message refused: {}", problem.detail());
        };
        Ok(one_by_one(messages, take, refused).await?)
    }

    /// Counts since it was opened.
    pub fn counts(&self) -> PlatformCounts {
        let PhotoTotals { used, limit, refused } = self.app.photo_space.totals();
        PlatformCounts {
            photo_bytes: used,
            photo_limit_bytes: limit,
            photos_refused: refused,
            ..self.app.counts.get()
        }
    }

    /// Whether there is no account yet.
    pub fn has_no_users(&self) -> bool {
        self.app.account_cache.is_empty()
    }

    /// Returns when there is an account; for one waiter.
    pub async fn users(&self) {
        self.app.account_cache.wait_for_account().await;
    }

    /// Finishes what was begun and closes the database.
    pub fn close(&self) {
        self.app.store.close();
    }
}

impl ExternalUsers for Platform {
    fn admit(&self, token: &str, user: Option<&str>, _: Timestamp) -> Option<Admitted> {
        let caller = self.app.caller(token, Time::now())?;
        let name = &caller.account.name;
        let until = match caller.expires_at {
            Time::NEVER => Timestamp::NEVER,
            Time(at) => Timestamp(u64::try_from(at).ok()?),
        };
        let same = user.is_none_or(|user| user.is_empty() || user == &**name);
        let user = User::external(name).filter(|_| same)?;
        Some(Admitted { user: Some(user), until, credential: Some(caller.session.into()) })
    }

    fn is_token(&self, password: &str) -> bool {
        password.starts_with(TOKEN_PREFIX)
    }

    fn knows(&self, user: &str) -> bool {
        self.app.account_cache.account(user).is_some()
    }

    fn is_server_admin(&self, user: &str) -> bool {
        self.app.account_cache.account(user).is_some_and(|account| account.server_admin)
    }

    fn is_good(&self, credential: &str) -> bool {
        self.app.account_cache.is_good(credential, Time::now())
    }

    fn allows(&self, user: &str, action: Action, topic: &str) -> bool {
        self.may(user, action == Action::Publish, topic)
    }
}

/// Takes items together; if that is refused because of one of them, one by one, so that the others are taken. Otherwise it
/// would be tried for ever, and nothing that comes after it would be taken.
async fn one_by_one<T>(
    items: &[T],
    take: impl AsyncFn(&[T]) -> Result<()>,
    refused: impl Fn(&T, &Problem),
) -> Result<()> {
    match take(items).await {
        Err(problem) if problem.status() < 500 => {}
        done => return done,
    }
    for item in items {
        match take(std::slice::from_ref(item)).await {
            Err(problem) if problem.status() < 500 => refused(item, &problem),
            done => done?,
        }
    }
    Ok(())
}
