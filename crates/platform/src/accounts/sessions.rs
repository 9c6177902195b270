//! Logging in and out, and who one is.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{ConnectInfo, Extension, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::caller::{Caller, Member};
use super::password;
use super::roster::Account;
use crate::extract::Body;
use crate::platform::App;
use crate::problem::Problem;
use crate::respond::{Answer, Conditions, done, json};
use crate::role::Role;
use crate::store::accounts::{self, SessionRow};
use crate::text::{Name, Text};
use crate::time::{SECOND_MS, Time};
use crate::twins::TwinKind;

/// Sessions an account may have; the oldest gives way.
const MAX_SESSIONS: usize = 32;

/// What is asked for at the door.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    /// The account's name.
    user: Text<1, 200>,
    /// Its password.
    password: Text<1, 200>,
}

/// Someone who is logged in.
#[derive(Serialize, ToSchema)]
pub(crate) struct Session {
    /// What to send as `Authorization: Bearer …`, and as password of MQTT; told once.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// When the token ends.
    expires_at: Time,
    /// Who it is for.
    user: User,
}

/// An account, as it sees itself.
#[derive(Serialize, ToSchema)]
pub(crate) struct User {
    name: Name,
    display_name: String,
    /// The highest of its roles; null for an account without any.
    role: Option<Role>,
    /// Whether it is an admin of the server.
    server_admin: bool,
    /// The twins it is a member of.
    twins: Vec<Membership>,
}

/// What an account is in a twin.
#[derive(Serialize, ToSchema)]
pub(crate) struct Membership {
    pub(crate) id: Name,
    pub(crate) name: String,
    pub(crate) kind: TwinKind,
    pub(crate) role: Role,
}

impl User {
    fn new(app: &App, account: &Account) -> User {
        let twins = app.roster.twins_of(account);
        let held = |role: &Role| twins.iter().any(|twin| twin.role == *role);
        let role =
            if account.server_admin { Some(Role::Admin) } else { Role::ALL.into_iter().find(held) };
        User {
            name: account.name.clone(),
            display_name: account.display_name.clone(),
            role,
            server_admin: account.server_admin,
            twins,
        }
    }
}

/// Log in
#[utoipa::path(post, path = "/session", tag = "session", request_body = Login, security(()),
    responses((status = 201, body = Session)))]
pub(crate) async fn log_in(
    State(app): State<App>,
    peer: Option<Extension<ConnectInfo<SocketAddr>>>,
    Body(login): Body<Login>,
) -> Answer {
    let address = peer.map(|Extension(ConnectInfo(peer))| peer.ip());
    let address = address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let who = (login.user.to_string(), address);
    app.logins.take(who.clone(), Instant::now()).map_err(|seconds| {
        tracing::warn!(user = ?who.0, peer = %address, "too many failed logins");
        Problem::too_often("too many failed logins: wait", seconds)
    })?;
    let account = check(&app, &login).await?;
    let Some(account) = account else {
        tracing::info!(user = ?who.0, peer = %address, "login refused");
        return Err(Problem::unauthorized("user name or password is wrong"));
    };
    app.logins.give_back(&who);
    let now = Time::now();
    let session = SessionRow {
        id: Uuid::new_v4().to_string(),
        account: account.name.clone(),
        issued_at: now,
        expires_at: now.plus_ms(i64::from(app.settings.token_lifetime_s) * SECOND_MS),
    };
    let token = app.signer.sign(&session)?;
    let expires_at = session.expires_at;
    app.change_roster(move |db| Ok(accounts::add_session(db, &session, MAX_SESSIONS)?)).await?;
    let user = User::new(&app, &account);
    json(StatusCode::CREATED, &Session { token: Some(token), expires_at, user })
}

/// The account, if the password is its own.
async fn check(app: &App, login: &Login) -> Result<Option<Arc<Account>>, Problem> {
    let name = login.user.to_string();
    let hash = app.store.read(move |db| Ok(accounts::password(db, &name)?)).await?;
    let password = login.password.to_string();
    let right = app.hashing(move || password::is_right(&password, hash.as_deref())).await?;
    Ok(if right { app.roster.account(&login.user) } else { None })
}

/// Who is logged in
#[utoipa::path(get, path = "/session", tag = "session", responses((status = 200, body = Session)))]
pub(crate) async fn show(State(app): State<App>, caller: Caller, conditions: Conditions) -> Answer {
    let user = User::new(&app, &caller.account);
    conditions.json(&Session { token: None, expires_at: caller.expires_at, user })
}

/// Log out
///
/// The token is dead at once, for MQTT too.
#[utoipa::path(delete, path = "/session", tag = "session", responses((status = 204)))]
pub(crate) async fn log_out(State(app): State<App>, caller: Caller) -> Answer {
    end(&app, caller).await
}

/// Log out, as the study's app does
#[utoipa::path(delete, path = "/{twin}/session", tag = "session",
    params(("twin" = Name, Path)), responses((status = 204)))]
pub(crate) async fn log_out_of_twin(State(app): State<App>, member: Member) -> Answer {
    end(&app, member.caller).await
}

async fn end(app: &App, caller: Caller) -> Answer {
    app.change_roster(move |db| Ok(accounts::end_session(db, &caller.session)?)).await?;
    done()
}
