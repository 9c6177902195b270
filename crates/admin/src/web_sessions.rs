//! Sessions of browsers, for the broker's page: after a login, a page needs no password and no token any more.
//!
//! A session has two secrets, and a request needs both. The first is a cookie that scripts cannot read (`HttpOnly`) and
//! that no other site's page sends (`SameSite=Strict`). The second is in the response, and the page sends it in a header
//! (`x-fulmar-session`), which pages of other origins cannot do. A browser sends cookies to all ports of a host, also to
//! servers of others; the second secret stays with the page's origin, which includes the port.
//!
//! Sessions are in memory: a restart of the server ends them. So does what makes the login invalid (another password, a
//! revoked token, a disabled user), and a changed role has effect with the next request.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::administrators::{Holds, Login, Principal, Role};
use crate::problem::{Problem, Result, unauthorized};

/// The header with the second secret.
const HEADER: &str = "x-fulmar-session";
/// A browser sends a cookie with this prefix only to the host that has set it, and only over TLS.
const COOKIE: &str = "__Host-fulmar";
/// Longest life of a session, and the longest time without a request.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(12 * 3600);
const MAX_IDLE: Duration = Duration::from_secs(3600);
/// Sessions at most, and those of one user: the one that was used least recently gives way.
const MAX_SESSIONS: usize = 500;
const MAX_SESSIONS_PER_USER: usize = 10;

type Hash = [u8; 32];

/// All sessions, by the hash of the cookie's secret.
#[derive(Default)]
pub(crate) struct WebSessions(Mutex<HashMap<Hash, WebSession>>);

fulmar_text::opaque_debug!(WebSessions);

struct WebSession {
    name: String,
    holds: Holds,
    second: Hash,
    until: Instant,
    used: Instant,
}

/// The secrets of a new session.
pub(crate) struct Secrets {
    pub(crate) cookie: String,
    pub(crate) second: String,
}

fn secret() -> Result<String> {
    let mut bytes = [0; 32];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Problem::unavailable("the system has no random numbers"))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

fn hash(secret: &str) -> Hash {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, secret.as_bytes()).as_ref());
    hash
}

fn ended() -> Problem {
    unauthorized("the session has ended: log in again")
}

