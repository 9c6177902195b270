//! The gateway's connection upstream: the scheduler and the client's session machine, as `crates/forwarder/src/remote.rs`
//! connects them.

use std::time::Instant;

use fulmar_client::simulation::Outcome;
use fulmar_client::{Error, Message, Version};
use fulmar_gateway::forward::{self, BatchForm, Outgoing};
use fulmar_gateway::mapping::Priority;
use fulmar_gateway::outbox::Page;
use fulmar_gateway::refusals::may_pass;
use fulmar_gateway::uplink_scheduler::{Batching, Publication, UplinkScheduler, Window};

use super::process::{Gateway, NAME};
use super::schedule::Wake;
use super::subscriber::MAY_END;
use crate::session::{Session, session_options};
use crate::world::World;

/// Where batches go.
const BATCHES: BatchForm<'static> =
    BatchForm { name: NAME, topic: "fulmar/rural/batch/gw", compress: true };

/// The connection, and what is sent by it.
pub(crate) struct Uplink {
    pub(crate) session: Session<Publication>,
    scheduler: UplinkScheduler,
    window: Window,
    batching: Option<Batching>,
    reading: Option<(Priority, Page)>,
}

impl Uplink {
    pub(crate) fn new(
        window: Window,
        batching: Option<Batching>,
        version: Version,
        now: Instant,
        now_ms: u64,
    ) -> Result<Uplink, String> {
        let mut options = session_options(NAME)?;
        options.version = version;
        options.bridge = version == Version::V311;
        options.publish_before_connack = true;
        options.clean_start = false;
        let mut scheduler = UplinkScheduler::new(window, batching);
        scheduler.restart(now_ms);
        let session = Session::new(options, now);
        Ok(Uplink { session, scheduler, window, batching, reading: None })
    }

    /// The gateway's process has died.
    pub(crate) fn crash(&mut self, now: Instant, now_ms: u64) {
        self.scheduler = UplinkScheduler::new(self.window, self.batching);
        self.start_client(now, now_ms);
    }

    /// The client has given up, or has got another secret: another one takes its place.
    pub(crate) fn replace(&mut self, gateway: &mut Gateway<'_>, world: &mut World, now: Instant) {
        self.done(gateway);
        self.session.cut(world, false);
        self.start_client(now, gateway.now_ms());
    }

    fn start_client(&mut self, now: Instant, now_ms: u64) {
        self.scheduler.restart(now_ms);
        self.session = self.session.replaced(now);
        self.reading = None;
    }

    /// One turn: reads and sends what it may, then handles one event. Returns whether there was anything to do.
    pub(crate) fn turn(
        &mut self,
        wake: Wake,
        gateway: &mut Gateway<'_>,
        world: &mut World,
        now: Instant,
    ) -> Result<bool, String> {
        let now_ms = gateway.now_ms();
        if self.scheduler.restart_if_due(now_ms) {
            // A page that is being read belongs to the pass that is abandoned.
            self.reading = None;
        }
        let mut busy = self.read_more(gateway);
        busy |= self.send(gateway, world, now);
        Ok(busy
            | match wake {
                Wake::Received => {
                    let received = self.session.receive(world, now, &MAY_END)?;
                    self.done(gateway) || received
                }
                Wake::Loaded => match self.reading.take() {
                    Some((priority, page)) => {
                        self.scheduler.loaded(priority, page);
                        self.scheduler.end_pass_if_read(now_ms);
                        true
                    }
                    None => false,
                },
                Wake::Arrived => {
                    let arrived = std::mem::take(&mut gateway.arrived);
                    arrived.iter().for_each(|priority| self.scheduler.arrived(*priority));
                    !arrived.is_empty()
                }
            })
    }

    fn read_more(&mut self, gateway: &Gateway<'_>) -> bool {
        if self.reading.is_some() {
            return false;
        }
        let Some((priority, after)) = self.scheduler.wants() else { return false };
        self.reading = gateway.read(priority, after).map(|page| (priority, page));
        self.reading.is_some()
    }

    fn send(&mut self, gateway: &mut Gateway<'_>, world: &mut World, now: Instant) -> bool {
        let now_ms = gateway.now_ms();
        let mut busy = false;
        while let Some(publication) = self.scheduler.next(now_ms) {
            let Outgoing { topic, payload, qos, retain, properties } =
                forward::outgoing(&publication, &BATCHES, now_ms);
            let mut message = Message::new(topic, payload).qos(qos);
            (message.retain, message.properties) = (retain, properties);
            self.session.publish(world, message, publication, now);
            busy = true;
        }
        busy
    }

    /// Handles the client's outcomes.
    fn done(&mut self, gateway: &mut Gateway<'_>) -> bool {
        let (mut busy, now_ms) = (false, gateway.now_ms());
        while let Some(outcome) = self.session.outcome() {
            busy = true;
            match outcome {
                Outcome::Published(publication, Ok(_)) => {
                    gateway.remove(publication.messages().iter().map(|message| message.seq));
                    self.scheduler.accepted(&publication, now_ms);
                }
                Outcome::Published(publication, Err(Error::Rejected(reason)))
                    if may_pass(reason) =>
                {
                    self.scheduler.refused(&publication, reason, now_ms);
                }
                Outcome::Published(publication, Err(_)) => {
                    self.scheduler.failed(&publication, now_ms);
                }
                Outcome::Connected { .. } => self.scheduler.look_again(now_ms),
                _ => {}
            }
        }
        busy
    }
}
