//! Twins: an installation each, a utility's meters or homes with sensors, made by the server's admin.

use crate::store::sql::{FromSql, Mismatch, ToSql, Value};
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::accounts::caller::{Caller, Member};
use crate::accounts::sessions::Membership;
use crate::extract::Body;
use crate::meters::types::words;
use crate::number::Place;
use crate::platform::App;
use crate::problem::Problem;
use crate::respond::{Answer, Conditions, Page, json};
use crate::store::twins;
use crate::text::{Name, Title};
use crate::time::Time;

/// Names that are the server's own addresses.
const RESERVED: [&str; 16] = [
    "api",
    "assets",
    "mqtt",
    "health",
    "metrics",
    "connections",
    "static",
    "icons",
    "fonts",
    "docs",
    "login",
    "logout",
    "app",
    "map",
    "office",
    "well-known",
];

words! {
    /// What a twin is about.
    TwinKind {
        /// A utility's meters.
        Meters = "meters",
        /// Homes with sensors.
        Homes = "homes",
    }
}

/// An installation.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Twin {
    pub(crate) id: Name,
    pub(crate) name: String,
    pub(crate) kind: TwinKind,
    /// Where a map begins: what was set, or the middle of its meters or homes.
    pub(crate) centre: Option<Place>,
    /// How many meters it has.
    pub(crate) meters: u64,
    /// How many work lists it has.
    pub(crate) work_lists: u64,
    /// How many homes it has.
    pub(crate) homes: u64,
}

/// A twin to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTwin {
    id: Name,
    name: Title,
    /// What it is about: meters, unless it says otherwise.
    kind: Option<TwinKind>,
    centre: Option<Place>,
}

/// Why the name cannot be a twin's.
pub(crate) fn check_name(id: &Name) -> Result<(), Problem> {
    let lower = id.to_ascii_lowercase();
    if lower.contains(['.', '@']) || RESERVED.contains(&lower.as_str()) {
        let detail =
            "the server uses this name itself; a twin's name must not contain . or @ either";
        return Err(Problem::invalid("id", detail));
    }
    Ok(())
}

/// The caller's twins
#[utoipa::path(get, path = "/twin", tag = "twins", responses((status = 200, body = Page<Membership>)))]
pub(crate) async fn list(State(app): State<App>, caller: Caller, conditions: Conditions) -> Answer {
    let items = app.account_cache.twins_of(&caller.account);
    conditions.json(&Page { items, next: None })
}

/// Make a twin
///
/// Takes an admin of the server.
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
    let made = app.change_roster(move |db| {
        let kind = new.kind.unwrap_or(TwinKind::Meters);
        if !twins::add(db, &new.id, &new.name, kind, new.centre, Time::now())? {
            return Err(Problem::conflict("a twin with this name exists"));
        }
        twins::get(db, &new.id)?.ok_or_else(|| Problem::not_found("twin"))
    });
    json(StatusCode::CREATED, &made.await?)
}

/// One twin
#[utoipa::path(get, path = "/{twin}", tag = "twins", params(("twin" = Name, Path)),
    responses((status = 200, body = Twin)))]
pub(crate) async fn show(State(app): State<App>, member: Member, conditions: Conditions) -> Answer {
    let twin = app
        .store
        .read(move |db| twins::get(db, &member.twin)?.ok_or_else(|| Problem::not_found("twin")));
    conditions.json(&twin.await?)
}
