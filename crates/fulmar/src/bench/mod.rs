//! `fulmar bench`: a load generator.

const EXAMPLES: &str = "\
Examples:
  fulmar bench pairs mqtt://localhost      publishers and subscribers in pairs";

/// Measure a broker with many clients
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Scenario: conns, pairs, fan-in or fan-out
    scenario: String,
    /// Broker
    url: String,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    anyhow::bail!("not built yet: {} at {}", args.scenario, args.url)
}
