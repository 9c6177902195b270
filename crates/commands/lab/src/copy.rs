//! `fulmar lab copy`: one file over TCP or QUIC, for comparison with `fulmar send` over NORM.
//!
//! The sender connects, sends all bytes and ends its direction; the receiver writes the file to its disk before it
//! acknowledges with one byte, as `fulmar receive` does. Nothing is resumed or retried: a broken connection is a
//! failure. The command also creates files to send and compares received ones, so that every transport is judged in
//! the same way.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use fulmar_lab::units::parse_size;
use serde_json::json;

use super::carrier::{At, Over, SILENCE, To, accept, ended};
use super::probe::print_event;
use crate::runtime::block_on;

const EXAMPLES: &str = "\
Examples:
  fulmar lab copy make map.bin --bytes 8MB
  fulmar lab copy receive got.bin --at 198.18.1.2:7000 --over tcp
  fulmar lab copy send map.bin --to 198.18.1.2:7000 --over tcp --congestion bbr
  fulmar lab copy check map.bin got.bin";

/// Bytes read and written at a time.
const PIECE: usize = 1 << 16;
/// The receiver's acknowledgement.
const DONE: u8 = 1;
/// The interval of the receiver's progress reports.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Copy a file over TCP or QUIC, create one, or compare two
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Create a file of random bytes, the same for the same seed
    Make(Make),
    /// Send a file
    Send(Send),
    /// Receive a file
    Receive(Receive),
    /// Compare two files
    Check(Check),
}

#[derive(clap::Args, Debug)]
struct Make {
    /// File to create
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Size: 8MB, 64MB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    bytes: u64,
    /// Seed of the random bytes
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

#[derive(clap::Args, Debug)]
struct Send {
    /// File to send
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    link: To,
}

#[derive(clap::Args, Debug)]
struct Receive {
    /// File to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    link: At,
}

#[derive(clap::Args, Debug)]
struct Check {
    /// File that was sent
    sent: PathBuf,
    /// File that was received
    arrived: PathBuf,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Make(args) => write_copy(args),
        Command::Check(args) => check(args),
        Command::Send(args) => match args.link.over {
            Over::Tcp => send_tcp(args),
            Over::Quic => block_on(send_quic(args)),
        },
        Command::Receive(args) => match args.link.over {
            Over::Tcp => receive_tcp(args),
            Over::Quic => block_on(receive_quic(args)),
        },
    }
}

fn open(path: &Path) -> anyhow::Result<File> {
    File::open(path).with_context(|| path.display().to_string())
}

fn write_copy(args: &Make) -> anyhow::Result<()> {
    let context = || args.file.display().to_string();
    let mut file = File::create(&args.file).with_context(context)?;
    let (mut random, mut left) = (fastrand::Rng::with_seed(args.seed), args.bytes);
    let mut piece = vec![0; PIECE];
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        random.fill(&mut piece[..length]);
        file.write_all(&piece[..length]).with_context(context)?;
        left -= length as u64;
    }
    // Writes it to the disk now, so that this does not disturb the measurement.
    file.sync_all().with_context(context)?;
    print_event("made", json!({ "bytes": args.bytes }))
}

/// Reports the result instead of failing: a wrong file is a result.
fn check(args: &Check) -> anyhow::Result<()> {
    let (mut sent, mut arrived) = (open(&args.sent)?, open(&args.arrived)?);
    let bytes = sent.metadata()?.len();
    let mut same = bytes == arrived.metadata()?.len();
    let (mut a, mut b) = (vec![0; PIECE], vec![0; PIECE]);
    let mut left = bytes;
    while same && left > 0 {
        let length = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        sent.read_exact(&mut a[..length])?;
        arrived.read_exact(&mut b[..length])?;
        same = a[..length] == b[..length];
        left -= length as u64;
    }
    print_event("checked", json!({ "wrong": u8::from(!same), "bytes": bytes }))
}

