//! The broker's certificate (the configured one, one issued by ACME, or one of its own development CA), the CAs whose
//! client certificates it trusts, and the TLS tickets that it has issued.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, bail};
use fulmar_certs::authority::{self, Authority, local_names};
use fulmar_certs::issued::Issued;
use fulmar_certs::{AUTHORITY_FOLDER, KeyLogFile, files, read_revocation_lists, trust};
use fulmar_transport::tickets::Tickets;
use fulmar_transport::tls::{ClientTrust, Identity, RootCertStore, ServerTls};
use fulmar_transport::{SharedTls, TlsSettings, tls};
use parking_lot::Mutex;

use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::CertificateDer;

use crate::machine::Machine;
use crate::webtransport_certificate::WebTransportCertificate;

use fulmar_config::{Acme, Config, CrlExpired, Tls, set};

/// TLS for the listeners, with its certificates and tickets.
pub struct Certificates {
    identity: Arc<Identity>,
    /// For the `coaps` listeners: never one of an order, whose intermediate certificates DTLS cannot send.
    dtls_identity: Arc<Identity>,
    /// The newest.
    settings: Arc<Mutex<Tls>>,
    /// True if a listener shows it.
    is_seen: bool,
    /// For every listener that has TLS.
    pub tls: ServerTls,
    /// For the `webtransport` listeners.
    pub webtransport_certificate: WebTransportCertificate,
    /// Session tickets of QUIC clients; kept in the data folder unless storage is off.
    pub tickets: Arc<Tickets>,
    /// Settings at the start of the program, for orders.
    acme: Acme,
    ordered: Option<Ordered>,
    data: PathBuf,
}

impl Certificates {
    /// Reads the configured files, or creates missing ones in `data`.
    pub fn open(
        config: &Config,
        data: &Path,
        ordered: Option<Ordered>,
    ) -> anyhow::Result<Certificates> {
        let identity = match needs_none(config) {
            false => read_identity(&config.tls, &config.acme, ordered, data)?,
            true => unseen()?,
        };
        let dtls_identity = match config.acme.is_on() {
            true => read_files(&config.tls, data)?,
            false => Arc::clone(&identity),
        };
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
        let settings = Arc::new(Mutex::new(config.tls.clone()));
        let is_seen = !needs_none(config);
        let webtransport_certificate = match is_seen {
            false => WebTransportCertificate::unseen(&identity),
            true => {
                let renew = renewal([&identity, &dtls_identity].map(Arc::clone), &settings, data);
                WebTransportCertificate::start(data, renew)?
            }
        };
        let (acme, data) = (config.acme.clone(), data.to_owned());
        Ok(Certificates {
            identity,
            dtls_identity,
            settings,
            is_seen,
            tls,
            webtransport_certificate,
            tickets,
            acme,
            ordered,
            data,
        })
    }

    /// The certificate of the listeners.
    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// For metrics: the certificate's end, beside what the machine gives to the server with this data folder.
    pub fn machine(&self, data: &Path) -> Machine {
        Machine::new(data.to_owned(), self.is_seen.then(|| Arc::clone(&self.identity)))
    }

    /// For the listeners over TCP.
    pub fn stream_settings(&self) -> TlsSettings {
        TlsSettings {
            config: Arc::new(SharedTls::new(Arc::clone(&self.tls.tcp))),
            identify: tls::client_name,
        }
    }

    /// The certificate of the `coaps` listeners.
    pub fn dtls_identity(&self) -> &Arc<Identity> {
        &self.dtls_identity
    }

    /// Reads certificate, key, client CAs and revocation lists again, for new connections. A development certificate that expires soon or
    /// lacks a name is replaced. All or nothing.
    pub fn reload(&self, config: &Config) -> anyhow::Result<ClientTrust> {
        if config.tls.client_auth != self.tls.client_auth {
            bail!("[tls] client_auth has changed, which requires a restart");
        }
        let mut settings = self.settings.lock();
        let identity = match self.is_seen {
            true => read_identity(&config.tls, &self.acme, self.ordered, &self.data)?,
            false => Arc::clone(&self.identity),
        };
        let dtls_identity = match self.acme.is_on() {
            true => read_files(&config.tls, &self.data)?,
            false => Arc::clone(&identity),
        };
        let trust = client_trust(&config.tls)?;
        self.tls.replace_client_trust(trust.clone())?;
        self.identity.replace(&identity);
        self.dtls_identity.replace(&dtls_identity);
        *settings = config.tls.clone();
        Ok(trust)
    }
}

fn read_identity(
    tls: &Tls,
    acme: &Acme,
    ordered: Option<Ordered>,
    data: &Path,
) -> anyhow::Result<Arc<Identity>> {
    match ordered.and_then(|ordered| ordered(acme, data)) {
        Some((_, identity)) => Ok(identity),
        None => read_files(tls, data),
    }
}

