//! `fulmar lab probe`: an MQTT client that reports the time of each event, for experiments.
//!
//! It prints one JSON object per event with `at_ns`, this machine's monotonic clock, which programs in other network
//! namespaces share: a message's latency is the difference of two readings of one clock. Messages are numbered and
//! contain the time of sending; losses and duplicates show at the receiver.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use fulmar_client::{
    Backoff, Client, Event, Events, Message, Options, QoS, Streams, SubscribeOptions, TlsVersion,
    Trust,
};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::exit::Usage;
use crate::runtime::block_on;
use fulmar_command::key_log::KeyLogArgs;

const EXAMPLES: &str = "\
Examples:
  fulmar lab probe quic://broker --insecure --subscribe t --count 100
  fulmar lab probe quic://broker --insecure --publish t --count 100 --every-ms 20
  fulmar lab probe quic://broker --insecure --publish t --again    measures the second connection, with 0-RTT";

/// Bytes of a message's time and number.
pub(super) const HEADER: usize = 16;

/// The waits of a client that reconnects.
pub(super) const RETRY: Backoff =
    Backoff { first: Duration::from_millis(50), longest: Duration::from_millis(500) };

/// Connect, publish and receive, and report the time of each event as JSON lines
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Broker: mqtt://, mqtts://, quic://, ws:// or wss:// HOST[:PORT]
    url: String,
    /// Client identifier
    #[arg(short, long, default_value = "probe")]
    id: String,
    /// Topic filter to receive
    #[arg(long, value_name = "FILTER")]
    subscribe: Option<String>,
    /// Topic to publish to
    #[arg(long, value_name = "TOPIC")]
    publish: Option<String>,
    /// Messages to publish, and to wait for
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    count: u64,
    /// Milliseconds between two messages
    #[arg(long, value_name = "MS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    every_ms: u64,
    /// Number of topics to spread messages over in turn; if more than one, TOPIC/0, TOPIC/1, …
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=64))]
    topics: u64,
    /// A QUIC stream for each topic and each subscription
    #[arg(long)]
    streams: bool,
    /// Payload in bytes, time and number included
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u64).range(HEADER as u64..=1_048_576))]
    payload: u64,
    /// Quality of service: 0, 1 or 2
    #[arg(short, long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: u8,
    /// Keep alive in seconds, 0 for none
    #[arg(short, long, value_name = "SECONDS", default_value_t = 0)]
    keepalive: u16,
    /// Connect, wait until the broker's idle timeout closes the connection, and connect again; only the second counts
    #[arg(long)]
    again: bool,
    /// Milliseconds to stay connected when all is done
    #[arg(long, value_name = "MS", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=3_600_000))]
    stay_ms: u64,
    /// Seconds to wait for the connection, and without a message after which missing messages count as lost
    #[arg(long, visible_alias = "timeout", value_name = "SECONDS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600))]
    patience: u64,
    /// The only version of TLS over TCP: 1.2 or 1.3
    #[arg(long, value_name = "VERSION", value_parser = tls_version)]
    tls_version: Option<TlsVersion>,
    #[command(flatten)]
    tls: TlsArgs,
}

/// Certificates to trust, and the file for the connection's secrets.
#[derive(clap::Args, Debug)]
pub(super) struct TlsArgs {
    /// PEM file of trusted CAs
    #[arg(long, value_name = "FILE")]
    cafile: Option<PathBuf>,
    /// Do not verify the server's certificate
    #[arg(long, conflicts_with = "cafile")]
    insecure: bool,
    #[command(flatten)]
    pub(super) key_log: KeyLogArgs,
}

impl TlsArgs {
    pub(super) fn trust(&self) -> Trust {
        match (&self.cafile, self.insecure) {
            (Some(path), _) => Trust::CaFile(path.clone()),
            (None, true) => Trust::Insecure,
            (None, false) => Trust::Auto,
        }
    }

    /// Sets both in a client's options.
    pub(super) fn apply_to(&self, options: &mut Options) -> Result<(), Usage> {
        options.trust = self.trust();
        options.key_log = self.key_log.file(options.url.is_loopback())?;
        Ok(())
    }
}

