//! The certificate of the `webtransport` listeners, which is replaced before it expires while they run.
//!
//! Open connections keep the certificate that they began with. `fulmar_certs::short_lived` creates the certificates.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use fulmar_certs::short_lived::ShortLivedCertificates;
use fulmar_transport::tls::Identity;
use parking_lot::Mutex;

use crate::thread::{Stopped, Thread};

/// Folder in the data folder.
const FOLDER: &str = "webtransport";

/// Longest wait before the clock is read again: it may be set, or have stopped while the machine was suspended.
const LOOK: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 600 });

/// The certificates' hashes, for pages.
#[derive(Clone, Debug)]
pub struct Hashes(Arc<Mutex<[[u8; 32]; 2]>>);

impl Hashes {
    /// These hashes.
    pub fn from_digests(hashes: [[u8; 32]; 2]) -> Hashes {
        Hashes(Arc::new(Mutex::new(hashes)))
    }

    /// SHA-256 of the certificate in use and of the next one.
    pub fn now(&self) -> [[u8; 32]; 2] {
        *self.0.lock()
    }
}

/// The certificate, and the thread that replaces it; dropping this ends the thread.
pub struct WebTransportCertificate {
    /// For the listeners.
    pub identity: Arc<Identity>,
    /// Hashes for pages.
    pub hashes: Hashes,
    _thread: Option<Thread>,
}

impl WebTransportCertificate {
    /// For a server without such listeners, which does not show this one.
    pub fn unseen(identity: &Arc<Identity>) -> WebTransportCertificate {
        let (identity, hashes) = (Arc::clone(identity), Hashes(Arc::default()));
        WebTransportCertificate { identity, hashes, _thread: None }
    }

    /// Reads or creates the certificates in the data folder, and starts the thread, which also calls `renew` for the
    /// certificate of other listeners.
    pub fn start(
        data: &Path,
        mut renew: impl FnMut() -> anyhow::Result<()> + Send + 'static,
    ) -> anyhow::Result<WebTransportCertificate> {
        let certificates = ShortLivedCertificates::open(&data.join(FOLDER), SystemTime::now())?;
        let identity = identity_of(&certificates)?;
        let hashes = Hashes(Arc::new(Mutex::new(certificates.hashes())));
        let (in_use, published) = (Arc::clone(&identity), hashes.clone());
        let thread = Thread::blocking("fulmar-certificate", move |stopped| {
            change(certificates, &stopped, &in_use, &published, &mut renew);
        });
        let thread = thread.context("thread for short-lived certificates")?;
        Ok(WebTransportCertificate { identity, hashes, _thread: Some(thread) })
    }
}

fn identity_of(certificates: &ShortLivedCertificates) -> anyhow::Result<Arc<Identity>> {
    Ok(Identity::new(vec![certificates.certificate()], certificates.key()?)?)
}

fn change(
    mut certificates: ShortLivedCertificates,
    stopped: &Stopped,
    in_use: &Identity,
    published: &Hashes,
    renew: &mut dyn FnMut() -> anyhow::Result<()>,
) {
    loop {
        let left = certificates.changes_at().duration_since(SystemTime::now()).unwrap_or_default();
        // A disk that is full is tried again after a while, not at once.
        let wait = left.clamp(Duration::from_secs(1), LOOK);
        if !stopped.pause(wait) {
            return;
        }
        if let Err(error) = renew() {
            tracing::error!("the development certificate cannot be renewed yet: {error:#}");
        }
        match advance(&mut certificates, in_use, published) {
            Ok(false) => {}
            Ok(true) => tracing::info!("WebTransport: next certificate in use"),
            Err(error) => {
                tracing::error!("WebTransport keeps its certificate for now: {error:#}");
                if !stopped.pause(LOOK) {
                    return;
                }
            }
        }
    }
}

fn advance(
    certificates: &mut ShortLivedCertificates,
    in_use: &Identity,
    published: &Hashes,
) -> anyhow::Result<bool> {
    if !certificates.advance(SystemTime::now())? {
        return Ok(false);
    }
    let identity = identity_of(certificates)?;
    // First, so that no page gets the hash of a certificate that is no longer in use.
    *published.0.lock() = certificates.hashes();
    in_use.replace(&identity);
    Ok(true)
}
