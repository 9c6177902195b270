//! The caller of a request: to whom its credentials belong, and what that role may do.
//!
//! Credentials are in the Authorization header, or those of a browser's session (`web_sessions`), whose cookie alone does
//! nothing. A browser may remember a password for the Basic scheme and send it with any page's requests, so that pages
//! may not use that.
//!
//! They are checked when a request comes. What lasts longer, a body that is still being sent or an answer that goes on,
//! asks again ([`Caller::still_may`]).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fulmar_http::NoLongerAllowed;

pub(crate) use crate::administrators::Role;
use crate::administrators::{Credentials, Holds, Login, Principal, Refused};
use crate::app::App;
use crate::local::LocalCaller;
use crate::problem::{Problem, Result, unauthorized};
use crate::web_sessions;

/// The user who sent a request, and from where.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// For the log of changes: an address, or `local`.
    pub(crate) from: String,
    pub(crate) rights: Rights,
}

impl Caller {
    pub(crate) fn new(Login { principal, holds }: Login, from: IpAddr) -> Caller {
        let Principal { name, role } = principal;
        Caller { name, role, from: from.to_string(), rights: Rights(holds) }
    }

    /// Returns true while the credentials are valid and their user has this role or one above it.
    pub(crate) fn still_may(&self, role: Role) -> bool {
        (self.rights.0)().is_some_and(|now| now >= role)
    }
}

/// A caller's present rights.
#[derive(Clone)]
pub(crate) struct Rights(Holds);

fulmar_text::opaque_debug!(Rights);

/// Who sent a request, for what comes after its head; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct AskedBy(Arc<OnceLock<Caller>>);

impl AskedBy {
    /// The user, if the request has valid credentials.
    pub(crate) fn name(&self) -> Option<&str> {
        self.0.get().map(|caller| &*caller.name)
    }

