//! Copies the bytes of one MQTT connection to and from the broker's worker.
//!
//! Each direction waits for its reader, which causes back pressure. Bytes are not inspected: the worker and the
//! broker have the limits, deadlines and error messages.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

/// Bytes copied at once, per direction. Every tunnel has two of these for as long as it is open, and most are silent most of
/// the time: they count with the connection (`Via::Tunnel` of `fulmar-broker`).
const BUFFER_BYTES: usize = 4 * 1024;

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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn large_messages_pass_both_ways() {
        let message: Vec<u8> =
            (0..1_u32 << 20).map(|at| at.to_le_bytes()[at as usize % 4]).collect();
        let (client, outer) = tokio::io::duplex(1000);
        let (inner, worker) = UnixStream::pair().unwrap();
        inner.set_nonblocking(true).unwrap();
        worker.set_nonblocking(true).unwrap();
        let worker = tokio::net::UnixStream::from_std(worker).unwrap();
        let pumped = tokio::spawn(pump(outer, inner, Duration::from_secs(1)));
        let (mut client_reads, mut client_writes) = tokio::io::split(client);
        let (mut worker_reads, mut worker_writes) = worker.into_split();
        let (mut up, mut down) = (Vec::new(), Vec::new());
        let (sent, answered, arrived, returned) = tokio::join!(
            async {
                client_writes.write_all(&message).await?;
                client_writes.shutdown().await
            },
            async {
                worker_writes.write_all(&message).await?;
                worker_writes.shutdown().await
            },
            worker_reads.read_to_end(&mut up),
            client_reads.read_to_end(&mut down),
        );
        assert!(sent.is_ok() && answered.is_ok() && arrived.is_ok() && returned.is_ok());
        assert!(up == message && down == message);
        pumped.await.unwrap().unwrap();
    }
}
