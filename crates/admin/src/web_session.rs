//! Logging a browser in and out; `web_sessions` has what a session is.

use std::time::{Duration, Instant};

use axum::extract::{FromRequestParts as _, Request, State};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};

use crate::administrators::{Principal, Role};
use crate::caller::{Caller, PresentedCredentials, address};
use crate::extract::body;
use crate::prelude::*;
use crate::web_sessions::{MAX_AGE, Secrets, check_origin, cookie, set_cookie};

/// User and password, or a token.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Credentials {
    /// The user.
    user: Option<String>,
    /// Password.
    password: Option<String>,
    /// An API token, or one of a server admin of the platform.
    token: Option<String>,
}

/// A session that has begun.
#[derive(Serialize, ToSchema)]
pub(crate) struct Begun {
    /// The user.
    name: String,
    /// Role.
    role: Role,
    /// For the header `x-fulmar-session` of each request, beside the cookie.
    session: String,
    /// Seconds until it ends at the latest; it also ends after an hour without requests.
    ends_in_s: u64,
}

/// Log in a browser
///
/// Sets a cookie that scripts cannot read. Each later request needs the cookie and the header `x-fulmar-session`.
#[utoipa::path(post, path = "/session", request_body = Credentials, responses((status = 201, body = Begun)))]
pub(crate) async fn begin(State(app): State<App>, request: Request) -> Result<Response> {
    let (parts, sent) = request.into_parts();
    check_origin(&parts.headers)?;
    // Pages of other origins cannot send this type without asking the server first.
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if !kind.is_some_and(|kind| kind.starts_with("application/json")) {
        return Err(Problem::malformed("send Content-Type: application/json"));
    }
    let shown = match body::<Credentials>(sent).await? {
        Credentials { token: Some(token), user: None, password: None } => {
            PresentedCredentials::Token(token)
        }
        Credentials { token: None, user: Some(user), password: Some(password) } => {
            PresentedCredentials::Password(user, password)
        }
        _ => return Err(Problem::malformed("send user and password, or a token")),
    };
    let from = address(&parts);
    let login = app.log_in(&shown, from).await?;
    let Principal { name, role } = login.principal.clone();
    let caller = Caller::new(login.clone(), from);
    let change =
        Change { caller, action: "session.begin", object: name.clone(), detail: Value::Null };
    let begin = async { app.web_sessions.begin(login, Instant::now()) };
    let Secrets { cookie, second } = app.change(change, begin).await?;
    let cookie = set_cookie(&parts, &cookie, MAX_AGE)?;
    let begun = Begun { name, role, session: second, ends_in_s: MAX_AGE.as_secs() };
    Ok((StatusCode::CREATED, [(header::SET_COOKIE, cookie)], Json(begun)).into_response())
}

/// Log out a browser
#[utoipa::path(delete, path = "/session", responses((status = 204, description = "The session has ended")))]
pub(crate) async fn end(State(app): State<App>, request: Request) -> Result<Response> {
    let (mut parts, _) = request.into_parts();
    Caller::from_request_parts(&mut parts, &app).await?;
    let cookie = cookie(&parts).ok_or_else(|| Problem::not_found("there is no session"))?;
    app.web_sessions.end(&cookie);
    let cookie = set_cookie(&parts, "", Duration::ZERO)?;
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}
