//! The credentials for `coaps://`, and the verification of the server's certificate.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use fulmar_certs::{files, trust};
use fulmar_client::Trust;
use fulmar_coap::dtls::{Certificate, Credentials, DtlsSession};
use fulmar_coap::psk::{self, MIN_KEY_BYTES};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::exit::Usage;

/// Options as the command line has them.
#[derive(Debug)]
pub(crate) struct TrustArgs {
    pub(crate) username: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) certificate: Option<(std::path::PathBuf, std::path::PathBuf)>,
    pub(crate) trust: Trust,
}

impl TrustArgs {
    /// A user's key, a certificate, or one made for the occasion, which a server does not ask for.
    pub(super) fn credentials(&self) -> anyhow::Result<Credentials> {
        match (&self.username, &self.key) {
            (Some(name), Some(key)) => {
                let key = psk::parse(key);
                let key =
                    key.ok_or_else(|| Usage("-P: only hexadecimal digits may follow 0x".into()))?;
                if key.len() < MIN_KEY_BYTES {
                    return Err(Usage(format!(
                        "-P: a key for coaps:// must have at least {MIN_KEY_BYTES} bytes, as text or as 0x and \
                         {} hexadecimal digits; give the user a longer one in the broker's [coap] psk_file",
                        2 * MIN_KEY_BYTES
                    ))
                    .into());
                }
                return Ok(Credentials::Psk { identity: name.clone().into_bytes(), key });
            }
            (None, None) => {}
            _ => {
                return Err(Usage("coaps:// requires -u with -P, the user's key".to_owned()).into());
            }
        }
        let (certificate, key) = match &self.certificate {
            Some((chain, key)) => (first(chain)?, files::read_key(key)?),
            None => fulmar_certs::throwaway()?,
        };
        let (certificate, key) = (certificate.to_vec(), key.secret_der().to_vec());
        Ok(Credentials::Certificate(Certificate { certificate, key }))
    }

    /// Looks at the server's certificate. One that has the user's key needs none.
    pub(super) fn check(
        &self,
        session: &DtlsSession,
        host: &str,
        server: SocketAddr,
    ) -> anyhow::Result<()> {
        if session.identity().is_some() || matches!(self.trust, Trust::Insecure) {
            return Ok(());
        }
        let Some(shown) = session.certificate() else { bail!("the server sent no certificate") };
        let file = if let Trust::CaFile(path) = &self.trust { Some(&**path) } else { None };
        let roots = Arc::new(trust::roots(file, server.ip().is_loopback())?);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
        let name = ServerName::try_from(host.to_owned()).context("the server's name")?;
        verifier
            .context("no trusted CA found; give --cafile")?
            .verify_server_cert(&CertificateDer::from(shown), &[], &name, &[], UnixTime::now())
            .context("the server's certificate is not trusted")?;
        Ok(())
    }
}

fn first(chain: &Path) -> anyhow::Result<CertificateDer<'static>> {
    let first = files::read_chain(chain)?.into_iter().next();
    first.with_context(|| format!("{}: contains no certificate", chain.display()))
}
