//! A client: the client library's session machine over connections to whichever node serves.

use std::sync::Arc;
use std::time::Instant;

use fulmar_broker::StreamKey;
use fulmar_client::simulation::{CONTROL, Machine, Outcome};
use fulmar_client::{Error, Message, Options, QoS, ReasonCode, RetainHandling, SubscribeOptions};
use fulmar_mqtt::codec::peek_frame;
use fulmar_simulator::{Input, World};

use crate::node::Node;

/// What subscribers subscribe to.
pub(crate) const FILTER: &str = "t/+";

/// A connection: the node, which of its servers, and the connection there.
type At = (usize, u64, usize);

pub(crate) struct Client {
    name: String,
    machine: Machine<u64, u64>,
    at: Option<At>,
    greeted: bool,
}

impl Client {
    pub(crate) fn new(name: &str, now: Instant) -> Result<Client, String> {
        let mut options = Options::new("mqtt://cluster").map_err(|error| error.to_string())?;
        name.clone_into(&mut options.client_id);
        options.clean_start = true;
        options.session_expiry_s = 86_400;
        options.keep_alive_s = 0;
        let machine = Machine::new(Arc::new(options), now);
        Ok(Client { name: name.to_owned(), machine, at: None, greeted: false })
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.at.is_some()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.machine.is_idle()
    }

    fn world<'n>(&self, nodes: &'n mut [Node]) -> Option<(&'n mut World, usize)> {
        let (node, generation, line) = self.at?;
        let node = nodes.get_mut(node).filter(|node| node.generation == generation)?;
        // Also one that is paused: the network has what is sent.
        node.server().map(|world| (world, line))
    }

    /// Opens a connection to a node; an earlier one ends.
    pub(crate) fn connect(&mut self, nodes: &mut [Node], to: usize, worker: usize, now: Instant) {
        self.cut(nodes, true);
        let Some(node) = nodes.get_mut(to) else { return };
        let generation = node.generation;
        let Some(world) = node.serving() else { return };
        let Some(line) = world.open(worker, false, usize::MAX) else { return };
        self.at = Some((to, generation, line));
        self.machine.connect(now, false, false);
        self.flush(nodes, now);
    }

    pub(crate) fn publish(&mut self, nodes: &mut [Node], number: u64, qos: QoS, now: Instant) {
        let message = Message::new(format!("t/{}", self.name), number.to_string()).qos(qos);
        self.machine.publish(message, number);
        self.flush(nodes, now);
    }

    /// Subscribes, or unsubscribes, as `request`.
    pub(crate) fn subscribe(
        &mut self,
        nodes: &mut [Node],
        (request, wanted): (u64, bool),
        now: Instant,
    ) {
        if wanted {
            let options = SubscribeOptions {
                qos: QoS::ExactlyOnce,
                no_local: false,
                retain_as_published: false,
                retain_handling: RetainHandling::Never,
            };
            self.machine.subscribe(vec![(FILTER.to_owned(), options)], request);
        } else {
            self.machine.unsubscribe(vec![FILTER.to_owned()], request);
        }
        self.flush(nodes, now);
    }

    /// Reads one packet. False if there is none.
    ///
    /// # Errors
    /// The broker did what no broker may.
    pub(crate) fn receive(&mut self, nodes: &mut [Node], now: Instant) -> Result<bool, String> {
        let Some((node, generation, _)) = self.at else { return Ok(false) };
        if nodes.get(node).is_none_or(|node| node.generation != generation || !node.has_server()) {
            // That server has ended.
            self.lost();
            return Ok(true);
        }
        let Some((world, line)) = self.world(nodes) else { return Ok(false) };
        let Some(packet) = world.receive(line, StreamKey::CONTROL) else {
            if !world.is_open(line) {
                self.lost();
            }
            return Ok(false);
        };
        match self.machine.receive(now, CONTROL, &packet) {
            Ok(_) => {
                self.greeted = true;
                self.flush(nodes, now);
            }
            Err(Error::Refused { reason, .. } | Error::Disconnected(reason))
                if reason == ReasonCode::SessionTakenOver =>
            {
                self.cut(nodes, true);
            }
            Err(error) => return Err(format!("{}: {error}", self.name)),
        }
        Ok(true)
    }

    pub(crate) fn outcome(&mut self) -> Option<Outcome<u64, u64>> {
        self.machine.poll_event()
    }

    /// The connection breaks, with what was sent last if `lossy`.
    pub(crate) fn cut(&mut self, nodes: &mut [Node], lossy: bool) {
        let lossy = lossy || !self.greeted;
        if let Some((node, generation, line)) = self.at
            && let Some(node) = nodes.get_mut(node).filter(|node| node.generation == generation)
            && let Some(world) = node.server()
        {
            // A CONNECT that is read after a later one would take the session back.
            world.cut(line, lossy);
        }
        self.lost();
    }

    fn lost(&mut self) {
        self.greeted = false;
        if self.at.take().is_some() {
            self.machine.disconnected();
        }
    }

    fn flush(&mut self, nodes: &mut [Node], now: Instant) {
        let Some((world, line)) = self.world(nodes) else { return };
        loop {
            let out = self.machine.output(CONTROL).to_vec();
            let mut rest = &*out;
            while let Ok(Some(frame)) = peek_frame(rest, usize::MAX) {
                world.say(line, StreamKey::CONTROL, Input::Bytes(rest[..frame.len].to_vec()));
                rest = &rest[frame.len..];
            }
            if out.is_empty() {
                return;
            }
            self.machine.sent(CONTROL, out.len(), now);
        }
    }
}
