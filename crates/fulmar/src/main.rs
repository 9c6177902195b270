//! The `fulmar` program: command line, configuration, wiring. Little logic.

mod config;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// MQTT broker and edge gateway for bad networks, QUIC first.
#[derive(Parser)]
#[command(name = "fulmar", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
}

fn main() -> ExitCode {
    // Wrong usage ends here with code 2 and clap's explanation.
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Serve(args) => serve::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fulmar: {error:#}");
            ExitCode::FAILURE
        }
    }
}
