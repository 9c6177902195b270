//! Runs RMQTT as a peer for `make bench`: TCP and QUIC listeners on the addresses given, everyone
//! allowed, no plugins, nothing stored. It is not part of Fulmar; RMQTT is published as a library, and
//! its own daemon brings two dozen plugins that would have to be built to be switched off.

use anyhow::Context;
use rmqtt::context::ServerContext;
use rmqtt::net::{Builder, tls_provider};
use rmqtt::server::MqttServer;

#[global_allocator]
static GLOBAL: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The same for both listeners; connection and queue limits wide enough for the scenarios.
fn listener(name: &str, address: &str) -> anyhow::Result<Builder> {
    Ok(Builder::new()
        .name(name)
        .laddr(address.parse().with_context(|| format!("no address: {address}"))?)
        .nodelay(true)
        .backlog(4_096)
        .max_handshaking_limit(20_000)
        .max_mqueue_len(10_000))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [tcp, quic, certificate, key] = arguments.as_slice() else {
        anyhow::bail!("usage: rmqtt-peer TCP-ADDRESS QUIC-ADDRESS CERTIFICATE KEY");
    };
    let _ = tls_provider::default_provider().install_default();
    let context = ServerContext::new().busy_check_enable(false).build().await;
    let quic = listener("quic", quic)?
        .tls_cert(Some(certificate.clone()))
        .tls_key(Some(key.clone()))
        .bind_quic()?;
    MqttServer::new(context)
        .listener(listener("tcp", tcp)?.bind()?.tcp()?)
        .listener(quic)
        .build()
        .run()
        .await?;
    Ok(())
}
