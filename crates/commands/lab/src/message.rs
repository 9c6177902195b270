//! `fulmar lab message`: sends messages one after another over MQTT or CoAP, and reports how long each takes from the
//! call to its acknowledgement, including the connection if it has its own.
//!
//! One JSON object per event goes to standard output, as with `fulmar lab transfer`, with which the results are
//! compared. A message that is not acknowledged in time is reported as `failed`: it counts, but has no time.

use std::time::{Duration, Instant};

use anyhow::Context;
use fulmar_client::{Client, Event, Events, Message, Options, QoS, Streams};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::probe::{RETRY, TlsArgs, print_event};
use crate::exit::Usage;
use crate::runtime::block_on;
use fulmar_command_pubsub::coap::{Speaker, is_coap};

const EXAMPLES: &str = "\
Examples:
  fulmar lab message quic://broker --insecure --count 50                          one connection
  fulmar lab message quic://broker --insecure --count 50 --connection returning   one each, with 0-RTT
  fulmar lab message coaps://broker --insecure --count 50                         CoAP over DTLS";

/// Publish messages one after the other and report how long each takes, as JSON lines
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Broker: mqtt://, mqtts://, quic://, ws://, wss://, coap:// or coaps:// HOST[:PORT]
    url: String,
    /// Connection for each message
    #[arg(long, value_enum, default_value = "kept")]
    connection: Connection,
    /// Messages
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    count: u64,
    /// Bytes of a message
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    bytes: u64,
    /// Topic
    #[arg(short, long, default_value = "message")]
    topic: String,
    /// Quality of service, 1 or 2, because QoS 0 has no acknowledgement. Over CoAP, messages are confirmable
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    qos: u8,
    /// Milliseconds to wait after each message
    #[arg(long, value_name = "MS", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=3_600_000))]
    rest_ms: u64,
    /// Seconds after which a message has failed
    #[arg(long, visible_alias = "timeout", value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600))]
    patience: u64,
    /// On a new connection, send the message right after CONNECT, before the broker has answered (MQTT, QoS 1)
    #[arg(long)]
    ahead: bool,
    #[command(flatten)]
    tls: TlsArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Connection {
    /// A new connection each, without a ticket
    New,
    /// A new connection each, with a ticket: TLS resumption, and 0-RTT over QUIC
    Returning,
    /// One connection for all, made beforehand
    Kept,
}

/// A client that sends a message and waits for its acknowledgement.
enum MessageClient {
    Mqtt(Mqtt),
    Coap(Box<Speaker>),
}

/// A client, its events, and whether it has sent early data.
struct Mqtt {
    client: Client,
    events: Events,
    early_data: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    block_on(messages(args))
}

async fn messages(args: &Args) -> anyhow::Result<()> {
    let options = match is_coap(&args.url) {
        true if args.connection == Connection::Returning => {
            let what = "CoAP has no tickets: use --connection new or kept";
            return Err(Usage(what.to_owned()).into());
        }
        true => None,
        false => Some(options(args)?),
    };
    let mut kept = None;
    if args.connection != Connection::New {
        // The cost of the first one is not measured.
        let mut client = MessageClient::begin(args, options.as_ref()).await?;
        client.publish_one(args).await.context("the first message")?;
        sleep(Duration::from_millis(args.rest_ms)).await;
        match args.connection {
            Connection::Kept => kept = Some(client),
            _ => client.end().await,
        }
    }
    let mut failed = 0_u64;
    print_event("begin", json!({}))?;
    for _ in 0..args.count {
        let begun = Instant::now();
        let (client, done) = send_message(args, options.as_ref(), kept.take()).await;
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        match done {
            Ok(early_data) => {
                print_event("transfer", json!({ "ms": ms, "early_data": early_data }))?
            }
            Err(error) => {
                failed += 1;
                print_event("failed", json!({ "after_ms": ms, "reason": format!("{error:#}") }))?;
            }
        }
        // During this time, the ticket for the next connection arrives.
        sleep(Duration::from_millis(args.rest_ms)).await;
        match (args.connection, client) {
            (Connection::Kept, client) => kept = client,
            (_, Some(client)) => client.end().await,
            (_, None) => {}
        }
    }
    if let Some(client) = kept {
        client.end().await;
    }
    let failed_pct = 100.0 * failed as f64 / args.count as f64;
    print_event("end", json!({ "failed": failed, "failed_pct": failed_pct }))
}

