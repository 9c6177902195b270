//! `fulmar lab fleet`: many MQTT clients in one program, for experiments.
//!
//! Each publishes numbered messages at a steady pace; with `--echo` it subscribes to them, so that each message goes
//! to the broker and returns over the same connection. Messages that never return are lost, messages that return
//! twice are duplicates, and the longest time between two received messages, minus that between two sent ones, is the
//! longest gap. The command prints JSON lines as `fulmar lab probe` does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use fulmar_client::{Client, Event, Message, Options, QoS, SubscribeOptions};
use serde_json::json;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at, timeout_at};

use super::probe::{HEADER, RETRY, TlsArgs, header, now_ns, payload, print_event};
use crate::exit::Usage;
use crate::runtime::block_on;

const EXAMPLES: &str = "\
Examples:
  fulmar lab fleet quic://broker --insecure --connections 100 --count 200 --echo
      100 clients; each sends itself 200 messages
  fulmar lab fleet mqtt://broker --connections 100 --topics 10 --count 1000
      100 clients that only publish, ten to each of ten topics";

/// The interval over which arrivals are counted together.
const FLOW_EVERY: Duration = Duration::from_millis(250);

/// Run many publishing clients and report their statistics as JSON lines
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Broker: mqtt://, mqtts://, quic://, ws:// or wss:// HOST[:PORT]
    url: String,
    /// Clients, each with a connection of its own
    #[arg(short, long, value_name = "NUMBER", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
    connections: u64,
    /// Messages that each client publishes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    count: u64,
    /// Milliseconds between two messages of a client
    #[arg(long, value_name = "MS", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    every_ms: u64,
    /// Number of topics that the clients share in turn [default: one for each client]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    topics: Option<u64>,
    /// Each client subscribes to its own messages and waits for them
    #[arg(long, conflicts_with = "topics")]
    echo: bool,
    /// Topic filter to which each client also subscribes
    #[arg(long, value_name = "FILTER")]
    subscribe: Option<String>,
    /// Payload in bytes, time and number included
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u64).range(HEADER as u64..=1_048_576))]
    payload: u64,
    /// Quality of service: 0, 1 or 2
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: u8,
    /// Keep alive in seconds, 0 for none
    #[arg(short, long, value_name = "SECONDS", default_value_t = 0)]
    keepalive: u16,
    /// Seconds the broker keeps the session of a client whose connection is lost
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    session: u32,
    /// Reconnect clients that lose their connection
    #[arg(long)]
    reconnect: bool,
    /// Seconds without a message after which missing messages count as lost
    #[arg(long, visible_alias = "timeout", value_name = "SECONDS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600))]
    patience: u64,
    #[command(flatten)]
    tls: TlsArgs,
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    block_on(fleet(Arc::new(args)))
}

/// State that all clients share.
struct Fleet {
    args: Arc<Args>,
    /// Passed when all are connected and subscribed.
    ready: Barrier,
    /// Messages that came back for the first time.
    arrived: AtomicU64,
}

/// A client's statistics.
#[derive(Debug, Default)]
struct Fate {
    /// Number of times each message came back, by number.
    seen: Vec<u32>,
    first_and_last: Option<(Instant, Instant)>,
    /// The longest time between two received messages.
    longest_wait: Duration,
    migrations: u64,
    reconnections: u64,
}

impl Fate {
    /// Records a message; false if it is a duplicate or was never sent.
    fn note(&mut self, number: u64, at: Instant) -> bool {
        let Some(times) = usize::try_from(number).ok().and_then(|n| self.seen.get_mut(n)) else {
            return false;
        };
        *times += 1;
        if *times > 1 {
            return false;
        }
        let (first, last) = self.first_and_last.unwrap_or((at, at));
        self.longest_wait = self.longest_wait.max(at - last);
        self.first_and_last = Some((first, at));
        true
    }

    fn lost(&self) -> usize {
        self.seen.iter().filter(|times| **times == 0).count()
    }

    fn duplicates(&self) -> u64 {
        self.seen.iter().map(|times| u64::from(times.saturating_sub(1))).sum()
    }
}

async fn fleet(args: Arc<Args>) -> anyhow::Result<()> {
    print_event("begin", json!({}))?;
    let connections = usize::try_from(args.connections).context("too many connections")?;
    let fleet = Arc::new(Fleet {
        args: Arc::clone(&args),
        ready: Barrier::new(connections),
        arrived: AtomicU64::new(0),
    });
    let mut clients = JoinSet::new();
    for number in 0..args.connections {
        clients.spawn(client(Arc::clone(&fleet), number));
    }
    let mut ticks = interval(FLOW_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut counted, mut counted_at) = (0, Instant::now());
    let mut fates = Vec::with_capacity(connections);
    loop {
        tokio::select! {
            ended = clients.join_next() => match ended {
                Some(fate) => fates.push(fate.context("a client")??),
                None => break,
            },
            at = ticks.tick() => {
                let arrived = fleet.arrived.load(Ordering::Relaxed);
                let seconds = (at - counted_at).as_secs_f64();
                if args.echo && arrived > 0 && seconds > 0.0 {
                    let rate = (arrived - counted) as f64 / seconds;
                    print_event("flow", json!({ "arrived_per_s": rate }))?;
                }
                (counted, counted_at) = (arrived, at);
            }
        }
    }
    let sum = |of: &dyn Fn(&Fate) -> u64| fates.iter().map(of).sum::<u64>();
    let every = Duration::from_millis(args.every_ms);
    let gap_ms = |fate: &Fate| fate.longest_wait.saturating_sub(every).as_secs_f64() * 1e3;
    let gaps: Vec<f64> = fates.iter().map(gap_ms).collect();
    print_event(
        "end",
        json!({
            "sent": args.count * args.connections,
            "lost": sum(&|fate| fate.lost() as u64),
            "duplicates": sum(&Fate::duplicates),
            "gap_ms": gaps,
            "migrations": sum(&|fate| fate.migrations),
            "reconnections": sum(&|fate| fate.reconnections),
        }),
    )
}

