//! `fulmar send`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fulmar_bulk::encryption::Secret;
use fulmar_bulk::{Kind, Sender, SenderConfig, SenderEvent};
use fulmar_text::units;
use ring::digest;
use serde_json::{Value, json};

use super::channel::Channel;
use super::encryption::{KeyArgs, SenderChannelEncryption, warn_if_plain};
use super::file_to_send::{self, FileSource, FileToSend};
use super::identity::identity;
use super::rollout;
use super::show::{SHOW, Show};
use super::via::{self, Control, Sending, TlsArgs, Via};
use super::wait::{interrupted, sleep_until};
use super::{socket, statistics, stream};
use crate::exit::Usage;

const EXAMPLES: &str = "\
Examples:
  fulmar send map.zip --to 192.0.2.7 --rate 20M             to one receiver, at 20 Mbit/s
  fulmar send a.bin b.bin --to 239.1.2.3:6003 --receivers 10   to a group, until ten receivers have all
  fulmar send maps/ --to 192.0.2.7                          all files of a folder, without subfolders
  fulmar send map.zip --to 192.0.2.7 --adaptive             as fast as the link allows
  fulmar send map.zip --to 192.0.2.7 --json                 print progress every second, as JSON
  fulmar send map.zip --to 192.0.2.7 --via quic             over QUIC, to compare
  fulmar send map.zip --to 192.0.2.7 --resume               continue where an earlier run stopped
  fulmar send map.zip --to 192.0.2.7 --key maps.key         encrypted, for receivers with the same key
  tail -f log | fulmar send - --lines --to 192.0.2.7        a stream, for `fulmar receive --stdout`

The receiver runs `fulmar receive`, or another NORM program (RFC 5740). The rate includes headers
and repairs. With --adaptive the rate follows the link: it rises while no queue builds up on the way, and
random loss does not lower it.
Without --key datagrams are not encrypted, and anyone who can send to the receiver can forge them.";

/// Bits per second, unless another rate is given.
const RATE: u64 = 10_000_000;
/// Groups up to this size are asked to answer within one round-trip time, larger ones within four.
const SMALL_GROUP: usize = 16;
/// After this time without an answer, a warning is printed.
const UNHEARD: Duration = Duration::from_secs(5);
/// The file name for standard input.
const STANDARD_INPUT: &str = "-";
const BUFFER_MIB: u16 = 8;

/// Send files over a bad link (NORM)
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files to send, folders of files to send, or - for a stream from standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Receiver or multicast group: HOST or HOST:PORT [default port: 6003]
    #[arg(long, value_name = "ADDR")]
    to: String,
    /// Rate at which to send, headers included: 500k, 20M [default: 10M]
    #[arg(long, value_parser = units::parse_rate)]
    rate: Option<u64>,
    /// Transport that carries the files
    #[arg(long, value_enum, value_name = "HOW", default_value = "norm")]
    via: Via,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    key: KeyArgs,
    /// Adapt the rate of NORM to the link; --rate, if given, is the maximum
    #[arg(long)]
    adaptive: bool,
    /// Congestion control of --via quic [default: adaptive]
    #[arg(long, value_enum, value_name = "CONTROL")]
    congestion: Option<Control>,
    /// Continue where an earlier run stopped: ask receivers what they lack instead of sending everything first
    #[arg(long)]
    resume: bool,
    #[command(flatten)]
    stream: StreamArgs,
    /// Receivers that must have everything before the sender exits; it also waits for any others that answer
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    receivers: usize,
    /// Seconds to wait for a silent receiver
    #[arg(long, visible_alias = "timeout", value_name = "SECONDS", default_value_t = 30)]
    patience: u64,
    /// Interface to send multicast from: its IPv4 address, or for IPv6 its name
    #[arg(long, value_name = "INTERFACE")]
    interface: Option<socket::Interface>,
    /// TTL of multicast: routers it may pass, plus one
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=255))]
    hops: u32,
    /// Print events as JSON lines on standard output
    #[arg(long)]
    json: bool,
    /// No progress bar
    #[arg(short, long)]
    quiet: bool,
    /// Prints nothing, because the caller does.
    #[arg(skip)]
    silent: bool,
}

