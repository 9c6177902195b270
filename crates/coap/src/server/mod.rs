//! The server's side for all peers: their state, their deadlines, and the memory that they may use together. `peer`
//! handles one peer's messages.

mod bodies;
mod peer;
mod reply;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::block::MAX_SZX;
use crate::channel::Timing;
use crate::echo::Echo;
use crate::message::{self, Method};
use crate::response::Response;
use peer::{Happened, PeerState};

fulmar_text::with_defaults! {
    /// Bounds of a [`Server`], and its timing.
    #[derive(Clone, Copy, Debug)]
    pub struct Limits {
        /// Transmission parameters.
        pub timing: Timing = Timing::default(),
        /// Peers with stored state.
        pub max_peers: usize = 10_000,
        /// The largest body in either direction, in bytes.
        pub max_body_bytes: usize = 1 << 20,
        /// Bytes of bodies in transfer and notifications that wait, over all peers.
        pub max_buffered_bytes: usize = 64 << 20,
        /// Requests of a peer that wait for a response.
        pub max_requests_per_peer: usize = 16,
        /// Observations of a peer.
        pub max_observations_per_peer: usize = 64,
        /// Notifications of an observation that wait for earlier ones; beyond, the oldest is dropped.
        pub max_waiting_notifications: usize = 64,
        /// The largest blocks offered: 2^(szx + 4) bytes, at most [`MAX_SZX`].
        pub max_szx: u8 = MAX_SZX,
    }
}

/// Identifies a peer.
pub trait Peer: Copy + Ord + Debug {
    /// Bytes that no other peer has, for the Echo option.
    fn bytes(&self) -> Vec<u8>;
}

impl Peer for SocketAddr {
    fn bytes(&self) -> Vec<u8> {
        self.to_string().into_bytes()
    }
}

/// Whether a datagram's source address can be forged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// It was received over DTLS, or from this machine.
    Proven,
    /// It may be forged: until the peer has answered a message, little is sent to it (RFC 7252 section 11.3), and it
    /// may not observe.
    Claimed,
}

/// Identifies a request that waits for its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exchange<P> {
    /// The peer that sent the request.
    pub peer: P,
    id: u64,
}

/// Identifies an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObservationId(u64);

/// The value of a request's Observe option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observe {
    /// The peer requests notifications; [`Server::observe`] grants them.
    Register,
    /// The peer has ended its observation; the server has removed it.
    Deregister,
}

/// A complete request.
#[derive(Clone, Debug)]
pub struct Request<P> {
    /// For the response.
    pub exchange: Exchange<P>,
    /// The method.
    pub method: Method,
    /// Segments of the path.
    pub path: Vec<String>,
    /// Arguments of the query.
    pub queries: Vec<String>,
    /// The payload's Content-Format (RFC 7252 section 12.3).
    pub content_format: Option<u16>,
    /// The Content-Format that the peer accepts.
    pub accept: Option<u16>,
    /// The body, assembled from its blocks.
    pub payload: Bytes,
    /// Observe, for GET.
    pub observe: Option<Observe>,
    /// Whether the peer's address is validated; before that, the request may be forged.
    pub proven: bool,
}

/// An event.
#[derive(Clone, Debug)]
pub enum Event<P> {
    /// A request is to be answered: [`Server::respond`], or [`Server::observe`].
    Request(Request<P>),
    /// An observation has ended: the peer has ended or replaced it, or is lost.
    Ended(ObservationId),
}

/// Why a datagram had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// It is not a CoAP message.
    #[error("not a CoAP message")]
    Malformed,
    /// There are [`Limits::max_peers`] peers, and all of them have observations or requests that wait for a response.
    #[error("no room for another peer")]
    NoRoom,
}

/// Serves any number of peers, up to [`Limits::max_peers`].
#[derive(Debug)]
pub struct Server<P> {
    limits: Limits,
    echo: Echo,
    random: fastrand::Rng,
    peers: BTreeMap<P, PeerState>,
    /// The peers' deadlines.
    due: BTreeSet<(Instant, P)>,
    /// Peers without observations, the longest idle first: they make room for others.
    idle: BTreeSet<(Instant, P)>,
    /// Idle peers with bodies in transfer: first those whose address is not validated, then the longest idle. Their
    /// bodies make room for others'.
    holding: BTreeSet<(bool, Instant, P)>,
    observers: BTreeMap<u64, P>,
    buffered: usize,
    next_id: u64,
    outgoing: VecDeque<(P, Vec<u8>)>,
    events: VecDeque<Event<P>>,
}

