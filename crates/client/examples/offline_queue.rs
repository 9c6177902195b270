//! Measurements continue while there is no connection: `cargo run -p fulmar-client --example offline_queue --
//! quic://HOST`. Start the broker later, or stop it and start it again.
//!
//! Messages wait in a queue that is limited by count and by bytes; `publish` waits when it is full, and a program
//! that cannot wait drops the newest message instead, as here. Queued messages are delivered in order, and each
//! message's `Delivery` resolves when the broker has accepted it for good.

use std::time::Duration;

use fulmar_client::{Client, Message, Options};
use tokio::time::{interval, timeout};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "quic://localhost".to_owned());
    let mut options = Options::new(&url)?;
    options.client_id = "offline-queue-example".to_owned();
    options.session_expiry_s = 3600;
    options.max_queued_messages = 10_000;
    options.max_queued_bytes = 1 << 20;
    let (client, mut events) = Client::connect(options)?;
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            println!("{event:?}");
        }
    });

    let mut ticks = interval(Duration::from_millis(500));
    for number in 0..120 {
        ticks.tick().await;
        let message = Message::new("plant/counter", number.to_string()).qos1();
        let Ok(queued) = timeout(Duration::from_millis(100), client.publish(message)).await else {
            println!("{number}: the queue is full");
            continue;
        };
        let delivery = queued?;
        tokio::spawn(async move { println!("{number}: {:?}", delivery.await) });
    }
    client.disconnect().await;
    Ok(())
}
