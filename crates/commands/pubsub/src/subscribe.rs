//! `fulmar sub`.

use std::io::{ErrorKind, IsTerminal as _, Write};
use std::time::Duration;

use anyhow::{Context, bail};
use fulmar_client::{
    Client, Event, Events, Message, QoS, RetainHandling, SubscribeOptions, in_words,
};
use fulmar_mqtt::ReasonCode;
use fulmar_mqtt::topic::{Subscription, matches};
use tokio::signal::unix::{SignalKind, signal};

use super::format::{Pattern, pattern, push_json, push_payload, push_topic};
use super::options::{Connection, qos};
use super::stats::{Counter, Log};
use super::{coap, connected, explain};
use crate::exit::Usage;

/// QUIC's keep alive: a person who watches wants to know soon that the broker is gone.
const QUIC_KEEP_ALIVE: Duration = Duration::from_secs(4);

const EXAMPLES: &str = "\
Examples:
  fulmar sub quic://localhost -t 'plant/#' -v                 everything under plant, over QUIC
  fulmar sub mqtt://localhost -t plant/temp -C 1              the next message, then exit
  fulmar sub wss://broker -t '$share/g/jobs' -q 1 --cafile ca.pem
  fulmar sub mqtt://localhost -t 'plant/#' -F '%U %t %p'      time, topic and payload
  fulmar sub mqtt://localhost -t 'plant/#' --json | jq .      one JSON object per message
  fulmar sub quic://localhost -t 'a/#' -t 'b/#' --streams subscription --stats
  fulmar sub coap://localhost -t plant/temp                   over CoAP: observes /ps/plant/temp";

/// Subscribe and print what arrives
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Topic filter; may be given more than once
    #[arg(short, long, required = true, value_name = "FILTER")]
    topic: Vec<String>,
    /// Highest quality of service to receive at: 0, 1 or 2
    #[arg(short, long, default_value = "0", value_parser = qos)]
    qos: QoS,
    /// Exit after this number of messages
    #[arg(short = 'C', long, value_name = "MESSAGES")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Exit after this number of seconds; an error if fewer messages arrived than -C requires
    #[arg(short = 'W', long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Exit when the broker has answered the subscription, printing nothing: with -c, to create a session
    #[arg(short = 'E', long)]
    exit_after_subscribe: bool,
    /// Print the topic before the payload
    #[arg(short, long)]
    verbose: bool,
    /// Do not end each message with a line feed
    #[arg(short = 'N', long)]
    no_newline: bool,
    /// Print only messages published from now on, not retained ones
    #[arg(short = 'R', long)]
    no_retained: bool,
    /// Do not print topics that match this filter; may be given more than once
    #[arg(short = 'T', long, value_name = "FILTER")]
    filter_out: Vec<String>,
    /// Print messages in a pattern: %t topic, %p payload, %x hex, %l length, %q QoS, %r retained,
    /// %U time, %j JSON
    #[arg(short = 'F', long, value_name = "PATTERN", value_parser = pattern)]
    #[arg(conflicts_with_all = ["verbose", "json"])]
    format: Option<Pattern>,
    /// Do not receive this client's own publications (No Local)
    #[arg(long)]
    no_local: bool,
    /// Keep the publisher's retain flag
    #[arg(long)]
    retain_as_published: bool,
    /// When to send retained messages: always, new (subscriptions only) or never
    #[arg(long, value_name = "WHEN", default_value = "always", value_parser = retain_handling)]
    retain_handling: RetainHandling,
    /// Write statistics to standard error every second and at the end
    #[arg(long)]
    stats: bool,
    /// Print one JSON object per message; with --stats the statistics too
    #[arg(long, conflicts_with = "verbose")]
    json: bool,
}

fn retain_handling(text: &str) -> Result<RetainHandling, String> {
    match text {
        "always" => Ok(RetainHandling::Always),
        "new" => Ok(RetainHandling::IfNew),
        "never" => Ok(RetainHandling::Never),
        _ => Err("use always, new or never".to_owned()),
    }
}

/// Subscribes and prints until it is time to end.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    if coap::is_coap(&args.connection.url) {
        return run_coap(args).await;
    }
    let mut options = args.connection.prepare(false)?.options;
    options.quic_keep_alive = QUIC_KEEP_ALIVE;
    let mut printer = Printer::new(args)?;
    let (client, mut events) = Client::connect(options).map_err(explain)?;
    let timeout = printer.args.timeout;
    let outcome = tokio::select! {
        outcome = printer.print(&client, &mut events) => outcome,
        () = over(timeout) => Err(anyhow::Error::new(TimeOver)),
        signal = stop_signal() => signal,
    };
    printer.counter.log_rate(&client, &printer.log).await;
    client.disconnect().await;
    match outcome {
        Err(error) if error.is::<TimeOver>() => timed_out(&printer.args),
        outcome => outcome,
    }
}

