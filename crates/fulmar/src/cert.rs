//! `fulmar cert`: a development CA and certificates.

const EXAMPLES: &str = "\
Examples:
  fulmar cert ca                           make a development CA";

/// Make a development CA and certificates
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// What to make
    what: String,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    anyhow::bail!("not built yet: {}", args.what)
}
