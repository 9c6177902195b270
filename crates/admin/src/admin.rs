//! The API as a whole.

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
    /// `admin.db` in the data folder cannot be read.
    pub fn open(settings: Settings, store: Store) -> Result<Admin, StoreError> {
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
