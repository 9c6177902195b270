//! Changes with their entries in the log, and the log itself.

use fulmar_broker::Timestamp;
use fulmar_identity::NewEntry;

use crate::caller::Caller;
use crate::prelude::*;
use crate::store::{AuditEntry, AuditQuery, MAX_TEXT_BYTES, NOT_LOGGED, Store, StoreError, cut};

/// A change that is about to be made.
pub(crate) struct Change {
    pub(crate) caller: Caller,
    /// Such as `client.disconnect`.
    pub(crate) action: &'static str,
    pub(crate) object: String,
    /// Values before and after, without secrets.
    pub(crate) detail: Value,
}

impl App {
    /// Makes a change: logs it, does it, and adds the result to the log.
    pub(crate) async fn change<T>(
        &self,
        change: Change,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let Change { caller, action, object, detail } = change;
        let detail = if detail.is_null() { String::new() } else { detail.to_string() };
        let (by, from) = (caller.name.clone(), caller.from.clone());
        let entry = NewEntry {
            who: caller.name,
            from: caller.from,
            action,
            object: object.clone(),
            detail,
        };
        let now = self.now_ms();
        let id = self.stored(move |store| store.begin(&entry, now)).await?;
        let outcome = work.await;
        let result = match &outcome {
            Ok(_) => "ok".to_owned(),
            Err(problem) => problem.detail().to_owned(),
        };
        let [object, shown] = [&object, &result].map(|text| cut(text, MAX_TEXT_BYTES));
        tracing::info!(by, from, action, object, result = shown, "administration");
        // What was made is reported as made; `stored` logs why its entry has no result.
        drop(self.stored(move |store| store.end(id, &result)).await);
        outcome
    }

    /// Reads or writes `admin.db` on a thread that may wait.
    pub(crate) async fn stored<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T> {
        let store = self.store.clone();
        let done = tokio::task::spawn_blocking(move || work(&store)).await;
        match done {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(StoreError::NotShared(error))) => Err(Problem::unavailable(error.to_string())),
            Ok(Err(error)) => {
                tracing::error!("administration: {error}");
                Err(Problem::unavailable(NOT_LOGGED))
            }
            Err(_) => Err(Problem::unavailable("the server ends")),
        }
    }

    /// The time, in milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> i64 {
        crate::store::now_ms()
    }

    /// The broker's time.
    pub(crate) fn now(&self) -> Timestamp {
        self.broker.at_wall(Timestamp(self.now_ms().cast_unsigned()))
    }
}

/// Filter of entries.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EntryFilter {
    /// From this time on, in milliseconds since the Unix epoch.
    since_ms: Option<i64>,
}

/// A page of the log, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct Entries {
    entries: Vec<AuditEntry>,
    /// The next page's `cursor`; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<i64>,
}

/// The log of changes
#[utoipa::path(get, path = "/audit", params(PageQuery, EntryFilter), responses((status = 200, body = Entries)))]
pub(crate) async fn list(
    Administrator(app, _): Administrator,
    Paged { page, wanted }: Paged<EntryFilter>,
) -> Result<Json<Entries>> {
    let most = page.limit()?;
    let query = AuditQuery {
        since_ms: wanted.since_ms.unwrap_or(0),
        before: page.cursor()?.unwrap_or(i64::MAX),
        most: most + 1,
    };
    let mut entries = app.stored(move |store| store.entries(query)).await?;
    let more = entries.len() > most;
    entries.truncate(most);
    let next = entries.last().filter(|_| more).map(|last| last.id);
    Ok(Json(Entries { entries, next }))
}
