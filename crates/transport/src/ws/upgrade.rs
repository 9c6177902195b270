//! The HTTP request that becomes a WebSocket (RFC 6455 section 4.2), or its refusal in words.
//!
//! MQTT is served at `/mqtt` and `/`, subprotocol `mqtt` (MQTT 5.0 section 6; `mqttv3.1` is what
//! older clients ask for). Anything else is answered with a status and one line that says what to
//! do; no other HTTP is spoken here.

use tungstenite::error::{Error, ProtocolError};
use tungstenite::handshake::machine::TryParse;
use tungstenite::handshake::server::{Request, create_response, write_response};
use tungstenite::http::HeaderValue;
use tungstenite::http::Response;

/// Longest request accepted, in bytes; longer ones get status 431.
pub(crate) const MAX_REQUEST_BYTES: usize = 8 * 1024;

/// Paths at which MQTT is served.
pub const PATHS: [&str; 2] = ["/mqtt", "/"];

/// Subprotocols served, the first being the standard's.
const PROTOCOLS: [&str; 2] = ["mqtt", "mqttv3.1"];

/// The response to a page of another origin.
pub const NOT_THIS_PAGE: &str = "pages of this origin may not connect: add it to [http] allowed_origins, or, behind a proxy, \
     have the proxy pass on the Host header";

/// The next step with the bytes received so far.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Upgrade {
    /// Wait for more.
    Incomplete,
    /// Send `response`; WebSocket frames begin after `consumed` bytes.
    Accept { consumed: usize, response: Vec<u8> },
    /// Send `response` and close.
    Reject { response: Vec<u8>, reason: &'static str },
}

/// Answers the request at the start of `received`; `admits` decides whether its page may connect.
pub(crate) fn answer(received: &[u8], admits: impl FnOnce(&Request) -> bool) -> Upgrade {
    let parsed = Request::try_parse(&received[..received.len().min(MAX_REQUEST_BYTES)]);
    match parsed {
        Ok(Some((_, request))) if !admits(&request) => {
            Refusal { status: "403 Forbidden", reason: NOT_THIS_PAGE }.into()
        }
        Ok(Some((consumed, request))) => match accept(&request).and_then(|r| written(&r)) {
            Ok(response) => Upgrade::Accept { consumed, response },
            Err(refusal) => refusal.into(),
        },
        Ok(None) if received.len() >= MAX_REQUEST_BYTES => {
            let status = "431 Request Header Fields Too Large";
            Refusal { status, reason: "the request is too long" }.into()
        }
        Ok(None) => Upgrade::Incomplete,
        Err(error) => refusal(&error).into(),
    }
}

fn written(response: &Response<()>) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::with_capacity(192);
    write_response(&mut bytes, response).map_err(|error| refusal(&error))?;
    Ok(bytes)
}

/// The answer (101) that makes a WebSocket with MQTT of the connection `request` came on.
///
/// # Errors
/// It is no such request.
pub fn accept(request: &Request) -> Result<Response<()>, Refusal> {
    if !PATHS.contains(&request.uri().path()) {
        return Err(Refusal { status: "404 Not Found", reason: "MQTT is served at /mqtt" });
    }
    let mut response = create_response(request).map_err(|error| refusal(&error))?;
    if let Some(protocol) = choose_protocol(request)? {
        let value = HeaderValue::from_static(protocol);
        response.headers_mut().insert("Sec-WebSocket-Protocol", value);
    }
    Ok(response)
}

/// The subprotocol to answer with; `None` for a client that named none, which some do.
///
/// # Errors
/// The client names only others.
pub fn choose_protocol(request: &Request) -> Result<Option<&'static str>, Refusal> {
    let mut offered = request.headers().get_all("Sec-WebSocket-Protocol").iter().peekable();
    if offered.peek().is_none() {
        return Ok(None);
    }
    let names: Vec<_> = offered
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(',').map(str::trim))
        .collect();
    PROTOCOLS.into_iter().find(|protocol| names.contains(protocol)).map(Some).ok_or(Refusal {
        status: "400 Bad Request",
        reason: "ask for the WebSocket subprotocol mqtt",
    })
}

/// Why a request becomes no WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Status code and its name.
    pub status: &'static str,
    /// Advice to the client, in a sentence.
    pub reason: &'static str,
}