impl Args {
    /// The options of a roll-out to this number of devices.
    pub(super) fn of_rollout(rollout: &rollout::Args, receivers: usize) -> Args {
        Args {
            files: vec![rollout.file.clone()],
            to: rollout.to.clone(),
            rate: rollout.rate,
            via: Via::Norm,
            tls: TlsArgs::default(),
            key: KeyArgs::default(),
            adaptive: rollout.adaptive,
            congestion: None,
            resume: false,
            stream: StreamArgs { lines: false, push: false, buffer: BUFFER_MIB },
            receivers,
            patience: rollout.patience,
            interface: rollout.interface,
            hops: 1,
            json: false,
            quiet: true,
            silent: true,
        }
    }
}

/// Options of streams only.
#[derive(clap::Args, Clone, Debug)]
struct StreamArgs {
    /// Treat each line of a stream as a message, instead of each read. Receivers that come late or lose data
    /// continue at the beginning of a message
    #[arg(long)]
    lines: bool,
    /// When a stream's buffer is full, drop the oldest data instead of waiting for receivers that lack it
    #[arg(long)]
    push: bool,
    /// Mebibytes of a stream to keep for repairs; a receiver holds up to 32
    #[arg(long, value_name = "MIB", default_value_t = BUFFER_MIB)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=32))]
    buffer: u16,
}

struct Run<'a> {
    args: &'a Args,
    to: SocketAddr,
    channel: Channel<SenderChannelEncryption>,
    sender: Sender<FileSource>,
    start: Instant,
    show: Show,
    out: Vec<u8>,
    unreadable: bool,
    /// Whether the warning was printed that no receiver has answered.
    warned: bool,
}

/// Sends the files and waits until they are acknowledged.
pub(super) async fn run(args: &Args) -> anyhow::Result<()> {
    let secret = args.key.secret()?;
    if args.files.iter().any(|file| file.as_os_str() == STANDARD_INPUT) {
        return send_stream(args, secret).await;
    }
    if args.stream.lines || args.stream.push {
        return Err(Usage("--lines and --push are for a stream: fulmar send -".into()).into());
    }
    if args.congestion.is_some() && args.via != Via::Quic {
        return Err(Usage("--congestion is for --via quic; NORM has --adaptive".into()).into());
    }
    if args.via == Via::Norm {
        return run_with(args, secret).await;
    }
    if secret.is_some() {
        let text = "--key is NORM's; --via quic has certificates, --via tcp is not protected";
        return Err(Usage(text.into()).into());
    }
    via::send(Sending {
        via: args.via,
        to: &args.to,
        files: file_to_send::open_all(&args.files)?,
        tls: &args.tls,
        control: args.congestion.unwrap_or_default(),
        patience: Duration::from_secs(args.patience),
        json: args.json,
        show: Show::new(args.quiet || args.json),
    })
    .await
}

/// Sends them by NORM, encrypted if there is a secret.
pub(super) async fn run_with(args: &Args, secret: Option<Secret>) -> anyhow::Result<()> {
    let to = socket::address(&args.to)?;
    let files = file_to_send::open_all(&args.files)?;
    let node = node_of(&args.to, &files);
    let (encryption, config) = prepare(args, to, secret.as_ref(), node)?;
    let mut sender = Sender::new(config, Duration::ZERO)?;
    let files = add_files(files, &mut sender)?;
    sender.finish();
    let socket = socket::to(to, args.interface, args.hops)?;
    let channel = Channel { socket, whom: None, encryption };
    let (start, show) = (Instant::now(), Show::new(args.quiet || args.json));
    let (out, unreadable, warned) = (Vec::new(), false, false);
    let mut run = Run { args, to, channel, sender, start, show, out, unreadable, warned };
    let complete = run.until_the_end().await?;
    run.tell_end(complete, &files);
    if run.unreadable {
        bail!("not every file could be read");
    }
    if run.nobody() {
        bail!(
            "nothing was acknowledged: no receiver has answered from {to}. Start `fulmar receive` \
             there first, and check that UDP passes to that port and back; --patience sets how \
             long to wait"
        );
    }
    statistics::check(complete)
}

