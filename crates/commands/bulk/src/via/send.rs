//! `fulmar send --via quic|tcp`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

use super::connection::{self, Channel, Control, TlsArgs, Untrusted, Via};
use super::{Have, Offer, PIECE, Verdict, receive_line, send_line};
use crate::file_to_send::FileToSend;
use crate::show::{SHOW, Show};
use crate::socket;
use crate::wait::interrupted;

/// Pause after a failed attempt.
const RETRY: Duration = Duration::from_millis(500);

/// Files, destination and transport of a sender.
pub(crate) struct Sending<'a> {
    pub(crate) via: Via,
    pub(crate) to: &'a str,
    pub(crate) files: Vec<FileToSend>,
    pub(crate) tls: &'a TlsArgs,
    pub(crate) control: Control,
    pub(crate) patience: Duration,
    pub(crate) json: bool,
    pub(crate) show: Show,
}

/// Sends files until the other side has verified them, over as many connections as necessary.
pub(crate) async fn send(sending: Sending<'_>) -> anyhow::Result<()> {
    let now = Instant::now();
    let total = sending.files.iter().map(|file| file.bytes).sum();
    let mut run = Run {
        sending,
        start: now,
        progress: now,
        shown: now,
        total,
        before: 0,
        sent: 0,
        skipped: 0,
        done: 0,
        connections: 0,
    };
    tokio::select! {
        outcome = run.until_the_end() => outcome?,
        outcome = interrupted() => {
            outcome?;
            bail!("interrupted");
        }
    }
    run.tell_end();
    Ok(())
}

/// Sends a file's bytes from an offset to its end, and reports the length of each piece.
pub(super) async fn pour(
    channel: &mut Channel,
    file: &File,
    mut at: u64,
    bytes: u64,
    patience: Duration,
    mut tell: impl FnMut(u64),
) -> anyhow::Result<()> {
    let mut piece = vec![0; PIECE];
    while at < bytes {
        let length = usize::try_from(bytes - at).unwrap_or(PIECE).min(PIECE);
        file.read_exact_at(&mut piece[..length], at)?;
        let write = channel.write.write_all(&piece[..length]);
        timeout(patience, write).await.context("no data gets through")??;
        at += length as u64;
        tell(length as u64);
    }
    Ok(channel.write.flush().await?)
}

/// The other side refuses the file; trying again would be useless.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {reason}")]
struct Refused {
    name: String,
    reason: String,
}

struct Run<'a> {
    sending: Sending<'a>,
    start: Instant,
    /// When something was last sent.
    progress: Instant,
    shown: Instant,
    total: u64,
    /// Bytes of the files before the current one.
    before: u64,
    sent: u64,
    /// Bytes that the other side had already.
    skipped: u64,
    done: usize,
    connections: u32,
}

impl Run<'_> {
    async fn until_the_end(&mut self) -> anyhow::Result<()> {
        loop {
            match self.attempt().await {
                Ok(()) => return Ok(()),
                Err(error) if error.is::<Refused>() || error.is::<Untrusted>() => {
                    return Err(error);
                }
                Err(error) if self.progress.elapsed() > self.sending.patience => {
                    return Err(error.context("no connection, or only short ones; see --patience"));
                }
                Err(error) => {
                    tracing::info!(%error, "the connection failed or was lost");
                    sleep(RETRY).await;
                }
            }
        }
    }

    async fn attempt(&mut self) -> anyhow::Result<()> {
        let Sending { via, to, tls, control, patience, .. } = self.sending;
        let (name, address) = (socket::host(to), socket::address(to)?);
        let dial = connection::dial(via, name, address, tls, control);
        let mut channel = timeout(patience, dial).await.context("no answer")??;
        self.connections += 1;
        while self.done < self.sending.files.len() {
            self.send_file(&mut channel).await?;
        }
        channel.write.shutdown().await?;
        channel.close().await;
        Ok(())
    }

    async fn send_file(&mut self, channel: &mut Channel) -> anyhow::Result<()> {
        let patience = self.sending.patience;
        let file = &self.sending.files[self.done];
        let (name, bytes) = (file.manifest.name.clone(), file.bytes);
        send_line(channel, &Offer { name: name.clone(), bytes, sha256: file.hash.to_string() })
            .await?;
        let have: Have = receive_line(channel, patience).await?.context("no answer")?;
        let mut at = have.have.min(bytes);
        self.skipped += at;
        let source = self.sending.files[self.done].source.0.try_clone()?;
        pour(channel, &source, at, bytes, patience, |length| {
            at += length;
            self.sent += length;
            self.progress = Instant::now();
            self.show_progress(at);
        })
        .await?;
        let verdict: Verdict = receive_line(channel, patience).await?.context("no verdict")?;
        if let Some(reason) = verdict.error {
            return Err(Refused { name, reason }.into());
        }
        self.before += bytes;
        self.done += 1;
        Ok(())
    }

    fn show_progress(&mut self, at: u64) {
        if self.shown.elapsed() < if self.sending.json { 5 * SHOW } else { SHOW } {
            return;
        }
        self.shown = Instant::now();
        let at = self.before + at;
        if self.sending.json {
            let mut statistics = self.statistics();
            (statistics["event"], statistics["at"]) = ("progress".into(), at.into());
            println!("{statistics}");
        } else {
            let message = format!("{} connections", self.connections);
            self.sending.show.set(at, self.total, message);
        }
    }

    fn statistics(&self) -> serde_json::Value {
        json!({
            "seconds": self.start.elapsed().as_secs_f64(),
            "total_bytes": self.total,
            "sent_bytes": self.sent,
            "resumed_bytes": self.skipped,
            "connections": self.connections,
        })
    }

    fn tell_end(&self) {
        let files = &self.sending.files;
        if self.sending.json {
            let mut value = self.statistics();
            let files = files.iter().map(FileToSend::told).collect::<Vec<_>>();
            (value["event"], value["complete"]) = ("end".into(), true.into());
            value["files"] = files.into();
            println!("{value}");
            return;
        }
        self.sending.show.aside(|| {
            files.iter().for_each(|file| println!("{}  {}", file.hash, file.manifest.name));
        });
        let seconds = self.start.elapsed().as_secs_f64();
        self.sending.show.print_line(&format!(
            "complete after {seconds:.2} s, {:.1} Mbit/s",
            self.sent as f64 * 8e-6 / seconds.max(1e-9)
        ));
    }
}