fn send_tcp(args: &Send) -> anyhow::Result<()> {
    let mut file = open(&args.file)?;
    print_event("begin", json!({}))?;
    let mut stream = args.link.tcp()?;
    let mut piece = vec![0; PIECE];
    loop {
        let length = file.read(&mut piece)?;
        if length == 0 {
            break;
        }
        stream.write_all(&piece[..length])?;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = [0];
    stream.read_exact(&mut answer).context("the receiver closed the connection")?;
    print_event("sent", json!({}))
}

fn receive_tcp(args: &Receive) -> anyhow::Result<()> {
    let listener = args.link.tcp()?;
    let mut file = File::create(&args.file).with_context(|| args.file.display().to_string())?;
    print_event("listening", json!({}))?;
    let (mut stream, _) = listener.accept()?;
    let (mut piece, mut progress) = (vec![0; PIECE], Progress::new());
    loop {
        let length = stream.read(&mut piece)?;
        if length == 0 {
            break;
        }
        file.write_all(&piece[..length])?;
        progress.arrived(length)?;
    }
    file.sync_all()?;
    stream.write_all(&[DONE])?;
    print_event("file", json!({ "bytes": progress.bytes }))
}

/// The bytes received, reported every second.
struct Progress {
    bytes: usize,
    told: Instant,
    told_bytes: usize,
}

impl Progress {
    fn new() -> Progress {
        Progress { bytes: 0, told: Instant::now(), told_bytes: 0 }
    }

    fn arrived(&mut self, bytes: usize) -> anyhow::Result<()> {
        self.bytes += bytes;
        let since = self.told.elapsed();
        if since < TELL_EVERY {
            return Ok(());
        }
        let rate = 8.0 * (self.bytes - self.told_bytes) as f64 / since.as_secs_f64();
        (self.told, self.told_bytes) = (Instant::now(), self.bytes);
        print_event("progress", json!({ "received_bytes": self.bytes, "bits_per_second": rate }))
    }
}

async fn send_quic(args: &Send) -> anyhow::Result<()> {
    let mut file = open(&args.file)?;
    print_event("begin", json!({}))?;
    let (endpoint, connection) = args.link.quic(false).await?;
    let (mut out, mut back) = connection.open_bi().await?;
    let mut piece = vec![0; PIECE];
    loop {
        let length = file.read(&mut piece)?;
        if length == 0 {
            break;
        }
        out.write_all(&piece[..length]).await?;
    }
    out.finish()?;
    let mut answer = [0];
    back.read_exact(&mut answer).await.context("the receiver closed the connection")?;
    print_event("sent", json!({}))?;
    connection.close(0_u32.into(), b"");
    // Waits until the receiver probably knows.
    endpoint.wait_idle().await;
    Ok(())
}

async fn receive_quic(args: &Receive) -> anyhow::Result<()> {
    let endpoint = args.link.quic()?;
    let mut file = File::create(&args.file).with_context(|| args.file.display().to_string())?;
    print_event("listening", json!({}))?;
    let connection = accept(&endpoint).await?;
    let (mut back, mut from) = connection.accept_bi().await?;
    let (mut piece, mut progress) = (vec![0; PIECE], Progress::new());
    while let Some(length) = from.read(&mut piece).await? {
        file.write_all(&piece[..length])?;
        progress.arrived(length)?;
    }
    file.sync_all()?;
    back.write_all(&[DONE]).await?;
    back.finish()?;
    print_event("file", json!({ "bytes": progress.bytes }))?;
    // The acknowledgement may be lost; the sender closes when it has it.
    ended(&connection, SILENCE).await;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_seed_are_the_same_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (name, bytes, seed) in [("a", 100_000, 1), ("b", 100_000, 1), ("c", 100_000, 2)] {
            write_copy(&Make { file: path(name), bytes, seed }).unwrap();
        }
        let read = |name| std::fs::read(path(name)).unwrap();
        assert_eq!(read("a").len(), 100_000);
        assert_eq!(read("a"), read("b"));
        assert_ne!(read("a"), read("c"));
    }
}
