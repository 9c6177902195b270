//! A program with a broker inside: starts it on a free port of the loopback interface, publishes and receives a message,
//! and stops it.
//!
//!     cargo run --package fulmar-server --example embed

use anyhow::Context;
use fulmar_client::{Client, Event, Message, Options, SubscribeOptions};
use fulmar_server::{Config, Server};

/// MQTT over TCP on a port that the system chooses; no other listener.
const CONFIG: &str = r#"
[listeners]
mqtt = ["127.0.0.1:0"]
mqtts = []
ws = []
quic = []
https = []
http = []
coap = []
coaps = []
"#;

/// Runs the example. The tests of this crate do so, too.
///
/// # Errors
/// The server cannot start or stop, or the message does not arrive.
pub(crate) fn main() -> anyhow::Result<()> {
    let data = tempfile::tempdir()?;
    let server = Server::start(Config::from_toml(CONFIG)?.with_data_dir(data.path()))?;
    let address = server.address("mqtt").context("no mqtt listener")?;
    // The server has threads of its own: the client's runtime has nothing to do with it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let payload = runtime.block_on(exchange(&format!("mqtt://{address}")))?;
    println!("received {:?} through {address}", String::from_utf8_lossy(&payload));
    server.stop()
}

/// Publishes a message, and returns what arrives.
async fn exchange(url: &str) -> anyhow::Result<Vec<u8>> {
    let (client, mut events) = Client::connect(Options::new(url)?)?;
    client.subscribe(&[("plant/#", SubscribeOptions::default())]).await?;
    client.publish(Message::new("plant/temperature", "21.5").qos1()).await?.await?;
    while let Some(event) = events.next().await {
        if let Event::Message(message) = event {
            client.disconnect().await;
            return Ok(message.payload.to_vec());
        }
    }
    anyhow::bail!("the client has ended without a message")
}
