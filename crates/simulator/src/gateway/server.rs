//! The process upstream: its broker, and the real platform on a disk, with the client between the two as
//! `serve/platform/client.rs` of `crates/server` has it.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use fastrand::Rng;
use fulmar_broker::Limits;
use fulmar_client::Message;
use fulmar_gateway::batch;
use fulmar_mqtt::Property;
use fulmar_platform::{Admin, Database, Monitoring, Platform, SensorMessage, Settings};
use tokio::runtime::Runtime;

use super::subscriber::Subscriber;
use crate::bad_disk::{Disk, Folder, Survival};
use crate::settings::Settings as BrokerSettings;
use crate::volume::TableVolume;
use crate::world::World;

/// The twin to which all devices belong.
pub(crate) const TWIN: &str = "rural";
const FILTERS: [&str; 3] = ["fulmar/+/sensor/+/+", "fulmar/+/sensor/+", "fulmar/+/batch/+"];
/// Days for which measurements are kept: their times are the simulation's.
const RAW_DAYS: u32 = 36_500;

/// The process.
pub(crate) struct Server<'a> {
    pub(crate) world: World,
    folder: &'a Folder,
    runtime: &'a Runtime,
    pub(crate) disk: Arc<Disk>,
    platform: Platform,
    pub(crate) client: Subscriber,
    /// Messages that the client has received and the platform has not stored.
    received: Vec<SensorMessage>,
}

fn settings() -> Settings {
    let monitoring = Monitoring { raw_days: RAW_DAYS, ..Monitoring::default() };
    Settings { monitoring, ..Settings::default() }
}

fn start(folder: &Folder, disk: Disk, rng: &mut Rng) -> Result<(Platform, Arc<Disk>), String> {
    folder.start(disk, rng, |path, _| {
        // Nobody receives the announcements of changes.
        let opened = Platform::open(path, settings()).map(|(platform, _)| platform);
        opened.map_err(|error| error.to_string())
    })
}

/// A disk with a platform that has a twin and nothing else.
pub(crate) fn blank(folder: &Folder) -> Disk {
    let disk = Arc::new(Disk::default());
    folder.mount(&disk);
    let admin = Admin::open(folder.path(), &Database::File);
    let made = admin.and_then(|admin| admin.add_twin(TWIN, None, true));
    made.unwrap_or_else(|error| panic!("no platform: {error}"));
    disk.image(Survival::Nothing, &mut Rng::with_seed(0))
}

impl<'a> Server<'a> {
    /// A server with the platform on `disk`.
    pub(crate) fn new(
        folder: &'a Folder,
        runtime: &'a Runtime,
        disk: Disk,
        workers: usize,
        now: Instant,
        rng: &mut Rng,
    ) -> Result<Self, String> {
        let (platform, disk) = start(folder, disk, rng)?;
        let settings = BrokerSettings::open(Limits::default(), Vec::new());
        let world = World::new(Arc::new(TableVolume::default()), workers, settings);
        let client = Subscriber::new("platform", &FILTERS, false, now)?;
        Ok(Server { world, folder, runtime, disk, platform, client, received: Vec::new() })
    }

    /// The process dies and starts again; of what its disk has not synced, `survival` remains.
    pub(crate) fn crash(
        &mut self,
        survival: Survival,
        workers: usize,
        now: Instant,
        rng: &mut Rng,
    ) -> Result<(), String> {
        let disk = self.disk.power_failure(survival, rng);
        // The platform's thread ends before the next one starts.
        self.platform.close();
        (self.platform, self.disk) = start(self.folder, disk, rng)?;
        self.world.crash(workers)?;
        self.client = Subscriber::new("platform", &FILTERS, false, now)?;
        self.received.clear();
        Ok(())
    }

    /// The client reads up to `most` packets, and shows the messages in them to `see`.
    pub(crate) fn read_packets(
        &mut self,
        most: usize,
        now: Instant,
        mut see: impl FnMut(&SensorMessage) -> Result<(), String>,
    ) -> Result<bool, String> {
        let (messages, mut wrong) = (&mut self.received, Ok(()));
        let read = self.client.read(&mut self.world, most, now, |message| {
            let new = sensor_messages(message);
            let seen = new.and_then(|new| {
                new.iter().try_for_each(&mut see)?;
                messages.extend(new);
                Ok(())
            });
            if let (Ok(()), Err(error)) = (&wrong, seen) {
                wrong = Err(error);
            }
        })?;
        wrong.map(|()| read)
    }

    /// The platform stores what was received. Returns false if there is nothing, or if it fails.
    pub(crate) fn store(&mut self) -> bool {
        if self.received.is_empty() {
            return false;
        }
        let stored = self.platform.take_measurements(&self.received, SystemTime::now());
        let is_stored = self.runtime.block_on(stored).is_ok();
        if is_stored {
            self.received.clear();
        }
        is_stored
    }

    /// Acknowledges what was received, if it is stored.
    pub(crate) fn acknowledge(&mut self, now: Instant) -> bool {
        self.received.is_empty() && self.client.acknowledge(&mut self.world, now)
    }

    /// The disk as it is if the power fails now.
    pub(crate) fn durable(&self) -> Disk {
        self.disk.image(Survival::Nothing, &mut Rng::with_seed(0))
    }

    /// At rest, nothing is left.
    pub(crate) fn check_empty(&self) -> Result<(), String> {
        match self.client.has_received() {
            true => Err("at rest, the platform holds messages".to_owned()),
            false => Ok(()),
        }
    }
}

/// The messages of a publication: itself, or those of a batch.
fn sensor_messages(message: Message) -> Result<Vec<SensorMessage>, String> {
    let noted = |wanted: &str| {
        message.properties.as_properties().iter().find_map(|property| match property {
            Property::UserProperty(name, value) if name == wanted => Some(value.to_owned()),
            _ => None,
        })
    };
    if !message.topic.contains("/batch/") {
        let (at, id) = (noted("at"), noted("id"));
        let (topic, payload) = (message.topic, message.payload.to_vec());
        return Ok(vec![SensorMessage { topic, payload, at, id }]);
    }
    let messages = batch::decode(&message.payload, noted(batch::ENCODING).as_deref());
    let message = |message: batch::Message| SensorMessage {
        topic: message.topic,
        payload: message.payload,
        at: Some(message.at),
        id: Some(message.id),
    };
    Ok(messages.map_err(|error| error.to_string())?.into_iter().map(message).collect())
}
