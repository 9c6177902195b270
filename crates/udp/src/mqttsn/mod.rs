//! The `mqtt_sn` listeners: sockets and time around `fulmar_mqttsn::Server`, on a thread of their own;
//! `broker_connections` gives every device a session of the broker.
//!
//! Everything is one task: a datagram, an event from the broker, or a deadline is handled to its end before
//! the next.

mod broker_connection;
mod broker_connections;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmar_broker::{Broker, LogLimiter, User};
use fulmar_certs::random_number;
use fulmar_mqttsn::{Event, Message, Request, Server, Trust};
use fulmar_text::metrics::Metrics;
use fulmar_transport::Clock;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use self::broker_connection::{ConnectionEvent, ConnectionId};
use self::broker_connections::{BrokerConnections, Listener};
use crate::udp::{self, Address, Udp};
use fulmar_config::Config;
use fulmar_part::thread::{Thread, runtime};
use fulmar_part::where_to_change;
use fulmar_part::{Core, Opening, Part, Source};

/// Events from the broker that wait for the task.
const MAX_WAITING_EVENTS: usize = 1024;
/// Time for the broker to read the last packets when the program stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Counters for `/metrics`.
#[derive(Clone, Copy, Debug, Default)]
struct Statistics {
    server: fulmar_mqttsn::Statistics,
    clients: usize,
    /// Messages without acknowledgement that the broker did not read in time.
    overrun: u64,
}

impl Statistics {
    fn report(&self, to: &mut Metrics) {
        to.gauge("mqtt_sn_clients", "MQTT-SN clients with a session", self.clients);
        let server = &self.server;
        for (name, help, value) in [
            ("received", "Messages MQTT-SN clients published", server.received),
            ("sent", "Messages sent to MQTT-SN clients", server.sent),
            ("repeated", "Times a client had not answered in time", server.repeated),
            (
                "dropped",
                "Messages for MQTT-SN clients dropped for lack of room, or rejected by them",
                server.dropped,
            ),
            ("overrun", "QoS 0 messages for which the broker had no room", self.overrun),
            ("refused", "MQTT-SN clients refused a session", server.refused),
            ("malformed", "Datagrams that were not MQTT-SN", server.malformed),
            ("ignored", "Messages received in a state that does not allow them", server.ignored),
        ] {
            to.counter(&format!("mqtt_sn_{name}_total"), help, value);
        }
    }
}

/// The listeners. When they end, devices get DISCONNECT, and the broker keeps their sessions.
struct MqttSn {
    bound: Vec<SocketAddr>,
    statistics: Arc<Mutex<Statistics>>,
    /// `None` without an address.
    thread: Option<Thread>,
}

/// The listeners, if there is an address for them.
pub fn open(opening: &mut Opening<'_>) -> Option<Box<dyn Part>> {
    let (bound, statistics) = (Vec::new(), Arc::default());
    let mqtt_sn = MqttSn { bound, statistics, thread: None };
    (!opening.config.listeners.mqtt_sn.is_empty()).then(|| Box::new(mqtt_sn) as _)
}

impl Part for MqttSn {
    fn go_live(&mut self, core: &Core) -> anyhow::Result<()> {
        let config = &core.config;
        let runtime = runtime()?;
        let (sockets, listeners) = {
            let _entered = runtime.enter();
            bind(config)?
        };
        self.bound = listeners.iter().map(|listener| listener.bound).collect();
        if sockets.is_empty() {
            return Ok(());
        }
        let settings = config.mqtt_sn.settings(config.limits.max_client_id_bytes);
        let most = settings.max_message_bytes;
        let server = Server::new(settings, random_number()?, Instant::now());
        let (sender, events) = mpsc::channel(MAX_WAITING_EVENTS);
        let connections = BrokerConnections::new(core.handoff.clone(), sender, listeners, most);
        let service = Service {
            server,
            connections,
            sockets,
            advertising: Advertising::new(config),
            statistics: Arc::clone(&self.statistics),
            broker: Arc::clone(&core.broker),
            clock: core.clock,
            banned_log: LogLimiter::default(),
        };
        let run = move |stopped| service.run(events, stopped);
        self.thread = Some(Thread::until_done("fulmar-mqtt-sn", runtime, run)?);
        Ok(())
    }

