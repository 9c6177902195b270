//! Subscribes and publishes over QUIC: `cargo run -p fulmar-client --example pubsub -- URL`.
//!
//! Without a URL it talks to `fulmar serve` on this machine.

use fulmar_client::{Client, Event, Message, Options, QoS, SubscribeOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "quic://localhost".to_owned());
    let mut options = Options::new(&url)?;
    // An example that cannot connect should say so instead of trying for ever.
    options.reconnect = None;
    let (client, mut events) = Client::connect(options)?;

    let at_least_once = SubscribeOptions { qos: QoS::AtLeastOnce, ..SubscribeOptions::default() };
    client.subscribe(&[("plant/#", at_least_once)]).await?;
    client.publish(Message::new("plant/temperature", "21.5").qos1()).await?.await?;

    while let Some(event) = events.next().await {
        match event {
            Event::Message(message) => {
                println!("{} {}", message.topic, String::from_utf8_lossy(&message.payload));
                break;
            }
            other => println!("{other:?}"),
        }
    }
    client.disconnect().await;
    Ok(())
}
