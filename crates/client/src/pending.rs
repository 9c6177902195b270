//! Optional waits of the driver besides its connection: without anything to wait for, they never end, so that a
//! `select!` can contain them unconditionally. And its smallest parts that need nothing of it.

use std::time::Instant;

use tokio::sync::oneshot;

use crate::api::PathStats;
use crate::dial::{Rival, ServerConnection, certificate_hint};
use crate::error::Error;
use crate::quic::{Change, QuicConnection};

/// The rival's result; never, without a rival.
pub(crate) async fn or_never(rival: &mut Option<Rival>) -> Result<ServerConnection, Error> {
    match rival {
        Some(rival) => rival.await,
        None => std::future::pending().await,
    }
}

/// A change of the path; never, without QUIC.
pub(crate) async fn changed(quic: &mut Option<QuicConnection>) -> Change {
    match quic {
        Some(quic) => quic.changed().await,
        None => std::future::pending().await,
    }
}

/// Whether the server accepted the early data; never, without early data.
pub(crate) async fn answer(early: &mut Option<quinn::ZeroRttAccepted>) -> bool {
    match early {
        Some(accepted) => accepted.await,
        None => std::future::pending().await,
    }
}

/// Waits until `at`. After a pause of the process, timers are ready before sockets: these are polled first, and then read,
/// for QUIC by one task for another.
pub(crate) async fn after_sockets(at: Instant) {
    tokio::time::sleep_until(at.into()).await;
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
}

/// The transport's error.
pub(crate) fn lost(error: std::io::Error) -> Error {
    // QUIC's says only that the connection was lost, and has the reason as its source.
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    let hint = certificate_hint(&text).unwrap_or_default();
    Error::Lost(text.trim_start_matches("connection lost: ").to_owned() + hint)
}

/// Answers everybody that has asked for statistics.
pub(crate) fn answer_all(
    asked: &mut Vec<oneshot::Sender<Option<PathStats>>>,
    stats: Option<PathStats>,
) {
    for ask in asked.drain(..) {
        // The caller may have dropped the future.
        let _ = ask.send(stats);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_says_why() {
        let lost_to = |error: quinn::ConnectionError| {
            let read = quinn::ReadError::ConnectionLost(error);
            lost(std::io::Error::new(std::io::ErrorKind::NotConnected, read)).to_string()
        };
        assert_eq!(lost_to(quinn::ConnectionError::TimedOut), "connection lost: timed out");
        assert_eq!(lost_to(quinn::ConnectionError::Reset), "connection lost: reset by peer");
        let plain = std::io::Error::new(std::io::ErrorKind::BrokenPipe, "broken pipe");
        assert_eq!(lost(plain).to_string(), "connection lost: broken pipe");
    }
}
