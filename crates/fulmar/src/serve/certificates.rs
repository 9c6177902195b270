//! The broker's certificate: the configured one, or one from a development authority of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use fulmar_certs::authority::Authority;
use fulmar_certs::files;
use fulmar_transport::tls::{Identity, RootCertStore, ServerTls};
use fulmar_transport::{SharedTls, TlsSettings, tls};

use crate::config::{Config, set};

/// Names and addresses every development certificate is good for.
const LOCAL_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// TLS for the listeners, and the files it came from.
pub(super) struct Certificates {
    identity: Arc<Identity>,
    /// For every listener that has TLS.
    pub(super) tls: ServerTls,
    chain: PathBuf,
    key: PathBuf,
}

impl Certificates {
    /// Reads the configured files, or makes what is missing in `data`.
    pub(super) fn open(config: &Config, data: &Path) -> anyhow::Result<Certificates> {
        let (chain, key) = match (set(&config.tls.cert), set(&config.tls.key)) {
            (Some(chain), Some(key)) => (chain.to_owned(), key.to_owned()),
            _ => {
                let mut names = LOCAL_NAMES.map(str::to_owned).to_vec();
                names.extend(config.tls.names.iter().cloned());
                Authority::open(&data.join("ca"))?.server_files(&names)?
            }
        };
        let identity = Identity::new(files::read_chain(&chain)?, files::read_key(&key)?)?;
        let roots = client_roots(set(&config.tls.client_ca))?;
        let tls = ServerTls::new(&identity, config.tls.client_auth.policy(), roots)?;
        Ok(Certificates { identity, tls, chain, key })
    }

    /// For the listeners over TCP.
    pub(super) fn stream_settings(&self) -> TlsSettings {
        TlsSettings {
            config: Arc::new(SharedTls::new(Arc::clone(&self.tls.tcp))),
            identify: tls::client_name,
        }
    }

    /// Reads certificate and key again; connections from now on get the new one.
    pub(super) fn reload(&self) -> anyhow::Result<()> {
        self.identity.replace(files::read_chain(&self.chain)?, files::read_key(&self.key)?)?;
        Ok(())
    }
}

fn client_roots(file: Option<&Path>) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file else { return Ok(roots) };
    for certificate in files::read_chain(file)? {
        roots.add(certificate).with_context(|| format!("[tls] client_ca {}", file.display()))?;
    }
    Ok(roots)
}
