//! `fulmar pub`.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use fulmar_client::{Client, Delivery, Error, Event, Events, Message, QoS};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

use super::options::{Connection, qos, read_payload};
use super::stats::{Counter, Log, Progress};
use super::{coap, connected, explain};

const EXAMPLES: &str = "\
Examples:
  fulmar pub mqtt://localhost -t plant/temp -m 21.5           one message over TCP
  fulmar pub quic://localhost -t plant/temp -m 21.5 -q 1      over QUIC, acknowledged
  fulmar pub mqtts://broker -t plant/map -f map.png -r --cafile ca.pem
  vmstat 1 | fulmar pub mqtt://localhost -t host/stats -l     one message per line
  fulmar pub quic://localhost -t plant/temp -m on -D publish message-expiry-interval 60
  fulmar pub mqtts://broker -u ann -P - -t plant/temp -m 21   asks for the password
  fulmar pub coap://localhost -t plant/temp -m 21.5 -r        over CoAP: PUT /ps/plant/temp

The first message goes out together with the connection; it is not published twice when the
connection breaks, except at QoS 1, which allows duplicates.";

/// Messages that may be in flight before the next one waits.
const WINDOW: usize = 512;

/// Publish messages
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("payload").required(true))]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Topic to publish to
    #[arg(short, long)]
    topic: String,
    /// Payload
    #[arg(short, long, value_name = "TEXT", group = "payload", allow_hyphen_values = true)]
    message: Option<String>,
    /// Read the payload from a file
    #[arg(short, long, value_name = "PATH", group = "payload")]
    file: Option<PathBuf>,
    /// Publish each line of standard input as a message
    #[arg(short = 'l', long, group = "payload")]
    stdin_line: bool,
    /// Read the payload from standard input
    #[arg(short = 's', long, group = "payload")]
    stdin_file: bool,
    /// Publish an empty payload, which with -r deletes a retained message
    #[arg(short, long, group = "payload")]
    null_message: bool,
    /// Quality of service: 0, 1 or 2
    #[arg(short, long, default_value = "0", value_parser = qos)]
    qos: QoS,
    /// Retain the message: the broker keeps it for later subscribers
    #[arg(short, long)]
    retain: bool,
    /// Number of times to publish
    #[arg(long, value_name = "COUNT", default_value_t = 1, conflicts_with = "stdin_line")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// Seconds between repetitions
    #[arg(long, value_name = "SECONDS", default_value = "0")]
    #[arg(value_parser = seconds)]
    repeat_delay: Duration,
    /// Write statistics to standard error every second and at the end
    #[arg(long)]
    stats: bool,
    /// Print the result as one JSON object; with --stats the statistics too
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "use seconds, such as 0.5".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Publishes all there is and waits until it is delivered.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let payload = payload(&args).await?;
    if coap::is_coap(&args.connection.url) {
        let credentials = args.connection.prepare_coap(args.stdin_line || args.stdin_file)?;
        return coap::publish(coap_job(args, credentials, payload)).await;
    }
    let prepared = args.connection.prepare(args.stdin_line || args.stdin_file)?;
    let mut template = Message::new(args.topic.clone(), Vec::new()).qos(args.qos);
    template.retain = args.retain;
    template.properties = prepared.publish;
    let (client, mut events) = Client::connect(prepared.options).map_err(explain)?;
    let log = Arc::new(Mutex::new(Log::default()));
    let mut run = Run::new(client, template, &args, Arc::clone(&log));
    // The first messages are queued before the connection is open and go out with it.
    let sent = tokio::select! {
        sent = run.send_all(payload, &args) => sent,
        failed = watch(&mut events, &log) => Err(failed),
    };
    run.progress.clear();
    sent?;
    run.end(&args).await;
    Ok(())
}

/// The payload, or `None` if there is one per line of standard input.
async fn payload(args: &Args) -> anyhow::Result<Option<Vec<u8>>> {
    Ok(match (&args.message, &args.file) {
        (Some(text), _) => Some(text.clone().into_bytes()),
        (None, Some(path)) => Some(read_payload(path)?),
        (None, None) if args.stdin_file => {
            let mut all = Vec::new();
            tokio::io::stdin().read_to_end(&mut all).await.context("standard input")?;
            Some(all)
        }
        _ if args.null_message => Some(Vec::new()),
        _ => None,
    })
}

