//! `fulmar lab udp`: sends numbered datagrams with timestamps at a steady rate, and reports delay, loss and rate.
//!
//! It measures a link from end to end with one clock: the machine's monotonic clock, which network namespaces share.
//! A datagram's delay begins before it is handed to the sending kernel and ends when the receiving kernel has it; the
//! time that the receiving program waits for the processor is reported separately. Nothing is judged here;
//! experiments set bounds.
//!
//! A datagram contains: its number, the number of all, the time of sending (8 bytes each, big endian), and padding
//! that is the same in all. Datagrams with other padding were damaged without being detected.

use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fulmar_lab::arrival;
use fulmar_lab::stats::{quantile, sorted};
use fulmar_lab::units::{parse_rate, parse_share, parse_time};
use serde_json::{Value, json};

use super::probe::{now_ns, print_event};

const EXAMPLES: &str = "\
Examples:
  fulmar lab link --delay 30ms --loss 2% \\
      --between 'fulmar lab udp receive $LAB_SELF:7000 --delay 30ms --loss 2%' \\
                'fulmar lab udp send $LAB_PEER:7000 --pps 1000 --count 5000; sleep 2'
      measure the accuracy of a link's delay and loss";

/// Bytes of number, total and time.
const HEADER: usize = 24;
/// The padding.
const FILLING: u8 = 0xa5;
/// Headers of IPv4 and UDP, and of IPv6 and UDP: links count them.
const HEADERS_V4: u64 = 28;
const HEADERS_V6: u64 = 48;
/// The receive buffer to request, of which the kernel may grant less: half a second of small datagrams at 20,000 per
/// second.
const RECEIVE_BUFFER: usize = 16 << 20;
/// The most datagrams of one stream, which limits the receiver's memory.
const MAX_COUNT: u64 = 10_000_000;
/// The most delays that are reported one by one; of more, evenly chosen ranks are reported.
const TOLD: usize = 1_000;

/// Send numbered datagrams at a rate, or receive them and report delay, loss and rate
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Send datagrams
    Send(Send),
    /// Receive datagrams until they stop, and report
    Receive(Receive),
}

#[derive(clap::Args, Debug)]
struct Send {
    /// Address to send to
    #[arg(value_name = "ADDRESS:PORT")]
    to: SocketAddr,
    /// Datagrams per second
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pps: u64,
    /// Number of datagrams
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=MAX_COUNT))]
    count: u64,
    /// Payload of each datagram in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(HEADER as u64..=65_000))]
    payload: u64,
}

#[derive(clap::Args, Debug)]
struct Receive {
    /// Address to listen on
    #[arg(value_name = "ADDRESS:PORT")]
    at: SocketAddr,
    /// Expected delay of the link, such as 10ms, to report the error
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_time)]
    delay: u64,
    /// Expected loss of the link, such as 5%, to report the error
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = parse_share)]
    loss: f64,
    /// Expected share of duplicates
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = parse_share)]
    duplicate: f64,
    /// Expected rate of the link, such as 10M, to report the error; IP headers count
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<u64>,
    /// Time without a datagram after which to stop
    #[arg(long, visible_alias = "timeout", value_name = "TIME", default_value = "500ms", value_parser = parse_time)]
    patience: u64,
    /// Maximum time to wait for the first datagram
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    first: u64,
}

/// A rate, or `unlimited`, as links have it.
fn rate(text: &str) -> Result<u64, String> {
    if text == "unlimited" { Ok(0) } else { parse_rate(text).map_err(|error| error.to_string()) }
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    // A sleep would otherwise end up to 50 µs late, which is the interval of datagrams at 20,000 per second.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).context("timer slack")?;
    match &args.command {
        Command::Send(args) => send(args),
        Command::Receive(args) => receive(args),
    }
}

/// Sends on time, and catches up after a delay.
fn send(args: &Send) -> anyhow::Result<()> {
    let any: SocketAddr =
        if args.to.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).context("no socket")?;
    socket.connect(args.to).with_context(|| args.to.to_string())?;
    let mut datagram = vec![FILLING; args.payload as usize];
    let (begin, mut refused) = (now_ns(), 0_u64);
    for number in 0..args.count {
        let due = begin + (u128::from(number) * 1_000_000_000 / u128::from(args.pps)) as u64;
        let wait = due.saturating_sub(now_ns());
        if wait > 0 {
            std::thread::sleep(Duration::from_nanos(wait));
        }
        for (at, word) in [number, args.count, now_ns()].into_iter().enumerate() {
            datagram[at * 8..at * 8 + 8].copy_from_slice(&word.to_be_bytes());
        }
        // An ICMP error about an earlier datagram, or a full buffer: the datagram counts as lost in the receiver's
        // report, and this line shows why.
        if socket.send(&datagram).is_err() {
            refused += 1;
        }
    }
    let seconds = (now_ns() - begin) as f64 / 1e9;
    let pps = args.count as f64 / seconds.max(1e-9);
    print_event("sent", json!({ "datagrams": args.count, "refused": refused, "pps": pps }))
}

