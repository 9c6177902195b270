//! Secrets that outlive the process, in the data folder.

use std::io::ErrorKind;
use std::path::Path;

use fulmar_certs::{CertError, files, random};
use fulmar_scram::DecoyKey;
use fulmar_transport::QuicKeys;

use crate::exit::Usage;
use fulmar_config::Auth;

const QUIC: &str = "quic.key";
const SCRAM: &str = "scram.key";
/// The platform's.
pub(super) const PLATFORM: &str = "platform.key";

/// All of them, except the keys of certificates.
pub(super) const FILES: [&str; 4] = [QUIC, SCRAM, PLATFORM, super::replaced_hashes::FILE];

/// The keys of QUIC's address tokens and stateless resets, made at first use.
pub(super) fn quic_keys(data: &Path) -> anyhow::Result<QuicKeys> {
    keys(&data.join(QUIC)).map(QuicKeys)
}

/// Key of the decoys that SCRAM shows for users that do not exist, if it is offered; made at first use.
pub(super) fn scram_decoys(auth: &Auth, data: &Path) -> anyhow::Result<Option<DecoyKey>> {
    let Some(iterations) = auth.verifier_iterations() else { return Ok(None) };
    Ok(Some(DecoyKey::new(keys(&data.join(SCRAM))?, iterations)))
}

/// Reads a secret that the server keeps in its data folder; `None` if there is none yet.
///
/// # Errors
/// It cannot be read, or others can read it, too.
pub(super) fn read(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    match files::read_own_secret(path) {
        Err(CertError::File { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(error @ CertError::SecretExposed(_)) => Err(Usage(error.to_string()).into()),
        read => Ok(Some(read?)),
    }
}

fn keys<const N: usize>(path: &Path) -> anyhow::Result<[u8; N]> {
    if let Some(bytes) = read(path)?
        && let Ok(keys) = <[u8; N]>::try_from(bytes)
    {
        return Ok(keys);
    }
    let keys = random()?;
    files::write(path, &keys, true)?;
    Ok(keys)
}
