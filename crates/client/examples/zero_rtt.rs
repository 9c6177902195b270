//! Reconnecting in zero round trips: `cargo run -p fulmar-client --example zero_rtt -- quic://HOST`, then restart the
//! broker a few times.
//!
//! The first connection gets a session ticket. When the client returns, it sends CONNECT and the queued messages in its
//! first packet, and `early_data` shows whether the broker accepted them. Tickets end with the process. Early data
//! could be recorded and replayed by others: Fulmar's broker accepts each ticket once, so a replay has no effect.

use std::time::Duration;

use fulmar_client::{Backoff, Client, Event, Message, Options};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "quic://localhost".to_owned());
    let mut options = Options::new(&url)?;
    let wait = Duration::from_millis(500);
    options.reconnect = Some(Backoff { first: wait, longest: wait });
    let (client, mut events) = Client::connect(options)?;
    while let Some(event) = events.next().await {
        match event {
            Event::Connected { early_data, .. } => println!("connected, 0-RTT: {early_data}"),
            Event::Disconnected { reason, .. } => {
                println!("{reason}; the next message goes out with the next connection");
                drop(client.publish(Message::new("plant/status", "back").qos1()).await?);
            }
            other => println!("{other:?}"),
        }
    }
    Ok(())
}
