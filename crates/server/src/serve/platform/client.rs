//! The platform's own MQTT client, inside the process: publishes changes, and receives what receivers and sensors
//! publish, as a consumer does (`crates/part/src/consumer.rs`): a message that the broker has acknowledged to a van
//! or a gateway waits in its session until the platform has stored it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use fulmar_gateway::batch;
use fulmar_platform::{Announcement, Platform, SensorMessage};
use fulmar_transport::Handoff;
use tokio::sync::mpsc;

use super::{PUBLISHER, webhooks};
use fulmar_part::consumer::{Consume, Message, Publications, Session};
use fulmar_part::internal_sessions::InternalSessions;
use fulmar_part::thread::Thread;

/// The filters: frames of meters, and measurements of sensors, with one quantity or several, or in a gateway's batch.
const FILTERS: [&str; 4] =
    ["fulmar/+/receiver/+/frame", "fulmar/+/sensor/+/+", "fulmar/+/sensor/+", "fulmar/+/batch/+"];
/// Bytes of sensors' messages up to which more are taken from what was read: a batch of 2 kB can have a megabyte.
const MAX_TAKEN_BYTES: usize = 1 << 20;
/// Pause before storing is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// Adds the platform's session, so that no message is published before it exists. Without users of the platform no
/// client can publish to it, and there is no such session.
pub(super) fn add_internal_sessions(platform: &Platform, sessions: &mut InternalSessions<'_>) {
    let session = session(platform);
    if platform.has_no_users() {
        sessions.name(&session.client_id);
    } else {
        session.add_to(sessions);
    }
}

fn session(platform: &Platform) -> Session {
    Session {
        listener: "platform",
        client_id: format!("platform-{}", platform.installation()),
        filters: FILTERS.map(str::to_owned).to_vec(),
        linger: Duration::ZERO,
        batch: 0,
    }
}

/// Starts the client on a thread of its own, which also ends when the broker accepts no more connections. Messages that it
/// has not acknowledged by then stay in its session.
pub(super) fn start(
    platform: Platform,
    announcements: mpsc::Receiver<Announcement>,
    handoff: Handoff,
) -> std::io::Result<Thread> {
    Thread::start("fulmar-live", move || run(platform, announcements, handoff))
}

async fn run(platform: Platform, announcements: mpsc::Receiver<Announcement>, handoff: Handoff) {
    // A broker whose operator does not use the platform has no client of its own either.
    platform.users().await;
    let session = session(&platform);
    let mut intake = Intake(platform.clone());
    let mut publications = Publications {
        queue: announcements,
        read: |announcement| (&announcement.topic, &announcement.payload, announcement.retain),
    };
    tokio::select! {
        () = session.run(&handoff, &mut intake, &mut publications) => {}
        () = platform.keep_up() => {}
        () = webhooks::run(&platform) => {}
    }
}

/// Messages to be stored together.
#[derive(Default)]
struct MessagesToStore {
    /// By twin, receiver and user.
    frames: BTreeMap<(String, String, Option<String>), Vec<Vec<u8>>>,
    measured: Vec<SensorMessage>,
    measured_bytes: usize,
}

