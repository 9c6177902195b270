//! What all handlers share: settings, database, account cache, and bounds of logins and requests.

use std::net::IpAddr;
use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};

use fulmar_http::rate::Rate;
use fulmar_identity::{Identities, NewEntry};
use tokio::sync::{Notify, mpsc};

use crate::accounts::account_cache::AccountCache;
use crate::accounts::import::{import, log_shared_names};
use crate::accounts::token::{KEY_FILE, Signer};
use crate::announcements::{Announcement, Announcements};
use crate::change_log::ChangeLogSlot;
use crate::counts::Counts;
use crate::error::Error;
use crate::frames::intake::Decoders;
use crate::in_hand::Turns;
use crate::photo_space::{OVERHEAD_BYTES, PhotoSpace};
use crate::problem::Result;
use crate::settings::Settings;
use crate::shared::SharedPlatform;
use crate::store::sql::{self, Purpose};
use crate::store::{Db, DbTask, Store, device_names};
use crate::text::Name;
use crate::topics::position_topic;

/// Failed logins of one user from one address: five at once, then one in ten seconds.
const LOGINS_PER_S: f64 = 0.1;
const LOGINS_AT_ONCE: f64 = 5.0;

const SECONDS_PER_DAY: f64 = 86_400.0;

/// State that handlers share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) settings: Settings,
    pub(crate) store: Store,
    pub(crate) account_cache: Arc<AccountCache>,
    /// Whether another store of identities has the users of this database.
    pub(crate) has_foreign_users: bool,
    pub(crate) signer: Signer,
    pub(crate) announcements: Arc<Announcements>,
    pub(crate) counts: Counts,
    pub(crate) decoders: Arc<Decoders>,
    pub(crate) logins: Rate<(Name, IpAddr)>,
    pub(crate) requests: Rate<Name>,
    pub(crate) photo_bytes: Rate<Name>,
    pub(crate) photo_space: PhotoSpace,
    pub(crate) turns: Turns,
    /// Notified when there may be events for webhooks.
    pub(crate) deliveries: Notify,
    pub(crate) change_log: ChangeLogSlot,
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

/// The state of all handlers, for what must not keep it.
pub(crate) struct WeakApp(Weak<Inner>);

impl WeakApp {
    /// `None` once the platform is gone.
    pub(crate) fn upgrade(&self) -> Option<App> {
        self.0.upgrade().map(App)
    }
}

/// Loads the account cache, and takes the positions of devices away from whose names are another's now.
fn load(account_cache: &AccountCache, announcements: &Announcements, db: &Db) -> sql::Result<()> {
    for (twin, device) in account_cache.load(db)? {
        announcements.clear_retained(position_topic(&twin, &device));
    }
    Ok(())
}

