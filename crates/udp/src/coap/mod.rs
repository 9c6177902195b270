//! The `coap` and `coaps` listeners: sockets, time and DTLS around `fulmar_coap::Server`, on a thread of
//! their own; `coap_to_mqtt` turns peers' requests into MQTT packets.
//!
//! Everything is one task: a datagram, an event from the broker, or a deadline is handled to its end before
//! the next.

mod broker_connection;
mod coap_to_mqtt;
mod listing;
mod rejections;
mod secure;
mod share;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use fulmar_broker::{ListenerPolicy, Peer, PeerIdentity, TransportKind};
use fulmar_certs::random;
use fulmar_coap::{Server, Trust};
use fulmar_text::network::site;
use tokio::sync::{Notify, mpsc};

use self::broker_connection::{BrokerEvent, InFlight};
use self::coap_to_mqtt::{CoapToMqtt, UserId};
use self::rejections::{Rejections, Statistics};
use self::secure::{Outcome, Secure, Settings};
use crate::udp::{self, Address, Udp};
use fulmar_config::Listeners;
use fulmar_part::thread::{Thread, runtime};
use fulmar_part::where_to_change;
use fulmar_part::{Core, Opening, Part, Source};

/// Events from the broker that wait for the task.
const MAX_WAITING_EVENTS: usize = 256;

impl fulmar_coap::Peer for Address {
    fn bytes(&self) -> Vec<u8> {
        format!("{}/{}", self.listener, self.peer).into_bytes()
    }
}

/// The listeners. When they end, requests that the broker has not answered are lost; peers repeat them.
struct Coap {
    bound: Vec<(&'static str, SocketAddr)>,
    statistics: Arc<Statistics>,
    /// `None` without an address.
    thread: Option<Thread>,
}

/// The listeners, if there is an address for them.
pub fn open(opening: &mut Opening<'_>) -> Option<Box<dyn Part>> {
    let listeners = opening.config.listeners.coap_listeners();
    let wanted = listeners.into_iter().any(|(_, addresses)| !addresses.is_empty());
    let (bound, statistics) = (Vec::new(), Arc::default());
    let coap = Coap { bound, statistics, thread: None };
    wanted.then(|| Box::new(coap) as _)
}

impl Part for Coap {
    /// A default address that is in use is skipped, so that a second broker on this machine still starts.
    fn go_live(&mut self, core: &Core) -> anyhow::Result<()> {
        let runtime = runtime()?;
        let sockets = {
            let _entered = runtime.enter();
            bind(core)?
        };
        self.bound = sockets.iter().map(|socket| (socket.name, socket.bound)).collect();
        if sockets.is_empty() {
            return Ok(());
        }
        let limits = core.config.coap.limits(core.config.memory());
        // As much again as for bodies in transfer.
        let in_flight = InFlight::new(limits.max_buffered_bytes);
        let server = Server::new(limits, &random()?, Instant::now());
        let (sender, events) = mpsc::channel(MAX_WAITING_EVENTS);
        let broker = Arc::clone(&core.broker);
        let bans = Arc::<Notify>::default();
        let changed = Arc::clone(&bans);
        broker.watch_bans(move || changed.notify_one());
        let (handoff, clock) = (core.handoff.clone(), core.clock);
        let coap_to_mqtt = CoapToMqtt::new(server, broker, handoff, clock, sender, in_flight);
        let rejections = Rejections::new(clock, Arc::clone(&self.statistics));
        let service = Service::new(coap_to_mqtt, sockets, rejections, bans);
        let run = move || service.run(events);
        self.thread = Some(Thread::with_runtime("fulmar-coap", runtime, run)?);
        Ok(())
    }

    fn bound(&self) -> Vec<(&'static str, SocketAddr)> {
        self.bound.clone()
    }

    fn metrics(&self) -> Option<Source> {
        self.thread.as_ref()?;
        let statistics = Arc::clone(&self.statistics);
        Some(Arc::new(move |to| statistics.report(to)))
    }

