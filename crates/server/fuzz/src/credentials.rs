//! The Authorization header of `POST /publish`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, header};

use crate::http_credentials::Credentials;

/// The header's value. What is in it is passed on whole, and what was read reads again when it is written.
pub fn credentials(data: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(data) else { return };
    let Some((username, password)) = read(value) else { return };
    let password = password.expect("a header with credentials has a password or a token");
    let text = std::str::from_utf8(&password).expect("text");
    assert!(text.len() + username.as_ref().map_or(0, String::len) <= data.len());
    let written = match &username {
        Some(user) => {
            assert!(!user.contains(':'), "{user:?}");
            format!("Basic {}", STANDARD.encode(format!("{user}:{text}")))
        }
        None => format!("Bearer {text}"),
    };
    let again = read(HeaderValue::from_str(&written).expect("a header"));
    assert_eq!(again, Some((username, Some(password))));
}

fn read(value: HeaderValue) -> Option<(Option<String>, Option<Vec<u8>>)> {
    let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value)]);
    Credentials::from_headers(&headers).map(|found| (found.username, found.password))
}
