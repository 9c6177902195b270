//! Optional waits of the driver besides its connection: without anything to wait for, they never end, so that a
//! `select!` can contain them unconditionally. And its smallest parts that need nothing of it.

use std::collections::VecDeque;

use tokio::sync::{mpsc, oneshot};

use crate::api::{Event, PathStats};
use crate::dial::{Rival, ServerConnection};
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

/// Sends as many events as fit, at least one; drops all of them if the application has dropped the receiver.
pub(crate) async fn make_room(events: &mpsc::Sender<Event>, backlog: &mut VecDeque<Event>) {
    let Ok(permit) = events.reserve().await else {
        backlog.clear();
        return;
    };
    if let Some(event) = backlog.pop_front() {
        permit.send(event);
    }
    while let Ok(permit) = events.try_reserve()
        && let Some(event) = backlog.pop_front()
    {
        permit.send(event);
    }
}

/// The transport's error.
pub(crate) fn lost(error: std::io::Error) -> Error {
    Error::Lost(error.to_string())
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
