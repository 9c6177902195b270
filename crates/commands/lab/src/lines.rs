//! `fulmar lab lines`: sends messages over a stream at a fixed interval, and reports how late each arrives.
//!
//! Each line contains its number and the time at which it was due, by the clock that all network namespaces of a
//! machine share. Over TCP and QUIC, this program is both ends; for another program (`fulmar send -`), lines are
//! written to standard output and checked from standard input.

use std::io::{self, BufRead, BufReader, Write};
use std::time::Duration;

use anyhow::{Context, bail};
use fulmar_lab::units::parse_time;
use serde_json::json;

use super::carrier::{At, Over, SILENCE, To, accept, ended};
use super::probe::{now_ns, print_event};
use crate::runtime::block_on;

const EXAMPLES: &str = "\
Examples:
  fulmar lab lines make --every 20ms --count 500 | fulmar send - --lines --to 198.18.1.2
  fulmar receive --from 198.18.1.2 --stdout | fulmar lab lines check --count 500
  fulmar lab lines receive --at 198.18.1.2:7000 --over quic --count 500
  fulmar lab lines send --to 198.18.1.2:7000 --over quic --every 20ms --count 500";

/// The shortest line: two numbers, two spaces, and its end.
const LEAST_BYTES: u16 = 40;

/// Send timed lines over a stream, or report how late each arrives
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Write lines to standard output
    Make(What),
    /// Send lines over TCP or QUIC
    Send(Send),
    /// Report how late lines arrive on standard input
    Check(Check),
    /// Report how late lines arrive over TCP or QUIC
    Receive(Receive),
}

#[derive(clap::Args, Clone, Debug)]
struct What {
    /// Time from one line to the next: 20ms
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    every: u64,
    /// Number of lines
    #[arg(long, value_name = "NUMBER")]
    count: u32,
    /// Bytes of each line
    #[arg(long, value_name = "BYTES", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u16).range(i64::from(LEAST_BYTES)..))]
    bytes: u16,
}

#[derive(clap::Args, Debug)]
struct Send {
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    link: To,
}

#[derive(clap::Args, Debug)]
struct Check {
    /// Number of lines to expect
    #[arg(long, value_name = "NUMBER")]
    count: u32,
}

#[derive(clap::Args, Debug)]
struct Receive {
    #[command(flatten)]
    check: Check,
    #[command(flatten)]
    link: At,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Make(what) => {
            let mut out = io::stdout().lock();
            what.write_lines(|line| out.write_all(line).and_then(|()| out.flush()))
        }
        Command::Check(check) => {
            print_event("listening", json!({}))?;
            let mut counted = LineTally::new(check);
            counted.read_lines(&mut io::stdin().lock())?;
            counted.end()
        }
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

impl What {
    /// A line that was due at a time.
    fn line(&self, number: u32, due_ns: u64) -> Vec<u8> {
        let mut line = format!("{number} {due_ns} ").into_bytes();
        line.resize(usize::from(self.bytes) - 1, b'.');
        line.push(b'\n');
        line
    }

    /// When each line is due, from now on.
    fn times(&self) -> impl Iterator<Item = (u32, u64)> + use<> {
        let (begin, every) = (now_ns(), self.every);
        (0..self.count).map(move |number| (number, begin + u64::from(number) * every))
    }

    fn write_lines(&self, mut write: impl FnMut(&[u8]) -> io::Result<()>) -> anyhow::Result<()> {
        for (number, due) in self.times() {
            std::thread::sleep(Duration::from_nanos(due.saturating_sub(now_ns())));
            write(&self.line(number, due)).context("the stream")?;
        }
        Ok(())
    }
}

/// The lines received.
struct LineTally {
    expected: u32,
    next: u32,
    missing: u32,
}

impl LineTally {
    fn new(check: &Check) -> LineTally {
        LineTally { expected: check.count, next: 0, missing: 0 }
    }

    fn read_lines(&mut self, from: &mut impl BufRead) -> anyhow::Result<()> {
        let mut line = String::new();
        while from.read_line(&mut line)? > 0 {
            self.line(&line)?;
            line.clear();
        }
        Ok(())
    }

    fn line(&mut self, line: &str) -> anyhow::Result<()> {
        let now = now_ns();
        let mut words = line.split(' ').map(str::parse::<u64>);
        let (Some(Ok(number)), Some(Ok(due))) = (words.next(), words.next()) else {
            bail!("not a line of this command: {line:?}");
        };
        let number = u32::try_from(number)?;
        if number < self.next || number >= self.expected {
            bail!("line {number} arrived after line {}", self.next);
        }
        self.missing += number - self.next;
        self.next = number + 1;
        let late_ms = now.saturating_sub(due) as f64 * 1e-6;
        print_event("line", json!({ "number": number, "late_ms": late_ms }))
    }

    fn end(self) -> anyhow::Result<()> {
        let missing = self.missing + (self.expected - self.next);
        print_event("end", json!({ "missing": missing }))
    }
}

fn send_tcp(args: &Send) -> anyhow::Result<()> {
    let mut stream = args.link.tcp()?;
    stream.set_nodelay(true)?;
    args.what.write_lines(|line| stream.write_all(line))?;
    stream.shutdown(std::net::Shutdown::Write)?;
    // Waits until the other side has everything and closes.
    let closed = io::copy(&mut stream, &mut io::sink());
    closed.map(|_| ()).context("the receiver closed the connection")
}

fn receive_tcp(args: &Receive) -> anyhow::Result<()> {
    let listener = args.link.tcp()?;
    print_event("listening", json!({}))?;
    let (stream, _) = listener.accept()?;
    let mut counted = LineTally::new(&args.check);
    counted.read_lines(&mut BufReader::new(stream))?;
    counted.end()
}

async fn send_quic(args: &Send) -> anyhow::Result<()> {
    // A live stream is what copies are for.
    let (endpoint, connection) = args.link.quic(true).await?;
    let mut out = connection.open_uni().await?;
    for (number, due) in args.what.times() {
        tokio::time::sleep(Duration::from_nanos(due.saturating_sub(now_ns()))).await;
        out.write_all(&args.what.line(number, due)).await?;
    }
    out.finish()?;
    out.stopped().await?;
    connection.close(0_u32.into(), b"");
    endpoint.wait_idle().await;
    Ok(())
}

async fn receive_quic(args: &Receive) -> anyhow::Result<()> {
    let endpoint = args.link.quic()?;
    print_event("listening", json!({}))?;
    let connection = accept(&endpoint).await?;
    let mut from = connection.accept_uni().await?;
    let mut counted = LineTally::new(&args.check);
    let (mut piece, mut rest) = (vec![0; 1 << 16], Vec::new());
    while let Some(length) = from.read(&mut piece).await? {
        rest.extend_from_slice(&piece[..length]);
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            counted.line(&String::from_utf8_lossy(&line))?;
        }
    }
    counted.end()?;
    ended(&connection, SILENCE).await;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_and_what_is_no_line_is_refused() {
        let what = What { every: 1_000_000, count: 3, bytes: 50 };
        let line = |number| String::from_utf8(what.line(number, now_ns())).unwrap();
        assert_eq!(line(7).len(), 50);
        let mut counted = LineTally::new(&Check { count: 5 });
        counted.read_lines(&mut (line(0) + &line(2) + &line(3)).as_bytes()).unwrap();
        assert_eq!((counted.missing, counted.next), (1, 4));
        assert!(counted.line(&line(1)).is_err(), "out of order");
        assert!(counted.line("rubbish\n").is_err());
    }
}
