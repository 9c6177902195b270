//! Revocation lists in use: read again when their files change, and applied to clients that are connected.
//!
//! CAs publish lists every few hours or days, and a job copies them: it should not have to signal the broker. A list that
//! cannot be read changes nothing.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use fulmar_broker::Broker;
use fulmar_transport::tls::{ClientAuth, ClientTrust, ServerTls};
use parking_lot::Mutex;

use fulmar_config::{CrlExpired, Tls};
use fulmar_part::certificates::client_trust;
use fulmar_part::thread::Thread;

/// Time between two looks at the files.
const LOOK: Duration = Duration::from_secs(5);

/// The thread that watches the lists; dropping this ends it.
pub(super) struct Revocation {
    watched: Arc<Mutex<Watched>>,
    next_update: Arc<AtomicI64>,
    /// `None` where clients have no certificates.
    _thread: Option<Thread>,
}

/// Lists in use, and the settings for them.
struct Watched {
    settings: Tls,
    /// States of the files of the lists in use.
    files: FileStates,
    /// Why others are not in use, as the log says.
    failed: Option<(FileStates, String)>,
    /// The earliest next update has passed, and the log says so.
    expiry_logged: bool,
    tls: ServerTls,
    broker: Arc<Broker>,
    next_update: Arc<AtomicI64>,
}

/// When it was written, and its length.
type FileState = (SystemTime, u64);

/// The states of the files, taken before they are read: what is written meanwhile is read again.
type FileStates = Vec<Option<FileState>>;

fn states_of(settings: &Tls) -> FileStates {
    settings.crl_files.iter().map(state_of).collect()
}

fn state_of(file: &PathBuf) -> Option<FileState> {
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

impl Revocation {
    /// Applies the lists, with which `tls` was set up, to the broker, and starts the thread.
    pub(super) fn start(
        settings: &Tls,
        tls: &ServerTls,
        broker: &Arc<Broker>,
    ) -> anyhow::Result<Revocation> {
        let next_update = Arc::new(AtomicI64::new(0));
        let watched = Watched {
            settings: settings.clone(),
            files: Vec::new(),
            failed: None,
            expiry_logged: false,
            tls: tls.clone(),
            broker: Arc::clone(broker),
            next_update: Arc::clone(&next_update),
        };
        let watched = Arc::new(Mutex::new(watched));
        let mut revocation = Revocation { watched, next_update, _thread: None };
        revocation.replace(settings, || client_trust(settings))?;
        if tls.client_auth != ClientAuth::Off {
            let watched = Arc::clone(&revocation.watched);
            let thread = Thread::blocking("fulmar-crl", move |stopped| {
                while stopped.pause(LOOK) {
                    watched.lock().check_files();
                }
            });
            revocation._thread = Some(thread.context("thread for revocation lists")?);
        }
        Ok(revocation)
    }

    /// Uses these settings from now on, with what `read` reads from the files that they name and puts into use for TLS.
    /// Meanwhile the thread does not, because it would put back what the settings before name.
    ///
    /// # Errors
    /// Those of `read`; then nothing has changed.
    pub(super) fn replace(
        &self,
        settings: &Tls,
        read: impl FnOnce() -> anyhow::Result<ClientTrust>,
    ) -> anyhow::Result<()> {
        let mut watched = self.watched.lock();
        let files = states_of(settings);
        let trust = read()?;
        watched.settings = settings.clone();
        (watched.files, watched.failed) = (files, None);
        watched.publish(&trust);
        Ok(())
    }

    /// When the first of the lists expires, in seconds since the Unix epoch; 0 without lists.
    pub(super) fn next_update(&self) -> Arc<AtomicI64> {
        Arc::clone(&self.next_update)
    }
}

impl Watched {
    fn check_files(&mut self) {
        let files = states_of(&self.settings);
        if files != self.files {
            match self.read_again() {
                Ok(revoked) => {
                    (self.files, self.failed) = (files, None);
                    tracing::info!(revoked, "revocation lists reloaded");
                }
                // The error may be of another file, such as [tls] client_ca, so that these are read again even if they
                // do not change.
                Err(error) => self.failed(files, format!("{error:#}")),
            }
        }
        self.log_expiry();
    }

    fn failed(&mut self, files: FileStates, error: String) {
        let failed = Some((files, error));
        if failed == self.failed {
            return;
        }
        self.failed = failed;
        if let Some((_, error)) = &self.failed {
            tracing::error!(
                "revocation lists not reloaded, those read before stay in use; correct the file: {error}"
            );
        }
    }

    fn read_again(&mut self) -> anyhow::Result<usize> {
        let trust = client_trust(&self.settings)?;
        self.tls.replace_client_trust(trust.clone())?;
        Ok(self.publish(&trust))
    }

    /// Applies lists that TLS has to clients that are connected; returns how many certificates they revoke.
    fn publish(&mut self, trust: &ClientTrust) -> usize {
        let lists = &trust.revocation_lists;
        let first = lists.iter().filter_map(|list| list.next_update).min();
        self.next_update.store(first.unwrap_or(0), Ordering::Relaxed);
        self.expiry_logged = false;
        let revoked = lists.iter().flat_map(|list| list.revoked.iter().map(|id| id.0));
        let revoked: HashSet<u64> = revoked.collect();
        let count = revoked.len();
        self.broker.set_revoked_certificates(revoked);
        count
    }

    fn log_expiry(&mut self) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let first = self.next_update.load(Ordering::Relaxed);
        let expired = first > 0 && u64::try_from(first).is_ok_and(|first| first <= now.as_secs());
        if !expired || std::mem::replace(&mut self.expiry_logged, true) {
            return;
        }
        if self.settings.crl_expired == CrlExpired::Refuse {
            tracing::error!(
                "a revocation list in [tls] crl_files has expired: new clients with certificates of its CA are refused; \
                 get a newer list from the CA"
            );
        } else {
            tracing::warn!(
                "a revocation list in [tls] crl_files has expired: get a newer one from the CA"
            );
        }
    }
}
