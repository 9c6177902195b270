//! The platform's own MQTT client, inside the process: publishes changes, and receives what receivers and sensors
//! publish.
//!
//! It connects through the same handoff as clients inside HTTP, so that routing, durability and limits are the
//! broker's. Its session is durable: a message that the broker has acknowledged to a van or a gateway waits in it until
//! the platform has stored it, and only then is it acknowledged here.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use fulmar_gateway::batch;
use fulmar_mqtt::packet::{Connect, Publish, RetainHandling, SubscribeOptions};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS};
use fulmar_platform::{Announcement, Platform, SensorMessage};
use fulmar_transport::Handoff;
use tokio::sync::{mpsc, oneshot};

use super::internal_sessions::InternalSessions;
use super::local_client::{self, LocalReceiver, LocalSender};
use super::publish_hook::PUBLISHER;
use super::webhooks;

/// The filters: frames of meters, and measurements of sensors, with one quantity or several, or in a gateway's batch.
const FILTERS: [&str; 4] =
    ["fulmar/+/receiver/+/frame", "fulmar/+/sensor/+/+", "fulmar/+/sensor/+", "fulmar/+/batch/+"];
/// The options of these subscriptions.
const OPTIONS: SubscribeOptions = SubscribeOptions {
    qos: QoS::AtLeastOnce,
    no_local: false,
    retain_as_published: false,
    // The time of a retained measurement is not known any more.
    retain_handling: RetainHandling::Never,
};
/// Announcements written at once.
const MAX_BATCH: usize = 256;
/// Bytes of sensors' messages up to which more are taken from what was read: a batch of 2 kB can have a megabyte.
const MAX_TAKEN_BYTES: usize = 1 << 20;
/// Pause before connecting or storing is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// Adds the platform's session, so that no message is published before it exists. Without users of the platform no
/// client can publish to it, and there is no such session.
pub(super) fn add_internal_sessions(platform: &Platform, sessions: &mut InternalSessions<'_>) {
    let client_id = client_id(platform);
    if platform.has_no_users() {
        sessions.name(&client_id);
    } else {
        sessions.add(&client_id, &FILTERS, OPTIONS);
    }
}

fn client_id(platform: &Platform) -> String {
    format!("platform-{}", platform.installation())
}

/// The running client; dropping this ends it. Messages that it has not acknowledged stay in its session.
pub(super) struct PlatformClient {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for PlatformClient {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the platform's MQTT client panicked");
        }
    }
}

/// Starts the client on a thread of its own, which also ends when the broker accepts no more connections.
pub(super) fn start(
    platform: Platform,
    announcements: mpsc::Receiver<Announcement>,
    handoff: Handoff,
) -> anyhow::Result<PlatformClient> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (stop, stopped) = oneshot::channel();
    let body = move || {
        runtime.block_on(async {
            tokio::select! {
                () = run(&platform, announcements, &handoff) => {}
                _ = stopped => {}
            }
        });
        // Looking up a webhook's host name cannot be cancelled, and is not waited for.
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name("fulmar-live".into()).spawn(body)?;
    Ok(PlatformClient { stop: Some(stop), thread: Some(thread) })
}

async fn run(platform: &Platform, announcements: mpsc::Receiver<Announcement>, handoff: &Handoff) {
    // A broker whose operator does not use the platform has no client of its own either.
    platform.users().await;
    tokio::select! {
        () = sessions(platform, announcements, handoff) => {}
        () = platform.keep_up() => {}
        () = webhooks::run(platform) => {}
    }
}

