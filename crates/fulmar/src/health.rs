//! `fulmar health`: asks a broker's `http` listener how it is, for supervisors that run a command.
//!
//! The answer's status decides the exit code, its body is what is printed. The request is HTTP/1.0 in one write: what
//! images without a shell need is no client for HTTP in general.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use fulmar_command::exit::Usage;

const EXAMPLES: &str = "\
Examples:
  fulmar health                                          whether the broker on this machine can store messages
  fulmar health http://127.0.0.1:14568/health/live       whether its workers serve clients
  fulmar health http://127.0.0.1:14568/health/upstream   what a gateway's upstream broker refuses

Exit codes: 0 healthy, 1 not healthy or no answer, 2 wrong usage.";

/// The `http` listener's default address.
const DEFAULT: &str = "http://127.0.0.1:14568/health/ready";
/// Most of an answer that is read; those of the health paths are a few lines.
const MAX_ANSWER_BYTES: u64 = 64 << 10;

/// Ask whether a broker is healthy
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Address of the broker's `http` listener; without a path, /health/ready
    #[arg(value_name = "URL", default_value = DEFAULT)]
    url: String,
    /// Seconds until the broker must have answered
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (authority, path) = parts(&args.url)?;
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    let answer = request(authority, path, deadline)
        .with_context(|| format!("no answer from {}", args.url))?;
    let (status, body) = parse(&answer).with_context(|| format!("{} is not HTTP", args.url))?;
    ensure!(status == 200, "{} answered {status}: {}", args.url, body.trim());
    print!("{body}");
    Ok(())
}

/// Host and port, and the path.
fn parts(url: &str) -> Result<(&str, &str), Usage> {
    let usage = || Usage(format!("{url} is not like {DEFAULT}"));
    let rest = url.strip_prefix("http://").ok_or_else(usage)?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if !has_port || url.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(usage());
    }
    Ok((authority, if matches!(path, "" | "/") { "/health/ready" } else { path }))
}

fn request(authority: &str, path: &str, deadline: Instant) -> anyhow::Result<Vec<u8>> {
    let left = || deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let mut last = None;
    for address in authority.to_socket_addrs()? {
        let mut stream = match TcpStream::connect_timeout(&address, left()) {
            Ok(stream) => stream,
            Err(error) => {
                last = Some(error);
                continue;
            }
        };
        stream.set_write_timeout(Some(left()))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {authority}\r\n\r\n")?;
        return read(&mut stream, left);
    }
    Err(last.map_or_else(|| anyhow::anyhow!("{authority} has no address"), Into::into))
}

/// Everything up to the end; a peer that sends a byte now and then does not delay the deadline.
fn read(stream: &mut TcpStream, left: impl Fn() -> Duration) -> anyhow::Result<Vec<u8>> {
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        ensure!(left() > Duration::from_millis(1), "the answer takes too long");
        stream.set_read_timeout(Some(left()))?;
        let length = stream.read(&mut piece)?;
        if length == 0 {
            return Ok(answer);
        }
        answer.extend_from_slice(&piece[..length]);
        if answer.len() as u64 > MAX_ANSWER_BYTES {
            bail!("the answer is too long");
        }
    }
}

/// Status and body.
fn parse(answer: &[u8]) -> Option<(u16, String)> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut words = head.lines().next()?.split(' ');
    words.next()?.starts_with("HTTP/1.").then_some(())?;
    Some((words.next()?.parse().ok()?, body.to_owned()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_address_needs_a_port_and_may_lack_the_path() {
        assert_eq!(parts("http://[::1]:80/health/live").unwrap(), ("[::1]:80", "/health/live"));
        assert_eq!(parts("http://broker:14568").unwrap(), ("broker:14568", "/health/ready"));
        for wrong in ["localhost:14568", "https://a:1/", "http://a", "http://a:b", "http://a:1/ b"]
        {
            assert!(parts(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_status_is_that_of_the_first_line() {
        let answer = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 8\r\n\r\nstalled\n";
        assert_eq!(parse(answer).unwrap(), (503, "stalled\n".to_owned()));
        assert_eq!(parse(b"SSH-2.0-OpenSSH\r\n\r\n"), None);
    }
}
