//! `fulmar rollout`: sends a file to the devices of a group in stages, by NORM with keys that the broker delivers, or
//! by QUIC.
//!
//! The broker carries small authenticated messages: the announcement, whose turn it is, each device's keys and
//! progress (`topics`). `send` sends the file, once per stage (`stages`), with a secret of that stage. `device` is
//! the other side, `fulmar receive --announced`.

mod device;
mod stages;
mod topics;

pub(super) use device::{Announced, receive};
pub(super) use topics::BrokerArgs;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fulmar_bulk::encryption::Secret;
use fulmar_text::{hex, units};
use serde_json::json;

use super::file_to_send::FileToSend;
use super::send;
use super::show::{SHOW, Show};
use super::socket;
use super::via::{Fountain, TlsArgs};
use super::wait::interrupted;
use stages::Share;
use topics::{Admission, Announcement, BrokerClient, Carrier, Phase, State, Status, Topics};

const EXAMPLES: &str = "\
Examples:
  fulmar rollout fw.bin --broker mqtts://broker --group pumps --to 239.1.2.3 --expect 30
  fulmar rollout fw.bin --broker mqtts://broker --group pumps --to 239.1.2.3 --expect 30 \\
      --stages 1,10%,all --max-failures 5%
  fulmar rollout fw.bin --broker mqtts://broker --group pumps --to depot.example:6003 --via quic

Devices run `fulmar receive --announced mqtts://broker --group pumps --device NAME --dir DIR`. Each
receives its own keys through the broker when it is its turn. Each stage ends when its devices have installed the
file or failed; after too many failures no stage follows, and the exit code is 1.";

/// Roll out a file to a group of devices in stages
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File to roll out
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    /// Broker, as for `fulmar pub`
    #[arg(long, value_name = "URL")]
    broker: String,
    /// Name of the group of devices
    #[arg(long, value_name = "NAME")]
    group: String,
    /// Multicast group of the devices, or one device: HOST or HOST:PORT [default port: 6003]. With --via quic, the
    /// address at which devices reach this machine
    #[arg(long, value_name = "ADDR")]
    pub(super) to: String,
    /// Transport that carries the file
    #[arg(long, value_enum, value_name = "HOW", default_value = "norm")]
    #[arg(conflicts_with_all = ["rate", "adaptive", "interface"])]
    via: Carrier,
    /// Devices to wait for before the first stage; those that come later wait for their stage
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1000))]
    expect: u64,
    /// Devices that have the file after each stage: numbers or percentages
    #[arg(long, value_name = "SHARE,...", value_delimiter = ',', default_value = "1,10%,all")]
    stages: Vec<Share>,
    /// Failures among the devices that had their turn above which no stage follows: a number or a percentage
    #[arg(long, value_name = "SHARE", default_value = "0")]
    max_failures: Share,
    /// Rate at which to send, headers included: 500k, 20M [default: 10M]
    #[arg(long, value_parser = units::parse_rate)]
    pub(super) rate: Option<u64>,
    /// Adapt the rate to the link; --rate, if given, is the maximum
    #[arg(long)]
    pub(super) adaptive: bool,
    /// Seconds to wait for devices to appear, and for progress
    #[arg(long, visible_alias = "timeout", value_name = "SECONDS", default_value_t = 60)]
    pub(super) patience: u64,
    /// Interface to send multicast from: its IPv4 address, or for IPv6 its name
    #[arg(long, value_name = "INTERFACE")]
    pub(super) interface: Option<socket::Interface>,
    #[command(flatten)]
    access: BrokerArgs,
    #[command(flatten)]
    tls: TlsArgs,
    /// Print events as JSON lines on standard output
    #[arg(long)]
    json: bool,
    /// No progress line
    #[arg(short, long)]
    quiet: bool,
}

/// A device as the roll-out sees it.
struct Device {
    state: State,
    received: u64,
    reason: Option<String>,
    admitted: bool,
}

struct Run<'a> {
    args: &'a Args,
    topics: Topics,
    broker_client: BrokerClient,
    announcement: Announcement,
    file: FileToSend,
    /// Serves devices that fetch over QUIC.
    fountain: Option<Fountain>,
    devices: BTreeMap<String, Device>,
    show: Show,
    stage: usize,
    start: Instant,
    /// When a device was last seen to advance.
    advanced: Instant,
}

