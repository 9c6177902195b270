//! `fulmar pub` and `fulmar sub`.

const PUB_EXAMPLES: &str = "\
Examples:
  fulmar pub mqtt://localhost -t plant/temp -m 21.5      one message over TCP";

const SUB_EXAMPLES: &str = "\
Examples:
  fulmar sub quic://localhost -t 'plant/#' -v            everything under plant, over QUIC";

/// Publish messages
#[derive(clap::Args, Debug)]
#[command(after_help = PUB_EXAMPLES)]
pub(crate) struct PubArgs {
    /// Broker: mqtt://, mqtts://, quic://, ws:// or wss:// HOST[:PORT]
    url: String,
}

/// Subscribe and print what arrives
#[derive(clap::Args, Debug)]
#[command(after_help = SUB_EXAMPLES)]
pub(crate) struct SubArgs {
    /// Broker: mqtt://, mqtts://, quic://, ws:// or wss:// HOST[:PORT]
    url: String,
}

pub(crate) fn publish(args: PubArgs) -> anyhow::Result<()> {
    anyhow::bail!("not built yet: publishing to {}", args.url)
}

pub(crate) fn subscribe(args: SubArgs) -> anyhow::Result<()> {
    anyhow::bail!("not built yet: subscribing at {}", args.url)
}
