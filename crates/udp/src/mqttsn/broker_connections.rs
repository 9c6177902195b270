//! All devices' connections to the broker: opens and closes them in an order in which none takes a session over
//! from one that is just being closed, and passes requests and events on.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use fulmar_broker::{ListenerPolicy, Peer, TransportKind, User};
use fulmar_mqtt::{QoS, ReasonCode};
use fulmar_mqttsn::{Answer, BrokerEvent, Handle, Open, Publication, Request, Server};
use fulmar_transport::Handoff;
use tokio::sync::mpsc;

use super::broker_connection::{BrokerConnection, ConnectionEvent, ConnectionId};
use crate::udp::Address;

/// A listener, and the identity that it gives its clients.
pub(super) struct Listener {
    pub(super) bound: SocketAddr,
    pub(super) policy: Arc<ListenerPolicy>,
    pub(super) user: Option<User>,
}

/// The owner of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Session(Handle),
    /// All clients of a listener that publish without a session.
    Unconnected(usize),
}

/// A connection that is open or being closed.
struct Entry {
    /// `None` once the connection is being closed.
    connection: Option<BrokerConnection>,
    owner: Owner,
    client_id: Box<str>,
}

/// A session that waits until an older connection of its client identifier is closed.
struct Parked {
    handle: Handle,
    from: Address,
    open: Open,
}

pub(super) struct BrokerConnections {
    handoff: Handoff,
    events: mpsc::Sender<(ConnectionId, ConnectionEvent)>,
    listeners: Vec<Listener>,
    max_message_bytes: usize,
    connections: BTreeMap<ConnectionId, Entry>,
    open: BTreeMap<Owner, ConnectionId>,
    parked: Vec<Parked>,
    last_id: ConnectionId,
    /// Messages at QoS 0 or −1 that the broker did not read in time.
    pub(super) dropped: u64,
}

impl BrokerConnections {
    pub(super) fn new(
        handoff: Handoff,
        events: mpsc::Sender<(ConnectionId, ConnectionEvent)>,
        listeners: Vec<Listener>,
        max_message_bytes: usize,
    ) -> BrokerConnections {
        BrokerConnections {
            handoff,
            events,
            listeners,
            max_message_bytes,
            connections: BTreeMap::new(),
            open: BTreeMap::new(),
            parked: Vec::new(),
            last_id: 0,
            dropped: 0,
        }
    }

    /// Connections that are open or being closed.
    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    /// Carries out a session's request.
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
                let Some(connection) = self.connection(owner) else { return };
                match message.packet_id {
                    _ if !connection.is_full() => connection.publish(&message),
                    None => self.dropped += 1,
                    Some(id) => {
                        let answer = match message.qos {
                            QoS::ExactlyOnce => Answer::Pubrec,
                            _ => Answer::Puback,
                        };
                        let event = BrokerEvent::Answer(answer, id, ReasonCode::ServerBusy);
                        server.on_broker_event(Instant::now(), handle, event);
                    }
                }
            }
            request => {
                if let Some(connection) = self.connection(owner) {
                    connection.send_request(&request);
                }
            }
        }
    }

    /// Publishes a message of a client without a session.
    pub(super) fn publish_unconnected(&mut self, from: Address, message: &Publication) {
        let owner = Owner::Unconnected(from.listener);
        if self.connection(owner).is_none() {
            let Some(listener) = self.listeners.get(from.listener) else { return };
            let address = Address { listener: from.listener, peer: listener.bound, local: None };
            let open =
                Open { client_id: Box::default(), clean_start: true, forget: true, will: None };
            if let Err(error) = self.connect(owner, address, open) {
                tracing::warn!(peer = %from, "cannot connect to the broker: {error}");
            }
        }
        match self.connection(owner) {
            Some(connection) if !connection.is_full() => connection.publish(message),
            _ => self.dropped += 1,
        }
    }

    /// Handles an event of a connection.
    pub(super) fn on_event(
        &mut self,
        server: &mut Server<Address>,
        id: ConnectionId,
        event: ConnectionEvent,
    ) {
        let Some(entry) = self.connections.get(&id) else { return };
        let (owner, closing) = (entry.owner, entry.connection.is_none());
        let event = match event {
            // Messages over a connection that is being closed are repeated over the next one.
            ConnectionEvent::Broker(_) if closing => return,
            ConnectionEvent::Broker(event) => Some(event),
            ConnectionEvent::Ended(reason) => {
                self.connections.remove(&id);
                if !closing {
                    self.open.remove(&owner);
                }
                (!closing).then_some(BrokerEvent::Closed(reason))
            }
        };
        match (owner, event) {
            (Owner::Session(handle), Some(event)) => {
                server.on_broker_event(Instant::now(), handle, event)
            }
            (Owner::Unconnected(_), Some(BrokerEvent::Closed(reason))) => {
                tracing::warn!(%reason, "the broker refuses clients without a session");
            }
            _ => {}
        }
        self.unpark(server);
    }

    /// Closes all connections when the program ends: sessions stay, wills are not published.
    pub(super) fn close_all(&mut self) {
        self.parked.clear();
        for owner in self.open.keys().copied().collect::<Vec<_>>() {
            self.close(owner, false, false);
        }
    }

    fn connection(&self, owner: Owner) -> Option<&BrokerConnection> {
        self.connections.get(self.open.get(&owner)?)?.connection.as_ref()
    }

    fn close(&mut self, owner: Owner, will: bool, forget: bool) {
        let entry = self.open.remove(&owner).and_then(|id| self.connections.get_mut(&id));
        if let Some(connection) = entry.and_then(|entry| entry.connection.take()) {
            connection.close(will, forget);
        }
    }

    /// Opens the connections that waited for another one to be closed, if it is.
    fn unpark(&mut self, server: &mut Server<Address>) {
        let closing = |client_id: &str| {
            self.connections
                .values()
                .any(|entry| entry.connection.is_none() && *entry.client_id == *client_id)
        };
        let (waiting, ready) = std::mem::take(&mut self.parked)
            .into_iter()
            .partition(|parked| closing(&parked.open.client_id));
        self.parked = waiting;
        let ready: Vec<Parked> = ready;
        for Parked { handle, from, open } in ready {
            if let Err(error) = self.connect(Owner::Session(handle), from, open) {
                tracing::warn!(peer = %from, "cannot connect to the broker: {error}");
                let event = BrokerEvent::Closed(ReasonCode::ServerUnavailable);
                server.on_broker_event(Instant::now(), handle, event);
            }
        }
    }

    fn connect(&mut self, owner: Owner, from: Address, open: Open) -> std::io::Result<()> {
        let Some(listener) = self.listeners.get(from.listener) else { return Ok(()) };
        let peer = Peer {
            address: from.peer,
            transport: TransportKind::MqttSn,
            identity: listener.user.clone().map(Into::into),
            listener: Arc::clone(&listener.policy),
        };
        self.last_id += 1;
        let id = self.last_id;
        let most = self.max_message_bytes;
        let connection =
            BrokerConnection::open(&self.handoff, peer, id, &open, most, self.events.clone())?;
        self.connections
            .insert(id, Entry { connection: Some(connection), owner, client_id: open.client_id });
        self.open.insert(owner, id);
        Ok(())
    }
}
