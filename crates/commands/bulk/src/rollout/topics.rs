//! Topics and messages of a roll-out. All are retained, so that the order of arrival does not matter.
//!
//! | topic | from | what |
//! |---|---|---|
//! | `rollout/GROUP/announce` | roll-out | [`Announcement`]: what there is; no keys |
//! | `rollout/GROUP/device/DEVICE/keys` | roll-out | [`Admission`]: a device's turn, with its keys |
//! | `rollout/GROUP/device/DEVICE/status` | device | [`Status`]: how far it is |
//!
//! Access rules ensure that a device can only read its own keys and write its own status; `docs/bulk.md` shows them.

use std::time::Duration;

use anyhow::{Context, bail};
use fulmar_bulk::encryption::ReceiverKeys;
use fulmar_client::{Client, Event, Events, Message, Options, QoS, SubscribeOptions, Trust};
use fulmar_text::hex;
use serde::{Deserialize, Serialize};

use crate::encryption;
use crate::exit::Usage;
use crate::via::TlsArgs;

/// The longest message of a roll-out that is read.
const MAX_BYTES: usize = 4096;
/// Time limit for reaching the broker.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where the broker is and how to get in.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct BrokerArgs {
    /// User name at the broker
    #[arg(short, long, value_name = "NAME", help_heading = "Broker")]
    username: Option<String>,
    /// Password; prefer the environment to the command line, which other users can see
    #[arg(short = 'P', long, value_name = "TEXT", env = "FULMAR_PASSWORD", hide_env_values = true)]
    #[arg(help_heading = "Broker")]
    password: Option<String>,
}

/// The announcement of a roll-out.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Announcement {
    /// Distinguishes roll-outs.
    pub(super) transfer: String,
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) sha256: String,
    /// The destination: a multicast group or a device; for QUIC, the address from which devices fetch it.
    pub(super) to: String,
    #[serde(default)]
    pub(super) via: Carrier,
    pub(super) state: Phase,
}

/// Transport that carries the file.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Carrier {
    /// NORM, to a group or a device
    #[default]
    Norm,
    /// QUIC: each device connects to this machine; for networks that block NORM
    Quic,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Phase {
    Open,
    /// Too many failed.
    Stopped,
    Done,
}

/// A device's turn.
#[derive(Clone, Deserialize, Serialize)]
pub(super) struct Admission {
    pub(super) transfer: String,
    node: u32,
    down: String,
    up: String,
}

impl Admission {
    pub(super) fn new(transfer: &str, keys: &ReceiverKeys) -> Admission {
        let (down, up) = (hex::encode(&keys.down), hex::encode(&keys.up));
        Admission { transfer: transfer.to_owned(), node: keys.node, down, up }
    }

    /// The token with which the device fetches the file over QUIC: only the device knows its key.
    pub(super) fn token(&self) -> String {
        self.up.clone()
    }

    pub(super) fn keys(&self) -> anyhow::Result<ReceiverKeys> {
        let key = |digits: &str| encryption::parse(digits).context("an invalid key");
        if self.node == 0 || self.node == u32::MAX {
            bail!("no identity");
        }
        Ok(ReceiverKeys { node: self.node, down: key(&self.down)?, up: key(&self.up)? })
    }
}

/// The status of a device.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Status {
    pub(super) transfer: String,
    pub(super) state: State,
    #[serde(default)]
    pub(super) received_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// Waiting for its turn.
    Waiting,
    Receiving,
    Done,
    Failed,
}

/// A group's topics.
#[derive(Clone, Debug)]
pub(super) struct Topics(String);

impl Topics {
    pub(super) fn for_group(group: &str) -> anyhow::Result<Topics> {
        check_level(group)?;
        Ok(Topics(format!("rollout/{group}")))
    }

    pub(super) fn announce(&self) -> String {
        format!("{}/announce", self.0)
    }

    pub(super) fn keys(&self, device: &str) -> String {
        format!("{}/device/{device}/keys", self.0)
    }

    pub(super) fn status(&self, device: &str) -> String {
        format!("{}/device/{device}/status", self.0)
    }

    /// The device of a status topic.
    pub(super) fn device<'a>(&self, topic: &'a str) -> Option<&'a str> {
        let device = topic.strip_prefix(&self.0)?.strip_prefix("/device/")?;
        device.strip_suffix("/status").filter(|device| check_level(device).is_ok())
    }
}

/// Checks that a name is valid as a level of a topic.
pub(super) fn check_level(name: &str) -> anyhow::Result<()> {
    if name.is_empty() || name.len() > 128 || name.contains(['/', '+', '#', '\0']) {
        let text = format!("{name:?}: use 1 to 128 characters without / + #");
        return Err(Usage(text).into());
    }
    Ok(())
}

/// A connection to the broker.
pub(super) struct BrokerClient {
    client: Client,
    events: Events,
}

impl BrokerClient {
    /// Connects and subscribes.
    pub(super) async fn open(
        url: &str,
        args: &BrokerArgs,
        tls: &TlsArgs,
        id: &str,
        filters: &[String],
    ) -> anyhow::Result<BrokerClient> {
        let mut options = Options::new(url).map_err(|error| Usage(error.to_string()))?;
        id.clone_into(&mut options.client_id);
        options.username.clone_from(&args.username);
        options.password = args.password.as_ref().map(|password| password.as_bytes().to_vec());
        let (cafile, certificate) = tls.files();
        options.certificate = certificate;
        if let Some(file) = cafile {
            options.trust = Trust::CaFile(file);
        }
        let (client, events) =
            Client::connect(options).map_err(|error| Usage(error.to_string()))?;
        let at_least_once =
            SubscribeOptions { qos: QoS::AtLeastOnce, ..SubscribeOptions::default() };
        let filters: Vec<_> =
            filters.iter().map(|filter| (filter.as_str(), at_least_once)).collect();
        let subscribed = tokio::time::timeout(PATIENCE, client.subscribe(&filters)).await;
        let codes = subscribed.with_context(|| format!("{url} does not answer"))??;
        if codes.iter().any(|code| code.is_error()) {
            bail!("{url} refused the subscription: {codes:?}");
        }
        Ok(BrokerClient { client, events })
    }

    /// The next message of a roll-out: topic and content. An empty message withdraws one.
    pub(super) async fn next(&mut self) -> anyhow::Result<(String, Vec<u8>)> {
        loop {
            match self.events.next().await.context("the connection to the broker is closed")? {
                Event::Message(message) if message.payload.len() <= MAX_BYTES => {
                    return Ok((message.topic, message.payload.to_vec()));
                }
                Event::Disconnected { reason, retry_in: None } => return Err(reason.into()),
                Event::Disconnected { reason, .. } => {
                    tracing::warn!(%reason, "the broker cannot be reached; trying again");
                }
                _ => {}
            }
        }
    }

    /// Publishes a retained message. It is delivered once there is a connection.
    pub(super) async fn publish_json(
        &self,
        topic: String,
        value: &impl Serialize,
    ) -> anyhow::Result<()> {
        self.publish_retained(topic, serde_json::to_vec(value)?).await
    }

    /// Withdraws a message.
    pub(super) async fn clear(&self, topic: String) -> anyhow::Result<()> {
        self.publish_retained(topic, Vec::new()).await
    }

    async fn publish_retained(&self, topic: String, payload: Vec<u8>) -> anyhow::Result<()> {
        // The devices' statuses show whether it was delivered.
        drop(self.client.publish(Message::new(topic, payload).qos1().retain()).await?);
        Ok(())
    }

    /// Ends when all is delivered.
    pub(super) async fn close(self) {
        self.client.disconnect().await;
    }
}
