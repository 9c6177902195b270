//! What can be asked about twins.

use axum::extract::State;

use serde_json::Value;

use super::types::{NewTwin, Twin, TwinKind, check_name};
use crate::accounts::caller::Caller;
use crate::accounts::membership::Membership;
use crate::prelude::*;
use crate::store::twins;

/// The caller's twins
#[utoipa::path(get, path = "/twin", tag = "twins", responses((status = 200, body = Page<Membership>)))]
pub(crate) async fn list(State(app): State<App>, caller: Caller, conditions: Conditions) -> Answer {
    let items = app.account_cache.twins_of(&caller.account);
    conditions.json(&Page { items, next: None })
}

/// Create a twin
///
/// Requires an admin of the server.
#[utoipa::path(post, path = "/twin", tag = "twins", request_body = NewTwin,
    responses((status = 201, body = Twin)))]
pub(crate) async fn add(
    State(app): State<App>,
    caller: Caller,
    Body(new): Body<NewTwin>,
) -> Answer {
    if !caller.account.server_admin {
        return Err(Problem::forbidden("requires an admin of the server"));
    }
    check_name(&new.id)?;
    let logged = caller.change("twin.add", &new.id, Value::Null);
    let made = app.change_roster_as(logged, move |db| {
        let kind = new.kind.unwrap_or(TwinKind::Meters);
        if !twins::add(db.within(&new.id), &new.name, kind, new.centre, Time::now())? {
            return Err(Problem::conflict("a twin with this name exists"));
        }
        twins::get(db.within(&new.id))?.ok_or_else(|| Problem::missing("twin"))
    });
    json(StatusCode::CREATED, &made.await?)
}

/// One twin
#[utoipa::path(get, path = "/{twin}", tag = "twins", responses((status = 200, body = Twin)))]
pub(crate) async fn show(Call(app, member): Call, conditions: Conditions) -> Answer {
    let twin = member.read(&app, |db| twins::get(db)?.ok_or_else(|| Problem::missing("twin")));
    conditions.json(&twin.await?)
}
