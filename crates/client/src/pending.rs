//! What the driver waits for beside its connection, where there may be nothing to wait for: such a wait
//! never ends, so that it can stand in a `select!` as it is.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use crate::api::Event;
use crate::dial::{Rival, ServerConnection};
use crate::error::Error;
use crate::quic::{Change, QuicConnection};

/// What a rival brought; never, where there is none.
pub(crate) async fn or_never(rival: &mut Option<Rival>) -> Result<ServerConnection, Error> {
    match rival {
        Some(rival) => rival.await,
        None => std::future::pending().await,
    }
}

/// A change of the path; never, where it is not QUIC's.
pub(crate) async fn changed(quic: &mut Option<QuicConnection>) -> Change {
    match quic {
        Some(quic) => quic.changed().await,
        None => std::future::pending().await,
    }
}

/// Whether the server took the early data; never, where there was none.
pub(crate) async fn answer(early: &mut Option<quinn::ZeroRttAccepted>) -> bool {
    match early {
        Some(accepted) => accepted.await,
        None => std::future::pending().await,
    }
}

/// Hands over as many events as fit, at least one; all are dropped when nobody listens any more.
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
