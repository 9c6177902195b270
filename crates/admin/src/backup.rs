//! A backup of everything while the server runs, as one stream.

use std::io::{self, Write};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::app::App;
use crate::archive;
use crate::audit::Change;
use crate::caller::Administrator;
use crate::problem::Problem;

/// How the folder for copies begins; one that a crash has left may be removed.
const FOLDER_PREFIX: &str = ".backup-";
/// Pieces of the archive that wait for the network.
const WAITING: usize = 4;
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

/// A backup of everything
///
/// A tar archive: consistent copies of the databases, the configuration, certificates and keys. `fulmar ctl restore`
/// restores it into an empty folder. It has secrets: keep it as the data folder itself.
#[utoipa::path(get, path = "/backup", responses((status = 200, content_type = "application/x-tar", body = Vec<u8>)))]
pub(crate) async fn backup(
    State(app): State<App>,
    Administrator(caller): Administrator,
) -> Result<Response, Problem> {
    let permit = std::sync::Arc::clone(&app.backups).try_acquire_owned();
    let permit =
        permit.map_err(|_| Problem::too_often("another backup is being made: wait", 10))?;
    let change = Change { caller, action: "backup", object: String::new(), detail: Value::Null };
    let work = async {
        let app = app.clone();
        let copied = tokio::task::spawn_blocking(move || {
            let folder = tempfile::Builder::new().prefix(FOLDER_PREFIX).tempdir_in(&app.data);
            let folder = folder.map_err(|error| format!("{}: {error}", app.data.display()))?;
            let left_out = app.server.copy_to(folder.path())?;
            Ok::<_, String>((folder, left_out))
        });
        match copied.await {
            Ok(Ok(copied)) => Ok(copied),
            Ok(Err(error)) => Err(Problem::unavailable(format!("no backup was made: {error}"))),
            Err(_) => Err(Problem::unavailable("the server ends")),
        }
    };
    let (folder, left_out) = app.change(change, work).await?;
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
    let body = stream::unfold(pieces, |mut pieces| async {
        let piece = pieces.recv().await?;
        Some((piece, pieces))
    });
    let kind = [(header::CONTENT_TYPE, "application/x-tar")];
    Ok((kind, Body::from_stream(body)).into_response())
}
