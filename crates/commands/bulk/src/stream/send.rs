//! Sends standard input as a stream.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fulmar_bulk::SenderConfig;
use fulmar_bulk::stream::{STREAM_BLOCK_SYMBOLS, StreamConfig, StreamEvent, StreamSender};
use fulmar_bulk::wire::SEGMENT_HEAD_BYTES;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, error::TryRecvError};

use super::super::channel::Channel;
use super::super::encryption::SenderChannelEncryption;
use super::super::show::{SHOW, Show};
use super::super::statistics;
use super::super::wait::{interrupted, sleep_until};
use super::{PIECE, QUEUED};

/// Parity symbols of a block: the most that RFC 5510's code allows.
const PARITY_SYMBOLS: u8 = 255 - STREAM_BLOCK_SYMBOLS;

/// Channel and settings of a stream's sender, after the command line.
pub(in super::super) struct Sending {
    pub(in super::super) to: SocketAddr,
    pub(in super::super) channel: Channel<SenderChannelEncryption>,
    /// The settings for files, which are changed here for streams.
    pub(in super::super) config: SenderConfig,
    pub(in super::super) buffer_bytes: usize,
    pub(in super::super) push: bool,
    /// Whether a message is a line; otherwise it is the data of one read.
    pub(in super::super) lines: bool,
    pub(in super::super) json: bool,
    pub(in super::super) show: Show,
}

struct Run {
    sending: Sending,
    sender: StreamSender,
    start: Instant,
    input: mpsc::Receiver<io::Result<Vec<u8>>>,
    /// Data that was read and is not written yet, from this position on.
    piece: Vec<u8>,
    written: usize,
    ended: bool,
    out: Vec<u8>,
    unreadable: Option<io::Error>,
}

/// Sends standard input until it ends and all receivers have everything.
pub(in super::super) async fn send(sending: Sending) -> anyhow::Result<()> {
    let config = StreamConfig {
        sender: SenderConfig {
            symbol_bytes: sending.config.symbol_bytes - SEGMENT_HEAD_BYTES as u16,
            block_symbols: STREAM_BLOCK_SYMBOLS,
            parity_symbols: PARITY_SYMBOLS,
            ..sending.config.clone()
        },
        buffer_bytes: sending.buffer_bytes,
        push: sending.push,
    };
    let sender = StreamSender::new(config, Duration::ZERO)?;
    let mut run = Run {
        sending,
        sender,
        start: Instant::now(),
        input: standard_input()?,
        piece: Vec::new(),
        written: 0,
        ended: false,
        out: Vec::new(),
        unreadable: None,
    };
    let complete = run.until_the_end().await?;
    run.tell_end(complete);
    if let Some(error) = run.unreadable {
        return Err(error).context("standard input");
    }
    statistics::check(complete)
}