    fn stop_accepting(&mut self) {
        drop(self.thread.take());
    }
}

/// A bound socket.
struct Socket {
    name: &'static str,
    bound: SocketAddr,
    udp: Arc<Udp>,
    policy: Arc<ListenerPolicy>,
    /// State of `coaps`.
    secure: Option<Secure>,
}

/// Binds the configured addresses. Needs the runtime.
fn bind(core: &Core) -> anyhow::Result<Vec<Socket>> {
    let config = &core.config;
    let mut sockets = Vec::new();
    for (name, addresses) in config.listeners.coap_listeners() {
        for &address in addresses {
            let policy = config.policy(name, address);
            if name == "coap" && !policy.allow_anonymous {
                // Only a loopback default gets here: no client could use it.
                tracing::info!("{name} is off at {address}: anonymous clients are not allowed");
                continue;
            }
            let secure = match name {
                "coaps" => match Settings::new(core)? {
                    Some(settings) => {
                        let secure = Secure::new(settings, Instant::now());
                        Some(secure.context("the system random number generator failed")?)
                    }
                    None => {
                        tracing::warn!("coaps is off: it needs a certificate with an ECDSA key");
                        continue;
                    }
                },
                _ => None,
            };
            match Udp::open(address) {
                Ok(udp) => sockets.push(Socket {
                    name,
                    bound: udp.bound(),
                    udp: Arc::new(udp),
                    policy,
                    secure,
                }),
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse
                        && Listeners::is_coap_default(address) =>
                {
                    tracing::warn!("{name} is off: another program has {address}");
                }
                Err(error) => {
                    return Err(anyhow::Error::new(error)
                        .context(format!("cannot listen on {address}"))
                        .context(where_to_change(name)));
                }
            }
        }
    }
    Ok(sockets)
}

/// Whose peers share a connection to the broker: those of a user in one network, because the broker decides by address
/// and logs it, or all peers without credentials at a listener, of whom only what they send is known.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Sharing {
    listener: usize,
    named: Option<(PeerIdentity, IpAddr)>,
}

impl Sharing {
    fn anonymous(listener: usize) -> Sharing {
        Sharing { listener, named: None }
    }
}

/// The task.
struct Service {
    coap_to_mqtt: CoapToMqtt,
    sockets: Vec<Socket>,
    /// Users, and how many sessions each has.
    users: HashMap<Sharing, (UserId, usize)>,
    /// The user of each session.
    sessions: BTreeMap<Address, Sharing>,
    rejections: Rejections,
    /// Notified when bans have changed.
    bans: Arc<Notify>,
}

impl Service {
    fn new(
        coap_to_mqtt: CoapToMqtt,
        sockets: Vec<Socket>,
        rejections: Rejections,
        bans: Arc<Notify>,
    ) -> Service {
        let (users, sessions) = (HashMap::new(), BTreeMap::new());
        let mut service = Service { coap_to_mqtt, sockets, users, sessions, rejections, bans };
        for listener in 0..service.sockets.len() {
            // Never counted down: these users stay.
            let bound = service.sockets[listener].bound;
            service.enter(Sharing::anonymous(listener), bound);
        }
        service
    }

    async fn run(mut self, mut events: mpsc::Receiver<(UserId, BrokerEvent)>) {
        let (sender, mut datagrams) = mpsc::channel(udp::MAX_WAITING_DATAGRAMS);
        for (listener, socket) in self.sockets.iter().enumerate() {
            tokio::spawn(Arc::clone(&socket.udp).receive(listener, sender.clone()));
        }
        loop {
            let sessions =
                self.sockets.iter().filter_map(|socket| socket.secure.as_ref()?.deadline());
            let deadline = sessions.chain(self.coap_to_mqtt.server.deadline()).min();
            tokio::select! {
                Some((address, datagram)) = datagrams.recv() => {
                    self.take(address, &datagram);
                    // All other waiting datagrams first, before anything is answered: the broker commits them together.
                    udp::take_waiting(&mut datagrams, |address, datagram| self.take(address, datagram));
                }
                Some((user, event)) = events.recv() => self.coap_to_mqtt.on_broker_event(user, event),
                () = udp::until(deadline) => {
                    let take = |address, datagram: &[u8]| self.take(address, datagram);
                    udp::take_all(&mut datagrams, take).await;
                    self.on_deadline();
                }
                () = self.bans.notified() => self.enforce_bans(),
            }
            self.settle();
        }
    }

    fn on_deadline(&mut self) {
        let now = Instant::now();
        self.coap_to_mqtt.server.on_deadline(now);
        for listener in 0..self.sockets.len() {
            if let Some(secure) = &mut self.sockets[listener].secure {
                let outcomes = secure.on_deadline(now);
                self.carry_out(outcomes);
            }
        }
    }

