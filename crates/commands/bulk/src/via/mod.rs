//! `--via`: the same files over TCP or QUIC, for comparison with NORM. One connection, file after file.
//!
//! ```text
//! sender:   {"name":…,"bytes":…,"sha256":…}\n
//! receiver: {"have":N}\n                             what it has from an earlier connection
//! sender:   the bytes from N on
//! receiver: {"done":true}\n  or  {"error":…}\n       when it is verified and on the disk
//! ```
//!
//! QUIC is authenticated with certificates; TCP is not, and is there only for comparison.

mod connection;
mod fetch;
mod incoming;
mod receive;
mod send;

pub(super) use connection::{Control, TlsArgs, Via};
pub(super) use fetch::{Fetching, Fountain};
pub(super) use receive::{Receiving, receive};
pub(super) use send::{Sending, send};

use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use connection::Channel;

/// Longest line of the protocol: a name, a length and a hash.
const MAX_LINE_BYTES: usize = 2048;
/// Bytes read, hashed and written at a time.
const PIECE: usize = 1 << 16;

#[derive(serde::Deserialize, serde::Serialize)]
struct Offer {
    name: String,
    bytes: u64,
    sha256: String,
}

#[derive(serde::Deserialize, serde::Serialize)]
struct Have {
    have: u64,
}

#[derive(Default, serde::Deserialize, serde::Serialize)]
struct Verdict {
    #[serde(default)]
    done: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

async fn send_line(channel: &mut Channel, value: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    channel.write.write_all(&line).await?;
    Ok(channel.write.flush().await?)
}

/// The next line; `None` at the orderly end.
async fn receive_line<T: DeserializeOwned>(
    channel: &mut Channel,
    patience: Duration,
) -> anyhow::Result<Option<T>> {
    let line = async {
        let mut line = Vec::new();
        loop {
            match channel.read.read_u8().await {
                Ok(b'\n') => return Ok(Some(line)),
                Ok(_) if line.len() >= MAX_LINE_BYTES => bail!("a line without end"),
                Ok(byte) => line.push(byte),
                Err(error)
                    if line.is_empty() && error.kind() == std::io::ErrorKind::UnexpectedEof =>
                {
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
    };
    let line = timeout(patience, line).await.context("the other side does not answer")??;
    let read = |line: Vec<u8>| serde_json::from_slice(&line).context("not the protocol of --via");
    line.map(read).transpose()
}
