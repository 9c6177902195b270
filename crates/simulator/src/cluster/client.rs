//! A client: the client library's session machine over connections to whichever node serves.

use std::time::Instant;

use fulmar_client::simulation::Outcome;
use fulmar_client::{Message, QoS, ReasonCode, RetainHandling, SubscribeOptions};

use super::node::Node;
use crate::session::{Session, session_options};
use crate::world::World;

/// Filter of the subscribers.
pub(crate) const FILTER: &str = "t/+";

pub(crate) struct Client {
    name: String,
    session: Session<u64, u64>,
    /// The node to which it is connected, and which of its servers.
    at: Option<(usize, u64)>,
}

impl Client {
    pub(crate) fn new(name: &str, now: Instant) -> Result<Client, String> {
        let mut options = session_options(name)?;
        options.clean_start = true;
        Ok(Client { name: name.to_owned(), session: Session::new(options, now), at: None })
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.session.is_connected()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.session.machine.is_idle()
    }

    fn world<'n>(&self, nodes: &'n mut [Node]) -> Option<&'n mut World> {
        let (node, generation) = self.at?;
        let node = nodes.get_mut(node).filter(|node| node.generation == generation)?;
        // Also one that is paused: the network has what is sent.
        node.server()
    }

    /// Opens a connection to a node; an earlier one ends.
    pub(crate) fn connect(&mut self, nodes: &mut [Node], to: usize, worker: usize, now: Instant) {
        self.cut(nodes, true);
        let Some(node) = nodes.get_mut(to) else { return };
        let generation = node.generation;
        let Some(world) = node.serving() else { return };
        self.session.connect(world, worker, now);
        self.at = Some((to, generation));
    }

    pub(crate) fn publish(&mut self, nodes: &mut [Node], number: u64, qos: QoS, now: Instant) {
        let message = Message::new(format!("t/{}", self.name), number.to_string()).qos(qos);
        self.session.machine.publish(message, number);
        self.flush(nodes, now);
    }

    /// Subscribes, or unsubscribes, as `request`.
    pub(crate) fn subscribe(
        &mut self,
        nodes: &mut [Node],
        request: u64,
        wanted: bool,
        now: Instant,
    ) {
        if wanted {
            let options = SubscribeOptions {
                qos: QoS::ExactlyOnce,
                retain_handling: RetainHandling::Never,
                ..SubscribeOptions::default()
            };
            self.session.machine.subscribe(vec![(FILTER.to_owned(), options)], request);
        } else {
            self.session.machine.unsubscribe(vec![FILTER.to_owned()], request);
        }
        self.flush(nodes, now);
    }

    fn flush(&mut self, nodes: &mut [Node], now: Instant) {
        if let Some(world) = self.world(nodes) {
            self.session.flush(world, now);
        }
    }

    /// Reads one packet. False if there is none.
    pub(crate) fn receive(&mut self, nodes: &mut [Node], now: Instant) -> Result<bool, String> {
        match self.world(nodes) {
            Some(world) => self.session.receive(world, now, &[ReasonCode::SessionTakenOver]),
            None => {
                // That server has ended.
                let was_connected = self.session.is_connected();
                self.session.lost();
                Ok(was_connected)
            }
        }
    }

    pub(crate) fn outcome(&mut self) -> Option<Outcome<u64, u64>> {
        self.session.outcome()
    }

    /// The connection breaks, with what was sent last if `lossy`.
    pub(crate) fn cut(&mut self, nodes: &mut [Node], lossy: bool) {
        match self.world(nodes) {
            Some(world) => self.session.cut(world, lossy),
            None => self.session.lost(),
        }
    }
}
