//! The caller of a request: to whom its credentials belong, and what that role may do.
//!
//! Credentials are in the Authorization header alone. There are no cookies, so that no page can act for a visitor; a
//! browser may however remember a password for the Basic scheme, so that pages may not use that.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::time::Instant;

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::app::App;
use crate::local::LocalCaller;
use crate::problem::Problem;

/// What an administrative user may do; each role includes those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sees clients, sessions, topics and rules.
    Viewer,
    /// Also disconnects, bans, deletes sessions and retained messages, and reads messages.
    Operator,
    /// Also users and rules, backups, and the log of changes.
    Administrator,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Administrator => "administrator",
        })
    }
}

/// An administrative user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The name.
    pub name: String,
    /// What it may do.
    pub role: Role,
}

/// What a request shows of its sender.
#[derive(Clone, Copy)]
pub enum Credentials<'a> {
    /// `Authorization: Bearer TOKEN`.
    Token(&'a str),
    /// `Authorization: Basic`.
    Password {
        /// The name.
        user: &'a str,
        /// The password.
        password: &'a str,
    },
}

/// Why credentials do not make an administrative user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// They are wrong.
    Wrong,
    /// They belong to a user without such a role.
    NoRole,
    /// There were too many attempts, or the server is busy: later.
    TooOften,
}

/// An answer that may take the time of a hash.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Principal, Refused>> + Send + 'a>>;

/// Where administrative users are.
pub trait Administrators: Send + Sync {
    /// To whom the credentials of a request from this address belong.
    fn principal<'a>(&'a self, credentials: Credentials<'a>, from: IpAddr) -> Answer<'a>;
}

/// The user who sent a request, and from where.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// For the log of changes: an address, or `local`.
    pub(crate) from: String,
}

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Caller, Problem> {
        let caller = match parts.extensions.get::<ConnectInfo<LocalCaller>>() {
            Some(ConnectInfo(local)) => Caller {
                name: local.uid.map_or_else(|| "local".to_owned(), |uid| format!("local:{uid}")),
                role: Role::Administrator,
                from: "local".to_owned(),
            },
            None => remote(parts, app).await?,
        };
        let taken = app.requests.take(caller.name.clone(), Instant::now());
        taken.map_err(|seconds| Problem::too_often("too many requests of this user", seconds))?;
        Ok(caller)
    }
}

const HOW: &str = "send Authorization: Bearer TOKEN, or user and password with the Basic scheme";

async fn remote(parts: &Parts, app: &App) -> Result<Caller, Problem> {
    let from = parts.extensions.get::<ConnectInfo<SocketAddr>>();
    let from = from.map_or(IpAddr::from(Ipv4Addr::UNSPECIFIED), |from| from.0.ip());
    let shown = Shown::of(&parts.headers)?;
    app.failures.check(&from, Instant::now()).map_err(|seconds| {
        Problem::too_often("too many failed logins from this address: wait", seconds)
    })?;
    let outcome = app.administrators.principal(shown.credentials(), from).await;
    match outcome {
        Ok(Principal { name, role }) => Ok(Caller { name, role, from: from.to_string() }),
        Err(Refused::TooOften) => Err(Problem::too_often("too many logins: wait", 10)),
        Err(refused) => {
            let _ = app.failures.take(from, Instant::now());
            app.login_failed(shown.user(), from, refused);
            Err(match refused {
                Refused::NoRole => Problem::forbidden(
                    "this user has no administration role: ask an administrator for one",
                ),
                _ => Problem::unauthorized(format!("wrong or expired credentials; {HOW}")),
            })
        }
    }
}

/// The credentials of a request.
enum Shown {
    Token(String),
    Password(String, String),
}

impl Shown {
    fn of(headers: &HeaderMap) -> Result<Shown, Problem> {
        let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some((scheme, rest)) = value.and_then(|value| value.split_once(' ')) else {
            return Err(Problem::unauthorized(HOW));
        };
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return Ok(Shown::Token(rest.to_owned()));
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return Err(Problem::unauthorized(HOW));
        }
        if headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site") {
            return Err(Problem::unauthorized(
                "pages may not use the Basic scheme here: use a token",
            ));
        }
        let decoded = STANDARD.decode(rest).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let decoded = decoded.as_deref().and_then(|text| text.split_once(':'));
        let (user, password) = decoded.ok_or_else(|| Problem::unauthorized(HOW))?;
        Ok(Shown::Password(user.to_owned(), password.to_owned()))
    }

    fn credentials(&self) -> Credentials<'_> {
        match self {
            Shown::Token(token) => Credentials::Token(token),
            Shown::Password(user, password) => Credentials::Password { user, password },
        }
    }

    fn user(&self) -> Option<&str> {
        match self {
            Shown::Token(_) => None,
            Shown::Password(user, _) => Some(user),
        }
    }
}

/// Callers of one role, or one above it.
macro_rules! at_least {
    ($($name:ident)+) => {$(
        #[doc = concat!("A caller with the role of this name, or one above it.")]
        #[derive(Clone, Debug)]
        pub(crate) struct $name(pub(crate) Caller);

        impl FromRequestParts<App> for $name {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<$name, Problem> {
                let caller = Caller::from_request_parts(parts, app).await?;
                if caller.role >= Role::$name {
                    return Ok($name(caller));
                }
                let (role, needed) = (caller.role, Role::$name);
                Err(Problem::forbidden(format!("requires the role {needed}; yours is {role}")))
            }
        }
    )+};
}

at_least!(Operator Administrator);

/// Any caller: each has at least the role of a viewer.
pub(crate) type Viewer = Caller;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn shown(headers: &[(&'static str, &str)]) -> Option<(Option<String>, String)> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        Some(match Shown::of(&map).ok()? {
            Shown::Token(token) => (None, token),
            Shown::Password(user, password) => (Some(user), password),
        })
    }

    #[test]
    fn credentials_are_in_one_header_only() {
        let basic = format!("Basic {}", STANDARD.encode("ann:a:b"));
        assert_eq!(shown(&[("authorization", "bearer x.y")]), Some((None, "x.y".into())));
        assert_eq!(shown(&[("authorization", &basic)]), Some((Some("ann".into()), "a:b".into())));
        for bad in ["Digest x", "Basic", "Basic ?", "Basic YW5u"] {
            assert_eq!(shown(&[("authorization", bad)]), None, "{bad}");
        }
        assert_eq!(shown(&[("cookie", "token=x.y")]), None);
    }

    #[test]
    fn pages_may_not_use_a_password_that_a_browser_remembers() {
        let basic = format!("Basic {}", STANDARD.encode("ann:b"));
        for header in ["origin", "sec-fetch-site"] {
            assert_eq!(shown(&[("authorization", &basic), (header, "x")]), None, "{header}");
            assert!(shown(&[("authorization", "Bearer x"), (header, "x")]).is_some());
        }
    }
}
