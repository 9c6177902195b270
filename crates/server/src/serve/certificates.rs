//! The broker's certificate (the configured one, one issued by ACME, or one of its own development CA), the CAs whose
//! client certificates it trusts, and the TLS tickets that it has issued.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, bail};
use fulmar_certs::authority::{Authority, local_names};
use fulmar_certs::{AUTHORITY_FOLDER, KeyLogFile, files, read_revocation_lists, trust};
use fulmar_transport::tickets::Tickets;
use fulmar_transport::tls::{ClientTrust, Identity, RootCertStore, ServerTls};
use fulmar_transport::{SharedTls, TlsSettings, tls};

use fulmar_coap::dtls::Certificate;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::CertificateDer;

use super::acme::{self, Orders};
use super::coap;
use super::http::Machine;
use super::webtransport_certificate::WebTransportCertificate;

use crate::config::{Acme, Config, CrlExpired, Tls, set};

/// TLS for the listeners, with its certificates and tickets.
pub(super) struct Certificates {
    identity: Arc<Identity>,
    /// Whether a listener shows it.
    is_seen: bool,
    /// For every listener that has TLS.
    pub(super) tls: ServerTls,
    /// For the `webtransport` listeners.
    pub(super) webtransport_certificate: WebTransportCertificate,
    /// Of QUIC clients; kept in the data folder unless storage is off.
    pub(super) tickets: Arc<Tickets>,
    /// Settings at the start of the program, for orders.
    acme: Acme,
    data: PathBuf,
}

impl Certificates {
    /// Reads the configured files, or creates missing ones in `data`.
    pub(super) fn open(config: &Config, data: &Path) -> anyhow::Result<Certificates> {
        let identity = read_identity(config, &config.acme, data)?;
        let tickets = match config.storage.enabled {
            true => Tickets::open(&data.join("tickets.db"))?,
            false => Tickets::in_memory()?,
        };
        let (auth, trust) = (config.tls.client_auth, client_trust(&config.tls)?);
        let mut tls = ServerTls::with_tickets(&identity, auth, trust, &tickets)?;
        if let Some(path) = &config.tls.key_log {
            tracing::warn!(file = %path.display(), "anyone who has this file can read what connections carry (--keylog)");
            tls = tls.with_key_log(&KeyLogFile::open(path)?);
        }
        let webtransport_certificate = match config.listeners.webtransport() {
            [] => WebTransportCertificate::unseen(&identity),
            _ => WebTransportCertificate::start(data)?,
        };
        let (acme, data) = (config.acme.clone(), data.to_owned());
        let is_seen = !needs_none(config);
        Ok(Certificates { identity, is_seen, tls, webtransport_certificate, tickets, acme, data })
    }

    /// Orders certificates, if [acme] is configured.
    pub(super) fn orders(&self) -> Option<Orders> {
        Orders::new(&self.acme, &self.data, &self.identity)
    }

    /// For metrics: the certificate's end, beside what the machine gives to the server with this data folder.
    pub(super) fn machine(&self, data: &Path) -> Machine {
        Machine::new(data.to_owned(), self.is_seen.then(|| Arc::clone(&self.identity)))
    }

    /// For the listeners over TCP.
    pub(super) fn stream_settings(&self) -> TlsSettings {
        TlsSettings {
            config: Arc::new(SharedTls::new(Arc::clone(&self.tls.tcp))),
            identify: tls::client_name,
        }
    }

    /// Settings of DTLS sessions; `None` if the certificate's key is not ECDSA, the only kind that DTLS supports here.
    /// Its certificate and keys are read once: a change requires a restart.
    pub(super) fn for_dtls(
        &self,
        config: &Config,
        data: &Path,
    ) -> anyhow::Result<Option<coap::Settings>> {
        let (chain, key) = identity_files(config, data)?;
        let (chain, key) = (files::read_chain(&chain)?, files::read_key(&key)?);
        if rustls::crypto::ring::sign::any_ecdsa_type(&key).is_err() {
            return Ok(None);
        }
        let Some(leaf) = chain.first() else { return Ok(None) };
        let certificate =
            Certificate { certificate: leaf.to_vec(), key: key.secret_der().to_vec() };
        // dimpl either requires a certificate or requests none; where a certificate is optional, it requests none.
        let verifier = match config.tls.client_auth {
            tls::ClientAuth::Required => Some(self.tls.client_verifier()),
            tls::ClientAuth::Off | tls::ClientAuth::Optional => None,
        };
        let keys = set(&config.coap.psk_file).map(super::psk::read).transpose()?;
        let max_sessions = config.coap.max_sessions;
        Ok(Some(coap::Settings { certificate, keys, verifier, max_sessions }))
    }

    /// Reads certificate, key, client CAs and revocation lists again, for new connections. A development certificate that expires soon or
    /// lacks a name is replaced. All or nothing.
    pub(super) fn reload(&self, config: &Config) -> anyhow::Result<ClientTrust> {
        if config.tls.client_auth != self.tls.client_auth {
            bail!("[tls] client_auth has changed, which requires a restart");
        }
        let identity = read_identity(config, &self.acme, &self.data)?;
        let trust = client_trust(&config.tls)?;
        self.tls.replace_client_trust(trust.clone())?;
        self.identity.replace(&identity);
        Ok(trust)
    }
}

