//! Runs rumqttd as a peer for `make bench`: one plain TCP listener on the address given as the only
//! argument, limits wide enough for the scenarios. It is not part of Fulmar; rumqttd's own command
//! cannot be installed as published, for a dependency it locks no longer compiles.

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let address = std::env::args().nth(1).context("usage: rumqttd-peer ADDRESS:PORT")?;
    // Router and segment sizes are those of rumqttd's own default configuration.
    let config = serde_json::json!({
        "id": 0,
        "router": {
            "id": 0,
            "max_connections": 20_000,
            "max_outgoing_packet_count": 200,
            "max_segment_size": 104_857_600,
            "max_segment_count": 10
        },
        "v4": { "1": {
            "name": "v4-1",
            "listen": address,
            "next_connection_delay_ms": 0,
            "connections": {
                "connection_timeout_ms": 60_000,
                "max_payload_size": 1_048_576,
                "max_inflight_count": 100
            }
        } }
    });
    let mut broker = rumqttd::Broker::new(serde_json::from_value(config)?);
    broker.start()?;
    Ok(())
}
