//! The API as a whole.

use crate::app::{App, Settings};
use crate::backup;
use crate::store::Store;

/// The administration API.
#[derive(Clone, Debug)]
pub struct Admin {
    app: App,
}

impl Admin {
    /// The API of a running broker.
    pub fn open(settings: Settings, store: Store) -> Admin {
        backup::remove_leftovers(&settings.data);
        Admin { app: App::new(settings, store) }
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