/// The same over CoAP.
async fn run_coap(args: Args) -> anyhow::Result<()> {
    let (url, topics) = (args.connection.url.clone(), args.topic.clone());
    let given = args.connection.prepare_coap(false)?;
    let mut printer = Printer::new(args)?;
    let timeout = printer.args.timeout;
    let outcome = tokio::select! {
        outcome = coap::subscribe(&url, &given, &topics, |message| printer.print_message(message)) => outcome,
        () = over(timeout) => Err(anyhow::Error::new(TimeOver)),
        signal = stop_signal() => signal,
    };
    match outcome {
        Err(error) if error.is::<TimeOver>() => timed_out(&printer.args),
        outcome => outcome,
    }
}

/// The time of `-W` is over.
#[derive(Debug, thiserror::Error)]
#[error("timeout before all messages arrived")]
struct TimeOver;

async fn over(seconds: Option<u64>) {
    match seconds {
        Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

fn timed_out(args: &Args) -> anyhow::Result<()> {
    match args.count {
        Some(_) => Err(TimeOver.into()),
        None => Ok(()),
    }
}

async fn stop_signal() -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("signals")?;
    tokio::select! {
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

struct Printer {
    args: Args,
    counter: Counter,
    log: Log,
    /// Whether standard output is one, which messages must not control.
    on_terminal: bool,
}

impl Printer {
    fn new(args: Args) -> anyhow::Result<Printer> {
        for filter in &args.filter_out {
            Subscription::parse(filter)
                .map_err(|error| Usage(format!("-T {filter:?}: {error}")))?;
        }
        let counter = Counter::new(args.stats, args.json);
        let on_terminal = std::io::stdout().is_terminal();
        Ok(Printer { args, counter, log: Log::default(), on_terminal })
    }

    async fn print(&mut self, client: &Client, events: &mut Events) -> anyhow::Result<()> {
        connected(events, &mut self.log).await?;
        let options = SubscribeOptions {
            qos: self.args.qos,
            no_local: self.args.no_local,
            retain_as_published: self.args.retain_as_published,
            retain_handling: self.args.retain_handling,
        };
        let topics = self.args.topic.clone();
        let filters: Vec<_> = topics.iter().map(|filter| (filter, options)).collect();
        let exit = self.args.exit_after_subscribe;
        // A retained message may come before the answer.
        let subscribing = async {
            let codes = client.subscribe(&filters).await.map_err(explain)?;
            for (filter, code) in topics.iter().zip(codes) {
                if code.is_error() {
                    let denied = code == ReasonCode::NotAuthorized;
                    let why =
                        if denied { " (of Fulmar, `fulmar ctl explain` says why)" } else { "" };
                    let code = in_words(code);
                    bail!("the broker refused the subscription to {filter:?}: {code}{why}");
                }
            }
            if exit { Ok(()) } else { std::future::pending().await }
        };
        tokio::select! {
            answered = subscribing => answered,
            done = self.receive(client, events) => done,
        }
    }

    async fn receive(&mut self, client: &Client, events: &mut Events) -> anyhow::Result<()> {
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = self.counter.due() => {
                    self.counter.log_rate(client, &self.log).await;
                    continue;
                }
            };
            match event {
                Some(Event::Message(message)) => {
                    if self.print_message(&message)? {
                        return Ok(());
                    }
                }
                Some(Event::Disconnected { reason, retry_in: None }) => {
                    return Err(explain(reason));
                }
                Some(event) => self.log.note(&event),
                None => bail!("the client ended"),
            }
        }
    }

    /// Writes a message unless it is hidden; whether it was the last one.
    fn print_message(&mut self, message: &Message) -> anyhow::Result<bool> {
        if self.is_hidden(message) {
            return Ok(false);
        }
        match self.write(message) {
            // The reader of standard output has ended.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(true),
            written => written.context("standard output")?,
        }
        self.counter.messages += 1;
        Ok(self.args.count == Some(self.counter.messages))
    }

    fn is_hidden(&self, message: &Message) -> bool {
        (self.args.no_retained && message.retain)
            || self.args.filter_out.iter().any(|filter| matches(filter, &message.topic))
    }

    /// Writes one message and flushes it, because the reader of a pipe waits for it.
    fn write(&self, message: &Message) -> std::io::Result<()> {
        let mut line = Vec::with_capacity(message.payload.len() + message.topic.len() + 2);
        if self.args.json {
            push_json(message, self.on_terminal, &mut line);
        } else if let Some(pattern) = &self.args.format {
            pattern.write(message, self.on_terminal, &mut line);
        } else {
            if self.args.verbose {
                push_topic(message, self.on_terminal, &mut line);
                line.push(b' ');
            }
            push_payload(message, self.on_terminal, &mut line);
        }
        if !self.args.no_newline {
            line.push(b'\n');
        }
        let mut out = std::io::stdout().lock();
        out.write_all(&line)?;
        out.flush()
    }
}
