//! QUIC where UDP passes, TLS over TCP where it does not:
//! `cargo run -p fulmar-client --example fallback -- quic://HOST [TLS_PORT]`.
//!
//! TCP is tried too when QUIC has not answered after 300 ms; the first to be answered wins and is remembered for ten
//! minutes. Plain TCP is never tried. Every event is printed: disconnect the network cable or restart the broker to
//! see them.

use fulmar_client::{Client, Fallback, Options};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "quic://localhost".to_owned());
    let port = arguments.next().map_or(Ok(8883), |port| port.parse())?;
    let mut options = Options::new(&url)?;
    options.fallback = Fallback::Race { port };
    let (_client, mut events) = Client::connect(options)?;
    while let Some(event) = events.next().await {
        println!("{event:?}");
    }
    Ok(())
}
