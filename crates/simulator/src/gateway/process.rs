//! The gateway's process: its broker, the session inside the process, and the outbox on a disk; as
//! `serve/gateway/local.rs`, `outbox_thread.rs` and `stamps.rs` of `crates/server` have it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use fastrand::Rng;
use fulmar_broker::{Arrival, Limits, PublishHook};
use fulmar_gateway::forward;
use fulmar_gateway::identity::{MessageIdentity, SentPublication, Stamper};
use fulmar_gateway::mapping::{Direction, Mapping, Priority, Rule};
use fulmar_gateway::outbox::{Bounds, Item, Outbox, Page, Policy};
use fulmar_mirror::{Clocks, Reading};
use fulmar_mqtt::packet::Publish;
use fulmar_mqtt::{PacketId, Properties, QoS};
use parking_lot::Mutex;

use super::subscriber::Subscriber;
use crate::bad_disk::{Disk, Folder, Survival};
use crate::clock::BEGIN;
use crate::settings::Settings;
use crate::volume::TableVolume;
use crate::world::World;

/// The gateway's name.
pub(crate) const NAME: &str = "gw";
/// Messages read from the outbox at once, fewer than the program reads, so that there are several pages.
const READ_MESSAGES: usize = 5;
const READ_BYTES: usize = 128 * 1024;

const BOUNDS: Bounds =
    Bounds { max_bytes: 1 << 20, max_age_ms: None, policy: Policy::Refuse, max_file_bytes: None };

/// State that the session and the publish hook share.
pub(crate) struct Shared {
    up: Mapping,
    stamper: Stamper,
    client_id: String,
    /// The machine's clocks.
    clocks: Arc<Mutex<Reading>>,
}

struct Hook(Arc<Shared>);

impl PublishHook for Hook {
    fn stamp(&self, arrival: &Arrival<'_>) -> Option<Vec<u8>> {
        let Hook(shared) = self;
        if !shared.up.takes(arrival.topic) || arrival.client_id == shared.client_id {
            return None;
        }
        let sent = SentPublication {
            client_id: arrival.client_id,
            packet_id: arrival.packet_id.map(PacketId::get),
            dup: arrival.dup,
            topic: arrival.topic,
            payload: arrival.payload,
        };
        let identity = MessageIdentity::read(Properties::from_forwardable(arrival.properties));
        let stamp =
            shared.stamper.stamp(&identity, &sent, shared.clocks.lock().wall.cast_unsigned());
        Some(stamp.as_properties().raw().to_vec())
    }
}

/// The process.
pub(crate) struct Gateway<'a> {
    pub(crate) world: World,
    folder: &'a Folder,
    pub(crate) disk: Arc<Disk>,
    outbox: Outbox,
    shared: Arc<Shared>,
    pub(crate) local: Subscriber,
    /// Messages that the session has received and the outbox has not.
    received: Vec<Item>,
    /// Most items that are put at once, after a failure.
    most: usize,
    removals: BTreeSet<u64>,
    /// Lanes of which new messages were put since the scheduler last asked.
    pub(crate) arrived: BTreeSet<Priority>,
}

fn mapping() -> Mapping {
    let rule = |filter: &str, priority| Rule {
        filter: filter.to_owned(),
        from_prefix: String::new(),
        to_prefix: "fulmar/rural/".to_owned(),
        qos: QoS::AtLeastOnce,
        priority,
    };
    let rules = vec![rule("sensor/+/co", Priority::Urgent), rule("sensor/#", Priority::Normal)];
    Mapping::new(Direction::Up, rules).unwrap_or_else(|error| panic!("{error:?}"))
}

/// Starts a new process with what it finds.
fn start(
    folder: &Folder,
    disk: Disk,
    clocks: Arc<Mutex<Reading>>,
    now: Instant,
    rng: &mut Rng,
) -> Result<(Outbox, Arc<Shared>, Subscriber, Arc<Disk>), String> {
    let random = rng.u64(..);
    let read = Arc::clone(&clocks);
    let outbox_clocks = Clocks::new(move || *read.lock());
    let open = |path: &std::path::Path| {
        let mut outbox = Outbox::open(&path.join("outbox.db"), BOUNDS)?;
        outbox.keep_clock(&outbox_clocks)?;
        let client_id = outbox.meta("client", || format!("gateway-{random:016x}"))?;
        Ok((outbox, client_id))
    };
    let open = |path: &std::path::Path, _: &Disk| {
        open(path).map_err(|e: fulmar_gateway::Error| e.to_string())
    };
    let life = rng.u64(..);
    let ((outbox, client_id), disk) = folder.start(disk, rng, open)?;
    let up = mapping();
    let filters: Vec<&str> = up.rules().iter().map(|rule| rule.filter.as_str()).collect();
    let local = Subscriber::new(&client_id, &filters, true, now)?;
    let stamper = Stamper::new(NAME, life);
    Ok((outbox, Arc::new(Shared { up, stamper, client_id, clocks }), local, disk))
}