    /// The body has come, which may have taken its time.
    pub(crate) fn ask_again(&self) -> Result<()> {
        match self.0.get() {
            Some(caller) if !caller.still_may(caller.role) => {
                Err(unauthorized(NoLongerAllowed::DETAIL))
            }
            _ => Ok(()),
        }
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Caller> {
        let caller = match parts.extensions.get::<ConnectInfo<LocalCaller>>() {
            Some(ConnectInfo(local)) => Caller {
                name: local.name(),
                role: Role::Administrator,
                from: "local".to_owned(),
                rights: Rights(Arc::new(|| Some(Role::Administrator))),
            },
            None => remote(parts, app).await?,
        };
        let taken = app.requests.take_token(caller.name.clone(), Instant::now());
        taken.map_err(|seconds| Problem::too_often("too many requests of this user", seconds))?;
        if let Some(AskedBy(who)) = parts.extensions.get() {
            drop(who.set(caller.clone()));
        }
        Ok(caller)
    }
}

const HOW: &str = "send Authorization: Bearer TOKEN, or user and password with the Basic scheme";

async fn remote(parts: &Parts, app: &App) -> Result<Caller> {
    let from = address(parts);
    if !parts.headers.contains_key(header::AUTHORIZATION)
        && let Some(cookie) = web_sessions::cookie(parts)
    {
        let principal = app.web_sessions.principal(&cookie, &parts.headers)?;
        let app = app.clone();
        let holds = Arc::new(move || app.web_sessions.role(&cookie));
        return Ok(Caller::new(Login { principal, holds }, from));
    }
    let shown = PresentedCredentials::from_headers(&parts.headers)?;
    Ok(Caller::new(app.log_in(&shown, from).await?, from))
}

/// The address from which a request came.
pub(crate) fn address(parts: &Parts) -> IpAddr {
    let from = parts.extensions.get::<ConnectInfo<SocketAddr>>();
    from.map_or(IpAddr::from(Ipv4Addr::UNSPECIFIED), |from| from.0.ip())
}

impl App {
    /// Checks credentials, within the limits of failed logins. One that is aborted has failed.
    pub(crate) async fn log_in(&self, shown: &PresentedCredentials, from: IpAddr) -> Result<Login> {
        let network = fulmar_text::network::site(from);
        // Before the password is checked, which an aborted login costs as much as a failed one.
        self.failures.take_token(network, Instant::now()).map_err(|seconds| {
            Problem::too_often("too many failed logins from this address: wait", seconds)
        })?;
        match self.administrators.log_in(shown.credentials(), from).await {
            Ok(login) => {
                self.failures.give_back(&network);
                Ok(login)
            }
            Err(Refused::TooOften) => {
                self.failures.give_back(&network);
                Err(Problem::too_often("too many logins: wait", 10))
            }
            Err(refused) => {
                self.login_failed(shown.user(), from, refused);
                Err(match refused {
                    Refused::NoRole => Problem::forbidden(
                        "this user has no administration role, and users of the password file cannot have one; on \
                         the broker's machine, `fulmar ctl users add NAME --role administrator` makes a user who may log in",
                    ),
                    _ => unauthorized(format!("wrong or expired credentials; {HOW}")),
                })
            }
        }
    }
}

/// The credentials of a request.
pub(crate) enum PresentedCredentials {
    Token(String),
    Password(String, String),
}

impl PresentedCredentials {
    fn from_headers(headers: &HeaderMap) -> Result<PresentedCredentials> {
        let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some((scheme, rest)) = value.and_then(|value| value.split_once(' ')) else {
            return Err(unauthorized(HOW));
        };
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return Ok(PresentedCredentials::Token(rest.to_owned()));
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return Err(unauthorized(HOW));
        }
        if headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site") {
            return Err(unauthorized("pages may not use the Basic scheme here: use a token"));
        }
        let decoded = STANDARD.decode(rest).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let decoded = decoded.as_deref().and_then(|text| text.split_once(':'));
        let (user, password) = decoded.ok_or_else(|| unauthorized(HOW))?;
        Ok(PresentedCredentials::Password(user.to_owned(), password.to_owned()))
    }

    fn credentials(&self) -> Credentials<'_> {
        match self {
            PresentedCredentials::Token(token) => Credentials::Token(token),
            PresentedCredentials::Password(user, password) => {
                Credentials::Password { user, password }
            }
        }
    }

    fn user(&self) -> Option<&str> {
        match self {
            PresentedCredentials::Token(_) => None,
            PresentedCredentials::Password(user, _) => Some(user),
        }
    }
}

/// Calls of the API by somebody with one role, or one above it.
macro_rules! at_least {
    ($($name:ident)+) => {$(
        #[doc = "A call of the API by somebody with the role of this name, or one above it."]
        pub(crate) struct $name(pub(crate) App, pub(crate) Caller);

        impl FromRequestParts<App> for $name {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<$name> {
                let caller = Caller::from_request_parts(parts, app).await?;
                if caller.role >= Role::$name {
                    return Ok($name(app.clone(), caller));
                }
                let (role, needed) = (caller.role.name(), Role::$name.name());
                Err(Problem::forbidden(format!(
                    "requires the role {needed}; yours is {role}, which an administrator can change"
                )))
            }
        }
    )+};
}

at_least!(Viewer Operator Administrator);

/// Somebody who may see the overview: any caller, and where that is open everybody on this machine.
pub(crate) struct Onlooker(pub(crate) App);

impl FromRequestParts<App> for Onlooker {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Onlooker> {
        let is_anonymous = !parts.headers.contains_key(header::AUTHORIZATION)
            && web_sessions::cookie(parts).is_none();
        if is_anonymous && app.open_overview && address(parts).is_loopback() {
            return Ok(Onlooker(app.clone()));
        }
        Caller::from_request_parts(parts, app).await.map(|_| Onlooker(app.clone()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn shown(headers: &[(&'static str, &str)]) -> Option<(Option<String>, String)> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        Some(match PresentedCredentials::from_headers(&map).ok()? {
            PresentedCredentials::Token(token) => (None, token),
            PresentedCredentials::Password(user, password) => (Some(user), password),
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