/// Sends standard input by NORM.
async fn send_stream(args: &Args, secret: Option<Secret>) -> anyhow::Result<()> {
    let wrong = match args.via {
        _ if args.files.len() > 1 => Some("- is a stream and cannot be combined with files"),
        Via::Norm if args.resume => Some("--resume is for files; a stream is not kept"),
        Via::Norm => None,
        _ => Some("a stream requires NORM; over TCP, `nc` can carry one"),
    };
    if let Some(text) = wrong {
        return Err(Usage(text.into()).into());
    }
    let to = socket::address(&args.to)?;
    let (node, _) = identity()?;
    let (encryption, config) = prepare(args, to, secret.as_ref(), node)?;
    let socket = socket::to(to, args.interface, args.hops)?;
    stream::send(stream::Sending {
        to,
        channel: Channel { socket, whom: None, encryption },
        config,
        buffer_bytes: usize::from(args.stream.buffer) << 20,
        push: args.stream.push,
        lines: args.stream.lines,
        json: args.json,
        show: Show::new(args.quiet || args.json),
    })
    .await
}

/// Preparations for both files and streams.
fn prepare(
    args: &Args,
    to: SocketAddr,
    secret: Option<&Secret>,
    node: u32,
) -> anyhow::Result<(SenderChannelEncryption, SenderConfig)> {
    let (_, instance) = identity()?;
    let encryption = SenderChannelEncryption::of_sender(secret)?;
    warn_if_plain(encryption.is_on(), to.ip());
    let defaults = SenderConfig::default();
    let (symbol_bytes, encryption_bytes) = encryption.lengths(defaults.symbol_bytes);
    let backoff = match (to.ip().is_multicast(), args.receivers) {
        (false, _) => 0,
        (true, ..=SMALL_GROUP) => 1,
        (true, _) => 4,
    };
    // Ten receivers share repairs better with longer blocks, but at a loss rate of a half a longer block than this
    // has too little parity; a single receiver with heavy losses needs more parity.
    let block_symbols = if to.ip().is_multicast() { 116 } else { 64 };
    let rate = args.rate.unwrap_or(if args.adaptive { units::MAX_RATE } else { RATE });
    let config = SenderConfig {
        adaptive: args.adaptive,
        ask_first: args.resume,
        symbol_bytes,
        encryption_bytes,
        block_symbols,
        parity_symbols: 255 - block_symbols,
        node,
        instance,
        rate_bytes_per_s: (rate / 8).max(1),
        backoff,
        group_size: u32::try_from(args.receivers).unwrap_or(u32::MAX),
        receivers: args.receivers,
        patience: Duration::from_secs(args.patience),
        ..defaults
    };
    Ok((encryption, config))
}

/// The sender's identity: the same whenever this machine sends these files to this address, so that receivers can
/// continue.
fn node_of(to: &str, files: &[FileToSend]) -> u32 {
    let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&machine);
    context.update(to.as_bytes());
    for file in files {
        context.update(&file.manifest.encode());
    }
    let hash = context.finish();
    let node = hash.as_ref().first_chunk().copied().map_or(1, u32::from_be_bytes);
    node.clamp(1, u32::MAX - 1)
}

/// Adds the files to the sender; returns their entries in the final report.
fn add_files(
    files: Vec<FileToSend>,
    sender: &mut Sender<FileSource>,
) -> anyhow::Result<Vec<Value>> {
    let mut told = Vec::new();
    for file in files {
        told.push(file.told());
        let FileToSend { source, bytes, manifest, .. } = file;
        let info = manifest.encode();
        sender.add(source, bytes, info, Kind::File).with_context(|| manifest.name)?;
    }
    Ok(told)
}

