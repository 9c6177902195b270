//! The HTTP request of a hostile client: one answer, however it is cut, that echoes nothing.

use fulmar_mqtt_fuzz::heap;

use crate::ws::{MAX_REQUEST_BYTES, Upgrade, answer};

/// Maximum heap that one answer may take, in bytes: the request's headers as strings, and the response.
const MAX_HEAP_BYTES: usize = 96 * 1024;

/// Places a request is cut at.
const CUTS: usize = 16;

/// What a client sends on a connection that is to become a WebSocket.
pub fn upgrade(data: &[u8]) {
    let (upgrade, used) = heap::measure(|| answer(data, |_| true));
    assert!(used.peak_bytes <= MAX_HEAP_BYTES, "{used:?}");
    match &upgrade {
        Upgrade::Incomplete => assert!(data.len() < MAX_REQUEST_BYTES),
        Upgrade::Accept { consumed, response } => {
            assert!(*consumed <= data.len().min(MAX_REQUEST_BYTES));
            assert_eq!(
                answer(&data[..*consumed], |_| true),
                upgrade,
                "what follows changes nothing"
            );
            for cut in (0..*consumed).step_by(consumed / CUTS + 1) {
                assert_eq!(answer(&data[..cut], |_| true), Upgrade::Incomplete);
            }
            check_accepted(response);
        }
        Upgrade::Reject { response, reason } => {
            let text = std::str::from_utf8(response).unwrap_or_default();
            let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
            assert!(head.starts_with("HTTP/1.1 4"), "{text}");
            assert_eq!(body, format!("{reason}\n"));
            assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{text}");
        }
    }
}

/// Nothing but what RFC 6455 section 4.2.2 asks for, in values of a known form.
fn check_accepted(response: &[u8]) {
    let text = String::from_utf8_lossy(response).to_ascii_lowercase();
    let Some((head, "")) = text.split_once("\r\n\r\n") else { panic!("{text}") };
    let mut lines = head.split("\r\n");
    assert!(lines.next().is_some_and(|status| status.starts_with("http/1.1 101 ")), "{text}");
    for line in lines {
        match line.split_once(": ") {
            Some(("upgrade", "websocket") | ("connection", "upgrade")) => {}
            Some(("sec-websocket-protocol", "mqtt" | "mqttv3.1")) => {}
            Some(("sec-websocket-accept", digest)) => assert_eq!(digest.len(), 28, "{text}"),
            _ => panic!("{text}"),
        }
    }
}