fn read_files(tls: &Tls, data: &Path) -> anyhow::Result<Arc<Identity>> {
    let (chain, key) = identity_files(tls, data)?;
    read_pair(&chain, &key)
}

/// Finds the certificate of an earlier order by ACME, in a build that renews it.
pub type Ordered = fn(&Acme, &Path) -> Option<(Issued, Arc<Identity>)>;

/// Renews a development certificate that ends soon, and shows it instead wherever it is in use.
fn renewal(
    identities: [Arc<Identity>; 2],
    settings: &Arc<Mutex<Tls>>,
    data: &Path,
) -> impl FnMut() -> anyhow::Result<()> + Send + use<> {
    let (settings, data) = (Arc::clone(settings), data.to_owned());
    move || {
        let settings = settings.lock();
        // With orders, the other one may be theirs.
        let end = identities[1].not_after();
        let is_soon = end.is_some_and(|end| end < SystemTime::now() + authority::RENEW);
        if set(&settings.cert).is_some() || !is_soon {
            return Ok(());
        }
        let renewed = read_files(&settings, &data)?;
        if renewed.not_after() > end {
            let used = identities.iter().filter(|identity| identity.not_after() == end);
            used.for_each(|identity| identity.replace(&renewed));
            tracing::info!("development certificate renewed: new connections get the new one");
        }
        Ok(())
    }
}

/// A certificate that nobody sees.
fn unseen() -> anyhow::Result<Arc<Identity>> {
    let (certificate, key) = fulmar_certs::throwaway()?;
    Ok(Identity::new(vec![certificate], key)?)
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
pub enum Presented {
    /// This chain, read from this file.
    Chain(PathBuf, Vec<CertificateDer<'static>>),
    /// One issued by the development CA, which has this certificate.
    Development(PathBuf, Vec<CertificateDer<'static>>),
    /// None.
    Nothing,
    /// One issued by a development CA that the next start creates in this folder.
    New(PathBuf),
}

/// Like [`Certificates::open`], but creates nothing.
///
/// # Errors
/// A file cannot be read, or does not match the others.
pub fn inspect(
    config: &Config,
    data: &Path,
    ordered: Option<Ordered>,
) -> anyhow::Result<Presented> {
    let trust = client_trust(&config.tls)?;
    if config.tls.client_auth != tls::ClientAuth::Off {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(trust.roots), provider);
        builder.build().context("[tls] client_ca")?;
    }
    set(&config.coap.psk_file).map(crate::psk::read).transpose()?;
    if let Some((issued, _)) = ordered.and_then(|ordered| ordered(&config.acme, data)) {
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
fn identity_files(tls: &Tls, data: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    if let (Some(chain), Some(key)) = (set(&tls.cert), set(&tls.key)) {
        return Ok((chain.to_owned(), key.to_owned()));
    }
    let mut names = local_names();
    names.extend(tls.names.iter().cloned());
    Ok(Authority::open(&data.join(AUTHORITY_FOLDER))?.server_files(&names)?)
}

/// The CAs of clients' certificates, and what they have revoked.
pub fn client_trust(tls: &Tls) -> anyhow::Result<ClientTrust> {
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
    use std::time::{Duration, Instant};

    use fulmar_certs::authority::Purpose;

    use super::*;

    #[test]
    fn a_development_certificate_is_renewed_while_listeners_use_it() {
        let data = tempfile::tempdir().unwrap();
        let config = Config::default();
        let certificates = Certificates::open(&config, data.path(), None).unwrap();
        let day = Duration::from_secs(24 * 3600);
        // As if the clock had gone on until it ends in 29 days.
        let authority = Authority::open(&data.path().join(AUTHORITY_FOLDER)).unwrap();
        let old = authority.issue("localhost", &local_names(), Purpose::Server, 29).unwrap();
        let (chain, key) = identity_files(&config.tls, data.path()).unwrap();
        std::fs::write(&chain, old.chain_pem).unwrap();
        std::fs::write(&key, old.key_pem).unwrap();
        certificates.identity.replace(&read_pair(&chain, &key).unwrap());
        let by = Instant::now() + Duration::from_secs(60);
        for identity in [&certificates.identity, &certificates.dtls_identity] {
            while identity.not_after().unwrap() < SystemTime::now() + 300 * day {
                assert!(Instant::now() < by, "not renewed");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        let renewed = read_pair(&chain, &key).unwrap();
        assert_eq!(certificates.identity.ecdsa(), renewed.ecdsa());
    }

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
        drop(Certificates::open(&config, data.path(), None).unwrap());
        assert_eq!(made(), [false; 2]);
        assert!(matches!(inspect(&config, data.path(), None).unwrap(), Presented::Nothing));
        config.listeners.coaps = coaps;
        drop(Certificates::open(&config, data.path(), None).unwrap());
        assert_eq!(made(), [true; 2]);
    }
}