impl<'a> Gateway<'a> {
    /// A gateway with an empty outbox.
    pub(crate) fn new(
        folder: &'a Folder,
        workers: usize,
        now: Instant,
        rng: &mut Rng,
    ) -> Result<Self, String> {
        let clocks = Arc::new(Mutex::new(BEGIN));
        let (outbox, shared, local, disk) = start(folder, Disk::default(), clocks, now, rng)?;
        let settings = Settings::open(Limits::default(), Vec::new());
        let world = World::new(Arc::new(TableVolume::default()), workers, settings);
        world.broker().set_publish_hook(Arc::new(Hook(Arc::clone(&shared))));
        Ok(Gateway {
            world,
            folder,
            disk,
            outbox,
            shared,
            local,
            received: Vec::new(),
            most: usize::MAX,
            removals: BTreeSet::new(),
            arrived: BTreeSet::new(),
        })
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
        self.world.crash(workers)?;
        self.see_clocks();
        let clocks = Arc::clone(&self.shared.clocks);
        let (outbox, shared, local, disk) = start(self.folder, disk, clocks, now, rng)?;
        (self.outbox, self.shared, self.local, self.disk) = (outbox, shared, local, disk);
        self.world.broker().set_publish_hook(Arc::new(Hook(Arc::clone(&self.shared))));
        (self.received, self.most) = (Vec::new(), usize::MAX);
        self.removals.clear();
        self.arrived.clear();
        Ok(())
    }

    /// The process' time.
    pub(crate) fn now_ms(&self) -> u64 {
        self.world.now.0
    }

    /// The clocks of its world have changed.
    pub(crate) fn see_clocks(&self) {
        *self.shared.clocks.lock() = self.world.clocks();
    }

    /// The session reads up to `most` packets.
    pub(crate) fn read_packets(&mut self, most: usize, now: Instant) -> Result<bool, String> {
        let (shared, now_ms) = (Arc::clone(&self.shared), self.now_ms());
        let wall_ms = self.world.clocks().wall.cast_unsigned();
        let (received, mut wrong) = (&mut self.received, None);
        let read = self.local.read(&mut self.world, most, now, |message| {
            let publish = Publish {
                dup: message.dup,
                qos: message.qos,
                retain: message.retain,
                topic: &message.topic,
                packet_id: None,
                properties: message.properties.as_properties(),
                payload: &message.payload,
            };
            match forward::item(&publish, &shared.up, NAME, &shared.stamper, now_ms, wall_ms) {
                Ok(item) => received.push(item),
                Err(error) => {
                    wrong = Some(format!("{} is not forwarded: {error:?}", publish.topic))
                }
            }
        })?;
        wrong.map_or(Ok(read), Err)
    }

    /// Puts up to `most` of the received messages into the outbox; the same ones again after a failure.
    pub(crate) fn fill_outbox(&mut self, most: usize) -> bool {
        if self.received.is_empty() {
            return false;
        }
        let tried = most.min(self.most).clamp(1, self.received.len());
        let (items, removals) = (&self.received[..tried], Vec::from_iter(self.removals.clone()));
        match self.outbox.store_and_remove(items, &removals, self.world.now.0) {
            Ok(put) => {
                self.removals.clear();
                self.received.drain(..tried);
                self.most = tried.saturating_mul(2);
                let lanes = [Priority::Urgent, Priority::Normal].into_iter().zip(put.taken);
                self.arrived.extend(lanes.filter(|(_, count)| *count > 0).map(|(lane, _)| lane));
                true
            }
            Err(_) => {
                self.most = tried / 2;
                false
            }
        }
    }

    /// Acknowledges what was received, if all of it is in the outbox.
    pub(crate) fn acknowledge(&mut self, now: Instant) -> bool {
        let is_done = self.received.is_empty() && self.local.acknowledge(&mut self.world, now);
        if is_done {
            self.most = usize::MAX;
        }
        is_done
    }

    /// Messages of the outbox, without those about to be removed. `None` if they cannot be read now.
    pub(crate) fn read(&self, priority: Priority, after: u64) -> Option<Page> {
        let mut page = self.outbox.read(priority, after, READ_MESSAGES, READ_BYTES).ok()?;
        page.messages.retain(|message| !self.removals.contains(&message.seq));
        Some(page)
    }

    /// These messages are to be removed, soon.
    pub(crate) fn remove(&mut self, seqs: impl IntoIterator<Item = u64>) {
        self.removals.extend(seqs);
    }

    /// Removes what is to be removed.
    pub(crate) fn write_removals(&mut self) -> bool {
        let removals: Vec<u64> = self.removals.iter().copied().collect();
        if removals.is_empty() || self.outbox.remove(&removals).is_err() {
            return false;
        }
        self.removals.clear();
        true
    }

    pub(crate) fn tidy(&mut self) {
        // An error is reported, and it is tried again later.
        drop(self.outbox.tidy(self.now_ms()));
    }

    /// At rest, nothing is left.
    pub(crate) fn check_empty(&self) -> Result<(), String> {
        let left = self.outbox.totals();
        if left.messages > 0 || left.bytes > 0 || self.local.has_received() {
            return Err(format!("at rest, the outbox holds {left:?}"));
        }
        if left.dropped != fulmar_gateway::outbox::Dropped::default() {
            return Err(format!("the outbox has dropped {:?}", left.dropped));
        }
        Ok(())
    }
}
