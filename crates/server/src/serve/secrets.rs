//! Secrets that outlive the process, in the data folder.

use std::path::Path;

use anyhow::Context;
use fulmar_certs::files;
use fulmar_transport::QuicKeys;
use ring::rand::{SecureRandom, SystemRandom};

/// The keys of QUIC's address tokens and stateless resets, made at first use.
pub(super) fn quic_keys(data: &Path) -> anyhow::Result<QuicKeys> {
    let path = data.join("quic.key");
    if let Ok(bytes) = std::fs::read(&path)
        && let Ok(keys) = <[u8; 64]>::try_from(bytes)
    {
        return Ok(QuicKeys(keys));
    }
    let mut keys = [0; 64];
    SystemRandom::new()
        .fill(&mut keys)
        .ok()
        .context("the system random number generator failed")?;
    files::write(&path, &keys, true)?;
    Ok(QuicKeys(keys))
}