/// The context of one call to a peer's state.
struct Context<'a> {
    limits: &'a Limits,
    echo: &'a Echo,
    peer: &'a [u8],
    now: Instant,
    /// Bytes that may still be stored.
    room: usize,
    next_id: &'a mut u64,
    out: Vec<Vec<u8>>,
    happened: Vec<Happened>,
}

impl Context<'_> {
    fn take_id(&mut self) -> u64 {
        *self.next_id += 1;
        *self.next_id
    }
}

impl<P: Peer> Server<P> {
    /// A server without peers. `secret` is for the Echo option; an attacker that knows it can forge addresses.
    #[must_use]
    pub fn new(limits: Limits, secret: &[u8; 32], now: Instant) -> Server<P> {
        let seed = secret.iter().fold(0u64, |seed, byte| seed.rotate_left(8) ^ u64::from(*byte));
        Server {
            limits: Limits { max_szx: limits.max_szx.min(MAX_SZX), ..limits },
            echo: Echo::new(secret, now),
            random: fastrand::Rng::with_seed(seed),
            peers: BTreeMap::new(),
            due: BTreeSet::new(),
            idle: BTreeSet::new(),
            holding: BTreeSet::new(),
            observers: BTreeMap::new(),
            buffered: 0,
            next_id: 0,
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Handles a datagram.
    ///
    /// # Errors
    /// It is not CoAP, or there is no room for another peer; nothing has changed. A confirmable message gets a reset.
    pub fn receive(
        &mut self,
        now: Instant,
        peer: P,
        trust: Trust,
        datagram: &[u8],
    ) -> Result<(), Rejected> {
        let Some(packet) = message::read(datagram) else {
            self.outgoing.extend(message::refusal(datagram).map(|reset| (peer, reset)));
            return Err(Rejected::Malformed);
        };
        if !self.peers.contains_key(&peer) && !self.make_room() {
            return Err(Rejected::NoRoom);
        }
        let (timing, seed) = (self.limits.timing, self.random.u64(..));
        let state = self.peers.entry(peer).or_insert_with(|| PeerState::new(timing, seed, now));
        state.trust(trust);
        self.free(now, peer, datagram.len());
        self.with(now, peer, |state, context| state.receive(context, &packet, datagram.len()));
        Ok(())
    }

    /// Answers a request. Ignored if the request was answered before, or its peer was removed.
    pub fn respond(&mut self, now: Instant, exchange: Exchange<P>, response: Response) {
        self.with(now, exchange.peer, |state, context| {
            state.respond(context, exchange.id, response);
        });
    }

    /// Answers a request by requesting that its peer validates its address (RFC 9175 section 2.3), which is cheaper
    /// than the request itself. The peer then repeats the request.
    pub fn ask_for_proof(&mut self, now: Instant, exchange: Exchange<P>) {
        self.with(now, exchange.peer, |state, context| state.ask_for_proof(context, exchange.id));
    }

    /// Answers a request to register, and begins an observation. `None` if the response is an error, or the peer may
    /// not observe or has too many observations: the request is then answered without an observation.
    pub fn observe(
        &mut self,
        now: Instant,
        exchange: Exchange<P>,
        response: Response,
    ) -> Option<ObservationId> {
        let id = self.with(now, exchange.peer, |state, context| {
            state.observe(context, exchange.id, response)
        })??;
        self.observers.insert(id, exchange.peer);
        Some(ObservationId(id))
    }

    /// Notifies observers of a change. An error ends their observations.
    pub fn notify(&mut self, now: Instant, observers: &[ObservationId], response: &Response) {
        // Once, not for each of them: a value may have a mebibyte.
        let etag = reply::etag(response);
        for id in observers {
            if let Some(&peer) = self.observers.get(&id.0) {
                self.with(now, peer, |state, context| state.notify(context, id.0, response, etag));
            }
        }
    }

    /// The observations of all peers.
    pub fn observers(&self) -> impl Iterator<Item = (ObservationId, P)> {
        self.observers.iter().map(|(id, peer)| (ObservationId(*id), *peer))
    }

    /// Removes a peer, for example after its DTLS session has ended.
    pub fn forget(&mut self, peer: P) {
        let Some(state) = self.peers.remove(&peer) else { return };
        self.unlist(peer, &state);
        self.buffered -= state.counted;
        for id in state.observations() {
            self.ended(id);
        }
    }

    /// The next datagram to be sent.
    pub fn poll_transmit(&mut self) -> Option<(P, Vec<u8>)> {
        self.outgoing.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event<P>> {
        self.events.pop_front()
    }

    /// When [`Server::on_deadline`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Handles the deadlines at `now`.
    pub fn on_deadline(&mut self, now: Instant) {
        while let Some(&(at, peer)) = self.due.first() {
            if at > now {
                return;
            }
            let over = self.with(now, peer, |state, context| state.on_deadline(context));
            if over == Some(true) {
                self.forget(peer);
            }
        }
    }

    /// Peers with stored state.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Observations.
    #[must_use]
    pub fn observations(&self) -> usize {
        self.observers.len()
    }

    /// Bytes of stored bodies and waiting notifications.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.buffered
    }

    fn make_room(&mut self) -> bool {
        if self.peers.len() < self.limits.max_peers {
            return true;
        }
        let Some(&(_, peer)) = self.idle.first() else { return false };
        self.forget(peer);
        true
    }

    /// Drops bodies of other peers until `peer` may add this many bytes, so that abandoned transfers do not block
    /// others.
    fn free(&mut self, now: Instant, peer: P, bytes: usize) {
        while self.buffered + bytes > self.limits.max_buffered_bytes {
            let silent =
                self.holding.iter().map(|(_, _, other)| *other).find(|other| *other != peer);
            let Some(silent) = silent else { return };
            self.with(now, silent, |state, _| state.drop_bodies());
        }
    }

    /// Calls one peer's state, and handles the results.
    fn with<R>(
        &mut self,
        now: Instant,
        peer: P,
        work: impl FnOnce(&mut PeerState, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let mut state = self.peers.remove(&peer)?;
        self.unlist(peer, &state);
        let name = peer.bytes();
        let mut context = Context {
            limits: &self.limits,
            echo: &self.echo,
            peer: &name,
            now,
            room: self.limits.max_buffered_bytes.saturating_sub(self.buffered),
            next_id: &mut self.next_id,
            out: Vec::new(),
            happened: Vec::new(),
        };
        let result = work(&mut state, &mut context);
        let (out, happened) = (context.out, context.happened);
        self.outgoing.extend(out.into_iter().map(|datagram| (peer, datagram)));
        for event in happened {
            match event {
                Happened::Request(request) => {
                    self.events.push_back(Event::Request(request.with_peer(peer)));
                }
                Happened::Ended(id) => self.ended(id),
            }
        }
        let counted = state.bytes();
        self.buffered = self.buffered - state.counted + counted;
        state.counted = counted;
        let lifetime = self.limits.timing.exchange_lifetime;
        state.due = state.deadline(lifetime);
        self.due.insert((state.due, peer));
        if state.is_idle() {
            self.idle.insert((state.last_heard, peer));
            if state.holds_bodies() {
                self.holding.insert((state.proven, state.last_heard, peer));
            }
        }
        self.peers.insert(peer, state);
        Some(result)
    }

    fn unlist(&mut self, peer: P, state: &PeerState) {
        self.due.remove(&(state.due, peer));
        self.idle.remove(&(state.last_heard, peer));
        for proven in [false, true] {
            self.holding.remove(&(proven, state.last_heard, peer));
        }
    }

    fn ended(&mut self, id: u64) {
        // No event for an observation that ends while it is being granted.
        if self.observers.remove(&id).is_some() {
            self.events.push_back(Event::Ended(ObservationId(id)));
        }
    }
}

/// Longest silence of an observer: RFC 7641 section 4.5 requires a check once a day.
const OBSERVER_SILENCE: Duration = Duration::from_secs(24 * 3600);
