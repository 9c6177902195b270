//! `fulmar receive`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fulmar_bulk::encryption::ReceiverKeys;
use fulmar_bulk::stream::StreamReceiverConfig;
use fulmar_bulk::{ReceiverConfig, ReceiverEvent};
use rustix::fs::{Access, access};
use serde_json::json;
use tokio::sync::watch;

use super::channel::Channel;
use super::encryption::{KeyArgs, ReceiverChannelEncryption, warn_if_plain};
use super::files::Files;
use super::identity::identity;
use super::manifest::Manifest;
use super::rollout::{self, Announced};
use super::show::{SHOW, Show};
use super::stream;
use super::via::{self, Receiving, TlsArgs, Via};
use super::wait::{interrupted, sleep_until};
use super::{memory, socket, state};
use crate::exit::Usage;

const EXAMPLES: &str = "\
Examples:
  fulmar receive --from 0.0.0.0:6003 --dir maps             accept files from any sender
  fulmar receive --from 239.1.2.3:6003 --dir maps --count 1    one file from a group, then end
  fulmar receive --from 192.0.2.9:6003 --dir maps           files from this sender only
  fulmar receive --announced mqtts://broker --group pumps --device pump7 --dir fw   roll-outs
  fulmar receive --from 0.0.0.0:6003 --dir maps --via quic   over QUIC, to compare
  fulmar receive --from 0.0.0.0:6003 --dir maps --key maps.key   only from senders with the same key
  fulmar receive --from 0.0.0.0:6003 --stdout               a stream, from `fulmar send -`

ADDR is an address of this machine, a multicast group, or else the sender's address. Complete files are
printed in `sha256sum` format. A file appears under its name only when it is complete.
The sender runs `fulmar send`, or another NORM program (RFC 5740).";

/// A receiver that has everything stays until its senders have ended or are silent for this long, because its
/// acknowledgement may have been lost.
const LINGER: Duration = Duration::from_secs(3);

/// Receive files over a bad link (NORM)
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Address to listen on, multicast group or sender: HOST or HOST:PORT [default port: 6003]
    #[arg(long, value_name = "ADDR", required_unless_present = "url")]
    from: Option<String>,
    /// Folder to put files into
    #[arg(long, value_name = "DIR", required_unless_present = "stdout")]
    dir: Option<PathBuf>,
    /// Write one stream to standard output, from `fulmar send -`, instead of files to a folder
    #[arg(long, conflicts_with_all = ["dir", "count", "url"])]
    stdout: bool,
    /// Transport that carries the files
    #[arg(long, value_enum, value_name = "HOW", default_value = "norm")]
    via: Via,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    announced: Announced,
    /// Exit after NUMBER files, or with --announced after NUMBER roll-outs
    #[arg(long, value_name = "NUMBER")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Interface to receive multicast on: its IPv4 address, or for IPv6 its name
    #[arg(long, value_name = "INTERFACE")]
    interface: Option<socket::Interface>,
    /// Print events as JSON lines on standard output, or with --stdout on standard error
    #[arg(long)]
    json: bool,
    /// No progress bar
    #[arg(short, long)]
    quiet: bool,
}

struct Run<'a> {
    args: &'a Args,
    channel: Channel<ReceiverChannelEncryption>,
    receiver: fulmar_bulk::Receiver<Files>,
    start: Instant,
    show: Show,
    out: Vec<u8>,
    /// The number of files after which to end.
    count: Option<u64>,
    progress: Option<watch::Sender<u64>>,
    complete: u64,
    failed: u64,
    /// The reason of the last failure.
    failure: Option<String>,
    /// When the last file was complete, since `start`; what arrived while it was synced has not been read then.
    completed_at: Duration,
}

impl Args {
    /// The folder that files are put into.
    pub(super) fn dir(&self) -> &Path {
        // A stream has no folder and does not use this.
        self.dir.as_deref().unwrap_or(Path::new("."))
    }
}

/// Address, keys and expected file of a device in a roll-out.
#[derive(Default)]
pub(super) struct Job {
    /// The address, unless the command line has one.
    pub(super) from: Option<String>,
    /// The device's keys.
    pub(super) keys: Option<ReceiverKeys>,
    /// The only file to accept.
    pub(super) expected: Option<Manifest>,
    /// Where to report the number of received bytes.
    pub(super) progress: Option<watch::Sender<u64>>,
}