fn receive(args: &Receive) -> anyhow::Result<()> {
    let socket = UdpSocket::bind(args.at).with_context(|| args.at.to_string())?;
    // Beyond the system's limit if allowed, otherwise up to it.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER)
        .or_else(|_| rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER));
    arrival::note_arrivals(&socket).context("no times of arrival")?;
    print_event("listening", json!({}))?;
    let headers = if args.at.is_ipv4() { HEADERS_V4 } else { HEADERS_V6 };
    let mut stream = Stream::default();
    let patience = |ns: u64| Some(Duration::from_nanos(ns.max(1)));
    socket.set_read_timeout(patience(args.first)).context("a time limit")?;
    let (mut buffer, begin) = (vec![0; 65_536], Instant::now());
    while let Ok((length, age)) = arrival::receive(&socket, &mut buffer) {
        let seen = now_ns();
        let at = seen.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(0));
        if stream.record_datagram(at, seen, &buffer[..length], headers) {
            socket.set_read_timeout(patience(args.patience)).context("a time limit")?;
        }
    }
    if stream.total == 0 {
        bail!("no datagram arrived within {:.1} s", begin.elapsed().as_secs_f64());
    }
    print_event("received", stream.told(args))
}

/// The received datagrams.
#[derive(Debug, Default)]
struct Stream {
    /// The number of datagrams sent, as they say.
    total: u64,
    seen: Vec<bool>,
    distinct: u64,
    duplicates: u64,
    overtaken: u64,
    damaged: u64,
    newest: u64,
    /// When the first arrived.
    first: u64,
    pace: Pace,
    /// Delays of first copies up to the kernel, and up to this program, in ns.
    delays: Vec<u64>,
    delays_seen: Vec<u64>,
}

/// The least-squares line through received bytes over time: unlike the time from the first to the last datagram, it
/// does not depend on two arrivals.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    bytes: f64,
    points: f64,
    sum_x: f64,
    sum_y: f64,
    sum_xx: f64,
    sum_xy: f64,
}

impl Pace {
    /// Records a datagram of `bytes`, received `seconds` after the first.
    fn arrived(&mut self, seconds: f64, bytes: u64) {
        self.bytes += bytes as f64;
        let x = self.bytes;
        self.points += 1.0;
        self.sum_x += x;
        self.sum_y += seconds;
        self.sum_xx += x * x;
        self.sum_xy += x * seconds;
    }

    /// 0 if all arrived at once.
    fn bits_per_second(&self) -> f64 {
        let spread = self.points * self.sum_xx - self.sum_x * self.sum_x;
        let seconds_per_byte = (self.points * self.sum_xy - self.sum_x * self.sum_y) / spread;
        if seconds_per_byte > 0.0 { 8.0 / seconds_per_byte } else { 0.0 }
    }
}

impl Stream {
    /// Records a datagram that the kernel received `at` and this program has `seen`; false if it is not part of the
    /// stream.
    fn record_datagram(&mut self, at: u64, seen: u64, datagram: &[u8], headers: u64) -> bool {
        let word = |index: usize| {
            let bytes = datagram.get(index * 8..index * 8 + 8)?;
            bytes.try_into().ok().map(u64::from_be_bytes)
        };
        let (Some(number), Some(total), Some(sent)) = (word(0), word(1), word(2)) else {
            return false;
        };
        if number >= total || total > MAX_COUNT || (self.total != 0 && self.total != total) {
            return false;
        }
        if self.total == 0 {
            self.total = total;
            self.seen = vec![false; total as usize];
            self.first = at;
        }
        let since_first = at.saturating_sub(self.first) as f64 / 1e9;
        self.pace.arrived(since_first, datagram.len() as u64 + headers);
        if !datagram[HEADER..].iter().all(|byte| *byte == FILLING) {
            self.damaged += 1;
        }
        if std::mem::replace(&mut self.seen[number as usize], true) {
            self.duplicates += 1;
            return true;
        }
        self.distinct += 1;
        self.delays.push(at.saturating_sub(sent));
        self.delays_seen.push(seen.saturating_sub(sent));
        if number < self.newest {
            self.overtaken += 1;
        }
        self.newest = self.newest.max(number);
        true
    }

