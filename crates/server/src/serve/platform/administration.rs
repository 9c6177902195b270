//! The platform for the administration: its server administrators, the log of changes, and commands of `fulmar user` and
//! `fulmar twin` through the administration socket.

use axum::extract::ConnectInfo;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;
use axum::routing::post;
use fulmar_admin::{LocalCaller, Store};
use fulmar_identity::NewEntry;
use fulmar_platform::Platform;

use fulmar_part::Offers;

/// Offers these, where there is an administration.
pub(super) fn offer(platform: &Platform, offers: &mut Offers) {
    let Some(log) = offers.administration_log.clone() else { return };
    platform.log_changes(Box::new(log.clone()));
    offers.local_routes = commands(platform.clone(), log);
}

/// Returns the routes for `fulmar user` and `fulmar twin` on a cluster's node. A process that may open the socket may
/// do everything.
fn commands(platform: Platform, log: Store) -> axum::Router {
    let run = move |ConnectInfo(by): ConnectInfo<LocalCaller>, command: axum::body::Bytes| async move {
        let work = move || {
            let command: fulmar_platform::AdminCommand = serde_json::from_slice(&command)?;
            let answer = match command.change() {
                Some((action, object, detail)) => {
                    let entry = NewEntry::local(&by.name(), action, object, detail.to_string());
                    log.logged(entry, || anyhow::Ok(platform.administer(&command)?))?
                }
                None => platform.administer(&command)?,
            };
            anyhow::Ok(serde_json::to_string(&answer)?)
        };
        let problem = match tokio::task::spawn_blocking(work).await {
            Ok(Ok(answer)) => return answer.into_response(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "this failed in the server: see its log".to_owned(),
        };
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        let problem = serde_json::json!({ "detail": problem }).to_string();
        (StatusCode::CONFLICT, kind, problem).into_response()
    };
    let path = format!("{}{}", fulmar_admin::PREFIX, fulmar_admin::PLATFORM_COMMANDS);
    axum::Router::new().route(&path, post(run))
}