    fn bound(&self) -> Vec<(&'static str, SocketAddr)> {
        self.bound.iter().map(|address| ("mqtt_sn", *address)).collect()
    }

    fn metrics(&self) -> Option<Source> {
        self.thread.as_ref()?;
        let statistics = Arc::clone(&self.statistics);
        Some(Arc::new(move |to| statistics.lock().report(to)))
    }

    fn stop_accepting(&mut self) {
        drop(self.thread.take());
    }
}

/// Binds the configured addresses. Needs the runtime.
fn bind(config: &Config) -> anyhow::Result<(Vec<Arc<Udp>>, Vec<Listener>)> {
    let (mut sockets, mut listeners) = (Vec::new(), Vec::new());
    let name = "mqtt_sn";
    for &address in &config.listeners.mqtt_sn {
        if !config.mqtt_sn.serves(config.auth.allow_anonymous, address) {
            // Only a loopback default gets here: no client could use it.
            tracing::info!("{name} is off at {address}: anonymous clients are not allowed");
            continue;
        }
        let opened = Udp::open(address).and_then(|socket| {
            if !config.mqtt_sn.advertise.is_empty() {
                socket.set_broadcast()?;
            }
            Ok(socket)
        });
        let socket = opened.map_err(|error: io::Error| {
            anyhow::Error::new(error)
                .context(format!("cannot listen on {address}"))
                .context(where_to_change(name))
        })?;
        let user = &*config.mqtt_sn.user;
        let user = (!user.is_empty()).then(|| User::named(user)).transpose()?;
        let bound = socket.bound();
        listeners.push(Listener { bound, policy: config.policy(name, address), user });
        sockets.push(Arc::new(socket));
    }
    Ok((sockets, listeners))
}

/// ADVERTISE, sent periodically (section 6.1 of the specification).
struct Advertising {
    to: Vec<SocketAddr>,
    every: Duration,
    datagram: Vec<u8>,
    at: Instant,
}

impl Advertising {
    fn new(config: &Config) -> Option<Advertising> {
        let settings = &config.mqtt_sn;
        let (gateway_id, duration_s) = (settings.gateway_id, settings.advertise_interval_s);
        let datagram = Message::Advertise { gateway_id, duration_s }.encode()?;
        let (to, every) = (settings.advertise.clone(), Duration::from_secs(duration_s.into()));
        (!to.is_empty()).then(|| Advertising { to, every, datagram, at: Instant::now() })
    }
}

/// The task.
struct Service {
    server: Server<Address>,
    connections: BrokerConnections,
    sockets: Vec<Arc<Udp>>,
    advertising: Option<Advertising>,
    statistics: Arc<Mutex<Statistics>>,
    broker: Arc<Broker>,
    clock: Clock,
    banned_log: LogLimiter,
}

impl Service {
    async fn run(
        mut self,
        mut events: mpsc::Receiver<(ConnectionId, ConnectionEvent)>,
        mut stopped: watch::Receiver<bool>,
    ) {
        let (sender, mut datagrams) = mpsc::channel(udp::MAX_WAITING_DATAGRAMS);
        for (listener, socket) in self.sockets.iter().enumerate() {
            tokio::spawn(Arc::clone(socket).receive(listener, sender.clone()));
        }
        loop {
            let advertising = self.advertising.as_ref().map(|advertising| advertising.at);
            let deadline = self.server.deadline().into_iter().chain(advertising).min();
            tokio::select! {
                Some((address, datagram)) = datagrams.recv() => {
                    self.handle_datagram(address, &datagram);
                    // All other waiting datagrams first, before anything is answered: the broker commits them together.
                    udp::take_waiting(&mut datagrams, |address, datagram| self.handle_datagram(address, datagram));
                }
                Some((id, event)) = events.recv() => self.connections.on_event(&mut self.server, id, event),
                () = udp::until(deadline) => {
                    let take = |address, datagram: &[u8]| self.handle_datagram(address, datagram);
                    udp::take_all(&mut datagrams, take).await;
                    self.on_deadline();
                }
                _ = stopped.wait_for(|stop| *stop) => break,
            }
            self.settle();
        }
        self.end(events).await;
    }

