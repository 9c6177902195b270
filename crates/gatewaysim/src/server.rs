//! The process upstream: its broker, and the real platform on a disk, with the client between the two as
//! `serve/platform/client.rs` of `crates/server` has it.

use std::sync::Arc;
use std::time::SystemTime;

use fastrand::Rng;
use fulmar_baddisk::{Disk, Survival};
use fulmar_broker::Limits;
use fulmar_gateway::batch;
use fulmar_mqtt::packet::Publish;
use fulmar_mqtt::{PacketId, Property};
use fulmar_platform::{Admin, Database, Monitoring, Platform, SensorMessage, Settings};
use fulmar_simulator::World;
use tokio::runtime::Runtime;

use crate::folder::Folder;
use crate::subscriber::Subscriber;

/// The twin to which all devices belong.
pub(crate) const TWIN: &str = "rural";
const FILTERS: [&str; 3] = ["fulmar/+/sensor/+/+", "fulmar/+/sensor/+", "fulmar/+/batch/+"];
/// Days for which measurements are kept: their times are the simulation's.
const RAW_DAYS: u32 = 36_500;

/// Messages that the platform has received and not acknowledged.
struct Taken {
    line: Option<usize>,
    messages: Vec<SensorMessage>,
    arrived: SystemTime,
    acknowledge: Vec<PacketId>,
    stored: bool,
}

/// The process.
pub(crate) struct Server<'a> {
    pub(crate) world: World,
    folder: &'a Folder,
    runtime: &'a Runtime,
    pub(crate) disk: Arc<Disk>,
    platform: Platform,
    client: Subscriber,
    taken: Option<Taken>,
}

fn settings() -> Settings {
    let monitoring = Monitoring { raw_days: RAW_DAYS, ..Monitoring::default() };
    Settings { monitoring, ..Settings::default() }
}

fn start(folder: &Folder, disk: Disk, rng: &mut Rng) -> Result<(Platform, Arc<Disk>), String> {
    folder.start(disk, rng, |path| {
        // Nobody receives the announcements of changes.
        let opened = Platform::open(path, settings()).map(|(platform, _)| platform);
        opened.map_err(|error| error.to_string())
    })
}

/// A disk with a platform that has a twin and nothing else.
pub(crate) fn blank(folder: &Folder) -> Disk {
    let disk = Arc::new(Disk::default());
    folder.put(&disk);
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
        rng: &mut Rng,
    ) -> Result<Self, String> {
        let (platform, disk) = start(folder, disk, rng)?;
        let world =
            World::new(Arc::new(fulmar_simulator::Disk::default()), workers, Limits::default());
        let client = Subscriber::new("platform", &FILTERS, false);
        Ok(Server { world, folder, runtime, disk, platform, client, taken: None })
    }

    /// The process dies and starts again; of what its disk has not synced, `survival` remains.
    pub(crate) fn crash(
        &mut self,
        survival: Survival,
        workers: usize,
        rng: &mut Rng,
    ) -> Result<(), String> {
        let disk = self.disk.power_failure(survival, rng);
        // The platform's thread ends before the next one starts.
        self.platform.close();
        (self.platform, self.disk) = start(self.folder, disk, rng)?;
        self.world.crash(workers)?;
        (self.client.line, self.taken) = (None, None);
        Ok(())
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.client.line.is_some()
    }

    /// The platform's client connects, when it has done with what it received before.
    pub(crate) fn connect(&mut self, worker: usize) {
        if self.taken.is_none() {
            self.client.connect(&mut self.world, worker);
        }
    }

    pub(crate) fn cut(&mut self, lossy: bool) {
        self.client.cut(&mut self.world, lossy);
    }

    /// The client reads up to `most` packets, and shows the messages in them to `see`. Nothing is read before the
    /// earlier ones are acknowledged.
    pub(crate) fn take(
        &mut self,
        most: usize,
        mut see: impl FnMut(&SensorMessage) -> Result<(), String>,
    ) -> Result<bool, String> {
        if self.taken.is_some() {
            return Ok(false);
        }
        let line = self.client.line;
        let (mut messages, mut acknowledge) = (Vec::new(), Vec::new());
        let mut wrong = Ok(());
        let read = self.client.read(&mut self.world, most, |publish| {
            acknowledge.extend(publish.packet_id);
            let new = sensor_messages(publish);
            let seen = new.and_then(|new| {
                new.iter().try_for_each(&mut see)?;
                messages.extend(new);
                Ok(())
            });
            if let (Ok(()), Err(error)) = (&wrong, seen) {
                wrong = Err(error);
            }
        })?;
        if !acknowledge.is_empty() {
            let arrived = SystemTime::now();
            self.taken = Some(Taken { line, messages, arrived, acknowledge, stored: false });
        }
        wrong.map(|()| read > 0)
    }

    /// The platform stores what was received. False if there is nothing, or if it fails.
    pub(crate) fn store(&mut self) -> bool {
        let Some(taken) = self.taken.as_mut().filter(|taken| !taken.stored) else { return false };
        let stored = self.platform.take_measurements(&taken.messages, taken.arrived);
        taken.stored = self.runtime.block_on(stored).is_ok();
        taken.stored
    }

    /// Acknowledges what was received, if it is stored.
    pub(crate) fn acknowledge(&mut self) -> bool {
        let Some(taken) = self.taken.take_if(|taken| taken.stored) else { return false };
        self.client.acknowledge(&mut self.world, taken.line, &taken.acknowledge);
        true
    }

    /// The disk as it is if the power fails now.
    pub(crate) fn durable(&self) -> Disk {
        self.disk.image(Survival::Nothing, &mut Rng::with_seed(0))
    }

    /// At rest, nothing is left.
    pub(crate) fn check_empty(&self) -> Result<(), String> {
        match self.taken {
            Some(_) => Err("at rest, the platform holds messages".to_owned()),
            None => Ok(()),
        }
    }
}

/// The messages of a publication: itself, or those of a batch.
fn sensor_messages(publish: &Publish<'_>) -> Result<Vec<SensorMessage>, String> {
    let noted = |wanted: &str| {
        publish.properties.iter().find_map(|property| match property {
            Property::UserProperty(name, value) if name == wanted => Some(value.to_owned()),
            _ => None,
        })
    };
    if !publish.topic.contains("/batch/") {
        let (topic, payload) = (publish.topic.to_owned(), publish.payload.to_vec());
        return Ok(vec![SensorMessage { topic, payload, at: noted("at"), id: noted("id") }]);
    }
    let messages = batch::decode(publish.payload, noted(batch::ENCODING).as_deref());
    let message = |message: batch::Message| SensorMessage {
        topic: message.topic,
        payload: message.payload,
        at: Some(message.at),
        id: Some(message.id),
    };
    Ok(messages.map_err(|error| error.to_string())?.into_iter().map(message).collect())
}