/// Receives until there are enough files, or a signal arrives.
pub(super) async fn run(args: &Args) -> anyhow::Result<()> {
    if args.stdout {
        return receive_stream(args).await;
    }
    let shown = || args.dir().display().to_string();
    std::fs::create_dir_all(args.dir()).with_context(shown)?;
    // An hour's transfer must not end with that.
    access(args.dir(), Access::WRITE_OK | Access::EXEC_OK).with_context(shown)?;
    if args.announced.url.is_some() {
        return rollout::receive(args, &args.announced, &args.tls, args.count).await;
    }
    if args.via == Via::Norm {
        return receive(args, Job::default()).await;
    }
    if args.key.secret()?.is_some() {
        let text = "--key is NORM's; --via quic has certificates, --via tcp is not protected";
        return Err(Usage(text.into()).into());
    }
    via::receive(Receiving {
        via: args.via,
        from: socket::address(args.from.as_deref().unwrap_or_default())?,
        dir: args.dir(),
        tls: &args.tls,
        count: args.count,
        json: args.json,
        show: Show::new(args.quiet || args.json),
    })
    .await
}

/// Receives a stream by NORM.
async fn receive_stream(args: &Args) -> anyhow::Result<()> {
    if args.via != Via::Norm {
        return Err(Usage("a stream requires NORM".into()).into());
    }
    let from = socket::address(args.from.as_deref().unwrap_or_default())?;
    let (socket, whom) = socket::from(from, args.interface)?;
    let (node, seed) = identity()?;
    let keys = args.key.secret()?.map(|secret| secret.receiver(node));
    let encryption = ReceiverChannelEncryption::of_receiver(keys)?;
    warn_if_plain(encryption.is_on(), from.ip());
    let defaults = StreamReceiverConfig::default();
    let buffer_bytes = memory::for_parity(defaults.buffer_bytes);
    let (seed, encrypted) = (seed.into(), encryption.is_on());
    let config = StreamReceiverConfig { node, seed, encrypted, buffer_bytes, ..defaults };
    let (json, show) = (args.json, Show::new(args.quiet || args.json));
    let channel = Channel { socket, whom, encryption };
    stream::receive(stream::Receiving { channel, config, json, show }).await
}

/// Receives by NORM; a job is one file.
pub(super) async fn receive(args: &Args, job: Job) -> anyhow::Result<()> {
    let from = args.from.as_deref().or(job.from.as_deref()).unwrap_or_default();
    let from = socket::address(from)?;
    let (socket, whom) = socket::from(from, args.interface)?;
    let (fresh, seed) = identity()?;
    let interrupted = state::interrupted(args.dir());
    let before = interrupted.with_context(|| args.dir().display().to_string())?;
    let is_job = job.keys.is_some();
    let count = if is_job { Some(1) } else { args.count };
    let node = job.keys.as_ref().map_or(before.unwrap_or(fresh), |keys| keys.node);
    let keys = match job.keys {
        Some(keys) => Some(keys),
        None => args.key.secret()?.map(|secret| secret.receiver(node)),
    };
    let encryption = ReceiverChannelEncryption::of_receiver(keys)?;
    warn_if_plain(encryption.is_on(), from.ip());
    let (seed, encrypted) = (seed.into(), encryption.is_on());
    let defaults = ReceiverConfig::default();
    let max_parity_bytes = memory::for_parity(defaults.max_parity_bytes);
    let config = ReceiverConfig { node, seed, encrypted, max_parity_bytes, ..defaults };
    let receiver = fulmar_bulk::Receiver::new(config, Files::new(args.dir(), node, job.expected));
    let bound = socket.local_addr().context("the socket's address")?;
    if args.json {
        println!("{}", json!({ "event": "ready", "address": bound.to_string() }));
    } else if !is_job {
        eprintln!("listening on {bound}");
    }
    let channel = Channel { socket, whom, encryption };
    let mut run = Run { count, progress: job.progress, ..Run::new(args, channel, receiver) };
    run.until_the_end().await?;
    run.tell_end();
    if is_job && run.complete == 0 {
        bail!(run.failure.unwrap_or_else(|| "interrupted".into()));
    }
    if run.failed > 0 {
        bail!("{} of {} files failed", run.failed, run.complete + run.failed);
    }
    Ok(())
}

