//! A roll-out over QUIC: devices connect and fetch the file, each with a token that the broker delivered.
//!
//! ```text
//! device:   {"token":…}\n                            then as in `stream`, the roll-out being the sender
//! ```

use std::collections::HashSet;
use std::convert::Infallible;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::connection::{self, Arrival, Listener, TlsArgs, Via};
use super::receive::{Event, receive_file};
use super::send::pour;
use super::{Have, Offer, Verdict, receive_line, send_line};
use crate::file_to_send::FileToSend;
use crate::manifest::Manifest;
use crate::socket;

/// The most devices served at once; more wait.
const MAX_DEVICES: usize = 64;
/// Pause after a failed attempt.
const RETRY: Duration = Duration::from_millis(500);
/// A client that is silent for this long is disconnected.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(serde::Deserialize, serde::Serialize)]
struct Ask {
    token: String,
}

/// Serves devices that fetch a file.
pub(crate) struct Fountain(Listener);

struct Served {
    file: File,
    offer: Offer,
    tokens: HashSet<String>,
}

impl Fountain {
    /// Listens on all addresses of this machine, at the port that devices are configured with. Devices authenticate
    /// with tokens instead of certificates.
    pub(crate) async fn open(to: &str, tls: &TlsArgs) -> anyhow::Result<Fountain> {
        let address = socket::address(to)?;
        let all = socket::unspecified(address, address.port());
        Ok(Fountain(Listener::bind(Via::Quic, all, &tls.without_authorities()).await?))
    }

    /// Sends the file to every client with one of the tokens, until it is dropped or the socket fails.
    pub(crate) async fn serve(
        &self,
        file: &FileToSend,
        tokens: HashSet<String>,
    ) -> anyhow::Result<Infallible> {
        let (name, sha256) = (file.manifest.name.clone(), file.hash.to_string());
        let offer = Offer { name, bytes: file.bytes, sha256 };
        let served = Arc::new(Served { file: file.source.0.try_clone()?, offer, tokens });
        let mut devices = JoinSet::new();
        loop {
            while devices.len() >= MAX_DEVICES {
                devices.join_next().await;
            }
            let (arrival, from) = self.0.accept().await?;
            let served = Arc::clone(&served);
            devices.spawn(async move {
                if let Err(error) = served.to(arrival).await {
                    tracing::warn!(%from, error = format!("{error:#}"), "a device's connection failed");
                }
            });
            while devices.try_join_next().is_some() {}
        }
    }
}

impl Served {
    async fn to(&self, arrival: Arrival) -> anyhow::Result<()> {
        let mut channel = timeout(PATIENCE, arrival.open()).await.context("no handshake")??;
        let ask: Ask = receive_line(&mut channel, PATIENCE).await?.context("it sent no request")?;
        if !self.tokens.contains(&ask.token) {
            bail!("its token is not valid in this stage");
        }
        send_line(&mut channel, &self.offer).await?;
        let have: Have = receive_line(&mut channel, PATIENCE).await?.context("no answer")?;
        let from = have.have.min(self.offer.bytes);
        pour(&mut channel, &self.file, from, self.offer.bytes, PATIENCE, |_| {}).await?;
        let verdict: Verdict = receive_line(&mut channel, PATIENCE).await?.context("no verdict")?;
        channel.close().await;
        verdict.error.map_or(Ok(()), |reason| bail!("the device refused the file: {reason}"))
    }
}

/// Server, token and expected file of a device's download.
pub(crate) struct Fetching<'a> {
    pub(crate) to: &'a str,
    pub(crate) tls: &'a TlsArgs,
    pub(crate) token: String,
    pub(crate) expected: &'a Manifest,
    pub(crate) dir: &'a Path,
    pub(crate) progress: watch::Sender<u64>,
}

impl Fetching<'_> {
    /// Fetches it, over as many connections as necessary.
    pub(crate) async fn run(&self) -> anyhow::Result<()> {
        let (mut last, mut had) = (Instant::now(), 0);
        loop {
            let Err(error) = self.attempt().await else { return Ok(()) };
            let has = *self.progress.borrow();
            if std::mem::replace(&mut had, has) != has {
                last = Instant::now();
            }
            if last.elapsed() > PATIENCE {
                return Err(error.context("no connection, or only short ones"));
            }
            tracing::info!(error = format!("{error:#}"), "the connection failed or was lost");
            sleep(RETRY).await;
        }
    }

    async fn attempt(&self) -> anyhow::Result<()> {
        let (name, address) = (socket::host(self.to), socket::address(self.to)?);
        let dial =
            connection::dial(Via::Quic, name, address, self.tls, connection::Control::default());
        let mut channel = timeout(PATIENCE, dial).await.context("no answer")??;
        send_line(&mut channel, &Ask { token: self.token.clone() }).await?;
        let offer: Offer =
            receive_line(&mut channel, PATIENCE).await?.context("it sent no offer")?;
        let same = Some(offer.sha256.as_str())
            == self.expected.hash.map(|hash| hash.to_string()).as_deref();
        if !same || offer.name != self.expected.name {
            bail!("it is not the announced file");
        }
        let (told, mut events) = mpsc::channel(8);
        let outcome = {
            let mut fetch = std::pin::pin!(receive_file(&mut channel, self.dir, &offer, &told));
            loop {
                tokio::select! {
                    outcome = &mut fetch => break outcome,
                    Some(event) = events.recv() => {
                        if let Event::Progress { at, .. } = event {
                            self.progress.send_replace(at);
                        }
                    }
                }
            }
        };
        let error = outcome.as_ref().err().map(|error| format!("{error:#}"));
        send_line(&mut channel, &Verdict { done: error.is_none(), error }).await?;
        let _ = timeout(PATIENCE, channel.closed()).await;
        outcome
    }
}