impl MessagesToStore {
    /// The next of these messages; with many bytes, not all at once. `None` if there are no more.
    fn next<'a>(
        platform: &Platform,
        messages: &mut impl Iterator<Item = &'a Message>,
    ) -> Option<MessagesToStore> {
        let mut taken = MessagesToStore::default();
        taken.add(platform, messages.next()?);
        while taken.measured_bytes < MAX_TAKEN_BYTES
            && let Some(message) = messages.next()
        {
            taken.add(platform, message);
        }
        Some(taken)
    }

    fn add(&mut self, platform: &Platform, message: &Message) {
        let levels: Vec<&str> = message.topic.split('/').collect();
        match levels[..] {
            [_, twin, "receiver", device, _] => {
                let publisher = publisher(platform, message).map(str::to_owned);
                let of = (twin.to_owned(), device.to_owned(), publisher);
                self.frames.entry(of).or_default().push(message.payload.clone());
            }
            [_, twin, "batch", _] => {
                unpacked(twin, message).into_iter().for_each(|message| self.measure(message));
            }
            _ => self.measure(sensor_message(message)),
        }
    }

    fn measure(&mut self, message: SensorMessage) {
        let properties = [&message.at, &message.id].into_iter().flatten();
        self.measured_bytes += size_of::<SensorMessage>()
            + message.topic.len()
            + message.payload.len()
            + properties.map(String::len).sum::<usize>();
        self.measured.push(message);
    }

    /// Stores them, trying until it succeeds.
    async fn store(self, platform: &Platform) {
        for ((twin, device, publisher), payloads) in self.frames {
            let publisher = publisher.as_deref();
            let take = || platform.take_frames(&twin, &device, publisher, &payloads);
            while let Err(error) = take().await {
                tracing::warn!(twin, device, "frames are waiting: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
        if self.measured.is_empty() {
            return;
        }
        // What has no time of its own has this one, however often it is tried.
        let arrived = SystemTime::now();
        while let Err(error) = platform.take_measurements(&self.measured, arrived).await {
            tracing::warn!("measurements are waiting: {error}");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Stores frames and measurements.
struct Intake(Platform);

impl Consume for Intake {
    async fn consume(&mut self, batch: Vec<Message>) -> Result<(), (Vec<Message>, String)> {
        let mut messages = batch.iter();
        while let Some(taken) = MessagesToStore::next(&self.0, &mut messages) {
            taken.store(&self.0).await;
        }
        Ok(())
    }
}

/// The platform's user who published it; `None` for others, and for wills.
fn publisher<'a>(platform: &Platform, message: &'a Message) -> Option<&'a str> {
    let vouchers = message.properties.iter().filter(|(name, _)| name == PUBLISHER);
    let mut known = vouchers
        .filter_map(|(_, voucher)| platform.vouched(voucher, &message.topic, &message.payload));
    known.next()
}

/// A message of a sensor, with the properties that its gateway added.
fn sensor_message(message: &Message) -> SensorMessage {
    SensorMessage {
        topic: message.topic.clone(),
        payload: message.payload.clone(),
        at: message.property("at").map(str::to_owned),
        id: message.property("id").map(str::to_owned),
    }
}

/// The messages of a gateway's batch. A batch can contain any topic: only messages about sensors of the twin to which
/// its sender may publish are passed on. An invalid batch is passed on unchanged, to be counted.
fn unpacked(twin: &str, message: &Message) -> Vec<SensorMessage> {
    let messages = match batch::decode(&message.payload, message.property(batch::ENCODING)) {
        Ok(messages) => messages,
        Err(error) => {
            tracing::info!(topic = message.topic, "an invalid batch: {error}");
            return vec![sensor_message(message)];
        }
    };
    let prefix = format!("fulmar/{twin}/sensor/");
    let (ours, others): (Vec<_>, Vec<_>) =
        messages.into_iter().partition(|message| message.topic.starts_with(&prefix));
    if !others.is_empty() {
        tracing::info!(
            topic = message.topic,
            refused = others.len(),
            "a batch about something else"
        );
    }
    let sensor_message = |message: batch::Message| SensorMessage {
        topic: message.topic,
        payload: message.payload,
        at: Some(message.at),
        id: Some(message.id),
    };
    ours.into_iter().map(sensor_message).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use fulmar_platform::Settings;

    use super::*;

    /// Messages of a batch.
    const LINES: usize = 70;

    /// A small message with a megabyte.
    fn batch(number: u16) -> Message {
        let list = format!("[{}]", vec![r#"{"value":1}"#; 1000].join(","));
        let line = |line: usize| fulmar_gateway::outbox::Stored {
            topic: "fulmar/north/sensor/attic/radon".to_owned(),
            payload: list.clone().into_bytes().into(),
            id: format!("{number}-{line}"),
            at: "2026-11-21T12:00:00Z".to_owned(),
            ..fulmar_gateway::outbox::Stored::default()
        };
        let (payload, _) = batch::encode(&(0..LINES).map(line).collect::<Vec<_>>(), true);
        let properties = vec![(batch::ENCODING.to_owned(), batch::DEFLATE.to_owned())];
        let topic = "fulmar/north/batch/gate".to_owned();
        Message { topic, payload: payload.to_vec(), properties }
    }

    #[tokio::test]
    async fn small_batches_with_much_in_them_are_not_unpacked_all_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let (platform, _announced) = Platform::open(folder.path(), Settings::default()).unwrap();
        let batches: Vec<Message> = (1..=10).map(batch).collect();
        let bytes: usize = batches.iter().map(|batch| batch.payload.len()).sum();
        assert!(bytes < 64 << 10, "{bytes} bytes are read at once");
        let mut messages = batches.iter();
        let parts = std::iter::from_fn(|| MessagesToStore::next(&platform, &mut messages));
        let parts: Vec<usize> = parts.map(|taken| taken.measured.len()).collect();
        assert_eq!(parts.iter().sum::<usize>(), 10 * LINES);
        assert!(parts.iter().all(|messages| *messages <= 2 * LINES), "{parts:?}");
        // Each message is counted, as there is no such twin.
        assert!(Intake(platform.clone()).consume(batches).await.is_ok());
        assert_eq!(platform.counts().messages_malformed, 10 * LINES as u64);
    }
}
