//! Certificates from a public CA by ACME (RFC 8555): ordered, stored in the data folder, renewed before they expire,
//! and put into use on running listeners.
//!
//! A separate thread waits until an order is due, and places it. After any error the server continues with its present
//! certificate, the log has advice, and the order is tried again later, or on SIGHUP.

mod advice;
mod challenge;
mod http;
mod order;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use fulmar_certs::files;
use fulmar_certs::issued::{self, Issued};
use fulmar_text::hex;
use fulmar_transport::tls::Identity;
use ring::digest::{SHA256, digest};
use tokio::sync::Notify;

use self::challenge::Challenges;
use fulmar_config::Acme;
use fulmar_part::thread::Thread;
use fulmar_part::{Core, Opening, Part};

/// Folder in the data folder, with one folder per ACME directory, so that a CA for tests and the real one share
/// nothing.
const FOLDER: &str = "acme";
const ACCOUNT: &str = "account.json";
const CERTIFICATE: &str = "certificate.pem";

/// Longest wait before the clock is read again: it may be set, or have stopped while the machine was suspended.
const LOOK: Duration = Duration::from_secs(600);

/// Longest time of an order; CAs that sign manually are not supported.
const ORDER: Duration = Duration::from_secs(600);

/// First and longest pause after a failure: the first because of CAs that allow five failures per hour, the longest so
/// that the certificate is renewed within the last third of its lifetime.
const FIRST_WAIT: Duration = Duration::from_secs(5 * 60);
const LAST_WAIT: Duration = Duration::from_secs(6 * 3600);

/// The certificate of an earlier order; `None` if there is none that can be used.
pub fn kept(acme: &Acme, data: &Path) -> Option<(Issued, Arc<Identity>)> {
    if !acme.is_on() {
        return None;
    }
    match read(&folder(acme, data).join(CERTIFICATE)) {
        Ok(kept) => kept.filter(|(issued, _)| SystemTime::now() < issued.end),
        Err(error) => {
            tracing::warn!("ACME: {error:#}; ordering another certificate");
            None
        }
    }
}

/// A certificate and key that TLS can use; `None` without the file.
fn read(path: &Path) -> anyhow::Result<Option<(Issued, Arc<Identity>)>> {
    let Some(issued) = Issued::read(path)? else { return Ok(None) };
    let identity = identity(&issued).with_context(|| path.display().to_string())?;
    Ok(Some((issued, identity)))
}

fn identity(issued: &Issued) -> anyhow::Result<Arc<Identity>> {
    Ok(Identity::new(issued.chain.clone(), issued.key.clone_key())?)
}

/// A readable and unique name: `acme-v02.api.letsencrypt.org-` and the beginning of the URL's hash.
fn folder(acme: &Acme, data: &Path) -> PathBuf {
    let url = &acme.directory;
    let host = url.split("://").last().and_then(|rest| rest.split(['/', ':']).next());
    let host =
        host.unwrap_or_default().replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-");
    let hash = digest(&SHA256, url.as_bytes());
    let hash = hex::encode(&hash.as_ref()[..4]);
    data.join(FOLDER).join(format!("{host}-{hash}"))
}

/// Keeps the certificate renewed.
struct Running {
    again: Arc<Notify>,
    /// Until it is started.
    orders: Option<Orders>,
    thread: Option<Thread>,
}

/// The parts that orders need; created before the listeners, which answer the challenges.
struct Orders {
    acme: Acme,
    folder: PathBuf,
    challenges: Arc<Challenges>,
    shown: Arc<Identity>,
}

/// Prepares orders, if `[acme]` is configured.
///
/// # Errors
/// TLS for the challenges cannot be set up.
pub fn open(opening: &mut Opening<'_>) -> anyhow::Result<Option<Box<dyn Part>>> {
    let acme = &opening.config.acme;
    if !acme.is_on() {
        return Ok(None);
    }
    let orders = Orders {
        acme: acme.clone(),
        folder: folder(acme, opening.data),
        challenges: Arc::default(),
        shown: Arc::clone(opening.certificates.identity()),
    };
    // For the listener to which CAs connect.
    opening.offers.challenges = Some(orders.challenges.tls()?);
    let again = Arc::new(Notify::new());
    Ok(Some(Box::new(Running { again, orders: Some(orders), thread: None })))
}

impl Part for Running {
    /// Starts the thread: the listeners can answer the CA.
    fn ready(&mut self, _: &Core) -> anyhow::Result<()> {
        let Some(orders) = self.orders.take() else { return Ok(()) };
        files::make_private_dir(&orders.folder).context("folder for ACME")?;
        let poked = Arc::clone(&self.again);
        let run = move || async move { orders.run(&poked).await };
        self.thread = Some(Thread::start("fulmar-acme", run).context("thread for ACME")?);
        Ok(())
    }