/// Runs connections until the broker accepts no more.
async fn sessions(
    platform: &Platform,
    mut announcements: mpsc::Receiver<Announcement>,
    handoff: &Handoff,
) {
    loop {
        let outcome = match connect(platform, handoff) {
            Err(error) if error.kind() == ErrorKind::NotConnected => return,
            Ok((sender, receiver)) => {
                session(platform, &mut announcements, &sender, receiver).await
            }
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => tracing::debug!("the platform's MQTT client was disconnected"),
            Err(error) => tracing::warn!("the platform's MQTT client: {error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Sends CONNECT, followed by SUBSCRIBE.
fn connect(
    platform: &Platform,
    handoff: &Handoff,
) -> std::io::Result<(LocalSender, LocalReceiver)> {
    let client_id = client_id(platform);
    let mut durable = PropertyBuf::new();
    durable.push(Property::SessionExpiryInterval(u32::MAX));
    let connect = Connect {
        clean_start: false,
        client_id: &client_id,
        ..local_client::anonymous_session(durable.as_properties())
    };
    let peer = local_client::internal_peer("platform");
    let (sender, receiver) = local_client::open(handoff, peer, &connect)?;
    sender.subscribe(PacketId::FIRST, FILTERS.map(|filter| (filter, OPTIONS)));
    Ok((sender, receiver))
}

/// Runs one connection until the broker ends it.
async fn session(
    platform: &Platform,
    announcements: &mut mpsc::Receiver<Announcement>,
    sender: &LocalSender,
    mut receiver: LocalReceiver,
) -> std::io::Result<()> {
    let mut is_more = false;
    loop {
        tokio::select! {
            open = input(&mut receiver, is_more) => {
                if !open? {
                    return Ok(());
                }
                is_more = take(platform, &mut receiver).await?;
            }
            Some(first) = announcements.recv() => {
                publish(&first, sender);
                for _ in 1..MAX_BATCH {
                    let Ok(next) = announcements.try_recv() else { break };
                    publish(&next, sender);
                }
            }
        }
        // Whatever the broker sends meanwhile waits in its session.
        sender.written().await;
    }
}

/// Waits for input, unless there is some already.
async fn input(receiver: &mut LocalReceiver, is_more: bool) -> std::io::Result<bool> {
    if is_more { Ok(true) } else { receiver.fill().await }
}

fn publish(what: &Announcement, sender: &LocalSender) {
    sender.publish(&Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: what.retain,
        topic: &what.topic,
        packet_id: None,
        properties: Properties::NONE,
        payload: &what.payload,
    });
}

/// Messages to be stored together, and acknowledged afterwards.
#[derive(Default)]
struct Taken {
    /// By twin, receiver and user.
    frames: BTreeMap<(String, String, Option<String>), Vec<Vec<u8>>>,
    measured: Vec<SensorMessage>,
    measured_bytes: usize,
    acknowledge: Vec<PacketId>,
}

impl Taken {
    fn add(&mut self, platform: &Platform, publish: &Publish<'_>) {
        let levels: Vec<&str> = publish.topic.split('/').collect();
        match levels[..] {
            [_, twin, "receiver", device, _] => {
                let publisher = publisher(platform, publish).map(str::to_owned);
                let of = (twin.to_owned(), device.to_owned(), publisher);
                self.frames.entry(of).or_default().push(publish.payload.to_vec());
            }
            [_, twin, "batch", _] => {
                unpacked(twin, publish).into_iter().for_each(|message| self.measure(message));
            }
            _ => self.measure(sensor_message(publish)),
        }
        self.acknowledge.extend(publish.packet_id);
    }

    fn measure(&mut self, message: SensorMessage) {
        let properties = [&message.at, &message.id].into_iter().flatten();
        self.measured_bytes += size_of::<SensorMessage>()
            + message.topic.len()
            + message.payload.len()
            + properties.map(String::len).sum::<usize>();
        self.measured.push(message);
    }
}

/// Stores messages that have arrived, and then acknowledges them. Returns whether there may be more of them: with many
/// bytes, not all are taken at once.
async fn take(platform: &Platform, receiver: &mut LocalReceiver) -> std::io::Result<bool> {
    let mut taken = Taken::default();
    while taken.measured_bytes < MAX_TAKEN_BYTES
        && let Some(packet) = receiver.next()?
    {
        match packet {
            Packet::Suback(suback) if suback.codes.iter().any(|code| *code >= 0x80) => {
                return Err(std::io::Error::other("its subscription was refused"));
            }
            Packet::Publish(publish) => taken.add(platform, &publish),
            _ => {}
        }
    }
    let is_more = taken.measured_bytes >= MAX_TAKEN_BYTES;
    for ((twin, device, publisher), payloads) in taken.frames {
        let publisher = publisher.as_deref();
        let take = || platform.take_frames(&twin, &device, publisher, &payloads);
        while let Err(error) = take().await {
            tracing::warn!(twin, device, "frames are waiting: {error}");
            tokio::time::sleep(PAUSE).await;
        }
    }
    if !taken.measured.is_empty() {
        // What has no time of its own has this one, however often it is tried.
        let arrived = SystemTime::now();
        while let Err(error) = platform.take_measurements(&taken.measured, arrived).await {
            tracing::warn!("measurements are waiting: {error}");
            tokio::time::sleep(PAUSE).await;
        }
    }
    taken.acknowledge.into_iter().for_each(|packet_id| receiver.acknowledge(packet_id));
    Ok(is_more)
}

/// The platform's user who published it; `None` for others, and for wills.
fn publisher<'a>(platform: &Platform, publish: &Publish<'a>) -> Option<&'a str> {
    publish.properties.iter().find_map(|property| match property {
        Property::UserProperty(PUBLISHER, voucher) => {
            platform.vouched(voucher, publish.topic, publish.payload)
        }
        _ => None,
    })
}

/// A message of a sensor, with the properties that its gateway added.
fn sensor_message(publish: &Publish<'_>) -> SensorMessage {
    SensorMessage {
        topic: publish.topic.to_owned(),
        payload: publish.payload.to_vec(),
        at: noted(publish, "at"),
        id: noted(publish, "id"),
    }
}

/// A user property of the message.
fn noted(publish: &Publish<'_>, wanted: &str) -> Option<String> {
    publish.properties.iter().find_map(|property| match property {
        Property::UserProperty(name, value) if name == wanted => Some(value.to_owned()),
        _ => None,
    })
}

/// The messages of a gateway's batch. A batch can contain any topic: only messages about sensors of the twin to which
/// its sender may publish are passed on. An invalid batch is passed on unchanged, to be counted.
fn unpacked(twin: &str, publish: &Publish<'_>) -> Vec<SensorMessage> {
    let encoding = noted(publish, batch::ENCODING);
    let messages = match batch::decode(publish.payload, encoding.as_deref()) {
        Ok(messages) => messages,
        Err(error) => {
            tracing::info!(topic = publish.topic, "an invalid batch: {error}");
            return vec![sensor_message(publish)];
        }
    };
    let prefix = format!("fulmar/{twin}/sensor/");
    let (ours, others): (Vec<_>, Vec<_>) =
        messages.into_iter().partition(|message| message.topic.starts_with(&prefix));
    if !others.is_empty() {
        tracing::info!(
            topic = publish.topic,
            refused = others.len(),
            "a batch about something else"
        );
    }
    let message = |message: batch::Message| SensorMessage {
        topic: message.topic,
        payload: message.payload,
        at: Some(message.at),
        id: Some(message.id),
    };
    ours.into_iter().map(message).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use fulmar_platform::Settings;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::UnixStream;

    use super::*;

    /// Messages of a batch.
    const LINES: usize = 70;

    /// A small packet with a megabyte.
    fn batch(number: u16) -> Vec<u8> {
        let list = format!("[{}]", vec![r#"{"value":1}"#; 1000].join(","));
        let line = |line: usize| fulmar_gateway::outbox::Stored {
            topic: "fulmar/north/sensor/attic/radon".to_owned(),
            payload: list.clone().into_bytes().into(),
            id: format!("{number}-{line}"),
            at: "2026-11-21T12:00:00Z".to_owned(),
            ..fulmar_gateway::outbox::Stored::default()
        };
        let (payload, _) = batch::encode(&(0..LINES).map(line).collect::<Vec<_>>(), true);
        let mut properties = PropertyBuf::new();
        properties.push(Property::UserProperty(batch::ENCODING, batch::DEFLATE));
        let mut packet = Vec::new();
        Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: "fulmar/north/batch/gate",
            packet_id: PacketId::new(number),
            properties: properties.as_properties(),
            payload: &payload,
        }
        .encode(local_client::VERSION, &mut packet);
        packet
    }

    #[tokio::test]
    async fn small_batches_with_much_in_them_are_not_unpacked_all_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let (platform, _announced) = Platform::open(folder.path(), Settings::default()).unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        let (_sender, mut receiver) =
            local_client::over(near, &local_client::anonymous_session(Properties::NONE));
        let packets: Vec<u8> = (1..=10).flat_map(batch).collect();
        assert!(packets.len() < 64 << 10, "{} bytes are read at once", packets.len());
        far.write_all(&packets).await.unwrap();
        assert!(receiver.fill().await.unwrap());

        // Each message is counted, as there is no such twin.
        let (mut most, mut before, mut is_more) = (0, 0, true);
        while is_more {
            is_more = take(&platform, &mut receiver).await.unwrap();
            let now = platform.counts().messages_malformed;
            most = most.max(now - before);
            before = now;
        }
        assert_eq!(platform.counts().messages_malformed, 10 * LINES as u64);
        assert!(most <= 2 * LINES as u64, "{most} messages at once");
    }
}
