//! A client and a server with a bad link between them, in simulated time. The server is a table of resources:
//! PUT sets, GET reads, observers are notified.

#![allow(clippy::unwrap_used, dead_code)]

use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fulmar_coap::{
    Call, CallId, Client, ClientEvent, ClientLimits, Event, Limits, Method, ObservationId, Observe,
    Response, Server, Trust, code,
};

/// Longer than 20 retransmissions, each after twice the time of the one before, take (73 days).
pub(crate) const PATIENCE: Duration = Duration::from_secs(10_000_000);

/// What the link does; shares are of 1000.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) seed: u64,
    pub(crate) loss: u32,
    pub(crate) doubled: u32,
    /// Packets take so long, and up to as long again, so that they overtake each other.
    pub(crate) delay: Duration,
}

impl Link {
    pub(crate) const GOOD: Link =
        Link { seed: 1, loss: 0, doubled: 0, delay: Duration::from_millis(10) };
}

#[derive(PartialEq, Eq)]
struct OnTheWay {
    at: Instant,
    number: u64,
    up: bool,
    datagram: Vec<u8>,
}

impl Ord for OnTheWay {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // The first one out of the heap is the earliest.
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for OnTheWay {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

pub(crate) struct Site {
    pub(crate) now: Instant,
    pub(crate) client: Client,
    pub(crate) server: Server<SocketAddr>,
    pub(crate) trust: Trust,
    link: Link,
    random: fastrand::Rng,
    way: BinaryHeap<OnTheWay>,
    sent: u64,
    pub(crate) resources: BTreeMap<Vec<String>, Bytes>,
    observers: Vec<(Vec<String>, ObservationId)>,
    /// Bodies that were put, in order.
    pub(crate) puts: Vec<Bytes>,
    /// Answers are given so much later than requests.
    pub(crate) slow: Duration,
    /// Whether clients must validate their address before they get an answer.
    pub(crate) wants_proof: bool,
    answers: Vec<(Instant, fulmar_coap::Request<SocketAddr>)>,
    /// The largest datagram the server sent.
    pub(crate) largest: usize,
    pub(crate) datagrams: u64,
}

pub(crate) fn peer() -> SocketAddr {
    "192.0.2.1:5000".parse().unwrap()
}

impl Site {
    pub(crate) fn new(link: Link) -> Site {
        Site::with(link, Limits::default(), ClientLimits::default())
    }

    pub(crate) fn with(link: Link, limits: Limits, client: ClientLimits) -> Site {
        let now = Instant::now();
        Site {
            now,
            client: Client::new(client, link.seed),
            server: Server::new(limits, &[link.seed as u8; 32], now),
            trust: Trust::Proven,
            link,
            random: fastrand::Rng::with_seed(link.seed),
            way: BinaryHeap::new(),
            sent: 0,
            resources: BTreeMap::new(),
            observers: Vec::new(),
            puts: Vec::new(),
            slow: Duration::ZERO,
            wants_proof: false,
            answers: Vec::new(),
            largest: 0,
            datagrams: 0,
        }
    }

    pub(crate) fn put(&mut self, path: &str, body: impl Into<Bytes>) -> CallId {
        let mut call = Call::new(Method::Put, vec![path.to_owned()]);
        call.payload = body.into();
        self.client.call(self.now, call)
    }

    pub(crate) fn get(&mut self, path: &str, observe: bool) -> CallId {
        let mut call = Call::new(Method::Get, vec![path.to_owned()]);
        call.observe = observe;
        self.client.call(self.now, call)
    }

    /// Changes a resource at the server.
    pub(crate) fn change(&mut self, path: &str, body: impl Into<Bytes>) {
        let (path, body) = (vec![path.to_owned()], body.into());
        self.resources.insert(path.clone(), body.clone());
        for (observed, id) in self.observers.clone() {
            if observed == path {
                let response = Response { payload: body.clone(), ..Response::new(code::CONTENT) };
                self.server.notify(self.now, &[id], &response);
            }
        }
    }

    fn send(&mut self, up: bool, datagram: Vec<u8>) {
        self.datagrams += 1;
        if !up {
            self.largest = self.largest.max(datagram.len());
        }
        let copies = 1 + u32::from(self.random.u32(0..1000) < self.link.doubled);
        for _ in 0..copies {
            if self.random.u32(0..1000) < self.link.loss {
                continue;
            }
            self.sent += 1;
            let at = self.now + self.link.delay.mul_f64(1.0 + self.random.f64());
            self.way.push(OnTheWay { at, number: self.sent, up, datagram: datagram.clone() });
        }
    }

    fn serve(&mut self) {
        while let Some(event) = self.server.poll_event() {
            match event {
                Event::Ended(id) => self.observers.retain(|(_, other)| *other != id),
                Event::Request(request) => self.answers.push((self.now + self.slow, request)),
            }
        }
        let now = self.now;
        let (due, later) = std::mem::take(&mut self.answers).into_iter().partition(|a| a.0 <= now);
        self.answers = later;
        for (_, request) in due {
            self.answer(request);
        }
    }

    fn answer(&mut self, request: fulmar_coap::Request<SocketAddr>) {
        if self.wants_proof && !request.proven {
            return self.server.ask_for_proof(self.now, request.exchange);
        }
        let found = self.resources.get(&request.path).cloned();
        let content = found.map_or(Response::new(code::NOT_FOUND), |payload| Response {
            payload,
            ..Response::new(code::CONTENT)
        });
        match (request.method, request.observe) {
            (Method::Get, Some(Observe::Register)) => {
                if let Some(id) = self.server.observe(self.now, request.exchange, content) {
                    self.observers.push((request.path, id));
                }
            }
            (Method::Get, _) => self.server.respond(self.now, request.exchange, content),
            _ => {
                self.puts.push(request.payload.clone());
                self.server.respond(self.now, request.exchange, Response::new(code::CHANGED));
                self.change(&request.path[0].clone(), request.payload);
            }
        }
    }

    fn flush(&mut self) {
        loop {
            self.serve();
            let mut quiet = true;
            while let Some(datagram) = self.client.poll_transmit() {
                self.send(true, datagram);
                quiet = false;
            }
            while let Some((_, datagram)) = self.server.poll_transmit() {
                self.send(false, datagram);
                quiet = false;
            }
            if quiet {
                return;
            }
        }
    }

    /// Goes on to the next thing that happens; `false` if that is after `until`.
    pub(crate) fn step(&mut self, until: Instant) -> bool {
        self.flush();
        let answers = self.answers.iter().map(|(at, _)| *at);
        let next = answers
            .chain(self.way.peek().map(|packet| packet.at))
            .chain(self.client.deadline())
            .chain(self.server.deadline())
            .min();
        let Some(next) = next.filter(|next| *next <= until) else {
            self.now = until;
            return false;
        };
        self.now = self.now.max(next);
        while self.way.peek().is_some_and(|packet| packet.at <= self.now) {
            let packet = self.way.pop().unwrap();
            if packet.up {
                let (now, datagram) = (self.now, &packet.datagram);
                self.server.receive(now, peer(), self.trust, datagram).unwrap();
            } else {
                self.client.receive(self.now, &packet.datagram);
            }
            self.flush();
        }
        self.client.on_deadline(self.now);
        self.server.on_deadline(self.now);
        self.flush();
        true
    }

    /// The next event of the client, if one comes within `time`.
    pub(crate) fn event(&mut self, time: Duration) -> Option<ClientEvent> {
        let until = self.now + time;
        loop {
            if let Some(event) = self.client.poll_event() {
                return Some(event);
            }
            if !self.step(until) {
                return self.client.poll_event();
            }
        }
    }

    /// The response to the only request there is.
    pub(crate) fn response(&mut self) -> Response {
        match self.event(PATIENCE) {
            Some(ClientEvent::Response { response, .. }) => response,
            other => panic!("{other:?}"),
        }
    }
}