    fn retry(&self) {
        self.again.notify_waiters();
    }

    /// No certificate is ordered while the broker drains.
    fn stop_accepting(&mut self) {
        drop(self.thread.take());
    }
}

impl Orders {
    async fn run(self, again: &Notify) {
        let mut failures = 0;
        let mut due = self.read().map(|issued| issued.renew_at(fastrand::f64()));
        if due.is_none() {
            tracing::warn!(
                "ACME: no certificate of {} yet; listeners use the development CA's until it has \
                 been issued",
                self.acme.directory
            );
        }
        loop {
            wait_until(due).await;
            match self.order().await {
                Ok(issued) => {
                    tracing::info!(
                        "ACME: certificate for {} received from {}; in use from now on, renewed \
                         automatically",
                        self.acme.domains.join(", "),
                        self.acme.directory,
                    );
                    // With a wrong clock it would always be due at once.
                    let rest = LOOK.min(issued.lifetime() / 2);
                    let earliest = SystemTime::now() + rest;
                    due = Some(issued.renew_at(fastrand::f64()).max(earliest));
                    failures = 0;
                }
                Err(error) => {
                    let wait = advice::least_wait(&error).max(wait_after(failures));
                    failures += 1;
                    let advice = advice::next(&error, &self.folder.join(ACCOUNT));
                    tracing::error!(
                        "ACME: no certificate for {}: {}. The server keeps using its current \
                         certificate. Next: {advice}. Next attempt in {} minutes, or at once on \
                         SIGHUP",
                        self.acme.domains.join(", "),
                        advice::printable(&error),
                        wait.as_secs() / 60,
                    );
                    // Either way it is tried again.
                    let _ = tokio::time::timeout(wait, again.notified()).await;
                }
            }
        }
    }

    /// The certificate in use, if it is for all names.
    fn read(&self) -> Option<Issued> {
        let kept = read(&self.folder.join(CERTIFICATE)).ok().flatten();
        kept.map(|(issued, _)| issued).filter(|issued| issued.covers(&self.acme.domains))
    }

    async fn order(&self) -> anyhow::Result<Issued> {
        let account = self.folder.join(ACCOUNT);
        let placed = order::place(&self.acme, &account, &self.challenges);
        let placed = tokio::time::timeout(ORDER, placed).await;
        self.challenges.clear();
        let answer = placed.context("the order takes too long")??;
        let path = self.folder.join(CERTIFICATE);
        let now = SystemTime::now();
        let issued = Issued::check(&answer.chain, &answer.key, &self.acme.domains, now)?;
        // Before it is written: one that TLS refuses must not replace one that works.
        let identity = identity(&issued).context("the CA's certificate cannot be used")?;
        issued::write(&path, &answer.chain, &answer.key)?;
        self.shown.replace(&identity);
        Ok(issued)
    }
}

/// Waits until this time by the wall clock; not at all for `None`.
async fn wait_until(time: Option<SystemTime>) {
    let Some(time) = time else { return };
    while let Ok(left) = time.duration_since(SystemTime::now()) {
        tokio::time::sleep(left.min(LOOK)).await;
    }
}

/// The pause after failures: doubled with each one, plus up to a quarter at random, so that servers that failed
/// together do not retry together.
fn wait_after(failures: u32) -> Duration {
    let wait = FIRST_WAIT.saturating_mul(1 << failures.min(16)).min(LAST_WAIT);
    wait.mul_f64(1.0 + fastrand::f64() / 4.0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound() {
        for (failures, minutes) in [(0, 5), (1, 10), (2, 20), (6, 320), (7, 360), (u32::MAX, 360)] {
            let wait = wait_after(failures);
            let least = Duration::from_secs(minutes * 60);
            assert!(wait >= least && wait <= least * 5 / 4, "{failures}: {wait:?}");
        }
    }

    #[test]
    fn every_directory_has_a_folder_that_stays_in_the_data_folder() {
        let folder = |url: &str| {
            let acme = Acme { directory: url.to_owned(), ..Acme::default() };
            folder(&acme, Path::new("/data"))
        };
        let real = folder("https://acme.example/directory");
        assert!(real.to_str().unwrap().starts_with("/data/acme/acme.example-"), "{real:?}");
        assert_ne!(real, folder("https://acme.example/other"));
        assert_eq!(folder("https://../../x").parent(), Some(Path::new("/data/acme")));
    }
}
