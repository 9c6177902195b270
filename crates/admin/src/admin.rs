//! The API as a whole.

use fulmar_mirror::Shared;

use crate::app::{App, Settings};
use crate::store::{Store, StoreError};
use crate::{backup, bans};

/// The administration API.
#[derive(Clone, Debug)]
pub struct Admin {
    app: App,
}

impl Admin {
    /// The API of a running broker, for which the stored bans are set.
    ///
    /// # Errors
    /// `admin.db` in the data folder cannot be used.
    pub fn open(settings: Settings) -> Result<Admin, StoreError> {
        let store = Store::open(&settings.data)?;
        Admin::with_store(settings, store)
    }

    /// The same at a node of a cluster that has taken over: bans and the log of changes are those that are shared.
    ///
    /// # Errors
    /// As [`Admin::open`].
    pub fn open_shared(settings: Settings, shared: Shared) -> Result<Admin, StoreError> {
        let store = Store::open_shared(&settings.data, shared)?;
        Admin::with_store(settings, store)
    }

    pub(crate) fn with_store(settings: Settings, store: Store) -> Result<Admin, StoreError> {
        backup::remove_leftovers(&settings.data);
        let app = App::new(settings, store);
        bans::apply(&app.store, &app.broker, app.now_ms())?;
        Ok(Admin { app })
    }

    /// Keeps the history of the last hour, without end.
    pub async fn keep_history(&self) {
        self.app.keep_history().await;
    }

    /// Everything below [`PREFIX`](crate::PREFIX).
    pub fn router(&self) -> axum::Router {
        crate::routes::router(self.app.clone())
    }
}