fn coap_job(args: Args, credentials: coap::TrustArgs, payload: Option<Vec<u8>>) -> coap::Job {
    coap::Job {
        url: args.connection.url.clone(),
        given: credentials,
        topic: args.topic,
        retain: args.retain,
        payload: payload.map(Into::into),
        repeat: args.repeat,
        repeat_delay: args.repeat_delay,
        json: args.json,
    }
}

/// Returns only on a permanent failure.
async fn watch(events: &mut Events, log: &Mutex<Log>) -> anyhow::Error {
    let mut first = Log::default();
    if let Err(error) = connected(events, &mut first).await {
        return error;
    }
    *lock(log) = first;
    loop {
        match events.next().await {
            Some(Event::Disconnected { reason, retry_in: None }) => return explain(reason),
            Some(event) => lock(log).note(&event),
            // Closed normally: the publications have their own results.
            None => std::future::pending().await,
        }
    }
}

fn lock(log: &Mutex<Log>) -> std::sync::MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Run {
    client: Client,
    template: Message,
    pending: VecDeque<Delivery>,
    counter: Counter,
    progress: Progress,
    log: Arc<Mutex<Log>>,
}

impl Run {
    fn new(client: Client, template: Message, args: &Args, log: Arc<Mutex<Log>>) -> Run {
        // A terminal that is typed into needs no progress on it.
        let is_interactive = args.stdin_line && std::io::stdin().is_terminal();
        let total = (!args.stdin_line).then_some(args.repeat);
        Run {
            client,
            template,
            pending: VecDeque::new(),
            counter: Counter::new(args.stats, args.json),
            progress: Progress::new(!args.stats && !is_interactive, total),
            log,
        }
    }

    async fn send_all(&mut self, payload: Option<Vec<u8>>, args: &Args) -> anyhow::Result<()> {
        match payload {
            Some(payload) => {
                let payload = Message::new("", payload).payload;
                for number in 0..args.repeat {
                    if number > 0 {
                        self.pause(args.repeat_delay).await?;
                    }
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

    /// Waits, and meanwhile handles acknowledgements.
    async fn pause(&mut self, delay: Duration) -> anyhow::Result<()> {
        if delay.is_zero() {
            return Ok(());
        }
        let end = tokio::time::Instant::now() + delay;
        while !self.pending.is_empty() {
            match tokio::time::timeout_at(end, self.finish_one()).await {
                Ok(finished) => finished?,
                Err(_) => return Ok(()),
            }
        }
        tokio::time::sleep_until(end).await;
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

    /// Waits for the oldest message's result. Cancelling it loses nothing.
    async fn finish_one(&mut self) -> anyhow::Result<()> {
        let Some(delivery) = self.pending.front_mut() else { return Ok(()) };
        let delivered = loop {
            tokio::select! {
                delivered = &mut *delivery => break delivered,
                () = self.counter.due() => {}
            }
            let log = lock(&self.log).clone();
            self.counter.log_rate(&self.client, &log).await;
        };
        self.pending.pop_front();
        delivered.map_err(|error| {
            let refused = matches!(error, Error::Rejected(_));
            let error = explain(error);
            if refused { error.context(format!("topic {:?}", self.template.topic)) } else { error }
        })?;
        self.counter.messages += 1;
        self.progress.at(self.counter.messages);
        Ok(())
    }

    /// Says what was done, and goodbye.
    async fn end(mut self, args: &Args) {
        let log = lock(&self.log).clone();
        self.counter.log_rate(&self.client, &log).await;
        let path = self.client.path_stats().await;
        self.client.disconnect().await;
        if args.json {
            let mut done = log.json(path);
            done["delivered"] = self.counter.messages.into();
            done["seconds"] = self.counter.seconds().into();
            done["messages_per_second"] = self.counter.rate().into();
            println!("{done}");
        }
    }
}
