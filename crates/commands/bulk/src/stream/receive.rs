//! Writes a stream to standard output.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context, bail};
use fulmar_bulk::stream::{Piece, StreamReceiver, StreamReceiverConfig};
use serde_json::json;
use tokio::sync::mpsc;

use super::super::channel::Channel;
use super::super::encryption::ReceiverChannelEncryption;
use super::super::show::{SHOW, Show};
use super::super::wait::{interrupted, sleep_until};
use super::QUEUED_OUT;

/// Channel and settings of a stream's receiver, after the command line.
pub(in super::super) struct Receiving {
    pub(in super::super) channel: Channel<ReceiverChannelEncryption>,
    pub(in super::super) config: StreamReceiverConfig,
    pub(in super::super) json: bool,
    pub(in super::super) show: Show,
}

struct Run {
    receiving: Receiving,
    receiver: StreamReceiver,
    start: Instant,
    output: mpsc::Sender<Vec<u8>>,
    /// Data for which standard output has no room yet.
    waiting: Option<Vec<u8>>,
    /// The end of the stream was received.
    ended: bool,
    /// The address of the sender, and whether it was reported.
    from: Option<SocketAddr>,
    late_told: bool,
    out: Vec<u8>,
}

/// Writes a stream to standard output until it ends.
pub(in super::super) async fn receive(receiving: Receiving) -> anyhow::Result<()> {
    let bound = receiving.channel.socket.local_addr().context("the socket's address")?;
    if receiving.json {
        eprintln!("{}", json!({ "event": "ready", "address": bound.to_string() }));
    } else {
        eprintln!("listening on {bound}");
    }
    let (output, pieces) = mpsc::channel(QUEUED_OUT);
    let write = move || write_out(pieces);
    let writer = std::thread::Builder::new().name("output".into()).spawn(write);
    let writer = writer.context("a thread")?;
    let mut run = Run {
        receiver: StreamReceiver::new(receiving.config.clone()),
        receiving,
        start: Instant::now(),
        output,
        waiting: None,
        ended: false,
        from: None,
        late_told: false,
        out: Vec::new(),
    };
    let outcome = run.until_the_end().await;
    run.print_event("end");
    let progress = run.receiver.progress();
    drop(run);
    // Data that was read from the stream is written before the program ends.
    let written = writer.join().unwrap_or_else(|_| Err(io::Error::other("the output's thread")));
    written.context("standard output")?;
    outcome?;
    if progress.gaps > 0 {
        let (gaps, bytes) = (progress.gaps, progress.lost_bytes);
        bail!("data was lost {gaps} times, {bytes} bytes as far as known");
    }
    Ok(())
}

fn write_out(mut pieces: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    while let Some(piece) = pieces.blocking_recv() {
        stdout.write_all(&piece)?;
        if pieces.is_empty() {
            stdout.flush()?;
        }
    }
    stdout.flush()
}

impl Run {
    async fn until_the_end(&mut self) -> anyhow::Result<()> {
        let mut stop = std::pin::pin!(interrupted());
        let mut show = tokio::time::interval(SHOW);
        let mut buffer = vec![0; fulmar_bulk::wire::MAX_DATAGRAM_BYTES];
        let mut shown = 0u32;
        let output = self.output.clone();
        loop {
            self.read();
            self.send_due().await;
            if self.is_over()? {
                return Ok(());
            }
            let deadline = self.receiver.deadline();
            tokio::select! {
                _ = self.receiving.channel.socket.readable() => self.receive(&mut buffer),
                () = sleep_until(self.start, deadline) => {}
                permit = output.reserve(), if self.waiting.is_some() => {
                    // Standard output is closed; its thread reports why.
                    let Ok(permit) = permit else { return Ok(()) };
                    if let Some(bytes) = self.waiting.take() {
                        permit.send(bytes);
                    }
                }
                () = output.closed() => return Ok(()),
                _ = show.tick() => {
                    shown += 1;
                    self.show_progress(shown.is_multiple_of(5));
                }
                outcome = &mut stop => return outcome,
            }
        }
    }

    fn is_over(&mut self) -> anyhow::Result<bool> {
        if self.ended {
            // A sender that keeps asking has not received the acknowledgement.
            return Ok(self.waiting.is_none() && self.receiver.is_over(self.start.elapsed()));
        }
        if let Some(error) = self.receiver.take_error() {
            bail!("cannot receive the stream: {error}");
        }
        if self.receiver.has_gone() && self.waiting.is_none() {
            bail!("the sender ended before the end of the stream");
        }
        Ok(false)
    }

    /// Passes data to standard output while there is room. Data that stays in the receiver is not acknowledged.
    fn read(&mut self) {
        while self.waiting.is_none()
            && let Some(piece) = self.receiver.read()
        {
            if !std::mem::replace(&mut self.late_told, true) && self.receiver.progress().late {
                self.print_line("the stream had already begun; its beginning is not available");
            }
            match piece {
                Piece::Data(bytes) => {
                    if let Err(mpsc::error::TrySendError::Full(bytes)) = self.output.try_send(bytes)
                    {
                        self.waiting = Some(bytes);
                    }
                }
                Piece::Lost(bytes) => self.tell_lost(bytes),
                Piece::End => self.ended = true,
            }
        }
    }

    fn print_line(&self, text: &str) {
        if self.receiving.json {
            eprintln!("{}", json!({ "event": "late", "reason": text }));
        } else {
            self.receiving.show.print_line(&format!("fulmar: {text}"));
        }
    }

    fn tell_lost(&self, bytes: Option<u32>) {
        let after = self.receiver.progress().received_bytes;
        if self.receiving.json {
            eprintln!("{}", json!({ "event": "lost", "bytes": bytes, "after_bytes": after }));
            return;
        }
        let many =
            bytes.map_or("an unknown number of bytes".into(), |bytes| format!("{bytes} bytes"));
        self.receiving.show.print_line(&format!("fulmar: after {after} bytes {many} were lost"));
    }

    async fn send_due(&mut self) {
        while let Some(to) = self.receiver.poll_transmit(self.start.elapsed(), &mut self.out) {
            self.receiving.channel.send(&self.out, to).await;
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) {
        self.receiving.channel.receive(buffer, |from, message| {
            self.receiver.receive(self.start.elapsed(), from, message);
            let known = self.receiver.sender();
            if let Some((node, from)) = known.filter(|(_, from)| Some(*from) != self.from) {
                self.from = Some(from);
                tracing::info!(sender = node, %from, "receiving from a new sender");
            }
        });
    }

    fn show_progress(&self, a_second: bool) {
        let progress = self.receiver.progress();
        if self.receiving.json {
            if a_second && progress.datagrams > 0 {
                self.print_event("progress");
            }
            return;
        }
        let message =
            format!("loss {:.0} %, {} symbols repaired", 100.0 * progress.loss, progress.recovered);
        self.receiving.show.set(progress.received_bytes, progress.received_bytes, message);
    }

    fn print_event(&self, event: &str) {
        if !self.receiving.json {
            return;
        }
        let progress = self.receiver.progress();
        let mut value = json!({
            "event": event,
            "seconds": self.start.elapsed().as_secs_f64(),
            "received_bytes": progress.received_bytes,
            "gaps": progress.gaps,
            "lost_bytes": progress.lost_bytes,
            "late": progress.late,
            "datagrams": progress.datagrams,
            "recovered": progress.recovered,
            "loss": progress.loss,
            "strange": progress.strange,
            "nacks": progress.nacks,
            "complete": self.ended,
        });
        self.receiving.channel.encryption.add_refused(&mut value);
        eprintln!("{value}");
    }
}