/// Rolls the file out.
pub(super) async fn run(args: &Args) -> anyhow::Result<()> {
    let topics = Topics::for_group(&args.group)?;
    let file = FileToSend::open(&args.file)?;
    let filters = [topics.status("+")];
    let broker_client =
        BrokerClient::open(&args.broker, &args.access, &args.tls, "", &filters).await?;
    let announcement = Announcement {
        transfer: hex::encode(&fulmar_certs::random::<8>()?),
        name: file.manifest.name.clone(),
        bytes: file.bytes,
        sha256: file.hash.to_string(),
        to: args.to.clone(),
        via: args.via,
        state: Phase::Open,
    };
    let fountain = match args.via {
        Carrier::Norm => None,
        Carrier::Quic => Some(Fountain::open(&args.to, &args.tls).await?),
    };
    let now = Instant::now();
    let mut run = Run {
        args,
        topics,
        broker_client,
        announcement,
        file,
        fountain,
        devices: BTreeMap::new(),
        show: Show::new(args.quiet || args.json),
        stage: 0,
        start: now,
        advanced: now,
    };
    let outcome = tokio::select! {
        outcome = run.run_stages() => outcome,
        outcome = interrupted() => outcome.and(Err(anyhow::anyhow!("interrupted"))),
    };
    let phase = if outcome.is_ok() { Phase::Done } else { Phase::Stopped };
    run.close(phase).await?;
    outcome
}

