//! A backup of everything while the server runs, as one stream.

use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use fulmar_http::while_allowed;
use futures_util::{Stream, stream};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::archive;
use crate::audit::Change;
use crate::caller::{Administrator, Role};
use crate::problem::{Problem, Result};

/// Beginning of the name of the folder for copies.
const FOLDER_PREFIX: &str = ".backup-";

/// Removes the copies that a crash has left in the data folder, which is locked.
pub(crate) fn remove_leftovers(data: &Path) {
    for entry in std::fs::read_dir(data).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(FOLDER_PREFIX) {
            continue;
        }
        let path = entry.path();
        match std::fs::remove_dir_all(&path) {
            Ok(()) => {
                tracing::info!(folder = %path.display(), "copies of a backup that a crash has left: removed")
            }
            Err(error) => {
                tracing::warn!(folder = %path.display(), %error, "copies of a backup cannot be removed: remove them");
            }
        }
    }
}

/// Pieces of the archive that wait for the network.
const WAITING: usize = 4;
/// The longest download: the copies take as much of the disk as what they are of, and there is no other backup meanwhile.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Bytes of a piece.
const PIECE: usize = 64 << 10;

/// Pieces of an archive on their way to the response. An error ends the response early, so that no client takes a part
/// for the whole.
struct Pieces {
    to: mpsc::Sender<io::Result<Bytes>>,
    piece: Vec<u8>,
}

impl Pieces {
    fn send(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.piece);
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.to.blocking_send(Ok(piece.into())).map_err(gone)
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() { Ok(()) } else { self.send() }
    }
}

/// The pieces, if the client takes them in time. The error drops the receiver, and with it the copies.
fn until(
    deadline: Instant,
    pieces: mpsc::Receiver<io::Result<Bytes>>,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::unfold(Some(pieces), move |pieces| async move {
        let mut pieces = pieces?;
        if Instant::now() >= deadline {
            return Some((Err(io::ErrorKind::TimedOut.into()), None));
        }
        let piece = pieces.recv().await?;
        Some((piece, Some(pieces)))
    })
}

/// A backup of everything
///
/// A tar archive: consistent copies of the databases, the configuration, certificates and keys. `fulmar ctl restore`
/// restores it into an empty folder. It has secrets: keep it as the data folder itself.
#[utoipa::path(get, path = "/backup", responses((status = 200, content_type = "application/x-tar", body = Vec<u8>), (status = 507, description = "The disk has no room for the copies")))]
pub(crate) async fn backup(Administrator(app, caller): Administrator) -> Result<Response> {
    let permit = std::sync::Arc::clone(&app.backups).try_acquire_owned();
    let permit =
        permit.map_err(|_| Problem::too_often("another backup is being made: wait", 10))?;
    let change = Change {
        caller: caller.clone(),
        action: "backup",
        object: String::new(),
        detail: Value::Null,
    };
    let work = async {
        let app = app.clone();
        // The copy goes on when its request is cancelled, and until its end there is no other.
        let copied = tokio::task::spawn_blocking(move || {
            let failed =
                |error: String| Problem::unavailable(format!("no backup was made: {error}"));
            let room = app.server.room_for_copies();
            room.map_err(|lack| Problem::no_space(format!("no backup was made: {lack}")))?;
            let folder = tempfile::Builder::new().prefix(FOLDER_PREFIX).tempdir_in(&app.data);
            let folder =
                folder.map_err(|error| failed(format!("{}: {error}", app.data.display())))?;
            let left_out = app.server.copy_to(folder.path()).map_err(failed)?;
            Ok::<_, Problem>((folder, left_out, permit))
        });
        copied.await.unwrap_or_else(|_| Err(Problem::unavailable("the server ends")))
    };
    let (folder, left_out, permit) = app.change(change, work).await?;
    let (to, pieces) = mpsc::channel(WAITING);
    let (version, now) = (app.version, app.now_ms());
    tokio::task::spawn_blocking(move || {
        let mut out = Pieces { to, piece: Vec::new() };
        if let Err(error) = archive::write(folder.path(), version, now, left_out, &mut out) {
            // Nobody may be there any longer.
            let _ = out.to.blocking_send(Err(error));
        }
        drop((folder, permit));
    });
    let body = Box::pin(until(Instant::now() + LONGEST, pieces));
    let name = caller.name.clone();
    let body = while_allowed(&name, body, move || caller.still_may(Role::Administrator));
    let kind = [(header::CONTENT_TYPE, "application/x-tar")];
    Ok((kind, Body::from_stream(body)).into_response())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use futures_util::StreamExt as _;

    #[tokio::test]
    async fn a_download_that_takes_too_long_ends_with_an_error() {
        for (time, good) in [(Duration::ZERO, 0), (LONGEST, 2)] {
            let (to, pieces) = mpsc::channel(WAITING);
            for _ in 0..2 {
                to.send(Ok(Bytes::from_static(b"piece"))).await.unwrap();
            }
            let weak = to.downgrade();
            drop(to);
            let mut body = Box::pin(until(Instant::now() + time, pieces));
            let mut taken = Vec::new();
            while let Some(piece) = body.next().await {
                taken.push(piece.is_ok());
            }
            assert_eq!(
                (taken.iter().filter(|good| **good).count(), taken.len()),
                (good, 2 - usize::from(good == 0))
            );
            assert!(weak.upgrade().is_none(), "what writes the archive ends");
        }
    }
}