fn refusal(error: &Error) -> Refusal {
    let (status, reason) = match error {
        Error::Protocol(ProtocolError::WrongHttpMethod) => {
            ("405 Method Not Allowed", "a WebSocket must begin with GET")
        }
        Error::Protocol(
            ProtocolError::MissingConnectionUpgradeHeader
            | ProtocolError::MissingUpgradeWebSocketHeader
            | ProtocolError::MissingSecWebSocketVersionHeader,
        ) => ("426 Upgrade Required", "this is MQTT over WebSocket, version 13"),
        _ => ("400 Bad Request", "this is not a valid WebSocket request"),
    };
    Refusal { status, reason }
}

impl From<Refusal> for Upgrade {
    fn from(Refusal { status, reason }: Refusal) -> Upgrade {
        let upgrade = if status.starts_with("426") {
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        } else if status.starts_with("405") {
            "Connection: close\r\nAllow: GET\r\n"
        } else {
            "Connection: close\r\n"
        };
        let length = reason.len() + 1;
        let response = format!(
            "HTTP/1.1 {status}\r\n{upgrade}Content-Type: text/plain\r\n\
             Content-Length: {length}\r\n\r\n{reason}\n"
        );
        Upgrade::Reject { response: response.into_bytes(), reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(line: &str, headers: &str) -> Vec<u8> {
        format!("{line}\r\nHost: broker\r\n{headers}\r\n").into_bytes()
    }

    const UPGRADE: &str = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

    fn answer(received: &[u8]) -> Upgrade {
        super::answer(received, |_| true)
    }

    fn status(upgrade: &Upgrade) -> String {
        match upgrade {
            Upgrade::Incomplete => "incomplete".into(),
            Upgrade::Accept { response, .. } | Upgrade::Reject { response, .. } => {
                String::from_utf8_lossy(response).chars().skip(9).take(3).collect()
            }
        }
    }

    #[test]
    fn rfc_6455_sample_nonce_is_answered() {
        let headers = format!("{UPGRADE}Sec-WebSocket-Protocol: chat, mqtt\r\n");
        let mut bytes = request("GET /mqtt HTTP/1.1", &headers);
        let length = bytes.len();
        bytes.extend([0x82, 0x80]);
        let Upgrade::Accept { consumed, response } = answer(&bytes) else {
            panic!("{:?}", answer(&bytes));
        };
        assert_eq!(consumed, length);
        let response = String::from_utf8_lossy(&response).to_lowercase();
        assert!(response.starts_with("http/1.1 101 "), "{response}");
        assert!(response.contains("\r\nsec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n"));
        assert!(response.contains("\r\nsec-websocket-protocol: mqtt\r\n"));
        assert!(response.ends_with("\r\n\r\n"));
    }

    #[test]
    fn what_is_not_a_websocket_gets_a_plain_answer() {
        let mqtt31 = format!("{UPGRADE}Sec-WebSocket-Protocol: mqttv3.1\r\n");
        let other = format!("{UPGRADE}Sec-WebSocket-Protocol: chat\r\n");
        for (line, headers, expected) in [
            ("GET / HTTP/1.1", UPGRADE, "101"),
            ("GET /mqtt?token=x HTTP/1.1", &mqtt31, "101"),
            ("GET /mqtt HTTP/1.1", &other, "400"),
            ("GET /mqtt HTTP/1.1", "", "426"),
            ("GET /other HTTP/1.1", UPGRADE, "404"),
            ("POST /mqtt HTTP/1.1", UPGRADE, "405"),
            ("\u{10}\u{0}MQTT", "", "400"),
        ] {
            assert_eq!(status(&answer(&request(line, headers))), expected, "{line} {headers}");
        }
    }

    #[test]
    fn a_page_that_may_not_connect_is_forbidden() {
        let bytes =
            request("GET /mqtt HTTP/1.1", &format!("{UPGRADE}Origin: https://a.example\r\n"));
        let admits = |asked: &Request| asked.headers()["Origin"] == "https://b.example";
        assert_eq!(status(&super::answer(&bytes, admits)), "403");
        assert_eq!(status(&super::answer(&bytes, |asked| !admits(asked))), "101");
    }

    #[test]
    fn a_request_is_bounded_and_may_come_in_pieces() {
        let whole = request("GET /mqtt HTTP/1.1", UPGRADE);
        for end in 0..whole.len() {
            assert_eq!(answer(&whole[..end]), Upgrade::Incomplete, "{end}");
        }
        let endless = request("GET /mqtt HTTP/1.1", &format!("X: {}", "a".repeat(9000)));
        assert_eq!(status(&answer(&endless)), "431");
    }
}