    /// Disconnects devices and broker, and gives the broker time to read the last packets.
    async fn end(mut self, mut events: mpsc::Receiver<(ConnectionId, ConnectionEvent)>) {
        self.server.say_goodbye();
        self.connections.close_all();
        self.send();
        let all_closed = async {
            while self.connections.len() > 0
                && let Some((id, event)) = events.recv().await
            {
                self.connections.on_event(&mut self.server, id, event);
            }
        };
        if tokio::time::timeout(CLOSE_TIMEOUT, all_closed).await.is_err() {
            tracing::warn!("MQTT-SN: the broker did not read all queued data");
        }
    }

    fn handle_datagram(&mut self, address: Address, datagram: &[u8]) {
        let trust = if address.is_near() { Trust::Proven } else { Trust::Claimed };
        if let Err(error) = self.server.receive(Instant::now(), address, trust, datagram) {
            let bytes = datagram.len();
            tracing::debug!(peer = %address, bytes, "a datagram that is not MQTT-SN: {error}");
        }
    }

    fn on_deadline(&mut self) {
        let now = Instant::now();
        self.server.on_deadline(now);
        let Some(advertising) = self.advertising.as_mut().filter(|it| it.at <= now) else { return };
        advertising.at = now + advertising.every;
        for to in &advertising.to {
            for socket in &self.sockets {
                // Addresses of the other family are for the other sockets.
                if socket.bound().is_ipv4() == to.is_ipv4() {
                    socket.send(*to, None, &advertising.datagram);
                }
            }
        }
    }

    /// Handles the resulting events, and sends pending datagrams.
    fn settle(&mut self) {
        while let Some(event) = self.server.poll_event() {
            match event {
                Event::Request { handle, from, request } => {
                    if let Request::Open(open) = &request {
                        tracing::debug!(peer = %from, client = %open.client_id, "MQTT-SN client");
                    }
                    self.connections.carry_out(&mut self.server, handle, from, request);
                }
                Event::Unconnected { from, message } => {
                    if !self.refuses(from) {
                        self.connections.publish_unconnected(from, &message);
                    }
                }
                Event::Ended { from, client_id, why, .. } => {
                    tracing::info!(peer = %from, client = %client_id, "MQTT-SN client gone: {why}");
                }
                Event::Refused { from, why } => {
                    tracing::warn!(peer = %from, "MQTT-SN client refused: {why}");
                }
            }
        }
        // Before a client can know of what is counted.
        let (server, clients) = (self.server.statistics(), self.server.clients());
        *self.statistics.lock() = Statistics { server, clients, overrun: self.connections.dropped };
        self.send();
    }

    /// Whether a ban is about the network of a client without a session, which has no CONNECT at which the broker asks.
    fn refuses(&mut self, from: Address) -> bool {
        let now = self.clock.now();
        let banned = self.broker.is_network_banned(from.peer.ip(), now);
        if banned && let Some(times) = self.banned_log.occurred(now) {
            tracing::info!(peer = %from, times, "MQTT-SN message refused: banned");
        }
        banned
    }

    fn send(&mut self) {
        while let Some((address, datagram)) = self.server.poll_transmit() {
            if let Some(socket) = self.sockets.get(address.listener) {
                socket.send(address.peer, address.local, &datagram);
            }
        }
    }
}
