//! `fulmar receive --announced`: a device waits for its turn in a roll-out, receives, verifies, installs, and reports
//! the result.
//!
//! The file's SHA-256 comes from the broker, so that other participants of the transfer cannot substitute another
//! file.

use std::fs::File;
use std::path::Path;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::sync::watch;

use super::topics::{
    Admission, Announcement, BrokerArgs, BrokerClient, Carrier, Phase, State, Status, Topics,
    check_level,
};
use crate::encryption;
use crate::exit::Usage;
use crate::file_to_send;
use crate::manifest::{Hash, Manifest, check_name};
use crate::receive::{self, Job};
use crate::via::{Fetching, TlsArgs};
use crate::wait::interrupted;

/// The interval of progress reports.
const TELL: Duration = Duration::from_secs(1);
/// The most characters of a reported reason.
const MAX_REASON: usize = 300;

/// The options for it.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Announced {
    /// Broker that announces roll-outs: receive files from `fulmar rollout` when it is this device's turn
    #[arg(long = "announced", value_name = "URL", requires_all = ["group", "device"])]
    #[arg(conflicts_with_all = ["key", "via"], help_heading = "Roll-out")]
    pub(crate) url: Option<String>,
    /// Name of the group of devices
    #[arg(long, value_name = "NAME", requires = "url", help_heading = "Roll-out")]
    group: Option<String>,
    /// Name of this device, which is also its client identifier
    #[arg(long, value_name = "NAME", requires = "url", help_heading = "Roll-out")]
    device: Option<String>,
    /// Program that installs the file; its argument is the path, and exit codes other than 0 mean failure
    #[arg(long, value_name = "PROGRAM", requires = "url", help_heading = "Roll-out")]
    install: Option<std::path::PathBuf>,
    #[command(flatten)]
    access: BrokerArgs,
}

struct Device<'a> {
    announced: &'a Announced,
    receive: &'a receive::Args,
    tls: &'a TlsArgs,
    name: &'a str,
    topics: Topics,
    broker_client: BrokerClient,
    announcement: Option<Announcement>,
    admission: Option<Admission>,
    /// The roll-out that this device has finished, successfully or not.
    over: Option<String>,
}

/// Takes part in roll-outs until there were `count` of them, or a signal arrives.
pub(crate) async fn receive(
    receive: &receive::Args,
    announced: &Announced,
    tls: &TlsArgs,
    count: Option<u64>,
) -> anyhow::Result<()> {
    let given = (&announced.url, &announced.group, &announced.device);
    let (Some(url), Some(group), Some(name)) = given else {
        return Err(Usage("--announced needs --group and --device".into()).into());
    };
    check_level(name)?;
    let topics = Topics::for_group(group)?;
    let filters = [topics.announce(), topics.keys(name)];
    let broker_client = BrokerClient::open(url, &announced.access, tls, name, &filters).await?;
    let mut device = Device {
        announced,
        receive,
        tls,
        name,
        topics,
        broker_client,
        announcement: None,
        admission: None,
        over: None,
    };
    let outcome = tokio::select! {
        // First, because an interrupted roll-out has not failed.
        biased;
        outcome = interrupted() => outcome,
        outcome = device.run(count) => outcome,
    };
    device.broker_client.close().await;
    outcome
}