impl Run<'_> {
    async fn until_the_end(&mut self) -> anyhow::Result<bool> {
        let mut stop = std::pin::pin!(interrupted());
        let mut show = tokio::time::interval(SHOW);
        let mut buffer = vec![0; fulmar_bulk::wire::MAX_DATAGRAM_BYTES];
        let mut shown = 0u32;
        loop {
            self.send_due().await?;
            if let Some(complete) = self.events() {
                return Ok(complete);
            }
            let deadline = self.sender.deadline();
            tokio::select! {
                _ = self.channel.socket.readable() => self.receive(&mut buffer),
                () = sleep_until(self.start, deadline) => {}
                _ = show.tick() => {
                    shown += 1;
                    self.show_progress(shown.is_multiple_of(5));
                }
                outcome = &mut stop => {
                    outcome?;
                    bail!("interrupted");
                }
            }
        }
    }

    async fn send_due(&mut self) -> anyhow::Result<()> {
        // Sends what is due now; what becomes due in the meantime waits until received datagrams were handled.
        let now = self.start.elapsed();
        while self.sender.poll_transmit(now, &mut self.out) {
            self.channel.send(&self.out, self.to).await?;
        }
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8]) {
        let take = |_, message: &[u8]| self.sender.receive(self.start.elapsed(), message);
        self.channel.receive(buffer, take);
    }

    fn events(&mut self) -> Option<bool> {
        while let Some(event) = self.sender.poll_event() {
            match event {
                SenderEvent::Confirmed(peer) if self.args.json => {
                    let rtt_ms = peer.rtt.map(|rtt| rtt.as_secs_f64() * 1e3);
                    println!(
                        "{}",
                        json!({ "event": "confirmed", "receiver": peer.node, "rtt_ms": rtt_ms,
                            "loss": peer.loss })
                    );
                }
                SenderEvent::Confirmed(peer) => {
                    tracing::info!(receiver = peer.node, "has everything");
                }
                SenderEvent::Unreadable(object, error) => {
                    self.unreadable = true;
                    let file = self.args.files.get(usize::from(object));
                    let name = file.map(|file| file.display().to_string()).unwrap_or_default();
                    self.show.print_line(&format!("fulmar: {name}: {error}"));
                }
                SenderEvent::Ended { complete } => return Some(complete),
            }
        }
        None
    }

    fn statistics(&self) -> Value {
        let progress = self.sender.progress();
        let mut value = statistics::of_sender(self.start.elapsed(), &progress, self.sender.rate());
        value["sent_once_bytes"] = progress.sent_once_bytes.into();
        self.channel.encryption.add_refused(&mut value);
        value
    }

    /// Each receiver's state.
    fn peers(&self) -> Value {
        let progress = self.sender.progress();
        let peers = progress.peers.iter().map(|peer| {
            json!({ "receiver": peer.node, "loss": peer.loss, "confirmed": peer.confirmed,
                "rtt_ms": peer.rtt.map(|rtt| rtt.as_secs_f64() * 1e3) })
        });
        peers.collect()
    }

    /// Whether an answer is overdue.
    fn nobody(&self) -> bool {
        self.args.receivers > 0 && self.sender.progress().peers.is_empty()
    }

    fn show_progress(&mut self, a_second: bool) {
        if !self.warned && self.start.elapsed() >= UNHEARD && self.nobody() && !self.args.silent {
            self.warned = true;
            self.show.print_line(&format!("fulmar: no receiver has answered from {} yet", self.to));
        }
        if self.args.json {
            if a_second {
                let mut value = self.statistics();
                value["event"] = "progress".into();
                value["peers"] = self.peers();
                println!("{value}");
            }
            return;
        }
        let progress = self.sender.progress();
        let message = format!(
            "sending {:.1} Mbit/s, loss {:.0} %, repair {:.0} %, {} of {} have all",
            self.sender.rate() as f64 * 8e-6,
            100.0 * statistics::loss(&progress),
            100.0 * statistics::repair_share(&progress),
            statistics::confirmed(&progress),
            progress.peers.len().max(self.args.receivers),
        );
        self.show.set(progress.sent_once_bytes, progress.total_bytes, message);
    }

    fn tell_end(&self, complete: bool, files: &[Value]) {
        if self.args.silent {
            return;
        }
        let mut value = self.statistics();
        if self.args.json {
            value["event"] = "end".into();
            value["complete"] = complete.into();
            value["files"] = files.into();
            value["peers"] = self.peers();
            println!("{value}");
            return;
        }
        self.show.aside(|| {
            for file in files {
                let text = |key: &str| file[key].as_str().unwrap_or_default().to_owned();
                println!("{}  {}", text("sha256"), text("name"));
            }
        });
        let number = |key: &str| value[key].as_f64().unwrap_or_default();
        self.show.print_line(&format!(
            "{} of {} receivers have all after {:.2} s; sent {:.2} times the files, {:.1} Mbit/s net",
            value["confirmed"],
            self.sender.progress().peers.len().max(self.args.receivers),
            number("seconds"),
            number("sent_bytes") / number("total_bytes").max(1.0),
            number("total_bytes") * 8e-6 / number("seconds").max(1e-9),
        ));
    }
}
