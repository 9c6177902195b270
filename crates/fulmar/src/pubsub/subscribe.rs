//! `fulmar sub`.

use std::io::{ErrorKind, Write};
use std::time::Duration;

use anyhow::{Context, bail};
use fulmar_client::{Client, Event, Events, Message, QoS, SubscribeOptions};
use tokio::signal::unix::{SignalKind, signal};

use super::options::{Connection, qos};
use super::{connected, explain};

const EXAMPLES: &str = "\
Examples:
  fulmar sub quic://localhost -t 'plant/#' -v                 everything under plant, over QUIC
  fulmar sub mqtt://localhost -t plant/temp -C 1              the next message, then end
  fulmar sub wss://broker -t '$share/g/jobs' -q 1 --cafile ca.pem
  fulmar sub mqtt://localhost -t 'plant/#' --json | jq .      one JSON object a message";

/// Subscribe and print what arrives
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Topic filter; may be given more than once
    #[arg(short, long, required = true, value_name = "FILTER")]
    topic: Vec<String>,
    /// Highest quality of service to receive at: 0, 1 or 2
    #[arg(short, long, default_value = "0", value_parser = qos)]
    qos: QoS,
    /// End after so many messages
    #[arg(short = 'C', long, value_name = "MESSAGES")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after so many seconds; an error if -C asked for more than came
    #[arg(short = 'W', long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Print the topic before the payload
    #[arg(short, long)]
    verbose: bool,
    /// Print one JSON object a message
    #[arg(long, conflicts_with = "verbose")]
    json: bool,
}

/// Subscribes and prints until it is time to end.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let (client, mut events) = Client::connect(args.connection.options()?).map_err(explain)?;
    let outcome = tokio::select! {
        outcome = print(&client, &mut events, &args) => outcome,
        () = over(args.timeout) => timed_out(&args),
        signal = stop_signal() => signal,
    };
    client.disconnect().await;
    outcome
}

async fn over(seconds: Option<u64>) {
    match seconds {
        Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

fn timed_out(args: &Args) -> anyhow::Result<()> {
    match args.count {
        Some(_) => bail!("time is over before all messages came"),
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

async fn print(client: &Client, events: &mut Events, args: &Args) -> anyhow::Result<()> {
    connected(events).await?;
    let options = SubscribeOptions { qos: args.qos, ..SubscribeOptions::default() };
    let filters: Vec<_> = args.topic.iter().map(|filter| (filter, options)).collect();
    // A retained message may come before the answer.
    let subscribing = async {
        let codes = client.subscribe(&filters).await.map_err(explain)?;
        for (filter, code) in args.topic.iter().zip(codes) {
            if code.is_error() {
                bail!("the broker refused the subscription to {filter:?}: {code}");
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        failed = subscribing => failed,
        done = receive(events, args) => done,
    }
}

async fn receive(events: &mut Events, args: &Args) -> anyhow::Result<()> {
    let mut left = args.count;
    while let Some(event) = events.next().await {
        match event {
            Event::Message(message) => {
                match write(&message, args) {
                    // Whoever read has had enough.
                    Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                    written => written.context("standard output")?,
                }
                left = left.map(|left| left - 1);
                if left == Some(0) {
                    return Ok(());
                }
            }
            Event::Disconnected { reason, retry_in: None } => return Err(explain(reason)),
            Event::Disconnected { reason, .. } => tracing::warn!("{reason}; trying again"),
            Event::Connected { .. } => tracing::info!("connected again"),
            _ => {}
        }
    }
    bail!("the client ended")
}

/// Writes one message and flushes it: whoever reads a pipe waits for it.
fn write(message: &Message, args: &Args) -> std::io::Result<()> {
    let mut line = Vec::with_capacity(message.payload.len() + message.topic.len() + 2);
    if args.json {
        line.extend_from_slice(json(message).to_string().as_bytes());
    } else {
        if args.verbose {
            line.extend_from_slice(message.topic.as_bytes());
            line.push(b' ');
        }
        line.extend_from_slice(&message.payload);
    }
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}

fn json(message: &Message) -> serde_json::Value {
    let mut value = serde_json::json!({
        "topic": message.topic,
        "qos": message.qos as u8,
        "retain": message.retain,
        "dup": message.dup,
    });
    match std::str::from_utf8(&message.payload) {
        Ok(text) => value["payload"] = text.into(),
        Err(_) => {
            let hex = message.payload.iter().map(|byte| format!("{byte:02x}"));
            value["payload_hex"] = hex.collect::<String>().into();
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_tells_text_from_other_bytes() {
        assert_eq!(json(&Message::new("t", "a\"b"))["payload"], "a\"b");
        let binary = json(&Message::new("t", vec![0xFF, 0x00]));
        assert_eq!(binary["payload_hex"], "ff00");
        assert!(binary.get("payload").is_none());
    }
}
