//! Secrets that outlive the process, in the data folder.

use std::path::Path;

use anyhow::Context;
use fulmar_certs::files;
use fulmar_scram::DecoyKey;
use fulmar_transport::QuicKeys;
use ring::rand::{SecureRandom, SystemRandom};

use crate::config::Auth;

/// The keys of QUIC's address tokens and stateless resets, made at first use.
pub(super) fn quic_keys(data: &Path) -> anyhow::Result<QuicKeys> {
    keys(&data.join("quic.key")).map(QuicKeys)
}

/// What users that do not exist are shown by SCRAM, if it is offered; its key is made at first use.
pub(super) fn scram_decoys(auth: &Auth, data: &Path) -> anyhow::Result<Option<DecoyKey>> {
    let Some(iterations) = auth.verifier_iterations() else { return Ok(None) };
    Ok(Some(DecoyKey::new(keys(&data.join("scram.key"))?, iterations)))
}

/// Checks the secrets that the server keeps in its data folder.
///
/// # Errors
/// One of them is readable by others.
pub(super) fn check(data: &Path) -> anyhow::Result<()> {
    let names = ["quic.key", "scram.key", "platform.key", super::replaced_hashes::FILE];
    let paths = names.map(|name| data.join(name));
    for path in paths.iter().filter(|path| path.is_file()) {
        files::check_secret(path)?;
    }
    Ok(())
}

fn keys<const N: usize>(path: &Path) -> anyhow::Result<[u8; N]> {
    if let Ok(bytes) = std::fs::read(path)
        && let Ok(keys) = <[u8; N]>::try_from(bytes)
    {
        return Ok(keys);
    }
    let mut keys = [0; N];
    SystemRandom::new()
        .fill(&mut keys)
        .ok()
        .context("the system random number generator failed")?;
    files::write(path, &keys, true)?;
    Ok(keys)
}
