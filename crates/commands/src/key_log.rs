//! `--keylog`, as all commands have it that connect over TLS or QUIC.

use std::path::PathBuf;

use crate::exit::Usage;

/// Whether and where to log the secrets of connections.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "TLS")]
pub struct KeyLogArgs {
    /// Append the secrets of connections to this file, so that Wireshark decrypts a capture
    #[arg(long, value_name = "FILE", env = "SSLKEYLOGFILE")]
    keylog: Option<PathBuf>,
    /// Also of connections to other machines
    #[arg(long, env = "FULMAR_KEYLOG_REMOTE", value_parser = clap::builder::BoolishValueParser::new())]
    keylog_remote: bool,
}

impl KeyLogArgs {
    /// The file for a connection to this machine (`is_loopback`) or another.
    ///
    /// # Errors
    /// The connection leaves this machine, and nothing says that it may be read.
    pub fn file(&self, is_loopback: bool) -> Result<Option<PathBuf>, Usage> {
        match &self.keylog {
            Some(file) if !is_loopback && !self.keylog_remote => Err(Usage(format!(
                "--keylog (or SSLKEYLOGFILE): anyone who has {} can read what this connection to another machine \
                 carries. Next: add --keylog-remote (or FULMAR_KEYLOG_REMOTE=1), or leave both out",
                file.display()
            ))),
            file => Ok(file.clone()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_this_machine_is_logged_with_a_second_word_only() {
        let mut wanted = KeyLogArgs { keylog: Some("keys".into()), keylog_remote: false };
        assert_eq!(wanted.file(true).unwrap(), Some("keys".into()));
        assert!(wanted.file(false).unwrap_err().to_string().contains("--keylog-remote"));
        wanted.keylog_remote = true;
        assert_eq!(wanted.file(false).unwrap(), Some("keys".into()));
        assert_eq!(KeyLogArgs { keylog: None, ..wanted }.file(false).unwrap(), None);
    }
}
