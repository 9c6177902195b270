//! Topics and subscriptions on QUIC streams of their own, which survive the loss of stream,
//! connection and broker: `cargo run -p fulmar-client --example multi_stream -- quic://HOST`.
//!
//! A lost packet delays the messages of its own stream only.

use fulmar_client::{Client, Event, Message, Options, QoS, Streams, SubscribeOptions};

/// Rooms, each with its own topic and stream.
const ROOMS: [&str; 3] = ["attic", "cellar", "kitchen"];

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "quic://localhost".to_owned());
    let mut options = Options::new(&url)?;
    options.client_id = "multi-stream-example".to_owned();
    options.session_expiry_s = 600;
    options.streams = Streams::PerTopicAndSubscription;
    // Needs a broker with the flows of the MQTT-next draft. Without it, streams are plain, which EMQX supports too,
    // and QoS 2 stays on the control stream.
    options.persistent_flows = true;
    options.reconnect = None;
    let (client, mut events) = Client::connect(options)?;

    let exactly_once = SubscribeOptions { qos: QoS::ExactlyOnce, ..SubscribeOptions::default() };
    let filters = ROOMS.map(|room| (format!("{room}/temperature"), exactly_once));
    client.subscribe(&filters).await?;
    for room in ROOMS {
        let message = Message::new(format!("{room}/temperature"), "21.5").qos2();
        client.publish(message).await?.await?;
    }
    let mut left = ROOMS.len();
    while let Some(event) = events.next().await {
        if let Event::Message(message) = event {
            println!("{} {}", message.topic, String::from_utf8_lossy(&message.payload));
            left -= 1;
            if left == 0 {
                break;
            }
        }
    }
    println!("{:?}", client.path_stats().await);
    client.disconnect().await;
    Ok(())
}