/// Reads standard input in a thread, which ends with the program.
fn standard_input() -> anyhow::Result<mpsc::Receiver<io::Result<Vec<u8>>>> {
    let (tell, input) = mpsc::channel(QUEUED);
    let read = move || {
        let mut stdin = io::stdin().lock();
        loop {
            let mut piece = vec![0; PIECE];
            let read = match stdin.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => {
                    piece.truncate(length);
                    Ok(piece)
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let failed = read.is_err();
            if tell.blocking_send(read).is_err() || failed {
                break;
            }
        }
    };
    std::thread::Builder::new().name("input".into()).spawn(read).context("a thread")?;
    Ok(input)
}

impl Run {
    async fn until_the_end(&mut self) -> anyhow::Result<bool> {
        let mut stop = Box::pin(interrupted());
        let mut stopped = false;
        let mut show = tokio::time::interval(SHOW);
        let mut buffer = vec![0; fulmar_bulk::wire::MAX_DATAGRAM_BYTES];
        let mut shown = 0u32;
        loop {
            self.feed();
            self.send_due().await?;
            if let Some(complete) = self.events() {
                return Ok(complete);
            }
            let deadline = self.sender.deadline();
            let wants = self.written == self.piece.len() && !self.ended;
            tokio::select! {
                _ = self.sending.channel.socket.readable() => self.receive(&mut buffer),
                () = sleep_until(self.start, deadline) => {}
                piece = self.input.recv(), if wants => self.handle_input(piece),
                _ = show.tick() => {
                    shown += 1;
                    self.show_progress(shown.is_multiple_of(5));
                }
                // The first signal sends the rest of the data; a second one ends at once.
                outcome = &mut stop => {
                    outcome?;
                    if std::mem::replace(&mut stopped, true) {
                        bail!("interrupted");
                    }
                    stop = Box::pin(interrupted());
                    self.ended = true;
                    self.input.close();
                }
            }
        }
    }

    fn handle_input(&mut self, piece: Option<io::Result<Vec<u8>>>) {
        match piece {
            Some(Ok(piece)) => {
                (self.piece, self.written) = (piece, 0);
                if !self.sending.lines {
                    self.sender.end_message();
                }
            }
            Some(Err(error)) => (self.unreadable, self.ended) = (Some(error), true),
            None => self.ended = true,
        }
    }

    /// Writes data into the sender while there is room, and flushes an incomplete datagram if no data follows.
    fn feed(&mut self) {
        loop {
            while self.written < self.piece.len() {
                let rest = &self.piece[self.written..];
                let line = rest.iter().position(|&byte| byte == b'\n').map(|at| at + 1);
                let length = line.filter(|_| self.sending.lines).unwrap_or(rest.len());
                let taken = self.sender.write(&rest[..length]);
                self.written += taken;
                if taken < length {
                    return;
                }
                if self.sending.lines && line.is_some() {
                    self.sender.end_message();
                }
            }
            if self.ended {
                self.sender.close();
                return;
            }
            match self.input.try_recv() {
                Ok(piece) => self.handle_input(Some(piece)),
                Err(TryRecvError::Empty) => return self.sender.flush(),
                Err(TryRecvError::Disconnected) => self.ended = true,
            }
        }
    }

    async fn send_due(&mut self) -> anyhow::Result<()> {
        let now = self.start.elapsed();
        while self.sender.poll_transmit(now, &mut self.out) {
            self.sending.channel.send(&self.out, self.sending.to).await?;
        }
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8]) {
        let take = |_, message: &[u8]| self.sender.receive(self.start.elapsed(), message);
        self.sending.channel.receive(buffer, take);
    }

    fn events(&mut self) -> Option<bool> {
        while let Some(event) = self.sender.poll_event() {
            match event {
                StreamEvent::Confirmed(peer) => {
                    tracing::info!(receiver = peer.node, "has everything");
                    if self.sending.json {
                        println!("{}", json!({ "event": "confirmed", "receiver": peer.node }));
                    }
                }
                StreamEvent::Left(node) => {
                    self.sending.show.print_line(&format!(
                        "fulmar: receiver {node} is silent; no longer waiting for it"
                    ));
                    if self.sending.json {
                        println!("{}", json!({ "event": "left", "receiver": node }));
                    }
                }
                StreamEvent::Ended { complete } => return Some(complete),
            }
        }
        None
    }

    fn statistics(&self) -> Value {
        let progress = self.sender.progress();
        let mut value = statistics::of_sender(self.start.elapsed(), &progress, self.sender.rate());
        self.sending.channel.encryption.add_refused(&mut value);
        value
    }

    fn show_progress(&self, a_second: bool) {
        if self.sending.json {
            if a_second {
                let mut value = self.statistics();
                value["event"] = "progress".into();
                println!("{value}");
            }
            return;
        }
        let progress = self.sender.progress();
        let loss = statistics::loss(&progress);
        let (rate, many) = (self.sender.rate() as f64 * 8e-6, progress.peers.len());
        let message =
            format!("at most {rate:.1} Mbit/s, loss {:.0} %, {many} receivers", 100.0 * loss);
        self.sending.show.set(progress.total_bytes, progress.total_bytes, message);
    }

    fn tell_end(&self, complete: bool) {
        let mut value = self.statistics();
        if self.sending.json {
            value["event"] = "end".into();
            value["complete"] = complete.into();
            println!("{value}");
            return;
        }
        let number = |key: &str| value[key].as_f64().unwrap_or_default();
        self.sending.show.print_line(&format!(
            "{} of {} receivers have all {} bytes after {:.2} s",
            value["confirmed"],
            value["receivers"],
            value["total_bytes"],
            number("seconds"),
        ));
    }
}