impl<'a> Run<'a> {
    fn new(
        args: &'a Args,
        channel: Channel<ReceiverChannelEncryption>,
        receiver: fulmar_bulk::Receiver<Files>,
    ) -> Run<'a> {
        Run {
            args,
            channel,
            receiver,
            start: Instant::now(),
            show: Show::new(args.quiet || args.json),
            out: Vec::new(),
            count: None,
            progress: None,
            complete: 0,
            failed: 0,
            failure: None,
            completed_at: Duration::ZERO,
        }
    }

    async fn until_the_end(&mut self) -> anyhow::Result<()> {
        let mut stop = std::pin::pin!(interrupted());
        let mut show = tokio::time::interval(SHOW);
        let mut buffer = vec![0; fulmar_bulk::wire::MAX_DATAGRAM_BYTES];
        let mut shown = 0u32;
        while !self.is_over() {
            self.send_due().await;
            let deadline = self.receiver.deadline();
            tokio::select! {
                _ = self.channel.socket.readable() => self.receive(&mut buffer),
                () = sleep_until(self.start, deadline) => {}
                _ = show.tick() => {
                    shown += 1;
                    self.show_progress(shown.is_multiple_of(5));
                }
                outcome = &mut stop => {
                    outcome?;
                    break;
                }
            }
            self.events();
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        if self.count.is_none_or(|count| self.complete + self.failed < count) {
            return false;
        }
        let Some(heard) = self.receiver.last_awaited() else { return true };
        let silent = self.start.elapsed().saturating_sub(heard.max(self.completed_at)) > LINGER;
        // After a long sync, or if this process was stopped, the sender's request may be waiting in the socket.
        silent && !self.channel.has_waiting()
    }

    async fn send_due(&mut self) {
        while let Some(to) = self.receiver.poll_transmit(self.start.elapsed(), &mut self.out) {
            self.channel.send(&self.out, to).await;
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) {
        self.channel.receive(buffer, |from, message| {
            self.receiver.receive(self.start.elapsed(), from, message);
        });
    }

    fn events(&mut self) {
        while let Some(event) = self.receiver.poll_event() {
            match event {
                ReceiverEvent::Sender(node, from) => {
                    tracing::info!(sender = node, %from, "receiving from a new sender");
                }
                ReceiverEvent::Begun(object, bytes) => {
                    tracing::info!(sender = object.sender, object = object.object, bytes, "begun");
                }
                ReceiverEvent::Complete(object, _) => {
                    self.complete += 1;
                    self.completed_at = self.start.elapsed();
                    self.tell_file(object.sender);
                }
                ReceiverEvent::Failed(object, reason) => {
                    self.failed += 1;
                    self.failure = Some(reason.clone());
                    let text = format!("object {} of {}: {reason}", object.object, object.sender);
                    self.show.print_line(&format!("fulmar: {text}"));
                    if self.args.json {
                        println!("{}", json!({ "event": "failed", "reason": text }));
                    }
                }
                ReceiverEvent::Ended(node) => {
                    tracing::info!(sender = node, "the sender has ended");
                }
            }
        }
    }

    fn tell_file(&mut self, sender: u32) {
        let seconds = self.start.elapsed().as_secs_f64();
        let Some(file) = self.receiver.storage().received.pop() else { return };
        let name = file.path.file_name().unwrap_or_default().to_string_lossy();
        if self.args.json {
            println!(
                "{}",
                json!({ "event": "file", "name": name, "bytes": file.bytes,
                    "sha256": file.hash.to_string(), "verified": file.verified,
                    "sender": sender, "seconds": seconds })
            );
            return;
        }
        if !file.verified {
            self.show.print_line(&format!("{name}: the sender provided no SHA-256"));
        }
        self.show.aside(|| println!("{}  {name}", file.hash));
    }

    fn show_progress(&self, a_second: bool) {
        let progress = self.receiver.progress();
        if let Some(told) = &self.progress {
            told.send_replace(progress.received_bytes);
        }
        if self.args.json {
            if a_second && progress.total_bytes > 0 {
                let mut value = self.statistics();
                value["event"] = "progress".into();
                println!("{value}");
            }
            return;
        }
        let message = format!(
            "loss {:.0} %, {} symbols repaired, {} files",
            100.0 * progress.loss,
            progress.recovered,
            self.complete
        );
        self.show.set(progress.received_bytes, progress.total_bytes, message);
    }

    fn statistics(&self) -> serde_json::Value {
        let progress = self.receiver.progress();
        let mut statistics = json!({
            "seconds": self.start.elapsed().as_secs_f64(),
            "total_bytes": progress.total_bytes,
            "received_bytes": progress.received_bytes,
            "resumed_bytes": progress.resumed_bytes,
            "datagrams": progress.datagrams,
            "duplicates": progress.duplicates,
            "recovered": progress.recovered,
            "loss": progress.loss,
            "strange": progress.strange,
            "dropped": progress.dropped,
            "nacks": progress.nacks,
            "suppressed": progress.suppressed,
            "complete": self.complete,
            "failed": self.failed,
        });
        self.channel.encryption.add_refused(&mut statistics);
        statistics
    }

    fn tell_end(&self) {
        if self.args.json {
            let mut value = self.statistics();
            value["event"] = "end".into();
            println!("{value}");
        }
    }
}

#[cfg(test)]
mod tests;
