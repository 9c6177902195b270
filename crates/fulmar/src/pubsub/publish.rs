//! `fulmar pub`.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use fulmar_client::{Client, Delivery, Event, Events, Message, QoS};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

use super::options::{Connection, qos, read_payload};
use super::{connected, explain};

const EXAMPLES: &str = "\
Examples:
  fulmar pub mqtt://localhost -t plant/temp -m 21.5           one message over TCP
  fulmar pub quic://localhost -t plant/temp -m 21.5 -q 1      over QUIC, acknowledged
  fulmar pub mqtts://broker -t plant/map -f map.png -r --cafile ca.pem
  vmstat 1 | fulmar pub mqtt://localhost -t host/stats -l     a message a line";

/// Messages that may be on their way before the next one waits.
const WINDOW: usize = 512;

/// How often a person who waits is told how far it is.
const PROGRESS: Duration = Duration::from_secs(1);

/// Publish messages
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("payload").required(true))]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Topic to publish to
    #[arg(short, long)]
    topic: String,
    /// The payload
    #[arg(short, long, value_name = "TEXT", group = "payload", allow_hyphen_values = true)]
    message: Option<String>,
    /// A file is the payload
    #[arg(short, long, value_name = "PATH", group = "payload")]
    file: Option<PathBuf>,
    /// Each line of standard input is a payload
    #[arg(short = 'l', long, group = "payload")]
    stdin_line: bool,
    /// All of standard input is the payload
    #[arg(short = 's', long, group = "payload")]
    stdin_file: bool,
    /// An empty payload, which with -r deletes a retained message
    #[arg(short, long, group = "payload")]
    null_message: bool,
    /// Quality of service: 0, 1 or 2
    #[arg(short, long, default_value = "0", value_parser = qos)]
    qos: QoS,
    /// The broker keeps the message for later subscribers
    #[arg(short, long)]
    retain: bool,
    /// Publish it so many times
    #[arg(long, value_name = "COUNT", default_value_t = 1, conflicts_with = "stdin_line")]
    repeat: u64,
    /// Print what was done as one JSON object
    #[arg(long)]
    json: bool,
}

/// Publishes all there is and waits until it is delivered.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let payload = match (&args.message, &args.file) {
        (Some(text), _) => Some(text.clone().into_bytes()),
        (None, Some(path)) => Some(read_payload(path)?),
        (None, None) if args.stdin_file => {
            let mut all = Vec::new();
            tokio::io::stdin().read_to_end(&mut all).await.context("standard input")?;
            Some(all)
        }
        _ if args.null_message => Some(Vec::new()),
        _ => None,
    };
    let (client, mut events) = Client::connect(args.connection.options()?).map_err(explain)?;
    let mut run = Run::new(client, &args);
    // The first messages are queued before the connection is there and go out with it.
    tokio::select! {
        sent = run.send_all(payload, args.repeat) => sent?,
        failed = watch(&mut events) => return Err(failed),
    }
    run.client.disconnect().await;
    if args.json {
        let seconds = run.start.elapsed().as_secs_f64();
        let rate = run.delivered as f64 / seconds.max(1e-9);
        println!(
            "{}",
            serde_json::json!({
                "delivered": run.delivered, "seconds": seconds, "messages_per_second": rate,
            })
        );
    }
    Ok(())
}

/// Ends only when there is no use in going on.
async fn watch(events: &mut Events) -> anyhow::Error {
    if let Err(error) = connected(events).await {
        return error;
    }
    loop {
        match events.next().await {
            Some(Event::Disconnected { reason, retry_in: None }) => return explain(reason),
            Some(Event::Disconnected { reason, .. }) => tracing::warn!("{reason}; trying again"),
            Some(_) => {}
            // Closed in good order: the publications tell how it went.
            None => std::future::pending().await,
        }
    }
}

struct Run {
    client: Client,
    template: Message,
    pending: VecDeque<Delivery>,
    delivered: u64,
    start: Instant,
    told: Instant,
    progress: bool,
}

impl Run {
    fn new(client: Client, args: &Args) -> Run {
        let mut template = Message::new(args.topic.clone(), Vec::new()).qos(args.qos);
        template.retain = args.retain;
        let now = Instant::now();
        // A terminal that is typed into needs no progress on it.
        let typed = args.stdin_line && std::io::stdin().is_terminal();
        let progress = std::io::stderr().is_terminal() && !typed;
        Run {
            client,
            template,
            pending: VecDeque::new(),
            delivered: 0,
            start: now,
            told: now,
            progress,
        }
    }

    async fn send_all(&mut self, payload: Option<Vec<u8>>, repeat: u64) -> anyhow::Result<()> {
        match payload {
            Some(payload) => {
                let payload = Message::new("", payload).payload;
                for _ in 0..repeat {
                    self.send(Message { payload: payload.clone(), ..self.template.clone() })
                        .await?;
                }
            }
            None => self.send_lines().await?,
        }
        while !self.pending.is_empty() {
            self.finish_one().await?;
        }
        Ok(())
    }

    async fn send_lines(&mut self) -> anyhow::Result<()> {
        let mut input = BufReader::new(tokio::io::stdin());
        let mut line = Vec::new();
        while input.read_until(b'\n', &mut line).await.context("standard input")? > 0 {
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            let payload = std::mem::take(&mut line).into();
            self.send(Message { payload, ..self.template.clone() }).await?;
        }
        Ok(())
    }

    async fn send(&mut self, message: Message) -> anyhow::Result<()> {
        self.pending.push_back(self.client.publish(message).await.map_err(explain)?);
        if self.pending.len() >= WINDOW {
            self.finish_one().await?;
        }
        Ok(())
    }

    async fn finish_one(&mut self) -> anyhow::Result<()> {
        let Some(delivery) = self.pending.pop_front() else { return Ok(()) };
        delivery.await.map_err(explain)?;
        self.delivered += 1;
        if self.progress && self.told.elapsed() >= PROGRESS {
            self.told = Instant::now();
            let rate = self.delivered as f64 / self.start.elapsed().as_secs_f64();
            eprint!("\r{} delivered, {rate:.0}/s ", self.delivered);
        }
        Ok(())
    }
}