fn tls_version(text: &str) -> Result<TlsVersion, String> {
    match text {
        "1.2" => Ok(TlsVersion::V1_2),
        "1.3" => Ok(TlsVersion::V1_3),
        _ => Err("use 1.2 or 1.3".to_owned()),
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    block_on(probe(args))
}

/// Prints an event; `more` is an object.
pub(super) fn print_event(event: &str, more: Value) -> anyhow::Result<()> {
    let mut line = json!({ "event": event, "at_ns": now_ns() });
    if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
        line.extend(more);
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("standard output")
}

/// The monotonic clock, in ns.
pub(super) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

fn options(args: &Args) -> anyhow::Result<Options> {
    let mut options = Options::new(&args.url).map_err(|error| Usage(error.to_string()))?;
    options.client_id.clone_from(&args.id);
    options.keep_alive_s = args.keepalive;
    options.reconnect = args.again.then_some(RETRY);
    options.tls_version = args.tls_version;
    options.connect_timeout = Duration::from_secs(args.patience);
    if args.streams {
        options.streams = Streams::PerTopicAndSubscription;
    }
    args.tls.apply_to(&mut options)?;
    Ok(options)
}

async fn probe(args: &Args) -> anyhow::Result<()> {
    let options = options(args)?;
    if !args.again {
        print_event("begin", json!({}))?;
    }
    let (client, mut events) = Client::connect(options)?;
    if args.again {
        connected(&mut events, "first-connack").await?;
        lost(&mut events).await?;
        print_event("begin", json!({}))?;
    }
    // Requests made before the connection exists are sent together with CONNECT. So would be messages, but they must
    // not include the time of connecting, unless they are to be early data.
    let (up, is_up) = oneshot::channel();
    let work = async {
        let publish = async {
            if args.again || is_up.await.is_ok() { publish(&client, args).await } else { Ok(()) }
        };
        tokio::try_join!(subscribe(&client, args), publish)?;
        anyhow::Ok(())
    };
    let listen = async {
        connected(&mut events, "connack").await?;
        let _ = up.send(());
        receive(&mut events, args).await
    };
    tokio::try_join!(work, listen)?;
    sleep(Duration::from_millis(args.stay_ms)).await;
    client.disconnect().await;
    print_event("end", json!({}))
}

async fn connected(events: &mut Events, event: &str) -> anyhow::Result<()> {
    match events.next().await {
        Some(Event::Connected { transport, early_data, .. }) => {
            print_event(event, json!({ "transport": transport.scheme(), "early_data": early_data }))
        }
        Some(Event::Disconnected { reason, .. }) => Err(reason.into()),
        _ => bail!("the connection ended before it began"),
    }
}

async fn lost(events: &mut Events) -> anyhow::Result<()> {
    while let Some(event) = events.next().await {
        if let Event::Disconnected { retry_in: Some(_), .. } = event {
            return Ok(());
        }
    }
    bail!("the client gave up")
}

async fn subscribe(client: &Client, args: &Args) -> anyhow::Result<()> {
    let Some(filter) = &args.subscribe else { return Ok(()) };
    let options = SubscribeOptions { qos: QoS::try_from(args.qos)?, ..SubscribeOptions::default() };
    let filters: Vec<_> = (0..args.topics).map(|n| (numbered(filter, n, args), options)).collect();
    let codes = client.subscribe(&filters).await?;
    if let Some(code) = codes.iter().find(|code| code.is_error()) {
        bail!("the subscription was refused: {code}");
    }
    print_event("suback", json!({}))
}

fn numbered(topic: &str, number: u64, args: &Args) -> String {
    if args.topics == 1 { topic.to_owned() } else { format!("{topic}/{number}") }
}

async fn publish(client: &Client, args: &Args) -> anyhow::Result<()> {
    let Some(topic) = &args.publish else { return Ok(()) };
    let qos = QoS::try_from(args.qos)?;
    let mut ticks = interval(Duration::from_millis(args.every_ms));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    for number in 0..args.count {
        ticks.tick().await;
        let payload = payload(args.payload as usize, now_ns(), number);
        let topic = numbered(topic, number % args.topics, args);
        let delivery = client.publish(Message::new(topic, payload).qos(qos)).await?;
        if number == 0 {
            delivery.await?;
            print_event("published", json!({}))?;
        } else {
            last = Some(delivery);
        }
    }
    if let Some(delivery) = last {
        delivery.await?;
    }
    Ok(())
}

/// Reports each message, and at the end the numbers of missing messages and of duplicates.
async fn receive(events: &mut Events, args: &Args) -> anyhow::Result<()> {
    if args.subscribe.is_none() {
        return Ok(());
    }
    let mut seen = BTreeSet::new();
    let (mut duplicates, patience) = (0_u64, Duration::from_secs(args.patience));
    while (seen.len() as u64) < args.count {
        match timeout(patience, events.next()).await {
            Ok(Some(Event::Message(message))) => {
                let (sent_ns, number) = header(&message.payload)?;
                if !seen.insert(number) {
                    duplicates += 1;
                }
                let latency_ms = now_ns().saturating_sub(sent_ns) as f64 / 1e6;
                print_event("message", json!({ "number": number, "latency_ms": latency_ms }))?;
            }
            Ok(Some(Event::Connected { .. })) => print_event("connected-again", json!({}))?,
            Ok(Some(Event::Migrated { .. })) => print_event("migrated", json!({}))?,
            Ok(Some(Event::Disconnected { retry_in: Some(_), .. })) => {
                print_event("lost", json!({}))?
            }
            Ok(Some(Event::Disconnected { reason, retry_in: None })) => return Err(reason.into()),
            // Events that do not concern receivers.
            Ok(Some(_)) => {}
            Ok(None) => bail!("the client ended"),
            // Reported below; the experiment decides what it means.
            Err(_) => break,
        }
    }
    let missing = args.count - seen.len() as u64;
    print_event(
        "received",
        json!({ "messages": seen.len(), "missing": missing, "duplicates": duplicates }),
    )
}

/// A message of `bytes`, at least [`HEADER`], that contains its time and number.
pub(super) fn payload(bytes: usize, sent_ns: u64, number: u64) -> Vec<u8> {
    let mut payload = vec![0; bytes.max(HEADER)];
    payload[..8].copy_from_slice(&sent_ns.to_be_bytes());
    payload[8..HEADER].copy_from_slice(&number.to_be_bytes());
    payload
}

/// A message's time and number.
pub(super) fn header(payload: &[u8]) -> anyhow::Result<(u64, u64)> {
    let read = |at: usize| {
        let bytes = payload.get(at..at + 8)?;
        bytes.try_into().ok().map(u64::from_be_bytes)
    };
    read(0).zip(read(8)).context("a message that no probe has sent")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn time_and_number_come_back() {
        let payload = payload(40, 7, 9);
        assert_eq!(header(&payload).unwrap(), (7, 9));
        assert!(header(&payload[..15]).is_err());
    }
}
