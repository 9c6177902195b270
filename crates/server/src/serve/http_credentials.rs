//! The credentials of an HTTP request that publishes: a user and a password with the Basic scheme (RFC 7617), or a token
//! with Bearer (RFC 6750).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, header};

/// The credentials of a request, as CONNECT has them.
#[derive(Default)]
pub(super) struct Credentials {
    pub(super) username: Option<String>,
    pub(super) password: Option<Vec<u8>>,
}

impl Credentials {
    /// Those of the Authorization header, or none without one; `None` for another scheme.
    pub(super) fn from_headers(headers: &HeaderMap) -> Option<Credentials> {
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return Some(Credentials::default());
        };
        let (scheme, rest) = value.to_str().ok()?.split_once(' ')?;
        if scheme.eq_ignore_ascii_case("bearer") {
            let password = Some(rest.trim().as_bytes().to_vec());
            return Some(Credentials { username: None, password });
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return None;
        }
        let text = String::from_utf8(STANDARD.decode(rest.trim()).ok()?).ok()?;
        let (user, password) = text.split_once(':')?;
        let (username, password) = (Some(user.to_owned()), Some(password.as_bytes().to_vec()));
        Some(Credentials { username, password })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_those_of_http() {
        let read = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            Credentials::from_headers(&headers).map(|found| (found.username, found.password))
        };
        let basic = format!("Basic {}", STANDARD.encode("ann:a:b"));
        assert_eq!(read(&basic), Some((Some("ann".into()), Some(b"a:b".to_vec()))));
        assert_eq!(read("bearer x.y.z"), Some((None, Some(b"x.y.z".to_vec()))));
        for bad in ["Digest x", "Basic", "Basic ?", "Basic YW5u"] {
            assert!(read(bad).is_none(), "{bad}");
        }
        let none = Credentials::from_headers(&HeaderMap::new()).unwrap();
        assert!(none.username.is_none() && none.password.is_none());
    }
}
