//! What the server logs, changed for a time: detailed logging that somebody forgets would fill the disk.

use crate::prelude::*;
use std::time::Duration;

/// Longest time, in seconds.
const MAX_FOR_S: u64 = 86_400;
/// Longest filter.
const MAX_FILTER_BYTES: usize = 1024;

/// State of the log.
#[derive(Serialize, ToSchema)]
pub(crate) struct Log {
    /// A level, or a filter such as `info,fulmar_broker=debug`.
    filter: String,
    /// When it returns to what it was, in milliseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    until_ms: Option<i64>,
}

/// A new filter of the log, and the time for which it holds.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewLog {
    /// A level, or a filter such as `info,fulmar_broker=debug`.
    filter: String,
    /// For how many seconds; then it is as before.
    #[schema(minimum = 1, maximum = 86400)]
    for_s: u64,
}

fn shown(app: &App) -> Result<Json<Log>> {
    let filter = app.server.log_filter();
    let filter = filter.ok_or_else(|| Problem::conflict("this server has no log of its own"))?;
    Ok(Json(Log { filter, until_ms: app.log.lock().until_ms }))
}

/// What is logged
#[utoipa::path(get, path = "/log", responses((status = 200, body = Log)))]
pub(crate) async fn show(Viewer(app, _): Viewer) -> Result<Json<Log>> {
    shown(&app)
}

/// Log something else for a time
#[utoipa::path(put, path = "/log", request_body = NewLog, responses((status = 200, body = Log)))]
pub(crate) async fn change(
    Operator(app, caller): Operator,
    Json(new): Json<NewLog>,
) -> Result<Json<Log>> {
    if !(1..=MAX_FOR_S).contains(&new.for_s) {
        return Err(Problem::invalid("for_s", format!("expected 1 to {MAX_FOR_S} seconds")));
    }
    if new.filter.len() > MAX_FILTER_BYTES {
        let limit = format!("expected at most {MAX_FILTER_BYTES} bytes");
        return Err(Problem::invalid("filter", limit));
    }
    let before = shown(&app)?.0.filter;
    let detail = json!({ "before": before, "filter": new.filter, "for_s": new.for_s });
    let change = Change { caller, action: "log.change", object: new.filter.clone(), detail };
    let work = async { set(&app, &new, before) };
    app.change(change, work).await?;
    shown(&app)
}

fn set(app: &App, new: &NewLog, before: String) -> Result<()> {
    app.server
        .set_log_filter(&new.filter)
        .map_err(|wrong| Problem::invalid("filter", wrong.to_string()))?;
    let mut log = app.log.lock();
    log.before.get_or_insert(before);
    log.changes += 1;
    let change = log.changes;
    let for_ms = i64::try_from(new.for_s * 1000).unwrap_or(i64::MAX);
    log.until_ms = Some(app.now_ms().saturating_add(for_ms));
    let back = tokio::spawn(go_back(app.clone(), change, Duration::from_secs(new.for_s)));
    if let Some(earlier) = log.back.replace(back.abort_handle()) {
        earlier.abort();
    }
    Ok(())
}

/// Returns to what was logged before, unless there is another change meanwhile.
async fn go_back(app: App, change: u64, wait: Duration) {
    tokio::time::sleep(wait).await;
    let mut log = app.log.lock();
    if log.changes != change {
        return;
    }
    log.until_ms = None;
    log.back = None;
    if let Some(before) = log.before.take()
        && let Err(error) = app.server.set_log_filter(&before)
    {
        tracing::error!("the log cannot return to {before:?}: {error}");
    }
}