impl WebSessions {
    /// Whose session this is. A request without the second secret ends nothing: it may be another page's.
    pub(crate) fn principal(&self, cookie: &str, headers: &HeaderMap) -> Result<Principal> {
        check_origin(headers)?;
        let second = headers.get(HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if second.is_empty() {
            return Err(unauthorized(format!(
                "the header {HEADER} is missing: it has the second secret, which the login's answer contains"
            )));
        }
        let (first, now) = (hash(cookie), Instant::now());
        let mut sessions = self.0.lock();
        let session = sessions.get_mut(&first).ok_or_else(ended)?;
        // Hashes of secrets with 256 random bits: a comparison's time shows nothing that could be guessed on.
        if session.second != hash(second) {
            return Err(ended());
        }
        let role = (session.holds)().filter(|_| session.is_alive(now));
        let Some(role) = role else {
            sessions.remove(&first);
            return Err(ended());
        };
        session.used = now;
        Ok(Principal { name: session.name.clone(), role })
    }

    /// Returns the present rights of the session's user; `None` once it has ended. It does not count as use of the session.
    pub(crate) fn role(&self, cookie: &str) -> Option<Role> {
        let sessions = self.0.lock();
        let session =
            sessions.get(&hash(cookie)).filter(|session| session.is_alive(Instant::now()));
        session.and_then(|session| (session.holds)())
    }

    pub(crate) fn begin(&self, login: Login, now: Instant) -> Result<Secrets> {
        let secrets = Secrets { cookie: secret()?, second: secret()? };
        let Login { principal, holds } = login;
        let mut sessions = self.0.lock();
        sessions.retain(|_, session| session.is_alive(now));
        make_room(&mut sessions, MAX_SESSIONS_PER_USER, |session| session.name == principal.name);
        make_room(&mut sessions, MAX_SESSIONS, |_| true);
        let (second, until) = (hash(&secrets.second), now + MAX_AGE);
        let session = WebSession { name: principal.name, holds, second, until, used: now };
        sessions.insert(hash(&secrets.cookie), session);
        Ok(secrets)
    }

    pub(crate) fn end(&self, cookie: &str) {
        self.0.lock().remove(&hash(cookie));
    }
}

impl WebSession {
    fn is_alive(&self, now: Instant) -> bool {
        now < self.until && now.saturating_duration_since(self.used) < MAX_IDLE
    }
}

/// Removes sessions until one more of this kind fits.
fn make_room(
    sessions: &mut HashMap<Hash, WebSession>,
    most: usize,
    counts: impl Fn(&WebSession) -> bool,
) {
    while sessions.values().filter(|session| counts(session)).count() >= most {
        let of_kind = sessions.iter().filter(|(_, session)| counts(session));
        let Some(oldest) = of_kind.min_by_key(|(_, session)| session.used).map(|(key, _)| *key)
        else {
            return;
        };
        sessions.remove(&oldest);
    }
}

/// Refuses requests of other origins' pages.
pub(crate) fn check_origin(headers: &HeaderMap) -> Result<()> {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    match site {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => Err(Problem::forbidden("pages of other origins may not use a session")),
    }
}

/// The name of this server's cookie: browsers have the same cookies for all ports of a host.
fn cookie_name(parts: &Parts) -> String {
    let host = parts.headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let port = match parts.uri.authority() {
        Some(authority) => authority.port_u16(),
        None => host.and_then(|host| host.rsplit_once(':')?.1.parse().ok()),
    };
    format!("{COOKIE}-{}", port.unwrap_or(443))
}

/// The secret in this server's cookie.
pub(crate) fn cookie(parts: &Parts) -> Option<String> {
    let name = cookie_name(parts);
    let lines = parts.headers.get_all(header::COOKIE).iter();
    let mut pairs = lines.filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(';'));
    pairs.find_map(|pair| {
        let (found, value) = pair.trim().split_once('=')?;
        (found == name).then(|| value.to_owned())
    })
}

pub(crate) fn set_cookie(parts: &Parts, value: &str, max_age: Duration) -> Result<HeaderValue> {
    let (name, age) = (cookie_name(parts), max_age.as_secs());
    let text = format!("{name}={value}; Path=/; Max-Age={age}; Secure; HttpOnly; SameSite=Strict");
    // Letters, digits and punctuation of our own.
    HeaderValue::from_str(&text).map_err(|_| Problem::malformed("the request names no valid host"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn login(name: &str) -> Login {
        let principal = Principal { name: name.to_owned(), role: Role::Viewer };
        Login { principal, holds: Arc::new(|| Some(Role::Viewer)) }
    }

    #[test]
    fn sessions_are_bounded_and_end() {
        let (sessions, start) = (WebSessions::default(), Instant::now());
        let mut first = None;
        for number in 0..=MAX_SESSIONS_PER_USER {
            let at = start + Duration::from_secs(number as u64);
            let secrets = sessions.begin(login("ann"), at).ok();
            first = first.or(secrets);
        }
        let first = first.map(|secrets| hash(&secrets.cookie)).unwrap_or_default();
        assert!(!sessions.0.lock().contains_key(&first), "the oldest gives way");
        for number in 0..2 * MAX_SESSIONS {
            let _ = sessions.begin(login(&format!("user-{number}")), start);
        }
        assert_eq!(sessions.0.lock().len(), MAX_SESSIONS);
        let _ = sessions.begin(login("bob"), start + MAX_IDLE + Duration::from_secs(20));
        assert_eq!(sessions.0.lock().len(), 1);
    }
}
