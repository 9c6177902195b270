//! Runs RMQTT as one node of a raft cluster, for `benches/cluster.py`: a plain TCP listener, everyone
//! allowed, the plugin rmqtt-cluster-raft and no other. Nothing is stored: RMQTT keeps sessions, their
//! messages and raft's log in memory. It is not part of Fulmar, and a package of its own because the
//! plugin changes which features of RMQTT are compiled, and needs protoc.
//!
//! It listens for clients once raft has a majority, as RMQTT's own daemon does.

use anyhow::{Context, bail};
use rmqtt::context::ServerContext;
use rmqtt::net::Builder;
use rmqtt::server::MqttServer;

#[global_allocator]
static GLOBAL: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const PLUGIN: &str = "rmqtt-cluster-raft";

/// Warnings to standard error; RMQTT is silent without a logger.
struct Warnings;

impl log::Log for Warnings {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            eprintln!("{} {}: {}", record.level(), record.target(), record.args());
        }
    }

    fn flush(&self) {}
}

/// The plugin's configuration: the values of the file that RMQTT comes with. The first node leads, as
/// its documentation asks for when all nodes are on one machine.
fn configuration(grpc: &[String], raft: &[String]) -> String {
    format!(
        r#"
        node_grpc_addrs = {grpc:?}
        raft_peer_addrs = {raft:?}
        leader_id = 1
        compression = "zstd"
        raft.grpc_breaker_threshold = 5
        raft.proposal_batch_size = 60
        raft.snapshot_interval = "300s"
        "#
    )
}

/// The addresses with the numbers of their nodes, from 1 on: `1@127.0.0.1:5363`.
fn numbered(addresses: &str) -> Vec<String> {
    addresses
        .split(',')
        .enumerate()
        .map(|(index, address)| format!("{}@{address}", index + 1))
        .collect()
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [node, tcp, grpc, raft] = arguments.as_slice() else {
        bail!("usage: rmqtt-cluster-peer NUMBER TCP-ADDRESS GRPC-ADDRESS,... RAFT-ADDRESS,...");
    };
    log::set_logger(&Warnings)?;
    log::set_max_level(log::LevelFilter::Warn);
    let number: usize = node.parse().context("the node's number, from 1 on")?;
    let own_grpc = number.checked_sub(1).and_then(|index| grpc.split(',').nth(index));
    let own_grpc = own_grpc.context("no gRPC address for this node")?.parse()?;

    let context = ServerContext::new()
        .node_id(number as u64)
        .busy_check_enable(false)
        .plugins_config_map_add(PLUGIN, configuration(&numbered(grpc), &numbered(raft)))
        .build()
        .await;
    context.node.start_grpc_server(context.clone(), own_grpc, true, false);
    // Returns when the cluster answers.
    rmqtt_cluster_raft::register_named(&context, PLUGIN, true, true).await?;
    // The same limits as in the peer for `make bench`.
    let listener = Builder::new()
        .name("tcp")
        .laddr(tcp.parse().with_context(|| format!("no address: {tcp}"))?)
        .reuseaddr(Some(true))
        .nodelay(true)
        .backlog(4_096)
        .max_handshaking_limit(20_000)
        .max_mqueue_len(10_000)
        .bind()?
        .tcp()?;
    MqttServer::new(context).listener(listener).build().run().await?;
    Ok(())
}