impl App {
    /// Opens the database and the key, and imports accounts of an earlier version; see [`crate::Platform::open`].
    pub(crate) fn open(
        data: &Path,
        settings: Settings,
        identities: Arc<Identities>,
        shared: Option<SharedPlatform>,
    ) -> Result<(App, mpsc::Receiver<Announcement>), Error> {
        let key = data.join(KEY_FILE);
        let (store, signer) = match shared {
            None => {
                let store = Store::open(data, &settings.database, Purpose::Server)?;
                (store, Signer::open(&key)?)
            }
            Some(shared) => {
                let store = Store::open_shared(data, &settings.database, shared.rows)?;
                (store, Signer::open_shared(&key, &shared.files)?)
            }
        };
        let has_foreign_users = import(data, &store, &identities)?;
        log_shared_names(&identities);
        let account_cache = Arc::new(AccountCache::new(identities));
        let loading = Arc::clone(&account_cache);
        let most = settings.disk.database;
        let (photos, given_back) = store.write_now(move |db| {
            crate::store::alerts::make_usual_rules(db)?;
            loading.take_due_names();
            let given_back = device_names::settle(db, loading.identities(), |_| false)?;
            db.limit_to(most)?;
            loading.load(db)?;
            Ok((crate::store::photos::totals(db)?, given_back))
        })?;
        let photo_space = PhotoSpace::new(settings.disk.photos);
        for (twin, account, number, bytes) in photos {
            photo_space.load(&twin, &account, bytes + number * OVERHEAD_BYTES);
        }
        let (announcements, receiver) = Announcements::new();
        let announcements = Arc::new(announcements);
        for (twin, device) in given_back {
            announcements.clear_retained(position_topic(&twin, &device));
        }
        let (reloading, telling) = (Arc::clone(&account_cache), Arc::clone(&announcements));
        store.on_foreign_change(move |db| {
            if let Err(error) = load(&reloading, &telling, db) {
                tracing::error!("platform: cannot read twins and devices: {error}");
            }
        });
        let per_s = f64::from(settings.max_requests_per_s);
        let photo_bytes = settings.photo_bytes_per_day as f64;
        let app = App(Arc::new(Inner {
            settings,
            store,
            account_cache,
            has_foreign_users,
            decoders: Arc::new(Decoders::new(signer.naming())),
            signer,
            announcements,
            counts: Counts::default(),
            logins: Rate::new(LOGINS_PER_S, LOGINS_AT_ONCE),
            requests: Rate::new(per_s, per_s * 4.0),
            photo_bytes: Rate::new(photo_bytes / SECONDS_PER_DAY, photo_bytes),
            photo_space,
            turns: Turns::default(),
            deliveries: Notify::new(),
            change_log: ChangeLogSlot::default(),
        }));
        app.follow_accounts();
        let accounts = Arc::downgrade(&app.account_cache);
        app.settings.logins.add_external_users(move |name| accounts.upgrade()?.password(name));
        Ok((app, receiver))
    }

    pub(crate) fn downgrade(&self) -> WeakApp {
        WeakApp(Arc::downgrade(&self.0))
    }

    /// Returns the work that gives accounts the devices of their names, if accounts have changed.
    pub(crate) fn settle_due_names(&self) -> impl FnOnce(&Db) -> Result<()> + Send + 'static {
        let (account_cache, announcements) =
            (Arc::clone(&self.account_cache), Arc::clone(&self.announcements));
        move |db| {
            if !account_cache.take_due_names() {
                return Ok(());
            }
            let was_removed = |name: &str| account_cache.was_removed(name);
            let settled = device_names::settle(db, account_cache.identities(), was_removed)
                .and_then(|_| load(&account_cache, &announcements, db));
            settled.inspect_err(|_| account_cache.names_are_due())?;
            Ok(())
        }
    }

    /// Changes twins for a caller, which is logged, and loads the account cache again.
    pub(crate) async fn change_roster_as<T: Send + 'static>(
        &self,
        who: NewEntry,
        change: impl DbTask<T>,
    ) -> Result<T> {
        self.write_logged(who, self.and_load(change)).await
    }

    /// Makes a change that is in the server's log of changes before it is made, and then with its result.
    pub(crate) async fn write_logged<T: Send + 'static>(
        &self,
        who: NewEntry,
        change: impl DbTask<T>,
    ) -> Result<T> {
        let (app, log, begun) = (self.clone(), self.clone(), Arc::new(OnceLock::new()));
        let entry = Arc::clone(&begun);
        let change = move |db: &Db| {
            app.change_log.begin(who)?.map(|id| entry.set(id));
            change(db)
        };
        let end = move |made: &Result<T>| {
            begun.get().into_iter().for_each(|id| log.change_log.end(*id, made));
        };
        self.store.write_and(change, end).await
    }

    /// The same for callers outside async tasks.
    pub(crate) fn change_roster_now<T: Send + 'static>(&self, change: impl DbTask<T>) -> Result<T> {
        self.store.write_now(self.and_load(change))
    }

    fn and_load<T>(&self, change: impl DbTask<T>) -> impl DbTask<T> {
        let (account_cache, announcements) =
            (Arc::clone(&self.account_cache), Arc::clone(&self.announcements));
        move |db| {
            let outcome = change(db)?;
            load(&account_cache, &announcements, db)?;
            Ok(outcome)
        }
    }
}