impl Device<'_> {
    async fn run(&mut self, count: Option<u64>) -> anyhow::Result<()> {
        let (mut times, mut failed) = (0, 0);
        while count.is_none_or(|count| times < count) {
            let (topic, payload) = self.broker_client.next().await?;
            if let Err(error) = self.handle_message(&topic, &payload).await {
                tracing::warn!(topic, error = format!("{error:#}"), "a message was not understood");
                continue;
            }
            if let Some((announcement, admission)) = self.turn() {
                times += 1;
                failed += u64::from(!self.serve(&announcement, &admission).await?);
            }
        }
        if failed > 0 {
            bail!("{failed} of {times} roll-outs failed here");
        }
        Ok(())
    }

    async fn handle_message(&mut self, topic: &str, payload: &[u8]) -> anyhow::Result<()> {
        if topic == self.topics.keys(self.name) {
            self.admission =
                if payload.is_empty() { None } else { Some(serde_json::from_slice(payload)?) };
            return Ok(());
        }
        let announcement: Announcement = serde_json::from_slice(payload)?;
        check_name(&announcement.name).map_err(anyhow::Error::msg)?;
        expected(&announcement)?;
        let known = self.announcement.as_ref().map(|known| &known.transfer);
        let new = known != Some(&announcement.transfer);
        if new && announcement.state == Phase::Open {
            self.report_status(&announcement.transfer, State::Waiting, 0, None).await?;
        }
        self.announcement = Some(announcement);
        Ok(())
    }

    /// The open roll-out that admits this device, unless it is finished.
    fn turn(&self) -> Option<(Announcement, Admission)> {
        let (announcement, admission) = (self.announcement.clone()?, self.admission.clone()?);
        let now = announcement.transfer == admission.transfer
            && announcement.state == Phase::Open
            && self.over.as_ref() != Some(&announcement.transfer);
        now.then_some((announcement, admission))
    }

    async fn report_status(
        &self,
        transfer: &str,
        state: State,
        received_bytes: u64,
        reason: Option<String>,
    ) -> anyhow::Result<()> {
        let reason = reason.map(|reason| reason.chars().take(MAX_REASON).collect());
        let status = Status { transfer: transfer.to_owned(), state, received_bytes, reason };
        self.broker_client.publish_json(self.topics.status(self.name), &status).await
    }

    /// Receives and installs the file. Returns whether that succeeded.
    async fn serve(
        &mut self,
        announcement: &Announcement,
        admission: &Admission,
    ) -> anyhow::Result<bool> {
        let transfer = &announcement.transfer;
        self.report_status(transfer, State::Receiving, 0, None).await?;
        let outcome = match self.fetch(announcement, admission).await {
            Ok(()) => self.install(announcement).await,
            Err(error) => Err(error),
        };
        self.over = Some(transfer.clone());
        let good = outcome.is_ok();
        match outcome {
            Ok(()) => self.report_status(transfer, State::Done, announcement.bytes, None).await?,
            Err(error) => {
                let reason = format!("{error:#}");
                tracing::warn!(file = announcement.name, reason, "the roll-out failed here");
                self.report_status(transfer, State::Failed, 0, Some(reason)).await?;
            }
        }
        Ok(good)
    }

    async fn fetch(
        &mut self,
        announcement: &Announcement,
        admission: &Admission,
    ) -> anyhow::Result<()> {
        let expected = expected(announcement)?;
        let path = self.receive.dir().join(&announcement.name);
        if is_there(&path, &expected) {
            return Ok(());
        }
        let (progress, watched) = watch::channel(0);
        let (receive, tls) = (self.receive, self.tls);
        let mut receiving: Pin<Box<dyn Future<Output = anyhow::Result<()>> + '_>> =
            match announcement.via {
                Carrier::Norm => {
                    let (from, keys) = (Some(announcement.to.clone()), Some(admission.keys()?));
                    let (expected, progress) = (Some(expected), Some(progress));
                    Box::pin(receive::receive(receive, Job { from, keys, expected, progress }))
                }
                Carrier::Quic => Box::pin(async move {
                    let (to, token) = (announcement.to.as_str(), admission.token());
                    let (expected, dir) = (&expected, receive.dir());
                    Fetching { to, tls, token, expected, dir, progress }.run().await
                }),
            };
        let mut tell = tokio::time::interval(TELL);
        loop {
            tokio::select! {
                outcome = &mut receiving => return outcome,
                _ = tell.tick() => {
                    let received = *watched.borrow();
                    self.report_status(&announcement.transfer, State::Receiving, received, None).await?;
                }
                message = self.broker_client.next() => {
                    let (topic, payload) = message?;
                    if let Err(error) = self.handle_message(&topic, &payload).await {
                        tracing::warn!(topic, error = format!("{error:#}"), "not understood");
                    }
                    if self.turn().is_none_or(|(now, _)| now.transfer != announcement.transfer) {
                        bail!("the roll-out ended before the file was complete");
                    }
                }
            }
        }
    }

    async fn install(&self, announcement: &Announcement) -> anyhow::Result<()> {
        let Some(program) = &self.announced.install else { return Ok(()) };
        let path = self.receive.dir().join(&announcement.name);
        let mut command = Command::new(program);
        command.arg(&path).stdin(Stdio::null());
        let mut installing = tokio::task::spawn_blocking(move || command.status());
        let mut tell = tokio::time::interval(TELL);
        let status = loop {
            tokio::select! {
                status = &mut installing => break status?,
                // That may take longer than a silent device is waited for.
                _ = tell.tick() => {
                    let all = announcement.bytes;
                    self.report_status(&announcement.transfer, State::Receiving, all, None).await?;
                }
            }
        };
        let status = status.with_context(|| program.display().to_string())?;
        if !status.success() {
            bail!("{}: {status}", program.display());
        }
        Ok(())
    }
}

fn expected(announcement: &Announcement) -> anyhow::Result<Manifest> {
    let hash = encryption::parse(&announcement.sha256).context("no SHA-256")?;
    Ok(Manifest { name: announcement.name.clone(), hash: Some(Hash(hash)) })
}

/// Whether the file exists already, from an earlier attempt.
fn is_there(path: &Path, expected: &Manifest) -> bool {
    let hash = File::open(path).and_then(|file| file_to_send::hash(&file));
    hash.is_ok_and(|(_, hash)| Some(hash) == expected.hash)
}