fn options(args: &Args, number: u64) -> anyhow::Result<Options> {
    let mut options = Options::new(&args.url).map_err(|error| Usage(error.to_string()))?;
    options.client_id = format!("fleet-{}-{number}", std::process::id());
    options.keep_alive_s = args.keepalive;
    options.session_expiry_s = args.session;
    options.reconnect = args.reconnect.then_some(RETRY);
    args.tls.apply_to(&mut options)?;
    Ok(options)
}

async fn client(fleet: Arc<Fleet>, number: u64) -> anyhow::Result<Fate> {
    let args = &fleet.args;
    let topic = format!("fleet/{}", number % args.topics.unwrap_or(args.connections));
    let (client, mut events) = Client::connect(options(args, number)?)?;
    loop {
        match events.next().await {
            Some(Event::Connected { .. }) => break,
            Some(Event::Disconnected { reason, retry_in: None }) => return Err(reason.into()),
            // The client tries again.
            Some(_) => {}
            None => bail!("client {number}: the connection ended before it began"),
        }
    }
    let qos = QoS::try_from(args.qos)?;
    let wanted = SubscribeOptions { qos, ..SubscribeOptions::default() };
    let own = args.echo.then_some(&topic);
    let filters: Vec<_> =
        own.into_iter().chain(&args.subscribe).map(|filter| (filter, wanted)).collect();
    if !filters.is_empty() {
        let codes = client.subscribe(&filters).await?;
        if let Some(code) = codes.iter().find(|code| code.is_error()) {
            bail!("the subscription was refused: {code}");
        }
    }
    if fleet.ready.wait().await.is_leader() {
        print_event("all-connected", json!({ "connections": args.connections }))?;
    }
    let mut fate = Fate::default();
    if args.echo {
        fate.seen = vec![0; usize::try_from(args.count)?];
    }
    let publishing = publish(&client, args, &topic, qos, number);
    tokio::pin!(publishing);
    // Messages are received while others are sent, because the client would otherwise stop reading.
    loop {
        tokio::select! {
            published = &mut publishing => break published?,
            event = events.next() => fate.event(event, &fleet, &topic)?,
        }
    }
    let patience = Duration::from_secs(args.patience);
    let mut until = Instant::now() + patience;
    while fate.lost() > 0 {
        let before = fate.first_and_last;
        match timeout_at(until, events.next()).await {
            Ok(event) => fate.event(event, &fleet, &topic)?,
            // Reported at the end; the experiment decides what it means.
            Err(_) => break,
        }
        if fate.first_and_last != before {
            until = Instant::now() + patience;
        }
    }
    client.disconnect().await;
    drop(events);
    Ok(fate)
}

/// Publishes all messages and waits until the broker has acknowledged the last one.
async fn publish(
    client: &Client,
    args: &Args,
    topic: &str,
    qos: QoS,
    number: u64,
) -> anyhow::Result<()> {
    let every = Duration::from_millis(args.every_ms);
    // Spread over the interval: clients of a real fleet are not synchronized.
    let share = number as f64 / args.connections as f64;
    let mut ticks = interval_at(Instant::now() + every.mul_f64(share), every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    for number in 0..args.count {
        ticks.tick().await;
        let payload = payload(args.payload as usize, now_ns(), number);
        last = Some(client.publish(Message::new(topic, payload).qos(qos)).await?);
    }
    if let Some(delivery) = last {
        delivery.await?;
    }
    Ok(())
}

impl Fate {
    fn event(&mut self, event: Option<Event>, fleet: &Fleet, own: &str) -> anyhow::Result<()> {
        match event {
            Some(Event::Message(message)) if fleet.args.echo && message.topic == own => {
                let (_, number) = header(&message.payload)?;
                if self.note(number, Instant::now()) {
                    fleet.arrived.fetch_add(1, Ordering::Relaxed);
                }
            }
            Some(Event::Migrated { .. }) => self.migrations += 1,
            Some(Event::Connected { .. }) => self.reconnections += 1,
            Some(Event::Disconnected { reason, retry_in: None }) => return Err(reason.into()),
            // Messages of other topics, and events that do not concern receivers.
            Some(_) => {}
            None => bail!("a client ended"),
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn losses_duplicates_and_waits_are_told_apart() {
        let mut fate = Fate { seen: vec![0; 4], ..Fate::default() };
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert!(fate.note(0, at(0)) && fate.note(1, at(10)) && fate.note(3, at(70)));
        // Neither a duplicate nor an unknown message ends a wait.
        assert!(!fate.note(1, at(200)) && !fate.note(9, at(201)));
        assert_eq!((fate.lost(), fate.duplicates()), (1, 1));
        assert_eq!(fate.longest_wait, Duration::from_millis(60));
    }
}
