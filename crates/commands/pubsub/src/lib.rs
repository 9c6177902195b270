//! `fulmar pub` and `fulmar sub`: options as in mosquitto_pub and mosquitto_sub where they mean the
//! same. The client library does the work.

pub mod coap;
mod format;
mod options;
mod password;
mod properties;
mod publish;
mod stats;
mod subscribe;

pub use options::Connection;
pub use publish::Args as PubArgs;
pub use subscribe::Args as SubArgs;

use anyhow::{Context, bail};
use fulmar_client::{Error, Event, Events};

use fulmar_command::exit;

use crate::exit::Usage;

/// Publishes.
pub fn publish(args: PubArgs) -> anyhow::Result<()> {
    block_on(publish::run(args))
}

/// Subscribes.
pub fn subscribe(args: SubArgs) -> anyhow::Result<()> {
    block_on(subscribe::run(args))
}

/// Corrects `-h HOST` as of mosquitto's clients; `-h` alone prints help.
pub fn mosquitto_host(words: &[String]) -> Option<Usage> {
    let is_command = |word: &String| matches!(&**word, "pub" | "publish" | "sub" | "subscribe");
    // Elsewhere it may be the word of another command, such as a program behind an emulated link.
    let [_, command, words @ ..] = words else { return None };
    if !is_command(command) {
        return None;
    }
    let value = |names: [&str; 2]| {
        let value = words.get(words.iter().position(|word| names.contains(&&**word))? + 1);
        value.filter(|value| !value.starts_with('-'))
    };
    let (host, port) = (value(["-h", "--host"])?, value(["-p", "--port"]));
    let port = port.map_or_else(String::new, |port| format!(":{port}"));
    Some(Usage(format!(
        "-h: the broker is a URL and comes first: fulmar {command} mqtt://{host}{port} (mqtts:// for TLS, quic:// for \
         QUIC); the other options as before"
    )))
}

/// Runs a command that talks to a broker.
pub fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    let outcome = runtime.block_on(work);
    // A reader of standard input cannot be interrupted and must not hold up the exit.
    runtime.shutdown_background();
    outcome
}

/// Distinguishes a mistake of the command line from a failure of the network.
pub fn explain(error: Error) -> anyhow::Error {
    match error {
        // The library's own error lacks the schemes that are not MQTT's.
        Error::Url { url, reason } => Usage(format!(
            "{url:?}: {reason}; write SCHEME://HOST[:PORT] with mqtt, mqtts, quic, ws, wss, coap or coaps"
        ))
        .into(),
        Error::Options(_) | Error::Topic { .. } => {
            Usage(error.to_string()).into()
        }
        // An answer that is not MQTT's is mostly of a server that wants TLS first.
        Error::Protocol(_) => {
            anyhow::anyhow!("{error}; if that is always so, is it a port for mqtts:// or ws://?")
        }
        other => other.into(),
    }
}

/// Waits for the first connection. Unlike a lost one, one that never was is not tried again: the
/// person at the keyboard wants to know.
async fn connected(events: &mut Events, log: &mut stats::Log) -> anyhow::Result<()> {
    loop {
        let event = events.next().await;
        match event {
            Some(Event::Disconnected { reason, .. }) => return Err(explain(reason)),
            Some(event) => {
                log.note(&event);
                if matches!(event, Event::Connected { .. }) {
                    return Ok(());
                }
            }
            None => bail!("the connection ended before it began"),
        }
    }
}
