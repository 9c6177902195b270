//! The certificate of the `webtransport` listeners: shown, and changed in time while they run.
//!
//! Connections that are open keep what they were made with. The certificates themselves are made in
//! `fulmar_certs::rolling`.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use fulmar_certs::rolling::Rolling;
use fulmar_transport::tls::Identity;

/// Folder in the data folder.
const FOLDER: &str = "webtransport";

/// Longest wait before the clock is looked at again: it may be set, or have stood still in a suspended
/// machine.
const LOOK: Duration = Duration::from_secs(600);

/// What pages have to be told.
#[derive(Clone, Debug)]
pub(super) struct Hashes(Arc<Mutex<[[u8; 32]; 2]>>);

impl Hashes {
    #[cfg(test)]
    pub(super) fn of(hashes: [[u8; 32]; 2]) -> Hashes {
        Hashes(Arc::new(Mutex::new(hashes)))
    }

    /// SHA-256 of the certificate in use and of the next one.
    pub(super) fn now(&self) -> [[u8; 32]; 2] {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The certificate and who sees to it.
pub(super) struct ShortLived {
    pub(super) identity: Arc<Identity>,
    pub(super) hashes: Hashes,
    /// Its end is what the thread waits for.
    _stop: mpsc::Sender<()>,
}

impl ShortLived {
    /// Reads or makes the certificates in the data folder.
    pub(super) fn start(data: &Path) -> anyhow::Result<ShortLived> {
        let rolling = Rolling::open(&data.join(FOLDER), SystemTime::now())?;
        let identity = shown(&rolling)?;
        let hashes = Hashes(Arc::new(Mutex::new(rolling.hashes())));
        let (stop, stopped) = mpsc::channel();
        let (shows, tells) = (Arc::clone(&identity), hashes.clone());
        std::thread::Builder::new()
            .name("fulmar-certificate".into())
            .spawn(move || change(rolling, &stopped, &shows, &tells))
            .context("thread for short-lived certificates")?;
        Ok(ShortLived { identity, hashes, _stop: stop })
    }
}

fn shown(rolling: &Rolling) -> anyhow::Result<Arc<Identity>> {
    Ok(Identity::new(vec![rolling.certificate()], rolling.key()?)?)
}

fn change(mut rolling: Rolling, stopped: &mpsc::Receiver<()>, shows: &Identity, tells: &Hashes) {
    loop {
        let left = rolling.changes_at().duration_since(SystemTime::now()).unwrap_or_default();
        // A disk that is full is tried again after a while, not at once.
        let wait = left.clamp(Duration::from_secs(1), LOOK);
        if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        match advance(&mut rolling, shows, tells) {
            Ok(false) => {}
            Ok(true) => tracing::info!("WebTransport: next certificate in use"),
            Err(error) => {
                tracing::error!("WebTransport keeps its certificate for now: {error:#}");
                if stopped.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        }
    }
}

fn advance(rolling: &mut Rolling, shows: &Identity, tells: &Hashes) -> anyhow::Result<bool> {
    if !rolling.advance(SystemTime::now())? {
        return Ok(false);
    }
    let identity = shown(rolling)?;
    // Pages that ask now must not be told of a certificate that is gone.
    *tells.0.lock().unwrap_or_else(PoisonError::into_inner) = rolling.hashes();
    shows.replace(&identity);
    Ok(true)
}