    fn told(&self, args: &Receive) -> Value {
        let errors = |delays: &[u64]| {
            let off = delays.iter().map(|delay| delay.abs_diff(args.delay) as f64 / 1e6);
            sorted(&off.collect::<Vec<_>>())
        };
        let (errors, errors_seen) = (errors(&self.delays), errors(&self.delays_seen));
        let lost = self.total - self.distinct;
        let bits_per_second = self.pace.bits_per_second();
        let mut told = json!({
            "sent": self.total,
            "lost": lost,
            "lost_pct": percent(lost, self.total),
            "duplicates": self.duplicates,
            "duplicates_pct": percent(self.duplicates, self.distinct),
            "overtaken": self.overtaken,
            "damaged": self.damaged,
            "bits_per_second": bits_per_second,
            "error_max_ms": errors.last(),
            "error_ms": ranks(&errors),
            "program_error_ms": ranks(&errors_seen),
        });
        if let Some(of) = off(lost, self.total, args.loss) {
            told["lost_sigmas"] = json!(of);
        }
        if let Some(of) = off(self.duplicates, self.distinct, args.duplicate) {
            told["duplicates_sigmas"] = json!(of);
        }
        if let Some(rate) = args.rate.filter(|rate| *rate > 0) {
            told["rate_error_pct"] = json!(100.0 * (bits_per_second / rate as f64 - 1.0).abs());
        }
        told
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// By how many standard deviations of the binomial distribution a count differs from its expectation; `None` if it is
/// not random.
fn off(hits: u64, trials: u64, share: f64) -> Option<f64> {
    let (n, k) = (trials as f64, hits as f64);
    let deviation = (n * share * (1.0 - share)).sqrt();
    (deviation > 0.0).then(|| (k - n * share).abs() / deviation)
}

/// Evenly chosen ranks of sorted numbers, including the least and the greatest.
fn ranks(sorted: &[f64]) -> Vec<f64> {
    if sorted.len() <= TOLD {
        return sorted.to_vec();
    }
    let last = (TOLD - 1) as f64;
    (0..TOLD).filter_map(|rank| quantile(sorted, rank as f64 / last)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn datagram(number: u64, total: u64, sent: u64) -> Vec<u8> {
        let words = [number, total, sent].map(u64::to_be_bytes);
        [&words.concat()[..], &[FILLING; 76]].concat()
    }

    fn args(line: &[&str]) -> Receive {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Receive,
        }
        let line = [&["receive", "127.0.0.1:7000"], line].concat();
        <Line as clap::Parser>::try_parse_from(line).unwrap().args
    }

    #[test]
    fn what_became_of_each_datagram_is_told() {
        let mut stream = Stream::default();
        // One of ten is lost, one duplicated, one reordered; each takes 10 ms plus its number in µs.
        for number in [0, 1, 2, 2, 4, 3, 5, 6, 7, 9] {
            let sent = number * 1_000_000;
            let at = sent + 10_000_000 + number * 1000;
            assert!(stream.record_datagram(at, at + 5000, &datagram(number, 10, sent), HEADERS_V4));
        }
        assert!(!stream.record_datagram(0, 0, b"something else", HEADERS_V4));
        assert!(!stream.record_datagram(0, 0, &datagram(10, 10, 0), HEADERS_V4));
        assert!(!stream.record_datagram(0, 0, &datagram(1, 11, 0), HEADERS_V4));
        let told = stream.told(&args(&["--delay=10ms", "--loss=10%", "--rate=1M"]));
        for (field, expected) in
            [("sent", 10), ("lost", 1), ("duplicates", 1), ("overtaken", 1), ("damaged", 0)]
        {
            assert_eq!(told[field], expected, "{field}");
        }
        assert_eq!(told["lost_sigmas"], 0.0);
        assert_eq!(told["duplicates_sigmas"], Value::Null);
        assert_eq!(told["error_max_ms"], 0.009);
        assert_eq!(told["program_error_ms"][0], 0.005);
    }

    #[test]
    fn the_rate_is_that_of_the_link_whoever_is_late() {
        let mut stream = Stream::default();
        for number in 0..1000 {
            // 128 bytes per millisecond; the last is delayed by 20 ms.
            let at = number * 1_000_000 + if number == 999 { 20_000_000 } else { 0 };
            stream.record_datagram(at, at, &datagram(number, 1000, 0), HEADERS_V4);
        }
        let told = stream.told(&args(&["--rate=1024k"]));
        let error = told["rate_error_pct"].as_f64().unwrap();
        assert!(error < 0.02, "{error}");
    }

    #[test]
    fn damage_that_was_believed_is_seen() {
        let mut stream = Stream::default();
        let mut damaged = datagram(0, 2, 0);
        damaged[HEADER + 7] ^= 1;
        assert!(stream.record_datagram(5, 5, &damaged, HEADERS_V4));
        assert!(stream.record_datagram(6, 6, &datagram(1, 2, 0), HEADERS_V4));
        assert_eq!(stream.damaged, 1);
    }

    #[test]
    fn ranks_keep_the_shape_and_both_ends() {
        let many: Vec<f64> = (0..50_000).map(f64::from).collect();
        let few = ranks(&many);
        assert_eq!((few.len(), few[0], few[TOLD - 1]), (TOLD, 0.0, 49_999.0));
        assert!((quantile(&few, 0.99).unwrap() - 49_499.0).abs() < 50.0);
        assert_eq!(ranks(&[1.0, 2.0]), [1.0, 2.0]);
    }
}
