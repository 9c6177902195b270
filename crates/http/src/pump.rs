//! Copies the bytes of one MQTT connection to and from the broker's worker.
//!
//! Each direction waits for its reader, which causes back pressure. Bytes are not inspected: the worker and the
//! broker have the limits, deadlines and error messages.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

/// Bytes copied at once, per direction.
const BUFFER_BYTES: usize = 16 * 1024;

/// Copies until both directions have ended, or one has and `linger` has passed.
///
/// # Errors
/// Either end fails.
pub(crate) async fn pump(
    outer: impl AsyncRead + AsyncWrite,
    inner: UnixStream,
    linger: Duration,
) -> io::Result<()> {
    let inner = tokio::net::UnixStream::from_std(inner)?;
    let (mut inner_read, mut inner_write) = inner.into_split();
    let (outer_read, mut outer_write) = tokio::io::split(outer);
    let up = async {
        let mut outer_read = tokio::io::BufReader::with_capacity(BUFFER_BYTES, outer_read);
        let copied = tokio::io::copy_buf(&mut outer_read, &mut inner_write).await;
        // The worker sees the end of the stream in either case.
        inner_write.shutdown().await.ok();
        copied.map(drop)
    };
    let down = async {
        let mut inner_read = tokio::io::BufReader::with_capacity(BUFFER_BYTES, &mut inner_read);
        tokio::io::copy_buf(&mut inner_read, &mut outer_write).await?;
        outer_write.shutdown().await
    };
    tokio::pin!(up, down);
    tokio::select! {
        result = &mut up => {
            result?;
            tokio::time::timeout(linger, down).await.unwrap_or(Ok(()))
        }
        result = &mut down => {
            result?;
            tokio::time::timeout(linger, up).await.unwrap_or(Ok(()))
        }
    }
}