/// A message over `client` or a new one, and whether it was early data.
async fn send_message(
    args: &Args,
    options: Option<&Options>,
    client: Option<MessageClient>,
) -> (Option<MessageClient>, anyhow::Result<bool>) {
    let client = match client {
        Some(client) => Ok(client),
        None => MessageClient::begin(args, options).await,
    };
    match client {
        Ok(mut client) => {
            let done = client.publish_one(args).await;
            (Some(client), done)
        }
        Err(error) => (None, Err(error)),
    }
}

fn options(args: &Args) -> anyhow::Result<Options> {
    let mut options = Options::new(&args.url).map_err(|error| Usage(error.to_string()))?;
    options.client_id = "message".to_owned();
    options.keep_alive_s = 0;
    options.reconnect = Some(RETRY);
    options.streams = Streams::Single;
    options.publish_before_connack = args.ahead;
    options.connect_timeout = Duration::from_secs(args.patience);
    options.drain_timeout = Duration::from_secs(1);
    args.tls.apply_to(&mut options)?;
    match args.connection {
        Connection::Returning => Ok(options.with_shared_tickets()?),
        _ => Ok(options),
    }
}

impl MessageClient {
    /// `options` are for MQTT.
    async fn begin(args: &Args, options: Option<&Options>) -> anyhow::Result<MessageClient> {
        if let Some(options) = options {
            let (client, events) = Client::connect(options.clone())?;
            return Ok(MessageClient::Mqtt(Mqtt { client, events, early_data: false }));
        }
        let opening = Speaker::open(&args.url, &args.topic, args.tls.trust());
        let speaker = timeout(Duration::from_secs(args.patience), opening).await;
        Ok(MessageClient::Coap(Box::new(speaker.context("timeout")??)))
    }

    /// Publishes a message and waits for its acknowledgement; returns whether it was early data.
    async fn publish_one(&mut self, args: &Args) -> anyhow::Result<bool> {
        let payload = vec![b'x'; args.bytes as usize];
        let patience = Duration::from_secs(args.patience);
        match self {
            MessageClient::Mqtt(mqtt) => {
                let message = Message::new(&args.topic, payload).qos(QoS::try_from(args.qos)?);
                timeout(patience, mqtt.publish(message)).await.context("timeout")??;
                Ok(mqtt.early_data)
            }
            MessageClient::Coap(speaker) => {
                timeout(patience, speaker.publish(payload.into())).await.context("timeout")??;
                Ok(false)
            }
        }
    }

    async fn end(self) {
        match self {
            MessageClient::Mqtt(mqtt) => mqtt.client.disconnect().await,
            MessageClient::Coap(speaker) => speaker.close().await,
        }
    }
}

impl Mqtt {
    /// Without a connection, the message waits for one, or is sent with CONNECT as early data.
    async fn publish(&mut self, message: Message) -> anyhow::Result<()> {
        let acknowledged = async {
            self.client.publish(message).await?.await?;
            anyhow::Ok(())
        };
        tokio::pin!(acknowledged);
        loop {
            tokio::select! {
                // Events of the connection come before messages received over it.
                biased;
                event = self.events.next() => match event {
                    Some(Event::Connected { early_data, .. }) => self.early_data = early_data,
                    Some(Event::Disconnected { reason, retry_in: None }) => return Err(reason.into()),
                    Some(_) => {}
                    None => return acknowledged.await,
                },
                done = &mut acknowledged => return done,
            }
        }
    }
}
