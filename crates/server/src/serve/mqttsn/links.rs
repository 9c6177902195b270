//! All devices' links into the broker: opens and closes them in an order in which none takes a session over
//! from one that is just being closed, and brings requests and words to where they belong.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use fulmar_broker::{ListenerPolicy, Peer, TransportKind};
use fulmar_mqtt::{QoS, ReasonCode};
use fulmar_mqttsn::{Answer, Handle, Open, Outgoing, Request, Server, Word};
use fulmar_transport::Handoff;
use tokio::sync::mpsc;

use super::super::udp::Address;
use super::link::{Heard, Link, LinkId};

/// A listener, and the identity that it gives its clients.
pub(super) struct Listener {
    pub(super) bound: SocketAddr,
    pub(super) policy: Arc<ListenerPolicy>,
    pub(super) user: Option<Box<str>>,
}

/// Whose a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Session(Handle),
    /// Those of a listener who publish without a session.
    Unconnected(usize),
}

struct Known {
    /// `None` once it is being closed.
    link: Option<Link>,
    owner: Owner,
    client_id: Box<str>,
}

/// A session that waits until an older link of its client identifier is closed.
struct Parked {
    handle: Handle,
    from: Address,
    open: Open,
}

/// All links.
pub(super) struct Links {
    handoff: Handoff,
    heard: mpsc::Sender<(LinkId, Heard)>,
    listeners: Vec<Listener>,
    max_message_bytes: usize,
    links: BTreeMap<LinkId, Known>,
    open: BTreeMap<Owner, LinkId>,
    parked: Vec<Parked>,
    last_id: LinkId,
    /// Messages at QoS 0 or −1 that the broker did not read in time.
    pub(super) dropped: u64,
}

impl Links {
    pub(super) fn new(
        handoff: Handoff,
        heard: mpsc::Sender<(LinkId, Heard)>,
        listeners: Vec<Listener>,
        max_message_bytes: usize,
    ) -> Links {
        Links {
            handoff,
            heard,
            listeners,
            max_message_bytes,
            links: BTreeMap::new(),
            open: BTreeMap::new(),
            parked: Vec::new(),
            last_id: 0,
            dropped: 0,
        }
    }

    /// Links that are open or being closed.
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// Carries out what a session asks.
    pub(super) fn carry_out(
        &mut self,
        server: &mut Server<Address>,
        handle: Handle,
        from: Address,
        request: Request,
    ) {
        let owner = Owner::Session(handle);
        match request {
            Request::Open(open) => {
                self.close(owner, false, false);
                self.parked.retain(|parked| parked.handle != handle);
                self.parked.push(Parked { handle, from, open });
                self.unpark(server);
            }
            Request::Close { will, forget } => {
                self.parked.retain(|parked| parked.handle != handle);
                self.close(owner, will, forget);
            }
            Request::Publish(message) => {
                let Some(link) = self.link(owner) else { return };
                match message.packet_id {
                    _ if !link.is_full() => link.publish(&message),
                    None => self.dropped += 1,
                    Some(id) => {
                        let answer = match message.qos {
                            QoS::ExactlyOnce => Answer::Pubrec,
                            _ => Answer::Puback,
                        };
                        let word = Word::Answer(answer, id, ReasonCode::ServerBusy);
                        server.hear(Instant::now(), handle, word);
                    }
                }
            }
            request => {
                if let Some(link) = self.link(owner) {
                    link.ask(&request);
                }
            }
        }
    }

    /// Publishes a message of somebody without a session.
    pub(super) fn publish_unconnected(&mut self, from: Address, message: &Outgoing) {
        let owner = Owner::Unconnected(from.listener);
        if self.link(owner).is_none() {
            let Some(listener) = self.listeners.get(from.listener) else { return };
            let address = Address { listener: from.listener, peer: listener.bound };
            let open =
                Open { client_id: Box::default(), clean_start: true, forget: true, will: None };
            if let Err(error) = self.connect(owner, address, open) {
                tracing::warn!(peer = %from, "cannot connect to the broker: {error}");
            }
        }
        match self.link(owner) {
            Some(link) if !link.is_full() => link.publish(message),
            _ => self.dropped += 1,
        }
    }

    /// Takes what came over a link.
    pub(super) fn hear(&mut self, server: &mut Server<Address>, id: LinkId, heard: Heard) {
        let Some(known) = self.links.get(&id) else { return };
        let (owner, closing) = (known.owner, known.link.is_none());
        let word = match heard {
            // What is still said by a link that is being closed is said again by the next.
            Heard::Word(_) if closing => return,
            Heard::Word(word) => Some(word),
            Heard::Gone(reason) => {
                self.links.remove(&id);
                if !closing {
                    self.open.remove(&owner);
                }
                (!closing).then_some(Word::Over(reason))
            }
        };
        match (owner, word) {
            (Owner::Session(handle), Some(word)) => server.hear(Instant::now(), handle, word),
            (Owner::Unconnected(_), Some(Word::Over(reason))) => {
                tracing::warn!(%reason, "the broker refuses clients without a session");
            }
            _ => {}
        }
        self.unpark(server);
    }

    /// Ends all links as at the end of the program: sessions stay, wills are not published.
    pub(super) fn close_all(&mut self) {
        self.parked.clear();
        for owner in self.open.keys().copied().collect::<Vec<_>>() {
            self.close(owner, false, false);
        }
    }

    fn link(&self, owner: Owner) -> Option<&Link> {
        self.links.get(self.open.get(&owner)?)?.link.as_ref()
    }

    fn close(&mut self, owner: Owner, will: bool, forget: bool) {
        let known = self.open.remove(&owner).and_then(|id| self.links.get_mut(&id));
        if let Some(link) = known.and_then(|known| known.link.take()) {
            link.close(will, forget);
        }
    }

    /// Opens what waited for another link to be closed, if it is.
    fn unpark(&mut self, server: &mut Server<Address>) {
        let closing = |client_id: &str| {
            self.links.values().any(|known| known.link.is_none() && *known.client_id == *client_id)
        };
        let (waiting, ready) = std::mem::take(&mut self.parked)
            .into_iter()
            .partition(|parked| closing(&parked.open.client_id));
        self.parked = waiting;
        let ready: Vec<Parked> = ready;
        for Parked { handle, from, open } in ready {
            if let Err(error) = self.connect(Owner::Session(handle), from, open) {
                tracing::warn!(peer = %from, "cannot connect to the broker: {error}");
                let word = Word::Over(ReasonCode::ServerUnavailable);
                server.hear(Instant::now(), handle, word);
            }
        }
    }

    fn connect(&mut self, owner: Owner, from: Address, open: Open) -> std::io::Result<()> {
        let Some(listener) = self.listeners.get(from.listener) else { return Ok(()) };
        let peer = Peer {
            address: from.peer,
            transport: TransportKind::MqttSn,
            identity: listener.user.clone(),
            listener: Arc::clone(&listener.policy),
        };
        self.last_id += 1;
        let id = self.last_id;
        let most = self.max_message_bytes;
        let link = Link::open(&self.handoff, peer, id, &open, most, self.heard.clone())?;
        self.links.insert(id, Known { link: Some(link), owner, client_id: open.client_id });
        self.open.insert(owner, id);
        Ok(())
    }
}
