//! Whether to verify the broker's certificate, with a CA file or not at all. The client library verifies it.
//!
//! `--insecure` exists because a load generator sends nothing worth protecting, and a peer's test
//! certificate is signed by no trusted CA. The handshake's signature is still checked, as its cost is part of
//! what is measured.

use std::path::Path;

use anyhow::bail;
use fulmar_client::{Options, Trust};
use rustls::ClientConfig;

use crate::exit::Usage;

/// TLS for QUIC to the broker at `url`, with ALPN `mqtt`. Fails without a file or `insecure`.
pub(super) fn tls(
    url: &str,
    cafile: Option<&Path>,
    insecure: bool,
) -> anyhow::Result<ClientConfig> {
    let mut options = Options::new(url)?;
    options.trust = match cafile {
        _ if insecure => Trust::Insecure,
        Some(file) => Trust::CaFile(file.to_owned()),
        None => bail!(Usage(
            "quic:// needs --cafile FILE, or --insecure to accept any certificate".to_owned()
        )),
    };
    let mut config = options.tls_config()?;
    config.alpn_protocols = vec![b"mqtt".to_vec()];
    Ok(config)
}