    /// Ends what peers of banned networks have: observations, and sessions of DTLS.
    fn enforce_bans(&mut self) {
        self.coap_to_mqtt.end_observations_of_banned();
        self.settle();
        for listener in 0..self.sockets.len() {
            if let Some(secure) = &mut self.sockets[listener].secure {
                let is_banned = |address| self.coap_to_mqtt.is_banned(address);
                let outcomes = secure.close(Instant::now(), is_banned);
                self.carry_out(outcomes);
            }
        }
    }

    /// Handles a datagram from a socket.
    fn take(&mut self, address: Address, datagram: &[u8]) {
        let now = Instant::now();
        let Some(socket) = self.sockets.get_mut(address.listener) else { return };
        if let Some(secure) = &mut socket.secure {
            // Those without DTLS are answered per request.
            if self.coap_to_mqtt.refuses(address) {
                return secure.refuse(address, datagram);
            }
            let outcomes = secure.receive(now, address, datagram);
            return self.carry_out(outcomes);
        }
        let trust = if address.is_near() { Trust::Proven } else { Trust::Claimed };
        self.hand_over(address, trust, datagram);
    }

    fn hand_over(&mut self, address: Address, trust: Trust, datagram: &[u8]) {
        if let Err(why) = self.coap_to_mqtt.server.receive(Instant::now(), address, trust, datagram)
        {
            self.rejections.add(address, datagram.len(), why);
        }
    }

    fn carry_out(&mut self, outcomes: Vec<Outcome>) {
        for outcome in outcomes {
            match outcome {
                Outcome::Opened(address, who) => {
                    tracing::debug!(peer = %address, user = who.as_ref().map(|who| who.user().text()), "coaps session");
                    let named = who.map(|who| (who, site(address.peer.ip())));
                    let sharing = Sharing { listener: address.listener, named };
                    self.enter(sharing.clone(), address.peer);
                    self.sessions.insert(address, sharing);
                }
                Outcome::Message(address, message) => {
                    self.hand_over(address, Trust::Proven, &message);
                }
                Outcome::Closed(address) => {
                    self.coap_to_mqtt.server.forget(address);
                    self.leave(address);
                }
            }
        }
    }

    fn enter(&mut self, sharing: Sharing, peer: SocketAddr) {
        let Some(socket) = self.sockets.get(sharing.listener) else { return };
        let known = self.users.entry(sharing.clone()).or_insert_with(|| {
            let secure = socket.secure.is_some();
            let transport = if secure { TransportKind::Coaps } else { TransportKind::Coap };
            let (identity, address) = match sharing.named {
                Some((identity, _)) => (Some(identity), peer),
                None => (None, socket.bound),
            };
            let listener = Arc::clone(&socket.policy);
            (self.coap_to_mqtt.add_user(Peer { address, transport, identity, listener }), 0)
        });
        known.1 += 1;
    }

    fn leave(&mut self, address: Address) {
        let Some(sharing) = self.sessions.remove(&address) else { return };
        let Some(known) = self.users.get_mut(&sharing) else { return };
        known.1 -= 1;
        if known.1 == 0 {
            let user = known.0;
            self.users.remove(&sharing);
            self.coap_to_mqtt.remove_user(user);
        }
    }

    /// Handles the resulting events, and sends pending datagrams.
    fn settle(&mut self) {
        let (users, sessions, sockets) = (&self.users, &self.sessions, &self.sockets);
        self.coap_to_mqtt.handle_events(|address| {
            let secure = sockets.get(address.listener)?.secure.is_some();
            let sharing = match secure {
                true => sessions.get(&address)?.clone(),
                false => Sharing::anonymous(address.listener),
            };
            users.get(&sharing).map(|(user, _)| *user)
        });
        let now = Instant::now();
        while let Some((address, datagram)) = self.coap_to_mqtt.server.poll_transmit() {
            let Some(socket) = self.sockets.get_mut(address.listener) else { continue };
            match &mut socket.secure {
                Some(secure) => {
                    let outcomes = secure.send(now, address, &datagram);
                    self.carry_out(outcomes);
                }
                None => socket.send(address, &datagram),
            }
        }
        for socket in &mut self.sockets {
            while let Some((address, datagram)) =
                socket.secure.as_mut().and_then(Secure::poll_transmit)
            {
                socket.send(address, &datagram);
            }
        }
    }
}

impl Socket {
    fn send(&self, address: Address, datagram: &[u8]) {
        self.udp.send(address.peer, address.local, datagram);
    }
}
