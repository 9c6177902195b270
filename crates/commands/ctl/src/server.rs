//! The options that name the server.

use std::path::PathBuf;

/// Address of the server, and the settings of the connection to it.
#[derive(clap::Args, Debug)]
pub(crate) struct Server {
    /// Data folder of a broker on this machine [default: those in which `fulmar serve` and packages have it]
    #[arg(long, value_name = "DIR", env = "FULMAR_DATA", global = true)]
    pub(crate) data: Option<PathBuf>,
    /// The broker's `https` address, such as https://broker:8443; requires a token
    #[arg(long, value_name = "URL", global = true)]
    pub(crate) url: Option<String>,
    /// File with a token of a user with an administration role
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) token_file: Option<PathBuf>,
    /// PEM file of trusted CAs [default: the local development CA and the system's]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) ca: Option<PathBuf>,
    /// Print the response as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}