impl Run<'_> {
    async fn run_stages(&mut self) -> anyhow::Result<()> {
        self.broker_client.publish_json(self.topics.announce(), &self.announcement).await?;
        self.gather().await?;
        for stage in 0..self.args.stages.len() {
            self.stage = stage;
            self.one_stage().await?;
            let failed = self.count(State::Failed);
            let tried = self.devices.values().filter(|device| device.admitted).count();
            if self.args.max_failures.is_exceeded(failed, tried) {
                bail!("{failed} of {tried} devices failed, more than {}", self.args.max_failures);
            }
        }
        Ok(())
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.args.patience)
    }

    /// Waits until the expected number of devices has appeared.
    async fn gather(&mut self) -> anyhow::Result<()> {
        let deadline = tokio::time::Instant::now() + self.patience();
        while (self.devices.len() as u64) < self.args.expect {
            let message = tokio::time::timeout_at(deadline, self.broker_client.next()).await;
            let (devices, expect) = (self.devices.len(), self.args.expect);
            let message =
                message.with_context(|| format!("{devices} of {expect} devices appeared"))?;
            let (topic, payload) = message?;
            self.handle_status(topic, payload);
        }
        Ok(())
    }

    /// The devices of the present stage: those chosen before, and new ones until the stage's share is reached.
    fn choose(&self) -> Vec<String> {
        let target = self.args.stages[self.stage].count_among(self.devices.len());
        let had = |device: &Device| device.admitted || device.state == State::Done;
        let before = self.devices.values().filter(|device| had(device)).count();
        let others = self.devices.iter().filter(|(_, device)| !had(device));
        others.map(|(name, _)| name.clone()).take(target.saturating_sub(before)).collect()
    }

    async fn one_stage(&mut self) -> anyhow::Result<()> {
        let chosen = self.choose();
        self.print_event("stage", json!({ "devices": chosen }));
        if chosen.is_empty() {
            return Ok(());
        }
        let (secret, mut tokens) = (Secret::new(fulmar_certs::random()?), HashSet::new());
        for (index, name) in chosen.iter().enumerate() {
            // A sender's identity is a hash of 32 bits, so it is hardly ever one of these.
            let keys = secret.receiver(index as u32 + 2);
            let admission = Admission::new(&self.announcement.transfer, &keys);
            tokens.insert(admission.token());
            self.broker_client.publish_json(self.topics.keys(name), &admission).await?;
            if let Some(device) = self.devices.get_mut(name) {
                device.admitted = true;
            }
        }
        self.advanced = Instant::now();
        let send_args = send::Args::of_rollout(self.args, chosen.len());
        let file = &self.file.again()?;
        let fountain = self.fountain.take();
        let mut sending: Pin<Box<dyn Future<Output = anyhow::Result<()>> + '_>> = match &fountain {
            None => Box::pin(send::run_with(&send_args, Some(secret))),
            Some(fountain) => Box::pin(async move { match fountain.serve(file, tokens).await? {} }),
        };
        let (mut sent, mut show) = (false, tokio::time::interval(SHOW));
        while chosen.iter().any(|name| !self.is_settled(name)) {
            tokio::select! {
                message = self.broker_client.next() => {
                    let (topic, payload) = message?;
                    self.handle_status(topic, payload);
                }
                outcome = &mut sending, if !sent => {
                    sent = true;
                    if let Err(error) = outcome {
                        tracing::warn!(error = format!("{error:#}"),
                            "not every device has the file");
                    }
                }
                _ = show.tick() => {
                    self.show_progress();
                    if self.advanced.elapsed() > self.patience() {
                        self.give_up(&chosen);
                    }
                }
            }
        }
        // Devices that have failed are not waited for.
        drop(sending);
        self.fountain = fountain;
        for name in &chosen {
            self.broker_client.clear(self.topics.keys(name)).await?;
        }
        self.print_event("staged", json!({}));
        Ok(())
    }

    fn is_settled(&self, name: &str) -> bool {
        let device = self.devices.get(name);
        device.is_none_or(|device| matches!(device.state, State::Done | State::Failed))
    }

    fn give_up(&mut self, chosen: &[String]) {
        for name in chosen.iter().filter(|name| !self.is_settled(name)).cloned().collect::<Vec<_>>()
        {
            let received = self.devices.get(&name).map_or(0, |device| device.received);
            let reason = match self.devices.get(&name).map(|device| device.state) {
                Some(State::Receiving) => {
                    format!("no progress: {received} bytes of the file have reached the device")
                }
                _ => "no answer from the device".to_owned(),
            };
            self.settle(&name, State::Failed, Some(reason));
        }
    }

    /// Handles a device's status.
    fn handle_status(&mut self, topic: String, payload: Vec<u8>) {
        let Some(name) = self.topics.device(&topic).map(str::to_owned) else { return };
        let Ok(status) = serde_json::from_slice::<Status>(&payload) else {
            if !payload.is_empty() {
                tracing::warn!(device = name, "its status cannot be read");
            }
            return;
        };
        // Retained statuses of an earlier roll-out do not count.
        if status.transfer != self.announcement.transfer {
            return;
        }
        let known = self.devices.entry(name.clone()).or_insert(Device {
            state: State::Waiting,
            received: 0,
            reason: None,
            admitted: false,
        });
        let (all, received) = (self.announcement.bytes, status.received_bytes);
        let received = received.min(all);
        // One that has everything installs it, which takes as long as it takes. One that reports the same again and
        // again is not reached by the file.
        if known.state != status.state || known.received != received || received == all {
            self.advanced = Instant::now();
        }
        known.received = received;
        // A device that starts again does not undo its earlier report.
        let settled = matches!(known.state, State::Done | State::Failed);
        if known.state != status.state && !settled {
            self.settle(&name, status.state, status.reason);
        }
    }

    fn settle(&mut self, name: &str, state: State, reason: Option<String>) {
        let Some(device) = self.devices.get_mut(name) else { return };
        (device.state, device.reason) = (state, reason.clone());
        if state == State::Failed {
            let reason = reason.as_deref().unwrap_or("no reason given");
            self.show.print_line(&format!("{name} failed: {reason}"));
        }
        self.print_event("device", json!({ "device": name, "state": state, "reason": reason }));
    }

    fn count(&self, state: State) -> usize {
        self.devices.values().filter(|device| device.state == state).count()
    }

    fn counts(&self) -> serde_json::Value {
        json!({
            "stage": self.stage + 1,
            "stages": self.args.stages.len(),
            "devices": self.devices.len(),
            "done": self.count(State::Done),
            "failed": self.count(State::Failed),
            "receiving": self.count(State::Receiving),
            "waiting": self.count(State::Waiting),
            "seconds": self.start.elapsed().as_secs_f64(),
        })
    }

    fn print_event(&self, event: &str, more: serde_json::Value) {
        if !self.args.json {
            return;
        }
        let mut value = self.counts();
        value["event"] = event.into();
        for (key, item) in more.as_object().into_iter().flatten() {
            value[key] = item.clone();
        }
        println!("{value}");
    }

    fn show_progress(&self) {
        let admitted = self.devices.values().filter(|device| device.admitted);
        let (count, received) =
            admitted.fold((0, 0), |(count, sum), device| (count + 1, sum + device.received));
        let message = format!(
            "stage {} of {}: {} devices, {} done, {} failed, {} receiving, {} waiting",
            self.stage + 1,
            self.args.stages.len(),
            self.devices.len(),
            self.count(State::Done),
            self.count(State::Failed),
            self.count(State::Receiving),
            self.count(State::Waiting),
        );
        self.show.set(received, count * self.announcement.bytes, message);
    }

    /// Reports the result to devices and people.
    async fn close(mut self, phase: Phase) -> anyhow::Result<()> {
        self.announcement.state = phase;
        self.broker_client.publish_json(self.topics.announce(), &self.announcement).await?;
        for (name, _) in self.devices.iter().filter(|(_, device)| device.admitted) {
            self.broker_client.clear(self.topics.keys(name)).await?;
        }
        let (done, failed, all) =
            (self.count(State::Done), self.count(State::Failed), self.devices.len());
        self.print_event("end", json!({ "state": phase }));
        self.show.print_line(&format!("{done} of {all} devices have the file, {failed} failed"));
        self.broker_client.close().await;
        Ok(())
    }
}