fn read_identity(config: &Config, acme: &Acme, data: &Path) -> anyhow::Result<Arc<Identity>> {
    if let Some((_, identity)) = acme::kept(acme, data, SystemTime::now()) {
        return Ok(identity);
    }
    if needs_none(config) {
        // Nobody sees it.
        let (certificate, key) = fulmar_certs::throwaway()?;
        return Ok(Identity::new(vec![certificate], key)?);
    }
    let (chain, key) = identity_files(config, data)?;
    read_pair(&chain, &key)
}

/// True if no listener has TLS, and no certificate is configured: no development CA is made.
fn needs_none(config: &Config) -> bool {
    !config.listeners.have_tls() && set(&config.tls.cert).is_none()
}

fn read_pair(chain: &Path, key: &Path) -> anyhow::Result<Arc<Identity>> {
    let identity = Identity::new(files::read_chain(chain)?, files::read_key(key)?);
    let of = || format!("[tls] cert {} and key {}", chain.display(), key.display());
    identity.with_context(of)
}

/// The certificate that a server would present.
pub(super) enum Presented {
    /// This chain, read from this file.
    Chain(PathBuf, Vec<CertificateDer<'static>>),
    /// One issued by the development CA, which has this certificate.
    Development(PathBuf, Vec<CertificateDer<'static>>),
    /// None.
    Nothing,
    /// One issued by a development CA that the next start creates in this folder.
    New(PathBuf),
}

/// As [`Certificates::open`], but creates nothing.
///
/// # Errors
/// A file cannot be read, or does not match the others.
pub(super) fn inspect(config: &Config, data: &Path) -> anyhow::Result<Presented> {
    let trust = client_trust(&config.tls)?;
    if config.tls.client_auth != tls::ClientAuth::Off {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(trust.roots), provider);
        builder.build().context("[tls] client_ca")?;
    }
    set(&config.coap.psk_file).map(super::psk::read).transpose()?;
    if let Some((issued, _)) = acme::kept(&config.acme, data, SystemTime::now()) {
        return Ok(Presented::Chain(data.to_owned(), issued.chain));
    }
    if let (Some(chain), Some(key)) = (set(&config.tls.cert), set(&config.tls.key)) {
        read_pair(chain, key)?;
        return Ok(Presented::Chain(chain.to_owned(), files::read_chain(chain)?));
    }
    if needs_none(config) {
        return Ok(Presented::Nothing);
    }
    let folder = data.join(AUTHORITY_FOLDER);
    // Where its certificate is missing, opening it creates one.
    if !folder.join("ca.pem").exists() {
        return Ok(Presented::New(folder));
    }
    let path = Authority::open(&folder)?.certificate_path();
    let chain = files::read_chain(&path)?;
    Ok(Presented::Development(path, chain))
}

/// Paths of chain and key.
fn identity_files(config: &Config, data: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    if let (Some(chain), Some(key)) = (set(&config.tls.cert), set(&config.tls.key)) {
        return Ok((chain.to_owned(), key.to_owned()));
    }
    let mut names = local_names();
    names.extend(config.tls.names.iter().cloned());
    Ok(Authority::open(&data.join(AUTHORITY_FOLDER))?.server_files(&names)?)
}

/// The CAs of clients' certificates, and what they have revoked.
pub(super) fn client_trust(tls: &Tls) -> anyhow::Result<ClientTrust> {
    let mut revocation_lists = Vec::new();
    for file in &tls.crl_files {
        revocation_lists.extend(read_revocation_lists(file).context("[tls] crl_files")?);
    }
    let accept_expired_lists = tls.crl_expired == CrlExpired::Accept;
    Ok(ClientTrust { roots: client_roots(tls)?, revocation_lists, accept_expired_lists })
}

fn client_roots(tls: &Tls) -> anyhow::Result<RootCertStore> {
    let Some(file) = set(&tls.client_ca) else { return Ok(RootCertStore::empty()) };
    trust::roots_of(file).context("[tls] client_ca")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn without_a_listener_that_has_tls_no_certificate_is_made() {
        let data = tempfile::tempdir().unwrap();
        let made = || ["ca", "webtransport"].map(|folder| data.path().join(folder).exists());
        let mut config = Config::default();
        let listeners = &mut config.listeners;
        for addresses in [&mut listeners.mqtts, &mut listeners.quic, &mut listeners.https] {
            addresses.clear();
        }
        let coaps = std::mem::take(&mut listeners.coaps);
        drop(Certificates::open(&config, data.path()).unwrap());
        assert_eq!(made(), [false; 2]);
        assert!(matches!(inspect(&config, data.path()).unwrap(), Presented::Nothing));
        config.listeners.coaps = coaps;
        drop(Certificates::open(&config, data.path()).unwrap());
        assert_eq!(made(), [true, false]);
    }
}
